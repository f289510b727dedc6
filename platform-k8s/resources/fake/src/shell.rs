//! The few commands that every container of the fake knows, and a shell for scripts of them: enough for a test to make,
//! read and remove files, to write to both outputs, and to end as it likes.

mod programs;

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use drover_core::Reason;
use drover_proto::kubernetes::v1::{self as api, env_source, env_var, probe};

use crate::{
    State,
    exec::{Outcome, find},
    store::{Key, Store},
};

use self::programs::{each, head, printf, sleep};

/// Exit code of a command that does not exist.
pub(crate) const NOT_FOUND: i32 = 127;
/// Exit code of wrong usage of the shell.
const USAGE: i32 = 2;
/// Time that a container counts as running without an end.
const FOR_EVER: u64 = 1 << 32;
/// What begins a script that the shell cannot follow.
const COMPOUND: [&str; 7] = ["while", "until", "for", "if", "case", "trap", "{"];

/// What the first process of a container does.
pub(crate) struct Main {
    pub(crate) output: Vec<Vec<u8>>,
    /// After which time it ends, and with what. `None`: it runs until somebody ends it.
    pub(crate) end: Option<(Duration, i32)>,
}

/// A container, to run commands in.
pub(crate) struct World {
    pub(crate) state: Arc<State>,
    pub(crate) key: Key,
    pub(crate) uid: String,
    pub(crate) container: String,
}

/// What a command does, piece by piece.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Effect {
    Stdout(Vec<u8>),
    Stderr(Vec<u8>),
    Pause(Duration),
}

/// Files as commands see them.
trait Disk {
    fn read(&mut self, path: &str) -> Result<Vec<u8>, Reason>;
    fn write(&mut self, path: &str, data: Vec<u8>);
    fn remove(&mut self, path: &str) -> bool;
}

impl Disk for World {
    fn read(&mut self, path: &str) -> Result<Vec<u8>, Reason> {
        let store = self.state.store.lock();
        let Some(pod) = store.pods.get(&self.key) else {
            return Err(Reason::FileNotFound);
        };
        store
            .read(pod, &self.container, path)
            .map_err(|error| error.reason())
    }

    fn write(&mut self, path: &str, data: Vec<u8>) {
        self.state
            .change(|store| store.files.put(&self.uid, &self.container, path, data));
    }

    fn remove(&mut self, path: &str) -> bool {
        self.state
            .change(|store| store.files.remove(&self.uid, &self.container, path))
    }
}

/// Files of a container that is about to start.
struct Starting<'a> {
    store: &'a Store,
    pod: &'a api::Pod,
    container: &'a str,
}

impl Disk for Starting<'_> {
    fn read(&mut self, path: &str) -> Result<Vec<u8>, Reason> {
        let found = self.store.read(self.pod, self.container, path);
        found.map_err(|error| error.reason())
    }

    fn write(&mut self, _: &str, _: Vec<u8>) {}

    fn remove(&mut self, _: &str) -> bool {
        false
    }
}

/// What the first process of a container does. An image without a command runs until it is ended, and so does every
/// command that the fake does not know: it is what the image is for.
pub(crate) fn main_process(store: &Store, pod: &api::Pod, container: &api::Container) -> Main {
    let runs = Main {
        output: Vec::new(),
        end: None,
    };
    let mut words = container.command.clone();
    words.extend(container.args.iter().cloned());
    if container.command.is_empty() {
        return runs;
    }
    let mut shell = Shell::new(environment(store, pod, container));
    let mut disk = Starting {
        store,
        pod,
        container: &container.name,
    };
    let mut effects = Vec::new();
    let code = match script(&words) {
        Some((text, arguments)) if follows(text) => {
            shell.arguments = arguments;
            shell.script(text, &mut disk, &mut effects)
        }
        Some(_) => return runs,
        None => shell.command(&words, &mut disk, &mut effects),
    };
    if code == NOT_FOUND {
        return runs;
    }
    let (mut output, mut after) = (Vec::new(), Duration::ZERO);
    for effect in effects {
        match effect {
            Effect::Stdout(text) | Effect::Stderr(text) => output.push(text),
            Effect::Pause(pause) => after = after.saturating_add(pause),
        }
    }
    let end = (after.as_secs() < FOR_EVER).then_some((after, code));
    Main { output, end }
}

/// Whether the command of a readiness probe succeeds. A probe of another kind does: nothing listens in the fake.
pub(crate) fn is_ready(store: &Store, pod: &api::Pod, container: &api::Container) -> bool {
    let probe = container.readiness_probe.as_ref();
    let Some(probe::Action::Exec(exec)) = probe.and_then(|probe| probe.action.as_ref()) else {
        return true;
    };
    let mut shell = Shell::new(environment(store, pod, container));
    let mut disk = Starting {
        store,
        pod,
        container: &container.name,
    };
    match script(&exec.command) {
        Some((text, _)) => shell.script(text, &mut disk, &mut Vec::new()) == 0,
        None => shell.command(&exec.command, &mut disk, &mut Vec::new()) == 0,
    }
}

/// Whether the shell can follow a script.
fn follows(text: &str) -> bool {
    let mut words = text.split([' ', '\n', ';', '\t']);
    !words.any(|word| COMPOUND.contains(&word))
}

/// The text and the arguments of `sh -c TEXT NAME ARGUMENTS…`.
pub(crate) fn script(words: &[String]) -> Option<(&str, Vec<String>)> {
    let shell = words.first().map(String::as_str).is_some_and(is_shell);
    let text = words
        .get(2)
        .filter(|_| words.get(1).is_some_and(|word| word == "-c"));
    let text = text.filter(|_| shell)?;
    Some((text, words.get(4..).unwrap_or_default().to_vec()))
}

/// Whether a program is a shell.
pub(crate) fn is_shell(program: &str) -> bool {
    matches!(program.rsplit('/').next(), Some("sh" | "bash" | "ash"))
}

/// The environment of a container.
pub(crate) fn environment(
    store: &Store,
    pod: &api::Pod,
    container: &api::Container,
) -> BTreeMap<String, String> {
    let metadata = pod.metadata.clone().unwrap_or_default();
    let status = pod.status.clone().unwrap_or_default();
    let of = |name: &str| {
        store
            .configurations
            .get(&(metadata.namespace.clone(), name.to_owned()))
    };
    let mut all = BTreeMap::from([("HOSTNAME".to_owned(), metadata.name.clone())]);
    for source in &container.env_from {
        if let Some(env_source::Source::Configuration(name)) = &source.source
            && let Some(found) = of(name)
        {
            let named = |(key, value): (&String, &String)| {
                (format!("{}{key}", source.prefix), value.clone())
            };
            all.extend(found.data.iter().map(named));
        }
    }
    for variable in &container.env {
        let value = match &variable.source {
            None | Some(env_var::Source::Secret(_)) => String::new(),
            Some(env_var::Source::Value(value)) => value.clone(),
            Some(env_var::Source::Configuration(key)) => {
                let value = of(&key.name).and_then(|one| one.data.get(&key.key));
                value.cloned().unwrap_or_default()
            }
            Some(env_var::Source::Resource(resource)) => {
                let name = resource.resource.as_str();
                let value = match name.split_once('.') {
                    Some(("limits", name)) => container.resource_limits.get(name),
                    Some((_, name)) => container.resource_requests.get(name),
                    None => None,
                };
                value.cloned().unwrap_or_default()
            }
            Some(env_var::Source::Field(path)) => field(path, &metadata, &status, pod),
        };
        all.insert(variable.name.clone(), value);
    }
    all
}

fn field(path: &str, metadata: &api::Metadata, status: &api::PodStatus, pod: &api::Pod) -> String {
    let key = |map: &BTreeMap<String, String>, prefix: &str| {
        let key = path
            .strip_prefix(prefix)?
            .strip_prefix("['")?
            .strip_suffix("']")?;
        map.get(key).cloned()
    };
    match path {
        "metadata.name" => metadata.name.clone(),
        "metadata.namespace" => metadata.namespace.clone(),
        "metadata.uid" => metadata.uid.clone(),
        "spec.nodeName" => status.node.clone(),
        "spec.serviceAccountName" => {
            let spec = pod.spec.as_ref();
            spec.map(|spec| spec.service_account.clone())
                .unwrap_or_default()
        }
        "status.hostIP" | "status.hostIPs" => status.host_ip.clone(),
        "status.podIP" => status.ip.clone(),
        "status.podIPs" => status.ips.join(","),
        _ => key(&metadata.labels, "metadata.labels")
            .or_else(|| key(&metadata.annotations, "metadata.annotations"))
            .unwrap_or_default(),
    }
}

/// A shell between two lines.
pub(crate) struct Shell {
    variables: BTreeMap<String, String>,
    pub(crate) arguments: Vec<String>,
    last: i32,
    pub(crate) exited: bool,
}

impl Shell {
    pub(crate) fn new(variables: BTreeMap<String, String>) -> Self {
        Self {
            variables,
            arguments: Vec::new(),
            last: 0,
            exited: false,
        }
    }

    pub(crate) fn code(&self) -> i32 {
        self.last
    }

    /// Runs lines in a container.
    pub(crate) fn lines(
        &mut self,
        text: &str,
        world: &mut World,
        effects: &mut Vec<Effect>,
    ) -> i32 {
        self.script(text, world, effects)
    }

    /// Runs a command in a container.
    pub(crate) fn words(
        &mut self,
        words: &[String],
        world: &mut World,
        effects: &mut Vec<Effect>,
    ) -> i32 {
        self.command(words, world, effects)
    }

    fn script(&mut self, text: &str, disk: &mut dyn Disk, effects: &mut Vec<Effect>) -> i32 {
        let mut skip = None;
        for (command, joint) in split(text) {
            let skipped = match skip {
                Some(Joint::And) => self.last != 0,
                Some(Joint::Or) => self.last == 0,
                Some(Joint::Then) | None => false,
            };
            skip = Some(joint);
            if !skipped {
                self.line(&command, disk, effects);
            }
            if self.exited {
                break;
            }
        }
        self.last
    }

    fn line(&mut self, text: &str, disk: &mut dyn Disk, effects: &mut Vec<Effect>) {
        let Some(words) = self.expand(text) else {
            effects.push(Effect::Stderr(b"sh: syntax error\n".to_vec()));
            (self.last, self.exited) = (USAGE, true);
            return;
        };
        let mut plain = Vec::new();
        let (mut target, mut to_stderr) = (None, false);
        let mut words = words.into_iter();
        while let Some(word) = words.next() {
            match word.as_str() {
                "2>&1" | "2>/dev/null" => {}
                ">&2" | "1>&2" => to_stderr = true,
                ">" | ">>" => target = words.next().map(|path| (path, word == ">>")),
                _ => plain.push(word),
            }
        }
        let Some(first) = plain.first() else { return };
        if let Some((name, value)) = first.split_once('=')
            && plain.len() == 1
            && !name.is_empty()
            && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
        {
            self.variables.insert(name.to_owned(), value.to_owned());
            self.last = 0;
            return;
        }
        let mut done = Vec::new();
        self.last = self.command(&plain, disk, &mut done);
        let mut kept = Vec::new();
        for effect in done {
            match effect {
                Effect::Stdout(text) if target.is_some() => kept.extend(text),
                Effect::Stdout(text) if to_stderr => effects.push(Effect::Stderr(text)),
                other => effects.push(other),
            }
        }
        if let Some((path, append)) = target
            && path != "/dev/null"
        {
            let mut data = match append {
                true => disk.read(&path).unwrap_or_default(),
                false => Vec::new(),
            };
            data.extend(kept);
            disk.write(&path, data);
        }
    }

    fn command(&mut self, words: &[String], disk: &mut dyn Disk, effects: &mut Vec<Effect>) -> i32 {
        let Some((program, arguments)) = words.split_first() else {
            return 0;
        };
        let name = program.rsplit('/').next().unwrap_or_default();
        let first = arguments.first().map(String::as_str);
        match name {
            "true" | ":" | "mkdir" | "chmod" | "set" | "export" => 0,
            "false" => 1,
            "exit" => {
                self.exited = true;
                first
                    .and_then(|code| code.parse::<u8>().ok())
                    .map_or(self.last, i32::from)
            }
            "echo" => {
                let quiet = first == Some("-n");
                let mut text = arguments[usize::from(quiet)..].join(" ");
                if !quiet {
                    text.push('\n');
                }
                effects.push(Effect::Stdout(text.into_bytes()));
                0
            }
            "printf" => {
                effects.push(Effect::Stdout(printf(arguments)));
                0
            }
            "env" => {
                let lines = self
                    .variables
                    .iter()
                    .map(|(name, value)| format!("{name}={value}\n"));
                effects.push(Effect::Stdout(lines.collect::<String>().into_bytes()));
                0
            }
            "hostname" => {
                let host = self.variables.get("HOSTNAME").cloned().unwrap_or_default();
                effects.push(Effect::Stdout(format!("{host}\n").into_bytes()));
                0
            }
            "date" => {
                let time = crate::store::now();
                effects.push(Effect::Stdout(format!("{time}\n").into_bytes()));
                0
            }
            "sleep" => sleep(first, effects),
            "head" => head(arguments, disk, effects),
            "cat" => each(arguments, effects, |path, effects| {
                let data = disk.read(path).map_err(|reason| match reason {
                    Reason::NotAFile => "Is a directory",
                    _ => "No such file or directory",
                })?;
                effects.push(Effect::Stdout(data));
                Ok(())
            }),
            "rm" => {
                let forced = first == Some("-f");
                each(&arguments[usize::from(forced)..], effects, |path, _| {
                    let removed = disk.remove(path) || forced;
                    removed.then_some(()).ok_or("No such file or directory")
                })
            }
            _ => {
                let message = format!("sh: {program}: not found\n");
                effects.push(Effect::Stderr(message.into_bytes()));
                NOT_FOUND
            }
        }
    }

    /// Words of a command, without quotes and with the values of variables. `None` if a quote has no end.
    fn expand(&self, text: &str) -> Option<Vec<String>> {
        let mut words = Vec::new();
        let mut word: Option<String> = None;
        let mut rest = text.chars().peekable();
        while let Some(c) = rest.next() {
            match c {
                ' ' | '\t' | '\r' => words.extend(word.take()),
                '#' if word.is_none() => break,
                '\'' => {
                    let word = word.get_or_insert_default();
                    loop {
                        match rest.next()? {
                            '\'' => break,
                            c => word.push(c),
                        }
                    }
                }
                '"' => {
                    let mut quoted = String::new();
                    loop {
                        match rest.next()? {
                            '"' => break,
                            '\\' => quoted.push(rest.next()?),
                            '$' => quoted.push_str(&self.value(&mut rest)),
                            c => quoted.push(c),
                        }
                    }
                    word.get_or_insert_default().push_str(&quoted);
                }
                '\\' => word.get_or_insert_default().push(rest.next()?),
                '$' => {
                    let value = self.value(&mut rest);
                    word.get_or_insert_default().push_str(&value);
                }
                '>' => {
                    let number = word.take_if(|word| matches!(word.as_str(), "1" | "2"));
                    words.extend(word.take());
                    let mut operator = format!("{}>", number.unwrap_or_default());
                    if rest.next_if_eq(&'>').is_some() {
                        operator.push('>');
                    } else if rest.next_if_eq(&'&').is_some() {
                        operator.push('&');
                        operator.extend(rest.next());
                    } else if operator == "2>" {
                        let path: String = rest
                            .by_ref()
                            .skip_while(|c| *c == ' ')
                            .take_while(|c| *c != ' ')
                            .collect();
                        operator.push_str(&path);
                    }
                    words.push(operator);
                }
                c => word.get_or_insert_default().push(c),
            }
        }
        words.extend(word);
        Some(words)
    }

    fn value(&self, rest: &mut std::iter::Peekable<std::str::Chars<'_>>) -> String {
        let braced = rest.next_if_eq(&'{').is_some();
        let mut name = String::new();
        let one = |c: &char| matches!(c, '@' | '#' | '?' | '*') || c.is_ascii_digit();
        if let Some(c) = rest.next_if(one) {
            name.push(c);
        } else {
            while let Some(c) = rest.next_if(|c| c.is_ascii_alphanumeric() || *c == '_') {
                name.push(c);
            }
        }
        if braced {
            rest.next_if_eq(&'}');
        }
        match name.as_str() {
            "" => "$".to_owned(),
            "@" | "*" => self.arguments.join(" "),
            "#" => self.arguments.len().to_string(),
            "?" => self.last.to_string(),
            name => match name.parse::<usize>() {
                Ok(0) => "sh".to_owned(),
                Ok(at) => self.arguments.get(at - 1).cloned().unwrap_or_default(),
                Err(_) => self.variables.get(name).cloned().unwrap_or_default(),
            },
        }
    }
}

/// What is between two commands.
#[derive(Clone, Copy)]
enum Joint {
    Then,
    And,
    Or,
}

/// Commands of a script, each with what follows it.
fn split(text: &str) -> Vec<(String, Joint)> {
    let mut commands = Vec::new();
    let mut command = String::new();
    let mut quote = None;
    let mut rest = text.chars().peekable();
    while let Some(c) = rest.next() {
        if let Some(end) = quote {
            if c == end {
                quote = None;
            }
            command.push(c);
            continue;
        }
        let joint = match c {
            '\'' | '"' => {
                quote = Some(c);
                command.push(c);
                continue;
            }
            '\n' | ';' => Joint::Then,
            '&' if command.ends_with('>') => {
                command.push(c);
                continue;
            }
            '&' if rest.next_if_eq(&'&').is_some() => Joint::And,
            '|' if rest.next_if_eq(&'|').is_some() => Joint::Or,
            c => {
                command.push(c);
                continue;
            }
        };
        commands.push((std::mem::take(&mut command), joint));
    }
    commands.push((command, Joint::Then));
    commands
}

/// What a table says about a command in a container.
pub(crate) fn tabled(world: &World, words: &[String]) -> Option<Outcome> {
    let commands = world.state.commands.lock();
    find(
        &commands,
        (&world.key.0, &world.key.1, &world.container),
        words,
    )
}

#[cfg(test)]
mod tests;
