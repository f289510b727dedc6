//! `InfrastructureService` over a [`Platform`].

use std::{net::IpAddr, sync::Arc};

use drover_convert::value::to_duration;
use drover_core::Result;
use drover_proto::platform::v1::{
    Capability, EnsureInfrastructureRequest, EnsureInfrastructureResponse, FirewallDirection,
    FirewallRule, GetInfrastructureRequest, GetInfrastructureResponse, InfrastructureSpec,
    InfrastructureState, ListInfrastructureRequest, ListInfrastructureResponse,
    ReleaseInfrastructureRequest, ReleaseInfrastructureResponse, Resource, ResourcePhase,
    infrastructure_service_server::InfrastructureService,
};
use tonic::{Request, Response, Status};

use super::{Infrastructure, Progress};
use crate::{
    check::{self, Checker},
    clock::timestamp,
    driver::lacks,
    owner::owner,
    pages::Read,
    platform::Platform,
    service::{Service, answer},
};

#[tonic::async_trait]
impl InfrastructureService for Service {
    async fn ensure_infrastructure(
        &self,
        request: Request<EnsureInfrastructureRequest>,
    ) -> std::result::Result<Response<EnsureInfrastructureResponse>, Status> {
        answer(self.0.ensure_infrastructure(request.into_inner()).await)
    }

    async fn get_infrastructure(
        &self,
        request: Request<GetInfrastructureRequest>,
    ) -> std::result::Result<Response<GetInfrastructureResponse>, Status> {
        answer(self.0.get_infrastructure(request.into_inner()).await)
    }

    async fn list_infrastructure(
        &self,
        request: Request<ListInfrastructureRequest>,
    ) -> std::result::Result<Response<ListInfrastructureResponse>, Status> {
        answer(self.0.list_infrastructure(request.into_inner()).await)
    }

    async fn release_infrastructure(
        &self,
        request: Request<ReleaseInfrastructureRequest>,
    ) -> std::result::Result<Response<ReleaseInfrastructureResponse>, Status> {
        answer(self.0.release_infrastructure(request.into_inner()).await)
    }
}

impl Platform {
    fn infrastructure(&self) -> Result<&dyn Infrastructure> {
        self.driver
            .infrastructure()
            .ok_or_else(|| lacks(Capability::Infrastructure))
    }

    async fn ensure_infrastructure(
        self: &Arc<Self>,
        request: EnsureInfrastructureRequest,
    ) -> Result<EnsureInfrastructureResponse> {
        self.meant(
            &request.expected_platform_uid,
            true,
            &request.expected_instance_id,
        )?;
        self.infrastructure()?;
        let fence = check::fence(request.fence.as_ref())?;
        let owner = owner(&request.cluster_id, &request.owner)?;
        let spec = spec(&request)?;
        if request.validate_only {
            self.fences.check(&fence)?;
            self.infrastructure()?.check(&owner, &spec).await?;
            return Ok(EnsureInfrastructureResponse::default());
        }
        let this = Arc::clone(self);
        let progress = self.changing(&fence, async move {
            let lock = this.working.lock(&owner);
            let _working = lock.lock().await;
            this.infrastructure()?
                .ensure(&owner, request.sequence, &spec)
                .await
        });
        let (state, poll_after) = told(progress.await?);
        Ok(EnsureInfrastructureResponse {
            state: Some(state),
            poll_after,
        })
    }

    async fn get_infrastructure(
        &self,
        request: GetInfrastructureRequest,
    ) -> Result<GetInfrastructureResponse> {
        self.meant(
            &request.expected_platform_uid,
            false,
            &request.expected_instance_id,
        )?;
        let owner = owner(&request.cluster_id, &request.owner)?;
        let state = self.infrastructure()?.get(&owner).await?;
        Ok(GetInfrastructureResponse {
            state: Some(with_phase(state)),
        })
    }

    async fn release_infrastructure(
        self: &Arc<Self>,
        request: ReleaseInfrastructureRequest,
    ) -> Result<ReleaseInfrastructureResponse> {
        self.meant(
            &request.expected_platform_uid,
            true,
            &request.expected_instance_id,
        )?;
        self.infrastructure()?;
        let fence = check::fence(request.fence.as_ref())?;
        let owner = owner(&request.cluster_id, &request.owner)?;
        let this = Arc::clone(self);
        let progress = self.changing(&fence, async move {
            let lock = this.working.lock(&owner);
            let _working = lock.lock().await;
            this.infrastructure()?.release(&owner).await
        });
        let (state, poll_after) = told(progress.await?);
        Ok(ReleaseInfrastructureResponse {
            state: Some(state),
            poll_after,
        })
    }

    async fn list_infrastructure(
        &self,
        request: ListInfrastructureRequest,
    ) -> Result<ListInfrastructureResponse> {
        self.meant(
            &request.expected_platform_uid,
            false,
            &request.expected_instance_id,
        )?;
        let infrastructure = self.infrastructure()?;
        let mut check = Checker::default();
        let size = check::page(&mut check, request.page_size, &request.cluster_id);
        check.finish()?;
        let query = vec!["ListInfrastructure".to_owned(), request.cluster_id.clone()];
        let page = if request.page_token.is_empty() {
            let observe_time = self.observer.now();
            let (resources, warnings) = infrastructure.list().await?;
            let mut resources: Vec<&Resource> = resources
                .iter()
                .filter(|it| request.cluster_id.is_empty() || it.cluster_id == request.cluster_id)
                .collect();
            resources.sort_by(|a, b| key(a).cmp(&key(b)));
            let read = Read {
                query,
                warnings,
                observe_time,
                etag: String::new(),
            };
            self.pages.first(read, &resources, size)
        } else {
            self.pages.next(&request.page_token, &query, size)?
        };
        Ok(ListInfrastructureResponse {
            resources: page.items,
            warnings: page.read.warnings,
            next_page_token: page.next_page_token,
            observe_time: Some(timestamp(page.read.observe_time)),
        })
    }
}

fn key(resource: &Resource) -> [&str; 5] {
    [
        &resource.cluster_id,
        &resource.owner,
        &resource.kind,
        &resource.name,
        &resource.id,
    ]
}

fn told(progress: Progress) -> (InfrastructureState, Option<prost_types::Duration>) {
    (
        with_phase(progress.state),
        progress.poll_after.map(to_duration),
    )
}

/// Sets the phase to the worst phase of the resources, if the backend has not said which it is.
fn with_phase(mut state: InfrastructureState) -> InfrastructureState {
    if state.phase() == ResourcePhase::Unspecified {
        state.phase = worst(state.resources.iter().map(Resource::phase)).into();
    }
    state
}

/// Returns the worst phase, which needs attention first; `Gone` if there is none.
pub(super) fn worst(phases: impl Iterator<Item = ResourcePhase>) -> ResourcePhase {
    let badness = |phase: ResourcePhase| match phase {
        ResourcePhase::Unspecified | ResourcePhase::Gone => 0,
        ResourcePhase::Ready => 1,
        ResourcePhase::Pending => 2,
        ResourcePhase::Releasing => 3,
        ResourcePhase::Unknown => 4,
        ResourcePhase::Failed => 5,
    };
    phases
        .max_by_key(|phase| badness(*phase))
        .filter(|phase| badness(*phase) > 0)
        .unwrap_or(ResourcePhase::Gone)
}

/// Validates the desired spec.
fn spec(request: &EnsureInfrastructureRequest) -> Result<InfrastructureSpec> {
    let mut check = Checker::default();
    if request.sequence == 0 {
        check.wrong("sequence", "is required, from 1");
    }
    let Some(spec) = &request.spec else {
        check.wrong("spec", "is required");
        check.finish()?;
        return Ok(InfrastructureSpec::default());
    };
    if let Some(network) = &spec.network {
        let said = [
            !network.cidr.is_empty(),
            network.prefix_length.is_some(),
            !network.id.is_empty(),
        ];
        if said.into_iter().filter(|said| *said).count() > 1 {
            check.wrong(
                "spec.network",
                "has more than one of cidr, prefix_length and id",
            );
        }
        if !network.cidr.is_empty() && !is_cidr(&network.cidr) {
            check.wrong("spec.network.cidr", "is not a range (10.0.16.0/22)");
        }
        if network
            .prefix_length
            .is_some_and(|length| !(1..=128).contains(&length))
        {
            check.wrong("spec.network.prefix_length", "expected 1 to 128");
        }
    }
    if let Some(endpoint) = &spec.endpoint
        && endpoint.port > u32::from(u16::MAX)
    {
        check.wrong("spec.endpoint.port", "expected 1 to 65535");
    }
    for (at, rule) in spec
        .firewall
        .iter()
        .flat_map(|firewall| firewall.rules.iter().enumerate())
    {
        self::rule(&mut check, &format!("spec.firewall.rules[{at}]"), rule);
    }
    check.finish()?;
    Ok(spec.clone())
}

fn rule(check: &mut Checker, field: &str, rule: &FirewallRule) {
    check.known::<FirewallDirection>(&format!("{field}.direction"), rule.direction, true);
    if !["", "tcp", "udp"].contains(&rule.protocol.as_str()) {
        check.wrong(format!("{field}.protocol"), "expected tcp or udp");
    }
    if rule.cidrs.is_empty() {
        check.wrong(format!("{field}.cidrs"), "is required: at least one");
    }
    for (at, cidr) in rule.cidrs.iter().enumerate() {
        if !is_cidr(cidr) {
            check.wrong(
                format!("{field}.cidrs[{at}]"),
                "is not a range (10.0.16.0/22)",
            );
        }
    }
    for (at, port) in rule.ports.iter().enumerate() {
        let last = if port.last == 0 {
            port.first
        } else {
            port.last
        };
        if port.first == 0 || last < port.first || last > u32::from(u16::MAX) {
            check.wrong(
                format!("{field}.ports[{at}]"),
                "expected 1 to 65535, the last not before the first",
            );
        }
    }
}

fn is_cidr(text: &str) -> bool {
    text.split_once('/').is_some_and(|(ip, length)| {
        match (ip.parse::<IpAddr>(), length.parse::<u8>()) {
            (Ok(IpAddr::V4(_)), Ok(length)) => length <= 32,
            (Ok(IpAddr::V6(_)), Ok(length)) => length <= 128,
            _ => false,
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn phases(phases: &[ResourcePhase]) -> ResourcePhase {
        worst(phases.iter().copied())
    }

    #[test]
    fn the_state_has_the_worst_phase_of_its_resources() {
        use ResourcePhase::{Failed, Gone, Pending, Ready, Releasing};
        assert_eq!(phases(&[]), Gone);
        assert_eq!(phases(&[Gone, Gone]), Gone);
        assert_eq!(phases(&[Ready, Ready]), Ready);
        assert_eq!(phases(&[Ready, Gone]), Ready);
        assert_eq!(phases(&[Ready, Pending]), Pending);
        assert_eq!(phases(&[Releasing, Ready]), Releasing);
        assert_eq!(phases(&[Failed, Pending, Ready]), Failed);
    }
}
