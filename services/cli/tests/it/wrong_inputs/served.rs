//! What only a server with its platforms can know.

use std::fs;

use super::{Case, case, check, group, named, refusal, spec, values::SIZE};
use crate::dev::Dev;

fn served() -> Vec<Case> {
    let store = |store: &str, fields: &str| {
        spec(&format!(
            "store: {{{store}}}\n  platform: local\n  groups:\n    db: {{{fields}}}"
        ))
    };
    vec![
        case(
            group("platform: locl"),
            "locl",
            "spec.groups.db.platform",
            &["no platform `locl`, did you mean `local`?"],
        ),
        case(
            group("properties: {foo: 1}"),
            "1}",
            "spec.groups.db.properties.foo",
            &["no such property", "env"],
        ),
        case(
            store("software: redi", "size: 1"),
            "redi",
            "spec.store.software",
            &["no template for store `redi`", "redis"],
        ),
        case(
            store("software: redis, version: \"99\"", "size: 1"),
            "\"99\"",
            "spec.store.version",
            &["takes whichever version is there"],
        ),
        case(
            store("software: redis", "size: 2, standby: 1"),
            "2,",
            SIZE,
            &["at most 1 active node in a group with standby nodes"],
        ),
        case(
            store("software: postgresql", "size: 2"),
            "2}",
            SIZE,
            &["at most 1 active node", "`standby`"],
        ),
        case(
            store("software: etcd", "size: 3, standby: 1"),
            "1}",
            "spec.groups.db.standby",
            &["has no standby nodes", "raise `size`"],
        ),
        case(
            store("software: postgresql, version: \"9\"", "size: 1"),
            "\"9\"",
            "spec.store.version",
            &["install the package postgresql-9"],
        ),
        case(
            group("nodeClass: huge"),
            "huge",
            "spec.groups.db.nodeClass",
            &["knows no node classes"],
        ),
        case(
            group("placement: {selector: {matchLabels: {a: b}}}"),
            "selector",
            "spec.groups.db.placement.selector",
            &["cannot choose machines by their labels"],
        ),
        case(
            group("placement: {failureDomains: [z]}"),
            "placement",
            "spec.groups.db.placement",
            &["has no failure domains"],
        ),
        case(
            spec(
                "platform: local\n  groups: {db: {}}\n  addons: [{name: api, type: LoadBalancer, platform: local, targets: [db], port: 80, targetPort: 8080}]",
            ),
            "local, targets",
            "spec.addons[0].platform",
            &["platform local cannot make addons"],
        ),
        case(
            spec(
                "platform: local\n  groups: {db: {}}\n  addons: [{name: api, type: Template, platform: locl, template: x}]",
            ),
            "locl",
            "spec.addons[0].platform",
            &["no platform `locl`, did you mean `local`?"],
        ),
        case(
            group("platform: moon"),
            "moon",
            "spec.groups.db.platform",
            &[
                "no platform `moon` (registered: local, simulated)",
                "docs/tasks/platform.md",
                "drover dev --simulate moon",
            ],
        ),
        case(
            group("bootstrap: {secretKeyRef: {name: nope, key: k}}"),
            "nope",
            "spec.groups.db.bootstrap.secretKeyRef.name",
            &["there is no secret \"nope\""],
        ),
        case(
            group("secrets: [{name: pw, secretKeyRef: {name: nope, key: k}}]"),
            "nope",
            "spec.groups.db.secrets[0].secretKeyRef.name",
            &["there is no secret \"nope\""],
        ),
        case(
            "apiVersion: drover.dev/v1\nkind: Platform\nmetadata: {name: p}\nspec: {endpoint: \"http://127.0.0.1:1\", tokenSecret: nope}\n",
            "nope",
            "spec.tokenSecret",
            &["there is no secret \"nope\""],
        ),
        case(
            format!(
                "{}---\n{}---\n{}",
                "apiVersion: drover.dev/v1\nkind: Secret\nmetadata: {name: s}\nstringData: {a: x}\n",
                named("good"),
                group("properties: {foo: 777}"),
            ),
            "777",
            "spec.groups.db.properties.foo",
            &["no such property"],
        ),
    ]
}

/// Names of all that there is of a kind.
fn names(dev: &Dev, kind: &str) -> Vec<String> {
    let answer = dev.json(&["get", kind]);
    let all = answer[kind].as_array().unwrap().iter();
    all.map(|one| one["name"].as_str().unwrap().to_owned())
        .collect()
}

#[test]
fn what_a_server_knows_is_refused_by_it_and_nothing_is_applied() {
    let dev = Dev::start(&[]);
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("x.yaml");
    let apply = |text: &str| -> String {
        fs::write(&path, text).unwrap();
        let output = dev.asks(&["apply", "-f", path.to_str().unwrap()]);
        refusal(&output, text).replace(path.to_str().unwrap(), "x.yaml")
    };
    for case in served() {
        check(&apply(&case.text), &case);
    }
    assert_eq!(names(&dev, "clusters"), [""; 0]);
    assert_eq!(names(&dev, "secrets"), [""; 0]);
    assert_eq!(names(&dev, "platforms"), ["local", "simulated"]);
    dev.stop();
}
