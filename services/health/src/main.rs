//! `drover health` alone: the command line would be most of an image that only needs a health check.
//!
//! `drover-health ADDR` asks `grpc.health.v1`; over TLS if `DROVER_CA` names a file with authorities, with the name
//! `DROVER_SERVER_NAME` instead of the host. Exit codes: 0 serving, 1 not, 5 no answer, 64 wrong usage.

use std::{env, process::ExitCode};

use drover_client::{
    Authorities, ClientSettings, Target,
    health::{self, ServingStatus},
};

fn main() -> ExitCode {
    let mut arguments = env::args().skip(1);
    let (Some(address), None) = (arguments.next(), arguments.next()) else {
        eprintln!("usage: drover-health ADDR");
        return ExitCode::from(64);
    };
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    let asked = match runtime {
        Ok(runtime) => runtime.block_on(ask(&address)),
        Err(error) => Err((1, error.to_string())),
    };
    match asked {
        Ok(()) => ExitCode::SUCCESS,
        Err((code, why)) => {
            eprintln!("{address}: {why}");
            ExitCode::from(code)
        }
    }
}

/// Errors: the exit code, and why.
async fn ask(address: &str) -> Result<(), (u8, String)> {
    let target = target(address).map_err(|why| (64, why))?;
    match health::check(&target, "").await {
        Ok(ServingStatus::Serving) => Ok(()),
        Ok(status) => Err((1, status.as_str_name().to_owned())),
        Err(error) => Err((5, error.to_string())),
    }
}

fn target(address: &str) -> Result<Target, String> {
    let set = |name: &str| env::var(name).ok().filter(|value| !value.is_empty());
    let ca = set("DROVER_CA");
    let target = health::target(address, ca.is_some()).map_err(|error| error.to_string())?;
    if !target.is_encrypted() {
        return Ok(target);
    }
    let settings = ClientSettings {
        authorities: ca.map_or(Authorities::System, |path| Authorities::File(path.into())),
        server_name: set("DROVER_SERVER_NAME"),
        ..ClientSettings::default()
    };
    target.with_tls(settings).map_err(|error| error.to_string())
}
