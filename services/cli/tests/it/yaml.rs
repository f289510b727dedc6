//! Several answers in one output: each is a document of YAML of its own.

use std::{
    fs,
    io::{BufRead, BufReader},
    process::Stdio,
};

use serde_json::Value;

use crate::home::Home;

/// The documents of a text, each of which begins with three hyphens.
fn documents(text: &str) -> Vec<Value> {
    let (before, text) = text.split_once("---\n").unwrap();
    assert_eq!(before, "");
    let documents = text.split("\n---\n");
    let read = |document: &str| serde_saphyr::from_str(document).unwrap();
    documents.map(read).collect()
}

/// The first documents that a command prints which does not end.
fn followed(home: &Home, line: &str, number: usize) -> Vec<Value> {
    let mut command = home.drover(line);
    let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
    let mut text = String::new();
    let mut begun = 0;
    for line in BufReader::new(child.stdout.take().unwrap()).lines() {
        let line = line.unwrap();
        begun += usize::from(line == "---");
        // Those before it are complete.
        if begun > number {
            break;
        }
        text.push_str(&line);
        text.push('\n');
    }
    child.kill().unwrap();
    child.wait().unwrap();
    documents(&text)
}

#[test]
fn several_answers_are_several_documents() {
    let home = Home::new();
    let dev = home.dev();
    let here = "--server unix:api.sock";
    for name in ["quiet", "still", "calm"] {
        let text = fs::read_to_string(home.path().join("quiet.yaml")).unwrap();
        fs::write(
            home.path().join("one.yaml"),
            text.replace("name: quiet", &format!("name: {name}")),
        )
        .unwrap();
        home.succeeds(&format!("apply -f one.yaml --wait {here}"));
    }
    let text = home.succeeds(&format!("get cluster quiet still -o yaml {here}"));
    let names: Vec<Value> = documents(&text)
        .iter()
        .map(|document| document["cluster"]["name"].clone())
        .collect();
    assert_eq!(names, ["quiet", "still"]);
    // One answer is one document, as it always was.
    let text = home.succeeds(&format!("get cluster quiet -o yaml {here}"));
    assert!(text.starts_with("cluster:\n"), "{text}");

    let clusters = followed(&home, &format!("get clusters -w -o yaml {here}"), 2);
    assert_eq!(clusters.len(), 2, "{clusters:?}");
    assert!(clusters.iter().all(|it| it["spec"]["groups"].is_array()));
    let nodes = followed(&home, &format!("get nodes -w -o yaml {here}"), 5);
    assert!(nodes.iter().all(|it| it["group"] == "web"), "{nodes:?}");
    let events = followed(&home, &format!("events quiet -w -o yaml {here}"), 3);
    assert_eq!(events[0]["reason"], "ClusterCreated");
    assert!(events.iter().all(|it| it["cluster"] == "quiet"));

    // A node is not found by its name alone.
    let output = home.run(&format!("get node web-0 {here}"));
    assert_eq!(output.status.code(), Some(3));
    let text = String::from_utf8(output.stderr).unwrap();
    let words = "there is no cluster \"web-0\"; a node is CLUSTER/NODE";
    assert!(text.contains(words), "{text}");
    dev.stop();
}
