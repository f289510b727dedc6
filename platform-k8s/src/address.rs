//! The agent address of a pod, as the Replicante Platform specification defines it:
//!
//! 1. annotation `k8s.replicante.io/agent-address`;
//! 2. otherwise the IP address selected by annotation `k8s.replicante.io/agent-ip-from` (`node` or `pod`), or by the
//!    settings;
//! 3. with annotations `k8s.replicante.io/agent-schema` and `k8s.replicante.io/agent-port`, if both are set;
//! 4. otherwise with the scheme and port of the settings.
//!
//! An invalid value is reported, never replaced by a guess. Loopback, link-local and unspecified addresses are invalid:
//! those of a pod mean another host to every client. Templates may set annotation 1, properties of groups may not.

use std::{collections::BTreeMap, net::IpAddr};

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

/// Schemes that can be probed.
const SCHEMES: &[&str] = &["grpc", "grpcs", "http", "https", "tcp"];

/// The agent address. `Ok(None)` if there is none, or none yet.
///
/// # Errors
/// A message for people if an annotation is invalid.
pub fn agent(pod: &Pod, settings: &AgentSettings) -> Result<Option<String>, String> {
    let annotations = pod.metadata.annotations();
    if let Some(address) = annotation(annotations, ADDRESS) {
        return check(address).map(Some);
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

fn check(address: &str) -> Result<String, String> {
    let wrong = || {
        format!(
            "annotation {ADDRESS} is {}; expected scheme://host:port",
            show(address)
        )
    };
    let (scheme, rest) = address.split_once("://").ok_or_else(wrong)?;
    if !SCHEMES.contains(&scheme) {
        return Err(format!("{} with scheme {}", wrong(), SCHEMES.join(", ")));
    }
    // A trailing slash is ignored: a path says nothing about where the agent is.
    let rest = rest.trim_end_matches('/');
    let (host, port) = rest.rsplit_once(':').ok_or_else(wrong)?;
    let bare = match host.strip_prefix('[').map(|host| host.strip_suffix(']')) {
        Some(Some(ip)) if ip.parse::<std::net::Ipv6Addr>().is_ok() => ip,
        None if is_host(host) => host,
        _ => return Err(wrong()),
    };
    if is_own(bare) {
        return Err(format!(
            "annotation {ADDRESS} is {}; a loopback, link-local or unspecified address is another one elsewhere",
            show(address)
        ));
    }
    match port.parse::<u16>() {
        Ok(port) if port > 0 => Ok(format!("{scheme}://{}", join(bare, port))),
        _ => Err(wrong()),
    }
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
        Ok(port) if port > 0 => Ok(port),
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
