//! Helpers for infrastructure calls.

use drover_core::Result;
use drover_proto::platform::v1::{
    EnsureInfrastructureRequest, EnsureInfrastructureResponse, GetInfrastructureRequest,
    InfrastructureSpec, InfrastructureState, ReleaseInfrastructureRequest,
    ReleaseInfrastructureResponse,
};
use drover_testing::platform::caller::{told, until};
use uuid::Uuid;

use super::Bench;

impl Bench {
    pub(crate) async fn ensure(
        &self,
        spec: &InfrastructureSpec,
    ) -> Result<EnsureInfrastructureResponse> {
        self.ensure_as(self.owner, spec, false).await
    }

    pub(crate) async fn ensure_as(
        &self,
        owner: Uuid,
        spec: &InfrastructureSpec,
        validate_only: bool,
    ) -> Result<EnsureInfrastructureResponse> {
        let request = EnsureInfrastructureRequest {
            expected_platform_uid: self.platform().await.uid,
            fence: Some(self.fence()),
            cluster_id: self.cluster.clone(),
            owner: owner.to_string(),
            sequence: 7,
            spec: Some(spec.clone()),
            validate_only,
            ..EnsureInfrastructureRequest::default()
        };
        told(self.infrastructure().ensure_infrastructure(request).await)
    }

    /// Waits until the platform makes what is missing without delay.
    pub(crate) async fn settled(&self) {
        self.release_whole().await;
    }

    /// Repeats ensure until everything is ready.
    pub(crate) async fn ensure_whole(&self, spec: &InfrastructureSpec) -> InfrastructureState {
        until("the infrastructure is ready", || async {
            let answer = self.ensure(spec).await.unwrap();
            answer.poll_after.is_none().then(|| answer.state.unwrap())
        })
        .await
    }

    pub(crate) async fn get(&self) -> InfrastructureState {
        let request = GetInfrastructureRequest {
            cluster_id: self.cluster.clone(),
            owner: self.owner.to_string(),
            ..GetInfrastructureRequest::default()
        };
        let answer = self
            .infrastructure()
            .get_infrastructure(request)
            .await
            .unwrap();
        answer.into_inner().state.unwrap()
    }

    pub(crate) async fn release(&self) -> Result<ReleaseInfrastructureResponse> {
        let request = ReleaseInfrastructureRequest {
            expected_platform_uid: self.platform().await.uid,
            fence: Some(self.fence()),
            cluster_id: self.cluster.clone(),
            owner: self.owner.to_string(),
            ..ReleaseInfrastructureRequest::default()
        };
        told(self.infrastructure().release_infrastructure(request).await)
    }

    /// Repeats release until nothing is left, ignoring failures.
    pub(crate) async fn release_whole(&self) {
        until("everything is released", || async {
            let answer = self.release().await.ok()?;
            answer.poll_after.is_none().then_some(())
        })
        .await;
    }
}
