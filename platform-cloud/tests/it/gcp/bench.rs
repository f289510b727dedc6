//! An emulator, a platform on it, and helpers to call it.

use std::{ops::Deref, sync::Arc, time::Duration};

use drover_convert::value::to_struct;
use drover_core::{Class, Result};
use drover_emulators::{
    Made,
    gce::{Gce, GceSettings},
};
use drover_platform_cloud::{
    PlatformServer,
    cloud::CloudDriver,
    drivers::gcp::{self, Settings},
    stores,
};
use drover_proto::platform::v1::{ProvisionRequest, ProvisionResponse};
use drover_testing::platform::caller::Caller;
pub(crate) use drover_testing::platform::caller::until;
use serde_json::Value;

use super::faults::ROWS;
use crate::changes;

/// Timeout of a call: long enough for a busy machine, as a late call is a fault of its own.
pub(crate) const CALL_TIMEOUT: Duration = Duration::from_secs(4);

/// An emulator, and a platform on it that can be dropped and opened again.
pub(crate) struct Bench {
    pub(crate) gce: Gce,
    pub(crate) settings: Settings,
    pub(crate) server: Arc<PlatformServer>,
    caller: Caller,
}

/// Settings with short intervals, for a project with three zones.
pub(crate) fn settings(gce: &Gce) -> Settings {
    let mut settings = Settings::emulated(gce.url());
    settings.common.calls_per_second = 2_000.0;
    settings.common.poll_interval_seconds = 0.2;
    settings.common.pending_poll_interval_seconds = 0.05;
    settings.common.visibility_delay_seconds = 1.0;
    settings.common.call_timeout_seconds = CALL_TIMEOUT.as_secs_f64();
    settings.operation_timeout_seconds = 20.0;
    settings
}

pub(crate) async fn serve(settings: &Settings) -> Result<PlatformServer> {
    let cloud = gcp::open(settings.clone()).await?;
    let driver = CloudDriver::new(cloud, settings.common.clone())?;
    PlatformServer::with_driver(Arc::new(driver), stores::templates(None)?)
}

impl Drop for Bench {
    fn drop(&mut self) {
        changes::have_rows(self.gce.control(), |_| true, &[&ROWS]);
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
        Self::with(GceSettings::default()).await
    }

    pub(crate) async fn with(emulator: GceSettings) -> Self {
        let gce = Gce::start(emulator).await.unwrap();
        let settings = settings(&gce);
        Self::over(gce, settings).await
    }

    pub(crate) async fn over(gce: Gce, settings: Settings) -> Self {
        let server = serve(&settings).await.unwrap();
        let mut caller = Caller::new(server.routes()).await;
        caller.labels = vec![("team.example/One", "A_b.1")];
        Self {
            gce,
            settings,
            server: Arc::new(server),
            caller,
        }
    }

    /// The platform dies and another one starts with empty memory.
    pub(crate) async fn crash(&mut self) {
        let new = serve(&self.settings).await.unwrap();
        let old = std::mem::replace(&mut self.server, Arc::new(new));
        drop(old);
        self.caller.call(self.server.routes()).await;
    }

    pub(crate) fn request_with(&self, count: u32, properties: &Value) -> ProvisionRequest {
        self.request_of("db", count, to_struct(properties.as_object().unwrap()))
    }

    /// Retries like the orchestrator, until no slot is unknown.
    pub(crate) async fn provision_until_known(
        &self,
        request: &ProvisionRequest,
    ) -> ProvisionResponse {
        until("the request is known", || async {
            match self.provision(request).await {
                Ok(answer) => answer.unknown.is_empty().then_some(answer),
                Err(error) => {
                    assert_eq!(error.class(), Class::Unknown, "{error:?}");
                    None
                }
            }
        })
        .await
    }

    /// Machines created by requests, including deleted ones.
    pub(crate) fn made(&self) -> Vec<Made> {
        let mut made = self.gce.ledger();
        made.retain(|made| !made.foreign);
        made
    }

    /// Asserts that no slot was ever created twice.
    pub(crate) fn assert_nothing_doubled(&self, what: &str) {
        let mut seen = std::collections::BTreeSet::new();
        for made in self.made() {
            let slot = (
                made.tags["drover-request"].clone(),
                made.tags["drover-slots"].clone(),
            );
            assert!(seen.insert(slot), "{what}: a slot was made twice: {made:?}");
        }
    }

    /// Deletes all known nodes and asserts that no machine is left.
    pub(crate) async fn assert_nothing_leaked(&self, what: &str) {
        self.remove_all(what, || self.made().iter().all(|made| made.gone))
            .await;
    }
}
