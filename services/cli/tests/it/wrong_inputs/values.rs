//! Values of fields.

use super::{Case, case, group};

pub(super) const SIZE: &str = "spec.groups.db.size";
const NUMBER: &str = "expected a whole number, 0 to 10000";

pub(super) fn values() -> Vec<Case> {
    let duration = "spec.groups.db.expireAfter";
    let surge = "spec.groups.db.update.maxSurge";
    let storage = "spec.groups.db.storage.size";
    let long = "9".repeat(26);
    vec![
        case(
            group("size: two"),
            "two",
            SIZE,
            &["wrong value: `two`", NUMBER],
        ),
        case(
            group("size: \"2\""),
            "\"2\"",
            SIZE,
            &[NUMBER, "without quotes: 2"],
        ),
        case(group("size: 2.5"), "2.5", SIZE, &["the number 2.5", NUMBER]),
        case(group("size: -1"), "-1", SIZE, &["the number -1", NUMBER]),
        case(group("size: 10001"), "10001", SIZE, &[NUMBER]),
        case(group(&format!("size: {long}")), "9999", SIZE, &[NUMBER]),
        case(group("size: 1e3"), "1e3", SIZE, &["in digits: 1000"]),
        case(
            group("size: null"),
            "null",
            SIZE,
            &["wrong value: null", NUMBER],
        ),
        case(group("size: [2]"), "[2]", SIZE, &["a list", NUMBER]),
        case(
            group("size: 010"),
            "010",
            SIZE,
            &["without leading zeros: 10"],
        ),
        case(
            group("sise: 2"),
            "sise",
            "spec.groups.db.sise",
            &["did you mean `size`?"],
        ),
        case(
            group("standby: 10000"),
            "groups",
            "spec.groups",
            &["10001 nodes", "at most 10000"],
        ),
        case(
            group("expireAfter: 90"),
            "90",
            duration,
            &["with its unit: 90s"],
        ),
        case(
            group("expireAfter: \"90\""),
            "\"90\"",
            duration,
            &["with its unit: 90s"],
        ),
        case(
            group("expireAfter: 5 minutes"),
            "5 minutes",
            duration,
            &["like 30s, 5m or 1h30m"],
        ),
        case(
            group("expireAfter: -5s"),
            "-5s",
            duration,
            &["like 30s, 5m or 1h30m"],
        ),
        case(group("expireAfter: 5M"), "5M", duration, &["write 5m"]),
        case(
            group("expireAfter: 1000000000000h"),
            "1000000",
            duration,
            &["at most 87660000h"],
        ),
        case(group("expireAfter: 0s"), "0s", duration, &["at least 60s"]),
        case(group("expireAfter: 1s"), "1s", duration, &["at least 60s"]),
        case(
            group("health: {tcp: {port: client}, interval: 1ms}"),
            "1ms",
            "spec.groups.db.health.interval",
            &["`interval`: expected at least 100ms"],
        ),
        case(
            group("update: {maxSurge: -10%}"),
            "-10%",
            surge,
            &["a share is 0% to 100%"],
        ),
        case(
            group("update: {maxSurge: 10 %}"),
            "10 %",
            surge,
            &["write 10%"],
        ),
        case(
            group("update: {maxSurge: 33.3%}"),
            "33.3%",
            surge,
            &["a share is whole: 33%"],
        ),
        case(
            group("update: {maxSurge: 150%}"),
            "150%",
            surge,
            &["a share is 0% to 100%"],
        ),
        case(
            group("update: {maxSurge: 0, maxUnavailable: 0}"),
            "0,",
            surge,
            &["maxSurge and maxUnavailable both 0", "raise one of them"],
        ),
        case(
            group("storage: {size: 50GB}"),
            "50GB",
            storage,
            &["write 50G or 50Gi"],
        ),
        case(
            group("storage: {size: -5Gi}"),
            "-5Gi",
            storage,
            &["a quantity like 50Gi"],
        ),
        case(group("storage: {size: 0}"), "0}", storage, &["a quantity"]),
        case(
            group("health: {tcp: {port: 99999}}"),
            "99999",
            "spec.groups.db.health.tcp.port",
            &["a port number, 1 to 65535"],
        ),
        case(
            group("deletionProtection: yes"),
            "yes",
            "spec.groups.db.deletionProtection",
            &["expected true or false", "write true"],
        ),
        case(
            group("role: 5"),
            "5",
            "spec.groups.db.role",
            &["expected a string", "quote it"],
        ),
        case(
            group("attributes: {big: 18446744073709551616}"),
            "18446",
            "spec.groups.db.attributes.big",
            &["up to 2^53", "quote it"],
        ),
        case(
            group("managementPolicy: Orderd"),
            "Orderd",
            "spec.groups.db.managementPolicy",
            &["OrderedReady"],
        ),
        case(
            group("maxInFlight: 0"),
            "0}",
            "spec.groups.db.maxInFlight",
            &["expected a whole number, 1 to 10000"],
        ),
        case(
            group("placement: {spread: [{topologyKey: zone, maxSkew: 0}]}"),
            "0}",
            "spec.groups.db.placement.spread[0].maxSkew",
            &["expected a whole number, 1 to 10000"],
        ),
        case(
            group("health: {http: {port: client, path: ready}}"),
            "ready",
            "spec.groups.db.health.http.path",
            &["expected a path that begins with a slash"],
        ),
        case(
            group("health: {tcp: {port: a}, http: {port: a}}"),
            "http",
            "spec.groups.db.health.http",
            &["`http` and `tcp` exclude each other"],
        ),
        case(
            group("platform: null"),
            "null",
            "spec.groups.db.platform",
            &["the name of a platform"],
        ),
        case(
            group("version: 7"),
            "7}",
            "spec.groups.db.version",
            &["expected a string", "quote it"],
        ),
        case(
            group("version: 7.0"),
            "7.0",
            "spec.groups.db.version",
            &["quote it"],
        ),
        case(
            group("version: \"7\""),
            "\"7\"",
            "spec.groups.db.version",
            &["a version needs a store"],
        ),
        case(
            group("store: {software: redis}"),
            "store",
            "spec.groups.db.store",
            &["unknown field"],
        ),
        case(
            group("<<: {size: 1}"),
            "<<",
            "spec.groups.db",
            &["merge keys (`<<`) are not supported"],
        ),
        case(
            group("lifecycle: {preStop: {exec: []}}"),
            "exec",
            "spec.groups.db.lifecycle.preStop.exec",
            &["`exec` is empty", "expected a command and its arguments"],
        ),
    ]
}
