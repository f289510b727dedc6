//! Prism as a proxy between a driver and an emulator: validates every request and response against a published
//! specification.

use std::{
    env, io,
    path::{Path, PathBuf},
    process::Stdio,
    sync::Arc,
    time::Duration,
};

use parking_lot::Mutex;
use tokio::{
    io::{AsyncBufRead, AsyncBufReadExt, BufReader},
    process::{Child, Command},
    sync::watch,
    task::JoinHandle,
    time::timeout,
};

/// Startup takes 2 s on an idle machine, but many tests run at once.
const START: Duration = Duration::from_secs(120);
/// Number of output lines kept. A test makes fewer calls.
const LINES: usize = 10_000;
/// Prism's output once it is ready, followed by its address.
const READY: &str = "Prism is listening on ";

/// A running `prism proxy`, stopped on drop.
#[derive(Debug)]
pub struct Prism {
    url: String,
    log: Arc<Mutex<Vec<String>>>,
    readers: Vec<JoinHandle<()>>,
    _child: Child,
}

impl Prism {
    /// Starts Prism on a free port in front of the API at `upstream` (`http://HOST:PORT`), and waits until it is ready.
    /// A request or response that violates the specification results in an error response (422 or 500,
    /// `application/problem+json`) and is recorded in [`Prism::violations`].
    ///
    /// # Errors
    /// `NotFound` if Prism is not installed; Prism's output if it does not start.
    pub async fn start(specification: &Path, upstream: &str) -> io::Result<Self> {
        let mut child = Command::new(program()?)
            .arg("proxy")
            .arg(specification)
            .arg(upstream)
            .args(["--errors", "--host", "127.0.0.1", "--port", "0"])
            .env("NO_COLOR", "1")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .kill_on_drop(true)
            .spawn()?;
        let log = Arc::new(Mutex::new(Vec::new()));
        let (found, mut url) = watch::channel(None);
        let found = Arc::new(found);
        let mut readers = Vec::new();
        if let Some(output) = child.stdout.take() {
            let (log, found) = (Arc::clone(&log), Arc::clone(&found));
            readers.push(tokio::spawn(read(BufReader::new(output), log, found)));
        }
        if let Some(output) = child.stderr.take() {
            readers.push(tokio::spawn(read(
                BufReader::new(output),
                Arc::clone(&log),
                found,
            )));
        }
        // Both readers end when Prism exits, which also closes the channel.
        let ready = timeout(START, url.wait_for(Option::is_some)).await;
        let url = match ready {
            Ok(Ok(url)) => url.clone().unwrap_or_default(),
            Ok(Err(_)) | Err(_) => {
                return Err(io::Error::other(format!(
                    "prism did not start: {}",
                    log.lock().join("\n")
                )));
            }
        };
        Ok(Self {
            url,
            log,
            readers,
            _child: child,
        })
    }

    /// `http://127.0.0.1:PORT`
    #[must_use]
    pub fn url(&self) -> &str {
        &self.url
    }

    /// All errors that Prism has logged so far: violations in requests and responses, and its own failures to reach the
    /// upstream API. The driver sees each as an error, so this is for the message of a failed test.
    #[must_use]
    pub fn violations(&self) -> Vec<String> {
        // Prism's list of operations has random words in the paths, `error` among them.
        let bad = |line: &&String| {
            !line.contains("[CLI]") && (line.contains("error") || line.contains("iolation"))
        };
        self.log.lock().iter().filter(bad).cloned().collect()
    }
}

impl Drop for Prism {
    fn drop(&mut self) {
        for reader in &self.readers {
            reader.abort();
        }
    }
}

async fn read(
    mut output: impl AsyncBufRead + Unpin,
    log: Arc<Mutex<Vec<String>>>,
    found: Arc<watch::Sender<Option<String>>>,
) {
    let mut line = String::new();
    while output.read_line(&mut line).await.is_ok_and(|read| read > 0) {
        let text = line.trim_end();
        if let Some((_, url)) = text.split_once(READY) {
            found.send_replace(Some(url.trim().to_owned()));
        }
        let mut log = log.lock();
        if log.len() < LINES {
            log.push(text.to_owned());
        }
        drop(log);
        line.clear();
    }
}

/// Finds a specification by its file name: `digitalocean-v2-compute.json` or `metal-stack-api.json`. `folder` is
/// `tests/prism` of this repository. The file is looked for there, in `DROVER_SPECS`, in `~/.cache/drover/specs`, and
/// in `shared/specs` beside the repository.
///
/// # Errors
/// `NotFound`, with instructions.
pub fn specification(folder: &Path, name: &str) -> io::Result<PathBuf> {
    let folder = folder.canonicalize()?;
    let mut places = vec![folder.clone()];
    places.extend(env::var_os("DROVER_SPECS").map(PathBuf::from));
    places.extend(cache().map(|cache| cache.join("specs")));
    places.extend(folder.ancestors().map(|above| above.join("shared/specs")));
    places
        .into_iter()
        .map(|place| place.join(name))
        .find(|path| path.is_file())
        .ok_or_else(|| {
            io::Error::new(
                io::ErrorKind::NotFound,
                format!(
                    "there is no {name}; put it into ~/.cache/drover/specs, or name its folder in DROVER_SPECS"
                ),
            )
        })
}

fn program() -> io::Result<PathBuf> {
    let path = env::var_os("PATH").unwrap_or_default();
    env::split_paths(&path)
        .chain(cache().map(|cache| cache.join("bin")))
        .map(|folder| folder.join("prism"))
        .find(|program| program.is_file())
        .ok_or_else(|| {
            io::Error::new(
                io::ErrorKind::NotFound,
                "prism is missing: run `tests/prism/run install` (it needs npm), or install @stoplight/prism-cli",
            )
        })
}

/// Cache directory in which `tests/run` installs programs.
fn cache() -> Option<PathBuf> {
    let base = env::var_os("XDG_CACHE_HOME")
        .filter(|base| !base.is_empty())
        .map(PathBuf::from)
        .or_else(|| Some(PathBuf::from(env::var_os("HOME")?).join(".cache")))?;
    Some(base.join("drover"))
}
