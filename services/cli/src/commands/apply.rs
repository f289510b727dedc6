//! `apply`, and the parts that it shares with `dev` and `plan`: all documents are checked first, and nothing is applied
//! unless all are valid.

use std::time::SystemTime;

use drover_core::{Error, Reason};
use drover_manifest::{Diagnostics, Document, Objects};
use drover_proto::orchestrator::v1::{
    ApplyClusterRequest, ApplyClusterResponse, ApplyOutcome, Cluster, Platform,
    RegisterPlatformRequest, RegisterPlatformResponse,
};

use super::{confirm, report, tally::Tally, wait};
use crate::{
    cli::ApplyArgs,
    client::{CALL_TIMEOUT, Client},
    failure::{Exit, Failure, Outcome},
    hint::Hint,
    input,
    output::{self, Format, rows},
};

#[derive(Clone, Debug, Default)]
pub(crate) struct Options {
    pub(crate) expect_generation: Option<u64>,
    pub(crate) adopt: bool,
    pub(crate) remove_groups: Vec<String>,
}

pub(crate) async fn run(client: &Client, args: ApplyArgs) -> Outcome {
    let mut command = typed("apply", &args.filenames, &args.remove_group, args.adopt);
    if let Some(generation) = args.expect_generation {
        command.extend(["--expect-generation".to_owned(), generation.to_string()]);
    }
    if args.planned.dry_run {
        command.push("--dry-run".to_owned());
    }
    let outcome = documents(client, args).await;
    outcome.map_err(|failure| failure.of(&command))
}

/// The command line of `apply` or `plan`, for hints: what it changes, and not how it is waited for or shown.
pub(crate) fn typed(
    command: &str,
    filenames: &[String],
    remove_groups: &[String],
    adopt: bool,
) -> Vec<String> {
    let mut words = vec![command.to_owned()];
    let files = filenames.iter().map(|file| ("-f", file));
    let groups = remove_groups.iter().map(|group| ("--remove-group", group));
    for (flag, value) in files.chain(groups) {
        words.extend([flag.to_owned(), value.clone()]);
    }
    words.extend(adopt.then(|| "--adopt".to_owned()));
    words
}

async fn documents(client: &Client, args: ApplyArgs) -> Outcome {
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
    let format = args.planned.change.output;
    if args.planned.dry_run {
        return dry_run(client, &objects, &planned, &args).await;
    }
    if !args.planned.yes && !agreed(&planned)? {
        return Err(Failure::failed("not applied"));
    }
    planned.clear();
    let applied = apply(client, &objects, &options, format).await?;
    if args.planned.change.wait.wait {
        let patience = wait::Patience::new(args.planned.change.wait.timeout);
        for cluster in &applied {
            wait_for(client, cluster, patience, format).await?;
        }
    }
    Ok(Exit::Done)
}

async fn wait_for(
    client: &Client,
    cluster: &Cluster,
    patience: wait::Patience,
    format: Format,
) -> Outcome<()> {
    let name = &cluster.name;
    wait::ready(client, name, patience).await?;
    if !matches!(format, Format::Table | Format::Wide) {
        return Ok(());
    }
    for node in client.list_nodes(Some(name.clone())).await?.nodes {
        let (status, address) = (rows::node_status(&node), rows::address(&node));
        let line = format!("node/{name}/{}  {status}  {address}", node.name);
        output::line(line.trim_end())?;
    }
    Ok(())
}

/// Prints what would be done with checked documents.
async fn dry_run(
    client: &Client,
    objects: &Objects,
    planned: &[Option<ApplyClusterResponse>],
    args: &ApplyArgs,
) -> Outcome {
    let format = args.planned.change.output;
    let for_people = matches!(format, Format::Table | Format::Wide);
    if for_people {
        preview(client, objects).await?;
    }
    for (document, answer) in objects.clusters.iter().zip(planned) {
        let name = format!("cluster/{}", document.object.name);
        let words = format!(
            "{} (dry run)",
            outcome_line(&document.object, answer.as_ref())
        );
        let Some(answer) = answer else {
            output::result(format, &name, &pending(&document.object), &words)?;
            continue;
        };
        output::result(format, &name, answer, &words)?;
        warn(&name, &answer.warnings);
        let plan = answer.plan.as_ref().filter(|_| for_people);
        // Adoptions and removals are shown before they happen.
        let Some(plan) = plan.filter(|plan| args.adopt || Tally::of(plan).removes()) else {
            continue;
        };
        output::print(&report::plan(plan, &[], SystemTime::now()))?;
        for line in Tally::of(plan).data() {
            output::line(&line)?;
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
            answer => {
                let kept = problems.keep(answer, document);
                planned.push(kept.map_err(|it| it.of_one_in(objects.clusters.len()))?);
            }
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
    format: Format,
) -> Outcome<Vec<Cluster>> {
    for document in &objects.secrets {
        let request = document.object.clone();
        let answer = client
            .call(client.api.apply_secret(request, CALL_TIMEOUT))
            .await?;
        let name = format!("secret/{}", document.object.name);
        let words = format!("{name} {}", outcome_word(answer.outcome()));
        output::result(format, &name, &answer, &words)?;
    }
    for document in &objects.platforms {
        let answer = register(client, document.object.clone(), false).await?;
        let name = format!("platform/{}", document.object.name);
        warn(&name, &answer.warnings);
        let words = format!("{name} {}", outcome_word(answer.outcome()));
        output::result(format, &name, &answer, &words)?;
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
            answer => {
                answer.map_err(|error| Failure::from(error).of_one_in(objects.clusters.len()))?
            }
        };
        let name = format!("cluster/{}", document.object.name);
        warn(&name, &answer.warnings);
        let words = outcome_line(&document.object, Some(&answer));
        output::result(format, &name, &answer, &words)?;
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
        let resume = Hint::resume(name).told();
        complain!("cluster {name} is paused; nothing happens until: {resume}");
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

/// The outcome, for programs, of a cluster that is checked only when its secret is there. Without its spec, which may hold
/// what is secret.
pub(crate) fn pending(document: &Cluster) -> ApplyClusterResponse {
    ApplyClusterResponse {
        cluster: Some(Cluster {
            name: document.name.clone(),
            ..Cluster::default()
        }),
        warnings: vec!["it is checked when its secret is there".to_owned()],
        ..ApplyClusterResponse::default()
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
            let tally = answer.plan.as_ref().map(Tally::of).unwrap_or_default();
            line.push_str(&format!(": {}", tally.words()));
        }
        ApplyOutcome::Unchanged | ApplyOutcome::Unspecified => {}
    }
    line
}

/// Asks for confirmation on a terminal if nodes would be deleted or replaced.
fn agreed(planned: &[Option<ApplyClusterResponse>]) -> Outcome<bool> {
    let mut question = String::new();
    for answer in planned.iter().flatten() {
        let tally = answer.plan.as_ref().map(Tally::of).unwrap_or_default();
        if tally.removes()
            && let Some(cluster) = &answer.cluster
        {
            question.push_str(&tally.stakes(&cluster.name));
        }
    }
    if question.is_empty() {
        Ok(true)
    } else {
        confirm::ask(&format!("{question}Continue?"))
    }
}
