//! `drover dev --socket`: only for the user who starts it, nobody else on the machine.

use std::{
    fs,
    os::unix::fs::{MetadataExt, PermissionsExt},
    path::Path,
};

use crate::home::Home;

fn mode(path: &Path) -> u32 {
    fs::symlink_metadata(path).unwrap().mode() & 0o7777
}

#[test]
fn the_api_is_on_a_socket_of_its_owner_and_nothing_is_on_a_port() {
    let home = Home::new();
    let dev = home.dev();
    let server = format!(
        "unix:{}",
        fs::canonicalize(home.socket()).unwrap().display()
    );
    for word in [&server, "this user only"] {
        let said = dev.said.iter().any(|line| line.contains(word));
        assert!(said, "{word}: {:?}", dev.said);
    }
    assert!(home.sockets().len() > 1, "platforms have theirs");
    for socket in home.sockets() {
        assert_eq!(mode(&socket), 0o600, "{}", socket.display());
    }
    assert!(dev.listening().is_empty(), "{:?}", dev.listening());
    home.succeeds(&format!("apply -f quiet.yaml --wait --server {server}"));
    // With a path relative to its directory, and with a context from anywhere.
    let nodes = home.succeeds("get nodes quiet -o name --server unix:api.sock");
    assert_eq!(nodes.lines().count(), 2, "{nodes}");
    home.succeeds("context set mine unix:api.sock");
    assert_eq!(home.succeeds("get nodes quiet -o name"), nodes);
    home.succeeds("health unix:api.sock");
    dev.stop();
    assert!(home.sockets().is_empty(), "{:?}", home.sockets());
    let output = home.run("get clusters --server unix:api.sock");
    let text = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(5), "{text}");
    assert!(
        text.contains("cannot reach the orchestrator at unix:"),
        "{text}"
    );
}

#[test]
fn a_socket_of_the_dead_is_replaced_and_one_of_the_living_is_not() {
    let home = Home::new();
    let mut dev = home.dev();
    let second = home.run("dev --socket api.sock --data-dir other");
    let text = String::from_utf8(second.stderr).unwrap();
    assert_eq!(second.status.code(), Some(1), "{text}");
    assert!(text.contains("another process listens there"), "{text}");
    assert!(!home.path().join("other").exists(), "nothing was made");
    home.succeeds("get platforms --server unix:api.sock");
    // A killed process cannot clean up.
    dev.child.kill().unwrap();
    dev.child.wait().unwrap();
    assert!(!home.sockets().is_empty());
    let again = home.dev();
    home.succeeds("get platforms --server unix:api.sock");
    again.stop();
}

#[test]
fn a_directory_that_others_may_write_to_is_refused() {
    let home = Home::new();
    fs::create_dir(home.path().join("shared")).unwrap();
    let shared = fs::Permissions::from_mode(0o1777);
    fs::set_permissions(home.path().join("shared"), shared).unwrap();
    let output = home.run("dev --socket shared/api.sock --data-dir data");
    let text = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{text}");
    assert!(text.contains("choose a directory of your own"), "{text}");
    let output = home.run("dev --socket api.sock --listen 127.0.0.1:0");
    assert_eq!(output.status.code(), Some(64), "{output:?}");
}
