//! Mutated texts of users: manifests, user data, JSON documents.

use fastrand::Rng;
use serde_json::{Value, json};

/// Tokens with a meaning in YAML, JSON or templates.
const TOKENS: [&str; 68] = [
    "\n",
    "\n---\n",
    "...",
    "\t",
    "  ",
    ": ",
    "- ",
    "? ",
    "#",
    "&a ",
    "*a",
    "*a ",
    "<<: *a",
    "!!binary ",
    "!!str ",
    "!x ",
    "|",
    "|+9\n",
    ">-\n",
    "\"",
    "'",
    "\\",
    "\\u0000",
    "\\ud800",
    "{",
    "}",
    "[",
    "]",
    ",",
    "~",
    "null",
    "true",
    "no",
    "0x10",
    "1e999",
    "-0",
    "9223372036854775808",
    ".inf",
    "\u{0}",
    "\u{feff}",
    "\u{202e}",
    "\u{1f4a9}",
    "%TAG ! x\n",
    "@",
    "`",
    "kind: Cluster",
    "kind: Secret",
    "apiVersion: drover.dev/v1",
    "spec:",
    "groups:",
    "size: 1",
    "size: 4294967296",
    "stringData:",
    "userData:",
    "platform: sim",
    "{{",
    "}}",
    "{%",
    "%}",
    "{#",
    "#}",
    "{{ secrets.p }}",
    "{% for x in range(9) %}",
    "{% endfor %}",
    "{% endif %}",
    "loop",
    "| tojson",
    "${x}",
];

/// Fragments of templates; most combinations of them are errors.
const PARTS: [&str; 62] = [
    "{{ secrets.p }}",
    "{{ refuse(secrets.p) }}",
    "{{ cluster[secrets.p].x }}",
    "{{ node.id }}",
    "{{ cluster }}",
    "{{ group | tojson }}",
    "{{ secrets | tojson }}",
    "{{ secrets.p | upper }}",
    "{{ secrets.p | list | join('-') }}",
    "{{ secrets.p[::-1] }}",
    "{{ refuse(secrets.p | reverse) }}",
    "{{ secrets.p | int }}",
    "{{ [1][secrets.p] }}",
    "{{ secrets.p() }}",
    "{{ secrets.p.x.y }}",
    "{% include secrets.p %}",
    "{% import secrets.p as x %}",
    "{% extends secrets.p %}",
    "{{ ['a'] | map(secrets.p) | list }}",
    "{{ ['a'] | select(secrets.p) | list }}",
    "{{ 'a' is filter(secrets.p) }}",
    "{{ secrets.p ~ 1 // 0 }}",
    "{{ 1 // 0 }}",
    "{{ 1 % 0 }}",
    "{{ 2 ** 9999 }}",
    "{{ -9223372036854775808 // -1 }}",
    "{{ 9223372036854775807 + 1 }}",
    "{{ 'x' * 100000000000 }}",
    "{{ 'a' | indent(99999999999) }}",
    "{{ range(100000000) | list }}",
    "{% for x in range(99999) %}{{ x }}{% endfor %}",
    "{% for x in secrets.p %}{{ x }}",
    "{% endfor %}",
    "{% if secrets.p %}",
    "{% else %}",
    "{% elif 1 %}",
    "{% endif %}",
    "{% set x = secrets.p %}",
    "{{ x }}",
    "{% set ns = namespace(a=1) %}",
    "{% set ns.a = ns.a ~ ns.a %}",
    "{% macro m(a) %}",
    "{% endmacro %}",
    "{{ m(1) }}",
    "{% macro r() %}{{ r() }}{% endmacro %}{{ r() }}",
    "{% block b %}",
    "{% endblock %}",
    "{% raw %}",
    "{% endraw %}",
    "{% call m() %}",
    "{% filter upper %}",
    "{% endfilter %}",
    "{% with a=1 %}",
    "{% endwith %}",
    "{# ",
    " #}",
    "{{ debug() }}",
    "{{ '%99999999d' | format(1) }}",
    "{{ dict(a=1)|items|list|last|first }}",
    "{{ nothing }}",
    "{{ (((((((((1))))))))) }}",
    "#!/bin/sh\necho 'a b'\n",
];

fn pick<'a, T>(rng: &mut Rng, of: &'a [T]) -> &'a T {
    &of[rng.usize(0..of.len())]
}

/// A random position on a character boundary.
fn place(rng: &mut Rng, text: &str) -> usize {
    text.floor_char_boundary(rng.usize(0..=text.len()))
}

/// Mutates a text in a few places. `others` are texts that may be inserted.
pub(crate) fn change(rng: &mut Rng, text: &mut String, others: &[String]) {
    for _ in 0..rng.u32(1..5) {
        let at = place(rng, text);
        match rng.u32(0..16) {
            0 => text.truncate(at),
            1..3 => {
                let to = text.ceil_char_boundary((at + rng.usize(0..20)).min(text.len()));
                text.replace_range(at..to, "");
            }
            3 => text.insert_str(
                at,
                &pick(rng, &["[", "{", "- ", "((", "a: {", "{{", "!"]).repeat(rng.usize(0..3000)),
            ),
            4 => {
                let to = text.ceil_char_boundary((at + rng.usize(0..200)).min(text.len()));
                let again = text[at..to].repeat(rng.usize(1..4));
                text.insert_str(at, &again);
            }
            5 if !others.is_empty() => {
                let other = pick(rng, others);
                let (from, to) = (place(rng, other), place(rng, other));
                text.insert_str(at, &other[from.min(to)..from.max(to)]);
            }
            6 => {
                let random: String = (0..rng.usize(0..20)).map(|_| rng.char(..)).collect();
                text.insert_str(at, &random);
            }
            7..9 => {
                let mut lines: Vec<&str> = text.split('\n').collect();
                let (from, to) = (rng.usize(0..lines.len()), rng.usize(0..lines.len()));
                match rng.u32(0..3) {
                    0 => lines.swap(from, to),
                    1 => lines.insert(to, lines[from]),
                    _ => {
                        lines.remove(from);
                    }
                }
                *text = lines.join("\n");
            }
            9 => text.insert_str(at, &bomb(rng)),
            10 => {
                let word = format!(" {} ", "9".repeat(rng.usize(0..400)));
                text.insert_str(at, &word);
            }
            _ => text.insert_str(at, TOKENS[rng.usize(0..TOKENS.len())]),
        }
    }
    // Texts beyond the limits of all parsers are not of interest here.
    text.truncate(text.floor_char_boundary(200_000));
}

/// Nested aliases of YAML.
fn bomb(rng: &mut Rng) -> String {
    let levels = rng.usize(1..40);
    (0..levels).fold("\nz0: &z0 [x, x, x, x]\n".to_owned(), |text, level| {
        let before = format!("*z{level}, ").repeat(4);
        format!("{text}z{0}: &z{0} [{before}]\n", level + 1)
    })
}

/// User data that is a template or resembles one.
pub(crate) fn template(rng: &mut Rng) -> String {
    let mut text: String = (0..rng.usize(0..8)).map(|_| *pick(rng, &PARTS)).collect();
    if rng.u32(0..3) == 0 {
        change(rng, &mut text, &[]);
    }
    text
}

/// Mutates a document at a random depth.
pub(crate) fn change_json(rng: &mut Rng, value: &mut Value) {
    let deeper = rng.u32(0..6) > 0;
    match value {
        Value::Object(fields) if deeper && !fields.is_empty() => {
            let key = fields
                .keys()
                .nth(rng.usize(0..fields.len()))
                .cloned()
                .unwrap_or_default();
            match rng.u32(0..12) {
                0 => {
                    fields.remove(&key);
                }
                1 => {
                    let other = anything(rng, 3);
                    fields.insert((*pick(rng, &TOKENS)).to_owned(), other);
                }
                _ => {
                    if let Some(inner) = fields.get_mut(&key) {
                        change_json(rng, inner);
                    }
                }
            }
        }
        Value::Array(items) if deeper && !items.is_empty() => {
            let at = rng.usize(0..items.len());
            change_json(rng, &mut items[at]);
        }
        other => *other = anything(rng, 3),
    }
}

fn anything(rng: &mut Rng, depth: u32) -> Value {
    match rng.u32(0..if depth == 0 { 6 } else { 9 }) {
        0 => Value::Null,
        1 => json!(rng.bool()),
        2 => json!(rng.i64(..)),
        3 => json!(rng.u64(0..70_000)),
        4 => json!(f64::from_bits(rng.u64(..))),
        5 => json!(pick(rng, &TOKENS)),
        6 => json!("x".repeat(rng.usize(0..3000))),
        7 => (0..rng.u32(0..4))
            .map(|_| anything(rng, depth - 1))
            .collect(),
        _ => {
            let fields = (0..rng.u32(0..4)).map(|_| {
                let key = (*pick(rng, &TOKENS)).to_owned();
                (key, anything(rng, depth - 1))
            });
            Value::Object(fields.collect())
        }
    }
}
