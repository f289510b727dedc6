//! Answers, without what is random in them.

use std::{collections::BTreeMap, fmt};

use drover_core::Error;
use drover_proto::kubernetes::v1 as api;
use prost::Message;

use super::plan::TAINT;

/// An answer as it is compared.
#[derive(Clone, PartialEq)]
pub(super) enum Answer {
    /// Text for people, and all bytes: text leaves out what is secret.
    Well(String, Vec<u8>),
    Failed(String),
}

impl Answer {
    pub(super) fn is_well(&self) -> bool {
        matches!(self, Self::Well(..))
    }
}

impl fmt::Display for Answer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Well(text, bytes) => write!(f, "{text}\n{}", String::from_utf8_lossy(bytes)),
            Self::Failed(text) => f.write_str(text),
        }
    }
}

/// What was random in earlier answers, and what is written instead.
#[derive(Default)]
pub(super) struct Known {
    uids: BTreeMap<String, String>,
    revisions: BTreeMap<String, String>,
}

/// What has something random in it.
pub(super) trait Normal: Message + fmt::Debug {
    fn normalise(&mut self, known: &mut Known);
}

fn stamp(time: &mut Option<prost_types::Timestamp>) {
    if time.is_some() {
        *time = Some(prost_types::Timestamp::default());
    }
}

impl Known {
    fn metadata(&mut self, metadata: &mut Option<api::Metadata>, settled: bool) {
        let Some(metadata) = metadata else { return };
        let number = self.uids.len();
        let uid = self.uids.entry(metadata.uid.clone());
        metadata.uid = uid.or_insert_with(|| format!("uid {number}")).clone();
        let number = self.revisions.len();
        if settled {
            let revision = self.revisions.entry(metadata.revision.clone());
            let revision = revision.or_insert_with(|| format!("revision {number}"));
            metadata.revision.clone_from(revision);
        } else {
            // Others write it at any time.
            metadata.revision.clear();
        }
        stamp(&mut metadata.create_time);
        stamp(&mut metadata.delete_time);
        // Of kwok and of the node's controllers.
        metadata
            .annotations
            .retain(|key, _| key.starts_with("test/"));
    }

    pub(super) fn one<T: Normal>(&mut self, answer: Result<T, Error>) -> Answer {
        match answer {
            Ok(mut object) => {
                object.normalise(self);
                Answer::Well(format!("{object:#?}"), object.encode_to_vec())
            }
            Err(error) => self.failed(&error),
        }
    }

    /// Where pages end is up to the server, but for their size.
    pub(super) fn pages<T: Normal>(&mut self, pages: Vec<Vec<T>>, page_size: i32) -> Answer {
        let (mut text, mut bytes) = (String::new(), Vec::new());
        for page in pages {
            let most = usize::try_from(page_size).unwrap();
            assert!(
                most == 0 || page.len() <= most,
                "a page of {}, and not {most}",
                page.len()
            );
            for mut object in page {
                object.normalise(self);
                text += &format!("{object:#?}\n");
                bytes.extend(object.encode_to_vec());
            }
        }
        Answer::Well(text, bytes)
    }

    pub(super) fn plain<T: fmt::Debug>(&self, answer: Result<T, Error>) -> Answer {
        match answer {
            Ok(answer) => Answer::Well(format!("{answer:#?}"), Vec::new()),
            Err(error) => self.failed(&error),
        }
    }

    /// The last word of a wait: in how many steps it came is up to controllers.
    pub(super) fn waited(&self, answer: Result<Option<api::WaitProgress>, Error>) -> Answer {
        self.plain(answer)
    }

    pub(super) fn failed(&self, error: &Error) -> Answer {
        let mut fields: Vec<&str> = error.fields().iter().map(|it| it.field.as_str()).collect();
        fields.sort_unstable();
        let text = format!("{:?}\nfields {fields:?}", error.reason());
        // Beside that, what is said may differ.
        Answer::Failed(format!("{text}\nresource {:?}", error.resource()))
    }
}

impl Normal for api::Node {
    fn normalise(&mut self, known: &mut Known) {
        known.metadata(&mut self.metadata, false);
        if let Some(metadata) = &mut self.metadata {
            metadata.labels.clear();
        }
        self.taints
            .retain(|taint| taint.key != TAINT && taint.key.starts_with("test/"));
        self.addresses.clear();
        self.conditions.retain(|one| one.r#type == "Ready");
        for one in &mut self.conditions {
            *one = drover_proto::common::v1::Condition {
                r#type: one.r#type.clone(),
                status: one.status,
                ..Default::default()
            };
        }
        self.capacity.clear();
        self.allocatable.clear();
        self.kubelet_version.clear();
        self.provider_id.clear();
        // Tests beside this one cordon nodes of kwok.
        let name = self.metadata.as_ref().map_or("", |it| it.name.as_str());
        if name.starts_with("kwok-") {
            self.unschedulable = false;
        }
    }
}

impl Normal for api::Pod {
    fn normalise(&mut self, known: &mut Known) {
        known.metadata(&mut self.metadata, false);
        // What becomes of a pod comes in its own time.
        self.status = None;
        if let Some(spec) = &mut self.spec {
            spec.node.clear();
            // The rig has no service accounts.
            if spec.service_account == "default" {
                spec.service_account.clear();
            }
        }
        if let Some(metadata) = &mut self.metadata {
            metadata.delete_time = None;
        }
    }
}

impl Normal for api::Service {
    fn normalise(&mut self, known: &mut Known) {
        known.metadata(&mut self.metadata, true);
        let Some(spec) = &mut self.spec else { return };
        if spec.cluster_ip.contains('.') {
            spec.cluster_ip = "an address".to_owned();
        }
        for port in &mut spec.ports {
            port.node_port = port.node_port.min(1);
        }
    }
}

impl Normal for api::Ingress {
    fn normalise(&mut self, known: &mut Known) {
        known.metadata(&mut self.metadata, true);
        // Of several objects, the answer has the data of one.
        if self.backend != api::IngressBackend::Ingress as i32
            && let Some(metadata) = &mut self.metadata
        {
            metadata.revision.clear();
        }
    }
}

impl Normal for api::NetworkPolicy {
    fn normalise(&mut self, known: &mut Known) {
        known.metadata(&mut self.metadata, true);
    }
}

impl Normal for api::Configuration {
    fn normalise(&mut self, known: &mut Known) {
        known.metadata(&mut self.metadata, true);
    }
}
