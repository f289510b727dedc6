//! A Kubernetes of `tests/kubernetes/up` that tests share: those of one process, and under nextest those of one run.

use std::{
    fs::{self, File},
    path::{Path, PathBuf},
    process::{Child, ChildStdin, Command, Stdio},
    sync::atomic::{AtomicU32, Ordering},
    time::Duration,
};

use parking_lot::Mutex;
use rustix::process::getppid;
use serde_json::json;

use super::{Namespace, Raw, until};
use crate::wait::PATIENCE;

/// The scripts of the rig.
const SCRIPTS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/kubernetes");

/// Seconds until another rig has to have given up the real node. Less than a test may take, so that it says why it failed.
const NODE_WAIT: &str = "240";
/// How long a script may take that makes an image or starts a component again.
const SCRIPT: Duration = PATIENCE;

/// What the rig has.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Options {
    /// How many nodes of kwok, over three zones.
    pub kwok: usize,
    /// A real kubelet with containerd; needs root.
    pub kubelet: bool,
    /// Whether pods get their ServiceAccount's token, as in production.
    pub service_accounts: bool,
    /// Whether tests stop its components, which disturbs everybody else on it.
    pub restarts: bool,
}

impl Options {
    pub fn kwok(nodes: usize) -> Self {
        Self {
            kwok: nodes,
            ..Self::default()
        }
    }

    /// A real node. There is one on a machine, so all tests on it take the same rig.
    pub fn kubelet() -> Self {
        Self {
            kubelet: true,
            service_accounts: true,
            ..Self::default()
        }
    }

    /// A name for what has these options, short enough for a socket in its folder.
    fn tag(&self) -> String {
        let of = |flag: bool, letter: &'static str| if flag { letter } else { "" };
        let flags = [
            of(self.kubelet, "r"),
            of(self.service_accounts, "s"),
            of(self.restarts, "x"),
        ];
        format!("{}{}", self.kwok, flags.concat())
    }
}

/// A running Kubernetes.
#[derive(Debug)]
pub struct Rig {
    kubeconfig: PathBuf,
    options: Options,
    state: Option<PathBuf>,
    _guard: Option<Guard>,
}

/// A shell that removes the rig as soon as those are gone whom it is for, however they end.
#[derive(Debug)]
struct Guard {
    _shell: Child,
    _pipe: ChildStdin,
}

/// For whom a rig is, and how long.
#[derive(Clone, Copy)]
enum Until {
    /// This process ends.
    Process,
    /// That one ends, the runner of tests.
    Runner(u32),
}

/// Whether `tests/run` found that this machine cannot have a real node, and said so.
pub fn without_kubelet() -> bool {
    let without = std::env::var_os("DROVER_WITHOUT_KUBELET").is_some_and(|it| it == "1");
    if without {
        eprintln!("DROVER_WITHOUT_KUBELET=1: not tested");
    }
    without
}

/// Those that this process has or takes part in, one for each of the options that were asked for.
static RIGS: Mutex<Vec<(Options, Result<&'static Rig, String>)>> = Mutex::new(Vec::new());
static NAMESPACES: AtomicU32 = AtomicU32::new(0);

impl Rig {
    /// The rig of `DROVER_TEST_KUBECONFIG`; else the one that all processes of this run of nextest share, which goes with
    /// the run; else a new one that goes with this process.
    ///
    /// # Panics
    /// If it cannot be started, with the command that says why.
    pub fn shared(options: Options) -> &'static Self {
        let mut rigs = RIGS.lock();
        let known = rigs.iter().find(|(of, _)| *of == options);
        let rig = match known {
            Some((_, rig)) => rig.clone(),
            None => {
                let rig = Self::find(options.clone()).map(|rig| &*Box::leak(Box::new(rig)));
                rigs.push((options, rig.clone()));
                rig
            }
        };
        drop(rigs);
        rig.unwrap_or_else(|why| panic!("{why}"))
    }

    fn find(options: Options) -> Result<Self, String> {
        if let Some(kubeconfig) = std::env::var_os("DROVER_TEST_KUBECONFIG") {
            return Self::existing(PathBuf::from(kubeconfig), options);
        }
        match std::env::var("NEXTEST_RUN_ID") {
            Ok(run) => Self::of_run(&run, options),
            Err(_) => Self::of_process(options),
        }
    }

    fn existing(kubeconfig: PathBuf, options: Options) -> Result<Self, String> {
        let kubeconfig = kubeconfig
            .canonicalize()
            .map_err(|error| format!("DROVER_TEST_KUBECONFIG={}: {error}", kubeconfig.display()))?;
        let state = kubeconfig
            .parent()
            .filter(|folder| folder.join("rig").is_file());
        Ok(Self {
            state: state.map(Path::to_path_buf),
            kubeconfig,
            options,
            _guard: None,
        })
    }

    fn of_process(options: Options) -> Result<Self, String> {
        let state = tempfile::Builder::new()
            .prefix("drover-k8s-test-")
            .tempdir()
            .map_err(|error| format!("no folder for the rig: {error}"))?
            .keep();
        Self::start(state, options, Until::Process)
    }

    /// Whoever comes first starts it, the others wait for that. If it fails, it fails for all of them.
    fn of_run(run: &str, options: Options) -> Result<Self, String> {
        let run = run.get(..8).unwrap_or(run);
        let folder = std::env::temp_dir().join(format!("drover-k8s-{run}"));
        let wrong = |error: std::io::Error| format!("{}: {error}", folder.display());
        fs::create_dir_all(&folder).map_err(wrong)?;
        let file = |what: &str| folder.join(format!("{}.{what}", options.tag()));
        let lock = File::create(file("lock")).map_err(wrong)?;
        if lock.try_lock().is_err() {
            eprintln!(
                "waiting: another test has the Kubernetes in {} begin",
                folder.display()
            );
            lock.lock().map_err(wrong)?;
        }
        if let Ok(why) = fs::read_to_string(file("failed")) {
            return Err(why);
        }
        let state = folder.join(options.tag());
        if state.join("rig.json").is_file() {
            return Self::existing(state.join("kubeconfig"), options);
        }
        if state.exists() {
            // Whoever began was killed at it.
            let down = Command::new(format!("{SCRIPTS}/down"))
                .arg("--state")
                .arg(&state)
                .output();
            down.map_err(wrong)?;
        }
        let runner = getppid().ok_or("this test has no runner")?;
        let runner = Until::Runner(runner.as_raw_nonzero().get().unsigned_abs());
        let started = Self::start(state, options.clone(), runner);
        if let Err(why) = &started {
            fs::write(file("failed"), why).map_err(wrong)?;
        }
        started
    }

    fn start(state: PathBuf, options: Options, end: Until) -> Result<Self, String> {
        eprintln!("waiting: a Kubernetes begins in {}", state.display());
        let guard = Guard::over(&state, end)?;
        let mut up = Command::new(format!("{SCRIPTS}/up"));
        up.arg("--state").arg(&state);
        // Its programs are in Go; for as long as tests run, memory is there and processor time is not.
        up.env("GOGC", "400");
        up.args(["--kwok", &options.kwok.to_string()]);
        if options.kubelet {
            up.args(["--kubelet", "--wait", NODE_WAIT]);
        }
        if options.service_accounts {
            up.arg("--service-accounts");
        }
        let advice = "These tests need a Kubernetes: run `tests/kubernetes/build` once, it says what is missing; or name the \
                      kubeconfig of a running one in DROVER_TEST_KUBECONFIG";
        let output = up
            .output()
            .map_err(|error| format!("{SCRIPTS}/up: {error}. {advice}"))?;
        if !output.status.success() {
            // Only if `up` refused before it put anything there.
            let _ = fs::remove_dir(&state);
            let said = String::from_utf8_lossy(&output.stderr);
            return Err(format!("{up:?} failed:\n{said}\n{advice}"));
        }
        Ok(Self {
            kubeconfig: state.join("kubeconfig"),
            options,
            state: Some(state),
            _guard: Some(guard),
        })
    }

    /// The administrator's kubeconfig.
    pub fn kubeconfig(&self) -> &Path {
        &self.kubeconfig
    }

    /// Access as the administrator. A client belongs to the runtime of its test.
    pub async fn raw(&self) -> Raw {
        Raw::open(&self.kubeconfig).await
    }

    /// A new namespace in which pods may be made.
    pub async fn namespace(&self) -> Namespace {
        let number = NAMESPACES.fetch_add(1, Ordering::Relaxed);
        // Ids of processes come again, and the rig is shared by many.
        let random = fastrand::u32(..);
        let name = format!("t-{}-{number}-{random:08x}", std::process::id());
        let namespace = self.namespace_named(&name).await;
        if self.options.service_accounts {
            until("pods have a ServiceAccount", || async {
                namespace.get("serviceaccounts", "default").await.ok()
            })
            .await;
        }
        namespace
    }

    /// A new namespace of this name.
    pub async fn namespace_named(&self, name: &str) -> Namespace {
        let raw = self.raw().await;
        let object = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}});
        raw.create("/api/v1/namespaces", &object).await.unwrap();
        Namespace {
            name: name.to_owned(),
            raw,
        }
    }

    /// Waits until nobody else who asks for this has it; others who use the rig do not ask.
    pub async fn alone(&self) -> File {
        let path = self.kubeconfig.with_file_name("alone");
        let locked = tokio::task::spawn_blocking(move || {
            let file = File::create(path)?;
            file.lock().map(|()| file)
        });
        locked.await.unwrap().unwrap()
    }

    /// Ends a component and starts it again with the same data: `apiserver`, `etcd`, `controller-manager`, `scheduler`,
    /// `kwok`. Waits until it is ready.
    pub async fn restart(&self, component: &str) {
        self.script("restart", component).await;
    }

    /// Ends a component.
    pub async fn stop(&self, component: &str) {
        self.script("stop", component).await;
    }

    /// Starts a component that was ended. Waits until it is ready.
    pub async fn begin(&self, component: &str) {
        self.script("start", component).await;
    }

    /// Makes an image and gives it to the real node: software of this machine (`redis`, `busybox`) as `NAME:test`, or
    /// a name and files.
    pub async fn image(&self, arguments: &[&str]) {
        // Tests that share a node share what it has: making and importing one takes seconds.
        let made = self.state.as_deref().map(|state| {
            let name: String = arguments.join(" ").chars().map(plain).collect();
            state.join("images-made").join(name)
        });
        if made.as_ref().is_some_and(|made| made.exists()) {
            return;
        }
        self.script_with("image", arguments).await;
        if let Some(made) = made {
            std::fs::create_dir_all(made.parent().unwrap()).unwrap();
            std::fs::write(made, "").unwrap();
        }
    }

    async fn script(&self, script: &str, component: &str) {
        self.script_with(script, &[component]).await;
    }

    async fn script_with(&self, script: &str, arguments: &[&str]) {
        let Some(state) = &self.state else {
            panic!(
                "tests/kubernetes/{script} needs a rig of tests/kubernetes/up: unset DROVER_TEST_KUBECONFIG"
            );
        };
        let mut command = tokio::process::Command::new(format!("{SCRIPTS}/{script}"));
        command.args(&arguments[..1]).arg("--state").arg(state);
        let output = command.args(&arguments[1..]).kill_on_drop(true).output();
        let output = tokio::time::timeout(SCRIPT, output).await;
        let output =
            output.unwrap_or_else(|_| panic!("{script} {arguments:?}: not within {SCRIPT:?}"));
        let output = output.unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{script} {arguments:?}: {said}");
    }
}

/// What may stand in the name of a file.
fn plain(letter: char) -> char {
    if letter.is_ascii_alphanumeric() {
        letter
    } else {
        '-'
    }
}

impl Guard {
    fn over(state: &Path, end: Until) -> Result<Self, String> {
        use std::os::unix::process::CommandExt as _;
        // A pipe of ours ends with this process; tail ends with the one that it is told.
        let wait = match end {
            Until::Process => "read -r _".to_owned(),
            Until::Runner(pid) => format!("tail --pid={pid} -f /dev/null"),
        };
        // The folder of the run goes with its last rig.
        let script = format!("{wait}; \"$0\" --state \"$1\"; rm -f \"$1\".*; rmdir \"${{1%/*}}\"");
        let mut shell = Command::new("bash")
            .args(["-c", &script])
            .arg(format!("{SCRIPTS}/down"))
            .arg(state)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            // A group of its own, so that an interrupt from the terminal does not end it.
            .process_group(0)
            .spawn()
            .map_err(|error| format!("bash cannot be started: {error}"))?;
        let pipe = shell.stdin.take().ok_or("bash has no standard input")?;
        Ok(Self {
            _shell: shell,
            _pipe: pipe,
        })
    }
}
