//! `AddonService` over a [`Platform`].

use std::{collections::BTreeMap, sync::Arc};

use drover_convert::value::to_duration;
use drover_core::{Error, Reason, Result, error::cut, secrecy::Hidden};
use drover_proto::platform::v1::{
    AddonKind, AddonSecret, AddonState, Capability, EnsureAddonRequest, EnsureAddonResponse,
    ListAddonsRequest, ListAddonsResponse, RemoveAddonRequest, RemoveAddonResponse,
    addon_service_server::AddonService,
};
use drover_server::Caller;
use tonic::{Request, Response, Status};

use super::{AddonProgress, Addons, check as form, targets};
use crate::{
    check::{self, Checker},
    clock::timestamp,
    driver::lacks,
    owner::owner,
    pages::{Read, concerns},
    platform::Platform,
    service::{Service, answer},
};

#[tonic::async_trait]
impl AddonService for Service {
    async fn ensure_addon(
        &self,
        request: Request<EnsureAddonRequest>,
    ) -> std::result::Result<Response<EnsureAddonResponse>, Status> {
        let cluster = &request.get_ref().cluster_id;
        Caller::of(&request).about("cluster", cluster);
        answer(self.0.ensure_addon(request.into_inner()).await)
    }

    async fn list_addons(
        &self,
        request: Request<ListAddonsRequest>,
    ) -> std::result::Result<Response<ListAddonsResponse>, Status> {
        answer(self.0.list_addons(request.into_inner()).await)
    }

    async fn remove_addon(
        &self,
        request: Request<RemoveAddonRequest>,
    ) -> std::result::Result<Response<RemoveAddonResponse>, Status> {
        let cluster = &request.get_ref().cluster_id;
        Caller::of(&request).about("cluster", cluster);
        answer(self.0.remove_addon(request.into_inner()).await)
    }
}

impl Platform {
    fn addons(&self) -> Result<&dyn Addons> {
        self.driver
            .addons()
            .ok_or_else(|| lacks(Capability::Addons))
    }

    /// The kinds of addons for the handshake.
    pub(crate) fn addon_kinds(&self) -> Vec<i32> {
        let mut kinds = self.driver.addons().map_or(Vec::new(), Addons::kinds);
        kinds.sort_unstable();
        kinds.dedup();
        kinds.into_iter().map(Into::into).collect()
    }

    async fn ensure_addon(
        self: &Arc<Self>,
        request: EnsureAddonRequest,
    ) -> Result<EnsureAddonResponse> {
        self.meant(
            &request.expected_platform_uid,
            true,
            &request.expected_instance_id,
        )?;
        self.addons()?;
        let fence = check::fence(request.fence.as_ref())?;
        let owner = owner(&request.cluster_id, &request.owner)?;
        let (sequence, validate_only) = (request.sequence, request.validate_only);
        let wanted = form::wanted(request)?;
        let kind = targets::kind(&wanted.spec);
        if !self.addons()?.kinds().contains(&kind) {
            return Err(no_kind(kind));
        }
        let hidden = hidden(&wanted.secrets);
        if validate_only {
            self.fences.check(&fence)?;
            let checked = self.addons()?.check(&owner, &wanted).await;
            checked.map_err(|error| hidden.error(error))?;
            return Ok(EnsureAddonResponse::default());
        }
        let this = Arc::clone(self);
        let progress = self.changing(&fence, async move {
            let lock = this.working.lock(&owner);
            let _working = lock.lock().await;
            this.addons()?.ensure(&owner, sequence, &wanted).await
        });
        let progress = progress.await.map_err(|error| hidden.error(error))?;
        let (state, poll_after) = told(progress, &hidden);
        Ok(EnsureAddonResponse {
            state: Some(state),
            poll_after,
        })
    }

    async fn remove_addon(
        self: &Arc<Self>,
        request: RemoveAddonRequest,
    ) -> Result<RemoveAddonResponse> {
        self.meant(
            &request.expected_platform_uid,
            true,
            &request.expected_instance_id,
        )?;
        self.addons()?;
        let fence = check::fence(request.fence.as_ref())?;
        let owner = owner(&request.cluster_id, &request.owner)?;
        let mut check = Checker::default();
        form::name(&mut check, "name", &request.name);
        check.finish()?;
        let this = Arc::clone(self);
        let progress = self.changing(&fence, async move {
            let lock = this.working.lock(&owner);
            let _working = lock.lock().await;
            this.addons()?.remove(&owner, &request.name).await
        });
        let (state, poll_after) = told(progress.await?, &Hidden::default());
        Ok(RemoveAddonResponse {
            state: Some(state),
            poll_after,
        })
    }

    async fn list_addons(&self, request: ListAddonsRequest) -> Result<ListAddonsResponse> {
        self.meant(
            &request.expected_platform_uid,
            false,
            &request.expected_instance_id,
        )?;
        let addons = self.addons()?;
        let mut check = Checker::default();
        let size = check::page(&mut check, request.page_size, &request.cluster_id);
        check.finish()?;
        let cluster = request.cluster_id.as_str();
        let query = vec!["ListAddons".to_owned(), cluster.to_owned()];
        let page = if request.page_token.is_empty() {
            let observe_time = self.observer.now();
            let only = (!cluster.is_empty()).then_some(cluster);
            let (states, mut warnings) = addons.list(only).await?;
            warnings.retain(|warning| concerns(warning, cluster));
            let mut states: Vec<AddonState> = states
                .into_iter()
                .filter(|state| only.is_none_or(|only| state.cluster_id == only))
                .map(|state| shown(state, &Hidden::default()))
                .collect();
            states.sort_by(|a, b| key(a).cmp(&key(b)));
            let read = Read {
                query,
                warnings,
                observe_time,
                etag: String::new(),
            };
            let states: Vec<&AddonState> = states.iter().collect();
            self.pages.first(read, &states, size)
        } else {
            self.pages.next(&request.page_token, &query, size)?
        };
        Ok(ListAddonsResponse {
            addons: page.items,
            warnings: page.read.warnings,
            next_page_token: page.next_page_token,
            observe_time: Some(timestamp(page.read.observe_time)),
        })
    }
}

fn key(state: &AddonState) -> (&str, &str, &str, i32) {
    (&state.cluster_id, &state.owner, &state.name, state.kind)
}

fn no_kind(kind: AddonKind) -> Error {
    let name = kind.as_str_name();
    let name = name.strip_prefix("ADDON_KIND_").unwrap_or(name);
    let why = format!("this platform makes no addons of the kind {name}");
    Error::new(Reason::CapabilityMissing, &why)
        .with_violation("spec", why)
        .with_metadata("capability", "ADDONS")
}

/// What no answer repeats.
fn hidden(secrets: &BTreeMap<String, AddonSecret>) -> Hidden {
    let contents = secrets.values().flat_map(|secret| secret.data.values());
    contents.fold(Hidden::default(), |hidden, content| hidden.secret(content))
}

fn told(progress: AddonProgress, hidden: &Hidden) -> (AddonState, Option<prost_types::Duration>) {
    (
        shown(progress.state, hidden),
        progress.poll_after.map(to_duration),
    )
}

/// Bounds and redacts the backend's words.
fn shown(mut state: AddonState, hidden: &Hidden) -> AddonState {
    let clean = |text: &mut String| *text = cut(hidden.text(text).into_owned());
    clean(&mut state.message);
    state
        .resources
        .iter_mut()
        .for_each(|it| clean(&mut it.message));
    state
}
