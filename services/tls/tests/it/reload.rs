//! Files that change while a server or a client uses them.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "tests fail when they cannot go on"
)]

use std::sync::Arc;

use drover_testing::certs::{self, Authority, DAY, Wanted, replace};
use drover_tls::{
    Authorities, Certificate, Client, ClientSettings, Server, ServerFiles, server::Look,
};
use rustls::pki_types::{CertificateDer, pem::PemObject};

fn server(authority: &Authority) -> (Server, certs::Pair) {
    let pair = authority.server();
    let files = ServerFiles {
        cert: pair.cert.clone(),
        key: pair.key.clone(),
        client_ca: Some(authority.ca()),
        crl: None,
    };
    (Server::load(files).unwrap(), pair)
}

#[test]
fn a_change_is_used_once_two_looks_agree() {
    let authority = Authority::new("ours");
    let (server, pair) = server(&authority);
    let before = server.config();
    assert_eq!(server.look(), Look::Same);
    let (cert, key) = authority.make(&Wanted::server("server"));
    replace(&pair.cert, &cert);
    // The change is incomplete: the key is still the old one.
    assert_eq!(server.look(), Look::Same);
    replace(&pair.key, &key);
    assert_eq!(server.look(), Look::Same);
    assert!(Arc::ptr_eq(&before, &server.config()));
    assert_eq!(server.look(), Look::Changed);
    assert!(!Arc::ptr_eq(&before, &server.config()));
    assert_eq!(server.look(), Look::Same);
}

#[test]
fn what_cannot_be_used_is_said_once_and_the_last_good_one_stays() {
    let authority = Authority::new("ours");
    let (server, pair) = server(&authority);
    let before = server.config();
    let good = std::fs::read_to_string(&pair.cert).unwrap();
    for broken in ["no certificate", ""] {
        replace(&pair.cert, broken);
        assert_eq!(server.look(), Look::Same);
        assert!(matches!(server.look(), Look::Refused(_)));
        for _ in 0..10 {
            assert_eq!(server.look(), Look::Same);
        }
    }
    std::fs::remove_file(&pair.cert).unwrap();
    assert_eq!(server.look(), Look::Same);
    let Look::Refused(error) = server.look() else {
        panic!("not refused")
    };
    assert!(error.to_string().contains("server.pem"), "{error}");
    assert!(Arc::ptr_eq(&before, &server.config()));
    // Restoring the content in use is no change, and a later error is reported again.
    replace(&pair.cert, &good);
    assert_eq!(server.look(), Look::Same);
    replace(&pair.cert, "no certificate");
    assert_eq!(server.look(), Look::Same);
    assert!(matches!(server.look(), Look::Refused(_)));
}

#[test]
fn a_list_of_revoked_certificates_that_cannot_be_read_leaves_the_last_one_in_use() {
    let authority = Authority::new("ours");
    let pair = authority.server();
    let [ann, bob] = ["ann", "bob"].map(|name| authority.write(&Wanted::server(name)));
    let crl = authority.path("crl.pem");
    replace(&crl, &authority.revoke(&[&bob], DAY));
    let server = Server::load(ServerFiles {
        cert: pair.cert.clone(),
        key: pair.key.clone(),
        client_ca: Some(authority.ca()),
        crl: Some(crl.clone()),
    })
    .unwrap();
    let trusts = |pair: &certs::Pair| {
        let pem = std::fs::read(&pair.cert).unwrap();
        let der = CertificateDer::from_pem_slice(&pem).unwrap();
        server
            .still_trusts(&[der])
            .map_err(|error| drover_tls::explain::to_server(&error).1)
    };
    let changes = server.trust();
    for broken in ["no list", ""] {
        replace(&crl, broken);
        assert_eq!(server.look(), Look::Same);
        assert!(matches!(server.look(), Look::Refused(_)));
        assert!(trusts(&bob).unwrap_err().contains("it is revoked"));
        trusts(&ann).unwrap();
    }
    assert!(!changes.has_changed().unwrap());
    replace(&crl, &authority.revoke(&[&ann], DAY));
    assert_eq!((server.look(), server.look()), (Look::Same, Look::Changed));
    assert!(changes.has_changed().unwrap());
    trusts(&bob).unwrap();
    assert!(trusts(&ann).unwrap_err().contains("it is revoked"));
}

#[test]
fn a_client_keeps_what_worked() {
    let authority = Authority::new("ours");
    let own = authority.client("own", "spiffe://drover/admin/a");
    let client = Client::new(ClientSettings {
        authorities: Authorities::Pem(authority.pem.clone()),
        certificate: Some((own.cert.clone(), own.key.clone()).into()),
        ..ClientSettings::default()
    });
    let before = client.config().unwrap();
    assert!(Arc::ptr_eq(&before, &client.config().unwrap()));
    replace(&own.cert, "broken");
    assert!(Arc::ptr_eq(&before, &client.config().unwrap()));
    let (cert, key) = authority.make(&Wanted::client("own", "spiffe://drover/admin/b"));
    replace(&own.cert, &cert);
    replace(&own.key, &key);
    let after = client.config().unwrap();
    assert_eq!(
        after.own.as_ref().unwrap().uris,
        ["spiffe://drover/admin/b"]
    );
}

#[test]
fn a_certificate_is_read_as_it_was_made() {
    let authority = Authority::new("ours");
    let pair = authority.write(&Wanted {
        common_name: Some("somebody"),
        uris: vec!["spiffe://drover/viewer/a"],
        names: vec!["a.example.com", "::1", "10.0.0.1"],
        ..Wanted::server("one")
    });
    let read = Certificate::read_file(&pair.cert).unwrap().remove(0);
    assert_eq!(read.names, ["a.example.com", "::1", "10.0.0.1"]);
    assert_eq!(read.uris, ["spiffe://drover/viewer/a"]);
    assert_eq!(read.common_name.as_deref(), Some("somebody"));
    assert!(read.issuer.contains("ours"), "{}", read.issuer);
    assert!(!read.is_authority && read.not_before < read.not_after);
}

#[test]
fn a_certificate_is_of_the_authority_whose_key_has_signed_it() {
    let (ours, namesake) = (Authority::new("ours"), Authority::new("ours"));
    let read = |path: std::path::PathBuf| Certificate::read_file(&path).unwrap().remove(0);
    let own = read(ours.client("ann", "spiffe://drover/admin/ann").cert);
    assert!(own.is_signed_by(&read(ours.ca())));
    assert!(!own.is_signed_by(&read(namesake.ca())));
    assert!(!own.is_signed_by(&own));
}
