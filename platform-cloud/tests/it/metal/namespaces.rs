//! Machines that run their user data: processes in namespaces of their own, with the address that the emulated cloud
//! gave them. Needs root.

use std::{
    fs,
    path::PathBuf,
    process::{Child, Command, Output},
};

use tempfile::TempDir;

/// What a machine has when it boots: no state, and in the place of systemd a script that begins the unit of a store, and
/// begins it again when it ends.
const BOOT: &str = r#"
set -e
for directory in /var/lib /etc/systemd /usr/local/sbin; do mount -t tmpfs tmpfs $directory; done
mkdir -p /var/lib/drover /etc/systemd/system
cat >/usr/local/sbin/systemctl <<'EOF'
#!/bin/sh
[ "$*" = "restart drover-store" ] || exit 0
unit=/etc/systemd/system/drover-store.service
user=$(sed -n 's/^User=//p' $unit) command=$(sed -n 's/^ExecStart=//p' $unit)
(while :; do setpriv --reuid "$user" --regid "$(id -g "$user")" --clear-groups $command; sleep 1; done) &
EOF
chmod 755 /usr/local/sbin/systemctl
base64 -d <"$1" >/var/lib/user-data
head -n 1 /var/lib/user-data | grep -q '^#!/bin/sh$'
sh /var/lib/user-data
exec sleep infinity
"#;

/// A network between machines.
pub(super) struct Network {
    name: String,
    directory: TempDir,
    count: std::cell::Cell<usize>,
}

/// A machine. It loses its power when it is dropped.
pub(super) struct Machine {
    name: String,
    child: Child,
    log: PathBuf,
}

pub(super) fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

fn ip(arguments: &str) {
    let output = Command::new("ip")
        .args(arguments.split(' '))
        .output()
        .unwrap();
    assert!(output.status.success(), "ip {arguments}: {output:?}");
}

impl Network {
    pub(super) fn new() -> Self {
        let name = format!("drv{:08x}", fastrand::u32(..));
        ip(&format!("netns add {name}"));
        ip(&format!("-n {name} link add bridge type bridge"));
        ip(&format!("-n {name} addr add 10.255.255.254/8 dev bridge"));
        ip(&format!("-n {name} link set bridge up"));
        Self {
            name,
            directory: tempfile::tempdir().unwrap(),
            count: std::cell::Cell::new(0),
        }
    }

    /// Boots a machine with this private address and a public one. `user_data` as metal-stack stores them.
    pub(super) fn boot(&self, private: &str, public: &str, user_data: &str) -> Machine {
        let at = self.count.get();
        self.count.set(at + 1);
        let (network, name) = (&self.name, format!("{}m{at}", self.name));
        ip(&format!("netns add {name}"));
        ip(&format!(
            "-n {network} link add m{at} type veth peer name eth0 netns {name}"
        ));
        ip(&format!("-n {network} link set m{at} master bridge up"));
        ip(&format!("-n {name} link add eth1 type veth peer name far"));
        for (device, address) in [("eth0", private), ("eth1", public)] {
            ip(&format!("-n {name} addr add {address}/8 dev {device}"));
            ip(&format!("-n {name} link set {device} up"));
        }
        for device in ["lo", "far"] {
            ip(&format!("-n {name} link set {device} up"));
        }
        let file = self.directory.path().join(&name);
        fs::write(&file, user_data).unwrap();
        let log = file.with_extension("log");
        let output = fs::File::create(&log).unwrap();
        // It ends with the test, even if that is killed.
        let child = Command::new("setpriv")
            .args(["--pdeathsig", "KILL", "ip"])
            .args([
                "netns", "exec", &name, "unshare", "--mount", "--pid", "--fork",
            ])
            .args(["--kill-child", "--mount-proc", "sh", "-c", BOOT, "boot"])
            .arg(&file)
            .stdout(output.try_clone().unwrap())
            .stderr(output)
            .spawn()
            .unwrap();
        Machine { name, child, log }
    }

    /// Runs a program in the network, beside the machines.
    pub(super) fn run(&self, command: &[&str]) -> Output {
        run_in(&self.name, command)
    }
}

impl Machine {
    /// Runs a program on the machine.
    pub(super) fn run(&self, command: &[&str]) -> Output {
        run_in(&self.name, command)
    }

    /// What its user data and its store have said.
    pub(super) fn log(&self) -> String {
        fs::read_to_string(&self.log).unwrap_or_default()
    }
}

fn run_in(namespace: &str, command: &[&str]) -> Output {
    let mut program = Command::new("ip");
    program.args(["netns", "exec", namespace, "timeout", "10"]);
    program.args(command).output().unwrap()
}

impl Drop for Machine {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = Command::new("ip")
            .args(["netns", "delete", &self.name])
            .status();
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        let _ = Command::new("ip")
            .args(["netns", "delete", &self.name])
            .status();
    }
}
