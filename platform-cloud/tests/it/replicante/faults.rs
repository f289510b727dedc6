//! Failing backends and retrying clients.

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use drover_core::{Error, Reason, Result};
use drover_platform::{
    clock::Clock,
    driver::{Batch, Deleted, Deletion, Description, Driver, Listing, Outcome, Target},
    templates::Templates,
};
use drover_platform_cloud::{
    PlatformServer,
    drivers::simulated::{Fault, Operation, Simulated, SimulatedSettings},
};
use drover_proto::platform::v1::{Node, Warning};
use drover_replicante::ReplicanteSettings;
use drover_server::ServerSettings;
use futures::future::join_all;
use uuid::Uuid;

use crate::replicante::client::{SDK, Site, until};

#[tokio::test]
async fn what_cannot_be_read_whole_is_an_error_and_no_short_list() {
    let site = Site::new().await;
    site.provision(SDK).await.made();
    let backend = site.simulated();
    backend.fail_next(
        Operation::List,
        Fault::Refuse(Error::unavailable("on fire")),
    );
    let body = site.send("GET", "/discover", &[], b"").await.refused(503);
    assert_eq!(body["error_cause"], "on fire");
    backend.fail_next(
        Operation::List,
        Fault::Refuse(Error::new(Reason::CredentialsRefused, "expired")),
    );
    site.send("GET", "/discover", &[], b"").await.refused(502);
    assert_eq!(site.discovered("orders").await.len(), 2);
    // Nothing is created if the existing nodes cannot be listed.
    backend.fail_next(
        Operation::List,
        Fault::Refuse(Error::unavailable("on fire")),
    );
    site.provision(SDK).await.refused(503);
    assert_eq!(backend.len(), 2);
}

/// A backend that could not read some items.
struct Unreadable {
    inner: Arc<Simulated>,
    warning: Warning,
}

#[async_trait]
impl Driver for Unreadable {
    fn description(&self) -> Description {
        self.inner.description()
    }

    async fn check(&self, batch: &Batch) -> Result<()> {
        self.inner.check(batch).await
    }

    async fn list(&self) -> Result<Listing> {
        let mut listing = self.inner.list().await?;
        listing.warnings.push(self.warning.clone());
        Ok(listing)
    }

    async fn create(&self, batch: &Batch) -> Vec<Outcome> {
        self.inner.create(batch).await
    }

    async fn delete(&self, target: &Target, options: &Deletion) -> Result<Deleted> {
        self.inner.delete(target, options).await
    }
}

async fn unreadable(cluster_id: Option<&str>, id: Option<&str>) -> Site {
    let inner = Simulated::open(SimulatedSettings::default(), Clock::start()).unwrap();
    let warning = Warning {
        message: "a pod has labels that nobody understands".to_owned(),
        cluster_id: cluster_id.map(str::to_owned),
        id: id.map(str::to_owned),
        ..Warning::default()
    };
    let driver = Arc::new(Unreadable { inner, warning });
    Site::of(PlatformServer::with_driver(driver, Templates::Anything).unwrap()).await
}

#[tokio::test]
async fn an_unreadable_node_is_listed_or_the_list_is_refused() {
    let site = unreadable(Some("orders"), Some("pod-7")).await;
    let ids = site.provision(SDK).await.made();
    let mut expected = vec!["pod-7".to_owned()];
    expected.extend(ids);
    assert_eq!(site.discovered("orders").await, expected);
    for (cluster_id, id) in [(None, None), (None, Some("pod-7")), (Some("orders"), None)] {
        let site = unreadable(cluster_id, id).await;
        let body = site.send("GET", "/discover", &[], b"").await.refused(503);
        assert!(
            body["error_cause"].as_str().unwrap().contains("labels"),
            "{body}"
        );
    }
}

#[tokio::test]
async fn what_was_really_made_is_answered() {
    let settings = SimulatedSettings {
        capacity: Some(3),
        ..SimulatedSettings::default()
    };
    let site = Site::with(settings).await;
    site.provision(SDK).await.made();
    let one = site.provision(SDK).await.made();
    assert_eq!(one.len(), 1, "there was room for one of two");
    assert_eq!(site.discovered("orders").await.len(), 3);
    let body = site.provision(SDK).await.refused(503);
    assert_eq!(body["error_msg"], "no node was provisioned");
    assert_eq!(site.simulated().len(), 3);

    let (id, rest) = (one[0].clone(), 2);
    assert_eq!(site.deprovision("orders", &id).await.status, 204);
    until("there is room again", async || {
        site.simulated().len() == rest
    })
    .await;
    site.provision(SDK).await.made();
    let mut ordinals: Vec<_> = site.simulated().nodes().iter().map(|n| n.ordinal).collect();
    ordinals.sort_unstable();
    assert_eq!(
        ordinals,
        [Some(0), Some(1), Some(2)],
        "no ordinal is lost by refusals"
    );
}

#[tokio::test]
async fn a_request_with_a_key_can_be_repeated() {
    let site = Site::new().await;
    let uuid = Uuid::new_v4().to_string();
    for key in [uuid.as_str(), "scale-up of orders, step 7"] {
        let ids = site.keyed(key, SDK).await.made();
        assert_eq!(site.keyed(key, SDK).await.made(), ids);
        let other = SDK.replace("4.2.1", "4.4.0");
        site.keyed(key, &other).await.refused(422);
        let more = SDK.replace(r#""count": 2"#, r#""count": 3"#);
        site.keyed(key, &more).await.refused(422);
        let elsewhere = SDK.replace("orders", "payments");
        site.keyed(key, &elsewhere).await.refused(422);
    }
    assert_eq!(site.simulated().len(), 4);
    let asked = |node: &Node| node.slot.as_ref().unwrap().request_id == uuid;
    let of_uuid = site.simulated().nodes().into_iter().filter(asked).count();
    assert_eq!(of_uuid, 2, "a key that is a UUID is the request id");
    for key in ["", "\u{fc}", &"x".repeat(300)] {
        site.keyed(key, SDK).await.refused(400);
    }

    // A deleted node is not created again.
    let id = site.keyed("once", SDK).await.made();
    for id in &id {
        assert_eq!(site.deprovision("orders", id).await.status, 204);
    }
    until("they are gone", async || site.simulated().len() == 4).await;
    site.keyed("once", SDK).await.refused(422);
    assert_eq!(site.simulated().len(), 4);
}

#[tokio::test]
async fn a_lost_answer_is_found_again_and_makes_nothing_twice() {
    let site = Site::new().await;
    let backend = site.simulated();
    backend.fail_next(Operation::Create, Fault::LoseAnswer);
    site.keyed("k", SDK).await.refused(503);
    assert_eq!(backend.len(), 2, "although they were made");
    assert_eq!(site.keyed("k", SDK).await.made().len(), 2);
    let answers = join_all((0..5).map(|_| site.keyed("at once", SDK))).await;
    assert!(
        answers
            .iter()
            .all(|answer| answer.made() == answers[0].made())
    );
    assert_eq!((backend.len(), backend.doubles()), (4, vec![]));
}

#[tokio::test]
async fn a_repeat_after_a_restart_answers_what_there_is() {
    let directory = tempfile::tempdir().unwrap();
    let settings = SimulatedSettings {
        state_file: Some(directory.path().join("nodes")),
        ..SimulatedSettings::default()
    };
    let site = Site::with(settings.clone()).await;
    let ids = site.keyed("k", SDK).await.made();
    site.stop().await;
    let site = Site::with(settings).await;
    assert_eq!(site.keyed("k", SDK).await.made(), ids);
    let other = SDK.replace("4.2.1", "4.4.0");
    site.keyed("k", &other).await.refused(422);
    assert_eq!(site.discovered("orders").await, ids);
}

#[tokio::test]
async fn what_takes_too_long_is_cut_off_with_a_body() {
    let server = ServerSettings {
        default_deadline: Duration::from_millis(300),
        ..ServerSettings::default()
    };
    let (settings, replicante) = (SimulatedSettings::default(), ReplicanteSettings::default());
    let site = Site::serve(settings, replicante, server).await;
    let stall = || Fault::Stall(Duration::from_secs(3600));
    site.simulated().fail_next(Operation::List, stall());
    site.send("GET", "/discover", &[], b"").await.refused(504);
    site.simulated().fail_next(Operation::Create, stall());
    site.provision(SDK).await.refused(504);
    assert_eq!(site.simulated().len(), 0);
}
