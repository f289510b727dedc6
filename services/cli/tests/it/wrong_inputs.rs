//! Wrong manifests as people write them: each is refused with what is wrong, where, and what to write instead; nothing is
//! changed.

mod documents;
mod served;
mod values;

use std::{
    fs,
    path::Path,
    process::{Output, Stdio},
};

use drover_testing::processes::program;

/// A cluster whose group has these fields.
fn group(fields: &str) -> String {
    spec(&format!("platform: local\n  groups:\n    db: {{{fields}}}"))
}

fn spec(fields: &str) -> String {
    format!("apiVersion: drover.dev/v1\nkind: Cluster\nmetadata: {{name: x}}\nspec:\n  {fields}\n")
}

fn named(name: &str) -> String {
    group("size: 1").replace("{name: x}", &format!("{{name: {name}}}"))
}

fn groups(fields: &str) -> String {
    spec(&format!("platform: local\n  groups:\n    {fields}"))
}

/// A wrong file and what is said of it.
#[derive(Clone, Debug)]
struct Case {
    text: String,
    /// The text that is pointed to, or its `LINE:COLUMN`.
    at: &'static str,
    /// The path of its field.
    path: &'static str,
    /// Words of the message.
    words: &'static [&'static str],
    /// How many errors there are.
    errors: usize,
}

fn case(
    text: impl Into<String>,
    at: &'static str,
    path: &'static str,
    words: &'static [&'static str],
) -> Case {
    Case {
        text: text.into(),
        at,
        path,
        words,
        errors: 1,
    }
}

impl Case {
    fn errors(self, errors: usize) -> Self {
        Self { errors, ..self }
    }
}

fn validate(directory: &Path, arguments: &[&str]) -> Output {
    let mut command = program(env!("CARGO_BIN_EXE_drover"));
    command.arg("validate").args(arguments);
    command.current_dir(directory).stdin(Stdio::null());
    command.output().unwrap()
}

/// The errors of a command that failed as it should, without having done anything.
fn refusal(output: &Output, what: &str) -> String {
    let told = String::from_utf8(output.stderr.clone()).unwrap();
    assert_eq!(output.status.code(), Some(1), "{what}\n{told}");
    assert_eq!(String::from_utf8_lossy(&output.stdout), "", "{what}");
    assert!(!told.contains("panicked"), "{what}\n{told}");
    told
}

/// `x.yaml:7:10  spec.groups.db.size`, where a text is.
fn place(text: &str, at: &str, path: &str) -> String {
    let number = |part: &str| part.parse::<usize>().ok();
    let given = at.split_once(':');
    let given = given.and_then(|(line, column)| Some((number(line)?, number(column)?)));
    let (line, column) = given.unwrap_or_else(|| {
        let start = text.find(at).unwrap_or_else(|| panic!("{at} in {text}"));
        let before = &text[..start];
        let line = before.rsplit('\n').next().unwrap_or_default();
        (before.matches('\n').count() + 1, line.chars().count() + 1)
    });
    let path = if path.is_empty() {
        String::new()
    } else {
        format!("  {path}")
    };
    format!("--> x.yaml:{line}:{column}{path}\n")
}

fn check(told: &str, case: &Case) {
    let text = &case.text;
    let place = place(text, case.at, case.path);
    assert!(told.contains(&place), "{text}\n{place}\n{told}");
    for word in case.words {
        assert!(told.contains(word), "{text}\n{word}\n{told}");
    }
    let errors = told.lines().filter(|line| line.starts_with("error: "));
    assert_eq!(errors.count(), case.errors, "{text}\n{told}");
    let plural = if case.errors == 1 { "" } else { "s" };
    let count = format!("{} error{plural}", case.errors);
    let counted = told.lines().any(|line| line.starts_with(&count));
    assert!(counted, "{text}\n{told}");
}

#[test]
fn what_needs_no_server_is_refused_without_one() {
    let directory = tempfile::tempdir().unwrap();
    let fails = |case: &&Case| {
        let check_one = || {
            fs::write(directory.path().join("x.yaml"), &case.text).unwrap();
            let told = refusal(&validate(directory.path(), &["-f", "x.yaml"]), &case.text);
            check(&told, case);
        };
        std::panic::catch_unwind(check_one).is_err()
    };
    let all = [
        values::values(),
        documents::documents(),
        documents::half_read(),
        documents::others(),
    ]
    .concat();
    let failed: Vec<&Case> = all.iter().filter(fails).collect();
    assert!(failed.is_empty(), "{failed:?}");
}

#[test]
fn files_that_are_no_manifests_are_refused_by_name() {
    let directory = tempfile::tempdir().unwrap();
    let write = |name: &str, content: &[u8]| {
        fs::write(directory.path().join(name), content).unwrap();
    };
    write("empty.yaml", b"");
    write("comment.yaml", b"# nothing\n");
    write("none.yaml", b"---\n---\n");
    write("binary.yaml", b"\x7fELF\0\xff\xfe");
    write("utf16.yaml", b"\xff\xfea\0:\0 \0b\0");
    write("large.yaml", &vec![b'#'; 4 * 1024 * 1024 + 1]);
    write("whole.yaml", group("size: 1").as_bytes());
    fs::create_dir(directory.path().join("folder")).unwrap();
    for (files, words) in [
        (&["empty.yaml"][..], &["no document in empty.yaml"][..]),
        (&["comment.yaml"], &["no document in comment.yaml"]),
        (&["none.yaml"], &["no document in none.yaml"]),
        (&["binary.yaml"], &["binary.yaml", "UTF-8"]),
        (&["utf16.yaml"], &["utf16.yaml", "UTF-8"]),
        (&["/bin/ls"], &["/bin/ls", "UTF-8"]),
        (&["large.yaml"], &["large.yaml", "4096 KiB"]),
        (&["folder"], &["folder has no .yaml, .yml or .json file"]),
        (
            &["missing.yaml"],
            &["cannot read missing.yaml", "No such file"],
        ),
        (&["-"], &["no document in -"]),
        (
            &["https://example.com/x.yaml"],
            &[
                "not URLs",
                "curl -fsS https://example.com/x.yaml | drover apply -f -",
            ],
        ),
        (
            &["whole.yaml", "whole.yaml"],
            &["cluster `x` is defined twice (first in whole.yaml:3)"],
        ),
    ] {
        let arguments: Vec<&str> = files.iter().flat_map(|file| ["-f", *file]).collect();
        let told = refusal(&validate(directory.path(), &arguments), &files.join(" "));
        for word in words {
            assert!(told.contains(word), "{files:?}\n{word}\n{told}");
        }
    }
}

#[test]
fn what_only_looks_odd_is_accepted() {
    let directory = tempfile::tempdir().unwrap();
    for text in [
        group("size: 0x10"),
        group("expireAfter: 1.5h"),
        group("expireAfter: 2d"),
        group("role: Größe"),
        group("platforms: [{name: a}, {name: b}]"),
        group("storage: {size: 900Ti}"),
        named("Upper"),
        group("size: 1").replace('\n', "\r\n"),
        format!("\u{feff}{}", group("size: 1")),
        group("size: &n 1, standby: *n"),
        "{\"apiVersion\": \"drover.dev/v1\", \"kind\": \"Cluster\", \"metadata\": {\"name\": \"x\"}, \"spec\": {\"platform\": \"local\", \"groups\": {\"db\": {},}}}".to_owned(),
    ] {
        fs::write(directory.path().join("x.yaml"), &text).unwrap();
        let output = validate(directory.path(), &["-f", "x.yaml"]);
        assert!(output.status.success(), "{text}\n{output:?}");
    }
}
