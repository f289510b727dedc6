//! Pods.

use async_trait::async_trait;
use drover_core::Result;
use drover_proto::{
    common::v1::{Chunk, ProcessOutput},
    kubernetes::v1 as api,
};
use drover_resources::parts::{Answers, Input, Pods};
use k8s_openapi::api::core::v1::Pod;
use kube::api::DeleteParams;

use crate::{
    client::ApiClient,
    convert::{self, selector_text},
    errors::Fields,
    exec, files, logs,
    objects::{Kind, Objects, Query, after_write, of_uid},
    wait,
};

pub(crate) static KIND: Kind = Kind {
    plural: "pods",
    name: "pod",
    fields: Fields {
        object: "pod",
        names: &[
            ("container_port", "port"),
            ("resources.requests", "resource_requests"),
            ("resources.limits", "resource_limits"),
            ("security_context", "security"),
            ("capabilities.add", "add_capabilities"),
            ("capabilities.drop", "drop_capabilities"),
            ("seccomp_profile.type", "seccomp_runtime_default"),
            ("value_from.field_ref.field_path", "field"),
            ("value_from.field_ref", "field"),
            ("value_from.resource_field_ref", "resource"),
            ("value_from.config_map_key_ref", "configuration"),
            ("value_from.secret_key_ref", "secret"),
            ("config_map_ref.name", "configuration"),
            ("secret_ref.name", "secret"),
            ("config_map", "configuration"),
            ("secret.secret_name", "secret.name"),
            ("persistent_volume_claim.claim_name", "claim.name"),
            ("persistent_volume_claim", "claim"),
            ("mount_path", "path"),
            ("service_account_name", "service_account"),
            ("priority_class_name", "priority_class"),
            ("node_name", "node"),
            ("dns_config.nameservers", "nameservers"),
            ("dns_config.searches", "search_domains"),
            ("dns_config", "nameservers"),
            (
                "automount_service_account_token",
                "mount_service_account_token",
            ),
            ("grace_period_seconds", "grace_period"),
            ("initial_delay_seconds", "initial_delay"),
            ("period_seconds", "period"),
            ("timeout_seconds", "timeout"),
            ("toleration_seconds", "toleration_period"),
        ],
    },
    first_limit: u32::MAX,
};

/// The pods of an API server.
pub struct KubernetesPods(Objects<Pod>);

impl KubernetesPods {
    /// The pods that a client reaches.
    #[must_use]
    pub fn new(client: ApiClient) -> Self {
        Self(Objects::new(client, &KIND))
    }
}

#[async_trait]
impl Pods for KubernetesPods {
    async fn create(&self, pod: api::Pod) -> Result<api::Pod> {
        let pod = convert::to_pod(pod)?;
        self.0.create(&pod).await.map(convert::pod)
    }

    async fn get(&self, namespace: &str, name: &str) -> Result<api::Pod> {
        self.0.get(namespace, name).await.map(convert::pod)
    }

    async fn list(&self, request: api::ListPodsRequest) -> Result<api::ListPodsResponse> {
        let fields = match request.node.as_str() {
            "" => String::new(),
            node => format!("spec.nodeName={node}"),
        };
        let query = Query {
            labels: selector_text("selector", request.selector.as_ref())?,
            fields,
            page_size: request.page_size,
            page_token: &request.page_token,
        };
        let page = self
            .0
            .page(&request.namespace, &query, convert::pod)
            .await?;
        Ok(api::ListPodsResponse {
            pods: page.items,
            next_page_token: page.next,
        })
    }

    async fn delete(&self, request: api::DeletePodRequest) -> Result<bool> {
        let grace = request.grace_period.as_ref();
        let grace = grace.map(|it| convert::seconds("grace_period", it));
        let how = DeleteParams {
            grace_period_seconds: grace.transpose()?,
            preconditions: of_uid(request.uid),
            ..DeleteParams::default()
        };
        let (namespace, name) = (&request.namespace, &request.name);
        let Some(uid) = self.0.delete(namespace, name, &how).await? else {
            return Ok(false);
        };
        if request.wait {
            let gone = wait::gone(&self.0.client, namespace, name, uid).await;
            gone.map_err(after_write)?;
        }
        Ok(true)
    }

    async fn wait(&self, request: api::WaitPodsRequest) -> Result<Answers<api::WaitProgress>> {
        wait::pods(&self.0.client, request).await
    }

    async fn exec(&self, start: api::ExecStart, input: Input) -> Result<Answers<ProcessOutput>> {
        exec::exec(&self.0.client, start, input).await
    }

    async fn read_file(
        &self,
        request: api::ReadFileRequest,
    ) -> Result<Answers<api::ReadFileResponse>> {
        files::read(&self.0.client, request).await
    }

    async fn logs(&self, request: api::StreamLogsRequest) -> Result<Answers<Chunk>> {
        logs::logs(&self.0.client, request).await
    }
}
