//! Generators of random platforms and clusters.

use std::time::Duration;

use drover_platform_cloud::drivers::simulated::{
    Death, DomainSettings, ErrorRate, ErrorRates, HostSettings, SimulatedSettings,
};
use drover_proto::{
    orchestrator::v1 as pb,
    platform::v1::{ExecProbe, HealthPolicy, ManagementPolicy, health_policy},
};

use super::{addons, below, model::Offers, secrets::KEY};

/// Group names of clusters.
pub(super) const GROUPS: [&str; 3] = ["db", "web", "queue"];

/// A backend with a random selection of delays and faults.
pub(super) fn platform(random: &mut fastrand::Rng, name: &str) -> SimulatedSettings {
    let seconds =
        |random: &mut fastrand::Rng, most: u64| Duration::from_millis(random.u64(..=most * 1_000));
    let rate = |random: &mut fastrand::Rng| ErrorRate {
        before: random.f64() * 0.03,
        after: random.f64() * 0.03,
    };
    let unreliable = random.u8(..3) == 0;
    let domains = random.usize(..3);
    SimulatedSettings {
        name: name.to_owned(),
        uid: Some(format!("simulated:{name}")),
        seed: Some(random.u64(..)),
        latency: if random.bool() {
            Duration::ZERO
        } else {
            seconds(random, 1) / 4
        },
        jitter: if random.bool() {
            Duration::ZERO
        } else {
            seconds(random, 1) / 4
        },
        boot_delay: seconds(random, 20),
        ready_delay: seconds(random, 5),
        boot_jitter: seconds(random, 5),
        stop_delay: seconds(random, 5),
        visibility_delay: if random.bool() {
            Duration::ZERO
        } else {
            seconds(random, 60)
        },
        flickering: random.u8(..4) == 0,
        push: random.u8(..4) != 0,
        failure_domains: (0..domains)
            .map(|domain| DomainSettings {
                name: format!("zone-{domain}"),
                ..DomainSettings::default()
            })
            .collect(),
        hosts: if random.bool() {
            Vec::new()
        } else {
            vec![HostSettings {
                id: format!("{name}-u1"),
                ..HostSettings::default()
            }]
        },
        errors: if unreliable {
            ErrorRates {
                list: rate(random),
                create: rate(random),
                delete: rate(random),
                update: rate(random),
            }
        } else {
            ErrorRates::default()
        },
        boot_failure: if random.u8(..4) == 0 { 0.02 } else { 0.0 },
        death: Death::Failed,
        ..SimulatedSettings::default()
    }
}

fn retention(random: &mut fastrand::Rng) -> i32 {
    match random.u8(..3) {
        0 => pb::StorageRetention::Unspecified,
        1 => pb::StorageRetention::Retain,
        _ => pb::StorageRetention::Delete,
    }
    .into()
}

fn duration(seconds: i64) -> Option<prost_types::Duration> {
    Some(prost_types::Duration { seconds, nanos: 0 })
}

/// Platforms in a random order of preference, at least one.
fn choices(random: &mut fastrand::Rng, platforms: &[String]) -> Vec<pb::PlatformChoice> {
    let mut names = platforms.to_vec();
    random.shuffle(&mut names);
    names.truncate(random.usize(1..=platforms.len()));
    names
        .into_iter()
        .map(|name| pb::PlatformChoice {
            name,
            max: (random.u8(..6) == 0).then(|| random.u32(1..4)),
            ..pb::PlatformChoice::default()
        })
        .collect()
}

fn group(random: &mut fastrand::Rng, name: &str, platforms: &[String]) -> pb::GroupSpec {
    let storage = (random.u8(..2) == 0).then(|| pb::StorageSpec {
        size: "1Gi".to_owned(),
        when_replaced: retention(random),
        when_scaled: retention(random),
        when_deleted: retention(random),
        ..pb::StorageSpec::default()
    });
    let mut own = if random.u8(..3) == 0 {
        choices(random, platforms)
    } else {
        Vec::new()
    };
    if storage.is_some() {
        // Retained storage is bound to one platform.
        own = choices(random, platforms);
        own.truncate(1);
    }
    pb::GroupSpec {
        name: name.to_owned(),
        size: Some(random.u32(0..5)),
        standby: (random.u8(..5) == 0).then(|| random.u32(..2)),
        platforms: own,
        storage,
        ..pb::GroupSpec::default()
    }
}

fn update(random: &mut fastrand::Rng) -> pb::UpdatePolicy {
    if random.u8(..6) == 0 {
        return pb::UpdatePolicy {
            strategy: pb::UpdateStrategy::OnDelete.into(),
            ..pb::UpdatePolicy::default()
        };
    }
    pb::UpdatePolicy {
        strategy: pb::UpdateStrategy::Rolling.into(),
        max_surge: Some(count(random.u32(..2))),
        max_unavailable: Some(count(1)),
        ..pb::UpdatePolicy::default()
    }
}

/// A secret as the bootstrap data of nodes.
fn bootstrap(random: &mut fastrand::Rng, secrets: &[String]) -> Option<pb::BootstrapSource> {
    if secrets.is_empty() || random.bool() {
        return None;
    }
    let of = pb::SecretKeyRef {
        name: secrets[random.usize(..secrets.len())].clone(),
        key: KEY.to_owned(),
    };
    Some(pb::BootstrapSource {
        source: Some(pb::bootstrap_source::Source::SecretKey(of)),
        render: false,
    })
}

/// Attributes that use up much of the maximum size of a spec.
fn many_attributes(random: &mut fastrand::Rng) -> prost_types::Struct {
    let text = "x".repeat(random.usize(1_000..100_000));
    let value = prost_types::Value {
        kind: Some(prost_types::value::Kind::StringValue(text)),
    };
    prost_types::Struct {
        fields: [("notes".to_owned(), value)].into(),
    }
}

/// A random cluster from the available platforms and secrets.
pub(super) fn cluster(random: &mut fastrand::Rng, offers: &Offers) -> pb::ClusterSpec {
    let platforms = &offers.platforms;
    let many = random.usize(1..=GROUPS.len());
    let groups: Vec<_> = GROUPS[..many]
        .iter()
        .map(|name| group(random, name, platforms))
        .collect();
    let probe = random.bool().then(|| ExecProbe {
        command: vec!["true".to_owned()],
        ..ExecProbe::default()
    });
    pb::ClusterSpec {
        platforms: choices(random, platforms),
        management_policy: match random.u8(..3) {
            0 => ManagementPolicy::OrderedReady.into(),
            _ => ManagementPolicy::Parallel.into(),
        },
        health: Some(HealthPolicy {
            probe: probe.map(health_policy::Probe::Exec),
            interval: duration(random.i64(2..15)),
            failure_threshold: Some(random.u32(1..4)),
            startup_timeout: duration(300),
            ..HealthPolicy::default()
        }),
        update: Some(update(random)),
        remediation: Some(pb::RemediationPolicy {
            // Retained storage can only be handed on after its node is gone.
            create_first: (random.bool() && groups.iter().all(|group| group.storage.is_none()))
                .then_some(true),
            ..pb::RemediationPolicy::default()
        }),
        addons: addons::some(random, &groups, offers),
        groups,
        orphan_policy: match random.u8(..5) {
            0 => pb::OrphanPolicy::Ignore.into(),
            _ => pb::OrphanPolicy::Delete.into(),
        },
        bootstrap: bootstrap(random, &offers.secrets),
        attributes: (random.u8(..25) == 0).then(|| many_attributes(random)),
        infrastructure: (random.u8(..6) == 0)
            .then(|| below::network(random, platforms))
            .into_iter()
            .collect(),
        ..pb::ClusterSpec::default()
    }
}

fn count(of: u32) -> pb::CountOrPercent {
    pb::CountOrPercent {
        amount: Some(pb::count_or_percent::Amount::Count(of)),
    }
}

/// Changes one property of a spec. Returns a description of the change.
pub(super) fn change(
    random: &mut fastrand::Rng,
    spec: &mut pb::ClusterSpec,
    offers: &Offers,
) -> &'static str {
    let platforms = &offers.platforms;
    let at = random
        .usize(..spec.groups.len().max(1))
        .min(spec.groups.len().saturating_sub(1));
    match random.u8(..15) {
        0 if spec.groups.len() < GROUPS.len() => {
            let free = GROUPS
                .iter()
                .find(|name| spec.groups.iter().all(|group| group.name != **name));
            if let Some(name) = free {
                spec.groups.push(group(random, name, platforms));
            }
            "adds a group"
        }
        1 if spec.groups.len() > 1 => {
            spec.groups.remove(at);
            addons::follow_groups(spec);
            "removes a group"
        }
        2 | 3 => {
            spec.node_class = Some(format!("class-{}", random.u8(..4)));
            "changes the node class"
        }
        4 => {
            if let Some(group) = spec.groups.get_mut(at) {
                group.node_class = Some(format!("class-{}", random.u8(..4)));
            }
            "changes the node class of a group"
        }
        5 => {
            spec.platforms = choices(random, platforms);
            "changes the platforms"
        }
        6 => {
            if let Some(storage) = spec
                .groups
                .get_mut(at)
                .and_then(|group| group.storage.as_mut())
            {
                storage.when_replaced = retention(random);
                storage.when_scaled = retention(random);
            }
            "changes what becomes of storage"
        }
        12.. => addons::change(random, spec, offers),
        8 => {
            spec.bootstrap = bootstrap(random, &offers.secrets);
            "changes what nodes begin with"
        }
        7 => {
            if let Some(group) = spec.groups.get_mut(at) {
                group.standby = Some(random.u32(..3));
            }
            "changes the number of standbys"
        }
        _ => {
            if let Some(group) = spec.groups.get_mut(at) {
                group.size = Some(random.u32(..6));
            }
            "changes a size"
        }
    }
}
