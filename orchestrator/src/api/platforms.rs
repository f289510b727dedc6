//! The platform registry API.

use std::{sync::Arc, time::Duration};

use drover_client::PlatformClient;
use drover_cluster::Cluster;
use drover_core::{Error, Reason, Result};
use drover_platforms::{Platform, Platforms, Registration, connect};
use drover_proto::{orchestrator::v1 as pb, platform::v1 as wire};
use drover_secrets::Vault;
use drover_store::Clock;
use tokio::time::Instant;

use super::{
    access::{Access, per_call},
    paging::{self, Page},
};
use crate::{records::Records, registry::Registry, secrets::Secrets};

/// Maximum time that a registration waits for a new platform to become visible.
const ANSWER_WAIT: Duration = Duration::from_secs(3);
/// Poll interval of that wait.
const LOOK: Duration = Duration::from_millis(5);
/// Deadline for listing all hosts of a platform.
const HOSTS_TIMEOUT: Duration = Duration::from_secs(30);
/// Deadline of other calls to a platform.
const ASK_TIMEOUT: Duration = Duration::from_secs(10);

/// Refuses a backend with a different uid, unless the caller confirms that it is the same backend.
fn refuse_stranger(before: Option<&Registration>, uid: &str, rebind: Option<&str>) -> Result<()> {
    if let Some(named) = rebind.filter(|named| *named != uid) {
        return Err(Error::invalid(
            "rebind_uid",
            format!("is {named:?}, but the platform shows {uid:?}"),
        ));
    }
    let Some(before) = before
        .map(|before| &before.uid)
        .filter(|before| !before.is_empty())
    else {
        return Ok(());
    };
    if before != uid && rebind.is_none() {
        let message = format!(
            "it is another backend ({uid}) than before ({before}); if it is the same one, say so with `drover rebind`"
        );
        return Err(
            Error::new(Reason::PlatformMismatch, message).with_metadata("platform_uid", uid)
        );
    }
    Ok(())
}

/// The result of a registration as a dry run.
fn preview(
    before: Option<Registration>,
    spec: pb::PlatformSpec,
    rebind: Option<String>,
) -> (Registration, pb::ApplyOutcome) {
    let Some(before) = before else {
        return (
            Registration {
                spec,
                generation: 1,
                ..Default::default()
            },
            pb::ApplyOutcome::Created,
        );
    };
    let uid = rebind.unwrap_or_else(|| before.uid.clone());
    if before.spec == spec && before.uid == uid {
        return (before, pb::ApplyOutcome::Unchanged);
    }
    (
        Registration {
            spec,
            generation: before.generation + 1,
            uid,
            ..before
        },
        pb::ApplyOutcome::Configured,
    )
}

/// Registers platforms, and shows them.
#[derive(Clone)]
pub(crate) struct PlatformCalls {
    pub(crate) access: Access,
    pub(crate) registry: Arc<Registry>,
    pub(crate) platforms: Arc<Platforms>,
    pub(crate) records: Arc<Records>,
    pub(crate) vault: Arc<Vault>,
    pub(crate) secrets: Arc<Secrets>,
    pub(crate) clock: Arc<Clock>,
}

per_call!(PlatformCalls: access);

impl PlatformCalls {
    /// A platform as the caller may see it. Callers who only see some clusters get what manifests need, namely what the
    /// platform offers and whether it responds, but not its address, its account, or how much others have on it.
    fn seen_of(&self, platform: &Platform) -> pb::Platform {
        let mut shown = platform.to_proto(self.clock.now());
        if self.access.caller.sees_all() {
            return shown;
        }
        shown.spec = None;
        shown.generation = 0;
        if let Some(status) = &mut shown.status {
            status.message.clear();
            status.uid.clear();
            status.vanished_count = 0;
            status.node_count = self.own_nodes(&shown.name);
            status
                .conditions
                .retain(|condition| matches!(condition.r#type.as_str(), "Reachable" | "Accepted"));
            for condition in &mut status.conditions {
                condition.message.clear();
            }
            if let Some(handshake) = &mut status.handshake {
                handshake.uid.clear();
                handshake.instance_id.clear();
                handshake.scope.clear();
                handshake.etag.clear();
                handshake.warnings.clear();
            }
        }
        shown
    }

    /// Number of nodes on a platform in the clusters that the caller sees.
    fn own_nodes(&self, platform: &str) -> u32 {
        let count = |cluster: &Arc<Cluster>| {
            let inner = cluster.lock();
            if !self.access.sees(cluster, &inner) {
                return 0;
            }
            let nodes = inner.state().nodes.iter();
            nodes.filter(|node| *node.platform == *platform).count()
        };
        let all: usize = self.records.clusters().all().iter().map(count).sum();
        u32::try_from(all).unwrap_or(u32::MAX)
    }

    pub(super) async fn register(
        &self,
        request: pb::RegisterPlatformRequest,
    ) -> Result<pb::RegisterPlatformResponse> {
        let wanted = request
            .platform
            .ok_or_else(|| Error::invalid("platform", "is missing"))?;
        self.access.caller.about("platform", &wanted.name);
        let spec = drover_platforms::registration::check(&wanted.name, wanted.spec.as_ref())?;
        // Held so that the secrets that validation finds still exist when the reference to them is stored.
        let _secrets = self.secrets.refer().await;
        let stored = self.platforms.get(&wanted.name);
        let named = stored.map_or_else(Vec::new, |stored| {
            connect::secrets(&stored.platform.registration().spec)
        });
        for (field, of) in connect::named(&spec) {
            let found = self.vault.find(&of);
            found.map_err(|error| {
                let why = error.message().to_owned();
                error.with_violation(field, why)
            })?;
            let purpose = pb::SecretPurpose::Platform;
            let other = self.vault.wrong_purpose(&of, purpose);
            if let Some(why) = other.filter(|_| !named.contains(&of)) {
                return Err(Error::invalid(field, why));
            }
        }
        let channel = self.platforms.connect(&spec).await;
        let channel = channel.map_err(|error| match error.fields().first() {
            Some(wrong) if error.reason() == Reason::Precondition => {
                Error::invalid(wrong.field.clone(), error.message())
            }
            _ => Error::invalid("platform.spec.endpoint", error.message()),
        })?;
        let known = self.platforms.get(&wanted.name);
        let before = known.as_ref().map(|known| known.platform.registration());
        let handshake = PlatformClient::new(channel).get_platform(ANSWER_WAIT).await;
        let mut warnings = Vec::new();
        match &handshake {
            Ok(handshake) => {
                self.platforms.refuse_taken(&wanted.name, &handshake.uid)?;
                refuse_stranger(
                    before.as_ref(),
                    &handshake.uid,
                    request.rebind_uid.as_deref(),
                )?;
            }
            Err(error) if request.rebind_uid.is_some() => {
                let why = format!("cannot be compared with what the platform shows: {error}");
                return Err(Error::invalid("rebind_uid", why));
            }
            Err(error) => warnings.push(format!(
                "it does not answer yet and is tried until it does: {error}"
            )),
        }
        if !spec.token_secret.is_empty() && spec.endpoint.starts_with("http://") {
            let warning = "its token travels in plaintext; use an https endpoint".to_owned();
            warnings.push(warning);
        }
        if request.validate_only {
            let (registration, outcome) = preview(before, spec, request.rebind_uid);
            let now = self.clock.now();
            let platform =
                Platform::new(wanted.name.as_str().into(), registration, now).to_proto(now);
            let revision = self.records.revision();
            return Ok(pb::RegisterPlatformResponse {
                platform: Some(platform),
                outcome: outcome.into(),
                warnings,
                revision,
            });
        }
        let (outcome, registered) = self
            .registry
            .register(&wanted.name, spec, request.rebind_uid)
            .await?;
        if handshake.is_ok() {
            // The platform responds, so it becomes visible soon; waiting means that it is ready for the next apply.
            let end = Instant::now() + ANSWER_WAIT;
            while !registered.platform.is_visible(self.clock.now()) && Instant::now() < end {
                tokio::time::sleep(LOOK).await;
            }
        }
        let platform = registered.platform.to_proto(self.clock.now());
        self.access.record.generation(platform.generation);
        let revision = self.records.revision();
        Ok(pb::RegisterPlatformResponse {
            platform: Some(platform),
            outcome: outcome.into(),
            warnings,
            revision,
        })
    }

    pub(super) async fn get_platform(
        &self,
        request: pb::GetPlatformRequest,
    ) -> Result<pb::GetPlatformResponse> {
        self.records.reach(request.min_revision).await?;
        let registered = self.access.find_platform(&request.name)?;
        let platform = self.seen_of(&registered.platform);
        Ok(pb::GetPlatformResponse {
            platform: Some(platform),
            revision: self.records.revision(),
        })
    }

    pub(super) async fn list_platforms(
        &self,
        request: pb::ListPlatformsRequest,
    ) -> Result<pb::ListPlatformsResponse> {
        self.records.reach(request.min_revision).await?;
        let after = paging::start(&request.page_token)?;
        let mut page = Page::new(request.page_size)?;
        let revision = self.records.revision();
        for (name, registered) in self.access.registered() {
            if after.as_deref().is_some_and(|after| *name <= *after)
                || !self.access.caller.sees_platform(&name)
            {
                continue;
            }
            if !page.push(&*name, self.seen_of(&registered.platform)) {
                break;
            }
        }
        Ok(pb::ListPlatformsResponse {
            platforms: page.rows,
            next_page_token: page.next,
            revision,
        })
    }

    pub(super) async fn list_hosts(
        &self,
        request: pb::ListHostsRequest,
    ) -> Result<pb::ListHostsResponse> {
        let registered = self.access.find_platform(&request.platform)?;
        paging::size(request.page_size)?;
        let unreachable =
            || Error::unavailable(format!("platform {} does not answer", request.platform));
        let client = registered.platform.client().ok_or_else(unreachable)?;
        if !registered.platform.has(wire::Capability::Inventory) {
            let message = format!("platform {} has no inventory of hosts", request.platform);
            return Err(Error::new(Reason::CapabilityMissing, message)
                .with_metadata("capability", wire::Capability::Inventory.as_str_name()));
        }
        let message = wire::ListHostsRequest {
            expected_platform_uid: registered.platform.identity().0,
            selector: request.selector,
            cluster_id: request.cluster.unwrap_or_default(),
            page_size: request.page_size,
            page_token: request.page_token,
            ..wire::ListHostsRequest::default()
        };
        if !self.access.caller.sees_all() {
            return self.own_hosts(&client, message).await;
        }
        let answer = client.list_hosts(message, ASK_TIMEOUT).await?;
        Ok(pb::ListHostsResponse {
            hosts: answer.hosts,
            next_page_token: answer.next_page_token,
        })
    }

    /// Hosts of the clusters that the caller sees. Paginated here, because the platform's own pages and tokens would
    /// reveal how many other hosts there are.
    async fn own_hosts(
        &self,
        client: &PlatformClient,
        mut message: wire::ListHostsRequest,
    ) -> Result<pb::ListHostsResponse> {
        let after = paging::start(&std::mem::take(&mut message.page_token))?;
        let mut page = Page::new(std::mem::take(&mut message.page_size))?;
        let own = |host: &wire::Host| {
            !host.cluster_id.is_empty() && self.access.sees_name(&host.cluster_id)
        };
        let mut hosts = client.find_hosts(message, HOSTS_TIMEOUT, own).await?;
        hosts.sort_by(|a, b| a.id.cmp(&b.id));
        for host in hosts {
            if after.as_deref().is_some_and(|after| *host.id <= *after) {
                continue;
            }
            if !page.push(host.id.clone(), host) {
                break;
            }
        }
        Ok(pb::ListHostsResponse {
            hosts: page.rows,
            next_page_token: page.next,
        })
    }

    fn discovered(
        &self,
        request: pb::ListDiscoveredClustersRequest,
    ) -> Result<pb::ListDiscoveredClustersResponse> {
        if let Some(name) = &request.platform {
            self.access.find_platform(name)?;
        }
        let after = paging::start(&request.page_token)?;
        let mut page = Page::new(request.page_size)?;
        let platforms = self.access.registered();
        'platforms: for (name, registered) in &platforms {
            if request
                .platform
                .as_deref()
                .is_some_and(|wanted| *wanted != **name)
                || !self.access.caller.sees_platform(name)
            {
                continue;
            }
            let observe_time = registered.platform.observe_time();
            for (cluster, owners) in registered.platform.foreign() {
                // Clusters of other owners, whose labels are not known here.
                if !self.access.caller.sees(&cluster, None) {
                    continue;
                }
                for (owner, count) in owners {
                    let key = paging::key(&[name, &cluster, &owner]);
                    if after.as_deref().is_some_and(|after| key.as_str() <= after) {
                        continue;
                    }
                    let row = pb::DiscoveredCluster {
                        platform: name.to_string(),
                        cluster_id: cluster.clone(),
                        owner,
                        node_count: count,
                        observe_time,
                    };
                    if !page.push(key, row) {
                        break 'platforms;
                    }
                }
            }
        }
        Ok(pb::ListDiscoveredClustersResponse {
            clusters: page.rows,
            next_page_token: page.next,
        })
    }

    fn confirm_loss(
        &self,
        request: &pb::ConfirmNodeLossRequest,
    ) -> Result<pb::ConfirmNodeLossResponse> {
        self.access.caller.about("platform", &request.platform);
        let registered = self.platforms.require(&request.platform)?;
        let now = self.clock.now();
        if registered.platform.vanished_count() != 0 || request.vanished_count != 0 {
            registered
                .platform
                .confirm_loss(request.vanished_count, now)?;
        }
        self.platforms
            .changed(&request.platform, drover_core::Urgency::Bulk);
        let platform = registered.platform.to_proto(now);
        Ok(pb::ConfirmNodeLossResponse {
            platform: Some(platform),
            revision: self.records.revision(),
        })
    }

    pub(super) async fn unregister(
        &self,
        request: pb::UnregisterPlatformRequest,
    ) -> Result<pb::UnregisterPlatformResponse> {
        self.access.caller.about("platform", &request.name);
        let revision = self.registry.unregister(&request.name).await?;
        Ok(pb::UnregisterPlatformResponse { revision })
    }

    #[expect(clippy::unused_async, reason = "the shape of every call")]
    pub(super) async fn confirm_node_loss(
        &self,
        request: pb::ConfirmNodeLossRequest,
    ) -> Result<pb::ConfirmNodeLossResponse> {
        self.confirm_loss(&request)
    }

    #[expect(clippy::unused_async, reason = "the shape of every call")]
    pub(super) async fn list_discovered(
        &self,
        request: pb::ListDiscoveredClustersRequest,
    ) -> Result<pb::ListDiscoveredClustersResponse> {
        self.discovered(request)
    }
}
