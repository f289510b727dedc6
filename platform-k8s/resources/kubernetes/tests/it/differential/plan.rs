//! Random sequences of calls: right ones and wrong ones, over few names, so that they meet.

mod ingress;
mod object;
mod pod;

use drover_proto::{
    common::v1::{LabelOperator, LabelRequirement, LabelSelector},
    kubernetes::v1 as api,
};
use fastrand::Rng;

/// Stands for the first revision of an object that was seen.
pub(super) const FIRST: &str = "(first)";
/// Stands for the last revision, or the uid.
pub(super) const LAST: &str = "(last)";
/// Keeps pods of others off the node of a lane.
pub(super) const TAINT: &str = "drover.dev/test";
/// Ports of services.
pub(super) const PORTS: [u32; 3] = [80, 443, 8080];
/// Of so many values one is wrong.
const RARELY: usize = 50;
/// Label of everything that a sequence makes.
const SEQUENCE: &str = "test/sequence";

macro_rules! steps {
    ($($call:ident $request:ty,)*) => {
        /// A call with its request.
        #[derive(Clone, Debug)]
        #[expect(clippy::large_enum_variant, reason = "there are few at a time")]
        pub(super) enum Step {
            $($call($request),)*
        }

        impl Step {
            pub(super) fn name(&self) -> &'static str {
                match self {
                    $(Self::$call(_) => stringify!($call),)*
                }
            }
        }
    };
}

steps! {
    GetNode api::GetNodeRequest,
    ListNodes api::ListNodesRequest,
    WaitNodes api::WaitNodesRequest,
    CordonNode api::CordonNodeRequest,
    UncordonNode api::UncordonNodeRequest,
    DrainNode api::DrainNodeRequest,
    CreatePod api::CreatePodRequest,
    GetPod api::GetPodRequest,
    ListPods api::ListPodsRequest,
    DeletePod api::DeletePodRequest,
    WaitPods api::WaitPodsRequest,
    Exec api::ExecStart,
    ReadFile api::ReadFileRequest,
    StreamLogs api::StreamLogsRequest,
    CreateService api::CreateServiceRequest,
    GetService api::GetServiceRequest,
    ListServices api::ListServicesRequest,
    DeleteService api::DeleteServiceRequest,
    CreateIngress api::CreateIngressRequest,
    GetIngress api::GetIngressRequest,
    ListIngresses api::ListIngressesRequest,
    DeleteIngress api::DeleteIngressRequest,
    GetRule api::GetRuleRequest,
    UpsertPaths api::UpsertPathsRequest,
    RemovePaths api::RemovePathsRequest,
    CreateNetworkPolicy api::CreateNetworkPolicyRequest,
    GetNetworkPolicy api::GetNetworkPolicyRequest,
    ListNetworkPolicies api::ListNetworkPoliciesRequest,
    DeleteNetworkPolicy api::DeleteNetworkPolicyRequest,
    DeleteNetworkPolicies api::DeleteNetworkPoliciesRequest,
    CreateConfiguration api::CreateConfigurationRequest,
    GetConfiguration api::GetConfigurationRequest,
    ListConfigurations api::ListConfigurationsRequest,
    UpdateConfiguration api::UpdateConfigurationRequest,
    DeleteConfiguration api::DeleteConfigurationRequest,
}

/// Where a sequence happens.
pub(super) struct Place {
    pub(super) namespace: String,
    pub(super) node: String,
    /// Of the sequence.
    pub(super) number: u64,
}

impl Place {
    fn names(&self, kind: &str) -> [String; 3] {
        ["a", "b", "c"].map(|name| format!("{kind}-{name}-{}", self.number))
    }

    pub(super) fn pods(&self) -> [String; 3] {
        self.names("p")
    }
}

/// What chooses.
struct Chooser<'a> {
    place: &'a Place,
    random: Rng,
}

/// The calls of a seed.
pub(super) fn sequence(place: &Place, seed: u64) -> Vec<Step> {
    let random = Rng::with_seed(seed);
    let mut chooser = Chooser { place, random };
    // Few kinds in a sequence, so that its calls are about the same objects.
    let kinds = chooser.one(&[
        &["ingress", "service"][..],
        &["ingress", "ingress", "service"],
        &["pod", "configuration"],
        &["pod"],
        &["policy", "configuration"],
        &["configuration"],
        &["service"],
        &["node", "pod"],
    ]);
    let count = chooser.random.usize(6..16);
    let steps = (0..count).map(|_| {
        let kind = chooser.one(kinds);
        chooser.step(kind)
    });
    steps.collect()
}

impl Chooser<'_> {
    fn one<T: Copy>(&mut self, of: &[T]) -> T {
        of[self.random.usize(..of.len())]
    }

    /// Rarely one of the wrong ones: a request that is refused at once tells little.
    fn or<T: Copy>(&mut self, right: &[T], wrong: &[T]) -> T {
        if self.once_in(RARELY) {
            self.one(wrong)
        } else {
            self.one(right)
        }
    }

    /// Once in so many times.
    fn once_in(&mut self, times: usize) -> bool {
        self.random.usize(..times) == 0
    }

    fn step(&mut self, kind: &str) -> Step {
        match kind {
            "node" => self.node_step(),
            "pod" => self.pod_step(),
            "service" => self.service_step(),
            "ingress" => self.ingress_step(),
            "policy" => self.policy_step(),
            _ => self.configuration_step(),
        }
    }

    fn namespace(&mut self) -> String {
        match self.random.usize(..60) {
            0 => "not-served".to_owned(),
            1 => "Not a name".to_owned(),
            2..9 => String::new(),
            _ => self.place.namespace.clone(),
        }
    }

    fn name(&mut self, kind: &str) -> String {
        if self.once_in(RARELY) {
            let wrong = ["", "Upper", "a_b", "-a", "a..b", "a/b", "a.b", "9a"];
            return self.one(&wrong).to_owned();
        }
        let names = self.place.names(kind);
        names[self.random.usize(..3)].clone()
    }

    /// A map with few entries, rarely a wrong one.
    fn some(&mut self, pairs: &[(&str, &str)]) -> std::collections::BTreeMap<String, String> {
        let count = self.random.usize(..3);
        (0..count)
            .map(|_| {
                let (key, value) = self.one(pairs);
                (key.to_owned(), value.to_owned())
            })
            .collect()
    }

    fn metadata(&mut self, kind: &str) -> Option<api::Metadata> {
        if self.once_in(2 * RARELY) {
            return None;
        }
        let mut labels = self.some(&[
            ("app", "web"),
            ("app", "db"),
            ("test/tier", "1"),
            ("empty", ""),
        ]);
        labels.insert(SEQUENCE.to_owned(), self.place.number.to_string());
        if self.once_in(RARELY) {
            let wrong = [
                ("a b", "c"),
                ("a", "-b"),
                ("kubernetes.io/x/y", "z"),
                ("", "e"),
            ];
            let (key, value) = self.one(&wrong);
            labels.insert(key.to_owned(), value.to_owned());
        }
        let mut annotations = self.some(&[("test/note", "x y: z"), ("test/empty", "")]);
        if self.once_in(RARELY) {
            annotations.insert("not valid".to_owned(), String::new());
        }
        Some(api::Metadata {
            namespace: self.namespace(),
            name: self.name(kind),
            labels,
            annotations,
            // Written by the server, whatever is asked for.
            uid: self.one(&["", "", "", "x"]).to_owned(),
            ..api::Metadata::default()
        })
    }

    /// A selector of what this sequence has made, or part of it.
    fn selector(&mut self) -> Option<LabelSelector> {
        let mut selector = LabelSelector {
            match_labels: [(SEQUENCE.to_owned(), self.place.number.to_string())].into(),
            match_expressions: Vec::new(),
        };
        if self.once_in(2) {
            selector.match_expressions.push(self.requirement());
        }
        Some(selector)
    }

    fn requirement(&mut self) -> LabelRequirement {
        let operator = self.one(&[
            LabelOperator::In,
            LabelOperator::NotIn,
            LabelOperator::Exists,
            LabelOperator::NotExists,
        ]);
        let listed = matches!(operator, LabelOperator::In | LabelOperator::NotIn);
        let right = !self.once_in(RARELY);
        let values: &[&str] = if listed == right { &["web", ""] } else { &[] };
        LabelRequirement {
            key: self
                .or(&["app", "empty", "test/tier", "no"], &["not valid!"])
                .to_owned(),
            operator: if self.once_in(30) { 9 } else { operator.into() },
            values: values.iter().map(|&it| it.to_owned()).collect(),
        }
    }

    fn page_size(&mut self) -> i32 {
        self.or(&[0, 0, 1, 2, 500, 1000], &[1001, -1])
    }

    fn page_token(&mut self) -> String {
        self.or(&[""], &["x"]).to_owned()
    }

    fn node_step(&mut self) -> Step {
        let own = self.place.node.clone();
        let name = match self.random.usize(..8) {
            0 => "no-such-node".to_owned(),
            1 => "Not a node".to_owned(),
            2 => String::new(),
            3 => "kwok-0".to_owned(),
            _ => own.clone(),
        };
        // Those of kwok belong to all tests.
        let mine = if name.starts_with("kwok-") {
            own
        } else {
            name.clone()
        };
        match self.random.usize(..6) {
            0 => Step::GetNode(api::GetNodeRequest { name }),
            1 => Step::ListNodes(api::ListNodesRequest {
                selector: Some(LabelSelector {
                    match_labels: [("kubernetes.io/hostname".to_owned(), mine)].into(),
                    match_expressions: Vec::new(),
                }),
                page_size: self.page_size(),
                page_token: self.page_token(),
            }),
            2 => {
                let exists = !name.is_empty() && !name.starts_with("no");
                Step::WaitNodes(api::WaitNodesRequest {
                    // Of another one it would not end.
                    names: if exists {
                        vec![name]
                    } else {
                        vec![String::new()]
                    },
                    condition: self.one(&["", "Ready"]).to_owned(),
                    ..api::WaitNodesRequest::default()
                })
            }
            3 => Step::CordonNode(api::CordonNodeRequest { name: mine }),
            4 => Step::UncordonNode(api::UncordonNodeRequest { name: mine }),
            _ => Step::DrainNode(api::DrainNodeRequest {
                name: mine,
                ..api::DrainNodeRequest::default()
            }),
        }
    }
}
