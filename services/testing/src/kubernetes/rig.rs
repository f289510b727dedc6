//! A Kubernetes of `tests/kubernetes/up`, shared by the tests of one process, or under nextest by those of one run.

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

/// Folder of the scripts.
const SCRIPTS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/kubernetes");

/// Seconds until another rig must have released the real node. Less than the timeout of a test, so that the test
/// reports why it failed.
const NODE_WAIT: &str = "240";
/// Timeout of a script that builds an image or restarts a component.
const SCRIPT: Duration = PATIENCE;

/// Features of a rig.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Options {
    /// Number of kwok nodes, over three zones.
    pub kwok: usize,
    /// Whether to run a real kubelet with containerd, which requires root.
    pub kubelet: bool,
    /// Whether kube-proxy runs beside the kubelet, so that services lead somewhere.
    pub proxy: bool,
    /// Whether pods get the token of their ServiceAccount, as in production.
    pub service_accounts: bool,
    /// Whether tests stop its components, which disturbs all other tests on it.
    pub restarts: bool,
}

impl Options {
    pub fn kwok(nodes: usize) -> Self {
        Self {
            kwok: nodes,
            ..Self::default()
        }
    }

    /// A rig with a real node and kube-proxy. A machine has only one, so all tests that need it share one rig.
    pub fn kubelet() -> Self {
        Self {
            kubelet: true,
            proxy: true,
            service_accounts: true,
            ..Self::default()
        }
    }

    /// Name for these options, short enough for a socket in its folder.
    fn tag(&self) -> String {
        let of = |flag: bool, letter: &'static str| if flag { letter } else { "" };
        let flags = [
            of(self.kubelet, "r"),
            of(self.proxy, "p"),
            of(self.service_accounts, "s"),
            of(self.restarts, "x"),
        ];
        format!("{}{}", self.kwok, flags.concat())
    }
}

#[derive(Debug)]
pub struct Rig {
    kubeconfig: PathBuf,
    options: Options,
    state: Option<PathBuf>,
    _guard: Option<Guard>,
}

/// A shell that removes the rig as soon as its users are gone, however they end.
#[derive(Debug)]
struct Guard {
    _shell: Child,
    _pipe: ChildStdin,
}

/// Lifetime of a rig.
#[derive(Clone, Copy)]
enum Until {
    /// Until this process ends.
    Process,
    /// Until the process with this id, the test runner, ends.
    Runner(u32),
}

/// Whether `tests/run` found that this machine cannot have a real node, and has reported that.
pub fn without_kubelet() -> bool {
    let without = std::env::var_os("DROVER_WITHOUT_KUBELET").is_some_and(|it| it == "1");
    if without {
        eprintln!("DROVER_WITHOUT_KUBELET=1: not tested");
    }
    without
}

/// Rigs that this process has started or shares, one for each set of requested options.
static RIGS: Mutex<Vec<(Options, Result<&'static Rig, String>)>> = Mutex::new(Vec::new());
static NAMESPACES: AtomicU32 = AtomicU32::new(0);

impl Rig {
    /// The rig of `DROVER_TEST_KUBECONFIG`; otherwise the one shared by all processes of this nextest run, which is
    /// removed after the run; otherwise a new one that is removed after this process.
    ///
    /// # Panics
    ///
    /// If it cannot be started, with the command that shows why.
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

    /// The first process starts it, and the others wait for that. If it fails, it fails for all of them.
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
            // The process that started it was killed while doing so.
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
        // Its programs are written in Go; while tests run, memory is plentiful and CPU time is not.
        up.env("GOGC", "400");
        up.args(["--kwok", &options.kwok.to_string()]);
        if options.kubelet {
            up.args(["--kubelet", "--wait", NODE_WAIT]);
        }
        if options.proxy {
            up.arg("--proxy");
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
            // Succeeds only if `up` refused before it created anything there.
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

    /// Kubeconfig of the administrator.
    pub fn kubeconfig(&self) -> &Path {
        &self.kubeconfig
    }

    /// Runs kubectl as the administrator, and answers what it wrote.
    pub async fn kubectl(&self, arguments: &[&str]) -> String {
        let program = self.kubeconfig.with_file_name("kubectl");
        let mut command = tokio::process::Command::new(&program);
        command.env("KUBECONFIG", &self.kubeconfig).args(arguments);
        let output = command.kill_on_drop(true).output();
        let output = tokio::time::timeout(SCRIPT, output).await;
        let output =
            output.unwrap_or_else(|_| panic!("kubectl {arguments:?}: not within {SCRIPT:?}"));
        let output = output.unwrap_or_else(|error| panic!("{}: {error}", program.display()));
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "kubectl {arguments:?}: {said}");
        String::from_utf8(output.stdout).unwrap()
    }

    /// Access as the administrator. A client belongs to the runtime of its test.
    pub async fn raw(&self) -> Raw {
        Raw::open(&self.kubeconfig).await
    }

    /// Creates a namespace in which pods can be created.
    pub async fn namespace(&self) -> Namespace {
        let number = NAMESPACES.fetch_add(1, Ordering::Relaxed);
        // Process ids are reused, and many processes share the rig.
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

    /// Creates a namespace with this name.
    pub async fn namespace_named(&self, name: &str) -> Namespace {
        let raw = self.raw().await;
        let object = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}});
        raw.create("/api/v1/namespaces", &object).await.unwrap();
        Namespace {
            name: name.to_owned(),
            raw,
        }
    }

    /// Waits for exclusive use among those who request it; other users of the rig do not.
    pub async fn alone(&self) -> File {
        self.locked("alone").await
    }

    /// Waits for the lock of this name.
    async fn locked(&self, name: &str) -> File {
        let path = self.kubeconfig.with_file_name(name);
        let locked = tokio::task::spawn_blocking(move || {
            let file = File::create(path)?;
            file.lock().map(|()| file)
        });
        locked.await.unwrap().unwrap()
    }

    /// Restarts a component with the same data: `apiserver`, `etcd`, `controller-manager`, `scheduler`, `kwok`. Waits
    /// until it is ready.
    pub async fn restart(&self, component: &str) {
        self.script("restart", component).await;
    }

    /// Stops a component.
    pub async fn stop(&self, component: &str) {
        self.script("stop", component).await;
    }

    /// Starts a stopped component. Waits until it is ready.
    pub async fn begin(&self, component: &str) {
        self.script("start", component).await;
    }

    /// Builds an image and imports it on the real node: software of this machine (`redis`, `busybox`) as `NAME:test`,
    /// or a name and files.
    pub async fn image(&self, arguments: &[&str]) {
        // Building and importing an image takes seconds, so tests that share a node share its images.
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

    /// Starts the second real node, for those that tolerate it. One test at a time has it.
    pub async fn second_node(&self) -> SecondNode<'_> {
        let node = SecondNode {
            rig: self,
            _locked: self.locked("second-node").await,
        };
        self.script("second", "start").await;
        node
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

/// The second real node of a rig, which Kubernetes forgets when this is dropped.
pub struct SecondNode<'a> {
    rig: &'a Rig,
    _locked: File,
}

impl SecondNode<'_> {
    pub const NAME: &'static str = "real-1";
    /// Taint of the node.
    pub const TAINT: &'static str = "drover.dev/second";

    /// Loses its power.
    pub async fn dies(&self) {
        self.rig.script("second", "die").await;
    }
}

impl Drop for SecondNode<'_> {
    fn drop(&mut self) {
        let Some(state) = &self.rig.state else {
            return;
        };
        let mut stop = Command::new(format!("{SCRIPTS}/second"));
        let _ = stop.arg("stop").arg("--state").arg(state).output();
    }
}

/// Replaces characters that are not allowed in file names.
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
        // The pipe ends with this process; tail ends with the process that it is given.
        let wait = match end {
            Until::Process => "read -r _".to_owned(),
            Until::Runner(pid) => format!("tail --pid={pid} -f /dev/null"),
        };
        // The folder of the run is removed with its last rig.
        let script = format!("{wait}; \"$0\" --state \"$1\"; rm -f \"$1\".*; rmdir \"${{1%/*}}\"");
        let mut shell = Command::new("bash")
            .args(["-c", &script])
            .arg(format!("{SCRIPTS}/down"))
            .arg(state)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            // In a process group of its own, so that an interrupt from the terminal does not end it.
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
