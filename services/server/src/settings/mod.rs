//! Layered settings: defaults, then `--config FILE`, then the environment, then flags.
//!
//! A server has two settings structs, side by side in one YAML file: [`ServerSettings`], which all servers have, and
//! its own. The latter is any struct that implements `Default`, `Serialize` and `Deserialize`, with
//! `#[serde(default, deny_unknown_fields)]`, and serializes all of its fields; the same applies to nested structs. Its
//! flags are a clap `Args` struct with the same field names, all optional, that serializes only the given ones
//! (`#[serde(skip_serializing_if = "Option::is_none")]`).
//!
//! The environment variable of a setting is `DROVER_` followed by its path in upper case, with `__` between path
//! segments: `DROVER_SHUTDOWN_GRACE`, `DROVER_RETRY__FIRST`. Values are YAML (`30s`, `true`, `[a, b]`).

pub mod duration;
mod load;
mod secret;

use std::{
    net::{Ipv4Addr, SocketAddr},
    path::PathBuf,
    time::Duration,
};

use clap::{Args, ValueEnum};
use serde::{Deserialize, Serialize};

pub use self::{
    load::{SettingsError, load, render},
    secret::Secret,
};

/// How logs look.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum LogFormat {
    /// For people on a terminal, JSON otherwise.
    #[default]
    Auto,
    /// For people.
    Human,
    /// One JSON object a line.
    Json,
}

/// What every server can be told.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ServerSettings {
    /// Address to listen on. Default: loopback and the port of the server.
    pub listen: SocketAddr,
    /// Whether plaintext is served on an address that others can reach. Default false.
    pub insecure: bool,
    /// Names by which this server is called, besides addresses, localhost and the names of its certificate; `*.example.com`
    /// is every name of one label more. A request for another name gets status 421: a page of a browser that makes its own
    /// name lead here cannot pass for anything else. Default: none.
    pub allowed_hosts: Vec<String>,
    /// Certificate of this server, and whose certificates of clients it believes. Default: plaintext.
    pub tls: TlsSettings,
    /// File with the rules of who may do what. Default: everybody may do everything, or with `tls.client_ca` what their
    /// certificates say. It is read again when it changes.
    pub access: Option<PathBuf>,
    /// File that says who did what, a line of JSON each; `-` is standard output. Default: none.
    pub audit_log: Option<PathBuf>,
    /// Whether calls that change nothing are in it, too. Default false; refusals, plans and logs of nodes always are.
    pub audit_reads: bool,
    /// Whether a call that would be in it is refused with `UNAVAILABLE` if that cannot be written: its line is on the disk
    /// before it has an effect. Default false: lines that cannot be written are counted, and a later line says how many.
    pub audit_required: bool,
    /// File with the key of the digests in it, 64 hexadecimal digits, made if it is not there. Default: the name of the
    /// log and `.key`; of standard output, a key that nobody knows.
    pub audit_key: Option<PathBuf>,
    /// Whether `/metrics` needs what every call needs. Default true.
    pub metrics_auth: bool,
    /// How long calls in flight may take to finish when the server stops. Default 30 s.
    #[serde(with = "duration")]
    pub shutdown_grace: Duration,
    /// How logs look. Default auto.
    pub log_format: LogFormat,
    /// Collector that traces are sent to, OTLP over gRPC: `http://HOST:PORT` or `https://HOST:PORT`. Default: what
    /// `OTEL_EXPORTER_OTLP_ENDPOINT` says; without it none are recorded.
    pub otlp_endpoint: Option<String>,
    /// Authorities of the collector's certificate, PEM. Default: those of the system.
    pub otlp_ca: Option<PathBuf>,
    /// Share of the traces that begin here which is recorded, 0 to 1; a trace that began elsewhere is recorded here if it
    /// is there. Default 1.
    pub otlp_sample_ratio: Option<f64>,
    /// What this server is called in traces. Default: what `OTEL_SERVICE_NAME` says, else its name.
    pub otlp_service_name: Option<String>,
    /// Calls with one answer in flight at once; more are turned away. One caller who has to say who it is gets three
    /// quarters of them. Default 1024.
    pub max_concurrent_requests: usize,
    /// Streams (watches, logs, exec) open at once; more are turned away, and one caller gets three quarters. Default 8192.
    pub max_concurrent_streams: usize,
    /// Connections open at once. For one more the one that was idle longest is ended; if none is idle, it is refused. One
    /// caller who has to say who it is gets three quarters of them for calls. Default 4096, and no more than the limit of
    /// open files allows.
    pub max_connections: usize,
    /// Deadline of a call that brings none; streams have none. Default 60 s.
    #[serde(with = "duration")]
    pub default_deadline: Duration,
    /// Longest deadline of a call with one answer. Default 15 min.
    #[serde(with = "duration")]
    pub max_deadline: Duration,
}

impl Default for ServerSettings {
    fn default() -> Self {
        Self {
            listen: SocketAddr::from((Ipv4Addr::LOCALHOST, 0)),
            insecure: false,
            allowed_hosts: Vec::new(),
            tls: TlsSettings::default(),
            access: None,
            audit_log: None,
            audit_reads: false,
            audit_required: false,
            audit_key: None,
            metrics_auth: true,
            shutdown_grace: Duration::from_secs(30),
            log_format: LogFormat::Auto,
            otlp_endpoint: None,
            otlp_ca: None,
            otlp_sample_ratio: None,
            otlp_service_name: None,
            max_concurrent_requests: 1024,
            max_concurrent_streams: 8192,
            max_connections: 4096,
            default_deadline: Duration::from_secs(60),
            max_deadline: Duration::from_secs(15 * 60),
        }
    }
}

/// Files of TLS, PEM. They are read again when they change.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct TlsSettings {
    /// Certificate, and what lies between it and its authority. Default: none, plaintext is served.
    pub cert: Option<PathBuf>,
    /// Its private key.
    pub key: Option<PathBuf>,
    /// Authorities of client certificates. With it every call needs a certificate of one of them, except
    /// `grpc.health.v1`, `/healthz` and `/readyz`. Default: none is asked for.
    pub client_ca: Option<PathBuf>,
    /// Lists of revoked client certificates (CRL), one of each authority that issues. Connections of a certificate end when
    /// it gets onto one. With a list, a certificate of whose authority there is none is refused, and every one once a list
    /// has ended (`nextUpdate`). Default: none is revoked.
    pub crl: Option<PathBuf>,
}

impl TlsSettings {
    /// The files, if TLS is configured.
    #[must_use]
    pub fn files(&self) -> Option<drover_tls::ServerFiles> {
        Some(drover_tls::ServerFiles {
            cert: self.cert.clone()?,
            key: self.key.clone()?,
            client_ca: self.client_ca.clone(),
            crl: self.crl.clone(),
        })
    }

    fn check(&self) -> Result<(), String> {
        if self.crl.is_some() && self.client_ca.is_none() {
            return Err("tls.crl is given and tls.client_ca is not".to_owned());
        }
        match (&self.cert, &self.key, &self.client_ca) {
            (Some(_), None, _) => Err("tls.cert is given and tls.key is not".to_owned()),
            (None, Some(_), _) => Err("tls.key is given and tls.cert is not".to_owned()),
            (None, None, Some(_)) => {
                Err("tls.client_ca is given and tls.cert and tls.key are not".to_owned())
            }
            _ => Ok(()),
        }
    }
}

impl ServerSettings {
    /// The settings of tracing.
    #[must_use]
    pub fn otlp(&self) -> drover_telemetry::settings::Given {
        drover_telemetry::settings::Given {
            endpoint: self.otlp_endpoint.clone(),
            service_name: self.otlp_service_name.clone(),
            sample_ratio: self.otlp_sample_ratio,
            ca: self.otlp_ca.clone(),
        }
    }

    /// The default settings with this port; 0 for any free port.
    #[must_use]
    pub fn on_port(port: u16) -> Self {
        Self {
            listen: SocketAddr::from((Ipv4Addr::LOCALHOST, port)),
            ..Self::default()
        }
    }
}

/// Maximum for the limits of calls, streams and connections; anything higher would not be a meaningful limit.
const MAX_BOUND: usize = 1_000_000;

impl ServerSettings {
    /// Validates combinations of values.
    fn check(&self) -> Result<(), String> {
        self.tls.check()?;
        crate::audit::check(self)?;
        crate::serve::check_hosts(&self.allowed_hosts)?;
        for (name, value) in [
            ("max_concurrent_requests", self.max_concurrent_requests),
            ("max_concurrent_streams", self.max_concurrent_streams),
            ("max_connections", self.max_connections),
        ] {
            if !(1..=MAX_BOUND).contains(&value) {
                return Err(format!("{name} is {value}, expected 1 to {MAX_BOUND}"));
            }
        }
        if self.default_deadline.is_zero() || self.default_deadline > self.max_deadline {
            let (default, max) = (
                duration::format(self.default_deadline),
                duration::format(self.max_deadline),
            );
            return Err(format!(
                "default_deadline is {default}, expected more than nothing and at most max_deadline, {max}"
            ));
        }
        Ok(())
    }
}

/// The flags that every server has.
#[derive(Clone, Debug, Default, Args, Serialize)]
#[command(next_help_heading = "Server")]
pub struct ServerArgs {
    /// YAML file with settings
    #[arg(long, value_name = "FILE", env = "DROVER_CONFIG")]
    #[serde(skip)]
    pub config: Option<PathBuf>,
    /// Print the settings as they come out, secrets masked, and exit
    #[arg(long)]
    #[serde(skip)]
    pub print_config: bool,
    /// Address to listen on
    #[arg(long, value_name = "ADDR")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub listen: Option<SocketAddr>,
    /// Serve plaintext even where others can reach it
    #[arg(long)]
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub insecure: bool,
    /// Name by which this server is called, besides addresses, localhost and those of its certificate; repeatable
    #[arg(long = "allowed-host", value_name = "NAME", value_delimiter = ',')]
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub allowed_hosts: Vec<String>,
    /// Files of TLS
    #[command(flatten)]
    #[serde(skip_serializing_if = "TlsArgs::is_empty")]
    pub tls: TlsArgs,
    /// Rules of who may do what, YAML; read again when they change
    #[arg(long, value_name = "FILE")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub access: Option<PathBuf>,
    /// Where to write who did what, JSON lines; - is standard output
    #[arg(long, value_name = "FILE")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub audit_log: Option<PathBuf>,
    /// Whether calls that change nothing are written there, too (false)
    #[arg(long, value_name = "BOOL")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub audit_reads: Option<bool>,
    /// Whether calls that cannot be written there are refused (false)
    #[arg(long, value_name = "BOOL")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub audit_required: Option<bool>,
    /// Key of the digests there, made if it is not there (the log's name and .key)
    #[arg(long, value_name = "FILE")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub audit_key: Option<PathBuf>,
    /// Whether /metrics needs what every call needs (true)
    #[arg(long, value_name = "BOOL")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub metrics_auth: Option<bool>,
    /// How long calls in flight may take to finish at the end (30s)
    #[arg(long, value_name = "DURATION", value_parser = duration::parse)]
    #[serde(with = "duration::option", skip_serializing_if = "Option::is_none")]
    pub shutdown_grace: Option<Duration>,
    /// How logs look on stderr
    #[arg(long, value_name = "FORMAT", value_enum)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub log_format: Option<LogFormat>,
    /// Collector that traces are sent to, OTLP over gRPC: http(s)://HOST:PORT
    #[arg(long, value_name = "URL")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub otlp_endpoint: Option<String>,
    /// Authorities of the collector's certificate, PEM
    #[arg(long, value_name = "FILE")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub otlp_ca: Option<PathBuf>,
    /// Share of the traces that begin here which is recorded, 0 to 1 (1)
    #[arg(long, value_name = "RATIO")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub otlp_sample_ratio: Option<f64>,
    /// What this server is called in traces
    #[arg(long, value_name = "NAME")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub otlp_service_name: Option<String>,
    /// Calls in flight at once
    #[arg(long, value_name = "N")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_concurrent_requests: Option<usize>,
    /// Streams open at once
    #[arg(long, value_name = "N")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_concurrent_streams: Option<usize>,
    /// Connections open at once
    #[arg(long, value_name = "N")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_connections: Option<usize>,
    /// Deadline of a call that brings none (60s)
    #[arg(long, value_name = "DURATION", value_parser = duration::parse)]
    #[serde(with = "duration::option", skip_serializing_if = "Option::is_none")]
    pub default_deadline: Option<Duration>,
    /// Longest deadline of a call (15m)
    #[arg(long, value_name = "DURATION", value_parser = duration::parse)]
    #[serde(with = "duration::option", skip_serializing_if = "Option::is_none")]
    pub max_deadline: Option<Duration>,
}

/// The flags of [`TlsSettings`].
#[derive(Clone, Debug, Default, Args, Serialize)]
pub struct TlsArgs {
    /// Certificate of this server, PEM; read again when it changes
    #[arg(long = "tls-cert", value_name = "FILE")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cert: Option<PathBuf>,
    /// Its private key, PEM
    #[arg(long = "tls-key", value_name = "FILE")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub key: Option<PathBuf>,
    /// Authorities of client certificates, PEM: every call then needs one, health checks apart
    #[arg(long = "tls-client-ca", value_name = "FILE")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub client_ca: Option<PathBuf>,
    /// Lists of revoked client certificates (CRL), PEM; read again when they change
    #[arg(long = "tls-crl", value_name = "FILE")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub crl: Option<PathBuf>,
}

impl TlsArgs {
    fn is_empty(&self) -> bool {
        self.cert.is_none() && self.key.is_none() && self.client_ca.is_none() && self.crl.is_none()
    }
}
