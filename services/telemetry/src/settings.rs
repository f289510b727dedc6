//! Export settings, from Drover's own settings and from the standard OpenTelemetry environment variables.

use std::{fmt, path::PathBuf, str::FromStr};

use drover_tls::{Authorities, ClientSettings};
use http::{
    HeaderName, HeaderValue, Uri,
    uri::{PathAndQuery, Scheme},
};

/// An invalid setting.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct TelemetryError(String);

impl TelemetryError {
    fn new(why: impl Into<String>) -> Self {
        Self(why.into())
    }

    pub(crate) fn of(why: &impl std::error::Error) -> Self {
        Self(why.to_string())
    }
}

/// Drover's own settings. Each takes precedence over the corresponding OpenTelemetry variable.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Given {
    /// `http://HOST:PORT` or `https://HOST:PORT` of a collector that speaks OTLP over gRPC.
    pub endpoint: Option<String>,
    /// Service name in traces.
    pub service_name: Option<String>,
    /// Fraction of the traces starting here that are sampled, 0 to 1.
    pub sample_ratio: Option<f64>,
    /// CAs for the collector's certificate, PEM.
    pub ca: Option<PathBuf>,
}

/// The resolved export settings and resource attributes.
#[derive(Clone)]
pub struct Settings {
    pub(crate) endpoint: Uri,
    pub(crate) sample_ratio: f64,
    pub(crate) tls: ClientSettings,
    /// May contain a token.
    pub(crate) headers: Vec<(HeaderName, HeaderValue)>,
    pub(crate) resource: Vec<(String, String)>,
}

impl fmt::Debug for Settings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Settings")
            .field("endpoint", &self.endpoint)
            .field("sample_ratio", &self.sample_ratio)
            .finish_non_exhaustive()
    }
}

impl Settings {
    /// Combines the given settings with the environment. `name` and `version` are those of the program. `None` if no
    /// collector is configured, or if `OTEL_SDK_DISABLED` is true. Fails for an invalid value.
    pub fn resolve(
        given: &Given,
        (name, version): (&str, &str),
        variable: impl Fn(&str) -> Option<String>,
    ) -> Result<Option<Self>, TelemetryError> {
        let variable = |name: &str| variable(name).filter(|value| !value.is_empty());
        if variable("OTEL_SDK_DISABLED").is_some_and(|it| it.eq_ignore_ascii_case("true")) {
            return Ok(None);
        }
        let first = |names: [&str; 2]| names.into_iter().find_map(&variable);
        let Some(endpoint) = given.endpoint.clone().or_else(|| {
            first([
                "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT",
                "OTEL_EXPORTER_OTLP_ENDPOINT",
            ])
        }) else {
            return Ok(None);
        };
        let protocol = first([
            "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL",
            "OTEL_EXPORTER_OTLP_PROTOCOL",
        ]);
        if let Some(protocol) = protocol.filter(|protocol| protocol != "grpc") {
            return Err(TelemetryError::new(format!(
                "OTEL_EXPORTER_OTLP_PROTOCOL is {protocol:?}, and traces are sent as grpc only"
            )));
        }
        let service = given.service_name.clone();
        let service = service.or_else(|| variable("OTEL_SERVICE_NAME"));
        let mut resource = vec![
            (
                "service.name".to_owned(),
                service.unwrap_or_else(|| name.to_owned()),
            ),
            ("service.version".to_owned(), version.to_owned()),
            ("service.instance.id".to_owned(), instance()),
        ];
        let more = variable("OTEL_RESOURCE_ATTRIBUTES").unwrap_or_default();
        for (key, value) in pairs("OTEL_RESOURCE_ATTRIBUTES", &more)? {
            if !resource.iter().any(|(own, _)| *own == key) {
                resource.push((key, value));
            }
        }
        Ok(Some(Self {
            endpoint: uri(&endpoint)?,
            sample_ratio: ratio(given, &variable)?,
            tls: tls(given, &variable),
            headers: headers(&variable("OTEL_EXPORTER_OTLP_HEADERS").unwrap_or_default())?,
            resource,
        }))
    }
}

/// Distinguishes runs of a program.
fn instance() -> String {
    format!("{:016x}", fastrand::u64(..))
}

fn uri(text: &str) -> Result<Uri, TelemetryError> {
    let wrong = || {
        TelemetryError::new(format!(
            "the OTLP endpoint {text:?} is wrong; expected http://HOST:PORT or https://HOST:PORT"
        ))
    };
    let mut parts = Uri::from_str(text).map_err(|_| wrong())?.into_parts();
    let known = [Some(&Scheme::HTTP), Some(&Scheme::HTTPS)].contains(&parts.scheme.as_ref());
    let bare = parts
        .path_and_query
        .as_ref()
        .is_none_or(|path| path.as_str() == "/");
    if !known || !bare {
        return Err(wrong());
    }
    parts.path_and_query = Some(PathAndQuery::from_static("/"));
    Uri::from_parts(parts).map_err(|_| wrong())
}

fn ratio(given: &Given, variable: &impl Fn(&str) -> Option<String>) -> Result<f64, TelemetryError> {
    let sampler = variable("OTEL_TRACES_SAMPLER").unwrap_or_default();
    let ratio = match (
        given.sample_ratio,
        sampler.trim_start_matches("parentbased_"),
    ) {
        (Some(ratio), _) => ratio,
        (None, "always_off") => 0.0,
        (None, "traceidratio") => match variable("OTEL_TRACES_SAMPLER_ARG") {
            None => 1.0,
            Some(text) => text.parse().map_err(|_| {
                TelemetryError::new(format!("OTEL_TRACES_SAMPLER_ARG is {text:?}, no number"))
            })?,
        },
        (None, _) => 1.0,
    };
    if (0.0..=1.0).contains(&ratio) {
        Ok(ratio)
    } else {
        Err(TelemetryError::new(format!(
            "the sample ratio is {ratio}, expected 0 to 1"
        )))
    }
}

fn tls(given: &Given, variable: &impl Fn(&str) -> Option<String>) -> ClientSettings {
    let file = |name: &str| variable(name).map(PathBuf::from);
    let ca = given.ca.clone();
    ClientSettings {
        authorities: ca
            .or_else(|| file("OTEL_EXPORTER_OTLP_CERTIFICATE"))
            .map_or(Authorities::System, Authorities::File),
        certificate: file("OTEL_EXPORTER_OTLP_CLIENT_CERTIFICATE")
            .zip(file("OTEL_EXPORTER_OTLP_CLIENT_KEY"))
            .map(Into::into),
        ..ClientSettings::default()
    }
}

/// Parses `key=value,key=value` with percent-encoded values. Errors never contain a value, because it may be a token.
fn pairs(what: &str, text: &str) -> Result<Vec<(String, String)>, TelemetryError> {
    let wrong = || TelemetryError::new(format!("{what} is not KEY=VALUE,KEY=VALUE"));
    let parts = text.split(',').filter(|part| !part.trim().is_empty());
    parts
        .map(|part| {
            let (key, value) = part.split_once('=').ok_or_else(wrong)?;
            let value = decode(value.trim()).ok_or_else(wrong)?;
            Ok((key.trim().to_owned(), value))
        })
        .collect()
}

fn headers(text: &str) -> Result<Vec<(HeaderName, HeaderValue)>, TelemetryError> {
    let wrong = || TelemetryError::new("OTEL_EXPORTER_OTLP_HEADERS has what is not a header");
    pairs("OTEL_EXPORTER_OTLP_HEADERS", text)?
        .into_iter()
        .map(|(key, value)| {
            let name = HeaderName::from_str(&key).map_err(|_| wrong())?;
            let mut value = HeaderValue::from_str(&value).map_err(|_| wrong())?;
            value.set_sensitive(true);
            Ok((name, value))
        })
        .collect()
}

fn decode(text: &str) -> Option<String> {
    let mut out = Vec::with_capacity(text.len());
    let mut bytes = text.bytes();
    while let Some(byte) = bytes.next() {
        out.push(match byte {
            b'%' => {
                let digits = [bytes.next()?, bytes.next()?];
                u8::from_str_radix(std::str::from_utf8(&digits).ok()?, 16).ok()?
            }
            byte => byte,
        });
    }
    String::from_utf8(out).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn resolve(
        given: &Given,
        variables: &[(&str, &str)],
    ) -> Result<Option<Settings>, TelemetryError> {
        Settings::resolve(given, ("drover", "1.2.3"), |name| {
            let found = variables.iter().find(|(own, _)| *own == name);
            found.map(|(_, value)| (*value).to_owned())
        })
    }

    fn to(endpoint: &str) -> Given {
        Given {
            endpoint: Some(endpoint.to_owned()),
            ..Given::default()
        }
    }

    #[test]
    fn nothing_is_sent_unless_a_collector_is_named() {
        assert!(resolve(&Given::default(), &[]).unwrap().is_none());
        let named = [("OTEL_EXPORTER_OTLP_ENDPOINT", "http://collector:4317")];
        let settings = resolve(&Given::default(), &named).unwrap().unwrap();
        assert_eq!(settings.endpoint.to_string(), "http://collector:4317/");
        let off = [named[0], ("OTEL_SDK_DISABLED", "TRUE")];
        assert!(resolve(&Given::default(), &off).unwrap().is_none());
        let ours = resolve(&to("https://ours:1/"), &named).unwrap().unwrap();
        assert_eq!(ours.endpoint.to_string(), "https://ours:1/");
    }

    #[test]
    fn the_variables_of_opentelemetry_count_where_nothing_else_is_said() {
        let variables = [
            ("OTEL_SERVICE_NAME", "blue"),
            ("OTEL_RESOURCE_ATTRIBUTES", "zone=a%2Cb, service.name=red"),
            (
                "OTEL_EXPORTER_OTLP_HEADERS",
                "authorization=Bearer%20s3cret",
            ),
            ("OTEL_TRACES_SAMPLER", "parentbased_traceidratio"),
            ("OTEL_TRACES_SAMPLER_ARG", "0.25"),
            ("OTEL_EXPORTER_OTLP_CERTIFICATE", "/ca.pem"),
        ];
        let settings = resolve(&to("https://c:4317"), &variables).unwrap().unwrap();
        let of = |key: &str| {
            let found = settings.resource.iter().find(|(own, _)| own == key);
            found.map(|(_, value)| value.as_str())
        };
        assert_eq!(of("service.name"), Some("blue"));
        assert_eq!(of("service.version"), Some("1.2.3"));
        assert_eq!(of("zone"), Some("a,b"));
        assert!((settings.sample_ratio - 0.25).abs() < f64::EPSILON);
        assert_eq!(settings.headers[0].1, "Bearer s3cret");
        assert_eq!(
            settings.tls.authorities,
            Authorities::File("/ca.pem".into())
        );
        assert!(!format!("{settings:?}").contains("s3cret"));
        let ours = Given {
            service_name: Some("green".to_owned()),
            sample_ratio: Some(1.0),
            ..to("http://c:1")
        };
        let settings = resolve(&ours, &variables).unwrap().unwrap();
        assert_eq!(settings.resource[0].1, "green");
        assert!((settings.sample_ratio - 1.0).abs() < f64::EPSILON);
    }

    #[test]
    fn what_cannot_be_is_refused_and_secrets_are_not_repeated() {
        for endpoint in ["collector:4317", "ftp://c:1", "http://c:1/v1/traces", "x y"] {
            assert!(resolve(&to(endpoint), &[]).is_err(), "{endpoint}");
        }
        let given = to("http://c:1");
        for (name, value) in [
            ("OTEL_EXPORTER_OTLP_PROTOCOL", "http/protobuf"),
            ("OTEL_EXPORTER_OTLP_HEADERS", "s3cret"),
            ("OTEL_EXPORTER_OTLP_HEADERS", "a b=s3cret"),
            ("OTEL_EXPORTER_OTLP_HEADERS", "a=s3cret%0A"),
        ] {
            let error = resolve(&given, &[(name, value)]).unwrap_err().to_string();
            assert!(!error.contains("s3cret"), "{error}");
        }
        let wrong = Given {
            sample_ratio: Some(1.5),
            ..given
        };
        assert!(resolve(&wrong, &[]).is_err());
    }
}
