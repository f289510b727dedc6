//! Foreign text reaches a terminal as plain text.

use serde_json::Value;

use crate::home::Home;

/// Moves the cursor, renames the window, reverses the line.
const EVIL: &str = "swap\x1b[31m\x1b]0;owned\x07\u{9b}2J\u{202e}done\x7f\rx\ncluster/quiet Ready";

fn is_obeyed(c: char) -> bool {
    (c.is_control() && !matches!(c, '\n' | '\t')) || c == '\u{202e}'
}

#[test]
fn what_others_wrote_is_shown_and_never_obeyed() {
    let home = Home::new();
    let dev = home.dev();
    let here = "--server unix:api.sock";
    home.succeeds(&format!("apply -f quiet.yaml --wait {here}"));
    let paused = home
        .drover(&format!("pause quiet {here} --reason"))
        .arg(EVIL)
        .output()
        .unwrap();
    assert!(paused.status.success(), "{paused:?}");
    let mut seen = 0;
    for line in [
        "get clusters",
        "get clusters -o wide",
        "get clusters -o json",
        "get cluster quiet -o yaml",
        "get cluster quiet -o manifest",
        "get clusters -o name",
        "get nodes quiet",
        "describe cluster quiet",
        "status",
        "events quiet",
        "events quiet -o json",
        "events quiet -o yaml",
        "plan -f quiet.yaml",
        "rollout status quiet",
        "rollout history quiet",
        "wait cluster quiet --for condition=Nothing --timeout 1s",
        "apply -f quiet.yaml",
        "apply -f quiet.yaml -o json",
    ] {
        let output = home.run(&format!("{line} {here}"));
        let text = String::from_utf8([output.stdout, output.stderr].concat()).unwrap();
        assert!(!text.chars().any(is_obeyed), "{line}: {text:?}");
        seen += usize::from(text.contains("swap"));
        for shown in text.lines().filter(|line| line.contains("swap")) {
            let escaped = shown.contains("\\u001b[31m") || shown.contains("\\x1b[31m");
            assert!(escaped, "{line}: {shown}");
        }
    }
    assert!(seen >= 2, "only {seen} commands show the reason");
    // Programs get the original text.
    let text = home.succeeds(&format!("get clusters -o json {here}"));
    let answer: Value = serde_json::from_str(&text).unwrap();
    let reason = answer["clusters"][0]["status"]["pause"]["reason"].as_str();
    assert_eq!(reason, Some(EVIL));
    // Errors repeat names that the user typed.
    for what in ["get cluster", "describe cluster", "get nodes"] {
        let output = home
            .drover(&format!("{what} {here}"))
            .arg("a\x1b[2Jb\u{9b}c")
            .output()
            .unwrap();
        let text = String::from_utf8([output.stdout, output.stderr].concat()).unwrap();
        assert!(!text.chars().any(is_obeyed), "{what}: {text:?}");
    }
    dev.stop();
}
