//! Reads health policies.

use drover_core::{
    Error, Result, name,
    spec::{Health, Impairment, MAX_THRESHOLD, Port, Probe, ProbeTls, Trust},
};
use drover_proto::platform::v1 as platform;

use crate::value;

fn probe_tls(at: &str, from: &platform::ProbeTls) -> Result<ProbeTls> {
    let secret = |field: &str, from: &str| match from {
        "" => Ok(None),
        text => match name::check_name(text) {
            Ok(()) => Ok(Some(text.to_owned())),
            Err(why) => Err(Error::invalid(format!("{at}.{field}"), why)),
        },
    };
    Ok(ProbeTls {
        trust: secret("ca_secret", &from.ca_secret)?.map_or(Trust::System, Trust::Secret),
        server_name: Some(from.server_name.clone()).filter(|name| !name.is_empty()),
        client_certificate: secret("client_certificate_secret", &from.client_certificate_secret)?,
    })
}

/// Converts a health policy.
///
/// # Errors
///
/// `Invalid` with the invalid field.
pub fn health_policy(at: &str, from: &platform::HealthPolicy) -> Result<Health> {
    use platform::health_policy::Probe as Wire;
    let default = Health::default();
    let port = |field: &str, port: &Option<platform::PortRef>| -> Result<Option<Port>> {
        match port.as_ref().map(|port| &port.port) {
            None => Ok(None),
            Some(Some(platform::port_ref::Port::Name(name))) => Ok(Some(Port::Name(name.clone()))),
            Some(Some(platform::port_ref::Port::Number(number))) => match u16::try_from(*number) {
                Ok(number) if number > 0 => Ok(Some(Port::Number(number))),
                _ => Err(Error::invalid(
                    format!("{at}.{field}.port"),
                    "expected 1 to 65535",
                )),
            },
            Some(None) => Err(Error::invalid(
                format!("{at}.{field}.port"),
                "expected a name or a number",
            )),
        }
    };
    let span = |field: &str, from: &Option<prost_types::Duration>, default| {
        from.as_ref().map_or(Ok(default), |span| {
            value::duration(&format!("{at}.{field}"), span)
        })
    };
    let probe = match &from.probe {
        None | Some(Wire::Phase(_)) => Probe::Phase,
        Some(Wire::Exec(probe)) => {
            if probe.command.first().is_none_or(String::is_empty) {
                return Err(Error::invalid(
                    format!("{at}.exec.command"),
                    "is empty; expected a command and its arguments",
                ));
            }
            Probe::Exec {
                command: probe.command.clone(),
                impairments: impairments(&format!("{at}.exec.impairments"), &probe.impairments)?,
            }
        }
        Some(Wire::Grpc(probe)) => Probe::Grpc {
            port: port("grpc", &probe.port)?,
            service: probe.service.clone(),
            tls: probe
                .tls_settings
                .as_ref()
                .map(|tls| probe_tls(&format!("{at}.grpc.tls_settings"), tls))
                .transpose()?,
        },
        Some(Wire::Http(probe)) => {
            let settings = probe
                .tls_settings
                .as_ref()
                .map(|tls| probe_tls(&format!("{at}.http.tls_settings"), tls))
                .transpose()?;
            let any = ProbeTls {
                trust: Trust::Any,
                server_name: None,
                client_certificate: None,
            };
            let path = if probe.path.is_empty() {
                "/healthz".to_owned()
            } else {
                probe.path.clone()
            };
            if !path.starts_with('/') || path.contains(char::is_whitespace) {
                return Err(Error::invalid(
                    format!("{at}.http.path"),
                    "expected a path that begins with a slash",
                ));
            }
            Probe::Http {
                port: port("http", &probe.port)?,
                path,
                tls: settings.or_else(|| probe.tls.then_some(any)),
            }
        }
        Some(Wire::Tcp(probe)) => Probe::Tcp {
            port: port("tcp", &probe.port)?,
        },
    };
    Ok(Health {
        probe,
        interval: span("interval", &from.interval, default.interval)?,
        timeout: span("timeout", &from.timeout, default.timeout)?,
        failure_threshold: threshold(from.failure_threshold, default.failure_threshold),
        success_threshold: threshold(from.success_threshold, default.success_threshold),
        startup_timeout: span(
            "startup_timeout",
            &from.startup_timeout,
            default.startup_timeout,
        )?,
    })
}

fn impairments(at: &str, from: &[platform::Impairment]) -> Result<Vec<Impairment>> {
    let all: Vec<Impairment> = from
        .iter()
        .map(|one| Impairment {
            reason: one.reason.as_str().into(),
            message: one.message.as_str().into(),
        })
        .collect();
    Impairment::check(at, &all)?;
    Ok(all)
}

fn threshold(from: Option<u32>, default: u32) -> u32 {
    from.unwrap_or(default).min(MAX_THRESHOLD)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_probe_may_find_is_declared_once_in_one_word_each() {
        let refused = |reasons: &[&str], message: &str| {
            let all: Vec<platform::Impairment> = reasons
                .iter()
                .map(|reason| platform::Impairment {
                    reason: (*reason).to_owned(),
                    message: message.to_owned(),
                })
                .collect();
            impairments("exec.impairments", &all)
                .map_or_else(|why| why.to_string(), |_| String::new())
        };
        assert_eq!(refused(&["DiskFull", "Slow"], "is slow"), "");
        for wrong in ["", "disk full", "diskFull", "Disk-Full", &"D".repeat(64)] {
            let why = refused(&["Slow", wrong], "");
            assert!(why.contains("exec.impairments[1].reason"), "{wrong}: {why}");
        }
        let why = refused(&["Slow", "Slow"], "");
        assert!(
            why.contains("impairments[1].reason") && why.contains("twice"),
            "{why}"
        );
        let why = refused(&["Slow"], "two\nlines");
        assert!(why.contains("exec.impairments[0].message"), "{why}");
        let many: Vec<String> = (0..17).map(|at| format!("R{at}")).collect();
        let many: Vec<&str> = many.iter().map(String::as_str).collect();
        assert!(refused(&many, "").contains("at most 16"));
    }

    #[test]
    fn thresholds_are_what_is_said_up_to_what_a_record_counts() {
        let of = |failure, success| {
            let policy = platform::HealthPolicy {
                failure_threshold: failure,
                success_threshold: success,
                ..Default::default()
            };
            let health = health_policy("health", &policy).expect("valid");
            (health.failure_threshold, health.success_threshold)
        };
        assert_eq!(of(None, None), (3, 1));
        assert_eq!(of(Some(255), Some(0)), (255, 0), "0 is refused by the spec");
        assert_eq!(of(Some(300), Some(u32::MAX)), (255, 255));
    }
}
