//! `apply`, and the parts that it shares with `dev` and `plan`: all documents are checked first, and nothing is applied
//! unless all are valid.

use std::{
    io::{self, BufRead, IsTerminal, Write},
    time::{Duration, SystemTime},
};

use drover_core::{Error, Reason};
use drover_manifest::{Diagnostics, Document, Objects};
use drover_proto::orchestrator::v1::{
    ApplyClusterRequest, ApplyClusterResponse, ApplyOutcome, Cluster, Platform,
    RegisterPlatformRequest, RegisterPlatformResponse,
};

use super::{report, wait};
use crate::{
    cli::ApplyArgs,
    client::{CALL_TIMEOUT, Client},
    failure::{Exit, Failure, Outcome},
    input, output,
};

#[derive(Clone, Debug, Default)]
pub(crate) struct Options {
    pub(crate) expect_generation: Option<u64>,
    pub(crate) adopt: bool,
    pub(crate) remove_groups: Vec<String>,
}

pub(crate) async fn run(client: &Client, args: ApplyArgs) -> Outcome {
    let objects = read(client, &args.filenames).await?;
    if args.expect_generation.is_some() && objects.clusters.len() != 1 {
        return Err(Failure::usage(
            "--expect-generation needs exactly one cluster",
        ));
    }
    let options = Options {
        expect_generation: args.expect_generation,
        adopt: args.adopt,
        remove_groups: args.remove_group.clone(),
    };
    let mut planned = check(client, &objects, &options, ", nothing applied").await?;
    if args.dry_run {
        preview(client, &objects).await?;
        for (document, answer) in objects.clusters.iter().zip(&planned) {
            output::line(&format!(
                "{} (dry run)",
                outcome_line(&document.object, answer.as_ref())
            ))?;
            let Some(answer) = answer else { continue };
            warn(
                &format!("cluster/{}", document.object.name),
                &answer.warnings,
            );
            let plan = answer.plan.as_ref();
            // Adoptions and removals are shown before they happen.
            if let Some(plan) = plan.filter(|plan| args.adopt || report::Tally::of(plan).removes())
            {
                output::print(&report::plan(plan, &[], SystemTime::now()))?;
            }
        }
        return Ok(Exit::Done);
    }
    if !args.yes && !confirm(&planned)? {
        return Err(Failure::failed("not applied"));
    }
    planned.clear();
    let applied = apply(client, &objects, &options).await?;
    if args.wait {
        for cluster in &applied {
            let name = &cluster.name;
            wait::ready(client, name, args.timeout).await?;
            for node in client.list_nodes(Some(name.clone())).await?.nodes {
                let address = crate::output::rows::address(&node);
                output::line(
                    format!(
                        "node/{name}/{}  {}  {address}",
                        node.name,
                        crate::output::rows::node_status(&node)
                    )
                    .trim_end(),
                )?;
            }
        }
    }
    Ok(Exit::Done)
}

/// Reads and decodes files, and prints all diagnostics. Platform names are checked if the orchestrator answers.
pub(crate) async fn read(client: &Client, filenames: &[String]) -> Outcome<Objects> {
    let manifests = input::manifests(filenames)?;
    let registered = client.list_platforms().await;
    let names: Option<Vec<String>> = registered.as_ref().ok().map(|answer| {
        answer
            .platforms
            .iter()
            .map(|platform| platform.name.clone())
            .collect()
    });
    let mut objects = manifests.decode(names.as_deref());
    super::offline::check(&mut objects);
    for warning in &objects.warnings {
        complain!("warning: {warning}");
    }
    if !objects.diagnostics.is_empty() {
        return Err(Failure::new(
            Exit::Failed,
            objects.diagnostics.render(", nothing applied"),
        ));
    }
    registered?;
    Ok(objects)
}

fn secret_is_coming(error: &Error, objects: &Objects) -> bool {
    error.reason() == Reason::SecretNotFound
        && objects.secrets.iter().any(|document| {
            error.resource().is_some_and(|(_, name)| {
                name.split('/').next() == Some(document.object.name.as_str())
            }) || error.message().contains(&document.object.name)
        })
}

/// Checks every document with the orchestrator without storing anything. Returns the outcome for each cluster; `None`
/// for a cluster whose secret only exists in the files.
pub(crate) async fn check(
    client: &Client,
    objects: &Objects,
    options: &Options,
    consequence: &str,
) -> Outcome<Vec<Option<ApplyClusterResponse>>> {
    let mut problems = Problems::default();
    for document in &objects.secrets {
        let mut request = document.object.clone();
        request.validate_only = true;
        let answer = client
            .call(client.api.apply_secret(request, CALL_TIMEOUT))
            .await;
        problems.keep(answer, document)?;
    }
    for document in &objects.platforms {
        let answer = register(client, document.object.clone(), true).await;
        if !matches!(&answer, Err(error) if secret_is_coming(error, objects)) {
            problems.keep(answer, document)?;
        }
    }
    let coming: Vec<String> = objects
        .platforms
        .iter()
        .map(|document| document.object.name.clone())
        .collect();
    let mut planned = Vec::new();
    for document in &objects.clusters {
        let mut request = request(&document.object, options);
        request.validate_only = true;
        request.assume_platforms.clone_from(&coming);
        let answer = client
            .call(client.api.apply_cluster(request, CALL_TIMEOUT))
            .await;
        match answer {
            Err(error) if secret_is_coming(&error, objects) => planned.push(None),
            answer => planned.push(problems.keep(answer, document)?),
        }
    }
    problems.finish(consequence)?;
    Ok(planned)
}

/// Problems that the orchestrator reports.
#[derive(Debug, Default)]
struct Problems(Diagnostics);

impl Problems {
    /// Collects a problem. An error that does not concern the document ends the command.
    fn keep<A, T>(
        &mut self,
        answer: Result<A, Error>,
        document: &Document<T>,
    ) -> Outcome<Option<A>> {
        let error = match answer {
            Ok(answer) => return Ok(Some(answer)),
            Err(error) => error,
        };
        if error.fields().is_empty() {
            return match error.reason() {
                Reason::Invalid => {
                    self.0.push(document.refusal(error.message()));
                    Ok(None)
                }
                _ => Err(Failure::from(error)),
            };
        }
        for violation in error.fields() {
            self.0.push(document.violation(violation));
        }
        Ok(None)
    }

    fn finish(self, consequence: &str) -> Outcome<()> {
        if self.0.is_empty() {
            Ok(())
        } else {
            Err(Failure::new(Exit::Failed, self.0.render(consequence)))
        }
    }
}

fn request(cluster: &Cluster, options: &Options) -> ApplyClusterRequest {
    ApplyClusterRequest {
        cluster: Some(cluster.clone()),
        expected_generation: options.expect_generation,
        adopt: options.adopt,
        remove_groups: options.remove_groups.clone(),
        ..Default::default()
    }
}

/// Prints the outcome for each secret and platform, one line each. Returns whether any would change.
pub(crate) async fn preview(client: &Client, objects: &Objects) -> Outcome<bool> {
    let mut changes = false;
    for document in &objects.secrets {
        let mut request = document.object.clone();
        request.validate_only = true;
        let answer = client
            .call(client.api.apply_secret(request, CALL_TIMEOUT))
            .await?;
        changes |= answer.outcome() != ApplyOutcome::Unchanged;
        output::line(&super::secret::changes(client, &answer).await?)?;
    }
    for document in &objects.platforms {
        let name = &document.object.name;
        let word = match register(client, document.object.clone(), true).await {
            Ok(answer) => {
                changes |= answer.outcome() != ApplyOutcome::Unchanged;
                outcome_word(answer.outcome())
            }
            Err(error) if secret_is_coming(&error, objects) => {
                changes = true;
                "checked when its secret is there"
            }
            Err(error) => return Err(error.into()),
        };
        output::line(&format!("platform/{name} {word} (dry run)"))?;
    }
    Ok(changes)
}

pub(crate) async fn register(
    client: &Client,
    platform: Platform,
    validate_only: bool,
) -> Result<RegisterPlatformResponse, Error> {
    let request = RegisterPlatformRequest {
        platform: Some(platform),
        validate_only,
        rebind_uid: None,
    };
    client
        .call(client.api.register_platform(request, CALL_TIMEOUT))
        .await
}

/// Applies documents that were checked: secrets, platforms, clusters. Prints one line for each.
pub(crate) async fn apply(
    client: &Client,
    objects: &Objects,
    options: &Options,
) -> Outcome<Vec<Cluster>> {
    for document in &objects.secrets {
        let request = document.object.clone();
        let answer = client
            .call(client.api.apply_secret(request, CALL_TIMEOUT))
            .await?;
        output::line(&format!(
            "secret/{} {}",
            document.object.name,
            outcome_word(answer.outcome())
        ))?;
    }
    for document in &objects.platforms {
        let answer = register(client, document.object.clone(), false).await?;
        warn(
            &format!("platform/{}", document.object.name),
            &answer.warnings,
        );
        output::line(&format!(
            "platform/{} {}",
            document.object.name,
            outcome_word(answer.outcome())
        ))?;
    }
    let mut applied = Vec::new();
    for document in &objects.clusters {
        let request = request(&document.object, options);
        let answer = client
            .call(client.api.apply_cluster(request, CALL_TIMEOUT))
            .await;
        let answer = match answer {
            Err(error) if !error.fields().is_empty() => {
                let mut problems = Problems::default();
                problems.keep::<(), _>(Err(error), document)?;
                let consequence = format!(", {} not applied", document.origin());
                problems.finish(&consequence)?;
                continue;
            }
            answer => answer?,
        };
        warn(
            &format!("cluster/{}", document.object.name),
            &answer.warnings,
        );
        output::line(&outcome_line(&document.object, Some(&answer)))?;
        tell_paused(answer.cluster.as_ref());
        applied.push(answer.cluster.unwrap_or_else(|| document.object.clone()));
    }
    Ok(applied)
}

fn warn(name: &str, warnings: &[String]) {
    for warning in warnings {
        complain!("warning: {name}: {warning}");
    }
}

/// Says that a change waits, since nothing else would.
pub(crate) fn tell_paused(cluster: Option<&Cluster>) {
    let paused = |cluster: &&Cluster| cluster.status.as_ref().is_some_and(|it| it.pause.is_some());
    if let Some(cluster) = cluster.filter(paused) {
        let name = &cluster.name;
        complain!("cluster {name} is paused; nothing happens until: drover resume {name}");
    }
}

pub(crate) fn outcome_word(outcome: ApplyOutcome) -> &'static str {
    match outcome {
        ApplyOutcome::Created => "created",
        ApplyOutcome::Configured => "configured",
        ApplyOutcome::Unchanged => "unchanged",
        ApplyOutcome::Unspecified => "applied",
    }
}

/// One line for a cluster: `cluster/hello created (generation 1): 3 nodes on local`.
pub(crate) fn outcome_line(document: &Cluster, answer: Option<&ApplyClusterResponse>) -> String {
    let name = &document.name;
    let Some(answer) = answer else {
        return format!("cluster/{name} checked when its secret is there");
    };
    let cluster = answer.cluster.as_ref().unwrap_or(document);
    let word = outcome_word(answer.outcome());
    let mut line = format!("cluster/{name} {word} (generation {})", cluster.generation);
    match answer.outcome() {
        ApplyOutcome::Created => line.push_str(&format!(": {}", report::wanted(cluster))),
        ApplyOutcome::Configured => {
            let tally = answer
                .plan
                .as_ref()
                .map(report::Tally::of)
                .unwrap_or_default();
            line.push_str(&format!(": {}", tally.words()));
        }
        ApplyOutcome::Unchanged | ApplyOutcome::Unspecified => {}
    }
    line
}

/// Asks for confirmation on a terminal if nodes would be deleted or replaced.
fn confirm(planned: &[Option<ApplyClusterResponse>]) -> Outcome<bool> {
    let mut question = String::new();
    for answer in planned.iter().flatten() {
        let tally = answer
            .plan
            .as_ref()
            .map(report::Tally::of)
            .unwrap_or_default();
        if tally.removes()
            && let Some(cluster) = &answer.cluster
        {
            question.push_str(&format!("cluster/{}: {}\n", cluster.name, tally.words()));
        }
    }
    if question.is_empty() {
        Ok(true)
    } else {
        ask(&format!("{question}Continue?"))
    }
}

/// Whether there is somebody who can answer.
pub(crate) fn can_ask() -> bool {
    io::stdin().is_terminal() && io::stderr().is_terminal()
}

/// Asks a question on a terminal. Without one the answer is yes, as nobody can be asked.
pub(crate) fn ask(question: &str) -> Outcome<bool> {
    if !can_ask() {
        return Ok(true);
    }
    eprint!("{question} [y/N] ");
    io::stderr().flush()?;
    let mut answer = String::new();
    io::stdin().lock().read_line(&mut answer)?;
    Ok(matches!(answer.trim().to_lowercase().as_str(), "y" | "yes"))
}

/// Remaining time of a timeout that began at `start`.
pub(crate) fn left(start: tokio::time::Instant, timeout: Duration) -> Duration {
    timeout.saturating_sub(start.elapsed())
}
