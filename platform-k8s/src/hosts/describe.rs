//! What the platform says of itself, and whether its credentials suffice.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use drover_convert::value::to_duration;
use drover_core::Result;
use drover_platform::{driver::Description, identity::hex, inventory::properties};
use drover_proto::platform::v1::{Capability, Limits};
use drover_resources_kubernetes::{
    client::{ApiClient, Call},
    errors,
};
use k8s_openapi::api::core::v1::Namespace;
use kube::{Api, ResourceExt as _};
use sha2::{Digest, Sha256};

use super::host::KIND;
use crate::settings::Settings;

/// Maximum number of slots per request.
const MAX_BATCH: u32 = 1000;
/// Maximum time from the first write of a request to its last.
const MAX_CREATION_TIME: Duration = Duration::from_secs(120);
/// How long an API server works on a request at most, unless it is told otherwise (`--request-timeout`).
const API_SERVER_TIMEOUT: Duration = Duration::from_secs(60);

/// What is fixed at the start.
pub(super) async fn describe(client: &ApiClient, settings: &Settings) -> Result<Description> {
    let api: Api<Namespace> = Api::all(client.kube());
    let name = "kube-system";
    let namespace = api.get(name).await;
    let namespace =
        namespace.map_err(|error| errors::of(&Call::new("get", "namespaces", "", name), &error))?;
    let version = client.kube().apiserver_version().await;
    // Namespaces are a scope, and one more of them is no other backend.
    let digest = Sha256::digest(namespace.uid().unwrap_or_default().as_bytes());
    let namespaces = match &settings.namespaces[..] {
        [] => "*".to_owned(),
        named => named.join(","),
    };
    Ok(Description {
        uid: format!("metal3:{}", hex(&digest[..16])),
        name: "metal3".to_owned(),
        kind: "metal".to_owned(),
        driver: "metal3".to_owned(),
        backend_version: version.map_or_else(|_| String::new(), |it| it.git_version),
        scope: BTreeMap::from([("namespaces".to_owned(), namespaces)]),
        capabilities: vec![
            Capability::HostLabels,
            Capability::NamedHosts,
            Capability::FailureDomains,
            Capability::SpreadRequired,
            Capability::SpreadPreferred,
            Capability::UpdateNode,
            Capability::RelabelHosts,
            Capability::Adopt,
        ],
        limits: Limits {
            max_batch: Some(MAX_BATCH),
            min_poll_interval: Some(to_duration(Duration::from_secs(10))),
            max_creation_time: Some(to_duration(MAX_CREATION_TIME)),
            visibility_delay: Some(to_duration(settings.watch_timeout())),
            // A claim that was sent before a crash may arrive until the API server gives it up, which is after a minute;
            // the same process settles its own.
            replay_delay: Some(to_duration(settings.call_timeout() + API_SERVER_TIMEOUT)),
            ..Limits::default()
        },
        failure_domains: Arc::default(),
        node_classes: Vec::new(),
        properties_schema: Some(Arc::new(properties::schema())),
        properties_example: Some(Arc::new(properties::example())),
        warnings: Vec::new(),
    })
}

/// Looks whether the credentials suffice. Answers what works in part only.
pub(super) async fn rights(client: &ApiClient, settings: &Settings) -> Result<Vec<String>> {
    let (group, plural) = KIND
        .split_once('.')
        .map_or(("", KIND), |(plural, group)| (group, plural));
    let api = crate::client::Api::over(client.clone(), settings);
    let mut warnings = Vec::new();
    for scope in settings.scopes() {
        let namespace = scope.unwrap_or_default();
        for verb in ["get", "list", "watch", "patch"] {
            if !api.may_with(verb, (group, plural), "", namespace).await {
                let call = Call::new(verb, KIND, namespace, "");
                let message = format!("the credentials may not {call}");
                return Err(errors::lacks_right(&call, message));
            }
        }
        if !api.may_with("get", ("", "secrets"), "", namespace).await {
            let place = match namespace {
                "" => "any namespace".to_owned(),
                named => format!("namespace {named}"),
            };
            warnings.push(format!(
                "may not get secrets in {place}: addresses, networks and credentials of hosts there are not known"
            ));
        }
    }
    Ok(warnings)
}
