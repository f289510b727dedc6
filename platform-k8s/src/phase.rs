//! Phase of a pod, with its explanation.

use drover_proto::platform::v1::NodePhase;

use crate::{
    client::Meta as _,
    pod::{ContainerStatus, Pod, Terminated, Waiting},
};

/// Maximum number of characters quoted from one container.
const MAX_WORDS: usize = 1024;

/// Phase of a pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Phase {
    /// The phase as the platform API reports it.
    pub phase: NodePhase,
    /// Whether the pod runs and its condition Ready is true.
    pub ready: bool,
    /// Explanation. Empty if there is nothing to explain.
    pub message: String,
}

/// Determines the phase of a pod.
#[must_use]
pub fn of(pod: &Pod) -> Phase {
    let ready = pod.condition("Ready").is_some_and(|it| it.status == "True");
    let phase = match pod.status.phase.as_str() {
        // A node that has ended does not restart by itself, whatever its exit status was. Being deleted it may stay for
        // as long as somebody's finalizer is there, but nothing of it runs any more.
        _ if has_ended(pod) => NodePhase::Failed,
        _ if pod.metadata.is_deleting() => NodePhase::Deprovisioning,
        "Running" => NodePhase::Running,
        "Unknown" => NodePhase::Unknown,
        _ => NodePhase::Pending,
    };
    Phase {
        phase,
        // A pod that is being deleted must not be used.
        ready: ready && phase == NodePhase::Running,
        message: message(pod, phase, ready),
    }
}

/// Whether all its containers have ended for good: the kubelet reports this when none of them runs any more, and
/// Kubernetes itself for a host that was given up.
#[must_use]
pub(crate) fn has_ended(pod: &Pod) -> bool {
    matches!(pod.status.phase.as_str(), "Failed" | "Succeeded")
}

fn message(pod: &Pod, phase: NodePhase, ready: bool) -> String {
    let mut parts = Vec::new();
    if pod.metadata.is_deleting() {
        parts.push(if pod.metadata.finalizers().is_empty() {
            "is being deleted".to_owned()
        } else {
            let finalizers = pod.metadata.finalizers().join(", ");
            format!("is being deleted and waits for its finalizers: {finalizers}")
        });
    }
    if pod.status.phase == "Succeeded" {
        parts.push("all its containers have ended".to_owned());
    }
    let own = said(&pod.status.reason, &pod.status.message);
    if !own.is_empty() {
        parts.push(own);
    }
    if phase == NodePhase::Pending
        && let Some(scheduled) = pod.condition("PodScheduled")
        && scheduled.status == "False"
    {
        let words = said(&scheduled.reason, &scheduled.message);
        parts.push(format!("not scheduled: {words}"));
    }
    let init = pod.status.init_container_statuses.iter();
    parts.extend(init.filter_map(|it| container("init container", it, phase, ready)));
    let others = pod.status.container_statuses.iter();
    parts.extend(others.filter_map(|it| container("container", it, phase, ready)));
    if parts.is_empty() && phase == NodePhase::Running && !ready {
        let why = pod.condition("Ready");
        parts.extend(why.map(|it| format!("not ready: {}", said(&it.reason, &it.message))));
    }
    parts.join("; ")
}

/// Describes a container if there is something to explain.
fn container(what: &str, it: &ContainerStatus, phase: NodePhase, ready: bool) -> Option<String> {
    let name = &it.name;
    let before = it.last_state.terminated.as_ref();
    let history = match (before, it.restart_count) {
        (Some(before), count) => format!(", {}; {}", ended("last", before), restarts(count)),
        (None, 0) => String::new(),
        (None, count) => format!(", {}", restarts(count)),
    };
    if let Some(waiting) = &it.state.waiting
        && !is_usual(waiting)
    {
        let words = said(&waiting.reason, &waiting.message);
        return Some(format!("{what} {name} waits: {words}{history}"));
    }
    if let Some(terminated) = &it.state.terminated {
        let fine = terminated.exit_code == 0 && phase != NodePhase::Failed;
        return (!fine).then(|| format!("{what} {name} {}{history}", ended("has", terminated)));
    }
    // A restarted container is worth mentioning if it is not ready yet, or had failed.
    let killed = before.is_some_and(|it| it.exit_code != 0);
    (it.restart_count > 0 && (killed || !ready))
        .then(|| format!("{what} {name} runs again{history}"))
}

/// Whether every pod waits like this.
fn is_usual(waiting: &Waiting) -> bool {
    waiting.message.is_empty()
        && matches!(
            waiting.reason.as_str(),
            "" | "ContainerCreating" | "PodInitializing"
        )
}

fn ended(when: &str, it: &Terminated) -> String {
    let mut text = format!("{when} ended: ");
    text.push_str(if it.reason.is_empty() {
        "no reason given"
    } else {
        &it.reason
    });
    text.push_str(&format!(" (exit code {}", it.exit_code));
    if it.signal != 0 {
        text.push_str(&format!(", signal {}", it.signal));
    }
    text.push(')');
    // The runtime's message about a failed start. Any other message is the container's own, and may contain anything.
    let by_runtime = matches!(
        it.reason.as_str(),
        "StartError" | "ContainerCannotRun" | "ContainerStatusUnknown"
    );
    if by_runtime && !it.message.is_empty() {
        text.push_str(": ");
        text.push_str(&cut(&it.message));
    }
    text
}

fn restarts(count: u32) -> String {
    match count {
        1 => "1 restart".to_owned(),
        count => format!("{count} restarts"),
    }
}

fn said(reason: &str, message: &str) -> String {
    match (reason.is_empty(), message.is_empty()) {
        (false, false) => format!("{reason}: {}", cut(message)),
        (false, true) => reason.to_owned(),
        (true, _) => cut(message),
    }
}

fn cut(text: &str) -> String {
    let text = text.trim();
    match text.char_indices().nth(MAX_WORDS) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}

#[cfg(test)]
mod tests;
