//! The platform registry.

use std::time::Duration;

use drover_client::PlatformClient;
use drover_core::{Error, Reason, Result};
use drover_proto::{orchestrator::v1 as pb, platform::v1 as wire};
use tokio::time::Instant;

use super::{
    Api,
    paging::{self, Page},
};
use crate::{
    platform::{Platform, Registration},
    registry,
};

/// How long a new platform may take to answer before its registration is answered without it.
const ANSWER_WAIT: Duration = Duration::from_secs(3);
/// Time between two looks at whether it has.
const LOOK: Duration = Duration::from_millis(5);
/// Deadline of a question to a platform.
const ASK_TIMEOUT: Duration = Duration::from_secs(10);

/// Refuses a backend that is another one than before, unless the caller says that it is the same.
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
            "it is another backend ({uid}) than before ({before}); if it is the same one, name the new uid in rebind_uid"
        );
        return Err(
            Error::new(Reason::PlatformMismatch, message).with_metadata("platform_uid", uid)
        );
    }
    Ok(())
}

/// What a registration would be.
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

impl Api {
    pub(super) async fn register(
        &self,
        request: pb::RegisterPlatformRequest,
    ) -> Result<pb::RegisterPlatformResponse> {
        let wanted = request
            .platform
            .ok_or_else(|| Error::invalid("platform", "is missing"))?;
        self.caller.about("platform", &wanted.name);
        let spec = registry::check(&wanted.name, wanted.spec.as_ref())?;
        let channel = (self.shared.connector)(&spec)
            .map_err(|error| Error::invalid("platform.spec.endpoint", error.message()))?;
        let known = self.shared.platform(&wanted.name);
        let before = known.as_ref().map(|known| known.platform.registration());
        let handshake = PlatformClient::new(channel).get_platform(ANSWER_WAIT).await;
        let mut warnings = Vec::new();
        match &handshake {
            Ok(handshake) => {
                registry::refuse_taken(&self.shared, &wanted.name, &handshake.uid)?;
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
        if request.validate_only {
            let (registration, outcome) = preview(before, spec, request.rebind_uid);
            let platform = Platform::new(wanted.name.as_str().into(), registration)
                .to_proto(self.shared.now());
            let revision = self.shared.revision();
            return Ok(pb::RegisterPlatformResponse {
                platform: Some(platform),
                outcome: outcome.into(),
                warnings,
                revision,
            });
        }
        let (outcome, registered) =
            registry::register(&self.shared, &wanted.name, spec, request.rebind_uid).await?;
        if handshake.is_ok() {
            // It answers, so what follows is quick: whoever applies a cluster next finds it ready.
            let end = Instant::now() + ANSWER_WAIT;
            while !registered.platform.is_visible(self.shared.now()) && Instant::now() < end {
                tokio::time::sleep(LOOK).await;
            }
        }
        let platform = registered.platform.to_proto(self.shared.now());
        let revision = self.shared.revision();
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
        self.shared.reach(request.min_revision).await?;
        let registered = self.shared.require_platform(&request.name)?;
        let platform = registered.platform.to_proto(self.shared.now());
        Ok(pb::GetPlatformResponse {
            platform: Some(platform),
            revision: self.shared.revision(),
        })
    }

    pub(super) async fn list_platforms(
        &self,
        request: pb::ListPlatformsRequest,
    ) -> Result<pb::ListPlatformsResponse> {
        self.shared.reach(request.min_revision).await?;
        let after = paging::start(&request.page_token)?;
        let mut page = Page::new(request.page_size)?;
        let revision = self.shared.revision();
        for (name, registered) in &*self.shared.platforms.read() {
            if after.as_deref().is_some_and(|after| **name <= *after) {
                continue;
            }
            if !page.push(&**name, registered.platform.to_proto(self.shared.now())) {
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
        let registered = self.shared.require_platform(&request.platform)?;
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
        let mut answer = client.list_hosts(message, ASK_TIMEOUT).await?;
        if !self.caller.sees_all() {
            answer
                .hosts
                .retain(|host| host.cluster_id.is_empty() || self.sees_name(&host.cluster_id));
        }
        Ok(pb::ListHostsResponse {
            hosts: answer.hosts,
            next_page_token: answer.next_page_token,
        })
    }

    pub(super) fn discovered(
        &self,
        request: pb::ListDiscoveredClustersRequest,
    ) -> Result<pb::ListDiscoveredClustersResponse> {
        if let Some(name) = &request.platform {
            self.shared.require_platform(name)?;
        }
        let after = paging::start(&request.page_token)?;
        let mut page = Page::new(request.page_size)?;
        // Copied: who looks at clusters must not hold up whoever registers a platform, or the other way round.
        let platforms: Vec<_> = self
            .shared
            .platforms
            .read()
            .iter()
            .map(|(name, registered)| (name.clone(), registered.clone()))
            .collect();
        'platforms: for (name, registered) in &platforms {
            if request
                .platform
                .as_deref()
                .is_some_and(|wanted| *wanted != **name)
            {
                continue;
            }
            let observe_time = registered.platform.observe_time();
            for (cluster, owners) in registered.platform.foreign() {
                if !self.sees_name(&cluster) {
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

    pub(super) fn confirm_loss(
        &self,
        request: &pb::ConfirmNodeLossRequest,
    ) -> Result<pb::ConfirmNodeLossResponse> {
        self.caller.about("platform", &request.platform);
        let registered = self.shared.require_platform(&request.platform)?;
        let now = self.shared.now();
        if registered.platform.vanished_count() != 0 || request.vanished_count != 0 {
            registered
                .platform
                .confirm_loss(request.vanished_count, now)?;
        }
        self.shared
            .wake_users(&request.platform, crate::queue::Urgency::Bulk);
        let platform = registered.platform.to_proto(now);
        Ok(pb::ConfirmNodeLossResponse {
            platform: Some(platform),
            revision: self.shared.revision(),
        })
    }
}
