//! Machines for the instances of an emulated EC2: each boots a Debian with its systemd and runs the instance's user data.
//! Needs root, and the Debian that tests/install makes.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
    process::{Child, Command, Output, Stdio},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread::JoinHandle,
    time::Duration,
};

use drover_emulators::ec2::Ec2;
use parking_lot::Mutex;
use rustix::process::{Pid, Signal, kill_process};

/// Set where a test runs in namespaces of its own.
const INSIDE: &str = "MACHINES_INSIDE";
/// Address of this process in the default VPC of the emulator, which no subnet gives away.
const OWN: &str = "172.31.255.254/16";
/// Where machines are.
const HALL: &str = "/mnt";
/// How often the cloud is looked at.
const LOOK: Duration = Duration::from_millis(20);

/// Runs a test once more, in a network of its own in which nobody else has the addresses of the cloud; whatever it starts
/// ends with it. Returns whether this is that run.
pub(super) fn alone(test: &str) -> bool {
    if std::env::var_os(INSIDE).is_some() {
        ip("link set lo up");
        return true;
    }
    if !rustix::process::geteuid().is_root() {
        eprintln!("machines are not booted: that needs root");
        return false;
    }
    let output = Command::new("setpriv")
        .args(["--pdeathsig", "KILL", "unshare", "--mount", "--net"])
        .args(["--pid", "--fork", "--kill-child", "--mount-proc"])
        // Whose parents are gone must have one that waits for them: their machine does not end before.
        .args(["sh", "-c", "\"$@\"; exit $?", "machines"])
        .arg(std::env::current_exe().unwrap())
        .args(["--exact", test, "--nocapture"])
        .env(INSIDE, "1")
        .stderr(Stdio::inherit())
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    println!("{said}");
    assert!(output.status.success(), "it failed: {}", output.status);
    assert!(said.contains(" 1 passed"), "there is no test {test}");
    false
}

fn ip(arguments: &str) {
    let output = Command::new("ip")
        .args(arguments.split(' '))
        .output()
        .unwrap();
    let well = output.status.success() || std::thread::panicking();
    assert!(well, "ip {arguments}: {output:?}");
}

fn run(command: &mut Command) -> String {
    let output = command.output().unwrap();
    assert!(output.status.success(), "{command:?}: {output:?}");
    String::from_utf8(output.stdout).unwrap()
}

/// The archive of the Debian that machines boot.
fn debian() -> PathBuf {
    let script = ". tests/compose/daemon && debian_path \"${MACHINE[@]}\"";
    let mut command = Command::new("bash");
    command.args(["-c", script]);
    command.current_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join(".."));
    let path = PathBuf::from(run(&mut command).trim());
    assert!(
        path.exists(),
        "{} is not there: tests/install makes it",
        path.display()
    );
    path
}

/// The machines of a cloud. One is there for every running instance, and loses its power with it.
pub(super) struct Machines {
    hall: Arc<Hall>,
    thread: Option<JoinHandle<()>>,
}

struct Hall {
    ec2: Ec2,
    there: Mutex<BTreeMap<String, Machine>>,
    /// Whether no further machine boots.
    held: AtomicBool,
    ended: AtomicBool,
}

/// A machine. It loses its power when it is dropped.
struct Machine {
    name: String,
    network: String,
    child: Child,
    log: PathBuf,
}

impl Machines {
    pub(super) fn of(ec2: &Ec2) -> Self {
        // Both are gone with this process, and nobody else sees them. Names of networks are files.
        fs::create_dir_all("/run/netns").unwrap();
        for place in [HALL, "/run/netns"] {
            run(Command::new("mount").args(["-t", "tmpfs", "machines", place]));
        }
        let tree = Path::new(HALL).join("debian");
        fs::create_dir(&tree).unwrap();
        let mut tar = Command::new("tar");
        tar.args(["--numeric-owner", "-xpf"]).arg(debian());
        run(tar.arg("-C").arg(&tree));
        ip("link add vpc type bridge");
        ip(&format!("addr add {OWN} dev vpc"));
        ip("link set vpc up");
        let hall = Arc::new(Hall {
            ec2: ec2.clone(),
            there: Mutex::default(),
            held: AtomicBool::new(false),
            ended: AtomicBool::new(false),
        });
        let followed = Arc::clone(&hall);
        let thread = std::thread::spawn(move || {
            let mut booted = 0;
            while !followed.ended.load(Ordering::Relaxed) {
                followed.follow(&mut booted);
                std::thread::sleep(LOOK);
            }
        });
        Self {
            hall,
            thread: Some(thread),
        }
    }

    /// Boots no further machine until [`Machines::go_on`].
    pub(super) fn hold(&self) {
        self.hall.held.store(true, Ordering::Relaxed);
    }

    pub(super) fn go_on(&self) {
        self.hall.held.store(false, Ordering::Relaxed);
    }

    /// A host dies: first the machine, then its instance is gone as well.
    pub(super) fn kill(&self, id: &str) {
        let mut there = self.hall.there.lock();
        assert!(there.remove(id).is_some(), "there is no machine {id}");
        assert!(self.hall.ec2.terminate_behind(id));
    }

    /// Runs a program on a machine. `None` if it has not booted yet.
    pub(super) fn on(&self, id: &str, command: &[&str]) -> Option<Output> {
        let there = self.hall.there.lock();
        let machine = there.get(id)?;
        machine.has_booted().then(|| machine.run(command))
    }
}

impl Drop for Machines {
    fn drop(&mut self) {
        self.hall.ended.store(true, Ordering::Relaxed);
        if std::thread::panicking() {
            for (id, machine) in self.hall.there.lock().iter() {
                println!("--- {id}: {}", machine.said());
            }
        }
        if let Some(thread) = self.thread.take() {
            let followed = thread.join();
            assert!(followed.is_ok() || std::thread::panicking(), "machines");
        }
        self.hall.there.lock().clear();
    }
}

impl Hall {
    fn follow(&self, booted: &mut usize) {
        let mut there = self.there.lock();
        let mut instances = self.ec2.machines();
        instances.retain(|instance| instance.state == "running");
        there.retain(|id, _| instances.iter().any(|instance| instance.id == *id));
        for instance in instances {
            if !there.contains_key(&instance.id) && !self.held.load(Ordering::Relaxed) {
                *booted += 1;
                let machine = self.boot(&instance.id, *booted);
                there.insert(instance.id, machine);
            }
        }
    }

    fn boot(&self, id: &str, number: usize) -> Machine {
        let network = format!("m{number}");
        let address = self.ec2.private_address(id).unwrap();
        ip(&format!("netns add {network}"));
        ip(&format!(
            "link add {network} type veth peer name eth0 netns {network}"
        ));
        ip(&format!("link set {network} master vpc up"));
        ip(&format!("-n {network} addr add {address}/16 dev eth0"));
        for device in ["lo", "eth0"] {
            ip(&format!("-n {network} link set {device} up"));
        }
        let place = Path::new(HALL).join(id);
        fs::create_dir(&place).unwrap();
        let data = place.with_extension("data");
        fs::write(&data, self.ec2.user_data(id).unwrap()).unwrap();
        let log = place.with_extension("log");
        let output = fs::File::create(&log).unwrap();
        // No other machine of this computer has its name.
        let name = format!("drover-{id}");
        let child = Command::new("nsenter")
            .arg(format!("--net=/run/netns/{network}"))
            .args(["unshare", "--mount", "--pid", "--uts", "--ipc", "--fork"])
            .args(["--kill-child", "sh"])
            .arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/system/clouds/boot.sh"))
            .arg(Path::new(HALL).join("debian"))
            .arg(place)
            .arg(&name)
            .arg(data)
            .stdin(Stdio::null())
            .stdout(output.try_clone().unwrap())
            .stderr(output)
            .spawn()
            .unwrap();
        Machine {
            name,
            network,
            child,
            log,
        }
    }
}

impl Machine {
    /// Its first process, as others see it.
    fn first(&self) -> String {
        let pid = self.child.id();
        let children = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children"));
        children.unwrap_or_default().trim().to_owned()
    }

    /// Before that what it runs would be run among the files of this computer.
    fn has_booted(&self) -> bool {
        let name = fs::read_to_string(format!("/proc/{}/comm", self.first()));
        name.is_ok_and(|name| name.trim() == "systemd")
    }

    fn run(&self, command: &[&str]) -> Output {
        let mut program = Command::new("timeout");
        program.args(["60", "nsenter", "--mount", "--pid", "--net", "--target"]);
        program.arg(self.first());
        program.args(command).output().unwrap()
    }

    /// What its boot, its user data and its store have said.
    fn said(&self) -> String {
        let journal = self.run(&[
            "journalctl",
            "--no-pager",
            "-o",
            "cat",
            "-n",
            "40",
            "-u",
            "cloud-final",
            "-u",
            "drover-store",
        ]);
        let boot = fs::read_to_string(&self.log).unwrap_or_default();
        [boot.into_bytes(), journal.stdout, journal.stderr]
            .map(|text| String::from_utf8_lossy(&text).into_owned())
            .join("\n")
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        // Before its processes could say farewell.
        ip(&format!("link delete {}", self.network));
        // All others end with the first one, and whoever waits for that one ends after them.
        let first = self.first().parse().ok().and_then(Pid::from_raw);
        if first.is_none_or(|first| kill_process(first, Signal::KILL).is_err()) {
            let _ = self.child.kill();
        }
        let _ = self.child.wait();
        ip(&format!("netns delete {}", self.network));
        // Its systemd has groups below its own.
        let _ = Command::new("find")
            .args(["/sys/fs/cgroup", "-depth", "-type", "d", "-path"])
            .arg(format!("*/{}*", self.name))
            .args(["-exec", "rmdir", "{}", "+"])
            .output();
    }
}
