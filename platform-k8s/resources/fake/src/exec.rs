//! Commands in containers.

use std::{sync::Arc, time::Duration};

use drover_core::{Error, Reason, Result};
use drover_proto::{
    common::v1::{Chunk, ProcessOutput, chunk::Content, process_output::Output},
    kubernetes::v1::{self as api, ContainerState, exec_request},
};
use drover_resources::parts::{Answers, Input};
use futures::{StreamExt, stream};
use tokio::sync::mpsc;

use crate::{
    State,
    kubelet::KILLED,
    shell::{Effect, Shell, World, environment, is_shell, script, tabled},
    store::{Key, uid},
};

/// Pieces of output that wait for a slow reader. The command waits then, as behind a full pipe.
const PIPE: usize = 4;
/// Largest piece of output, in bytes.
pub(crate) const PIECE: usize = 64 * 1024;

/// Which commands in which containers are meant. An empty field means all.
#[derive(Clone, Debug, Default)]
pub struct Command {
    /// Namespace.
    pub namespace: String,
    /// Pod.
    pub pod: String,
    /// Container.
    pub container: String,
    /// The beginning of the command.
    pub command: Vec<String>,
}

/// What a command does.
#[derive(Clone, Debug, Default)]
pub struct Outcome {
    /// What it writes to standard output.
    pub stdout: Vec<u8>,
    /// What it writes to standard error.
    pub stderr: Vec<u8>,
    /// With what it ends.
    pub exit_code: i32,
    /// How long it takes.
    pub delay: Duration,
}

/// The outcome of a command by a table.
pub(crate) fn find(
    table: &[(Command, Outcome)],
    (namespace, pod, container): (&str, &str, &str),
    words: &[String],
) -> Option<Outcome> {
    let fits = |wanted: &str, is: &str| wanted.is_empty() || wanted == is;
    let found = table.iter().find(|(of, _)| {
        fits(&of.namespace, namespace)
            && fits(&of.pod, pod)
            && fits(&of.container, container)
            && words.starts_with(&of.command)
    });
    found.map(|(_, outcome)| outcome.clone())
}

/// The container that a request means, which must be running.
pub(crate) fn running(
    state: &State,
    (namespace, pod, container): (&str, &str, &str),
) -> Result<(api::Pod, api::Container)> {
    let store = state.store.lock();
    let key = (namespace.to_owned(), pod.to_owned());
    let pod = store.pods.find(&key)?.clone();
    let spec = container_of(&pod, container)?;
    let status = pod.status.clone().unwrap_or_default();
    let mut all = status.containers.iter().chain(&status.init_containers);
    let runs = all.any(|one| one.name == spec.name && one.state() == ContainerState::Running);
    if !runs {
        return Err(not_running(&spec.name));
    }
    Ok((pod, spec))
}

/// The error for a container that does not run.
pub(crate) fn not_running(name: &str) -> Error {
    let message = format!("the container {name:?} does not run");
    Error::new(Reason::ContainerNotRunning, message).with_resource("container", name)
}

/// The container of a name; without one the pod's default, else its first.
pub(crate) fn container_of(pod: &api::Pod, name: &str) -> Result<api::Container> {
    const DEFAULT: &str = "kubectl.kubernetes.io/default-container";
    let spec = pod.spec.clone().unwrap_or_default();
    let annotations = pod.metadata.as_ref().map(|one| &one.annotations);
    let default = annotations.and_then(|all| all.get(DEFAULT)).cloned();
    let mut all = spec.containers.into_iter().chain(spec.init_containers);
    let name = match (name, default) {
        ("", Some(default)) => default,
        (name, _) => name.to_owned(),
    };
    let found = all.find(|container| name.is_empty() || container.name == name);
    found.ok_or_else(|| {
        let message = format!("the pod has no container {name:?}");
        Error::new(Reason::ContainerNotFound, message).with_resource("container", name)
    })
}

/// Runs a command.
pub(crate) fn exec(
    state: &Arc<State>,
    start: &api::ExecStart,
    input: Input,
) -> Result<Answers<ProcessOutput>> {
    let place = (&*start.namespace, &*start.pod, &*start.container);
    let (pod, container) = running(state, place)?;
    let world = World {
        state: state.clone(),
        key: crate::store::key(&pod),
        uid: uid(&pod),
        container: container.name.clone(),
    };
    let variables = environment(&state.store.lock(), &pod, &container);
    let (out, pieces) = mpsc::channel(PIPE);
    let process = Process {
        out,
        tty: start.tty,
        world,
        shell: Shell::new(variables),
    };
    let killed = killed(
        state.clone(),
        crate::store::key(&pod),
        uid(&pod),
        container.name,
    );
    let (command, reads) = (start.command.clone(), start.stdin);
    let work = async move {
        let end = process.out.clone();
        let code = tokio::select! {
            code = process.run(command, reads, input) => code,
            () = killed => Some(KILLED),
        };
        if let Some(code) = code {
            // The reader may be gone.
            let _ = end.send(Output::ExitCode(code)).await;
        }
    };
    let pieces = stream::unfold(pieces, |mut pieces| async move {
        let piece = pieces.recv().await?;
        Some((piece, pieces))
    });
    let wrap = |output| {
        Ok(ProcessOutput {
            output: Some(output),
        })
    };
    // The command is part of the stream: it ends with it.
    let work = stream::once(work).filter_map(|()| std::future::ready(None));
    Ok(stream::select(pieces.map(wrap), work).boxed())
}

/// Until the container ends, or its pod is gone.
async fn killed(state: Arc<State>, key: Key, uid_before: String, container: String) {
    let mut changed = state.changed.subscribe();
    loop {
        let runs = {
            let store = state.store.lock();
            let pod = store.pods.get(&key).filter(|pod| uid(*pod) == uid_before);
            let status = pod.and_then(|pod| pod.status.as_ref());
            status.is_some_and(|status| {
                let mut all = status.containers.iter().chain(&status.init_containers);
                all.any(|one| one.name == container && one.state() == ContainerState::Running)
            })
        };
        if !runs || changed.changed().await.is_err() {
            return;
        }
    }
}

struct Process {
    out: mpsc::Sender<Output>,
    tty: bool,
    world: World,
    shell: Shell,
}

impl Process {
    /// `None` if nobody reads any more.
    async fn run(mut self, command: Vec<String>, reads: bool, input: Input) -> Option<i32> {
        if let Some(outcome) = tabled(&self.world, &command) {
            tokio::time::sleep(outcome.delay).await;
            self.write(Output::Stdout, outcome.stdout).await?;
            self.write(self.stderr(), outcome.stderr).await?;
            return Some(outcome.exit_code);
        }
        let mut input = Stdin { input, open: reads };
        if let Some((text, arguments)) = script(&command) {
            self.shell.arguments = arguments;
            return self.lines(text).await.map(|()| self.shell.code());
        }
        match command.split_first() {
            Some((program, rest)) if is_shell(program) => {
                let arguments = rest.iter().skip_while(|word| word.starts_with('-'));
                self.shell.arguments = arguments.cloned().collect();
                self.interactive(&mut input).await
            }
            Some((program, [])) if program.rsplit('/').next() == Some("cat") => {
                while let Some(piece) = input.next().await {
                    self.write(Output::Stdout, piece).await?;
                }
                Some(0)
            }
            Some(_) | None => {
                let mut effects = Vec::new();
                let code = self.shell.words(&command, &mut self.world, &mut effects);
                self.show(effects).await?;
                Some(code)
            }
        }
    }

    /// Lines from standard input, each as soon as it is whole.
    async fn interactive(&mut self, input: &mut Stdin) -> Option<i32> {
        let mut begun = Vec::new();
        loop {
            let piece = input.next().await;
            let last = piece.is_none();
            begun.extend(piece.unwrap_or_default());
            let whole = match begun.iter().rposition(|byte| *byte == b'\n') {
                _ if last => begun.len(),
                Some(at) => at + 1,
                None => 0,
            };
            let lines: Vec<u8> = begun.drain(..whole).collect();
            self.lines(&String::from_utf8_lossy(&lines)).await?;
            if last || self.shell.exited {
                return Some(self.shell.code());
            }
        }
    }

    async fn lines(&mut self, text: &str) -> Option<()> {
        let mut effects = Vec::new();
        self.shell.lines(text, &mut self.world, &mut effects);
        self.show(effects).await
    }

    async fn show(&self, effects: Vec<Effect>) -> Option<()> {
        for effect in effects {
            match effect {
                Effect::Stdout(text) => self.write(Output::Stdout, text).await?,
                Effect::Stderr(text) => self.write(self.stderr(), text).await?,
                Effect::Pause(pause) => tokio::time::sleep(pause).await,
            }
        }
        Some(())
    }

    /// On a terminal both outputs are one.
    fn stderr(&self) -> fn(Chunk) -> Output {
        if self.tty {
            Output::Stdout
        } else {
            Output::Stderr
        }
    }

    async fn write(&self, to: fn(Chunk) -> Output, text: Vec<u8>) -> Option<()> {
        for piece in text.chunks(PIECE) {
            let chunk = Chunk {
                content: Some(Content::Data(piece.to_vec())),
            };
            self.out.send(to(chunk)).await.ok()?;
        }
        Some(())
    }
}

struct Stdin {
    input: Input,
    open: bool,
}

impl Stdin {
    /// The next piece. `None` at the end.
    async fn next(&mut self) -> Option<Vec<u8>> {
        while self.open {
            match self.input.next().await {
                Some(Ok(exec_request::Input::Stdin(chunk))) => {
                    return Some(drover_resources::bytes(chunk));
                }
                Some(Ok(exec_request::Input::Resize(_) | exec_request::Input::Start(_))) => {}
                Some(Ok(exec_request::Input::StdinClosed(_)) | Err(_)) | None => self.open = false,
            }
        }
        None
    }
}
