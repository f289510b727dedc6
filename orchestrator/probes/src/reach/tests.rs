use std::sync::atomic::{AtomicUsize, Ordering};

use drover_core::spec::{Health, Probe};
use tokio::net::TcpListener;

use super::*;
use crate::network::tests::{answering, grpc_server, health};

const SERVING: tonic_health::ServingStatus = tonic_health::ServingStatus::Serving;

fn reach(allow: &[&str], deny: &[&str]) -> Result<Reach> {
    let texts = |list: &[&str]| list.iter().map(|text| (*text).to_owned()).collect();
    Reach::of(&ProbeSettings {
        allow: texts(allow),
        deny: texts(deny),
    })
}

fn may(reach: &Reach, ip: &str, local: bool) -> bool {
    reach.refusal(ip.parse().unwrap(), local).is_none()
}

async fn refused(gate: Gate<'_>, probe: &Health, address: &str) -> String {
    match crate::network::ask(probe, address, gate, "n", None).await {
        Err(Failed::Way(why)) => why,
        other => panic!("{address}: {other:?}"),
    }
}

fn probes() -> [Health; 3] {
    [
        health(Probe::Tcp { port: None }),
        health(Probe::Http {
            port: None,
            path: "/latest/meta-data/".into(),
            tls: None,
        }),
        health(Probe::Grpc {
            port: None,
            service: String::new(),
            tls: None,
        }),
    ]
}

#[test]
fn some_addresses_are_never_probed() {
    let reach = reach(&["0.0.0.0/0", "::/0"], &[]).unwrap();
    for ip in [
        "169.254.169.254",
        "169.254.0.1",
        "fe80::1",
        "febf::1",
        "fd00:ec2::254",
        "fd20:ce::254",
        "100.100.100.200",
        "168.63.129.16",
        "0.0.0.0",
        "0.1.2.3",
        "::",
        "224.0.0.1",
        "255.255.255.255",
        "ff02::1",
        "::ffff:169.254.169.254",
        "::169.254.169.254",
        "64:ff9b::169.254.169.254",
        "2002:a9fe:a9fe::1",
    ] {
        assert!(!may(&reach, ip, true), "{ip}");
        assert!(!may(&reach, ip, false), "{ip}");
    }
    for ip in [
        "10.0.0.7",
        "192.0.2.1",
        "fd00::7",
        "2001:db8::1",
        "64:ff9b::10.0.0.7",
    ] {
        assert!(may(&reach, ip, false), "{ip}");
    }
}

#[test]
fn loopback_is_for_platforms_of_this_machine() {
    let reach = reach(&[], &[]).unwrap();
    for ip in ["127.0.0.1", "127.8.8.8", "::1", "::ffff:127.0.0.1"] {
        assert!(may(&reach, ip, true), "{ip}");
        assert!(!may(&reach, ip, false), "{ip}");
    }
}

#[test]
fn ranges_are_those_of_the_settings() {
    let reach = reach(&["10.0.0.0/8", "fd00::/8"], &["10.9.0.0/16", "10.1.2.3"]).unwrap();
    for (ip, allowed) in [
        ("10.0.0.7", true),
        ("10.255.0.1", true),
        ("fd12::1", true),
        ("10.9.1.1", false),
        ("10.1.2.3", false),
        ("11.0.0.1", false),
        ("2001:db8::1", false),
        ("::ffff:10.9.1.1", false),
        ("::ffff:10.0.0.7", true),
        // The translator's address is outside of the allowed range.
        ("64:ff9b::10.0.0.7", false),
    ] {
        assert_eq!(may(&reach, ip, false), allowed, "{ip}");
    }
    for (allow, deny, field) in [
        (&["10.0.0.0/33"][..], &[][..], "probes.allow[0]"),
        (&["10.0.0.0/8", "x"], &[], "probes.allow[1]"),
        (&[], &["10.0.0.0/+8"], "probes.deny[0]"),
        (&[], &["10.0.0.0/"], "probes.deny[0]"),
        (&[], &["fe80::/129"], "probes.deny[0]"),
        (&[], &[""], "probes.deny[0]"),
    ] {
        let error = super::tests::reach(allow, deny).unwrap_err();
        assert_eq!(error.fields()[0].field, field, "{error:?}");
    }
}

#[tokio::test]
async fn no_way_to_write_an_address_gets_around_it() {
    let reach = reach(&[], &[]).unwrap();
    let gate = Gate {
        reach: &reach,
        local: false,
    };
    for host in [
        // The same four bytes, as C libraries parse them.
        "2852039166",
        "0xa9fea9fe",
        "0251.0376.0251.0376",
        "169.254.43518",
        "[::ffff:169.254.169.254]",
        "[::ffff:a9fe:a9fe]",
        "0.0.0.0",
        "0",
        "[::]",
        "[fd00:ec2::254]",
        "127.1",
        "2130706433",
        "localhost",
    ] {
        for probe in probes() {
            let why = refused(gate, &probe, &format!("{host}:80")).await;
            assert!(why.contains("is not probed"), "{host}: {why}");
        }
        let second = std::time::Duration::from_secs(1);
        let address = format!("grpc://{host}:80");
        assert!(!crate::network::agent_says(&address, "n", second, gate).await);
    }
}

#[tokio::test]
async fn a_name_is_judged_by_what_it_leads_to() {
    let reach = Reach {
        lookup: |_| Box::pin(async { Ok(vec!["169.254.169.254:80".parse().unwrap()]) }),
        ..Reach::default()
    };
    for local in [false, true] {
        let gate = Gate {
            reach: &reach,
            local,
        };
        for probe in probes() {
            let why = refused(gate, &probe, "innocent.example.com:80").await;
            assert!(why.contains("169.254.169.254 is not probed"), "{why}");
        }
    }
}

#[tokio::test]
async fn what_was_judged_is_connected_to() {
    static ASKED: AtomicUsize = AtomicUsize::new(0);
    static PORT: AtomicUsize = AtomicUsize::new(0);
    // Responds differently each time, as in a DNS rebinding attack: first with the good address.
    let reach = Reach {
        lookup: |_| {
            let first = ASKED.fetch_add(1, Ordering::SeqCst) == 0;
            let port = u16::try_from(PORT.load(Ordering::SeqCst)).unwrap();
            let host = if first {
                [127, 0, 0, 1]
            } else {
                [169, 254, 169, 254]
            };
            Box::pin(async move { Ok(vec![SocketAddr::from((host, port))]) })
        },
        ..Reach::default()
    };
    let gate = Gate {
        reach: &reach,
        local: true,
    };
    let grpc = grpc_server(Some("n"), Some(SERVING)).await;
    let http = answering(b"HTTP/1.1 200 OK\r\n\r\n").await;
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let tcp = listener.local_addr().unwrap().to_string();
    for (mut probe, at) in probes().into_iter().zip([tcp, http, grpc]) {
        if let Probe::Grpc { service, .. } = &mut probe.probe {
            "db".clone_into(service);
        }
        ASKED.store(0, Ordering::SeqCst);
        let at: SocketAddr = at.parse().unwrap();
        PORT.store(at.port().into(), Ordering::SeqCst);
        let asked = crate::network::ask(&probe, "node.example.com:80", gate, "n", None).await;
        assert_eq!(asked, Ok(()), "{probe:?}");
        assert_eq!(ASKED.load(Ordering::SeqCst), 1, "{probe:?}");
    }
}

#[tokio::test]
async fn of_several_addresses_those_are_tried_that_may_be() {
    static PORT: AtomicUsize = AtomicUsize::new(0);
    let reach = Reach {
        lookup: |_| {
            let port = u16::try_from(PORT.load(Ordering::SeqCst)).unwrap();
            let hosts = ["169.254.169.254", "127.0.0.1"].map(|ip| ip.parse::<IpAddr>().unwrap());
            Box::pin(async move { Ok(hosts.map(|ip| SocketAddr::new(ip, port)).into()) })
        },
        ..Reach::default()
    };
    let at: SocketAddr = answering(b"HTTP/1.1 200 OK\r\n\r\n").await.parse().unwrap();
    PORT.store(at.port().into(), Ordering::SeqCst);
    let gate = Gate {
        reach: &reach,
        local: true,
    };
    let [_, http, _] = probes();
    let asked = crate::network::ask(&http, "node.example.com:80", gate, "n", None).await;
    assert_eq!(asked, Ok(()));
}
