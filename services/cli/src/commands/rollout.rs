//! `rollout`: progress of an update, earlier specs of a cluster, going back to one, replacing all nodes.

use std::{ops::ControlFlow, time::SystemTime};

use drover_core::Error;
use drover_manifest::yaml;
use drover_proto::orchestrator::v1::{
    Cluster, ClusterRevision, GetClusterRequest, GroupStatus, ListRevisionsRequest,
    PlanClusterRequest, PlanClusterResponse, RestartGroupRequest, UndoClusterRequest,
    plan_cluster_request::Subject,
};

use super::{apply, confirm, plan, report, tally::Tally, target, wait};
use crate::{
    cli::{RestartArgs, RolloutCommand, RolloutStatusArgs, UndoArgs},
    client::{CALL_TIMEOUT, Change, Client},
    failure::{Exit, Failure, Outcome},
    hint::Hint,
    output::{self, Format, Table, age, json, rows::or_dash},
};

/// Reasons of a blocked update that do not go away with time.
const STUCK: [&str; 3] = ["ProgressDeadline", "Rejected", "Failed"];

pub(crate) async fn run(client: &Client, command: RolloutCommand) -> Outcome {
    match command {
        RolloutCommand::Status(args) => status(client, args).await,
        RolloutCommand::History { cluster, output } => history(client, &cluster, output).await,
        RolloutCommand::Undo(args) => {
            let command = typed(&args);
            let outcome = undo(client, args).await;
            outcome.map_err(|failure| failure.of(&command))
        }
        RolloutCommand::Restart(args) => restart(client, args).await,
    }
}

/// Progress of an update.
#[derive(Debug, PartialEq, Eq)]
enum Progress {
    Complete,
    OnDelete,
    Updating,
    Blocked(String, String),
}

impl Progress {
    fn of(cluster: &Cluster, group: &GroupStatus) -> Self {
        let seen = cluster
            .status
            .as_ref()
            .is_some_and(|status| status.observed_generation >= cluster.generation);
        let blocked = group
            .conditions
            .iter()
            .find(|c| c.r#type == "UpdateBlocked" && c.status == Some(true));
        if let Some(blocked) = blocked.filter(|_| seen) {
            return Self::Blocked(blocked.reason.clone(), blocked.message.clone());
        }
        let wanted = group.size + group.standby;
        let there = group.present == wanted && group.ready >= group.size;
        if !seen || group.renewing > 0 || group.update_start_time.is_some() || !there {
            Self::Updating
        } else if group.updated < group.present {
            Self::OnDelete
        } else {
            Self::Complete
        }
    }

    fn word(&self) -> &'static str {
        match self {
            Self::Complete => "Complete",
            Self::OnDelete => "OnDelete",
            Self::Updating => "Updating",
            Self::Blocked(..) => "Blocked",
        }
    }
}

async fn status(client: &Client, args: RolloutStatusArgs) -> Outcome {
    let (name, path) = target::cluster_or_group(&args.target)?;
    let mut cluster = get(client, name).await?;
    if args.wait {
        cluster = settled(client, cluster, path, args.timeout).await?;
    }
    let groups = chosen(&cluster, path)?;
    match args.output {
        Format::Json => {
            output::print(&json::pretty(&cluster.status.clone().unwrap_or_default())?)?;
        }
        Format::Yaml => {
            let status = cluster.status.clone().unwrap_or_default();
            output::print(&yaml::write(&json::to_yaml(&json::value(&status)?)))?;
        }
        Format::Name => {
            for group in &groups {
                output::line(&format!("group/{name}/{}", group.path))?;
            }
        }
        Format::Table | Format::Wide => {
            let mut table = Table::new(&[
                "GROUP", "STATUS", "UPDATED", "READY", "LEFT", "SINCE", "MESSAGE",
            ]);
            let now = SystemTime::now();
            for group in &groups {
                let progress = Progress::of(&cluster, group);
                table.rows.push(vec![
                    group.path.clone(),
                    progress.word().into(),
                    format!("{}/{}", group.updated_ready, group.size + group.standby),
                    format!("{}/{}", group.ready, group.size),
                    group.renewing.to_string(),
                    age::since(group.update_start_time.as_ref(), now),
                    message(group, &progress),
                ]);
            }
            output::print_painted(&table.render(true, output::colours()))?;
        }
    }
    let stuck = groups
        .iter()
        .any(|group| is_stuck(&Progress::of(&cluster, group)));
    Ok(if stuck { Exit::Failed } else { Exit::Done })
}

fn message(group: &GroupStatus, progress: &Progress) -> String {
    match progress {
        Progress::Blocked(reason, message) => format!("{reason}: {message}"),
        Progress::OnDelete => format!(
            "{} outdated, replaced when they go for another reason",
            group.present.saturating_sub(group.updated)
        ),
        Progress::Complete | Progress::Updating => String::new(),
    }
}

fn is_stuck(progress: &Progress) -> bool {
    matches!(progress, Progress::Blocked(reason, _) if STUCK.contains(&reason.as_str()))
}

/// Waits until the cluster or group is up to date, or stuck.
async fn settled(
    client: &Client,
    cluster: Cluster,
    path: Option<&str>,
    timeout: std::time::Duration,
) -> Outcome<Cluster> {
    let name = cluster.name.clone();
    let mut last = cluster;
    let mut said = String::new();
    let watch = client.watch_clusters(Some(&name), None, |change| match change {
        Change::Upsert(cluster) => {
            last = cluster.clone();
            let groups = chosen(&last, path).unwrap_or_default();
            let of = |group: &&GroupStatus| Progress::of(&last, group);
            if groups.iter().any(|group| is_stuck(&of(group)))
                || groups
                    .iter()
                    .all(|group| matches!(of(group), Progress::Complete | Progress::OnDelete))
            {
                return ControlFlow::Break(true);
            }
            let words: Vec<String> = groups
                .iter()
                .map(|group| {
                    let wanted = group.size + group.standby;
                    format!("{} {} of {wanted} updated", group.path, group.updated_ready)
                })
                .collect();
            let words = words.join(", ");
            if words != said {
                complain!("{words}");
                said = words;
            }
            ControlFlow::Continue(())
        }
        Change::Removal(_) => ControlFlow::Break(false),
        Change::Complete => ControlFlow::Continue(()),
    });
    match tokio::time::timeout(timeout, watch).await {
        Ok(Ok(true)) => Ok(last),
        Ok(Ok(false)) => Err(Error::not_found("cluster", name).into()),
        Ok(Err(error)) => Err(error.into()),
        Err(_) => Err(
            Failure::timed_out(format!("the update of {name} is not over"))
                .with_hint(&Hint::progress(&name)),
        ),
    }
}

async fn history(client: &Client, cluster: &str, format: Format) -> Outcome {
    let name = target::cluster(cluster).to_owned();
    let request = ListRevisionsRequest {
        cluster: name.clone(),
        min_revision: None,
    };
    let answer = client
        .call(client.api.list_revisions(request, CALL_TIMEOUT))
        .await?;
    match format {
        Format::Json => output::print(&json::pretty(&answer)?)?,
        Format::Yaml => output::print(&yaml::write(&json::to_yaml(&json::value(&answer)?)))?,
        Format::Name => {
            for revision in &answer.revisions {
                output::line(&revision.generation.to_string())?;
            }
        }
        Format::Table | Format::Wide => {
            // Without authentication there are no authors to show.
            let known = answer.revisions.iter().any(|one| !one.author.is_empty());
            let mut table = Table::new(if known {
                &["REVISION", "AGE", "BY", "CHANGES"]
            } else {
                &["REVISION", "AGE", "CHANGES"]
            });
            let now = SystemTime::now();
            for (at, revision) in answer.revisions.iter().enumerate() {
                let mut row = vec![
                    revision.generation.to_string(),
                    age::since(revision.apply_time.as_ref(), now),
                ];
                row.extend(known.then(|| or_dash(&revision.author)));
                row.push(changes(revision, at == 0, at + 1 == answer.revisions.len()));
                table.rows.push(row);
            }
            output::print_painted(&table.render(true, output::colours()))?;
            if let Some(before) = answer.revisions.get(1) {
                let undo = Hint::undo(&name, before.generation);
                complain!("go back: {}", undo.told());
            }
        }
    }
    Ok(Exit::Done)
}

fn changes(revision: &ClusterRevision, present: bool, oldest: bool) -> String {
    let mut words = by_field(&revision.changes).join(", ");
    if words.is_empty() {
        words = if oldest {
            "oldest kept"
        } else {
            "none that groups have"
        }
        .into();
    }
    if present {
        words.push_str(" (present)");
    }
    words
}

/// The command line of `undo`, for hints: what it changes, and not how it is waited for or shown.
fn typed(args: &UndoArgs) -> Vec<String> {
    let begin = ["rollout", "undo", args.cluster.as_str()];
    let mut words: Vec<String> = begin.map(str::to_owned).into();
    let mut flag = |name: &str, value: &str| words.extend([name.to_owned(), value.to_owned()]);
    if let Some(revision) = args.to_revision {
        flag("--to-revision", &revision.to_string());
    }
    for group in &args.remove_group {
        flag("--remove-group", group);
    }
    if let Some(generation) = args.expect_generation {
        flag("--expect-generation", &generation.to_string());
    }
    if args.planned.dry_run {
        words.push("--dry-run".to_owned());
    }
    words
}

async fn undo(client: &Client, args: UndoArgs) -> Outcome {
    let name = target::cluster(&args.cluster).to_owned();
    // Sent again after a lost answer, it would undo itself; and what was looked at is what is undone.
    let seen = match (args.expect_generation, args.to_revision) {
        (None, None) => Some(get(client, &name).await?.generation),
        (expected, _) => expected,
    };
    let request = UndoClusterRequest {
        name: name.clone(),
        to_generation: args.to_revision,
        expected_generation: seen,
        remove_groups: args.remove_group,
    };
    let change = &args.planned.change;
    if args.planned.dry_run {
        return dry_run(client, &name, Subject::Undo(request), change.output).await;
    }
    let subject = Subject::Undo(request.clone());
    if !confirm::may_change(client, &name, subject, args.planned.yes).await? {
        return Err(Failure::failed("nothing changed"));
    }
    let answer = client
        .call(client.api.undo_cluster(request, CALL_TIMEOUT))
        .await?;
    for warning in &answer.warnings {
        complain!("warning: cluster/{name}: {warning}");
    }
    let tally = answer.plan.as_ref().map(Tally::of).unwrap_or_default();
    let generation = answer.cluster.as_ref().map_or(0, |it| it.generation);
    let of = format!("cluster/{name}");
    let words = format!(
        "{of} back to revision {} (generation {generation}): {}",
        answer.from_generation,
        tally.words()
    );
    output::result(change.output, &of, &answer, &words)?;
    apply::tell_paused(answer.cluster.as_ref());
    wait::after(client, &name, &change.wait).await
}

async fn restart(client: &Client, args: RestartArgs) -> Outcome {
    let (name, path) = target::cluster_or_group(&args.target)?;
    let request = RestartGroupRequest {
        cluster: name.to_owned(),
        group: path.map(str::to_owned),
    };
    let change = &args.planned.change;
    if args.planned.dry_run {
        return dry_run(client, name, Subject::Restart(request), change.output).await;
    }
    let subject = Subject::Restart(request.clone());
    if !confirm::may_change(client, name, subject, args.planned.yes).await? {
        return Err(Failure::failed("nothing changed"));
    }
    let answer = client
        .call(client.api.restart_group(request, CALL_TIMEOUT))
        .await?;
    let (kind, of) = match path {
        Some(path) => ("group", format!("{name}/{path}")),
        None => ("cluster", name.to_owned()),
    };
    let nodes = output::count(answer.node_count as usize, "node");
    let words = format!("{of} will be replaced: {nodes}");
    output::result(change.output, &format!("{kind}/{of}"), &answer, &words)?;
    apply::tell_paused(answer.cluster.as_ref());
    if !change.wait.wait {
        complain!("watch it: {}", Hint::progress_to_its_end(&of).told());
    }
    wait::after(client, name, &change.wait).await
}

/// `GROUP: FIELD` of several groups as one: `size (db, web)`.
fn by_field(changes: &[String]) -> Vec<String> {
    let split = |change: &str| {
        let (group, field) = change.split_once(": ")?;
        Some((group.to_owned(), field.to_owned()))
    };
    let mut fields: Vec<(String, Vec<String>)> = Vec::new();
    for change in changes {
        let (group, field) = split(change).unwrap_or((String::new(), change.clone()));
        match fields.iter_mut().find(|(known, _)| *known == field) {
            Some((_, groups)) => groups.push(group),
            None => fields.push((field, vec![group])),
        }
    }
    let words = |(field, groups): (String, Vec<String>)| match groups.as_slice() {
        [one] if one.is_empty() => field,
        [one] => format!("{one}: {field}"),
        several => format!("{field} ({})", several.join(", ")),
    };
    fields.into_iter().map(words).collect()
}

/// Prints the effects of a change.
pub(crate) async fn dry_run(
    client: &Client,
    name: &str,
    subject: Subject,
    format: Format,
) -> Outcome {
    let before = get(client, name).await?;
    let request = PlanClusterRequest {
        subject: Some(subject),
        min_revision: None,
    };
    let answer = client
        .call(client.api.plan_cluster(request, CALL_TIMEOUT))
        .await?;
    show(name, &before, answer, format)
}

/// Prints a plan of a change that is not made.
pub(crate) fn show(
    name: &str,
    before: &Cluster,
    answer: PlanClusterResponse,
    format: Format,
) -> Outcome {
    match format {
        Format::Json => output::print(&json::pretty(&answer)?)?,
        Format::Yaml => output::yaml(&answer)?,
        Format::Name => output::line(&format!("cluster/{name}"))?,
        Format::Table | Format::Wide => {
            let shown = answer.plan.unwrap_or_default();
            let after = answer.cluster.unwrap_or_default();
            for warning in &answer.warnings {
                complain!("warning: cluster/{name}: {warning}");
            }
            let to = after.generation;
            let line = if to == before.generation {
                format!("cluster/{name}  generation {to}, nothing changes in its spec (dry run)")
            } else {
                format!(
                    "cluster/{name}  generation {} -> {to} (dry run)",
                    before.generation
                )
            };
            output::line(&line)?;
            let differences = report::differences(before, &after)?;
            output::print(&report::plan(&shown, &differences, SystemTime::now()))?;
            output::line(&plan::summary(&shown))?;
        }
    }
    Ok(Exit::Done)
}

pub(crate) async fn get(client: &Client, name: &str) -> Outcome<Cluster> {
    let request = GetClusterRequest {
        name: name.to_owned(),
        min_revision: None,
    };
    let answer = client
        .call(client.api.get_cluster(request, CALL_TIMEOUT))
        .await?;
    Ok(answer.cluster.unwrap_or_default())
}

fn chosen<'a>(cluster: &'a Cluster, path: Option<&str>) -> Outcome<Vec<&'a GroupStatus>> {
    let groups = cluster.status.iter().flat_map(|status| &status.groups);
    let inside = |group: &&GroupStatus| {
        path.is_none_or(|path| group.path == path || group.path.starts_with(&format!("{path}/")))
    };
    let found: Vec<&GroupStatus> = groups.filter(inside).collect();
    match path {
        Some(path) if found.is_empty() => {
            let name = format!("{}/{path}", cluster.name);
            Err(Error::not_found("group", name).into())
        }
        _ => Ok(found),
    }
}

#[cfg(test)]
mod tests {
    use drover_proto::{common::v1::Condition, orchestrator::v1::ClusterStatus};

    use super::*;

    #[test]
    fn a_change_of_several_groups_is_told_once() {
        let changes = [
            "db: size",
            "db: protection",
            "web: protection",
            "a/b: protection",
            "update",
        ];
        let changes = changes.map(str::to_owned);
        let told = ["db: size", "protection (db, web, a/b)", "update"];
        assert_eq!(by_field(&changes), told);
    }

    fn cluster(observed_generation: u64) -> Cluster {
        Cluster {
            generation: 2,
            status: Some(ClusterStatus {
                observed_generation,
                ..Default::default()
            }),
            ..Default::default()
        }
    }

    fn group(change: impl Fn(&mut GroupStatus)) -> GroupStatus {
        let mut group = GroupStatus {
            path: "db".into(),
            size: 3,
            ready: 3,
            present: 3,
            updated: 3,
            updated_ready: 3,
            ..Default::default()
        };
        change(&mut group);
        group
    }

    #[test]
    fn an_update_is_over_when_all_nodes_are_as_wanted() {
        let of = |change: &dyn Fn(&mut GroupStatus)| Progress::of(&cluster(2), &group(change));
        assert_eq!(of(&|_| {}), Progress::Complete);
        assert_eq!(of(&|g| g.renewing = 1), Progress::Updating);
        assert_eq!(of(&|g| g.present = 4), Progress::Updating);
        assert_eq!(of(&|g| g.ready = 2), Progress::Updating);
        assert_eq!(of(&|g| g.updated = 1), Progress::OnDelete);
        assert_eq!(
            Progress::of(&cluster(1), &group(|_| {})),
            Progress::Updating
        );
        let blocked = |reason: &str| {
            let reason = reason.to_owned();
            of(&move |g| {
                g.conditions.push(Condition {
                    r#type: "UpdateBlocked".into(),
                    status: Some(true),
                    reason: reason.clone(),
                    ..Default::default()
                });
            })
        };
        assert!(is_stuck(&blocked("ProgressDeadline")));
        assert!(!is_stuck(&blocked("NoCapacity")), "it may have some again");
    }

    #[test]
    fn a_group_that_is_not_there_is_looked_for_where_groups_are() {
        let cluster = Cluster {
            name: "shop".into(),
            ..cluster(2)
        };
        let failure = chosen(&cluster, Some("nope")).unwrap_err();
        assert_eq!(failure.exit, Exit::NotFound);
        let said = "error: there is no group \"shop/nope\"\nhint: drover describe cluster shop";
        assert_eq!(failure.message, said);
    }
}
