//! `plan`: pending actions, with their reasons.

use std::time::SystemTime;

use drover_core::Reason;
use drover_manifest::yaml;
use drover_proto::orchestrator::v1::{
    ApplyOutcome, Cluster, GetClusterRequest, Plan, PlanClusterRequest,
    plan_cluster_request::Subject,
};

use super::{
    apply::{self, Options},
    report,
    tally::Tally,
    target,
};
use crate::{
    cli::PlanArgs,
    client::{CALL_TIMEOUT, Client},
    failure::{Exit, Outcome},
    hint::Hint,
    output::{self, Format, json},
};

pub(crate) async fn run(client: &Client, args: PlanArgs) -> Outcome {
    let changes = match &args.cluster {
        Some(name) => stored(client, target::cluster(name), args.output).await?,
        None => {
            let command = typed("plan", &args);
            let outcome = documents(client, &args).await;
            outcome.map_err(|failure| failure.of(&command))?
        }
    };
    Ok(if changes && args.detailed_exitcode {
        Exit::Changes
    } else {
        Exit::Done
    })
}

fn typed(command: &str, args: &PlanArgs) -> Vec<String> {
    apply::typed(command, &args.filenames, &args.remove_group, args.adopt)
}

async fn stored(client: &Client, name: &str, format: Format) -> Outcome<bool> {
    let request = PlanClusterRequest {
        subject: Some(Subject::Name(name.to_owned())),
        min_revision: None,
    };
    let answer = client
        .call(client.api.plan_cluster(request, CALL_TIMEOUT))
        .await?;
    let plan = answer.plan.clone().unwrap_or_default();
    match format {
        Format::Json => output::print(&json::pretty(&answer)?)?,
        Format::Yaml => output::print(&yaml::write(&json::to_yaml(&json::value(&answer)?)))?,
        Format::Name => {
            if !plan.actions.is_empty() {
                output::line(&format!("cluster/{name}"))?;
            }
        }
        Format::Table | Format::Wide => {
            output::line(&format!("cluster/{name}  generation {}", plan.generation))?;
            output::print(&report::plan(&plan, &[], SystemTime::now()))?;
            output::line(&summary(&plan))?;
        }
    }
    Ok(!plan.actions.is_empty())
}

async fn documents(client: &Client, args: &PlanArgs) -> Outcome<bool> {
    let (filenames, format) = (&args.filenames, args.output);
    let options = Options {
        adopt: args.adopt,
        remove_groups: args.remove_group.clone(),
        expect_generation: None,
    };
    let objects = apply::read(client, filenames).await?;
    let planned = apply::check(client, &objects, &options, "").await?;
    let mut changes = match format {
        Format::Json | Format::Yaml | Format::Name => false,
        Format::Table | Format::Wide => apply::preview(client, &objects).await?,
    };
    for (document, answer) in objects.clusters.iter().zip(planned) {
        let Some(answer) = answer else {
            let name = format!("cluster/{}", document.object.name);
            let words = format!("{name}  planned when its secret is there");
            let pending = apply::pending(&document.object);
            output::result(format, &name, &pending, &words)?;
            changes = true;
            continue;
        };
        let changed = answer.outcome() != ApplyOutcome::Unchanged;
        changes |= changed;
        match format {
            Format::Name => {
                if changed {
                    output::line(&format!("cluster/{}", document.object.name))?;
                }
                continue;
            }
            Format::Json => {
                output::print(&json::pretty(&answer)?)?;
                continue;
            }
            Format::Yaml if objects.clusters.len() > 1 => {
                output::yaml(&answer)?;
                continue;
            }
            Format::Yaml => {
                output::print(&yaml::write(&json::to_yaml(&json::value(&answer)?)))?;
                continue;
            }
            Format::Table | Format::Wide => {}
        }
        for warning in &answer.warnings {
            complain!("warning: cluster/{}: {warning}", document.object.name);
        }
        let plan = answer.plan.clone().unwrap_or_default();
        let after = answer.cluster.clone().unwrap_or_default();
        let before = existing(client, &document.object.name).await?;
        let generation = before.as_ref().map(|cluster| cluster.generation);
        let name = &document.object.name;
        match answer.outcome() {
            ApplyOutcome::Created => {
                output::line(&format!("cluster/{name}  new: {}", report::wanted(&after)))?;
            }
            ApplyOutcome::Unchanged => {
                output::line(&format!(
                    "cluster/{name}  unchanged (generation {})",
                    after.generation
                ))?;
            }
            ApplyOutcome::Configured | ApplyOutcome::Unspecified => {
                let from = generation.unwrap_or_default();
                output::line(&format!(
                    "cluster/{name}  generation {from} -> {}",
                    from + 1
                ))?;
            }
        }
        let differences = match &before {
            Some(before) => report::differences(before, &after)?,
            None => Vec::new(),
        };
        output::print(&report::plan(&plan, &differences, SystemTime::now()))?;
        let mut line = summary(&plan);
        if filenames.len() == 1
            && objects.clusters.len() == 1
            && answer.outcome() != ApplyOutcome::Unchanged
        {
            let generation = generation.unwrap_or(0).to_string();
            let expected = ["--expect-generation".to_owned(), generation];
            if let Some(command) = Hint::again(&typed("apply", args), &expected) {
                line.push_str(&format!(" Exactly this: {}", command.told()));
            }
        }
        output::line(&line)?;
    }
    Ok(changes)
}

pub(crate) fn summary(plan: &Plan) -> String {
    let tally = Tally::of(plan);
    let mut line = String::new();
    for data in tally.data() {
        line.push_str(&format!("Plan: {data}.\n"));
    }
    line.push_str(&format!("Plan: {}", tally.words()));
    for renewal in &plan.renewals {
        line.push_str(&format!("; {}", report::budget(renewal)));
    }
    line.push('.');
    line
}

/// The current cluster, if it exists.
async fn existing(client: &Client, name: &str) -> Outcome<Option<Cluster>> {
    let request = GetClusterRequest {
        name: name.to_owned(),
        min_revision: None,
    };
    match client
        .call(client.api.get_cluster(request, CALL_TIMEOUT))
        .await
    {
        Ok(answer) => Ok(answer.cluster),
        Err(error) if error.reason() == Reason::NotFound => Ok(None),
        Err(error) => Err(error.into()),
    }
}
