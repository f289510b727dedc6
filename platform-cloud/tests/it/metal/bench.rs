//! A platform on the emulator, and helpers to call it.

use std::{collections::BTreeSet, ops::Deref, sync::Arc};

use drover_convert::value::to_struct;
use drover_core::{Error, Result};
use drover_emulators::{
    Made,
    metal::{Metal, MetalSettings},
};
use drover_platform_cloud::{
    PlatformServer,
    cloud::CloudDriver,
    drivers::metal::{self, FirewallSettings, Settings},
    stores,
};
use drover_proto::platform::v1::{
    EndpointSpec, EnsureInfrastructureRequest, EnsureInfrastructureResponse, FirewallDirection,
    FirewallRule, FirewallSpec, GetInfrastructureRequest, InfrastructureSpec, InfrastructureState,
    ListInfrastructureRequest, NetworkSpec, PortRange, ProvisionRequest, ProvisionResponse,
    ReleaseInfrastructureRequest, ReleaseInfrastructureResponse, Resource, ResourcePhase,
    infrastructure_service_client::InfrastructureServiceClient,
};
use drover_testing::platform::caller::{Caller, told};
pub(crate) use drover_testing::platform::caller::{fence, until, user_data};
use serde_json::Value;
use tempfile::TempDir;

use super::{faults, infrastructure::faults as infrastructure};
use crate::changes;

pub(crate) const PROJECT: &str = "00000000-0000-0000-0000-000000000000";
pub(crate) const PARTITION: &str = "vagrant";
pub(crate) const INTERNET: &str = "internet-vagrant-lab";
pub(crate) const SMALL: &str = "v1-small-x86";
/// The machines that the CAPM sample names: for the firewall, and for the control plane.
pub(crate) const NAMED_FIREWALL: &str = "2294c949-88f6-5390-8154-fa53d93a3313";
pub(crate) const NAMED_MACHINE: &str = "e0ab02d2-27cd-5a5e-8efc-080ba80cf258";

/// A platform on an emulated metal-stack that can be dropped and opened again.
pub(crate) struct Bench {
    pub(crate) metal: Metal,
    pub(crate) settings: Settings,
    pub(crate) server: Arc<PlatformServer>,
    caller: Caller,
    /// Contains the token.
    pub(crate) directory: Arc<TempDir>,
}

/// Settings with short intervals, in one partition.
pub(crate) fn settings(metal: &Metal) -> (Settings, Arc<TempDir>) {
    let directory = tempfile::tempdir().unwrap();
    let token = directory.path().join("token");
    std::fs::write(&token, "emulator-token\n").unwrap();
    let mut settings = Settings {
        url: metal.url(),
        project: PROJECT.to_owned(),
        partitions: vec![PARTITION.to_owned()],
        private_network: metal.add_network(PROJECT, PARTITION),
        public_network: INTERNET.to_owned(),
        image: "ubuntu-24.4".to_owned(),
        node_class: SMALL.to_owned(),
        firewall: FirewallSettings {
            image: "firewall-ubuntu-2.0".to_owned(),
            node_class: SMALL.to_owned(),
        },
        token_file: Some(token),
        ..Settings::default()
    };
    settings.common.calls_per_second = 2_000.0;
    settings.common.poll_interval_seconds = 0.2;
    settings.common.pending_poll_interval_seconds = 0.02;
    settings.common.visibility_delay_seconds = 0.0;
    settings.common.call_timeout_seconds = 5.0;
    (settings, Arc::new(directory))
}

pub(crate) async fn serve(settings: &Settings) -> Result<PlatformServer> {
    let cloud = metal::open(settings.clone()).await?;
    let driver = CloudDriver::new(cloud, settings.common.clone())?;
    PlatformServer::with_driver(Arc::new(driver), stores::templates(None)?)
}

/// Lets HTTPS out.
pub(crate) fn https() -> FirewallRule {
    FirewallRule {
        direction: FirewallDirection::Egress.into(),
        cidrs: vec!["0.0.0.0/0".to_owned()],
        ports: vec![PortRange {
            first: 443,
            last: 0,
        }],
        ..FirewallRule::default()
    }
}

/// Network, endpoint and firewall as in the CAPM sample, but without the named machine.
pub(crate) fn whole() -> InfrastructureSpec {
    InfrastructureSpec {
        network: Some(NetworkSpec::default()),
        endpoint: Some(EndpointSpec {
            targets: vec!["control-plane".to_owned()],
            ..EndpointSpec::default()
        }),
        firewall: Some(FirewallSpec {
            rules: vec![https()],
            ..FirewallSpec::default()
        }),
        properties: None,
    }
}

impl Drop for Bench {
    fn drop(&mut self) {
        let tables = [
            &faults::ROWS[..],
            &infrastructure::MAKING,
            &infrastructure::CHANGING,
            &infrastructure::FREEING,
        ];
        changes::have_rows(self.metal.control(), |_| true, &tables);
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
        Self::with(MetalSettings::default()).await
    }

    pub(crate) async fn with(emulator: MetalSettings) -> Self {
        Self::set(emulator, |_| ()).await
    }

    /// With changed settings of the platform.
    pub(crate) async fn set(emulator: MetalSettings, change: impl FnOnce(&mut Settings)) -> Self {
        let metal = Metal::start(emulator).await.unwrap();
        let (mut settings, directory) = settings(&metal);
        change(&mut settings);
        let server = serve(&settings).await.unwrap();
        let mut caller = Caller::new(server.routes()).await;
        caller.labels = vec![("team.io/one", "a_b")];
        Self {
            metal,
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

    pub(crate) fn token(&self, token: &str) {
        std::fs::write(self.directory.path().join("token"), token).unwrap();
    }

    fn infrastructure(&self) -> InfrastructureServiceClient<drover_client::Channel> {
        InfrastructureServiceClient::new(self.channel())
    }

    pub(crate) fn request_with(
        &self,
        group: &str,
        count: u32,
        properties: &Value,
    ) -> ProvisionRequest {
        self.request_of(group, count, to_struct(properties.as_object().unwrap()))
    }

    /// A request for one node on a named machine.
    pub(crate) fn on_host(&self, host: &str) -> ProvisionRequest {
        let mut request = self.request(1);
        request.slots[0].host_id = Some(host.to_owned());
        request
    }

    /// The error of a request: it is refused as a whole, or its first slot fails.
    pub(crate) async fn refusal(&self, request: &ProvisionRequest) -> Error {
        match self.provision(request).await {
            Err(error) => error,
            Ok(answer) => {
                let failures = answer.failures.iter().chain(&answer.unknown);
                let failure = failures
                    .into_iter()
                    .next()
                    .unwrap_or_else(|| panic!("{answer:?}"));
                let status = failure.error.clone().unwrap();
                drover_convert::error::from_rpc_status(&status)
            }
        }
    }

    /// Retries like the orchestrator, until no slot is unknown.
    pub(crate) async fn provision_until_known(
        &self,
        request: &ProvisionRequest,
    ) -> ProvisionResponse {
        until("the request is known", || async {
            let answer = self.provision(request).await.ok()?;
            answer.unknown.is_empty().then_some(answer)
        })
        .await
    }

    pub(crate) fn ensuring(&self, spec: &InfrastructureSpec) -> EnsureInfrastructureRequest {
        EnsureInfrastructureRequest {
            expected_platform_uid: self.platform.uid.clone(),
            fence: Some(fence()),
            cluster_id: self.cluster.clone(),
            owner: self.owner.to_string(),
            sequence: 7,
            spec: Some(spec.clone()),
            ..EnsureInfrastructureRequest::default()
        }
    }

    pub(crate) async fn ensure(
        &self,
        spec: &InfrastructureSpec,
    ) -> Result<EnsureInfrastructureResponse> {
        told(
            self.infrastructure()
                .ensure_infrastructure(self.ensuring(spec))
                .await,
        )
    }

    /// The error of a dry run for infrastructure.
    pub(crate) async fn objection(&self, spec: &InfrastructureSpec) -> Error {
        let mut request = self.ensuring(spec);
        request.validate_only = true;
        told(self.infrastructure().ensure_infrastructure(request).await).unwrap_err()
    }

    /// Repeats ensure until it is ready, ignoring errors, as the orchestrator does.
    pub(crate) async fn ensure_whole(&self, spec: &InfrastructureSpec) -> InfrastructureState {
        until("the infrastructure is ready", || async {
            let answer = self.ensure(spec).await.ok()?;
            answer.poll_after.is_none().then(|| answer.state.unwrap())
        })
        .await
    }

    pub(crate) async fn infrastructure_state(&self) -> InfrastructureState {
        let request = GetInfrastructureRequest {
            cluster_id: self.cluster.clone(),
            owner: self.owner.to_string(),
            ..GetInfrastructureRequest::default()
        };
        let answer = told(self.infrastructure().get_infrastructure(request).await);
        answer.unwrap().state.unwrap()
    }

    pub(crate) async fn release(&self) -> Result<ReleaseInfrastructureResponse> {
        let request = ReleaseInfrastructureRequest {
            expected_platform_uid: self.platform.uid.clone(),
            fence: Some(fence()),
            cluster_id: self.cluster.clone(),
            owner: self.owner.to_string(),
            ..ReleaseInfrastructureRequest::default()
        };
        told(self.infrastructure().release_infrastructure(request).await)
    }

    /// Repeats release until nothing is left, ignoring errors.
    pub(crate) async fn release_whole(&self) {
        until("the infrastructure is gone", || async {
            let answer = self.release().await.ok()?;
            let gone = answer.state.unwrap().phase() == ResourcePhase::Gone;
            (gone && answer.poll_after.is_none()).then_some(())
        })
        .await;
    }

    pub(crate) async fn resources(&self) -> Vec<Resource> {
        let request = ListInfrastructureRequest::default();
        told(self.infrastructure().list_infrastructure(request).await)
            .unwrap()
            .resources
    }

    /// Resources created by requests, including deleted ones.
    pub(crate) fn made(&self) -> Vec<Made> {
        let mut made = self.metal.ledger();
        made.retain(|made| !made.foreign && made.id != self.settings.private_network);
        made
    }

    /// Existing resources of a kind.
    pub(crate) fn living(&self, kind: &str) -> Vec<Made> {
        let mut made = self.made();
        made.retain(|made| !made.gone && made.kind == kind);
        made
    }

    /// Asserts that no slot of a request and no resource of an owner was ever created twice.
    pub(crate) fn assert_nothing_doubled(&self, what: &str) {
        let mut seen = BTreeSet::new();
        for made in self.made() {
            let tag = |key: &str| made.tags.get(key).cloned().unwrap_or_default();
            let keys = ["owner", "resource", "request", "slots"];
            let key = keys.map(|key| tag(&format!("drover.dev/{key}")));
            // Addresses of machines have no identity of their own.
            if key.iter().all(String::is_empty) {
                continue;
            }
            assert!(seen.insert(key.clone()), "{what}: {key:?} was made twice");
        }
    }

    /// Asserts that nothing is allocated any more, including addresses.
    pub(crate) async fn assert_all_gone(&self, what: &str) {
        until(what, || async {
            // Addresses expire, which the emulator evaluates only when it is called.
            let _ = self.resources().await;
            let left: Vec<Made> = self.made().into_iter().filter(|made| !made.gone).collect();
            (left.is_empty() && self.metal.things().is_empty()).then_some(())
        })
        .await;
    }

    /// Deletes all known nodes and asserts that nothing is left.
    pub(crate) async fn assert_nothing_leaked(&self, what: &str) {
        self.assert_no_machine_leaked(what).await;
        self.assert_all_gone(what).await;
    }

    /// Deletes all known nodes and asserts that no machine is left.
    pub(crate) async fn assert_no_machine_leaked(&self, what: &str) {
        self.remove_all(what, || self.living("machine").is_empty())
            .await;
    }
}
