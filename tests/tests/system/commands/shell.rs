//! The command line as a person has it: typed lines, questions at a terminal, exit codes.

use std::{
    io::{Read, Write},
    process::{Command, Stdio},
};

use serde_json::Value;

use crate::real::{World, binary};

/// How a command ended, and what it printed.
#[derive(Debug)]
pub(crate) struct Said {
    pub(crate) code: i32,
    /// Standard output.
    pub(crate) out: String,
    /// Standard error.
    pub(crate) err: String,
}

impl Said {
    /// That it ended like this and said this, wherever it said it.
    pub(crate) fn expect(self, code: i32, words: &[&str]) -> Self {
        assert_eq!(self.code, code, "{self:?}");
        for &word in words {
            let all = [&self.out, &self.err];
            assert!(all.iter().any(|it| it.contains(word)), "{word}: {self:?}");
        }
        self
    }
}

/// A program in the directory of the world, which knows nothing but where the orchestrator is.
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

/// A line after `drover`, not run yet.
pub(crate) fn typed(world: &World, line: &str) -> Command {
    let mut command = command(world, binary("drover").to_str().unwrap());
    command.args(line.split_whitespace());
    command
}

/// Runs a line where nobody can be asked.
pub(crate) fn drover(world: &World, line: &str) -> Said {
    let output = typed(world, line).stdin(Stdio::null()).output().unwrap();
    println!("$ drover {line}");
    Said {
        code: output.status.code().unwrap(),
        out: String::from_utf8(output.stdout).unwrap(),
        err: String::from_utf8(output.stderr).unwrap(),
    }
}

/// What a line answers that ends with `-o json`.
pub(crate) fn json(world: &World, line: &str) -> Value {
    let said = drover(world, line).expect(0, &[]);
    serde_json::from_str(&said.out).unwrap()
}

/// Runs a line at a terminal, does something while its question stands there, and answers it.
pub(crate) async fn asked(
    world: &World,
    line: &str,
    meanwhile: impl AsyncFnOnce(&str),
    answer: &str,
) -> Said {
    let line = format!("{} {line}", binary("drover").display());
    // Of util-linux: it runs a command at a terminal of its own.
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
