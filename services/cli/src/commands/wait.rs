//! `wait`, and the waiting of `apply` and `delete`.

use std::{
    io::{IsTerminal, stderr},
    ops::ControlFlow,
    time::Duration,
};

use drover_core::{Error, name::closest};
use drover_manifest::yaml;
use drover_proto::orchestrator::v1::{Cluster, ClusterPhase, ListClustersResponse};
use indicatif::{ProgressBar, ProgressStyle};
use tokio::time::Instant;

use super::target::{self, Kind, Target};
use crate::{
    cli::{WaitArgs, WaitFlags},
    client::{Change, Client},
    failure::{Exit, Failure, Outcome},
    hint::Hint,
    output::{self, Format, json, rows},
};

/// How long is waited in all, from when on.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Patience {
    start: Instant,
    timeout: Duration,
}

impl Patience {
    pub(crate) fn new(timeout: Duration) -> Self {
        Self {
            start: Instant::now(),
            timeout,
        }
    }

    fn left(self) -> Duration {
        self.timeout.saturating_sub(self.start.elapsed())
    }
}

/// Conditions of clusters.
const CONDITIONS: [&str; 19] = [
    "Ready",
    "NodesReady",
    "UpToDate",
    "ScalingUp",
    "ScalingDown",
    "Remediating",
    "Draining",
    "InfrastructureReady",
    "InfrastructureFailed",
    "AddonsReady",
    "AddonsFailed",
    "Paused",
    "Deleting",
    "DeletionBlocked",
    "StoreBehind",
    "StoreUnavailable",
    "ForeignNodes",
    "Orphans",
    "Failed",
];

/// Interval between two frames of the spinner.
const SPIN: Duration = Duration::from_millis(120);

#[derive(Clone, Debug, PartialEq, Eq)]
enum Goal {
    Ready,
    Gone,
    Condition(String, bool),
}

impl Goal {
    fn parse(text: &str) -> Outcome<Self> {
        let wrong = || {
            Failure::usage(format!(
                "cannot wait for `{text}`; write ready, delete, condition=X or condition=X=false"
            ))
        };
        match text {
            "ready" | "Ready" => Ok(Self::Ready),
            "delete" => Ok(Self::Gone),
            _ => {
                let condition = text.strip_prefix("condition=").ok_or_else(wrong)?;
                let (name, value) = condition.split_once('=').unwrap_or((condition, "true"));
                let value = value.to_lowercase().parse().map_err(|_| wrong())?;
                if name.is_empty() {
                    return Err(wrong());
                }
                let known = CONDITIONS
                    .iter()
                    .find(|known| known.eq_ignore_ascii_case(name));
                known.map_or_else(
                    || Err(unknown(name)),
                    |known| Ok(Self::Condition((*known).to_owned(), value)),
                )
            }
        }
    }

    /// Whether the goal is reached. A status of an earlier generation says nothing about the current spec.
    fn reached(&self, cluster: &Cluster) -> bool {
        let Some(status) = &cluster.status else {
            return false;
        };
        let current = status.observed_generation >= cluster.generation;
        match self {
            Self::Ready => current && status.phase() == ClusterPhase::Ready,
            Self::Gone => false,
            Self::Condition(name, value) => {
                let found = status
                    .conditions
                    .iter()
                    .find(|c| c.r#type.eq_ignore_ascii_case(name));
                current
                    && found
                        .and_then(|condition| condition.status)
                        .unwrap_or(false)
                        == *value
            }
        }
    }

    /// Whether it cannot be reached any more.
    fn is_lost(&self, cluster: &Cluster) -> bool {
        *self == Self::Ready && cluster.delete_time.is_some()
    }

    fn words(&self) -> String {
        match self {
            Self::Ready => "ready".into(),
            Self::Gone => "gone".into(),
            Self::Condition(name, true) => name.clone(),
            Self::Condition(name, false) => format!("not {name}"),
        }
    }
}

/// A condition that no cluster ever has would be waited for in vain.
fn unknown(name: &str) -> Failure {
    let meant = closest(name, CONDITIONS);
    let meant = meant.map_or_else(String::new, |name| format!(", did you mean `{name}`?"));
    Failure::usage(format!(
        "unknown condition `{name}`{meant} (conditions: {})",
        CONDITIONS.join(", ")
    ))
}

pub(crate) async fn run(client: &Client, args: WaitArgs) -> Outcome {
    let goal = Goal::parse(&args.condition)?;
    let names = clusters(&args.target)?;
    let patience = Patience::new(args.timeout);
    let mut reached = ListClustersResponse::default();
    for name in names {
        let cluster = until(client, &name, &goal, patience).await?;
        match args.output {
            Format::Table | Format::Wide => {
                output::line(&format!("cluster/{name} is {}", goal.words()))?;
            }
            Format::Name => output::line(&format!("cluster/{name}"))?,
            Format::Json | Format::Yaml => {
                let there = cluster.filter(|_| goal != Goal::Gone);
                reached.clusters.extend(there);
            }
        }
    }
    // One document, whatever their number.
    match args.output {
        Format::Json => output::print(&json::pretty(&reached)?)?,
        Format::Yaml => output::print(&yaml::write(&json::to_yaml(&json::value(&reached)?)))?,
        Format::Table | Format::Wide | Format::Name => {}
    }
    Ok(Exit::Done)
}

/// Names of clusters, with or without their kind: nothing else can be waited for.
fn clusters(words: &[String]) -> Outcome<Vec<String>> {
    let bare = words.iter().all(|word| !word.contains('/'));
    if bare && words.first().is_none_or(|word| Kind::parse(word).is_err()) {
        return Ok(words.to_vec());
    }
    let mut names = Vec::new();
    for target in Target::several(words)? {
        if target.kind != Kind::Cluster {
            return Err(Failure::usage("only clusters can be waited for"));
        }
        names.push(target.name()?.to_owned());
    }
    Ok(names)
}

/// Waits after a change if that is asked for, and says how it ended.
pub(crate) async fn after(client: &Client, name: &str, flags: &WaitFlags) -> Outcome {
    if flags.wait {
        ready(client, name, Patience::new(flags.timeout)).await?;
    }
    Ok(Exit::Done)
}

/// Waits until a cluster is ready, and says so: `cluster/shop is ready: 8 of 8 (0.6 s)`.
pub(crate) async fn ready(client: &Client, name: &str, patience: Patience) -> Outcome<()> {
    let start = Instant::now();
    let cluster = until(client, name, &Goal::Ready, patience).await?;
    let took = start.elapsed().as_secs_f64();
    let nodes = cluster.as_ref().map_or_else(String::new, |cluster| {
        format!(": {}", rows::Readiness::of(cluster).words())
    });
    complain!("cluster/{name} is ready{nodes} ({took:.1} s)");
    Ok(())
}

/// Waits until a cluster is gone.
pub(crate) async fn gone(client: &Client, name: &str, patience: Patience) -> Outcome<()> {
    until(client, name, &Goal::Gone, patience).await?;
    Ok(())
}

/// Waits for a goal. Returns the cluster as it was last seen.
async fn until(
    client: &Client,
    name: &str,
    goal: &Goal,
    patience: Patience,
) -> Outcome<Option<Cluster>> {
    let name = target::cluster(name);
    let mut progress = Progress::new();
    let mut last = None;
    let watch = client.watch_clusters(Some(name), None, |change| match change {
        Change::Upsert(cluster) => {
            let seen = last.insert(cluster.clone());
            if goal.reached(seen) {
                return ControlFlow::Break(true);
            }
            if goal.is_lost(seen) {
                return ControlFlow::Break(false);
            }
            progress.say(&line(seen));
            ControlFlow::Continue(())
        }
        Change::Removal(_) => ControlFlow::Break(*goal == Goal::Gone),
        Change::Complete if last.is_none() => ControlFlow::Break(*goal == Goal::Gone),
        Change::Complete => ControlFlow::Continue(()),
    });
    let found = tokio::time::timeout(patience.left(), watch).await;
    progress.finish();
    match found {
        Ok(Ok(true)) => Ok(last),
        Ok(Ok(false)) if last.as_ref().is_some_and(|cluster| goal.is_lost(cluster)) => {
            Err(Failure::failed(format!(
                "cluster {name} is being deleted and does not become ready"
            ))
            .with_hint(&Hint::gone(name)))
        }
        Ok(Ok(false)) => Err(Error::not_found("cluster", name).into()),
        // Some orchestrators answer a watch of a missing cluster with this error.
        Ok(Err(error))
            if error.reason() == drover_core::Reason::NotFound && *goal == Goal::Gone =>
        {
            Ok(None)
        }
        Ok(Err(error)) => Err(error.into()),
        Err(_) => {
            let state = last
                .as_ref()
                .map(|cluster| format!("; {}", line(cluster)))
                .unwrap_or_default();
            let waited = crate::output::age::short(patience.timeout);
            Err(Failure::timed_out(format!(
                "cluster {name} was not {} within {waited}{state}",
                goal.words()
            ))
            .with_hint(&Hint::describe(name)))
        }
    }
}

/// Status line such as `cluster/orders Progressing 1 of 3 ready`, with the first obstacle.
fn line(cluster: &Cluster) -> String {
    let ready = format!("{} ready", rows::Readiness::of(cluster).words());
    let mut line = format!(
        "cluster/{} {} {ready}",
        cluster.name,
        rows::cluster_status(cluster),
    );
    let conditions = cluster.status.iter().flat_map(|status| &status.conditions);
    if let Some(condition) = conditions
        .into_iter()
        .find(|c| c.r#type == "Ready" && c.status != Some(true))
        && !condition.message.is_empty()
        && condition.message != ready
    {
        line.push_str(&format!(": {}", condition.message));
    }
    output::one_line(&line)
}

/// Shows progress on standard error: a spinner on a terminal, otherwise one line for each change.
struct Progress {
    bar: Option<ProgressBar>,
    last: String,
}

impl Progress {
    fn new() -> Self {
        let bar = stderr().is_terminal().then(|| {
            let bar = ProgressBar::new_spinner();
            if let Ok(style) = ProgressStyle::with_template("{spinner} {msg} ({elapsed})") {
                bar.set_style(style);
            }
            bar.enable_steady_tick(SPIN);
            bar
        });
        Self {
            bar,
            last: String::new(),
        }
    }

    fn say(&mut self, line: &str) {
        if self.last == line {
            return;
        }
        line.clone_into(&mut self.last);
        match &self.bar {
            Some(bar) => bar.set_message(line.to_owned()),
            None => complain!("{line}"),
        }
    }

    fn finish(&self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}

#[cfg(test)]
mod tests {
    use drover_proto::{common::v1::Condition, orchestrator::v1::ClusterStatus};

    use super::*;

    fn cluster(
        generation: u64,
        observed: u64,
        phase: ClusterPhase,
        conditions: &[(&str, bool)],
    ) -> Cluster {
        Cluster {
            generation,
            status: Some(ClusterStatus {
                phase: phase.into(),
                observed_generation: observed,
                conditions: conditions
                    .iter()
                    .map(|(name, status)| Condition {
                        r#type: (*name).into(),
                        status: Some(*status),
                        ..Default::default()
                    })
                    .collect(),
                ..Default::default()
            }),
            ..Default::default()
        }
    }

    #[test]
    fn the_status_of_an_earlier_generation_does_not_count() {
        let goal = Goal::parse("ready").unwrap();
        assert!(!goal.reached(&cluster(2, 1, ClusterPhase::Ready, &[])));
        assert!(goal.reached(&cluster(2, 2, ClusterPhase::Ready, &[])));
        let goal = Goal::parse("condition=Paused=false").unwrap();
        assert!(!goal.reached(&cluster(2, 1, ClusterPhase::Ready, &[])));
        assert!(goal.reached(&cluster(2, 2, ClusterPhase::Ready, &[])));
        assert!(!goal.reached(&cluster(2, 2, ClusterPhase::Ready, &[("Paused", true)])));
    }

    #[test]
    fn a_cluster_that_is_being_deleted_does_not_become_ready() {
        let mut going = cluster(2, 2, ClusterPhase::Deleting, &[]);
        going.delete_time = Some(prost_types::Timestamp::default());
        for (goal, lost) in [
            ("ready", true),
            ("delete", false),
            ("condition=Deleting", false),
        ] {
            assert_eq!(Goal::parse(goal).unwrap().is_lost(&going), lost, "{goal}");
        }
        let stays = cluster(2, 1, ClusterPhase::Progressing, &[]);
        assert!(!Goal::Ready.is_lost(&stays));
    }

    #[test]
    fn clusters_are_waited_for_with_or_without_their_kind() {
        let names = |line: &str| {
            let words: Vec<String> = line.split(' ').map(str::to_owned).collect();
            clusters(&words).map_err(|failure| failure.message)
        };
        for line in ["a b", "cluster a b", "cluster/a cluster/b"] {
            assert_eq!(names(line).unwrap(), ["a", "b"], "{line}");
        }
        assert!(names("node a/b").unwrap_err().contains("only clusters"));
    }

    #[test]
    fn every_documented_condition_of_clusters_can_be_waited_for() {
        let reference = include_str!("../../../../docs/reference/conditions.md");
        let documented = reference.lines().filter_map(|line| {
            let mut cells = line.split('|').map(str::trim).skip(1);
            let name = cells.next()?.strip_prefix('`')?.strip_suffix('`')?;
            let of = cells.next()?;
            of.split(", ").any(|one| one == "cluster").then_some(name)
        });
        let documented: Vec<&str> = documented.collect();
        assert_eq!(documented.len(), CONDITIONS.len(), "{documented:?}");
        for name in documented {
            Goal::parse(&format!("condition={name}")).unwrap();
        }
    }

    #[test]
    fn goals_are_read_as_documented() {
        assert_eq!(
            Goal::parse("condition=UpToDate").unwrap(),
            Goal::Condition("UpToDate".into(), true)
        );
        assert_eq!(Goal::parse("delete").unwrap(), Goal::Gone);
        let failure = Goal::parse("condition=Redy").unwrap_err();
        let said = "unknown condition `Redy`, did you mean `Ready`?";
        assert!(failure.message.contains(said), "{failure}");
        assert!(
            Goal::parse("condition=").is_err()
                && Goal::parse("done").is_err()
                && Goal::parse("condition=A=x").is_err()
        );
    }
}
