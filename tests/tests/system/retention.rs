//! Retention of storage under all circumstances: an oracle knows for each volume whether it must exist and which node
//! must have it, and compares that with the backend and with the orchestrator's list after every step.
#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use drover_simulation as sim;

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use drover_platform_cloud::drivers::simulated::{Death, ErrorRate, ErrorRates, SimulatedSettings};
use drover_proto::orchestrator::v1 as pb;
use prost_types::{Struct, Value, value::Kind};
use sim::{Crash, World, document, runtime};

/// Runs per test.
const RUNS: u64 = 20;
/// Steps per run.
const STEPS: usize = 14;
/// Virtual deadline of a call.
const CALL: Duration = Duration::from_secs(60);
/// Virtual delay between two looks.
const LOOK: Duration = Duration::from_millis(100);
/// Names of possible groups.
const GROUPS: [&str; 2] = ["db", "log"];

/// Retention policy of a group.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Policy {
    replaced: bool,
    scaled: bool,
    deleted: bool,
}

impl Policy {
    fn random(random: &mut fastrand::Rng) -> Self {
        Self {
            replaced: random.bool(),
            scaled: random.bool(),
            deleted: random.bool(),
        }
    }

    fn spec(self) -> pb::StorageSpec {
        let of = |keep| match keep {
            true => pb::StorageRetention::Retain.into(),
            false => pb::StorageRetention::Delete.into(),
        };
        pb::StorageSpec {
            when_replaced: of(self.replaced),
            when_scaled: of(self.scaled),
            when_deleted: of(self.deleted),
            ..Default::default()
        }
    }
}

/// Desired state of the only cluster.
#[derive(Clone, Debug)]
struct Wanted {
    groups: BTreeMap<&'static str, (u32, Policy)>,
    version: u32,
}

impl Wanted {
    fn random(random: &mut fastrand::Rng) -> Self {
        let group = |name| (name, (random.u32(1..5), Policy::random(random)));
        Self {
            groups: GROUPS.map(group).into(),
            version: 0,
        }
    }

    async fn apply(&self, world: &mut World) {
        let sizes: Vec<(&str, u32)> = self.groups.iter().map(|(name, it)| (*name, it.0)).collect();
        let change = |spec: &mut pb::ClusterSpec| {
            for group in &mut spec.groups {
                group.storage = Some(self.groups[group.name.as_str()].1.spec());
            }
            let kind = Some(Kind::StringValue(self.version.to_string()));
            spec.attributes = Some(Struct {
                fields: [("version".to_owned(), Value { kind })].into(),
            });
        };
        let mut cluster = document("one", "sim", &sizes);
        change(cluster.spec.as_mut().unwrap());
        let gone = GROUPS
            .iter()
            .filter(|name| !self.groups.contains_key(*name));
        let request = pb::ApplyClusterRequest {
            cluster: Some(cluster),
            remove_groups: gone.map(|name| (*name).to_owned()).collect(),
            ..Default::default()
        };
        let answer = world
            .call(async |client| client.apply_cluster(request.clone(), CALL).await)
            .await;
        answer.unwrap();
        let sizes = sizes.into_iter();
        let sizes = sizes.map(|(name, size)| (name.to_owned(), size)).collect();
        world.wanted.insert("one".to_owned(), sizes);
    }
}

/// A random step.
#[derive(Debug)]
enum Step {
    /// Changes sizes while nodes die.
    Scale { deaths: usize },
    /// Kills nodes.
    Die { deaths: usize },
    /// Replaces all nodes.
    Roll,
    /// Changes only retention policies; no node is removed.
    Policies,
    /// Removes a group, or adds it again.
    Groups,
    /// Deletes the cluster, and creates one with the same name.
    Delete,
}

/// Expected fate of a volume.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Fate {
    /// Its node is alive and still has it.
    Stays,
    Kept,
    Deleted,
    /// The group shrank while nodes of it died, and its policies for scaled-away and for replaced nodes differ: only
    /// the number of scaled-away nodes in the group is known, which is the number by which it shrank.
    Counted,
}

/// All volumes by id: owner, group and ordinal, and the node that has the volume.
type Storage = BTreeMap<String, ((String, String, u32), Option<String>)>;

fn storage(world: &World) -> Storage {
    let all = world.site.backend.storage().into_iter();
    all.map(|(one, node)| (one.id, ((one.owner, one.group, one.ordinal), node)))
        .collect()
}

fn living(world: &World) -> BTreeSet<String> {
    let nodes = world.site.all().into_iter();
    nodes.map(|node| node.node_id).collect()
}

/// Kills nodes of the cluster out of band. Returns their ids.
fn die(world: &mut World, random: &mut fastrand::Rng, deaths: usize) -> BTreeSet<String> {
    let mut nodes: Vec<String> = living(world).into_iter().collect();
    random.shuffle(&mut nodes);
    nodes.truncate(deaths);
    for node in &nodes {
        assert!(world.site.backend.kill(node, Death::Failed));
    }
    nodes.into_iter().collect()
}

/// State of a node with storage before a step.
struct Had {
    policy: Policy,
    group_is_wanted: bool,
    killed: bool,
    /// Whether another node of its group was killed.
    beside_killed: bool,
    /// The number of nodes by which its group shrank.
    fewer: usize,
    lives: bool,
}

/// Expected fate of the node's storage.
fn fate(step: &Step, had: &Had) -> Fate {
    let policy = had.policy;
    let of = |kept| if kept { Fate::Kept } else { Fate::Deleted };
    match step {
        _ if had.lives => Fate::Stays,
        Step::Delete => of(policy.deleted),
        _ if !had.group_is_wanted => of(policy.deleted),
        Step::Roll | Step::Die { .. } => of(policy.replaced),
        // Without a reduction in size, a killed node is replaced, and a living one can only have made room for a lower
        // slot.
        Step::Scale { .. } if had.fewer == 0 && had.killed => of(policy.replaced),
        Step::Scale { .. } if had.fewer == 0 => Fate::Kept,
        Step::Scale { .. }
            if policy.replaced != policy.scaled && (had.killed || had.beside_killed) =>
        {
            Fate::Counted
        }
        Step::Scale { .. } => of(policy.scaled),
        // No removal was requested: the node can only have made room for a lower slot.
        Step::Policies | Step::Groups => Fate::Kept,
    }
}

/// Compares the actual volumes with the expected ones and with the orchestrator's list. Returns the number of volumes
/// checked.
async fn judge(
    world: &mut World,
    before: &Storage,
    after: &Storage,
    fates: impl Fn(&str, &str) -> Fate,
) -> usize {
    let mut judged = 0;
    for (id, ((owner, group, ordinal), node)) in before {
        let now = after.get(id);
        let wanted = match node {
            Some(node) => fates(group, node),
            // Only a user can delete a retained volume.
            None => Fate::Kept,
        };
        let right = match wanted {
            Fate::Stays => now.is_some_and(|(_, now)| now == node),
            Fate::Kept => now.is_some(),
            Fate::Deleted => now.is_none(),
            // Checked for the group as a whole.
            Fate::Counted => true,
        };
        let what = format!("{id} of {owner}/{group}/{ordinal}, had by {node:?}");
        assert!(right, "{what}: it should be {wanted:?}, and it is {now:?}");
        judged += 1;
    }
    let mut places: BTreeSet<_> = BTreeSet::new();
    let living = living(world);
    for (id, (place, node)) in after {
        assert!(
            places.insert(place),
            "{place:?} has two: {id} is one of them"
        );
        let lives = node.as_ref().is_none_or(|node| living.contains(node));
        assert!(lives, "{id} is had by {node:?}, which is not there");
    }
    let request = pb::ListStorageRequest::default();
    let listed = loop {
        let listed = world
            .call(async |client| client.list_storage(request.clone(), CALL).await)
            .await
            .unwrap();
        // One that has just been started may not have reached the platform yet, and says so.
        if listed.unreachable_platforms.is_empty() {
            break listed;
        }
        tokio::time::sleep(LOOK).await;
    };
    let uid = world.cluster("one").await.map(|cluster| cluster.uid);
    let listed: BTreeMap<String, pb::StorageClaim> = listed
        .storage
        .iter()
        .map(|one| (one.storage.clone().unwrap().id, one.claim()))
        .collect();
    let free = after.iter().filter(|(_, (_, node))| node.is_none());
    let free: BTreeMap<String, pb::StorageClaim> = free
        .map(|(id, ((owner, ..), _))| match uid.as_ref() == Some(owner) {
            true => (id.clone(), pb::StorageClaim::Cluster),
            false => (id.clone(), pb::StorageClaim::None),
        })
        .collect();
    assert_eq!(listed, free, "what is listed is what nobody has");
    judged
}

/// Of a group that shrank while nodes of it died, at most as many volumes may be deleted, and at least as many must be
/// kept, as the reduction and the deaths account for.
fn count(
    before: &Storage,
    after: &Storage,
    fates: impl Fn(&str, &str) -> Fate,
    old: &BTreeMap<&'static str, (u32, Policy)>,
    wanted: &Wanted,
    killed: &BTreeSet<String>,
) {
    for (name, (was, policy)) in old {
        let Some((now, _)) = wanted.groups.get(name) else {
            continue;
        };
        let fewer = was.saturating_sub(*now) as usize;
        let gone: Vec<bool> = before
            .iter()
            .filter(|(_, ((_, group, _), node))| {
                let counted = |node: &String| fates(group, node) == Fate::Counted;
                group == name && node.as_ref().is_some_and(counted)
            })
            .map(|(id, _)| after.contains_key(id))
            .collect();
        if gone.is_empty() {
            continue;
        }
        let died = before
            .values()
            .filter(|((_, group, _), node)| {
                group == name && node.as_ref().is_some_and(|node| killed.contains(node))
            })
            .count();
        let kept = gone.iter().filter(|kept| **kept).count();
        let deleted = gone.len() - kept;
        let told = format!("{name} from {was} to {now} with {policy:?}, {died} died: {gone:?}");
        if policy.replaced {
            // Volumes of scaled-away nodes are deleted, and no others.
            assert!(deleted <= fewer, "lost: {told}");
        } else {
            // Volumes of scaled-away nodes are kept. A dead node may have been about to be replaced before.
            assert!(kept + died >= fewer.min(gone.len()), "lost: {told}");
        }
    }
}

async fn step(world: &mut World, wanted: &mut Wanted, random: &mut fastrand::Rng) -> usize {
    let step = match random.u32(..12) {
        0..4 => Step::Scale {
            deaths: random.usize(..3),
        },
        4..6 => Step::Die {
            deaths: random.usize(1..4),
        },
        6..8 => Step::Roll,
        8 => Step::Policies,
        9 => Step::Groups,
        _ => Step::Delete,
    };
    let before = storage(world);
    let old = wanted.groups.clone();
    println!("  {step:?} of {old:?}");
    let mut killed = BTreeSet::new();
    match &step {
        Step::Scale { deaths } => {
            killed = die(world, random, *deaths);
            for group in wanted.groups.values_mut() {
                group.0 = random.u32(0..6);
            }
            Box::pin(wanted.apply(world)).await;
        }
        Step::Die { deaths } => killed = die(world, random, *deaths),
        Step::Roll => {
            wanted.version += 1;
            Box::pin(wanted.apply(world)).await;
        }
        Step::Policies => {
            for group in wanted.groups.values_mut() {
                group.1 = Policy::random(random);
            }
            Box::pin(wanted.apply(world)).await;
        }
        Step::Groups => {
            let size = (random.u32(1..5), Policy::random(random));
            if wanted.groups.remove("log").is_none() {
                wanted.groups.insert("log", size);
            }
            Box::pin(wanted.apply(world)).await;
        }
        Step::Delete => {
            world.delete("one").await;
            world
                .until("it is gone", async |world| {
                    world.cluster("one").await.is_none() && living(world).is_empty()
                })
                .await;
        }
    }
    Box::pin(world.converge()).await;
    let lives = living(world);
    let after = storage(world);
    let of_killed: BTreeSet<&String> = before
        .values()
        .filter(|(_, node)| node.as_ref().is_some_and(|node| killed.contains(node)))
        .map(|((_, group, _), _)| group)
        .collect();
    let fates = |group: &str, node: &str| {
        let had = Had {
            policy: old[group].1,
            group_is_wanted: wanted.groups.contains_key(group),
            killed: killed.contains(node),
            beside_killed: of_killed.iter().any(|of| *of == group),
            fewer: match wanted.groups.get(group) {
                Some((now, _)) => old[group].0.saturating_sub(*now) as usize,
                None => 0,
            },
            lives: lives.contains(node),
        };
        fate(&step, &had)
    };
    count(&before, &after, fates, &old, wanted, &killed);
    let judged = Box::pin(judge(world, &before, &after, fates)).await;
    if matches!(step, Step::Delete) {
        *wanted = Wanted::random(random);
        Box::pin(wanted.apply(world)).await;
        Box::pin(world.converge()).await;
        let now = storage(world);
        Box::pin(judge(world, &after, &now, |_, _| Fate::Stays)).await;
    }
    judged
}

fn settings(seed: u64) -> SimulatedSettings {
    let rate = ErrorRate {
        before: 0.05,
        after: 0.1,
    };
    SimulatedSettings {
        seed: Some(seed),
        latency: Duration::from_millis(20),
        jitter: Duration::from_millis(200),
        boot_jitter: Duration::from_secs(2),
        visibility_delay: Duration::from_secs(seed % 3),
        errors: ErrorRates {
            create: rate,
            delete: rate,
            update: rate,
            ..ErrorRates::default()
        },
        ..SimulatedSettings::default()
    }
}

#[test]
fn storage_is_kept_or_deleted_as_it_was_said_whatever_happens() {
    let (mut judged, mut deaths) = (0, 0);
    for seed in drover_testing::seed::seeds(RUNS) {
        println!("seed {seed}");
        let mut random = fastrand::Rng::with_seed(seed);
        let mut at = 0;
        let at = (0..6).map(|_| {
            at += random.usize(1..60);
            at
        });
        let crash = Crash::at(at.collect::<Vec<_>>());
        runtime().block_on(async {
            let mut world = World::new(settings(seed), crash.clone()).await;
            let mut wanted = Wanted::random(&mut random);
            wanted.apply(&mut world).await;
            world.converge().await;
            for _ in 0..STEPS {
                // Boxed because the futures of a debug build exceed the stack of a test.
                judged += Box::pin(step(&mut world, &mut wanted, &mut random)).await;
            }
            world.check().await;
        });
        deaths += crash.died().len();
    }
    println!("{judged} pieces of storage judged, 0 wrong; {deaths} deaths of the orchestrator");
    assert!(judged >= 500 && deaths >= 40, "{judged} {deaths}");
}
