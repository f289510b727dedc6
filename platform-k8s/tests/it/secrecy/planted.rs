//! A secret for each thing that passes through.

use std::fmt::Debug;

use drover_proto::{
    common::v1::{Chunk, ProcessOutput, chunk::Content, process_output::Output},
    kubernetes::v1::{self as api, env_var, exec_request},
};
use drover_testing::needles::Needles;

/// Characters that are escaped in JSON, URLs or base64, and some that are not.
const ALL: &str = "\"\\/+=&%<>'?#:;!*@~^|,()[]}$é€ kMxQ7vTz0Wb3Rj9Yp5";
/// The subset that means nothing in a shell.
const OF_SHELLS: &str = "/+=%:,.@kMxQ7vTz0Wb3Rj9Yp5";
const LENGTH: usize = 48;

/// Secrets that must not leak.
pub(crate) struct Planted {
    pub(crate) script: String,
    /// An argument of a script, and of a command.
    pub(crate) argument: String,
    pub(crate) stdin: String,
    pub(crate) file: String,
    pub(crate) log: String,
    /// The value of a variable.
    pub(crate) variable: String,
    /// Texts of a configuration.
    pub(crate) text: String,
    pub(crate) changed: String,
    /// Bytes of a configuration.
    pub(crate) binary: Vec<u8>,
}

fn text(random: &mut fastrand::Rng, alphabet: &str) -> String {
    let all: Vec<char> = alphabet.chars().collect();
    let text: String = (0..LENGTH)
        .map(|_| all[random.usize(..all.len())])
        .collect();
    format!("Q{text}9")
}

impl Planted {
    pub(crate) fn new(random: &mut fastrand::Rng) -> Self {
        let mut binary: Vec<u8> = (0..64).map(|_| random.u8(..)).collect();
        binary[0] = 0xff;
        Self {
            script: text(random, OF_SHELLS),
            argument: text(random, ALL),
            stdin: text(random, ALL),
            file: text(random, OF_SHELLS),
            log: text(random, OF_SHELLS),
            variable: text(random, ALL),
            text: text(random, ALL),
            changed: text(random, ALL),
            binary,
        }
    }

    pub(crate) fn needles(&self) -> Needles {
        let mut needles = Needles::default();
        for (name, content) in [
            ("script", &self.script),
            ("argument", &self.argument),
            ("standard input", &self.stdin),
            ("file", &self.file),
            ("log", &self.log),
            ("variable", &self.variable),
            ("text of a configuration", &self.text),
            ("changed text of a configuration", &self.changed),
        ] {
            needles.add(name, content.as_bytes());
        }
        needles.add("bytes of a configuration", &self.binary);
        needles
    }
}

pub(crate) fn data(content: impl Into<Vec<u8>>) -> Chunk {
    Chunk {
        content: Some(Content::Data(content.into())),
    }
}

/// `Debug` of every message that something of this passes through.
pub(crate) fn debugged(planted: &Planted) -> Vec<(&'static str, String)> {
    fn of(message: impl Debug) -> String {
        format!("{message:?} {message:#?}")
    }
    let text = Chunk {
        content: Some(Content::Text(planted.stdin.clone())),
    };
    let output = |output| ProcessOutput {
        output: Some(output),
    };
    let start = api::ExecStart {
        command: vec!["sh".into(), planted.argument.clone()],
        ..Default::default()
    };
    let variable = api::EnvVar {
        name: "PASSWORD".into(),
        source: Some(env_var::Source::Value(planted.variable.clone())),
    };
    let container = api::Container {
        env: vec![variable],
        ..Default::default()
    };
    let pod = api::Pod {
        spec: Some(api::PodSpec {
            containers: vec![container.clone()],
            init_containers: vec![container],
            ..Default::default()
        }),
        ..Default::default()
    };
    let configuration = api::Configuration {
        data: [("k".to_owned(), planted.text.clone())].into(),
        binary_data: [("b".to_owned(), planted.binary.clone())].into(),
        ..Default::default()
    };
    let script = api::RunScriptRequest {
        script: planted.script.clone(),
        args: vec![planted.argument.clone()],
        interpreter: vec![planted.argument.clone()],
        ..Default::default()
    };
    let exec = |input| api::ExecRequest { input: Some(input) };
    vec![
        ("Chunk", of([data(planted.file.as_bytes()), text.clone()])),
        ("ProcessOutput", of(output(Output::Stdout(text.clone())))),
        ("RunScriptRequest", of(script)),
        ("ExecStart", of(exec(exec_request::Input::Start(start)))),
        (
            "ExecRequest",
            of(exec(exec_request::Input::Stdin(text.clone()))),
        ),
        (
            "ReadFileResponse",
            of(api::ReadFileResponse {
                chunk: Some(data(planted.file.as_bytes())),
                total_size: None,
            }),
        ),
        (
            "StreamLogsResponse",
            of(api::StreamLogsResponse { chunk: Some(text) }),
        ),
        ("Pod", of(api::CreatePodRequest { pod: Some(pod) })),
        (
            "Configuration",
            of(api::UpdateConfigurationRequest {
                configuration: Some(configuration),
            }),
        ),
    ]
}
