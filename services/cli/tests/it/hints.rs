//! Hints are commands that can be pasted: each is run in a shell as it is printed.

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Output, Stdio},
};

use drover_testing::processes::program;
use serde_json::Value;

use crate::home::{Dev, Home};

const SHOP: &str = "\
apiVersion: drover.dev/v1
kind: Cluster
metadata: {name: shop}
spec:
  platform: simulated
  groups:
    web: {size: 2}
    db: {size: 1}
";
/// A name that a shell has to be given in quotes.
const FILE: &str = "my shop.yaml";
const HERE: &str = "--server unix:api.sock";

/// A directory with a `drover dev` in which the cluster `shop` is ready.
fn shop() -> (Home, Dev) {
    let home = Home::new();
    let dev = home.dev();
    write(&home, FILE, SHOP);
    let mut apply = home.drover(&format!("apply --wait {HERE} -f"));
    let applied = apply.arg(FILE).output().unwrap();
    assert!(applied.status.success(), "{applied:?}");
    (home, dev)
}

fn write(home: &Home, name: &str, text: &str) {
    fs::write(home.path().join(name), text).unwrap();
}

/// Everything that a command printed.
fn text(output: &Output) -> String {
    let all = [output.stdout.as_slice(), &output.stderr].concat();
    String::from_utf8(all).unwrap()
}

/// Runs a command as it is printed, with nothing else that says where the orchestrator is.
fn pasted(home: &Home, command: &str) -> Output {
    let rest = command.strip_prefix("drover ");
    let line = format!(
        "exec \"$0\" {}",
        rest.unwrap_or_else(|| panic!("{command}"))
    );
    program("sh")
        .args(["-c", &line, env!("CARGO_BIN_EXE_drover")])
        .current_dir(home.path())
        .env("XDG_CONFIG_HOME", home.path().join("config"))
        .stdin(Stdio::null())
        .output()
        .unwrap()
}

/// A hint as it is printed where the orchestrator was named. What follows -- is for another program.
fn here(hint: &str) -> String {
    if hint.contains(" -- ") {
        return hint.replacen("drover", &format!("drover {HERE}"), 1);
    }
    format!("{hint} {HERE}")
}

/// Whether no word stands for something that has to be filled in, as CLUSTER does.
fn is_filled_in(command: &str) -> bool {
    let mut words = command.split(|c: char| !c.is_ascii_alphabetic());
    !words.any(|word| !word.is_empty() && word.chars().all(|c| c.is_ascii_uppercase()))
}

#[test]
fn every_hint_is_understood_as_it_is_printed() {
    let (home, dev) = shop();
    assert!(!is_filled_in("drover rollout undo shop --to-revision N"));
    for hint in drover_cli::hints() {
        assert!(is_filled_in(&hint), "{hint}");
        let output = pasted(&home, &here(&hint));
        // Done, refused, or not there: it was understood, and by this orchestrator.
        let understood = matches!(output.status.code(), Some(0 | 1 | 3));
        assert!(understood, "{hint}: {}", text(&output));
    }
    dev.stop();
}

#[test]
fn a_pasted_command_reaches_the_same_orchestrator_with_the_same_file() {
    let (home, dev) = shop();
    write(
        &home,
        "small.yaml",
        &SHOP.replace("    db: {size: 1}\n", ""),
    );
    home.succeeds("context set silent http://127.0.0.1:1");
    home.succeeds("context set ours unix:api.sock");
    for (line, hint) in [
        ("rollout status shop/nope", "describe cluster shop"),
        ("scale shop nope 3", "describe cluster shop"),
        ("rollout restart shop nope", "describe cluster shop"),
        ("failover shop/nope", "describe cluster shop"),
        ("scale shop", "describe cluster shop"),
        ("get cluster nope", "get clusters"),
        ("get hosts", "get platforms"),
        ("replace shop/nope", "get nodes shop"),
        ("rollout undo shop --to-revision 99", "rollout history shop"),
        ("plan -f small.yaml", "plan -f small.yaml --remove-group db"),
        (
            "apply -f small.yaml --dry-run",
            "apply -f small.yaml --dry-run --remove-group db",
        ),
    ] {
        for flags in [HERE, "--context ours"] {
            let said = text(&home.run(&format!("{line} {flags}")));
            let mut hints = said.lines().filter_map(|line| line.strip_prefix("hint: "));
            let told = hints
                .next_back()
                .unwrap_or_else(|| panic!("{line}: {said}"));
            let command = told.find("drover ").map(|at| &told[at..]).unwrap();
            assert_eq!(command, format!("drover {hint} {flags}"), "{line}");
            let output = pasted(&home, command);
            assert!(output.status.success(), "{command}: {}", text(&output));
        }
    }
    for (line, command) in [
        ("pause shop", "resume shop"),
        ("repair shop/web-1", "repair shop/web-1 --done"),
        ("rollout restart shop web", "rollout status shop/web --wait"),
    ] {
        let said = text(&home.run(&format!("{line} {HERE}")));
        let command = format!("drover {command} {HERE}");
        assert!(said.contains(&command), "{line}: {said}");
        let output = pasted(&home, &command);
        assert!(output.status.success(), "{command}: {}", text(&output));
    }
    // What is a variable here is one where the command is pasted, too.
    let mut lost = home.drover("get cluster nope");
    let said = text(&lost.env("DROVER_SERVER", "unix:api.sock").output().unwrap());
    assert!(said.ends_with("hint: drover get clusters\n"), "{said}");
    dev.stop();
}

#[test]
fn what_nothing_would_be_lost_by_needs_no_failover() {
    let (home, dev) = shop();
    let output = home.run(&format!("failover shop {HERE}"));
    let said = text(&output);
    assert_eq!(output.status.code(), Some(64), "{said}");
    let several = "cluster shop has several groups: ";
    assert!(said.contains(several), "{said}");
    assert!(said.contains("hint: drover failover shop/"), "{said}");
    for flags in ["", "--accept-loss", "--accept-loss -y -o json"] {
        let output = home.run(&format!("failover shop/db {flags} {HERE}"));
        let said = text(&output);
        assert_eq!(output.status.code(), Some(1), "{flags}: {said}");
        let nobody = "error: no node of shop/db is recorded to have acknowledged alone\n";
        assert_eq!(said, nobody, "{flags}");
    }
    dev.stop();
}

#[test]
fn what_a_plan_says_is_exactly_what_is_applied() {
    let (home, dev) = shop();
    write(&home, FILE, &SHOP.replace("size: 2", "size: 3"));
    let mut plan = home.drover(&format!("plan {HERE} -f"));
    let said = text(&plan.arg(FILE).output().unwrap());
    let command = said
        .split_once("Exactly this: ")
        .and_then(|(_, rest)| rest.lines().next());
    let expected = format!("drover apply -f '{FILE}' --expect-generation 1 {HERE}");
    assert_eq!(command, Some(&*expected), "{said}");
    let output = pasted(&home, &expected);
    assert!(output.status.success(), "{}", text(&output));
    assert!(text(&output).contains("cluster/shop configured"));
    dev.stop();
}

#[test]
fn what_waits_for_a_secret_is_one_document_for_programs() {
    let home = Home::new();
    let dev = home.dev();
    let cluster = SHOP.replace(
        "spec:\n",
        "spec:\n  bootstrap: {secretKeyRef: {name: key, key: password}}\n",
    );
    let secret = "apiVersion: drover.dev/v1\nkind: Secret\nmetadata: {name: key}\n";
    let file = format!("{secret}stringData: {{password: hush}}\n---\n{cluster}");
    write(&home, "secret.yaml", &file);
    for line in ["apply -f secret.yaml --dry-run", "plan -f secret.yaml"] {
        let printed = home.succeeds(&format!("{line} -o json {HERE}"));
        let answer: Value = serde_json::from_str(&printed).unwrap();
        assert_eq!(answer["cluster"]["name"], "shop", "{line}");
        assert!(!printed.contains("hush"), "{printed}");
        let names = home.succeeds(&format!("{line} -o name {HERE}"));
        assert_eq!(names, "cluster/shop\n", "{line}");
    }
    dev.stop();
}

#[test]
fn what_was_waited_for_is_printed_for_programs() {
    let (home, dev) = shop();
    let printed = home.succeeds(&format!("wait shop -o json {HERE}"));
    let answer: Value = serde_json::from_str(&printed).unwrap();
    assert_eq!(answer["clusters"][0]["name"], "shop");
    let names = home.succeeds(&format!("wait shop -o name {HERE}"));
    assert_eq!(names, "cluster/shop\n");
    let gone = home.succeeds(&format!("wait nope --for delete -o json {HERE}"));
    let answer: Value = serde_json::from_str(&gone).unwrap();
    assert_eq!(answer["clusters"], serde_json::json!([]));
    // What is being deleted does not become ready.
    home.succeeds(&format!("pause shop {HERE}"));
    home.succeeds(&format!("delete cluster shop -y {HERE}"));
    let output = home.run(&format!("resume shop --wait {HERE}"));
    let said = text(&output);
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("cluster shop is being deleted"), "{said}");
    let hint = format!("hint: drover wait shop --for delete {HERE}");
    assert!(said.contains(&hint), "{said}");
    assert!(pasted(&home, &hint["hint: ".len()..]).status.success());
    dev.stop();
}

/// Sources that suggest commands by hand: examples and tips of the grammar, those of `drover dev`, which go to what it
/// serves itself, and those that are about no orchestrator in particular.
const BY_HAND: [&str; 4] = [
    "cli/help.rs",
    "commands/describe.rs",
    "commands/tree.rs",
    "dev/",
];

fn sources(directory: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            found.extend(sources(&path));
        } else {
            found.push(path);
        }
    }
    found
}

#[test]
fn no_other_source_writes_a_hint() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let all = sources(&root);
    assert!(all.len() > 30, "{all:?}");
    for path in all {
        let name = path.strip_prefix(&root).unwrap().to_str().unwrap();
        if BY_HAND.iter().any(|prefix| name.starts_with(prefix)) {
            continue;
        }
        let text = fs::read_to_string(&path).unwrap();
        let code = text.split("#[cfg(test)]").next().unwrap_or_default();
        for line in code.lines().filter(|it| !it.trim_start().starts_with("//")) {
            let is_hint = line.contains(": drover ") || line.contains("\\nhint:");
            assert!(!is_hint, "{name}: make it a `Hint`: {line}");
        }
    }
}
