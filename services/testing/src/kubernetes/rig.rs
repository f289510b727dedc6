//! A Kubernetes of `tests/kubernetes/up` for all tests of one process.

use std::{
    path::{Path, PathBuf},
    process::{Child, ChildStdin, Command, Stdio},
    sync::{
        OnceLock,
        atomic::{AtomicU32, Ordering},
    },
};

use serde_json::json;

use super::{Namespace, Raw};

/// The scripts of the rig.
const SCRIPTS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/kubernetes");

/// What the rig has. All tests of one process ask for the same.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Options {
    /// How many nodes of kwok, over three zones.
    pub kwok: usize,
    /// A real kubelet with containerd; needs root.
    pub kubelet: bool,
    /// Whether pods get their ServiceAccount's token, as in production.
    pub service_accounts: bool,
}

impl Options {
    pub fn kwok(nodes: usize) -> Self {
        Self {
            kwok: nodes,
            ..Self::default()
        }
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

/// A shell that reads from a pipe of ours. The pipe ends with this process, however it ends, and then the rig goes.
#[derive(Debug)]
struct Guard {
    _shell: Child,
    _pipe: ChildStdin,
}

/// Whether `tests/run` found that this machine cannot have a real node, and said so.
pub fn without_kubelet() -> bool {
    let without = std::env::var_os("DROVER_WITHOUT_KUBELET").is_some_and(|it| it == "1");
    if without {
        eprintln!("DROVER_WITHOUT_KUBELET=1: not tested");
    }
    without
}

static RIG: OnceLock<Result<Rig, String>> = OnceLock::new();
static NAMESPACES: AtomicU32 = AtomicU32::new(0);

impl Rig {
    /// The rig of this process: the one of `DROVER_TEST_KUBECONFIG`, or a new one that goes with the process.
    ///
    /// # Panics
    /// If it cannot be started, with the command that says why.
    pub fn shared(options: Options) -> &'static Self {
        let started = RIG.get_or_init(|| match std::env::var_os("DROVER_TEST_KUBECONFIG") {
            Some(kubeconfig) => Self::existing(PathBuf::from(kubeconfig), options.clone()),
            None => Self::start(options.clone()),
        });
        match started {
            Ok(rig) => {
                assert_eq!(rig.options, options, "one process has one rig");
                rig
            }
            Err(why) => panic!("{why}"),
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

    fn start(options: Options) -> Result<Self, String> {
        let state = tempfile::Builder::new()
            .prefix("drover-k8s-test-")
            .tempdir()
            .map_err(|error| format!("no folder for the rig: {error}"))?
            .keep();
        let guard = Guard::over(&state)?;
        let mut up = Command::new(format!("{SCRIPTS}/up"));
        up.arg("--state").arg(&state);
        up.args(["--kwok", &options.kwok.to_string()]);
        if options.kubelet {
            up.args(["--kubelet", "--wait", "900"]);
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
            let _ = std::fs::remove_dir(&state);
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

    /// A new namespace.
    pub async fn namespace(&self) -> Namespace {
        let number = NAMESPACES.fetch_add(1, Ordering::Relaxed);
        let name = format!("t-{}-{number}", std::process::id());
        self.namespace_named(&name).await
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
        self.script_with("image", arguments).await;
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
        let output = tokio::process::Command::new(format!("{SCRIPTS}/{script}"))
            .args(&arguments[..1])
            .arg("--state")
            .arg(state)
            .args(&arguments[1..])
            .output()
            .await
            .unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{script} {arguments:?}: {said}");
    }
}

impl Guard {
    fn over(state: &Path) -> Result<Self, String> {
        use std::os::unix::process::CommandExt as _;
        let mut shell = Command::new("bash")
            .args(["-c", "read -r _; exec \"$0\" --state \"$1\""])
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
