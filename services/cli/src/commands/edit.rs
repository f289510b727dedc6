//! Commands that change one object: `repair`, `pause`, `resume`, `reconcile`, `delete`.

use drover_core::{Error, Reason};
use drover_proto::orchestrator::v1::{
    DeleteClusterRequest, DeleteSecretRequest, ListSecretsRequest, PauseClusterRequest,
    ReconcileClusterRequest, ReconcileClusterResponse, ResumeClusterRequest, SetNodeRepairRequest,
    UnregisterPlatformRequest, plan_cluster_request::Subject,
};

use super::{
    apply, confirm, report, rollout, storage,
    target::{self, Kind, Target},
    wait,
};
use crate::{
    cli::{ChangeFlags, DeleteArgs},
    client::{CALL_TIMEOUT, Client},
    failure::{Exit, Failure, Outcome},
    hint::Hint,
    input,
    output::{self, Format},
};

pub(crate) async fn repair(client: &Client, node: &str, done: bool, format: Format) -> Outcome {
    let (cluster, id) = target::node(node)?;
    let request = SetNodeRepairRequest {
        cluster: cluster.clone(),
        id,
        under_repair: !done,
    };
    let answer = client
        .call(client.api.set_node_repair(request, CALL_TIMEOUT))
        .await?;
    let node = answer.node.clone().unwrap_or_default();
    let name = format!("{cluster}/{}", node.name);
    let words = if done {
        format!("node/{name} ({}) is judged like any other", node.id)
    } else {
        format!(
            "node/{name} ({}) is not replaced for being sick until: {}",
            node.id,
            Hint::repaired(&name).told()
        )
    };
    output::result(format, &format!("node/{name}"), &answer, &words)?;
    Ok(Exit::Done)
}

pub(crate) async fn pause(client: &Client, cluster: &str, reason: &str, format: Format) -> Outcome {
    let name = target::cluster(cluster).to_owned();
    let request = PauseClusterRequest {
        name: name.clone(),
        reason: reason.to_owned(),
    };
    let answer = client
        .call(client.api.pause_cluster(request, CALL_TIMEOUT))
        .await?;
    let of = format!("cluster/{name}");
    output::result(format, &of, &answer, &format!("{of} paused"))?;
    complain!(
        "nothing is healed, scaled, updated or deleted until: {}",
        Hint::resume(&name).told()
    );
    Ok(Exit::Done)
}

pub(crate) async fn resume(client: &Client, cluster: &str, flags: &ChangeFlags) -> Outcome {
    let name = target::cluster(cluster).to_owned();
    let request = ResumeClusterRequest { name: name.clone() };
    let answer = client
        .call(client.api.resume_cluster(request, CALL_TIMEOUT))
        .await?;
    let of = format!("cluster/{name}");
    output::result(flags.output, &of, &answer, &format!("{of} resumed"))?;
    wait::after(client, &name, &flags.wait).await
}

pub(crate) async fn reconcile(
    client: &Client,
    cluster: &str,
    reset_back_off: bool,
    flags: &ChangeFlags,
) -> Outcome {
    let name = target::cluster(cluster).to_owned();
    let request = ReconcileClusterRequest {
        name: name.clone(),
        reset_back_off,
    };
    let answer = client
        .call(client.api.reconcile_cluster(request, CALL_TIMEOUT))
        .await?;
    let (words, failed) = pass(&name, &answer);
    output::result(flags.output, &format!("cluster/{name}"), &answer, &words)?;
    if failed {
        return Ok(Exit::Failed);
    }
    wait::after(client, &name, &flags.wait).await
}

/// What a pass did, one line for each action, and whether any failed.
fn pass(name: &str, answer: &ReconcileClusterResponse) -> (String, bool) {
    let actions = answer.plan.as_ref().map_or(&[][..], |plan| &plan.actions);
    if actions.is_empty() {
        return (format!("cluster/{name}: nothing to do"), false);
    }
    let mut failed = false;
    let lines: Vec<String> = actions
        .iter()
        .map(|action| {
            let mut results = answer.results.iter();
            let result = results.find(|result| result.step == action.step);
            let words = report::action(action);
            match result.and_then(|result| result.error.as_ref()) {
                Some(error) => {
                    failed = true;
                    format!("failed  {words}: {}", error.message)
                }
                None => format!("done    {words}"),
            }
        })
        .collect();
    (lines.join("\n"), failed)
}

pub(crate) async fn delete(client: &Client, args: DeleteArgs) -> Outcome {
    if args.filenames.is_empty() {
        if args.target.is_empty() {
            let failure = Failure::usage("labels select clusters");
            return Err(match &args.selector {
                Some(labels) => failure.with_hint(&Hint::delete_selected(labels)),
                None => failure,
            });
        }
        let targets = Target::several(&args.target)?;
        if targets.iter().all(|target| target.kind == Kind::Storage) {
            let names = targets.iter().map(Target::name);
            let names = names.collect::<Result<Vec<_>, _>>()?;
            return storage::delete(client, &names, &args).await;
        }
        if targets.iter().any(|target| target.kind == Kind::Storage) {
            return Err(Failure::usage(
                "kept storage is deleted by a command of its own",
            ));
        }
    }
    let things = chosen(client, &args).await?;
    if things.is_empty() {
        complain!("nothing found");
        return Ok(Exit::Done);
    }
    if args.dry_run {
        for (kind, name) in &things {
            if *kind == Kind::Cluster {
                let request = DeleteClusterRequest {
                    name: name.clone(),
                    expected_generation: None,
                };
                rollout::dry_run(client, name, Subject::Delete(request), args.output).await?;
            } else {
                complain!(
                    "{}/{name} would be deleted; whether it may be is checked only then",
                    kind.word()
                );
            }
        }
        return Ok(Exit::Done);
    }
    if !args.yes {
        let names: Vec<String> = things
            .iter()
            .map(|(kind, name)| format!("{}/{name}", kind.word()))
            .collect();
        let stakes = stakes(client, &things).await;
        let question = format!(
            "{stakes}Delete {}? This cannot be undone.",
            names.join(", ")
        );
        if !confirm::ask(&question)? {
            return Err(Failure::failed("nothing deleted"));
        }
    }
    let patience = wait::Patience::new(args.timeout);
    let mut missing = false;
    for (kind, name) in &things {
        match delete_one(client, *kind, name, args.output).await {
            Ok(()) => {}
            // Deleting the content of files continues, so that it can be repeated.
            Err(failure) if failure.exit == Exit::NotFound => {
                if !args.ignore_not_found {
                    complain!("{failure}");
                    missing = true;
                }
                continue;
            }
            Err(failure) => return Err(failure),
        }
        // The content of files is deleted from the top: platforms only when nothing is left on them.
        let then_more =
            !args.filenames.is_empty() && things.iter().any(|(kind, _)| *kind != Kind::Cluster);
        if *kind == Kind::Cluster && (args.wait || then_more) {
            wait::gone(client, name, patience).await?;
            if matches!(args.output, Format::Table | Format::Wide) {
                output::line(&format!("cluster/{name} gone"))?;
            }
        }
    }
    Ok(if missing { Exit::NotFound } else { Exit::Done })
}

/// What goes with clusters, for who can still say no.
async fn stakes(client: &Client, things: &[(Kind, String)]) -> String {
    let mut text = String::new();
    let clusters = things.iter().filter(|(kind, _)| *kind == Kind::Cluster);
    for (_, name) in clusters.filter(|_| confirm::can_ask()) {
        let subject = Subject::Delete(DeleteClusterRequest {
            name: name.clone(),
            expected_generation: None,
        });
        match confirm::tally(client, subject).await {
            Ok(tally) => text.push_str(&tally.stakes(name)),
            // The deletion says so, and goes on with the others.
            Err(error) if error.reason() == Reason::NotFound => {}
            Err(error) => {
                text.push_str(&format!(
                    "cluster/{name}: its nodes are not known: {error}\n"
                ));
            }
        }
    }
    text
}

/// The objects to delete, in order: clusters, platforms, secrets.
async fn chosen(client: &Client, args: &DeleteArgs) -> Outcome<Vec<(Kind, String)>> {
    if !args.filenames.is_empty() {
        let objects = input::manifests(&args.filenames)?.decode(None);
        if !objects.diagnostics.is_empty() {
            return Err(Failure::new(
                Exit::Failed,
                objects.diagnostics.render(", nothing deleted"),
            ));
        }
        let clusters = objects
            .clusters
            .iter()
            .map(|document| (Kind::Cluster, document.object.name.clone()));
        let platforms = objects
            .platforms
            .iter()
            .map(|document| (Kind::Platform, document.object.name.clone()));
        let secrets = objects
            .secrets
            .iter()
            .map(|document| (Kind::Secret, document.object.name.clone()));
        return Ok(clusters.chain(platforms).chain(secrets).collect());
    }
    let targets = Target::several(&args.target)?;
    let known = [Kind::Cluster, Kind::Platform, Kind::Secret];
    if let Some(target) = targets.iter().find(|it| !known.contains(&it.kind)) {
        let failure =
            Failure::usage("only clusters, platforms, secrets and kept storage can be deleted");
        return Err(match &target.name {
            Some(name) if target.kind == Kind::Node && target::node(name).is_ok() => {
                failure.with_hint(&Hint::replace(name))
            }
            _ => failure,
        });
    }
    match (targets.as_slice(), &args.selector) {
        ([target], Some(selector)) if target.name.is_none() && target.kind == Kind::Cluster => {
            let found = client
                .list_clusters(Some(target::selector(selector)?))
                .await?;
            Ok(found
                .clusters
                .into_iter()
                .map(|cluster| (Kind::Cluster, cluster.name))
                .collect())
        }
        (_, Some(_)) => Err(Failure::usage(
            "labels select clusters, and only without a name",
        )),
        (targets, None) => targets
            .iter()
            .map(|target| Ok((target.kind, target.name()?.to_owned())))
            .collect(),
    }
}

async fn delete_one(client: &Client, kind: Kind, name: &str, format: Format) -> Outcome<()> {
    let of = format!("{}/{name}", kind.word());
    match kind {
        Kind::Cluster => {
            let request = DeleteClusterRequest {
                name: name.to_owned(),
                expected_generation: None,
            };
            let answer = client
                .call(client.api.delete_cluster(request, CALL_TIMEOUT))
                .await?;
            output::result(format, &of, &answer, &format!("{of} deletion requested"))?;
            apply::tell_paused(answer.cluster.as_ref());
        }
        Kind::Platform => {
            let request = UnregisterPlatformRequest {
                name: name.to_owned(),
            };
            let answer = client
                .call(client.api.unregister_platform(request, CALL_TIMEOUT))
                .await?;
            output::result(format, &of, &answer, &format!("{of} deleted"))?;
        }
        _ => {
            // The API does not report a missing secret as an error.
            let request = ListSecretsRequest {
                name: Some(name.to_owned()),
                ..Default::default()
            };
            let found = client
                .call(client.api.list_secrets(request, CALL_TIMEOUT))
                .await?;
            if found.secrets.is_empty() {
                return Err(Error::not_found("secret", name).into());
            }
            let request = DeleteSecretRequest {
                name: name.to_owned(),
            };
            let answer = client
                .call(client.api.delete_secret(request, CALL_TIMEOUT))
                .await?;
            output::result(format, &of, &answer, &format!("{of} deleted"))?;
        }
    }
    Ok(())
}
