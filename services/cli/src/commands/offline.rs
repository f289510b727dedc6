//! Subcommands that need no orchestrator: `init`, `validate`, `explain`, `schema`, `convert`, `completion`.

use std::collections::BTreeSet;

use clap::CommandFactory;
use clap_complete::Shell;
use drover_client::Target;
use drover_core::{
    error::Violation,
    name, registration,
    secret::{self, Given},
    spec::check_labels,
};
use drover_manifest::{Error, Objects, encode, explain, yaml};
use drover_proto::orchestrator::v1::{
    ApplySecretRequest, Cluster, Platform, SecretValue, secret_value::Value,
};

use crate::{
    cli::{Cli, Starter},
    complete,
    failure::{Exit, Failure, Outcome},
    input,
    output::{self, count},
};

/// Manifests to start from, which are also shipped as examples.
const HELLO: &str = include_str!("../../../../deploy/examples/hello.yaml");
const REDIS: &str = include_str!("../../../../deploy/examples/redis.yaml");
const ETCD: &str = include_str!("../../../../deploy/examples/etcd.yaml");
const POSTGRESQL: &str = include_str!("../../../../deploy/examples/postgresql.yaml");

pub(crate) fn init(kind: Starter) -> Outcome {
    output::print(match kind {
        Starter::Hello => HELLO,
        Starter::Redis => REDIS,
        Starter::Etcd => ETCD,
        Starter::Postgresql => POSTGRESQL,
    })?;
    Ok(Exit::Done)
}

fn decode(filenames: &[String], outcome: &str) -> Outcome<Objects> {
    let mut objects = input::manifests(filenames)?.decode(None);
    check(&mut objects);
    for warning in &objects.warnings {
        complain!("warning: {warning}");
    }
    if objects.diagnostics.is_empty() {
        Ok(objects)
    } else {
        Err(Failure::new(
            Exit::Failed,
            objects.diagnostics.render(outcome),
        ))
    }
}

/// Adds what an orchestrator would refuse whatever platforms it has.
pub(crate) fn check(objects: &mut Objects) {
    let diagnostics = &mut objects.diagnostics;
    for document in &objects.secrets {
        document.report(secret(&document.object), diagnostics);
    }
    for document in &objects.platforms {
        document.report(platform(&document.object), diagnostics);
    }
    for document in &objects.clusters {
        document.report(cluster(&document.object), diagnostics);
    }
}

fn secret(request: &ApplySecretRequest) -> Vec<Violation> {
    let data = request.data.iter();
    let data = data.map(|(key, value)| (key.as_str(), given(value)));
    secret::check(&request.name, data)
}

fn given(value: &SecretValue) -> Given<'_> {
    match &value.value {
        None => Given::Nothing,
        Some(Value::Text(text)) => Given::Content(text.len()),
        Some(Value::Binary(data)) => Given::Content(data.len()),
        Some(Value::Sha256(digest)) => Given::Digest(digest),
    }
}

fn platform(platform: &Platform) -> Vec<Violation> {
    let spec = platform.spec.clone().unwrap_or_default();
    let mut wrong = registration::check(&platform.name, &spec.endpoint, &spec.token_secret);
    let field = "platform.spec.endpoint";
    if wrong.iter().all(|one| one.field != field)
        && let Err(error) = spec.endpoint.parse::<Target>()
    {
        let why = error.fields().first().map(|one| one.description.clone());
        wrong.push(Violation {
            field: field.to_owned(),
            description: why.unwrap_or_else(|| error.message().to_owned()),
        });
    }
    wrong
}

fn cluster(cluster: &Cluster) -> BTreeSet<Violation> {
    let mut wrong = Vec::new();
    if let Err(description) = name::check_cluster_name(&cluster.name) {
        wrong.push(Violation {
            field: "name".to_owned(),
            description,
        });
    }
    check_labels("labels", &cluster.labels, &mut wrong);
    let spec = cluster.spec.clone().unwrap_or_default();
    let resolved = drover_convert::spec::cluster_spec(&spec).and_then(|spec| {
        wrong.extend(spec.check_new());
        spec.resolve()
    });
    if let Err(error) = resolved {
        wrong.extend(error.fields().iter().cloned());
    }
    // A version without a store is wrong where the version is.
    if wrong.iter().any(|one| one.field == "spec.store.version") {
        wrong.retain(|one| one.field != "spec.store.software");
    }
    // What groups inherit is wrong once, and not in each of them.
    wrong.into_iter().collect()
}

pub(crate) fn validate(filenames: &[String]) -> Outcome {
    let objects = decode(filenames, "")?;
    let all = objects.secrets.len() + objects.platforms.len() + objects.clusters.len();
    output::line(&format!(
        "{} valid (what only an orchestrator knows is not checked)",
        count(all, "document")
    ))?;
    Ok(Exit::Done)
}

/// Prints the documents as Drover manifests. Secrets are left out, so that they are not repeated.
pub(crate) fn convert(filenames: &[String]) -> Outcome {
    let objects = decode(filenames, ", nothing converted")?;
    for document in &objects.secrets {
        complain!("warning: secret/{} is not printed", document.object.name);
    }
    let platforms = objects
        .platforms
        .iter()
        .map(|document| encode::platform(&document.object));
    let clusters = objects
        .clusters
        .iter()
        .map(|document| encode::cluster(&document.object));
    let documents: Vec<String> = platforms
        .chain(clusters)
        .map(|document| document.map(|document| yaml::write(&document)))
        .collect::<Result<_, Error>>()?;
    output::print(&documents.join("---\n"))?;
    Ok(Exit::Done)
}

pub(crate) fn explain(field: &str, recursive: bool) -> Outcome {
    let found = if recursive {
        explain::tree(field)
    } else {
        explain::explain(field)
    };
    match found {
        Ok(text) => {
            output::print(&text)?;
            Ok(Exit::Done)
        }
        Err(error) => Err(Failure::new(Exit::NotFound, format!("error: {error}"))),
    }
}

pub(crate) fn schema() -> Outcome {
    output::print(&format!(
        "{}\n",
        serde_json::to_string_pretty(&explain::json_schema()?).map_err(anyhow::Error::from)?
    ))?;
    Ok(Exit::Done)
}

pub(crate) fn completion(shell: Shell) -> Outcome {
    if let Some(script) = complete::script(shell) {
        output::print(script)?;
        return Ok(Exit::Done);
    }
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), "drover", &mut script);
    output::print(&String::from_utf8_lossy(&script))?;
    Ok(Exit::Done)
}
