//! A primary that has lost its standbys goes on alone, as it may; what only it has is awaited until a person gives it up.

use std::{fs, process::Child, time::Duration};

use drover_core::Reason;
use drover_proto::orchestrator::v1 as pb;

use super::{
    UP, active, apply, nested, object,
    postgresql::{ask_at, postgresql},
    real::{World, kill_9, look::condition},
    server, store, text, up, world,
};

const NAME: &str = "postgresql";

async fn nodes(world: &World) -> Vec<pb::Node> {
    world.records(NAME).await.unwrap_or_default()
}

async fn primary(world: &World) -> pb::Node {
    active(&nodes(world).await).expect("a primary").clone()
}

fn cluster(version: &str, standby: u32, synchronous: Option<&str>) -> pb::Cluster {
    let settings = [("shared_buffers", text("16MB"))];
    let mut attributes = vec![("settings", nested(&settings))];
    attributes.extend(synchronous.map(|number| ("synchronous", text(number))));
    store(NAME, version, 1, standby, object(&attributes))
}

/// Rows of `t` that a server has acknowledged.
struct Rows(Vec<usize>);

impl Rows {
    /// One more, if it is acknowledged within three seconds.
    fn insert(&mut self, at: &pb::Node) -> bool {
        let row = self.0.len();
        let done = ask_at(at, &format!("insert into t values ({row}) returning x")).is_some();
        // One that is not acknowledged may be there all the same.
        self.0.extend(done.then_some(row));
        done
    }

    fn are_at(&self, node: &pb::Node) {
        let rows = self.0.iter().map(|row| format!("({row})"));
        let lacks = format!(
            "select count(*) from (values {}) given (x) where not exists (select from t where t.x = given.x)",
            rows.collect::<Vec<_>>().join(", ")
        );
        assert_eq!(ask_at(node, &lacks).as_deref(), Some("0"), "{:?}", self.0);
    }
}

/// How many times it was recorded that a primary may acknowledge alone.
async fn permissions(world: &World, at: &pb::Node) -> u32 {
    let events = world.events(NAME).await.into_iter();
    let told = events.filter(|event| event.reason == "SoleWriter" && event.node() == at.id);
    told.map(|event| event.count.max(1)).sum()
}

/// Waits until a primary may acknowledge alone once more, and writes some rows.
async fn goes_on(world: &World, at: &pb::Node, before: u32, rows: &mut Rows) {
    // What is acknowledged earlier may be at a standby: its receiver outlives a server that was killed, for a moment.
    world
        .until_within(UP, "it is recorded", async |world| {
            permissions(world, at).await > before
        })
        .await;
    let rows = std::cell::RefCell::new(rows);
    for _ in 0..6 {
        world
            .until_within(UP, "it acknowledges alone", async |_| {
                rows.borrow_mut().insert(at)
            })
            .await;
    }
}

async fn awaited(world: &World) {
    world
        .until_within(UP, "it is said who is awaited", async |world| {
            condition(world, NAME, "PromotionFailed")
                .await
                .is_some_and(|(reason, _)| reason == "SoleWriter")
        })
        .await;
}

/// Holds the storage of a node, so that no server begins with it.
struct Held(Child);

impl Held {
    fn of(world: &World, node: &pb::Node) -> Self {
        let prefix = format!("db-{}-", node.ordinal);
        let entries = fs::read_dir(world.state().join("storage")).unwrap();
        let mut folders = entries.map(|entry| entry.unwrap().path());
        let own = |path: &std::path::PathBuf| {
            let name = path.file_name().unwrap().to_string_lossy();
            name.starts_with(&prefix)
        };
        let lock = folders.find(own).unwrap().join("lock");
        // Without a fork: a child that begins while this one is killed would keep the lock.
        let mut command = std::process::Command::new("flock");
        command.arg("--no-fork").arg(lock).args(["sleep", "600"]);
        Self(command.spawn().unwrap())
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_primary_without_its_standby_goes_on_alone_and_is_awaited_with_what_it_has() {
    let (version, _) = postgresql();
    let world = world().await;
    let mut cluster = cluster(&version, 1, None);
    cluster.spec.as_mut().unwrap().groups[0].storage = Some(pb::StorageSpec::default());
    apply(&world, &cluster).await;
    up(&world, NAME, 2).await;
    let first = primary(&world).await;
    ask_at(&first, "create table t (x int)").expect("a table");
    let mut rows = Rows(Vec::new());
    assert!(rows.insert(&first));

    let all = nodes(&world).await;
    let standby = all.iter().find(|node| node.id != first.id).unwrap();
    let before = permissions(&world, &first).await;
    let held_standby = Held::of(&world, standby);
    kill_9(server(standby));
    goes_on(&world, &first, before, &mut rows).await;

    let held = Held::of(&world, &first);
    kill_9(server(&first));
    drop(held_standby);
    awaited(&world).await;
    drop(held);
    up(&world, NAME, 2).await;
    let again = primary(&world).await;
    assert_eq!(again.ordinal, first.ordinal, "who has the storage goes on");
    rows.are_at(&again);

    // From now on the standby may take over.
    kill_9(server(&again));
    world
        .until_within(UP, "the standby is active", async |world| {
            let now = nodes(world).await;
            active(&now).is_some_and(|node| node.ordinal != again.ordinal)
        })
        .await;
    rows.are_at(&primary(&world).await);
}

/// Has a primary let nobody copy it. Who follows it already goes on.
fn lets_nobody_copy(primary: &pb::Node) {
    let folder = ask_at(primary, "show data_directory").expect("its data");
    let file = std::path::Path::new(&folder).join("pg_hba.conf");
    let rules = fs::read_to_string(&file).unwrap();
    fs::write(&file, format!("host replication all all reject\n{rules}")).unwrap();
    ask_at(primary, "select pg_reload_conf()").expect("it reads them again");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_only_a_lost_primary_had_is_given_up_by_a_person_and_by_nobody_else() {
    let (version, _) = postgresql();
    let world = world().await;
    apply(&world, &cluster(&version, 2, Some("2"))).await;
    up(&world, NAME, 3).await;
    let lost = primary(&world).await;
    ask_at(&lost, "create table t (x int)").expect("a table");
    let mut rows = Rows(Vec::new());
    assert!(rows.insert(&lost));

    let all = nodes(&world).await;
    let standby = all.iter().find(|node| node.id != lost.id).unwrap();
    lets_nobody_copy(&lost);
    let before = permissions(&world, &lost).await;
    kill_9(server(standby));
    goes_on(&world, &lost, before, &mut rows).await;
    kill_9(server(&lost));
    awaited(&world).await;
    let now = nodes(&world).await;
    assert_eq!(active(&now), None, "nobody has taken over");

    let fail_over = async |accept_loss| {
        let request = pb::FailOverGroupRequest {
            cluster: NAME.to_owned(),
            group: "db".to_owned(),
            accept_loss,
        };
        let client = world.client();
        client
            .fail_over_group(request, Duration::from_secs(60))
            .await
    };
    let refused = fail_over(false).await.unwrap_err();
    assert_eq!(refused.reason(), Reason::Precondition, "{refused}");
    assert_eq!(refused.fields()[0].field, "accept_loss");
    let answer = fail_over(true).await.unwrap();
    assert_eq!(answer.node_name, lost.name);
    world
        .until_within(UP, "a standby is active", async |world| {
            active(&nodes(world).await).is_some()
        })
        .await;
    let events = world.events(NAME).await;
    assert!(events.iter().any(|event| event.reason == "LossAccepted"));
    up(&world, NAME, 3).await;
}
