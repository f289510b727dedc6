//! Selection, rendering and rejection by catalogues.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::{collections::BTreeMap, fs, path::Path};

use drover_core::Reason;
use drover_templates::{
    Catalogue, ClusterContext, Context, EmbeddedFile, ManagementPolicy, Matcher, NodeContext, Port,
    Probe, Query, Reload, Scope, render_text,
};
use serde::Deserialize;
use serde_json::{Map, Value, json};

const INDEX: &str = r#"
default: {template: agent.yaml}
stores:
  - store: redis
    versions:
      - version: ^7
        matchers: {tier: [hot, warm]}
        template: hot.yaml
        options: {appendonly: true}
        ports: [client]
        health: {tcp: {port: client}, interval: 5s, failureThreshold: 2}
        managementPolicy: OrderedReady
        lifecycle:
          preStop: {exec: [redis-cli, shutdown], timeout: 500ms}
          soleWriter: {allow: {exec: [alone], timeout: 10s}, revoke: {exec: [together]}, standbysAttribute: copies}
      - {version: ">=6, <8", template: plain.yaml}
  - store: etcd
    versions:
      - {version: 3.5, matchers: {replicas: 3}, template: plain.yaml}
addons:
  - {name: haproxy, template: addon.yaml}
"#;

fn file(name: &'static str, content: &'static str) -> EmbeddedFile {
    EmbeddedFile { name, content }
}

fn catalogue() -> Catalogue {
    Catalogue::embedded(&[
        file("index.yaml", INDEX),
        file("agent.yaml", "agent of {{ node.id }}"),
        file("hot.yaml", "hot {{ options.appendonly }}"),
        file("plain.yaml", "plain"),
        file("addon.yaml", "addon"),
    ])
    .unwrap()
}

fn attributes(value: &Value) -> Map<String, Value> {
    value.as_object().unwrap().clone()
}

fn chosen(catalogue: &Catalogue, store: &str, version: &str, with: &Value) -> String {
    let attributes = attributes(with);
    match catalogue.select(Query {
        store,
        version,
        attributes: &attributes,
    }) {
        Ok(selected) => selected.entry().template.clone(),
        Err(error) => format!("{:?}", error.reason()),
    }
}

#[test]
fn the_first_entry_that_fits_wins() {
    let catalogue = catalogue();
    for (store, version, with, expected) in [
        ("", "", json!({}), "agent.yaml"),
        ("", "16", json!({}), "agent.yaml"),
        ("redis", "7.2", json!({"tier": "hot"}), "hot.yaml"),
        (
            "redis",
            "7.2",
            json!({"tier": "warm", "other": 1}),
            "hot.yaml",
        ),
        ("redis", "7.2", json!({"tier": "cold"}), "plain.yaml"),
        ("redis", "7.2", json!({}), "plain.yaml"),
        ("redis", "6", json!({"tier": "hot"}), "plain.yaml"),
        ("redis", "", json!({"tier": "hot"}), "hot.yaml"),
        ("redis", "8", json!({}), "TemplateNotFound"),
        ("etcd", "v3.5.14", json!({"replicas": 3.0}), "plain.yaml"),
        (
            "etcd",
            "3.5.14",
            json!({"replicas": "3"}),
            "TemplateNotFound",
        ),
        ("mysql", "8", json!({}), "TemplateNotFound"),
    ] {
        assert_eq!(
            chosen(&catalogue, store, version, &with),
            expected,
            "{store} {version} {with}"
        );
    }
}

#[test]
fn no_match_names_what_was_asked_and_what_there_is_but_no_attribute_values() {
    let attributes = attributes(&json!({"password": "hunter2"}));
    let query = Query {
        store: "redis",
        version: "9",
        attributes: &attributes,
    };
    let error = catalogue().select(query).unwrap_err();
    assert_eq!(error.reason(), Reason::TemplateNotFound);
    for part in [
        "`redis`",
        "`9`",
        "password",
        "redis ^7 with tier=[\"hot\",\"warm\"]",
        "redis >=6, <8",
        "etcd 3.5",
    ] {
        assert!(error.message().contains(part), "{part} in {error}");
    }
    assert!(!error.message().contains("hunter2"));
    assert_eq!(
        catalogue().select_addon("nginx").unwrap_err().reason(),
        Reason::TemplateNotFound
    );
    assert!(catalogue().select_addon("haproxy").is_ok());
}

#[test]
fn a_slip_in_the_name_of_a_store_or_an_addon_is_recognised() {
    let attributes = Map::new();
    let of = |store| {
        let query = Query {
            store,
            version: "9",
            attributes: &attributes,
        };
        catalogue().select(query).unwrap_err().message().to_owned()
    };
    let said = of("rediss");
    assert!(said.ends_with("; did you mean `redis`?"), "{said}");
    for store in ["mysql", "redis", "x"] {
        let said = of(store);
        assert!(!said.contains("did you mean"), "{said}");
    }
    let error = catalogue().select_addon("haproxi").unwrap_err();
    assert!(
        error.message().ends_with("; did you mean `haproxy`?"),
        "{error}"
    );
}

#[test]
fn entries_are_listed_with_everything_that_they_suggest() {
    let entries = catalogue().entries();
    let names = entries
        .iter()
        .map(|entry| entry.template.as_str())
        .collect::<Vec<_>>();
    assert_eq!(
        names,
        [
            "agent.yaml",
            "hot.yaml",
            "plain.yaml",
            "plain.yaml",
            "haproxy"
        ]
    );
    let hot = &entries[1];
    assert_eq!(hot.ports, ["client"]);
    assert_eq!(
        hot.matchers["tier"],
        Matcher::OneOf(vec![json!("hot"), json!("warm")])
    );
    assert_eq!(hot.management_policy, Some(ManagementPolicy::OrderedReady));
    let health = hot.health.clone().unwrap();
    assert_eq!(
        health.probe,
        Some(Probe::Tcp {
            port: Some(Port::Name("client".to_owned()))
        })
    );
    assert_eq!(
        (
            health.interval.unwrap().as_secs(),
            health.failure_threshold,
            health.timeout
        ),
        (5, Some(2), None)
    );
    assert_eq!(
        hot.lifecycle
            .clone()
            .unwrap()
            .pre_stop
            .unwrap()
            .timeout
            .unwrap()
            .as_millis(),
        500
    );
    let writer = hot.lifecycle.clone().unwrap().sole_writer.unwrap();
    let allow = writer.allow.unwrap();
    assert_eq!(allow.exec, ["alone"]);
    assert_eq!(allow.timeout.unwrap().as_secs(), 10);
    assert_eq!(writer.revoke.exec, ["together"]);
    assert_eq!(writer.standbys_attribute, "copies");
    assert!(entries[4].addon);
}

#[test]
fn a_permission_to_acknowledge_alone_always_has_an_end() {
    let read = |writer: &str| {
        let index =
            format!("default: {{template: agent.yaml, lifecycle: {{soleWriter: {writer}}}}}");
        let index: &'static str = Box::leak(index.into_boxed_str());
        Catalogue::embedded(&[file("index.yaml", index), file("agent.yaml", "x")])
    };
    let entries = read("{revoke: {exec: [together]}}").unwrap().entries();
    let least = entries[0].lifecycle.clone().unwrap().sole_writer.unwrap();
    assert_eq!(least.allow, None);
    assert_eq!(least.standbys_attribute, "");
    for (writer, what) in [
        ("{allow: {exec: [alone]}}", "revoke"),
        ("{revoke: {exec: [together]}, standbys: 2}", "standbys"),
        ("{revoke: {exec: [together], timeout: soon}}", "500ms"),
    ] {
        let error = read(writer).expect_err(writer);
        assert_eq!(error.reason(), Reason::Invalid);
        assert!(error.message().contains(what), "{what} in {error}");
    }
}

#[test]
fn a_wrong_index_is_refused_with_its_place() {
    for (index, place, what) in [
        ("default: {template: agent.yaml, sise: 1}", ":1:", "sise"),
        (
            "stores:\n  - store: redis\n    versions:\n      - {version: newest, template: agent.yaml}",
            ":4:",
            "write ^16",
        ),
        (
            "default: {template: other.yaml}",
            ":1:21",
            "there are: agent.yaml",
        ),
        (
            "default: {template: agent.yaml, health: {tcp: {port: client}}}",
            ":1:",
            "`client` is not one of",
        ),
        (
            "default: {template: agent.yaml, health: {tcp: {}, http: {}}}",
            ":1:",
            "at most one",
        ),
        (
            "default: {template: agent.yaml, health: {interval: soon}}",
            ":1:",
            "500ms",
        ),
        (
            "default: {template: agent.yaml, managementPolicy: Whatever}",
            ":1:",
            "OrderedReady",
        ),
        (
            "addons: [{name: a, template: agent.yaml}, {name: a, template: agent.yaml}]",
            ":1:",
            "a name of its own",
        ),
    ] {
        let index: &'static str = Box::leak(index.to_owned().into_boxed_str());
        let files = [file("index.yaml", index), file("agent.yaml", "x")];
        let error = Catalogue::embedded(&files).expect_err(index);
        assert_eq!(error.reason(), Reason::Invalid);
        assert!(
            error.message().contains(&format!("index.yaml{place}")),
            "{place} in {error}"
        );
        assert!(error.message().contains(what), "{what} in {error}");
    }
    assert!(
        Catalogue::embedded(&[file("agent.yaml", "x")])
            .unwrap_err()
            .message()
            .contains("index.yaml")
    );
}

#[test]
fn a_template_that_does_not_parse_is_refused_when_the_catalogue_is_opened() {
    let files = [
        file("index.yaml", "default: {template: agent.yaml}"),
        file("agent.yaml", "a\n  {{ node. }}"),
    ];
    let error = Catalogue::embedded(&files).unwrap_err();
    assert!(
        error
            .message()
            .starts_with("template built-in/agent.yaml, line 2, column"),
        "{error}"
    );
}

fn context() -> Scope {
    Scope::from(Context {
        cluster: ClusterContext {
            id: "orders".to_owned(),
            attributes: attributes(&json!({"password": "hunter2"})),
            ..ClusterContext::default()
        },
        node: NodeContext {
            id: "db-1-abcde".to_owned(),
            ..NodeContext::default()
        },
        secrets: BTreeMap::from([("key".to_owned(), "s3cret".to_owned())]),
        ..Context::default()
    })
}

#[test]
fn an_undefined_name_is_refused_with_its_place_and_without_any_value() {
    let source = "password: {{ cluster.attributes.password }}\n  x: {{ cluster.attributes.size }}";
    let error = render_text("user-data", source, &context()).unwrap_err();
    assert_eq!(error.reason(), Reason::Precondition);
    assert!(
        error
            .message()
            .starts_with("template user-data, line 2, column 16: "),
        "{error}"
    );
    assert!(!format!("{error:?} {:?}", error.metadata()).contains("hunter2"));
    for source in [
        "{{ nothing }}",
        "{% if nothing %}{% endif %}",
        "{% for x in nothing %}{% endfor %}",
        "{{ a.b }}",
    ] {
        assert!(render_text("t", source, &context()).is_err(), "{source}");
    }
    let fine = "{{ cluster.attributes.size | default(3) }}{% if bootstrap %}b{% endif %}{{ 'n' if storage is none else 's' }}";
    assert_eq!(render_text("t", fine, &context()).unwrap().expose(), "3n");
}

#[test]
fn a_template_refuses_in_its_own_words() {
    let source = "a: 1\n{% if not bootstrap %}{{ refuse('a password is needed') }}{% endif %}";
    let error = render_text("db.yaml", source, &context()).unwrap_err();
    assert_eq!(error.reason(), Reason::Precondition);
    assert_eq!(
        error.message(),
        "template db.yaml, line 2, column 26: a password is needed"
    );
}

#[test]
fn errors_of_values_do_not_repeat_them() {
    for source in [
        "{{ secrets.key | int }}",
        "{{ secrets.key + 1 }}",
        "{{ secrets.key.unknown_method() }}",
        "{{ secrets.key | round }}",
        "{% include secrets.key %}",
        "{{ secrets[secrets.key] }}",
        "{{ secrets.key | fromjson }}",
        "{{ range(secrets.key) }}",
    ] {
        let error = render_text("t", source, &context()).expect_err(source);
        assert!(
            !format!("{error:?}{:?}", error.metadata()).contains("s3cret"),
            "{source}: {error}"
        );
    }
}

#[test]
fn an_endless_template_and_an_endless_output_end() {
    let endless = "{% macro again() %}{% for i in range(10000) %}{% for j in range(10000) %}{% endfor %}{% endfor %}{% endmacro %}{{ again() }}";
    let error = render_text("t", endless, &context()).unwrap_err();
    assert!(error.message().contains("too many steps"), "{error}");
    let large = "{% set s %}{% for i in range(9999) %}0123456789abcdef{% endfor %}{% endset %}{% for i in range(60) %}{{ s }}{% endfor %}";
    let error = render_text("t", large, &context()).unwrap_err();
    assert!(
        error.message().contains("more than 4194304 bytes"),
        "{error}"
    );
}

#[test]
fn nothing_is_escaped_and_tojson_quotes() {
    let text = render_text(
        "t.html",
        "{{ '<a> & \"b\"' }} {{ 'a: \"b\"\n' | tojson }}",
        &context(),
    )
    .unwrap();
    assert_eq!(text.expose(), "<a> & \"b\" \"a: \\\"b\\\"\\n\"");
    assert!(!format!("{text:?}").contains("<a>"));
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Document {
    name: String,
    size: u8,
}

#[test]
fn what_is_rendered_is_read_strictly_and_never_repeated() {
    let read = |text: &str| {
        render_text("t", text, &context())
            .unwrap()
            .parse::<Document>()
    };
    let document = read("name: a\nsize: 3").unwrap();
    assert_eq!((document.name.as_str(), document.size), ("a", 3));
    for (text, line, what) in [
        (
            "name: a\nsize: 3\n{{ secrets.key }}: 1",
            3,
            "expected one of name, size",
        ),
        ("name: a\nsize: {{ secrets.key }}", 2, "expected"),
        ("name: a", 1, "missing field size"),
        (
            "name: a\nsize: 1\nname: {{ secrets.key }}",
            3,
            "a key twice",
        ),
        ("size: 1\nname: \"{{ secrets.key }}", 2, "not valid YAML"),
    ] {
        let error = read(text).expect_err(text);
        assert_eq!(error.reason(), Reason::Precondition);
        assert!(
            error.message().contains(&format!("line {line}")),
            "{text}: {error}"
        );
        assert!(error.message().contains(what), "{text}: {error}");
        assert!(!format!("{error:?}").contains("s3cret"), "{error}");
    }
    let many = render_text("t", "name: a\nsize: 1\n---\nname: b\nsize: 2\n", &context()).unwrap();
    assert_eq!(many.parse_all::<Document>().unwrap().len(), 2);
}

fn write(directory: &Path, name: &str, content: &str) {
    fs::write(directory.join(name), content).unwrap();
}

#[test]
fn a_directory_goes_before_what_is_built_in_and_is_read_again_when_it_changes() {
    let directory = tempfile::tempdir().unwrap();
    let directory = directory.path();
    write(
        directory,
        "index.yaml",
        "stores: [{store: redis, versions: [{version: ^7, template: mine.yaml}]}]",
    );
    write(directory, "mine.yaml", "{% include 'part.j2' %}");
    write(directory, "part.j2", "mine {{ node.id }}");
    write(directory, "README.md", "{{ this is no template");
    let files = [
        file(
            "index.yaml",
            "default: {template: d.yaml}\nstores: [{store: redis, versions: [{version: '*', template: d.yaml}]}]",
        ),
        file("d.yaml", "built in"),
    ];
    let catalogue = Catalogue::open(&files, Some(directory)).unwrap();
    let select = |version| {
        let attributes = Map::new();
        catalogue
            .select(Query {
                store: "redis",
                version,
                attributes: &attributes,
            })
            .unwrap()
    };
    assert_eq!(
        select("7").render(&context()).unwrap().expose(),
        "mine db-1-abcde"
    );
    assert_eq!(select("6").render(&context()).unwrap().expose(), "built in");
    assert_eq!(chosen(&catalogue, "", "", &json!({})), "d.yaml");
    assert_eq!(catalogue.reload_if_changed(), Reload::Unchanged);

    let before = select("7");
    write(directory, "part.j2", "{{ broken");
    let Reload::Refused(warning) = catalogue.reload_if_changed() else {
        panic!("taken over")
    };
    assert!(
        warning.contains("part.j2") && warning.contains("last good one"),
        "{warning}"
    );
    assert_eq!(catalogue.warning(), Some(warning));
    assert_eq!(catalogue.reload_if_changed(), Reload::Unchanged);
    assert_eq!(
        select("7").render(&context()).unwrap().expose(),
        "mine db-1-abcde"
    );

    write(directory, "part.j2", "changed");
    assert_eq!(catalogue.reload_if_changed(), Reload::Reloaded);
    assert_eq!(catalogue.warning(), None);
    assert_eq!(select("7").render(&context()).unwrap().expose(), "changed");
    assert_eq!(
        before.render(&context()).unwrap().expose(),
        "mine db-1-abcde"
    );

    fs::remove_file(directory.join("index.yaml")).unwrap();
    assert!(matches!(catalogue.reload_if_changed(), Reload::Refused(_)));
    assert_eq!(select("7").render(&context()).unwrap().expose(), "changed");
}

#[test]
fn an_error_in_an_included_file_names_that_file() {
    let files = [
        file("index.yaml", "default: {template: a.yaml}"),
        file("a.yaml", "{% include 'b.yaml' %}"),
        file("b.yaml", "\n{{ missing }}"),
    ];
    let catalogue = Catalogue::embedded(&files).unwrap();
    let attributes = Map::new();
    let selected = catalogue
        .select(Query {
            store: "",
            version: "",
            attributes: &attributes,
        })
        .unwrap();
    let error = selected.render(&context()).unwrap_err();
    assert!(
        error.message().contains("b.yaml") && error.message().contains("line 2, column"),
        "{error}"
    );
}

#[test]
fn a_text_is_compressed_for_user_data_and_is_the_same_each_time() {
    use base64::{Engine as _, engine::general_purpose::STANDARD};
    use std::io::Read as _;

    let plain = "it's € ".repeat(400);
    let source = format!("{{% set text %}}{plain}{{% endset %}}{{{{ text | gzip_b64encode }}}}");
    let source = source.as_str();
    let packed = render_text("t", source, &context()).unwrap();
    let again = render_text("t", source, &context()).unwrap();
    assert_eq!(packed.expose(), again.expose());
    assert!(packed.expose().len() < 200, "{}", packed.expose().len());
    let bytes = STANDARD.decode(packed.expose()).unwrap();
    let mut text = String::new();
    flate2::read::GzDecoder::new(bytes.as_slice())
        .read_to_string(&mut text)
        .unwrap();
    assert_eq!(text, plain);
}
