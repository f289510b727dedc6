use super::*;

#[derive(Default)]
struct Memory(BTreeMap<String, Vec<u8>>);

impl Disk for Memory {
    fn read(&mut self, path: &str) -> Result<Vec<u8>, Reason> {
        self.0.get(path).cloned().ok_or(Reason::FileNotFound)
    }

    fn write(&mut self, path: &str, data: Vec<u8>) {
        self.0.insert(path.to_owned(), data);
    }

    fn remove(&mut self, path: &str) -> bool {
        self.0.remove(path).is_some()
    }
}

fn run(text: &str) -> (String, String, i32) {
    let variables = BTreeMap::from([("COLOUR".to_owned(), "blue".to_owned())]);
    let mut shell = Shell::new(variables);
    shell.arguments = vec!["a b".to_owned(), "c".to_owned()];
    let mut effects = Vec::new();
    let code = shell.script(text, &mut Memory::default(), &mut effects);
    let (mut stdout, mut stderr) = (String::new(), String::new());
    for effect in effects {
        match effect {
            Effect::Stdout(text) => stdout += &String::from_utf8_lossy(&text),
            Effect::Stderr(text) => stderr += &String::from_utf8_lossy(&text),
            Effect::Pause(_) => {}
        }
    }
    (stdout, stderr, code)
}

#[test]
fn scripts_do_what_a_shell_does() {
    for (script, stdout, stderr, code) in [
        ("echo hello", "hello\n", "", 0),
        ("echo a >&2; exit 3", "", "a\n", 3),
        ("echo -n \"$1|$2|$#|$COLOUR\"", "a b|c|2|blue", "", 0),
        (
            "echo one > /tmp/x\necho two >> /tmp/x\ncat /tmp/x",
            "one\ntwo\n",
            "",
            0,
        ),
        ("false || echo other && echo then", "other\nthen\n", "", 0),
        ("true && false; echo $?", "1\n", "", 0),
        ("X='a;b'; echo $X # no more", "a;b\n", "", 0),
        ("cat /none", "", "/none: No such file or directory\n", 1),
        (
            "nothing-like-it",
            "",
            "sh: nothing-like-it: not found\n",
            127,
        ),
        ("printf '%s\\n\\101' x", "x\nA", "", 0),
    ] {
        let expected = (stdout.to_owned(), stderr.to_owned(), code);
        assert_eq!(run(script), expected, "{script}");
    }
    assert_eq!(run("echo 'no end").2, USAGE);
}
