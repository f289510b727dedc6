//! A platform on the emulator, and helpers to call it.

use std::{collections::BTreeSet, ops::Deref, sync::Arc};

use drover_convert::value::to_struct;
use drover_core::Result;
use drover_emulators::{
    Made,
    digitalocean::{DigitalOcean, DigitalOceanSettings, TOKEN},
};
use drover_platform_cloud::{
    PlatformServer,
    cloud::CloudDriver,
    drivers::digitalocean::{self, Settings},
    stores,
};
use drover_proto::platform::v1::{Placement, ProvisionRequest, ProvisionResponse};
use drover_testing::platform::caller::Caller;
pub(crate) use drover_testing::platform::caller::{until, user_data};
use serde_json::Value;
use tempfile::TempDir;

use super::faults::ROWS;
use crate::changes;

/// A platform on an emulated account that can be dropped and opened again.
pub(crate) struct Bench {
    pub(crate) cloud: DigitalOcean,
    pub(crate) settings: Settings,
    pub(crate) server: Arc<PlatformServer>,
    caller: Caller,
    /// Contains the file `token`.
    pub(crate) directory: Arc<TempDir>,
}

/// Settings with short intervals, one region, and the size that the Kadende sample requests.
pub(crate) fn settings(cloud: &DigitalOcean) -> (Settings, Arc<TempDir>) {
    let directory = tempfile::tempdir().unwrap();
    let token = directory.path().join("token");
    std::fs::write(&token, TOKEN).unwrap();
    let mut settings = Settings {
        endpoint: cloud.url(),
        token_file: Some(token),
        regions: vec!["fra1".to_owned()],
        instance_type: "s-1vcpu-1gb".to_owned(),
        ..Settings::default()
    };
    settings.common.calls_per_second = 2_000.0;
    settings.common.poll_interval_seconds = 0.2;
    settings.common.pending_poll_interval_seconds = 0.05;
    settings.common.visibility_delay_seconds = 1.0;
    settings.common.call_timeout_seconds = 2.0;
    (settings, Arc::new(directory))
}

pub(crate) async fn serve(settings: &Settings) -> Result<PlatformServer> {
    let cloud = digitalocean::open(settings.clone()).await?;
    let driver = CloudDriver::new(cloud, settings.common.clone())?;
    PlatformServer::with_driver(Arc::new(driver), stores::templates(None)?)
}

impl Drop for Bench {
    fn drop(&mut self) {
        changes::have_rows(self.cloud.control(), |_| true, &[&ROWS]);
    }
}

impl Deref for Bench {
    type Target = Caller;

    fn deref(&self) -> &Caller {
        &self.caller
    }
}

impl Bench {
    pub(crate) async fn new() -> Self {
        Self::with(DigitalOceanSettings::default()).await
    }

    pub(crate) async fn with(emulator: DigitalOceanSettings) -> Self {
        Self::set(emulator, |_| ()).await
    }

    /// With changed settings of the platform.
    pub(crate) async fn set(
        emulator: DigitalOceanSettings,
        change: impl FnOnce(&mut Settings),
    ) -> Self {
        let cloud = DigitalOcean::start(emulator).await.unwrap();
        let (mut settings, directory) = settings(&cloud);
        change(&mut settings);
        let server = serve(&settings).await.unwrap();
        let mut caller = Caller::new(server.routes()).await;
        caller.labels = vec![("team.io/One", "A.b_C")];
        caller.cluster = caller.cluster.replacen('c', "C", 1);
        Self {
            cloud,
            settings,
            server: Arc::new(server),
            caller,
            directory,
        }
    }

    /// The platform dies and another one starts with empty memory.
    pub(crate) async fn crash(&mut self) {
        self.server = Arc::new(serve(&self.settings).await.unwrap());
        self.caller.call(self.server.routes()).await;
    }

    pub(crate) fn request_with(&self, count: u32, properties: &Value) -> ProvisionRequest {
        self.request_of("db", count, to_struct(properties.as_object().unwrap()))
    }

    /// The error of a request.
    pub(crate) async fn refusal(&self, request: &ProvisionRequest) -> drover_core::Error {
        self.provision(request).await.unwrap_err()
    }

    /// Retries like the orchestrator: unknown slots are sent again after `Limits.replay_delay`.
    pub(crate) async fn provision_until_known(
        &self,
        request: &ProvisionRequest,
    ) -> ProvisionResponse {
        until("the request is known", || async {
            let answer = self.provision(request).await.ok();
            let known = answer.filter(|answer| answer.unknown.is_empty());
            if known.is_none() {
                self.replay_delay().await;
            }
            known
        })
        .await
    }

    /// Waits until unknown slots may be sent again.
    pub(crate) async fn replay_delay(&self) {
        let limits = self.platform.limits.as_ref().unwrap();
        tokio::time::sleep(limits.replay_delay.unwrap().try_into().unwrap()).await;
    }

    /// Droplets created by requests, including deleted ones.
    pub(crate) fn made(&self) -> Vec<Made> {
        let mut made = self.cloud.ledger();
        made.retain(|made| !made.foreign);
        made
    }

    /// Asserts that no slot was ever created twice: a droplet has the tag of its request and the name of its slot.
    pub(crate) fn assert_nothing_doubled(&self, what: &str) {
        let names = self.cloud.names();
        let mut seen = BTreeSet::new();
        for made in self.made() {
            let is_request = |tag: &&String| tag.starts_with("drover:request:");
            let slot = (made.tags.keys().find(is_request).cloned(), &names[&made.id]);
            assert!(slot.0.is_some(), "{what}: {} has no request", made.id);
            assert!(seen.insert(slot.clone()), "{what}: made twice: {slot:?}");
        }
    }

    /// Deletes all known nodes and asserts that no droplet is left.
    pub(crate) async fn assert_nothing_leaked(&self, what: &str) {
        self.remove_all(what, || self.made().iter().all(|made| made.gone))
            .await;
    }
}

/// Places a group in these regions.
pub(crate) fn placed_in(request: &mut ProvisionRequest, regions: &[&str]) {
    let group = request.group.as_mut().unwrap();
    group.placement = Some(Placement {
        failure_domains: regions.iter().map(|region| (*region).to_owned()).collect(),
        ..Placement::default()
    });
}
