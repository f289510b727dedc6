//! Client certificates that are no longer trusted: revoked, or issued by a CA that was removed.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "tests fail when they cannot go on"
)]

use std::{net::SocketAddr, path::PathBuf, time::Duration};

use drover_client::{Authorities, Channel, ClientSettings, Target, connect, to_error};
use drover_core::Error;
use drover_proto::platform::v1::{
    StreamLogsResponse, inventory_service_client::InventoryServiceClient,
    node_access_service_client::NodeAccessServiceClient,
};
use drover_server::{
    Running, ServerSettings, Shutdown, StartError, listen, settings::TlsSettings, spawn,
};
use drover_testing::certs::{Authority, DAY, Pair, Wanted, replace};
use tonic::Streaming;

use crate::common::{Demo, ask, eventually, follow, service};

const ANN: &str = "spiffe://drover/admin/ann";
const BOB: &str = "spiffe://drover/admin/bob";
/// Timeout for the end of a connection, including the file checks and a busy machine.
const PATIENCE: Duration = Duration::from_secs(15);

fn settings(server: &Pair, client_ca: PathBuf, crl: Option<PathBuf>) -> ServerSettings {
    ServerSettings {
        tls: TlsSettings {
            cert: Some(server.cert.clone()),
            key: Some(server.key.clone()),
            client_ca: Some(client_ca),
            crl,
        },
        ..ServerSettings::default()
    }
}

async fn start(settings: &ServerSettings) -> Running {
    let listener = listen(settings).await.unwrap();
    let service = service(&Demo::default());
    spawn(service, listener, settings, Shutdown::new()).unwrap()
}

fn dial(address: SocketAddr, tls: ClientSettings) -> Channel {
    let target: Target = format!("https://{address}").parse().unwrap();
    connect(&target.with_tls(tls).unwrap())
}

fn by(authority: &Authority, address: SocketAddr, own: &Pair) -> Channel {
    let tls = ClientSettings {
        authorities: Authorities::File(authority.ca()),
        certificate: Some((own.cert.clone(), own.key.clone()).into()),
        ..ClientSettings::default()
    };
    dial(address, tls)
}

async fn call(channel: &Channel) -> Result<(), Error> {
    InventoryServiceClient::new(channel.clone())
        .list_hosts(ask(""))
        .await
        .map(drop)
        .map_err(|status| to_error(&status))
}

async fn open(channel: &Channel) -> Streaming<StreamLogsResponse> {
    let mut client = NodeAccessServiceClient::new(channel.clone());
    let mut stream = client
        .stream_logs(follow("open"))
        .await
        .unwrap()
        .into_inner();
    stream.message().await.unwrap().unwrap();
    stream
}

async fn ended(mut stream: Streaming<StreamLogsResponse>) -> String {
    let end = tokio::time::timeout(PATIENCE, stream.message()).await;
    end.expect("it goes on").unwrap_err().message().to_owned()
}

async fn goes_on(mut stream: Streaming<StreamLogsResponse>) {
    let silence = tokio::time::timeout(Duration::from_millis(50), stream.message()).await;
    assert!(silence.is_err(), "{silence:?}");
}

#[tokio::test]
async fn a_revoked_certificate_is_refused_and_what_is_open_of_it_ends_and_nothing_else() {
    let authority = Authority::new("ours");
    let (ann, bob) = (authority.client("ann", ANN), authority.client("bob", BOB));
    let crl = authority.path("crl.pem");
    replace(&crl, &authority.revoke(&[], DAY));
    let settings = settings(&authority.server(), authority.ca(), Some(crl.clone()));
    let running = start(&settings).await;
    let [of_ann, of_bob] = [&ann, &bob].map(|own| by(&authority, running.address(), own));
    let (watch_of_ann, watch_of_bob) = (open(&of_ann).await, open(&of_bob).await);

    replace(&crl, &authority.revoke(&[&bob], DAY));
    let told = ended(watch_of_bob).await;
    assert!(
        told.contains("the client certificate was revoked"),
        "{told}"
    );
    eventually("the connection is closed, and no other made", async || {
        let refused = call(&of_bob).await.err();
        refused.is_some_and(|error| {
            let words = "the server refuses the client's certificate: it is revoked";
            error.message().contains(words)
        })
    })
    .await;
    call(&of_ann).await.unwrap();
    goes_on(watch_of_ann).await;
    call(&by(&authority, running.address(), &ann))
        .await
        .unwrap();
}

#[tokio::test]
async fn what_is_open_ends_when_its_authority_is_taken_away() {
    let (ours, theirs) = (Authority::new("ours"), Authority::new("theirs"));
    let bundle = ours.path("bundle.pem");
    replace(&bundle, &format!("{}{}", ours.pem, theirs.pem));
    let server = ours.server();
    let running = start(&settings(&server, bundle.clone(), None)).await;
    let (ann, bob) = (ours.client("ann", ANN), theirs.client("bob", BOB));
    let [of_ann, of_bob] = [&ann, &bob].map(|own| by(&ours, running.address(), own));
    let (watch_of_ann, watch_of_bob) = (open(&of_ann).await, open(&of_bob).await);

    replace(&bundle, &ours.pem);
    let told = ended(watch_of_bob).await;
    assert!(
        told.contains("its authority is not trusted any more"),
        "{told}"
    );
    eventually("the connection is closed, and no other made", async || {
        let refused = call(&of_bob).await.err();
        refused.is_some_and(|error| error.message().contains("that the server does not trust"))
    })
    .await;
    // A new server certificate alone affects nobody.
    let (cert, key) = ours.make(&Wanted::server("server"));
    replace(&server.key, &key);
    replace(&server.cert, &cert);
    call(&of_ann).await.unwrap();
    goes_on(watch_of_ann).await;
}

#[tokio::test]
async fn with_lists_nobody_is_let_in_of_whom_none_says_anything_and_nobody_once_they_ended() {
    let (ours, theirs) = (Authority::new("ours"), Authority::new("theirs"));
    let bundle = ours.path("bundle.pem");
    replace(&bundle, &format!("{}{}", ours.pem, theirs.pem));
    let (ann, bob) = (ours.client("ann", ANN), theirs.client("bob", BOB));
    let crl = ours.path("crl.pem");
    let server = ours.server();
    for (lists, of_ann, of_bob) in [
        (ours.revoke(&[], DAY), true, false),
        (ours.revoke(&[], DAY) + &theirs.revoke(&[], DAY), true, true),
        (
            ours.revoke(&[], -DAY) + &theirs.revoke(&[], DAY),
            false,
            true,
        ),
    ] {
        replace(&crl, &lists);
        let running = start(&settings(&server, bundle.clone(), Some(crl.clone()))).await;
        for (own, allowed) in [(&ann, of_ann), (&bob, of_bob)] {
            let answer = call(&by(&ours, running.address(), own)).await;
            assert_eq!(answer.is_ok(), allowed, "{answer:?}");
            if let Err(error) = answer {
                let words = "no list of revoked certificates that holds";
                assert!(error.message().contains(words), "{error}");
            }
        }
    }
}

#[tokio::test]
async fn what_is_open_ends_with_the_list_by_which_it_is_known() {
    let (ours, theirs) = (Authority::new("ours"), Authority::new("theirs"));
    let bundle = ours.path("bundle.pem");
    replace(&bundle, &format!("{}{}", ours.pem, theirs.pem));
    let crl = ours.path("crl.pem");
    replace(&crl, &(ours.revoke(&[], DAY) + &theirs.revoke(&[], 3)));
    let (ann, bob) = (ours.client("ann", ANN), theirs.client("bob", BOB));
    let running = start(&settings(&ours.server(), bundle, Some(crl))).await;
    let [of_ann, of_bob] = [&ann, &bob].map(|own| by(&ours, running.address(), own));
    let (watch_of_ann, watch_of_bob) = (open(&of_ann).await, open(&of_bob).await);

    let told = ended(watch_of_bob).await;
    assert!(
        told.contains("list of revoked certificates has ended"),
        "{told}"
    );
    goes_on(watch_of_ann).await;
    call(&of_ann).await.unwrap();
}

#[tokio::test]
async fn a_list_that_cannot_be_read_keeps_a_server_from_starting() {
    let authority = Authority::new("ours");
    let server = authority.server();
    let crl = authority.path("crl.pem");
    let settings = settings(&server, authority.ca(), Some(crl.clone()));
    let twice = authority.revoke(&[&server], DAY) + &authority.revoke(&[], DAY);
    for (text, words) in [
        (None, "No such file"),
        (Some("no list"), "holds no list of revoked certificates"),
        (
            Some("-----BEGIN X509 CRL-----\nAAAA\n-----END X509 CRL-----\n"),
            "holds a list that cannot be read",
        ),
        // Only one of them would be checked, which may be the older one.
        (
            Some(&*twice),
            "holds two lists of CN=ours; keep the newest only",
        ),
    ] {
        if let Some(text) = text {
            replace(&crl, text);
        }
        let Err(StartError::Tls(error)) = listen(&settings).await else {
            panic!("it starts: {text:?}");
        };
        let error = error.to_string();
        assert!(
            error.contains("crl.pem") && error.contains(words),
            "{error}"
        );
    }
}

#[tokio::test]
async fn a_client_refuses_a_revoked_server_and_leaves_one_that_becomes_so() {
    let authority = Authority::new("ours");
    let server = authority.server();
    let ann = authority.client("ann", ANN);
    let running = start(&settings(&server, authority.ca(), None)).await;
    let crl = authority.path("servers.pem");
    replace(&crl, &authority.revoke(&[], DAY));
    let tls = ClientSettings {
        authorities: Authorities::File(authority.ca()),
        certificate: Some((ann.cert, ann.key).into()),
        crl: Some(crl.clone()),
        ..ClientSettings::default()
    };
    let channel = dial(running.address(), tls);
    let watch = open(&channel).await;
    replace(&crl, &authority.revoke(&[&server], DAY));
    let words = "the server's certificate is refused: it is revoked";
    let told = ended(watch).await;
    assert!(told.contains(words), "{told}");
    let error = call(&channel).await.unwrap_err();
    assert!(error.message().contains(words), "{error}");
}
