//! The worker process from the client's perspective.

use std::{
    io::{Read, Write},
    process::{Child, ChildStdin, ChildStdout},
};

use drover_core::Result;
use drover_templates::{
    Context, NodeScope, Scope, render_text,
    worker::{self, Answer, Incoming},
};
use proptest::prelude::*;
use serde_json::{Value, json};

struct Worker {
    child: Child,
    input: Option<ChildStdin>,
    output: ChildStdout,
}

impl Worker {
    fn start() -> Self {
        let own = std::env::current_exe().unwrap();
        worker::use_program(own.ancestors().nth(2).unwrap().join("examples/texts"));
        let mut child = worker::command().unwrap().spawn().unwrap();
        let (input, output) = (child.stdin.take(), child.stdout.take().unwrap());
        let mut worker = Self {
            child,
            input,
            output,
        };
        worker.answer().unwrap();
        worker
    }

    fn answer(&mut self) -> Answer {
        let mut incoming = Incoming::default();
        let mut piece = [0; 4096];
        loop {
            let read = self.output.read(&mut piece).unwrap();
            assert!(read > 0, "it ended");
            if let Some(answer) = incoming.take(&piece[..read]).unwrap() {
                return answer;
            }
        }
    }

    fn send(&mut self, frame: &[u8]) {
        self.input.as_mut().unwrap().write_all(frame).unwrap();
    }

    fn render(&mut self, source: &str, context: &Context, own: &NodeScope) -> Answer {
        self.send(&worker::session("bootstrap", source, context).unwrap());
        self.send(&worker::render(own.clone()).unwrap());
        self.answer()
    }

    /// Reads a file of the process in `/proc`.
    fn of_proc(&self, file: &str) -> String {
        std::fs::read_to_string(format!("/proc/{}/{file}", self.child.id())).unwrap()
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn it_ends_with_whoever_asks_it() {
    let mut worker = Worker::start();
    worker.input = None;
    assert!(worker.child.wait().unwrap().success());
}

#[test]
fn it_has_limits_before_it_reads_anything_and_no_name_or_content_can_be_seen_from_outside() {
    let worker = Worker::start();
    let limits = worker.of_proc("limits");
    let limit = |name: &str| -> String {
        let line = limits.lines().find(|line| line.starts_with(name)).unwrap();
        let rest = line[name.len()..].split_whitespace();
        rest.take(2).collect::<Vec<_>>().join(" ")
    };
    for (name, most) in [
        ("Max core file size", "0 0"),
        ("Max file size", "0 0"),
        ("Max open files", "0 0"),
        ("Max processes", "0 0"),
    ] {
        assert_eq!(limit(name), most, "{name}");
    }
    let space: u64 = limit("Max address space")
        .split(' ')
        .next()
        .unwrap()
        .parse()
        .unwrap();
    assert!(space < worker::MAX_MEMORY + (64 << 20), "{space}");
    let command = worker.of_proc("cmdline");
    assert!(command.ends_with("texts\0render-texts\0"), "{command:?}");
}

#[test]
fn a_text_that_takes_too_much_ends_nothing_but_it() {
    let mut worker = Worker::start();
    let greedy = r#"{{ "a"|indent(10000000000000) }}"#;
    worker.send(&worker::session("bootstrap", greedy, &Context::default()).unwrap());
    worker.send(&worker::render(NodeScope::default()).unwrap());
    assert!(!worker.child.wait().unwrap().success());
    let fine = Worker::start().render("fine", &Context::default(), &NodeScope::default());
    assert_eq!(fine.unwrap(), "fine");
}

/// Renders a text within this process.
fn here(source: &str, context: &Context, own: &NodeScope) -> Result<String> {
    let scope = Scope::from(context.clone()).of_node(own);
    render_text("bootstrap", source, &scope).map(drover_templates::Rendered::into_text)
}

fn told(answer: &Answer) -> String {
    match answer {
        Ok(text) => text.clone(),
        Err(error) => format!("{:?} {error} {:?}", error.reason(), error.metadata()),
    }
}

/// Valid and invalid texts that read every part of the context.
const PIECES: &[&str] = &[
    "{{ cluster.id }} {{ cluster.store }} {{ cluster.version }}",
    "{{ cluster.attributes }}",
    "{{ cluster.attributes|tojson }}",
    "{{ cluster.labels }}{{ cluster }}",
    "{{ group }} {{ group.attributes|items|list }}",
    "{{ group.size + 1 }} {{ group.role|default('none') }}",
    "{% for name, value in group.attributes|items %}{{ name }}={{ value }};{% endfor %}",
    "{{ node }} {{ node.role == 'standby' }}",
    "{% for peer in peers %}{{ peer }}\n{% else %}alone{% endfor %}",
    "{{ peers|map(attribute='name')|join(',') }} {{ peers|length }}",
    "{{ storage }} {{ storage is none }}",
    "{{ storage.size_bytes }}",
    "{{ storage.path }}",
    "{{ secrets }} {{ secrets|length }}",
    "{{ secrets.key }}",
    "{{ infrastructure }}",
    "{{ infrastructure[0].endpoint.port }}",
    "{{ platform }} {{ platform|tojson(indent=2) }}",
    "{{ request_id }} {{ bootstrap is none }} {{ options }}",
    "{{ addon is defined }}",
    "{{ addon }}",
    "{{ debug() }}",
    "{{ nothing }}",
    "{{ 1 // 0 }}",
    "{{ refuse('not ' ~ cluster.id) }}",
    "{% macro m(a) %}<{{ a }}>{% endmacro %}{{ m(node.name) }}",
    "{% set ns = namespace(x=0) %}{% for i in range(5) %}{% set ns.x = ns.x + i %}{% endfor %}{{ ns.x }}",
    "{% include 'other' %}",
    "{{ 'ä€𝄞' }}\u{0}\r\n",
    "{% for %}",
    "{{ 1 +",
    "text",
    "\n",
];

fn value() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<u64>().prop_map(Value::from),
        any::<f64>().prop_map(|it| json!(it)),
        "\\PC{0,8}".prop_map(Value::from),
    ];
    leaf.prop_recursive(3, 12, 4, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            prop::collection::vec(("\\PC{0,4}", inner), 0..4)
                .prop_map(|all| Value::Object(all.into_iter().collect())),
        ]
    })
}

fn object() -> impl Strategy<Value = Value> {
    prop::collection::vec(("[a-z]{1,4}", value()), 0..5)
        .prop_map(|all| Value::Object(all.into_iter().collect()))
}

fn words() -> impl Strategy<Value = Value> {
    prop::collection::btree_map("[a-z]{1,4}", "\\PC{0,8}", 0..4).prop_map(|all| json!(all))
}

fn role() -> impl Strategy<Value = Value> {
    prop_oneof![Just(json!("active")), Just(json!("standby"))]
}

fn storage() -> impl Strategy<Value = Value> {
    (any::<Option<u64>>(), prop::option::of("[a-z/]{1,8}"))
        .prop_map(|(size, path)| json!({"size_bytes": size, "class": "fast", "path": path}))
}

fn peer() -> impl Strategy<Value = Value> {
    ("[a-z]{1,4}", any::<u32>(), role(), words(), any::<bool>()).prop_map(
        |(name, ordinal, role, endpoints, ready)| {
            json!({"name": name, "group": "db", "ordinal": ordinal, "role": role,
                   "endpoints": endpoints, "ready": ready})
        },
    )
}

fn infrastructure() -> impl Strategy<Value = Value> {
    (any::<Option<u16>>(), object()).prop_map(|(port, properties)| {
        let endpoint = port.map(|port| json!({"host": "host", "port": port}));
        json!({"platform": "sim", "network_id": "n", "endpoint": endpoint, "properties": properties})
    })
}

/// A [`Context`], as JSON.
fn context() -> impl Strategy<Value = Value> {
    let groups = (object(), object(), any::<u32>(), words(), words());
    let rest = (
        prop::option::of(storage()),
        prop::collection::vec(peer(), 0..4),
        prop::collection::vec(infrastructure(), 0..3),
        prop::option::of("\\PC{0,8}"),
        prop::option::of(object()),
    );
    (groups, rest).prop_map(|(groups, rest)| {
        let (of_cluster, of_group, size, labels, secrets) = groups;
        let (storage, peers, infrastructure, bootstrap, addon) = rest;
        json!({
            "cluster": {"id": "orders", "store": "redis", "version": "7", "attributes": of_cluster, "labels": labels},
            "group": {"path": "db", "size": size, "attributes": of_group},
            "peers": peers, "storage": storage, "secrets": secrets, "request_id": "r-1",
            "bootstrap": bootstrap, "infrastructure": infrastructure, "addon": addon,
        })
    })
}

/// A [`NodeScope`], as JSON.
fn own() -> impl Strategy<Value = Value> {
    (role(), any::<u32>(), object(), prop::option::of(storage())).prop_map(
        |(role, ordinal, platform, storage)| {
            json!({"node": {"id": format!("db-{ordinal}-x"), "name": "db", "ordinal": ordinal, "role": role},
                   "platform": platform, "storage": storage})
        },
    )
}

#[test]
fn a_text_is_there_what_it_is_in_this_process_and_so_is_what_is_wrong_with_it() {
    let worker = std::cell::RefCell::new(Worker::start());
    let pieces = prop::collection::vec(prop::sample::select(PIECES), 1..4);
    let mut runner = proptest::test_runner::TestRunner::default();
    runner
        .run(&(pieces, context(), own()), |(pieces, context, own)| {
            let context: Context = serde_json::from_value(context).unwrap();
            let own: NodeScope = serde_json::from_value(own).unwrap();
            let alone = pieces.iter().map(ToString::to_string);
            for source in alone.chain([pieces.concat()]) {
                let here = here(&source, &context, &own);
                let there = worker.borrow_mut().render(&source, &context, &own);
                prop_assert_eq!(told(&there), told(&here), "{}", source);
            }
            Ok(())
        })
        .unwrap();
}
