//! What pods say in their log that they have loaded: the last line `drover: loaded DIGEST` or
//! `drover: refused DIGEST: WORDS`, where the digest is the SHA-256 of the content. A log is read through the API server,
//! so that it works from outside of the pods' network, and it carries the words of a refusal.

use std::collections::HashMap;

use drover_core::{Error, Result};
use drover_platform::identity::hex;
use futures::StreamExt as _;
use http::Request;
use k8s_openapi::api::core::v1::Pod;
use parking_lot::Mutex;
use sha2::{Digest as _, Sha256};

use super::Backend;
use crate::{
    client::{Call, Meta as _, bytes, escape},
    labels,
};

/// Lines of a log that are read, and their bytes at most.
const LINES: usize = 200;
const MAX_LOG: usize = 256 * 1024;

/// What a pod has made of the content that it was told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Answer {
    Loaded,
    /// It has not said anything of it.
    Pending,
    /// It keeps what it had before; why, for people.
    Refused(String),
}

/// Digest of the content that pods have loaded last, by their uid.
#[derive(Default)]
pub(super) struct Loaded(Mutex<HashMap<String, String>>);

impl Loaded {
    /// Whether a pod is known to have loaded this last. If another content is asked about, it may load that at any time,
    /// and must say anew that it is back at this one.
    fn is(&self, uid: &str, digest: &str) -> bool {
        let mut loaded = self.0.lock();
        let is = loaded.get(uid).is_some_and(|it| it == digest);
        if !is {
            loaded.remove(uid);
        }
        is
    }

    fn insert(&self, uid: &str, digest: String) {
        let mut loaded = self.0.lock();
        if loaded.len() == loaded.capacity() {
            // Those of pods that are gone; the others are read again.
            loaded.clear();
        }
        loaded.insert(uid.to_owned(), digest);
    }
}

/// Whether a pod says what it has loaded.
pub(super) fn says(pod: &Pod) -> bool {
    let said = pod.metadata.annotations().get(labels::LIVE_CONFIRMED);
    said.is_some_and(|said| said == "true")
}

impl Backend {
    /// What a pod has made of its content.
    ///
    /// # Errors
    /// Its log cannot be read.
    pub(super) async fn answer(&self, pod: &Pod, content: &str) -> Result<Answer> {
        let meta = &pod.metadata;
        let digest = hex(&Sha256::digest(content.as_bytes()));
        if self.loaded.is(meta.uid(), &digest) {
            return Ok(Answer::Loaded);
        }
        let answer = read(&self.log(meta.name()).await?, &digest);
        if answer == Answer::Loaded {
            self.loaded.insert(meta.uid(), digest);
        }
        Ok(answer)
    }

    async fn log(&self, name: &str) -> Result<String> {
        let call = Call::new("get", "pods/log", &self.namespace, name);
        let path = format!(
            "/api/v1/namespaces/{}/pods/{}/log?tailLines={LINES}&limitBytes={MAX_LOG}",
            escape(&self.namespace),
            escape(name)
        );
        let request = Request::get(path).body(Vec::new());
        let request = request.map_err(|_| Error::internal("the request cannot be written"))?;
        let mut pieces = bytes(&self.api, call, request).await?;
        let mut log = Vec::new();
        while let Some(piece) = pieces.next().await {
            log.extend(piece?);
            if log.len() > MAX_LOG {
                break;
            }
        }
        Ok(String::from_utf8_lossy(&log).into_owned())
    }
}

/// What the last word in a log says about this content.
fn read(log: &str, digest: &str) -> Answer {
    let lines = log.lines().rev();
    let mut said = lines.filter_map(|line| line.strip_prefix("drover: ")?.split_once(' '));
    let last = said.find(|(word, _)| matches!(*word, "loaded" | "refused"));
    let Some((word, rest)) = last else {
        return Answer::Pending;
    };
    match (word, rest.strip_prefix(digest)) {
        (_, None) => Answer::Pending,
        ("loaded", Some(_)) => Answer::Loaded,
        (_, Some(words)) => Answer::Refused(words.trim_start_matches([':', ' ']).to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pod_that_was_asked_about_another_content_must_say_again_that_it_has_the_former() {
        let loaded = Loaded::default();
        loaded.insert("pod", "aa".to_owned());
        assert!(loaded.is("pod", "aa"));
        assert!(!loaded.is("pod", "bb"));
        assert!(!loaded.is("pod", "aa"), "it may be at bb");
    }

    #[test]
    fn only_the_last_word_of_a_pod_counts() {
        let log = "[NOTICE] haproxy\ndrover: loaded aa\ndrover: refused bb: line 3\n[WARNING] x\n";
        assert_eq!(read(log, "bb"), Answer::Refused("line 3".to_owned()));
        assert_eq!(
            read(log, "aa"),
            Answer::Pending,
            "it may be loaded a second time"
        );
        assert_eq!(read("", "aa"), Answer::Pending);
        assert_eq!(
            read(&format!("{log}drover: loaded aa\n"), "aa"),
            Answer::Loaded
        );
    }
}
