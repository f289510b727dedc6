//! The command line as users experience it: typed lines, prompts at a terminal, exit codes.

use std::{
    io::{Read, Write},
    process::{Command, Stdio},
};

use serde_json::Value;

use crate::real::{World, binary};

/// Result of a command.
#[derive(Debug)]
pub(crate) struct Said {
    pub(crate) code: i32,
    pub(crate) out: String,
    pub(crate) err: String,
}

impl Said {
    /// Asserts the exit code, and that these words are in the output of either stream.
    pub(crate) fn expect(self, code: i32, words: &[&str]) -> Self {
        assert_eq!(self.code, code, "{self:?}");
        for &word in words {
            let all = [&self.out, &self.err];
            assert!(all.iter().any(|it| it.contains(word)), "{word}: {self:?}");
        }
        self
    }
}

/// A program in the directory of the world whose environment has only the address of the orchestrator.
fn command(world: &World, program: &str) -> Command {
    let directory = world.directory.path();
    let mut command = Command::new(program);
    command
        .current_dir(directory)
        .env_clear()
        .env("PATH", std::env::var_os("PATH").unwrap())
        .env("XDG_CONFIG_HOME", directory.join("config"))
        .env("DROVER_SERVER", world.orchestrator.address.to_string());
    command
}

/// A command line after `drover`, not yet run.
pub(crate) fn typed(world: &World, line: &str) -> Command {
    let mut command = command(world, binary("drover").to_str().unwrap());
    command.args(line.split_whitespace());
    command
}

/// Runs a command line without a terminal for prompts.
pub(crate) fn drover(world: &World, line: &str) -> Said {
    let output = typed(world, line).stdin(Stdio::null()).output().unwrap();
    println!("$ drover {line}");
    Said {
        code: output.status.code().unwrap(),
        out: String::from_utf8(output.stdout).unwrap(),
        err: String::from_utf8(output.stderr).unwrap(),
    }
}

/// Runs a command line at a terminal. Both streams are in `out`.
pub(crate) fn at_a_terminal(world: &World, line: &str) -> Said {
    let line = format!("{} {line}", binary("drover").display());
    let output = command(world, "script")
        .args(["-qec", &line, "/dev/null"])
        .stdin(Stdio::null())
        .output()
        .unwrap();
    Said {
        code: output.status.code().unwrap(),
        out: String::from_utf8(output.stdout).unwrap(),
        err: String::from_utf8(output.stderr).unwrap(),
    }
}

/// Parses the output of a command line with `-o json`.
pub(crate) fn json(world: &World, line: &str) -> Value {
    let said = drover(world, line).expect(0, &[]);
    serde_json::from_str(&said.out).unwrap()
}

/// Runs a command line at a terminal, performs an action while its prompt is shown, and answers the prompt.
pub(crate) async fn asked(
    world: &World,
    line: &str,
    meanwhile: impl AsyncFnOnce(&str),
    answer: &str,
) -> Said {
    let line = format!("{} {line}", binary("drover").display());
    // `script` of util-linux runs a command at a terminal of its own.
    let mut child = command(world, "script")
        .args(["-qec", &line, "/dev/null"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let (mut keyboard, mut screen) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
    let mut shown = Vec::new();
    while !shown.ends_with(b"[y/N] ") {
        let mut byte = [0];
        let read = screen.read(&mut byte).unwrap();
        let text = String::from_utf8_lossy(&shown);
        assert_eq!(read, 1, "{line}: ended without a question: {text}");
        shown.extend(byte);
    }
    meanwhile(&String::from_utf8_lossy(&shown)).await;
    writeln!(keyboard, "{answer}").unwrap();
    screen.read_to_end(&mut shown).unwrap();
    Said {
        code: child.wait().unwrap().code().unwrap(),
        out: String::from_utf8(shown).unwrap(),
        err: String::new(),
    }
}
