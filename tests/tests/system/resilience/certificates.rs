//! Rotation of the certificates of nodes, of their CA and of the orchestrator.

use std::fs;

use drover_proto::{
    orchestrator::v1::{self as pb, secret_value},
    platform::v1::{HealthPolicy, HttpProbe, PortRef, ProbeTls, health_policy::Probe, port_ref},
};

use crate::resilience::{
    CALL, apply,
    certs::{self, Authority, DAY, Wanted},
    described, document, drover, ids, object,
    real::World,
    records, span, world_with,
};

/// Serves HTTPS to clients of its CA. The certificate is read from a directory at each connection.
const SECURE: &str = r#"
command: python3
arguments:
  - -c
  - |
    import http.server, os, ssl, sys
    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(200); self.end_headers()
        def log_message(self, *a): pass
    class Server(http.server.HTTPServer):
        def get_request(self):
            sock, at = self.socket.accept()
            sock.settimeout(5)
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(folder + "/server.pem", folder + "/server.key")
            context.load_verify_locations(folder + "/ca.pem")
            context.verify_mode = ssl.CERT_REQUIRED
            return context.wrap_socket(sock, server_side=True), at
        def handle_error(self, *a): pass
    folder = os.environ["CERTIFICATES"]
    Server((os.environ["DROVER_HOST"], int(os.environ["DROVER_PORT_CLIENT"])), Handler).serve_forever()
environment:
  CERTIFICATES: {{ group.attributes.certificates | tojson }}
readiness: {port: client}
"#;

async fn put(world: &World, name: &str, data: &[(&str, &str)]) {
    let data = data.iter().map(|(key, text)| {
        let value = Some(secret_value::Value::Text((*text).to_owned()));
        ((*key).to_owned(), pb::SecretValue { value })
    });
    let request = pb::ApplySecretRequest {
        name: name.to_owned(),
        data: data.collect(),
        purpose: pb::SecretPurpose::Probe.into(),
        ..Default::default()
    };
    world.client().apply_secret(request, CALL).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nodes_are_probed_by_https_with_certificates_from_secrets_that_are_changed_under_them() {
    let world = world_with("secure", SECURE).await;
    let (old, new) = (Authority::new("old"), Authority::new("new"));
    let folder = world.state().with_file_name("certificates");
    fs::create_dir(&folder).unwrap();
    let serve = |authority: &Authority, valid| {
        let wanted = Wanted {
            names: vec!["db.test"],
            valid,
            ..Wanted::server("server")
        };
        let (cert, key) = authority.make(&wanted);
        for (name, text) in [
            ("server.pem", &cert),
            ("server.key", &key),
            ("ca.pem", &authority.pem),
        ] {
            certs::replace(&folder.join(name), text);
        }
    };
    let own = |authority: &Authority| {
        authority.make(&Wanted::client("own", "spiffe://drover/orchestrator/a"))
    };
    serve(&old, (-DAY, DAY));
    put(&world, "ca", &[("ca.crt", &old.pem)]).await;
    let (cert, key) = own(&old);
    put(&world, "own", &[("tls.crt", &cert), ("tls.key", &key)]).await;
    let mut cluster = document("safe", "secure", 2);
    let spec = cluster.spec.as_mut().unwrap();
    spec.attributes = Some(object(&[("certificates", folder.to_str().unwrap())]));
    // Unhealthy nodes are only observed here, not replaced.
    spec.remediation = Some(pb::RemediationPolicy {
        enabled: Some(false),
        ..Default::default()
    });
    spec.health = Some(HealthPolicy {
        probe: Some(Probe::Http(HttpProbe {
            port: Some(PortRef {
                port: Some(port_ref::Port::Name("client".to_owned())),
            }),
            tls_settings: Some(ProbeTls {
                ca_secret: "ca".to_owned(),
                server_name: "db.test".to_owned(),
                client_certificate_secret: "own".to_owned(),
            }),
            ..Default::default()
        })),
        interval: span(200),
        timeout: span(5_000),
        failure_threshold: Some(2),
        ..Default::default()
    });
    apply(&world, &cluster).await.unwrap();
    world.ready("safe", 2).await;
    let before = ids(&records(&world, "safe").await);
    let says = async |words: &str| {
        let is = |message: &str| match words {
            "" => message.is_empty(),
            words => message.contains(words),
        };
        world
            .until(&format!("both nodes say {words:?}"), async |world| {
                let nodes = world.records("safe").await.unwrap_or_default();
                nodes.len() == 2 && nodes.iter().all(|node| is(&node.message))
            })
            .await;
    };

    serve(&old, (-2 * DAY, -DAY));
    says("it expired at ").await;
    world
        .until("both nodes are sick", async |world| {
            let nodes = world.records("safe").await.unwrap_or_default();
            let sick = |node: &pb::Node| node.state() == pb::NodeState::Unhealthy;
            nodes.len() == 2 && nodes.iter().all(sick)
        })
        .await;
    let said = described(&world, "safe");
    assert!(said.contains("it expired at "), "{said}");
    serve(&new, (-DAY, DAY));
    says("authority that is not trusted here").await;
    put(&world, "ca", &[("ca.crt", &new.pem)]).await;
    says("the server refuses the client's certificate").await;
    let (cert, key) = own(&new);
    put(&world, "own", &[("tls.crt", &cert), ("tls.key", &key)]).await;
    world.ready("safe", 2).await;

    // If the orchestrator's certificate is rejected, that says nothing about the health of the nodes.
    let (cert, key) = own(&old);
    put(&world, "own", &[("tls.crt", &cert), ("tls.key", &key)]).await;
    says("the server refuses the client's certificate").await;
    assert!(
        world.is_ready("safe", 2).await,
        "they are as well as they were"
    );
    let (cert, key) = own(&new);
    put(&world, "own", &[("tls.crt", &cert), ("tls.key", &key)]).await;
    says("").await;
    world.ready("safe", 2).await;
    let nodes = records(&world, "safe").await;
    assert_eq!(ids(&nodes), before, "nothing was replaced");
    let events = world.events("safe").await;
    assert!(
        events
            .iter()
            .all(|event| !event.message.contains("PRIVATE KEY"))
    );
    assert!(!world.orchestrator.said().contains("PRIVATE KEY"));

    // A secret that is referred to cannot be deleted.
    let gone = drover(&world, &["delete", "secret", "ca"]);
    let said = String::from_utf8_lossy(&gone.stderr).into_owned();
    assert!(
        !gone.status.success() && said.contains("cluster/safe"),
        "{said}"
    );
}
