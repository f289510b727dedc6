//! Kept storage of everybody in one table.

use std::{collections::BTreeSet, fs};

use super::{
    document,
    shell::{drover, json},
};
use crate::real::{Server, World, free_port};

/// Columns of a table up to the size, and the whole row.
fn rows(table: &str) -> Vec<(Vec<&str>, &str)> {
    let rows = table.lines().skip(1);
    rows.map(|row| (row.split_whitespace().take(5).collect(), row))
        .collect()
}

/// The words of a table but for ages, which change from one command to the next.
fn ageless(table: &str) -> Vec<&str> {
    let words = table.split_whitespace();
    words
        .filter(|word| !(word.ends_with('s') && word.starts_with(|c: char| c.is_ascii_digit())))
        .collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn storage_of_all_clusters_and_platforms_is_in_one_table_and_a_platform_that_is_silent_is_named()
 {
    let world = World::new().await;
    let root = fs::canonicalize(world.directory.path()).unwrap();
    let simulated = ["--driver", "simulated"];
    let mut spare = Server::new("drover-platform-cloud", &root, free_port(), &simulated);
    spare.start().await;
    world.register("spare", &spare.endpoint()).await;
    for (cluster, platform) in [("shop", "local"), ("depot", "spare")] {
        let text = document(", storage: {size: 1Gi}")
            .replace("name: shop", &format!("name: {cluster}"))
            .replace("platform: local", &format!("platform: {platform}"));
        fs::write(root.join("it.yaml"), text).unwrap();
        drover(&world, "apply -f it.yaml --wait").expect(0, &["created"]);
        drover(&world, &format!("scale {cluster} web 1")).expect(0, &["1 to delete"]);
    }
    world
        .until("one of each is kept", async |world| {
            let all = json(world, "get storage -o json");
            all["storage"].as_array().unwrap().len() == 2
        })
        .await;
    drover(&world, "delete cluster depot -y --wait").expect(0, &["cluster/depot gone"]);

    let table = drover(&world, "get storage --all").expect(0, &[]).out;
    let header = table.lines().next().unwrap();
    let header: Vec<&str> = header.split_whitespace().collect();
    assert_eq!(
        header,
        [
            "CLUSTER", "GROUP", "ORDINAL", "PLATFORM", "SIZE", "CLASS", "SINCE", "FOR", "ID"
        ]
    );
    let found = rows(&table);
    let expected = [
        (
            ["depot", "web", "0", "spare", "1Gi"],
            "none (cluster deleted)",
        ),
        (
            ["depot", "web", "1", "spare", "1Gi"],
            "none (cluster deleted)",
        ),
        (["shop", "web", "1", "local", "1Gi"], "its next node"),
    ];
    assert_eq!(found.len(), expected.len(), "{table}");
    for ((cells, row), (wanted, whose)) in found.iter().zip(expected) {
        assert_eq!(*cells, wanted, "{table}");
        assert!(row.contains(whose), "{table}");
    }
    // Every format says the same, and so does the command without the flag.
    let same = drover(&world, "get storage").expect(0, &[]).out;
    assert_eq!(ageless(&same), ageless(&table));
    let ids: BTreeSet<String> = found
        .iter()
        .map(|(_, row)| format!("storage/{}", row.split_whitespace().last().unwrap()))
        .collect();
    let names = drover(&world, "get storage --all -o name")
        .expect(0, &[])
        .out;
    assert_eq!(
        names.lines().map(str::to_owned).collect::<BTreeSet<_>>(),
        ids
    );
    let yaml = drover(&world, "get storage --all -o yaml")
        .expect(0, &[])
        .out;
    assert_eq!(yaml.matches("clusterId: depot").count(), 2, "{yaml}");

    spare.kill();
    let silent = "spare does not answer: what it keeps is missing";
    let said = drover(&world, "get storage --all").expect(0, &[silent]);
    assert_eq!(rows(&said.out).len(), 1, "{said:?}");
    assert_eq!(rows(&said.out)[0].0[0], "shop");
    let all = json(&world, "get storage --all -o json");
    assert_eq!(all["unreachablePlatforms"], serde_json::json!(["spare"]));
}
