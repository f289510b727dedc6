//! Specs and views with the timings of the tests.

use std::{sync::Arc, time::Duration};

use drover_core::{
    Millis, Sym,
    spec::{
        Amount, Choice, Group, Hook, Lifecycle, Placement, Remediation, RemovalOrder, Template,
        Update, UpdateStrategy,
    },
    storage::{Policy, Storage},
};
use drover_planner::{Limits, PlatformView};

/// Deadline of Provision calls.
pub const CALL: Millis = 60_000;
/// Maximum creation time.
pub const CREATION: Millis = 30_000;
/// Maximum visibility delay.
pub const HIDDEN: Millis = 20_000;

pub fn view(name: &str) -> PlatformView {
    PlatformView {
        uid: format!("uid-of-{name}").into(),
        visible: false,
        visible_since: 0,
        callable: false,
        trouble: "has not answered yet".into(),
        etag: "1".into(),
        limits: Limits {
            max_batch: 10,
            max_creation_time: CREATION,
            request_memory: 600_000,
            visibility_delay: HIDDEN,
            replay_delay: HIDDEN,
            call_timeout: CALL,
        },
        provision_timeout: 900_000,
        no_capacity: Vec::new(),
        domains: Arc::default(),
        sick: 0,
        total: 100,
        calm_since: 0,
        fenced: false,
        adopts: true,
        relabels: true,
        grows: Some(true),
        finite: false,
    }
}

pub fn group(path: &str, size: u32, platforms: &[&str]) -> Group {
    Group {
        path: path.into(),
        field: String::new(),
        size: Some(size),
        standby: 0,
        choices: platforms.iter().map(|name| choice(name, "v1")).collect(),
        role: String::new(),
        version: "".into(),
        attributes: serde_json::Map::new(),
        placement: Placement::default(),
        bootstrap: None,
        secrets: std::collections::BTreeMap::new(),
        storage: None,
        management: None,
        lifecycle: None,
        depends_on: Vec::new(),
        health: None,
        remediation: Remediation::default(),
        update: on_delete(),
        max_in_flight: None,
        grace: Duration::from_secs(30),
        expire_after: None,
        removal_order: RemovalOrder::Newest,
        protection: false,
        provision_timeout: None,
        stable_after: Duration::from_secs(600),
    }
}

/// A group whose nodes have storage with this policy.
pub fn stored(mut group: Group, policy: Policy) -> Group {
    group.storage = Some(Box::new(Storage {
        policy,
        ..Storage::default()
    }));
    group
}

pub fn choice(platform: &str, version: &str) -> Choice {
    Choice {
        platform: platform.into(),
        class: "".into(),
        max: None,
        properties: serde_json::Map::new(),
        version_requirement: String::new(),
        pool: "".into(),
        spec_hash: format!("{version}-{platform}").into(),
        former_hashes: Vec::new(),
        labels_hash: "".into(),
        sizes: Default::default(),
        template: None,
    }
}

pub fn on_delete() -> Update {
    Update {
        strategy: UpdateStrategy::OnDelete,
        ..Update::default()
    }
}

/// A rolling update within this budget.
pub fn rolling(surge: u32, unavailable: u32) -> Update {
    Update {
        max_surge: Some(Amount::Count(surge)),
        max_unavailable: Some(Amount::Count(unavailable)),
        ..Update::default()
    }
}

/// The group with this version in every choice.
pub fn at_version(mut group: Group, version: &str) -> Group {
    for one in &mut group.choices {
        *one = choice(&one.platform, version);
    }
    group
}

/// The group after its platforms changed to this template.
pub fn of_template(mut group: Group, digest: &str) -> Group {
    for choice in &mut group.choices {
        choice.template = Some(Template {
            name: "web".into(),
            digest: digest.into(),
        });
    }
    group
}

/// A pre-stop hook with this timeout.
pub fn pre_stop(seconds: u64) -> Box<Lifecycle> {
    let hook = Hook {
        exec: vec!["leave".to_owned()],
        timeout: Duration::from_secs(seconds),
        fences: false,
    };
    Box::new(Lifecycle {
        pre_stop: Some(hook),
        post_promote: None,
        sole_writer: None,
    })
}

/// A hook for promotions that keeps the former active node out.
pub fn fencing(mut group: Group) -> Group {
    let hook = Hook {
        exec: vec!["promote".to_owned()],
        timeout: Duration::from_secs(60),
        fences: true,
    };
    group.lifecycle.get_or_insert_default().post_promote = Some(hook);
    group
}

pub fn sym(text: &str) -> Sym {
    text.into()
}

/// A shortage of all pools in all failure domains of a platform.
pub fn shortage(until: Millis) -> drover_planner::Shortage {
    drover_planner::Shortage {
        pool: "".into(),
        domain: "".into(),
        until,
    }
}
