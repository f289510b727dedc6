//! The script of a load balancer, with folders as its kubelet makes them. HAProxy is played: what it would do is to listen.

use std::{
    fs,
    os::unix::fs::{PermissionsExt as _, symlink},
    path::{Path, PathBuf},
    process::Stdio,
    time::Duration,
};

use drover_platform::identity::hex;
use drover_testing::kubernetes::until;
use sha2::{Digest as _, Sha256};
use tokio::{
    io::{AsyncBufReadExt as _, BufReader, Lines},
    net::UnixListener,
    process::{Child, ChildStdout, Command},
};

struct Script {
    directory: tempfile::TempDir,
    said: Lines<BufReader<ChildStdout>>,
    _child: Child,
}

impl Script {
    fn start(version: u64, content: &str) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let root = directory.path();
        for folder in ["live", "start", "run", "bin"] {
            fs::create_dir(root.join(folder)).unwrap();
        }
        symlink("..data/live", root.join("live/live")).unwrap();
        show(root, version, content);
        let haproxy = root.join("bin/haproxy");
        fs::write(
            &haproxy,
            "#!/bin/sh\n[ \"$1\" = -c ] || while kill -0 $PPID 2>&-; do sleep 0.2; done\n",
        )
        .unwrap();
        fs::set_permissions(&haproxy, fs::Permissions::from_mode(0o755)).unwrap();
        let script =
            Path::new(env!("CARGO_MANIFEST_DIR")).join("catalogue/addons/load-balancer.sh.j2");
        let at = |name: &str| root.join(name).display().to_string();
        let script = fs::read_to_string(script).unwrap();
        let script = script
            .replace("/run/drover", &at("run"))
            .replace("/drover/live", &at("live"))
            .replace("/drover/start", &at("start"))
            // It begins anew by a signal, which would end what plays it.
            .replace("kill -USR2", "kill -0");
        let path = format!("{}:{}", at("bin"), std::env::var("PATH").unwrap());
        let mut child = Command::new("sh")
            .args(["-c", &script])
            .env("PATH", path)
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        let said = BufReader::new(child.stdout.take().unwrap()).lines();
        listen(root.join("run"));
        Self {
            directory,
            said,
            _child: child,
        }
    }

    fn shows(&self, version: u64, content: &str) {
        show(self.directory.path(), version, content);
    }

    fn handed(&self, version: u64) -> PathBuf {
        self.directory.path().join(format!("run/handed/{version}"))
    }

    fn is_handed(&self, version: u64, content: &str) {
        let handed = self.handed(version);
        fs::create_dir_all(handed.parent().unwrap()).unwrap();
        let new = handed.with_file_name(".new");
        fs::write(&new, content).unwrap();
        fs::rename(new, handed).unwrap();
    }

    async fn loads(&mut self, content: &str) {
        let said = tokio::time::timeout(Duration::from_secs(60), self.said.next_line());
        let said = said
            .await
            .expect("it says what it has loaded")
            .unwrap()
            .unwrap();
        let digest = hex(&Sha256::digest(content));
        assert_eq!(said, format!("drover: loaded {digest}"), "{content:?}");
    }
}

/// Shows content as a kubelet does: a folder for each version, and a link that is put in place of the last one.
fn show(root: &Path, version: u64, content: &str) {
    let folder = root.join(format!("live/..{version}"));
    fs::create_dir(&folder).unwrap();
    fs::write(
        folder.join("live"),
        format!("# drover {version}\n{content}"),
    )
    .unwrap();
    let link = root.join("live/..new");
    symlink(format!("..{version}"), &link).unwrap();
    fs::rename(link, root.join("live/..data")).unwrap();
}

/// Listens wherever a configuration says.
fn listen(run: PathBuf) {
    tokio::spawn(async move {
        let mut listeners = Vec::new();
        loop {
            tokio::time::sleep(Duration::from_millis(5)).await;
            let own = fs::read_to_string(run.join("own.cfg")).unwrap_or_default();
            let socket = own
                .lines()
                .find_map(|line| line.trim().strip_prefix("stats socket "));
            let Some(socket) = socket.and_then(|rest| rest.split(' ').next()) else {
                continue;
            };
            listeners.extend(UnixListener::bind(socket));
        }
    });
}

#[tokio::test]
async fn what_was_handed_is_used_until_the_kubelet_shows_as_much() {
    let mut script = Script::start(5, "a\n");
    script.loads("a\n").await;
    script.is_handed(7, "c\n");
    script.loads("c\n").await;

    // Late, and not what counts any more. It has been looked at when what is older still is cleared away.
    script.is_handed(3, "old\n");
    script.shows(6, "b\n");
    until("the older one is cleared away", || async {
        (!script.handed(3).exists()).then_some(())
    })
    .await;
    script.shows(7, "c\n");
    until("it is not needed any more", || async {
        (!script.handed(7).exists()).then_some(())
    })
    .await;

    script.is_handed(8, "d\n");
    script.loads("d\n").await;
    script.shows(9, "e\n");
    script.loads("e\n").await;
    script.is_handed(8, "d\n");
    script.is_handed(10, "f\n");
    script.loads("f\n").await;
}
