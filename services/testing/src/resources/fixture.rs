//! Calls, and valid objects to change.

use std::{collections::BTreeMap, future::Future};

use drover_client::Channel;
use drover_convert::error::from_status;
use drover_core::{Error, Reason, Result};
use drover_proto::{
    common::v1::{
        Chunk, LabelOperator, LabelRequirement, LabelSelector, chunk::Content,
        process_output::Output,
    },
    kubernetes::v1::{
        self as api, configuration_service_client::ConfigurationServiceClient,
        ingress_service_client::IngressServiceClient,
        network_policy_service_client::NetworkPolicyServiceClient,
        node_service_client::NodeServiceClient, pod_service_client::PodServiceClient,
        service_service_client::ServiceServiceClient,
    },
};
use futures::StreamExt;
use tonic::{Response, Status, Streaming};

use super::Subject;

impl Subject {
    pub(super) fn nodes(&self) -> NodeServiceClient<Channel> {
        NodeServiceClient::new((self.connect)())
    }

    pub(super) fn pods(&self) -> PodServiceClient<Channel> {
        PodServiceClient::new((self.connect)())
    }

    pub(super) fn services(&self) -> ServiceServiceClient<Channel> {
        ServiceServiceClient::new((self.connect)())
    }

    pub(super) fn ingresses(&self) -> IngressServiceClient<Channel> {
        IngressServiceClient::new((self.connect)())
    }

    pub(super) fn policies(&self) -> NetworkPolicyServiceClient<Channel> {
        NetworkPolicyServiceClient::new((self.connect)())
    }

    pub(super) fn configurations(&self) -> ConfigurationServiceClient<Channel> {
        ConfigurationServiceClient::new((self.connect)())
    }

    pub(super) fn metadata(&self, what: &str) -> Option<api::Metadata> {
        Some(api::Metadata {
            namespace: self.namespace.clone(),
            name: self.name(what),
            ..Default::default()
        })
    }

    /// A pod that runs until it is ended.
    pub(super) fn pod(&self) -> api::Pod {
        self.pod_that(&["sleep", "3600"])
    }

    /// A pod with a command.
    pub(super) fn pod_that(&self, command: &[&str]) -> api::Pod {
        api::Pod {
            metadata: self.metadata("pod"),
            spec: Some(api::PodSpec {
                containers: vec![api::Container {
                    name: "main".into(),
                    image: self.image.clone(),
                    command: command.iter().map(|&word| word.to_owned()).collect(),
                    ..Default::default()
                }],
                termination_grace_period: Some(seconds(1)),
                ..Default::default()
            }),
            status: None,
        }
    }

    /// A pod whose containers are not started again.
    pub(super) fn pod_once(&self, script: &str) -> api::Pod {
        let mut pod = self.pod_that(&["sh", "-c", script]);
        spec(&mut pod).restart_policy = api::RestartPolicy::Never as i32;
        pod
    }

    pub(super) fn service(&self) -> api::Service {
        api::Service {
            metadata: self.metadata("service"),
            spec: Some(api::ServiceSpec {
                selector: labels(&[("app", "web")]),
                ports: vec![api::ServicePort {
                    port: 80,
                    ..Default::default()
                }],
                ..Default::default()
            }),
            ..Default::default()
        }
    }

    pub(super) fn policy(&self) -> api::NetworkPolicy {
        api::NetworkPolicy {
            metadata: self.metadata("policy"),
            spec: Some(api::NetworkPolicySpec::default()),
        }
    }

    pub(super) fn configuration(&self) -> api::Configuration {
        api::Configuration {
            metadata: self.metadata("configuration"),
            data: labels(&[("colour", "blue")]),
            ..Default::default()
        }
    }

    pub(super) async fn create_pod(&self, pod: api::Pod) -> Result<api::Pod> {
        let request = api::CreatePodRequest { pod: Some(pod) };
        Ok(done(self.pods().create_pod(request)).await?.pod.unwrap())
    }

    pub(super) async fn get_pod(&self, name: &str) -> Result<api::Pod> {
        let request = api::GetPodRequest {
            namespace: self.namespace.clone(),
            name: name.into(),
        };
        Ok(done(self.pods().get_pod(request)).await?.pod.unwrap())
    }

    /// Deletes a pod at once, and waits until it is gone.
    pub(super) async fn remove_pod(&self, name: &str) {
        let request = api::DeletePodRequest {
            namespace: self.namespace.clone(),
            name: name.into(),
            grace_period: Some(seconds(0)),
            wait: true,
            ..Default::default()
        };
        done(self.pods().delete_pod(request)).await.unwrap();
    }

    pub(super) async fn create_service(&self, service: api::Service) -> Result<api::Service> {
        let request = api::CreateServiceRequest {
            service: Some(service),
        };
        let answer = done(self.services().create_service(request)).await?;
        Ok(answer.service.unwrap())
    }

    pub(super) async fn create_policy(
        &self,
        policy: api::NetworkPolicy,
    ) -> Result<api::NetworkPolicy> {
        let request = api::CreateNetworkPolicyRequest {
            network_policy: Some(policy),
        };
        let answer = done(self.policies().create_network_policy(request)).await?;
        Ok(answer.network_policy.unwrap())
    }

    pub(super) async fn create_configuration(
        &self,
        new: api::Configuration,
    ) -> Result<api::Configuration> {
        let request = api::CreateConfigurationRequest {
            configuration: Some(new),
        };
        let answer = done(self.configurations().create_configuration(request)).await?;
        Ok(answer.configuration.unwrap())
    }

    pub(super) fn wait_for(
        &self,
        name: &str,
        conditions: &[api::PodWaitCondition],
    ) -> api::WaitPodsRequest {
        api::WaitPodsRequest {
            namespace: self.namespace.clone(),
            names: vec![name.into()],
            conditions: conditions.iter().map(|&one| one as i32).collect(),
            ..Default::default()
        }
    }

    /// All progress of a wait, and its error.
    pub(super) async fn wait(
        &self,
        request: api::WaitPodsRequest,
    ) -> (Vec<api::WaitProgress>, Option<Error>) {
        let answers = self.pods().wait_pods(request).await;
        all(answers, |answer: api::WaitPodsResponse| {
            answer.progress.unwrap()
        })
        .await
    }

    /// A pod that runs and is ready.
    pub(super) async fn running(&self) -> String {
        self.started(self.pod()).await
    }

    /// The name of a pod, once it is ready.
    pub(super) async fn started(&self, pod: api::Pod) -> String {
        let created = self.create_pod(pod).await.unwrap();
        let name = created.metadata.unwrap().name;
        let request = self.wait_for(&name, &[api::PodWaitCondition::Ready]);
        let (progress, error) = self.wait(request).await;
        assert_eq!(error, None, "{name} did not become ready: {progress:?}");
        name
    }

    /// Runs a script.
    pub(super) async fn script(&self, pod: &str, script: &str) -> Ran {
        let request = api::RunScriptRequest {
            namespace: self.namespace.clone(),
            pod: pod.into(),
            script: script.into(),
            ..Default::default()
        };
        ran(
            self.pods().run_script(request).await,
            |answer: api::RunScriptResponse| answer.output.unwrap().output.unwrap(),
        )
        .await
        .unwrap()
    }
}

/// What a command did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Ran {
    pub(super) stdout: Vec<u8>,
    pub(super) stderr: Vec<u8>,
    pub(super) code: Option<i32>,
    pub(super) texts: usize,
}

impl Ran {
    pub(super) fn text(&self) -> &str {
        std::str::from_utf8(&self.stdout).unwrap()
    }
}

pub(super) async fn ran<A>(
    answers: Result<Response<Streaming<A>>, Status>,
    take: fn(A) -> Output,
) -> Result<Ran> {
    let (outputs, error) = all(answers, take).await;
    if let Some(error) = error {
        return Err(error);
    }
    let mut ran = Ran::default();
    for output in outputs {
        assert_eq!(ran.code, None, "the exit code is the last message");
        match output {
            Output::Stdout(chunk) => {
                ran.texts += usize::from(matches!(chunk.content, Some(Content::Text(_))));
                ran.stdout.extend(bytes(chunk));
            }
            Output::Stderr(chunk) => ran.stderr.extend(bytes(chunk)),
            Output::ExitCode(code) => ran.code = Some(code),
        }
    }
    Ok(ran)
}

pub(super) fn bytes(chunk: Chunk) -> Vec<u8> {
    let bytes = match chunk.content.unwrap() {
        Content::Data(data) => data,
        Content::Text(text) => text.into_bytes(),
    };
    assert!(bytes.len() <= 64 * 1024, "a chunk of {} bytes", bytes.len());
    bytes
}

/// The answers of a stream, and its error.
pub(super) async fn all<A, T>(
    answers: Result<Response<Streaming<A>>, Status>,
    take: fn(A) -> T,
) -> (Vec<T>, Option<Error>) {
    let mut answers = match answers {
        Ok(answers) => answers.into_inner(),
        Err(status) => return (Vec::new(), Some(from_status(&status))),
    };
    let mut taken = Vec::new();
    while let Some(answer) = answers.next().await {
        match answer {
            Ok(answer) => taken.push(take(answer)),
            Err(status) => return (taken, Some(from_status(&status))),
        }
    }
    (taken, None)
}

pub(super) async fn done<T>(call: impl Future<Output = Result<Response<T>, Status>>) -> Result<T> {
    let answer = call.await;
    answer
        .map(Response::into_inner)
        .map_err(|status| from_status(&status))
}

/// The field that a call is refused for.
#[track_caller]
pub(super) fn assert_refused<T: std::fmt::Debug>(what: &str, outcome: Result<T>, field: &str) {
    let error = outcome.expect_err(what);
    assert_eq!(error.reason(), Reason::Invalid, "{what}: {error:?}");
    let fields: Vec<&str> = error
        .fields()
        .iter()
        .map(|one| one.field.as_str())
        .collect();
    assert!(
        fields.contains(&field),
        "{what}: {fields:?}, and not {field}: {error}"
    );
}

#[track_caller]
pub(super) fn assert_reason<T: std::fmt::Debug>(
    what: &str,
    outcome: Result<T>,
    reason: Reason,
) -> Error {
    let error = outcome.expect_err(what);
    assert_eq!(error.reason(), reason, "{what}: {error:?}");
    error
}

pub(super) fn spec(pod: &mut api::Pod) -> &mut api::PodSpec {
    pod.spec.as_mut().unwrap()
}

pub(super) fn labels(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
    let owned = |(key, value): &(&str, &str)| ((*key).to_owned(), (*value).to_owned());
    pairs.iter().map(owned).collect()
}

pub(super) fn selector(pairs: &[(&str, &str)]) -> Option<LabelSelector> {
    Some(LabelSelector {
        match_labels: labels(pairs),
        match_expressions: Vec::new(),
    })
}

pub(super) fn requirement(
    key: &str,
    operator: LabelOperator,
    values: &[&str],
) -> Option<LabelSelector> {
    Some(LabelSelector {
        match_labels: BTreeMap::new(),
        match_expressions: vec![LabelRequirement {
            key: key.into(),
            operator: operator as i32,
            values: values.iter().map(|&value| value.to_owned()).collect(),
        }],
    })
}

pub(super) fn seconds(seconds: i64) -> prost_types::Duration {
    prost_types::Duration { seconds, nanos: 0 }
}

pub(super) fn port(number: u32) -> Option<api::PortRef> {
    Some(api::PortRef {
        port: Some(api::port_ref::Port::Number(number)),
    })
}
