//! Validation of what is wanted of an addon.

use std::{
    collections::{BTreeMap, BTreeSet, HashSet},
    net::IpAddr,
};

use drover_convert::value::object;
use drover_core::{
    Result,
    name::{check_addon_name, check_label, check_secret_key, check_secret_name},
    ssh::check_authorized_key,
};
use drover_proto::{
    common::v1::{AddressType, LabelSelector},
    platform::v1::{
        AddonSecret, AddonSpec, AddonTarget, EnsureAddonRequest, JumpHost, LoadBalancer, NodeRole,
        OidcProvider, PortMapping, addon_spec::Kind, port_ref::Port,
    },
};
use prost_types::Struct;

use super::AddonWanted;
use crate::check::{Checker, selector};

/// Maximum number of targets of an addon.
const MAX_TARGETS: usize = 2_000;
/// Keys that the secret of an OIDC provider's certificate may have: a certificate, or an authority.
const TLS_KEYS: [[&str; 2]; 2] = [["tls.crt", "tls.key"], ["ca.crt", "ca.key"]];

/// Validates the name of an addon.
pub(super) fn name(check: &mut Checker, field: &str, name: &str) {
    if name.is_empty() {
        check.wrong(field, "is required");
    } else if let Err(why) = check_addon_name(name) {
        check.wrong(field, why);
    }
}

/// Validates a request, and returns what it wants.
pub(super) fn wanted(request: EnsureAddonRequest) -> Result<AddonWanted> {
    let mut check = Checker::default();
    if request.sequence == 0 {
        check.wrong("sequence", "is required, from 1");
    }
    let Some(spec) = request.spec else {
        check.wrong("spec", "is required");
        check.finish()?;
        return Ok(AddonWanted::default());
    };
    self::spec(&mut check, &spec);
    targets(&mut check, &request.targets);
    secrets(&mut check, &spec, &request.secrets);
    check.finish()?;
    Ok(AddonWanted {
        spec,
        targets: request.targets,
        secrets: request.secrets,
    })
}

fn spec(check: &mut Checker, spec: &AddonSpec) {
    name(check, "spec.name", &spec.name);
    match &spec.kind {
        None => check.wrong(
            "spec.kind",
            "is required: load_balancer, jump_host, oidc_provider or template",
        ),
        Some(Kind::LoadBalancer(balancer)) => load_balancer(check, balancer),
        Some(Kind::JumpHost(host)) => jump_host(check, host),
        Some(Kind::OidcProvider(provider)) => oidc_provider(check, provider),
        Some(Kind::Template(it)) => check.required("spec.template.template", &it.template),
    }
    check.word("spec.image", &spec.image);
    check.word("spec.interface", &spec.interface);
    if let Some(selector) = &spec.node_selector {
        node_selector(check, selector);
    }
    if !spec.cluster_ip.is_empty() && spec.cluster_ip.parse::<IpAddr>().is_err() {
        check.wrong("spec.cluster_ip", "is not an IP address");
    }
    free(check, "spec.properties", spec.properties.as_ref());
}

fn node_selector(check: &mut Checker, from: &LabelSelector) {
    let field = "spec.node_selector";
    for (key, value) in &from.match_labels {
        if let Err(why) = check_label(key, value) {
            check.wrong(format!("{field}.match_labels"), why);
        }
    }
    selector(check, field, from);
    for (at, requirement) in from.match_expressions.iter().enumerate() {
        let key = &requirement.key;
        if !key.is_empty()
            && let Err(why) = check_label(key, "")
        {
            check.wrong(format!("{field}.match_expressions[{at}].key"), why);
        }
    }
}

fn free(check: &mut Checker, field: &str, from: Option<&Struct>) {
    if let Some(Err(error)) = from.map(|from| object(field, from)) {
        for violation in error.fields() {
            check.wrong(&violation.field, &violation.description);
        }
    }
}

fn port(check: &mut Checker, field: &str, port: Option<u32>) {
    if port.is_some_and(|port| !(1..=u32::from(u16::MAX)).contains(&port)) {
        check.wrong(field, "expected 1 to 65535");
    }
}

fn load_balancer(check: &mut Checker, balancer: &LoadBalancer) {
    let field = "spec.load_balancer.ports";
    if balancer.ports.is_empty() {
        check.wrong(field, "is required: at least one");
    }
    let mut taken: BTreeMap<u32, (u32, usize)> = BTreeMap::new();
    for (at, mapping) in balancer.ports.iter().enumerate() {
        let field = format!("{field}[{at}]");
        self::mapping(check, &field, mapping);
        let Some(first) = mapping.listen else {
            continue;
        };
        let last = first.saturating_add(mapping.count.max(1) - 1);
        // Ranges that were taken in do not overlap: only the one that begins last before the end can.
        match taken.range(..=last).next_back() {
            Some((_, (end, by))) if *end >= first => {
                check.wrong(
                    format!("{field}.listen"),
                    format!("is taken by ports[{by}]"),
                );
            }
            _ => drop(taken.insert(first, (last, at))),
        }
    }
}

fn mapping(check: &mut Checker, field: &str, mapping: &PortMapping) {
    port(check, &format!("{field}.listen"), mapping.listen);
    let more = mapping.count.saturating_sub(1);
    let past = |first: u32| first.saturating_add(more) > u32::from(u16::MAX);
    let target = mapping.target.as_ref().and_then(|it| it.port.as_ref());
    let number = match target {
        None => {
            check.wrong(format!("{field}.target"), "is required: a number or a name");
            return;
        }
        Some(Port::Name(name)) => {
            check.required(&format!("{field}.target.name"), name);
            if more > 0 {
                check.wrong(
                    format!("{field}.count"),
                    "must be 1 where the target is a name",
                );
            }
            return;
        }
        Some(Port::Number(number)) => *number,
    };
    port(check, &format!("{field}.target.number"), Some(number));
    if [Some(number), mapping.listen]
        .into_iter()
        .flatten()
        .any(past)
    {
        check.wrong(
            format!("{field}.count"),
            format!("leads beyond port {}", u16::MAX),
        );
    }
}

fn jump_host(check: &mut Checker, host: &JumpHost) {
    port(check, "spec.jump_host.port", host.port);
    for (at, line) in host.authorized_keys.iter().enumerate() {
        if let Err(why) = check_authorized_key(line) {
            check.wrong(format!("spec.jump_host.authorized_keys[{at}]"), why);
        }
    }
}

fn oidc_provider(check: &mut Checker, provider: &OidcProvider) {
    let field = "spec.oidc_provider";
    if !provider.issuer.is_empty() && !is_issuer(&provider.issuer) {
        check.wrong(
            format!("{field}.issuer"),
            "is not a URL of http or https without query and fragment",
        );
    }
    port(check, &format!("{field}.port"), provider.port);
    let mut ids = HashSet::new();
    for (at, client) in provider.clients.iter().enumerate() {
        let field = format!("{field}.clients[{at}]");
        id(check, &field, &client.id, &mut ids);
        for (at, uri) in client.redirect_uris.iter().enumerate() {
            check.required(&format!("{field}.redirect_uris[{at}]"), uri);
        }
    }
    let mut ids = HashSet::new();
    for (at, connector) in provider.connectors.iter().enumerate() {
        let field = format!("{field}.connectors[{at}]");
        check.required(&format!("{field}.type"), &connector.r#type);
        id(check, &field, &connector.id, &mut ids);
        free(check, &format!("{field}.config"), connector.config.as_ref());
    }
}

fn id<'a>(check: &mut Checker, field: &str, id: &'a str, ids: &mut HashSet<&'a str>) {
    check.required(&format!("{field}.id"), id);
    if !ids.insert(id) {
        check.wrong(format!("{field}.id"), "is there twice");
    }
}

fn is_issuer(text: &str) -> bool {
    let odd = |c: char| c.is_whitespace() || c.is_control() || matches!(c, '?' | '#');
    let rest = text
        .strip_prefix("https://")
        .or_else(|| text.strip_prefix("http://"));
    rest.is_some_and(|rest| !rest.is_empty() && !rest.starts_with('/') && !rest.contains(odd))
}

fn targets(check: &mut Checker, targets: &[AddonTarget]) {
    if targets.len() > MAX_TARGETS {
        return check.wrong(
            "targets",
            format!(
                "has {} targets; at most {MAX_TARGETS} are allowed",
                targets.len()
            ),
        );
    }
    let mut ids = HashSet::new();
    for (at, target) in targets.iter().enumerate() {
        let field = format!("targets[{at}]");
        check.required(&format!("{field}.node_id"), &target.node_id);
        if !ids.insert((&target.platform, &target.node_id)) {
            check.wrong(format!("{field}.node_id"), "is there twice");
        }
        check.node_name(&format!("{field}.name"), &target.name);
        check.word(&format!("{field}.group"), &target.group);
        check.known::<NodeRole>(&format!("{field}.role"), target.role, false);
        for (at, address) in target.addresses.iter().enumerate() {
            let field = format!("{field}.addresses[{at}]");
            check.known::<AddressType>(&format!("{field}.type"), address.r#type, false);
            if !is_host(&address.value) {
                check.wrong(format!("{field}.value"), "is not an IP address or name");
            }
            check.word(&format!("{field}.interface"), &address.interface);
        }
        for (name, endpoint) in &target.endpoints {
            if name.is_empty() || name.chars().any(char::is_control) || !is_endpoint(endpoint) {
                check.wrong(format!("{field}.endpoints"), "expected NAME: HOST:PORT");
            }
        }
    }
}

/// Whether it is an IP address or a name. What an addon writes into its configuration can be nothing else.
fn is_host(text: &str) -> bool {
    let good = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    let is_name = || (1..=253).contains(&text.len()) && text.chars().all(good);
    text.parse::<IpAddr>().is_ok() || is_name()
}

fn is_endpoint(text: &str) -> bool {
    text.rsplit_once(':').is_some_and(|(host, port)| {
        let bare = host.strip_prefix('[').and_then(|it| it.strip_suffix(']'));
        is_host(bare.unwrap_or(host)) && port.parse::<u16>().is_ok_and(|port| port > 0)
    })
}

/// The secrets that a spec names.
struct Named<'a> {
    check: &'a mut Checker,
    secrets: &'a BTreeMap<String, AddonSecret>,
    used: BTreeSet<&'a str>,
}

impl<'a> Named<'a> {
    /// Validates a secret that this field names; empty names none. Returns its content.
    fn secret(&mut self, field: &str, name: &'a str) -> Option<&'a AddonSecret> {
        if name.is_empty() {
            return None;
        }
        if let Err(why) = check_secret_name(name) {
            self.check.wrong(field, why);
            return None;
        }
        self.used.insert(name);
        let secret = self.secrets.get(name);
        if secret.is_none() {
            self.check
                .wrong(field, "its content is missing in `secrets`");
        }
        secret
    }

    /// Validates a secret that must have one of these sets of keys, each with content.
    fn keys<const N: usize>(&mut self, field: &str, name: &'a str, sets: &[[&str; N]]) {
        let Some(secret) = self.secret(field, name) else {
            return;
        };
        let has = |key: &&str| secret.data.get(*key).is_some_and(|it| !it.is_empty());
        if !sets.iter().any(|keys| keys.iter().all(has)) {
            let sets: Vec<String> = sets.iter().map(|keys| keys.join(" and ")).collect();
            let why = format!("its secret needs {}, not empty", sets.join(", or "));
            self.check.wrong(field, why);
        }
    }
}

fn secrets(check: &mut Checker, spec: &AddonSpec, secrets: &BTreeMap<String, AddonSecret>) {
    let mut named = Named {
        check,
        secrets,
        used: BTreeSet::new(),
    };
    match &spec.kind {
        Some(Kind::JumpHost(host)) => {
            let field = "spec.jump_host.private_keys_secret";
            if let Some(secret) = named.secret(field, &host.private_keys_secret) {
                private_keys(named.check, field, secret);
            }
            named.keys(
                "spec.jump_host.kubeconfig_secret",
                &host.kubeconfig_secret,
                &[["kubeconfig"]],
            );
        }
        Some(Kind::OidcProvider(provider)) => oidc_secrets(&mut named, provider),
        Some(Kind::LoadBalancer(_) | Kind::Template(_)) | None => {}
    }
    let Named { check, used, .. } = named;
    if secrets.keys().any(|name| !used.contains(name.as_str())) {
        check.wrong("secrets", "has one that the spec does not name");
    }
}

/// Validates a secret of which each key becomes a file.
fn private_keys(check: &mut Checker, field: &str, secret: &AddonSecret) {
    if secret.data.is_empty() {
        check.wrong(field, "its secret has no key");
    }
    let is_file = |key: &String| check_secret_key(key).is_ok() && !key.starts_with('.');
    if !secret.data.keys().all(is_file) {
        check.wrong(
            field,
            "its secret has a key that is no name of a file: letters, digits, hyphens, underscores and dots, a dot \
             not first",
        );
    }
}

fn oidc_secrets<'a>(named: &mut Named<'a>, provider: &'a OidcProvider) {
    let field = "spec.oidc_provider";
    let tls = format!("{field}.tls_secret");
    named.keys(&tls, &provider.tls_secret, &TLS_KEYS);
    if let Some(secret) = named.secrets.get(&provider.tls_secret) {
        let has = |key: &str| secret.data.get(key).is_some_and(|it| !it.is_empty());
        let [[certificate, key], [_, authority]] = TLS_KEYS;
        // A certificate alone is what has issued it, or for whom: which one is meant cannot be known.
        if has(certificate) != has(key) && has(authority) {
            let why =
                format!("its secret has an authority and only half of {certificate} and {key}");
            named.check.wrong(tls, why);
        }
    }
    for (at, client) in provider.clients.iter().enumerate() {
        let field = format!("{field}.clients[{at}].secret");
        named.keys(&field, &client.secret, &[["secret"]]);
    }
    for (at, connector) in provider.connectors.iter().enumerate() {
        let field = format!("{field}.connectors[{at}]");
        let Some(secret) = named.secret(&format!("{field}.secret"), &connector.secret) else {
            continue;
        };
        let config = connector.config.as_ref();
        for key in secret.data.keys() {
            if config.is_some_and(|config| config.fields.contains_key(key)) {
                named
                    .check
                    .wrong(format!("{field}.config.{key}"), "is in the secret, too");
            }
        }
        if secret.data.values().any(|it| str::from_utf8(it).is_err()) {
            named
                .check
                .wrong(format!("{field}.secret"), "its secret is not text");
        }
    }
}
