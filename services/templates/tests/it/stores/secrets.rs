//! Certificates, and users of applications.

use serde_json::{Value, json};

use super::{MACHINES, PODS, PROCESSES, Wanted, wanted};

/// What a pod asks its platform for, and the Secrets that it mounts for that.
fn secrets(of: &Wanted) -> (Value, Vec<String>) {
    let pod = of.in_pods("Pod");
    let asked = pod["metadata"]["annotations"]["drover.dev/secrets"].as_str();
    let volumes = pod["spec"]["volumes"].as_array().unwrap();
    let mounted = volumes.iter().filter_map(|volume| {
        let name = volume["secret"]["secretName"].as_str()?;
        (name != "secret").then(|| name.to_owned())
    });
    (
        serde_json::from_str(asked.unwrap()).unwrap(),
        mounted.collect(),
    )
}

#[test]
fn a_store_in_pods_asks_for_the_secrets_that_it_mounts() {
    let [tls, app] = ["orders-db-1f-tls", "orders-db-1f-app"];
    for (store, attributes, shows_tls, user, mounted) in [
        ("postgresql", json!({}), true, json!("app"), &[tls, app][..]),
        (
            "postgresql",
            json!({"tls": "off", "user": "shop"}),
            false,
            json!("shop"),
            &[app],
        ),
        (
            "postgresql",
            json!({"tls": false}),
            false,
            json!("app"),
            &[app],
        ),
        ("redis", json!({}), false, json!("app"), &[app]),
        (
            "redis",
            json!({"tls": true}),
            true,
            json!("app"),
            &[tls, app],
        ),
        ("etcd", json!({}), false, Value::Null, &[]),
        (
            "etcd",
            json!({"tls": "required"}),
            true,
            Value::Null,
            &[tls],
        ),
    ] {
        let (asked, found) = secrets(&wanted(store, attributes.clone()));
        assert_eq!(found, mounted, "{store} {attributes}");
        assert_eq!(asked["tls"], shows_tls, "{store} {attributes}");
        assert_eq!(asked["name"], "orders-db-1f");
        let application = &asked["application"];
        assert_eq!(application["user"], user, "{store} {attributes}");
        assert_eq!(application["secret"], "orders-db-app");
    }
    let open = wanted("redis", json!({"open": true, "tls": true})).open();
    let (asked, found) = secrets(&open);
    assert_eq!(found, [tls]);
    let application = &asked["application"];
    assert_eq!(
        application["user"],
        Value::Null,
        "nobody is asked who it is"
    );
    assert_eq!(application["scheme"], "rediss");
    // What it is asked with TLS it answers at another port.
    let ports = |tls: bool| {
        wanted("etcd", json!({"tls": tls}))
            .selected_by(PODS)
            .unwrap()
            .entry()
            .ports
            .clone()
    };
    assert_eq!(ports(true), ["client", "peer", "metrics"]);
    assert_eq!(ports(false), ["client", "peer"]);
}

#[test]
fn tls_is_refused_where_there_is_none_and_users_of_the_server_itself_everywhere() {
    for (store, folder, attributes, part) in [
        (
            "postgresql",
            PROCESSES,
            json!({"tls": "required"}),
            "has no TLS",
        ),
        (
            "postgresql",
            MACHINES,
            json!({"tls": "allowed"}),
            "has no TLS",
        ),
        ("redis", MACHINES, json!({"tls": true}), "has no TLS"),
        ("etcd", PROCESSES, json!({"tls": "required"}), "has no TLS"),
        (
            "redis",
            PODS,
            json!({"tls": "allowed"}),
            "`required`, `off`",
        ),
        (
            "postgresql",
            PODS,
            json!({"tls": "yes"}),
            "`required`, `allowed`, `off`",
        ),
        (
            "postgresql",
            PODS,
            json!({"user": "postgres"}),
            "the server itself",
        ),
        (
            "postgresql",
            PODS,
            json!({"user": "pg_x"}),
            "the server itself",
        ),
        (
            "postgresql",
            PODS,
            json!({"database": "template1"}),
            "the server itself",
        ),
        (
            "postgresql",
            PODS,
            json!({"user": "a:b"}),
            "letters, digits",
        ),
        ("redis", PODS, json!({"user": "default"}), "user data"),
        (
            "postgresql",
            PODS,
            json!({"settings": {"ssl_cert_file": "x"}}),
            "`tls`",
        ),
        (
            "redis",
            PODS,
            json!({"tls": true, "config": {"tls-port": 1}}),
            "`tls`",
        ),
        (
            "etcd",
            PODS,
            json!({"access_mode": "ReadWriteMany"}),
            "`access_mode`",
        ),
    ] {
        let refusal = wanted(store, attributes.clone()).refusal_by(folder);
        assert!(refusal.contains(part), "{store} {attributes}: {refusal}");
    }
    let stateful = json!({"workload": "StatefulSet", "open": true, "tls": true});
    let refusal = wanted("redis", stateful).open().refusal_by(PODS);
    assert!(refusal.contains("has no TLS"), "{refusal}");
    for off in [json!("off"), json!(false)] {
        wanted("redis", json!({"tls": off}))
            .rendered_by(PROCESSES)
            .unwrap();
    }
}
