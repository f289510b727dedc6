use std::{
    path::PathBuf,
    process::{Command, Stdio},
    sync::Arc,
    time::Duration,
};

use drover_core::Class;
use drover_templates::ClusterContext;
use rustix::process::{Pid, Signal, kill_process};

use super::*;

/// Uses the example `platform_texts` as the rendering program, because a test binary cannot be its own worker.
pub(crate) fn use_program() {
    let own: PathBuf = std::env::current_exe().unwrap();
    let target = own.ancestors().nth(2).unwrap();
    worker::use_program(target.join("examples/platform_texts"));
}

/// Memory that this process may use while texts take as much as they can get, in bytes.
const ROOM: u64 = 64 << 20;

/// Texts that never end or exhaust memory: during parsing, during rendering, or when their result is written or
/// dropped.
const GREEDY: &[&str] = &[
    // Widths.
    r#"{{ "marker"|indent(10000000000000) }}"#,
    r#"{{ "marker\nb"|indent(width=99999999999) }}"#,
    r#"{{ "marker"|indent(10000000000, true, true) }}"#,
    r#"{% set x = "marker"|indent(10000000000000) %}"#,
    r#"{% filter indent(10000000000000) %}marker{% endfilter %}"#,
    r#"{{ ["marker"]|map("indent", 10000000000000)|list }}"#,
    r#"{{ "%10000000000000d"|format(1) }}"#,
    r#"{{ "%-10000000000000s"|format("marker") }}"#,
    r#"{{ "%.10000000000000f"|format(1.5) }}"#,
    r#"{{ "%010000000000000d"|format(1) }}"#,
    r#"{{ "%*d"|format(10000000000000, 1) }}"#,
    r#"{{ ["marker"]|tojson(indent=10000000000000) }}"#,
    r#"{{ {"marker": [1, 2]}|tojson(10000000000000) }}"#,
    // Repetition of constants, evaluated by the parser.
    r#"{{ "marker" * 10000000000000 }}"#,
    r#"{{ ("marker" * 1000000) * 10000000 }}"#,
    r#"{# a #}{{ 1 if "marker" * 10000000000 else 2 }}"#,
    // Repetition of variables.
    r#"{% set a = cluster.id %}{{ a * 10000000000000 }}"#,
    r#"{% set n = 10000000000 %}{{ "marker" * n }}"#,
    r#"{% set a = [cluster.id] * 10000000000 %}{{ a|list|length }}"#,
    // Doubling.
    r#"{% set ns = namespace(x="marker") %}{% for i in range(60) %}{% set ns.x = ns.x ~ ns.x %}{% endfor %}{{ ns.x|length }}"#,
    r#"{% set ns = namespace(x="marker") %}{% for i in range(60) %}{% set ns.x = ns.x + ns.x %}{% endfor %}"#,
    r#"{% set ns = namespace(x=["marker"]) %}{% for i in range(60) %}{% set ns.x = ns.x + ns.x %}{% endfor %}{{ ns.x|list|length }}"#,
    r#"{% set ns = namespace(x="marker") %}{% for i in range(60) %}{% set ns.x = [ns.x, ns.x]|join %}{% endfor %}"#,
    r#"{% set ns = namespace(x="marker") %}{% for i in range(60) %}{% set ns.x = ns.x|replace("m", ns.x) %}{% endfor %}"#,
    r#"{% set ns = namespace(x="marker") %}{% for i in range(60) %}{% set ns.x %}{{ ns.x }}{{ ns.x }}{% endset %}{% endfor %}"#,
    // Amplification by filters.
    r#"{{ ("a" * 100000)|replace("a", "marker" * 100000) }}"#,
    r#"{{ range(100000)|join("marker" * 100000) }}"#,
    r#"{{ [1]|batch(10000000000, "marker")|list }}"#,
    r#"{{ [1]|slice(10000000000, "marker")|list }}"#,
    r#"{% set x = range(100000)|list %}{% set ns = namespace(y=[]) %}{% for i in x %}{% set ns.y = ns.y + [x|list] %}{% endfor %}"#,
    // Nesting depth.
    r#"{% set ns = namespace(x=["marker"]) %}{% for i in range(100000) %}{% set ns.x = [ns.x] %}{% endfor %}{{ ns.x }}"#,
    // Time that is not covered by the step counter.
    r#"{% for i in range(100000) %}{% set x = ("marker" * 100000)|upper|lower|reverse %}{% endfor %}"#,
    r#"{% for i in range(100000) %}{% set x = range(100000)|list|sort(reverse=true) %}{% endfor %}"#,
];

fn context(secret: &str) -> Context {
    Context {
        cluster: ClusterContext {
            id: "orders".to_owned(),
            ..ClusterContext::default()
        },
        secrets: [("key".to_owned(), secret.to_owned())].into(),
        ..Context::default()
    }
}

fn session(source: &str) -> Session {
    Session::new("bootstrap", source, &context("s3cret")).unwrap()
}

fn rendered(texts: &Texts, source: &str) -> Result<String> {
    texts.render(&session(source), NodeScope::default())
}

/// Returns a value of `/proc/self/status` in bytes.
fn own(name: &str) -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with(name)).unwrap();
    let kilobytes = line.split_whitespace().nth(1).unwrap();
    kilobytes.parse::<u64>().unwrap() << 10
}

fn assert_refused(error: &Error, source: &str) {
    assert_eq!(error.class(), Class::Cannot, "{source}: {error}");
    assert!(
        error.message().starts_with("template bootstrap"),
        "{source}: {error}"
    );
    let all = format!("{error:?} {:?}", error.metadata());
    assert!(!all.contains("marker"), "{source}: {all}");
}

#[test]
fn no_text_takes_more_than_its_process_and_the_next_one_is_rendered() {
    use_program();
    let texts = Texts::default();
    let before = own("VmHWM");
    for source in GREEDY {
        let error = rendered(&texts, source).expect_err(source);
        assert_refused(&error, source);
        assert_eq!(
            rendered(&texts, "{{ cluster.id }}").unwrap(),
            "orders",
            "after {source}"
        );
    }
    let chain = format!("{{{{ {}1 }}}}", "cluster.id ~ ".repeat(300_000));
    if let Err(error) = rendered(&texts, &chain) {
        assert_refused(&error, "a long chain");
    }
    let taken = own("VmHWM") - before;
    assert!(taken < ROOM, "{taken} bytes");
    assert!(texts.idle.lock().len() <= MAX_PROCESSES);
}

#[test]
fn a_text_that_is_only_parsed_takes_no_more_either() {
    use_program();
    let texts = Texts::default();
    let before = own("VmHWM");
    for source in GREEDY {
        if let Err(error) = texts.parse(&session(source)) {
            assert_refused(&error, source);
        }
    }
    let error = texts.parse(&session("fine\n{% for %}")).unwrap_err();
    assert!(
        error
            .message()
            .starts_with("template bootstrap, line 2, column"),
        "{error}"
    );
    // Parsed, but not executed.
    texts.parse(&session("{{ refuse('why') }}")).unwrap();
    assert!(own("VmHWM") - before < ROOM);
}

#[test]
fn a_text_that_no_process_survives_is_not_tried_again_for_the_next_node() {
    use_program();
    let texts = Texts::default();
    let deadly = session(GREEDY[0]);
    let first = texts.render(&deadly, NodeScope::default()).unwrap_err();
    assert!(deadly.is_fatal());
    let second = texts.render(&deadly, NodeScope::default()).unwrap_err();
    assert_eq!(first, second);
    assert!(
        texts.idle.lock().is_empty(),
        "no process was started for it"
    );
}

#[test]
fn a_process_that_is_killed_is_replaced_and_nobody_notices() {
    use_program();
    let texts = Texts::default();
    for _ in 0..5 {
        assert_eq!(rendered(&texts, "{{ cluster.id }}").unwrap(), "orders");
        let id = texts.idle.lock()[0].id();
        let id = Pid::from_raw(i32::try_from(id).unwrap()).unwrap();
        kill_process(id, Signal::KILL).unwrap();
    }
    assert_eq!(rendered(&texts, "{{ cluster.id }}").unwrap(), "orders");
    assert_eq!(texts.idle.lock().len(), 1);
}

#[test]
fn a_program_that_cannot_render_is_an_error_that_says_so() {
    let with_pipes = |name: &str| {
        let mut command = Command::new(name);
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        command
    };
    for (command, why) in [
        (Ok(with_pipes("/nowhere/at/all")), "No such file"),
        (Ok(with_pipes("true")), "ended with code 0"),
        (Ok(with_pipes("yes")), "answers what it should not"),
        (Ok(Command::new("true")), "has no pipes"),
        (Err(Error::unavailable("no part")), "no part"),
    ] {
        let error = Process::start_as(command).err().unwrap();
        let said = error.message();
        assert_eq!(error.class(), Class::Unknown);
        assert!(
            said.contains("user data cannot be rendered here") && said.contains(why),
            "{said}"
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn others_are_rendered_while_one_caller_sends_nothing_but_greedy_texts() {
    use_program();
    let texts = Arc::new(Texts::default());
    let ask = |caller: &'static str, cluster: &'static str, source: &'static str| {
        let texts = Arc::clone(&texts);
        tokio::spawn(async move {
            let turn = texts.turn(caller, cluster).await;
            tokio::task::spawn_blocking(move || {
                let answer = rendered(&texts, source);
                drop(turn);
                answer
            })
            .await
            .unwrap()
        })
    };
    let endless = GREEDY[GREEDY.len() - 1];
    let greedy: Vec<_> = (0..12).map(|_| ask("one", "greedy", endless)).collect();
    // Only meaningful while they occupy all of the places they can get.
    let deadline = Duration::from_secs(60);
    tokio::time::timeout(deadline, async {
        for _ in 0..100 {
            let answer = ask("other", "orders", "{{ cluster.id }}").await.unwrap();
            assert_eq!(answer.unwrap(), "orders");
        }
    })
    .await
    .unwrap();
    let waiting = greedy.iter().filter(|it| !it.is_finished()).count();
    assert!(waiting > 0, "the greedy ones were through before");
    for one in greedy {
        one.abort();
    }
}
