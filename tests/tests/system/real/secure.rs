//! Servers and the command line over mutual TLS, with certificates from `drover certs`.

use std::{fs, path::Path, process::Command};

use super::{Server, binary, free_port};

/// Creates a CA in `certs` with certificates for all services and an administrator, and a CRL.
pub fn authority(here: &Path, users: &[&str]) {
    let mut init = drover(here);
    init.args(["certs", "init"]);
    for user in users {
        init.args(["--user", user]);
    }
    let mut crl = drover(here);
    crl.args(["certs", "crl"]);
    for command in [&mut init, &mut crl] {
        let output = command.output().unwrap();
        assert!(output.status.success(), "{output:?}");
    }
}

/// The command line in a directory of its own.
pub fn drover(here: &Path) -> Command {
    let mut command = drover_testing::processes::program(binary("drover"));
    command
        .current_dir(here)
        .env("XDG_CONFIG_HOME", here.join("config"));
    command
}

/// The command line as the administrator of an orchestrator.
pub fn administrator(here: &Path, orchestrator: &Server) -> Command {
    let mut command = drover(here);
    command
        .env("DROVER_SERVER", format!("https://{}", orchestrator.address))
        .env("DROVER_CA", "certs/ca.pem")
        .env("DROVER_CERT", "certs/admin.pem")
        .env("DROVER_KEY", "certs/admin.key");
    command
}

/// A server with its certificate and an audit log.
pub fn server(program: &'static str, name: &str, here: &Path) -> Server {
    let here = fs::canonicalize(here).unwrap();
    let certificate = |name: String| here.join("certs").join(name).to_str().unwrap().to_owned();
    let audit = here.join(format!("{name}.audit"));
    let arguments = [
        "--tls-cert",
        &certificate(format!("{name}.pem")),
        "--tls-key",
        &certificate(format!("{name}.key")),
        "--tls-client-ca",
        &certificate("ca.pem".to_owned()),
        "--tls-crl",
        &certificate("crl.pem".to_owned()),
        "--audit-log",
        audit.to_str().unwrap(),
    ];
    Server::new(program, &here, free_port(), &arguments)
}
