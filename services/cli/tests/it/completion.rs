//! The completion script of bash, run by bash beside a server.

use std::{env, fs, path::Path};

use drover_testing::processes::program;

use crate::home::Home;

/// Completes the last word. The first line is what was asked of bash for that.
const COMPLETE: &str = r#"
compopt() { asked="$*"; }
source drover.bash
COMP_WORDS=(drover "$@")
COMP_CWORD=$#
_drover
echo "$asked"
printf '%s\n' "${COMPREPLY[@]}"
"#;

const KEPT: &str = "\
apiVersion: drover.dev/v1
kind: Cluster
metadata: {name: kept}
spec: {groups: {db: {size: 1, platform: simulated, storage: {size: 1Gi}}}}
";

/// What the last word of a line may be, and whether a space follows it.
fn completed(home: &Home, line: &str) -> (Vec<String>, bool) {
    let own = Path::new(env!("CARGO_BIN_EXE_drover")).parent().unwrap();
    let mut path = own.as_os_str().to_owned();
    path.push(":");
    path.push(env::var_os("PATH").unwrap());
    let output = program("bash")
        .args(["--norc", "-c", COMPLETE, "bash"])
        .args(line.split(' '))
        .current_dir(home.path())
        .env("PATH", path)
        .env("XDG_CONFIG_HOME", home.path().join("config"))
        .env("DROVER_SERVER", "unix:api.sock")
        .output()
        .unwrap();
    assert!(output.status.success(), "{line}: {output:?}");
    let text = String::from_utf8(output.stdout).unwrap();
    let (asked, words) = text.split_once('\n').unwrap();
    let words = words.lines().filter(|word| !word.is_empty());
    (words.map(str::to_owned).collect(), asked != "-o nospace")
}

#[test]
fn bash_completes_the_names_of_what_there_is() {
    let home = Home::new();
    let dev = home.dev();
    let script = home.succeeds("completion bash");
    fs::write(home.path().join("drover.bash"), script).unwrap();
    fs::write(home.path().join("kept.yaml"), KEPT).unwrap();
    let here = "--server unix:api.sock";
    home.succeeds(&format!("apply -f kept.yaml --wait {here}"));
    home.succeeds(&format!("delete cluster kept -y --wait {here}"));
    home.succeeds(&format!("apply -f quiet.yaml --wait {here}"));
    for (line, words, space) in [
        ("pau", &["pause"][..], true),
        ("get cluster ", &["quiet"], true),
        ("get nodes ", &["quiet", "quiet/"], true),
        ("get node quiet/", &["quiet/web-0", "quiet/web-1"], true),
        ("describe platform ", &["local", "simulated"], true),
        ("delete cluster/", &["cluster/quiet"], true),
        ("wait ", &["quiet"], true),
        ("wait cluster/", &["cluster/quiet"], true),
        ("scale ", &["quiet/"], false),
        ("scale quiet/", &["quiet/web"], true),
        ("scale quiet ", &["web"], true),
        ("logs quiet/web-", &["quiet/web-0", "quiet/web-1"], true),
        ("connect ", &["quiet", "quiet/"], true),
        ("connect quiet/", &["quiet/web"], true),
        ("apply -f ", &[], true),
    ] {
        let found = completed(&home, line);
        assert_eq!(found.0, words, "{line}");
        assert_eq!(found.1, space, "{line}");
    }
    let kept = home.succeeds(&format!("get storage -o name {here}"));
    let ids = kept
        .lines()
        .filter_map(|line| line.strip_prefix("storage/"));
    let ids: Vec<&str> = ids.collect();
    assert_eq!(ids.len(), 1, "{kept}");
    assert_eq!(completed(&home, "get storage ").0, ids);
    assert_eq!(completed(&home, "delete storage ").0, ids);
    dev.stop();
}
