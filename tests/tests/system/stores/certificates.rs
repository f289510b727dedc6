//! The directory with the certificates of a node, as a platform writes it.

use std::{
    fs,
    os::unix::fs::{PermissionsExt, symlink},
    path::{Path, PathBuf},
};

use drover_testing::certs::{Authority, Wanted};
use tempfile::TempDir;

use crate::stores::{alone::Node, run};

/// An authority for the nodes of a group, and the files that each of them gets.
pub(crate) struct Certificates {
    authority: Authority,
    shown: TempDir,
}

impl Certificates {
    pub(crate) fn new() -> Self {
        let shown = TempDir::with_prefix("drover-store-").unwrap();
        let open = fs::Permissions::from_mode(0o755);
        fs::set_permissions(shown.path(), open).unwrap();
        for name in ["ca.crt", "tls.crt", "tls.key", "names"] {
            symlink(format!("..data/{name}"), shown.path().join(name)).unwrap();
        }
        let certificates = Self {
            authority: Authority::new("db"),
            shown,
        };
        certificates.renew();
        certificates
    }

    /// Issues another certificate, with another key.
    pub(crate) fn renew(&self) {
        let (cert, key) = self.authority.make(&Wanted::server("tls"));
        self.show(&self.authority.pem, &cert, &key);
    }

    /// Shows what another authority has issued, and trusts the own one.
    pub(crate) fn show_that_of(&self, other: &Self) {
        let read = |name: &str| fs::read_to_string(other.path(name)).unwrap();
        self.show(&self.authority.pem, &read("tls.crt"), &read("tls.key"));
    }

    /// The files change at the same time, as in the volume of a Secret.
    fn show(&self, ca: &str, cert: &str, key: &str) {
        let version = TempDir::with_prefix_in("..", self.shown.path()).unwrap();
        let version = version.keep();
        fs::set_permissions(&version, fs::Permissions::from_mode(0o755)).unwrap();
        for (name, content) in [("ca.crt", ca), ("tls.crt", cert), ("tls.key", key)] {
            fs::write(version.join(name), content).unwrap();
        }
        let (link, new) = (self.path(""), self.shown.path().join("..new"));
        symlink(&version, &new).unwrap();
        fs::rename(new, link).unwrap();
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        let version = self.shown.path().join("..data");
        if name.is_empty() {
            version
        } else {
            version.join(name)
        }
    }

    /// The authority, as programs are told of it.
    pub(crate) fn ca(&self) -> String {
        self.path("ca.crt").to_str().unwrap().to_owned()
    }

    /// Shows them to the nodes that a slot gets from now on.
    pub(crate) fn shown_to(&self, node: &mut Node, tls: &str) {
        node.sets("TLS", tls);
        node.sets("DROVER_TLS", self.shown.path().to_str().unwrap());
    }
}

/// Serial number of the certificate that a server shows. `None` if it shows none. `starttls` is the protocol that asks for it, or
/// empty.
pub(crate) fn serial(host: &str, port: u16, starttls: &str) -> Option<String> {
    let ask = format!(
        "openssl s_client -connect {host}:{port} {} </dev/null 2>/dev/null | openssl x509 -noout -serial",
        if starttls.is_empty() {
            String::new()
        } else {
            format!("-starttls {starttls}")
        }
    );
    let output = run("sh", &["-c", &ask]);
    let said = String::from_utf8_lossy(&output.stdout).trim().to_owned();
    (!said.is_empty()).then_some(said)
}

/// Serial number of the certificate in a file.
pub(crate) fn serial_of(file: &Path) -> String {
    let file = file.to_str().unwrap();
    let output = run("openssl", &["x509", "-noout", "-serial", "-in", file]);
    String::from_utf8_lossy(&output.stdout).trim().to_owned()
}
