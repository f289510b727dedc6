//! The agent address of a pod, as the Replicante Platform specification defines it:
//!
//! 1. annotation `k8s.replicante.io/agent-address`, as it is: with any scheme, with or without port and path;
//! 2. otherwise the IP address selected by annotation `k8s.replicante.io/agent-ip-from` (`node` or `pod`), or by the
//!    settings;
//! 3. with annotations `k8s.replicante.io/agent-schema` and `k8s.replicante.io/agent-port`, if both are set;
//! 4. otherwise with the scheme and port of the settings.
//!
//! An invalid value is reported, never replaced by a guess. Loopback, link-local and unspecified addresses are invalid:
//! those of a pod mean another host to every client. Templates may set annotation 1, properties of groups may not.

use std::{
    collections::BTreeMap,
    net::{IpAddr, Ipv6Addr},
};

use crate::{
    client::Meta as _,
    pod::Pod,
    settings::{AgentSettings, IpFrom},
};

/// Annotation with the complete address.
pub const ADDRESS: &str = "k8s.replicante.io/agent-address";
/// Annotation that selects the IP address: `node` or `pod`.
pub const IP_FROM: &str = "k8s.replicante.io/agent-ip-from";
/// Annotation with the scheme.
pub const SCHEME: &str = "k8s.replicante.io/agent-schema";
/// Annotation with the port.
pub const PORT: &str = "k8s.replicante.io/agent-port";

/// Schemes of [`SCHEME`].
const SCHEMES: &[&str] = &["grpc", "grpcs", "http", "https", "tcp"];

/// The agent address. `Ok(None)` if there is none, or none yet.
///
/// # Errors
/// A message for people if an annotation is invalid.
pub fn agent(pod: &Pod, settings: &AgentSettings) -> Result<Option<String>, String> {
    let annotations = pod.metadata.annotations();
    if let Some(address) = annotation(annotations, ADDRESS) {
        check(address)?;
        return Ok(Some(address.to_owned()));
    }
    let host = target(pod, settings)?;
    let (scheme, port) = match (
        annotation(annotations, SCHEME),
        annotation(annotations, PORT),
    ) {
        (Some(scheme), Some(port)) => (check_scheme(scheme)?, Some(check_port(port)?)),
        _ => (settings.scheme.as_str(), settings.port),
    };
    Ok(match (host, port) {
        (Some(host), Some(port)) => Some(format!("{scheme}://{}", join(host, port))),
        _ => None,
    })
}

/// The IP address at which others reach the pod. `None` if it has none yet.
///
/// # Errors
/// A message for people if the annotation is invalid.
pub fn target<'a>(pod: &'a Pod, settings: &AgentSettings) -> Result<Option<&'a str>, String> {
    let ip = match ip_from(pod.metadata.annotations(), settings)? {
        IpFrom::Pod => pod.ips().next(),
        IpFrom::Node => Some(pod.status.host_ip.as_str()),
    };
    Ok(ip.filter(|ip| !ip.is_empty()))
}

/// Whether the address of the pod or of its Kubernetes node is used.
///
/// # Errors
/// A message for people if the annotation is invalid.
pub fn ip_from(
    annotations: &BTreeMap<String, String>,
    settings: &AgentSettings,
) -> Result<IpFrom, String> {
    match annotation(annotations, IP_FROM) {
        None => Ok(settings.ip_from),
        Some("pod") => Ok(IpFrom::Pod),
        Some("node") => Ok(IpFrom::Node),
        Some(other) => Err(format!(
            "annotation {IP_FROM} is {}; expected node or pod",
            show(other)
        )),
    }
}

/// `host:port`, with IPv6 addresses in brackets.
#[must_use]
pub fn join(host: &str, port: u16) -> String {
    match host.parse::<IpAddr>() {
        Ok(IpAddr::V6(ip)) => format!("[{ip}]:{port}"),
        _ => format!("{host}:{port}"),
    }
}

/// The trimmed value of an annotation. `None` if it is missing or empty.
fn annotation<'a>(annotations: &'a BTreeMap<String, String>, key: &str) -> Option<&'a str> {
    annotations
        .get(key)
        .map(|value| value.trim())
        .filter(|value| !value.is_empty())
}

fn check(address: &str) -> Result<(), String> {
    let wrong = || {
        format!(
            "annotation {ADDRESS} is {}; expected scheme://host, with :port and /path if need be",
            show(address)
        )
    };
    let (scheme, rest) = address.split_once("://").ok_or_else(wrong)?;
    let authority = rest.split(['/', '?', '#']).next().unwrap_or_default();
    let host = host_of(authority).ok_or_else(wrong)?;
    if !is_scheme(scheme) || !rest.bytes().all(|b| b.is_ascii_graphic()) {
        return Err(wrong());
    }
    if is_own(host) {
        return Err(format!(
            "annotation {ADDRESS} is {}; a loopback, link-local or unspecified address is another one elsewhere",
            show(address)
        ));
    }
    Ok(())
}

/// The host of `host`, `host:port`, `[ip]` or `[ip]:port`.
fn host_of(authority: &str) -> Option<&str> {
    let (host, port) = if let Some(rest) = authority.strip_prefix('[') {
        let (ip, port) = rest.split_once(']')?;
        ip.parse::<Ipv6Addr>().ok()?;
        (ip, port)
    } else {
        let end = authority.find(':').unwrap_or(authority.len());
        let (host, port) = authority.split_at(end);
        (is_host(host).then_some(host)?, port)
    };
    if !port.is_empty() {
        check_port(port.strip_prefix(':')?).ok()?;
    }
    Some(host)
}

fn is_scheme(scheme: &str) -> bool {
    let rest = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'+' | b'-' | b'.');
    scheme.starts_with(|c: char| c.is_ascii_alphabetic()) && scheme.bytes().all(rest)
}

/// Whether a host means something else to every client.
fn is_own(host: &str) -> bool {
    let name = host.trim_end_matches('.').to_ascii_lowercase();
    if name == "localhost" || name.ends_with(".localhost") {
        return true;
    }
    match host.parse::<IpAddr>().map(|ip| ip.to_canonical()) {
        Ok(IpAddr::V4(ip)) => ip.is_loopback() || ip.is_link_local() || ip.octets()[0] == 0,
        Ok(IpAddr::V6(ip)) => ip.is_loopback() || ip.is_unicast_link_local() || ip.is_unspecified(),
        // libc accepts `127.1`, `0x7f.1` and `2130706433` as addresses.
        Err(_) => is_numeric(&name),
    }
}

/// Whether the last label of a host is a number; no DNS name ends with one.
fn is_numeric(name: &str) -> bool {
    let last = name.rsplit('.').next().unwrap_or_default();
    let hexadecimal = last.strip_prefix("0x");
    let digits = hexadecimal.unwrap_or(last);
    match hexadecimal {
        Some(_) => digits.bytes().all(|b| b.is_ascii_hexdigit()),
        None => !digits.is_empty() && digits.bytes().all(|b| b.is_ascii_digit()),
    }
}

fn is_host(host: &str) -> bool {
    !host.is_empty()
        && host
            .bytes()
            .all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'.' | b'_'))
}

fn check_scheme(scheme: &str) -> Result<&str, String> {
    if SCHEMES.contains(&scheme) {
        Ok(scheme)
    } else {
        Err(format!(
            "annotation {SCHEME} is {}; expected {}",
            show(scheme),
            SCHEMES.join(", ")
        ))
    }
}

fn check_port(port: &str) -> Result<u16, String> {
    match port.parse::<u16>() {
        Ok(number) if number > 0 && !port.starts_with('+') => Ok(number),
        _ => Err(format!(
            "annotation {PORT} is {}; expected 1 to 65535",
            show(port)
        )),
    }
}

/// Quotes at most a line of a user-supplied value.
fn show(text: &str) -> String {
    let short: String = text.chars().take(64).collect();
    format!("{short:?}")
}

#[cfg(test)]
mod tests;
