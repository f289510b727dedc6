//! The calls that something passes through, those that succeed and those that fail.

use std::{fmt::Debug, net::SocketAddr};

use drover_client::Channel;
use drover_proto::{
    common::v1::{Chunk, StdinClosed, chunk::Content, process_output::Output},
    kubernetes::v1::{
        self as api, configuration_service_client::ConfigurationServiceClient, env_var,
        exec_request::Input, pod_service_client::PodServiceClient,
    },
};
use futures::stream;
use tonic::{Request, Response, Status, Streaming};

use super::planted::{Planted, data};

/// Name of the pod, of the configuration, and of the file's folder.
const NAME: &str = "web";
const FILE: &str = "/tmp/file";

/// Calls of a server.
pub(crate) struct Calls {
    pods: PodServiceClient<Channel>,
    configurations: ConfigurationServiceClient<Channel>,
    channel: Channel,
    namespace: String,
    image: &'static str,
}

/// What a server has said to its caller.
#[derive(Default)]
pub(crate) struct Said {
    /// What came back, by call.
    pub(crate) answers: Vec<(&'static str, Vec<u8>)>,
    /// Errors, by call.
    pub(crate) errors: Vec<(&'static str, String)>,
}

impl Said {
    fn failed<T: Debug>(&mut self, what: &'static str, outcome: Result<T, Status>) {
        let status = match outcome {
            Ok(answer) => panic!("{what}: {answer:?}"),
            Err(status) => status,
        };
        let error = drover_convert::error::from_status(&status);
        let text = format!("{status} {status:?} {error} {error:?}");
        self.errors.push((what, text));
    }
}

fn bytes(chunk: Chunk) -> Vec<u8> {
    match chunk.content.unwrap() {
        Content::Data(data) => data,
        Content::Text(text) => text.into_bytes(),
    }
}

async fn all<A>(
    answers: Result<Response<Streaming<A>>, Status>,
    take: impl Fn(A) -> Vec<u8>,
) -> Result<Vec<u8>, Status> {
    let mut answers = answers?.into_inner();
    let mut taken = Vec::new();
    while let Some(answer) = answers.message().await? {
        taken.extend(take(answer));
    }
    Ok(taken)
}

fn written(output: Option<drover_proto::common::v1::ProcessOutput>) -> Vec<u8> {
    match output.unwrap().output.unwrap() {
        Output::Stdout(chunk) | Output::Stderr(chunk) => bytes(chunk),
        Output::ExitCode(code) => format!("({code})").into_bytes(),
    }
}

fn words(of: &[&str]) -> Vec<String> {
    of.iter().map(|&one| one.to_owned()).collect()
}

impl Calls {
    pub(crate) fn to(address: SocketAddr, namespace: &str, image: &'static str) -> Self {
        let target = format!("http://{address}").parse().unwrap();
        let channel = drover_client::connect(&target);
        Self {
            pods: PodServiceClient::new(channel.clone()),
            configurations: ConfigurationServiceClient::new(channel.clone()),
            channel,
            namespace: namespace.to_owned(),
            image,
        }
    }

    pub(crate) async fn all(mut self, planted: &Planted) -> Said {
        let mut said = Said::default();
        self.makes_a_pod(planted, &mut said).await;
        self.runs(planted, &mut said).await;
        self.reads(planted, &mut said).await;
        self.configures(planted, &mut said).await;
        self.runs_what_fails(planted, &mut said).await;
        self.makes_what_is_wrong(planted, &mut said).await;
        self.sends_what_nobody_can_read(planted, &mut said).await;
        said
    }

    fn metadata(&self, name: &str) -> Option<api::Metadata> {
        Some(api::Metadata {
            namespace: self.namespace.clone(),
            name: name.to_owned(),
            ..Default::default()
        })
    }

    fn pod(&self, planted: &Planted) -> api::Pod {
        let command = format!("echo {}; sleep 3600", planted.log);
        let container = api::Container {
            name: "main".into(),
            image: self.image.to_owned(),
            image_pull_policy: api::ImagePullPolicy::IfNotPresent as i32,
            command: words(&["sh", "-c", &command]),
            env: vec![api::EnvVar {
                name: "PASSWORD".into(),
                source: Some(env_var::Source::Value(planted.variable.clone())),
            }],
            volume_mounts: vec![api::VolumeMount {
                volume: "tmp".into(),
                path: "/tmp".into(),
                ..Default::default()
            }],
            ..Default::default()
        };
        api::Pod {
            metadata: self.metadata(NAME),
            spec: Some(api::PodSpec {
                containers: vec![container],
                volumes: vec![api::Volume {
                    name: "tmp".into(),
                    source: Some(api::volume::Source::EmptyDir(api::EmptyDirVolume::default())),
                }],
                termination_grace_period: Some(prost_types::Duration::default()),
                ..Default::default()
            }),
            status: None,
        }
    }

    async fn create(&mut self, pod: api::Pod) -> Result<Response<api::CreatePodResponse>, Status> {
        let request = api::CreatePodRequest { pod: Some(pod) };
        self.pods.create_pod(request).await
    }

    async fn makes_a_pod(&mut self, planted: &Planted, said: &mut Said) {
        let made = self.create(self.pod(planted)).await.unwrap();
        let spec = made.into_inner().pod.unwrap().spec.unwrap();
        let source = spec.containers[0].env[0].source.clone();
        if let Some(env_var::Source::Value(value)) = source {
            said.answers.push(("CreatePod", value.into_bytes()));
        }
        let again = self.create(self.pod(planted)).await;
        said.failed("CreatePod of a name that is taken", again);
        let wait = api::WaitPodsRequest {
            namespace: self.namespace.clone(),
            names: words(&[NAME]),
            ..Default::default()
        };
        let answers = self.pods.wait_pods(wait).await;
        all(answers, |_| Vec::new()).await.unwrap();
    }

    async fn script(
        &mut self,
        change: impl FnOnce(&mut api::RunScriptRequest),
    ) -> Result<Vec<u8>, Status> {
        let mut request = api::RunScriptRequest {
            namespace: self.namespace.clone(),
            pod: NAME.into(),
            ..Default::default()
        };
        change(&mut request);
        all(self.pods.run_script(request).await, |it| written(it.output)).await
    }

    async fn exec(
        &mut self,
        change: impl FnOnce(&mut api::ExecStart),
        input: Vec<Input>,
    ) -> Result<Vec<u8>, Status> {
        let mut start = api::ExecStart {
            namespace: self.namespace.clone(),
            pod: NAME.into(),
            command: words(&["cat"]),
            stdin: true,
            ..Default::default()
        };
        change(&mut start);
        let messages = [Input::Start(start)].into_iter().chain(input);
        let messages: Vec<_> = messages
            .map(|input| api::ExecRequest { input: Some(input) })
            .collect();
        all(self.pods.exec(stream::iter(messages)).await, |it| {
            written(it.output)
        })
        .await
    }

    async fn runs(&mut self, planted: &Planted, said: &mut Said) {
        let script = format!("echo {0}; echo {0} >&2; exit 3", planted.script);
        let out = self.script(|it| {
            it.script = script;
            it.args = vec![planted.argument.clone()];
        });
        said.answers.push(("RunScript", out.await.unwrap()));
        let closed = || Input::StdinClosed(StdinClosed {});
        let typed = || vec![Input::Stdin(data(planted.stdin.as_bytes())), closed()];
        let out = self.exec(|_| {}, typed()).await;
        said.answers.push(("Exec", out.unwrap()));
        // A command that ends well, one that ends badly, and one that there is none of.
        for command in [
            &["true", &planted.argument][..],
            &["sh", "-c", "exit 3", &planted.argument],
            &["no-such-program", &planted.argument],
        ] {
            let out = self.exec(|it| it.command = words(command), vec![closed()]);
            out.await.unwrap();
        }
        let script = format!("echo {} > {FILE}", planted.file);
        self.script(|it| it.script = script).await.unwrap();
    }

    async fn reads(&mut self, planted: &Planted, said: &mut Said) {
        let file = |path: &str| api::ReadFileRequest {
            namespace: self.namespace.clone(),
            pod: NAME.into(),
            path: path.to_owned(),
            ..Default::default()
        };
        let (file, missing) = (file(FILE), file("/tmp/missing"));
        let take = |it: api::ReadFileResponse| it.chunk.map(bytes).unwrap_or_default();
        let read = all(self.pods.read_file(file).await, take).await;
        said.answers.push(("ReadFile", read.unwrap()));
        let read = all(self.pods.read_file(missing).await, take).await;
        said.failed("ReadFile of no file", read);
        let log = api::StreamLogsRequest {
            namespace: self.namespace.clone(),
            pod: NAME.into(),
            ..Default::default()
        };
        let read = self.pods.stream_logs(log.clone()).await;
        let take = |it: api::StreamLogsResponse| bytes(it.chunk.unwrap());
        let read = all(read, take).await.unwrap();
        assert!(String::from_utf8_lossy(&read).contains(&planted.log));
        said.answers.push(("StreamLogs", read));
        let previous = api::StreamLogsRequest {
            previous: true,
            ..log
        };
        let read = all(self.pods.stream_logs(previous).await, take).await;
        said.failed("StreamLogs of no container", read);
    }

    fn configuration(&self, name: &str, text: &str, binary: &[u8]) -> api::Configuration {
        api::Configuration {
            metadata: self.metadata(name),
            data: [("text".to_owned(), text.to_owned())].into(),
            binary_data: [("bytes".to_owned(), binary.to_vec())].into(),
            ..Default::default()
        }
    }

    async fn configure(
        &mut self,
        configuration: api::Configuration,
    ) -> Result<Response<api::CreateConfigurationResponse>, Status> {
        let request = api::CreateConfigurationRequest {
            configuration: Some(configuration),
        };
        self.configurations.create_configuration(request).await
    }

    async fn reconfigure(
        &mut self,
        configuration: api::Configuration,
    ) -> Result<Response<api::UpdateConfigurationResponse>, Status> {
        let request = api::UpdateConfigurationRequest {
            configuration: Some(configuration),
        };
        self.configurations.update_configuration(request).await
    }

    async fn configures(&mut self, planted: &Planted, said: &mut Said) {
        let first = self.configuration(NAME, &planted.text, &planted.binary);
        self.configure(first.clone()).await.unwrap();
        let again = self.configure(first).await;
        said.failed("CreateConfiguration of a name that is taken", again);
        let mut changed = self.configuration(NAME, &planted.changed, &planted.binary);
        self.reconfigure(changed.clone()).await.unwrap();
        "1".clone_into(&mut changed.metadata.as_mut().unwrap().revision);
        let stale = self.reconfigure(changed).await;
        said.failed("UpdateConfiguration of an old revision", stale);
        let mut fixed = self.configuration("fixed", &planted.text, &planted.binary);
        fixed.immutable = true;
        self.configure(fixed.clone()).await.unwrap();
        fixed.data = [("text".to_owned(), planted.changed.clone())].into();
        let refused = self.reconfigure(fixed).await;
        said.failed("UpdateConfiguration of what is immutable", refused);
        let get = api::GetConfigurationRequest {
            namespace: self.namespace.clone(),
            name: NAME.into(),
        };
        let got = self.configurations.get_configuration(get).await.unwrap();
        let got = got.into_inner().configuration.unwrap();
        said.answers
            .push(("data", got.data["text"].clone().into_bytes()));
        // As `Debug` shows them: what is no text is searched for as others write it.
        let shown = format!("{:?}", got.binary_data["bytes"]);
        said.answers.push(("binary_data", shown.into_bytes()));
        let list = api::ListConfigurationsRequest {
            namespace: self.namespace.clone(),
            ..Default::default()
        };
        self.configurations.list_configurations(list).await.unwrap();
    }

    async fn runs_what_fails(&mut self, planted: &Planted, said: &mut Said) {
        let argument = || planted.argument.clone();
        for (what, pod, container) in [
            ("RunScript in no pod", "none", ""),
            ("RunScript in no container", NAME, "none"),
        ] {
            let outcome = self.script(|it| {
                it.pod = pod.to_owned();
                it.container = container.to_owned();
                it.script = planted.script.clone();
                it.args = vec![argument()];
            });
            said.failed(what, outcome.await);
        }
        let outcome = self.script(|it| {
            it.script = planted.script.clone();
            it.args = vec![format!("{}\0", argument())];
            it.interpreter = vec![String::new(), argument()];
        });
        said.failed("RunScript with a NUL", outcome.await);
        let typed = || Input::Stdin(data(planted.stdin.as_bytes()));
        let with = |it: &mut api::ExecStart| it.command.push(planted.argument.clone());
        let outcome = self.exec(
            |it| {
                with(it);
                it.pod = "none".into();
            },
            vec![typed()],
        );
        said.failed("Exec in no pod", outcome.await);
        let outcome = self.exec(|it| it.stdin = false, vec![typed()]);
        said.failed("Exec with input that was not asked for", outcome.await);
        let start = Input::Start(api::ExecStart {
            command: vec![argument()],
            ..Default::default()
        });
        let outcome = self.exec(|_| {}, vec![typed(), start]);
        said.failed("Exec with two beginnings", outcome.await);
        let large = planted.stdin.repeat(2_000);
        let outcome = self.exec(|_| {}, vec![Input::Stdin(data(large))]);
        said.failed("Exec with too much at once", outcome.await);
    }

    async fn makes_what_is_wrong(&mut self, planted: &Planted, said: &mut Said) {
        type Change = fn(&mut api::Container);
        let changes: [(&'static str, Change); 4] = [
            ("CreatePod with a wrong variable", |it| {
                it.env[0].name = "A=B".into();
            }),
            ("CreatePod without an image", |it| it.image.clear()),
            ("CreatePod with a wrong quantity", |it| {
                it.resource_requests = [("cpu".to_owned(), "much".to_owned())].into();
            }),
            // Only Kubernetes knows that it is wrong.
            ("CreatePod with requests above limits", |it| {
                it.resource_requests = [("cpu".to_owned(), "2".to_owned())].into();
                it.resource_limits = [("cpu".to_owned(), "1".to_owned())].into();
            }),
        ];
        for (what, change) in changes {
            let mut pod = self.pod(planted);
            pod.metadata = self.metadata("wrong");
            change(&mut pod.spec.as_mut().unwrap().containers[0]);
            said.failed(what, self.create(pod).await);
        }
        for (what, key) in [
            ("CreateConfiguration with a key", "a b"),
            ("CreateConfiguration with a secret as a key", &planted.text),
        ] {
            let mut wrong = self.configuration("wrong", &planted.text, &planted.binary);
            wrong.data.insert(key.to_owned(), planted.changed.clone());
            said.failed(what, self.configure(wrong).await);
        }
        let mut twice = self.configuration("wrong", &planted.text, &planted.binary);
        twice
            .binary_data
            .insert("text".to_owned(), planted.binary.clone());
        said.failed(
            "CreateConfiguration with a key twice",
            self.configure(twice).await,
        );
        let large = planted.text.repeat(30_000);
        let large = self.configuration("wrong", &large, &planted.binary);
        said.failed(
            "CreateConfiguration of too much",
            self.configure(large).await,
        );
        let elsewhere = api::Configuration {
            metadata: Some(api::Metadata {
                namespace: "no-such-namespace".into(),
                name: NAME.into(),
                ..Default::default()
            }),
            ..self.configuration(NAME, &planted.text, &planted.binary)
        };
        // Everything is there in memory.
        if let Err(status) = self.configure(elsewhere).await {
            said.failed::<()>("CreateConfiguration elsewhere", Err(status));
        }
    }

    /// Messages of one call as those of another.
    async fn sends_what_nobody_can_read(&mut self, planted: &Planted, said: &mut Said) {
        let wrong = api::GetPodRequest {
            namespace: planted.text.clone(),
            name: planted.stdin.clone(),
        };
        for (what, path) in [
            ("Exec that nobody can read", "PodService/Exec"),
            ("CreatePod that nobody can read", "PodService/CreatePod"),
            (
                "CreateConfiguration that nobody can read",
                "ConfigurationService/CreateConfiguration",
            ),
        ] {
            let mut client = tonic::client::Grpc::new(self.channel.clone());
            client.ready().await.unwrap();
            let path = format!("/drover.kubernetes.v1.{path}").parse().unwrap();
            let codec = tonic_prost::ProstCodec::<api::GetPodRequest, ()>::default();
            let request = Request::new(stream::iter([wrong.clone()]));
            let outcome = client.streaming(request, path, codec).await;
            said.failed(what, all(outcome, |()| Vec::new()).await);
        }
    }
}
