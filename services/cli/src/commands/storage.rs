//! Kept storage: `get storage` and `delete storage`.

use std::time::SystemTime;

use drover_core::name::node_name;
use drover_proto::orchestrator::v1::{
    DeleteStorageRequest, KeptStorage, ListStorageRequest, ListStorageResponse, Node, StorageClaim,
};

use super::confirm;
use crate::{
    cli::DeleteArgs,
    client::{CALL_TIMEOUT, Client},
    failure::{Exit, Failure, Outcome},
    hint::Hint,
    output::{self, rows},
};

/// All kept storage, or the one with this id, with or without the prefix `PLATFORM/`. By cluster, as people look for it,
/// not by platform.
pub(crate) async fn list(client: &Client, name: Option<&str>) -> Outcome<ListStorageResponse> {
    let mut all = read(client, None).await?;
    all.storage.sort_by(|one, other| key(one).cmp(&key(other)));
    if let Some(name) = name {
        all.storage.retain(|one| is_named(one, name));
    }
    for platform in &all.unreachable_platforms {
        complain!("{platform} does not answer: what it keeps is missing");
    }
    Ok(all)
}

/// Storage kept for the next nodes of a cluster. Also empty if the caller may not list storage, as it is only
/// supplementary.
pub(crate) async fn of_cluster(client: &Client, cluster: &str) -> Vec<KeptStorage> {
    let all = read(client, Some(cluster)).await;
    let mut kept = all.map(|all| all.storage).unwrap_or_default();
    kept.retain(|one| one.claim() == StorageClaim::Cluster);
    kept
}

fn key(one: &KeptStorage) -> Option<(&str, &str, u32)> {
    let kept = one.storage.as_ref()?;
    Some((&kept.cluster_id, &kept.group, kept.ordinal))
}

async fn read(client: &Client, cluster: Option<&str>) -> Outcome<ListStorageResponse> {
    let mut all = ListStorageResponse::default();
    loop {
        let request = ListStorageRequest {
            cluster: cluster.map(str::to_owned),
            page_token: std::mem::take(&mut all.next_page_token),
            ..Default::default()
        };
        let page = client
            .call(client.api.list_storage(request, CALL_TIMEOUT))
            .await?;
        all.storage.extend(page.storage);
        all.unreachable_platforms = page.unreachable_platforms;
        all.next_page_token = page.next_page_token;
        if all.next_page_token.is_empty() {
            break;
        }
    }
    Ok(all)
}

fn is_named(one: &KeptStorage, name: &str) -> bool {
    let id = id(one);
    id == name
        || name
            .split_once('/')
            .is_some_and(|(platform, rest)| platform == one.platform && rest == id)
}

/// Whether storage was kept for the name of this node.
pub(crate) fn is_of(one: &KeptStorage, node: &Node) -> bool {
    let storage = one.storage.as_ref();
    storage.is_some_and(|kept| {
        kept.cluster_id == node.cluster && node_name(&kept.group, kept.ordinal) == node.name
    })
}

/// Id of the storage in its backend.
pub(crate) fn id(one: &KeptStorage) -> &str {
    one.storage
        .as_ref()
        .map_or("", |storage| storage.id.as_str())
}

/// Deletes the storages of these names, each after confirmation. A name that is wrong deletes none.
pub(crate) async fn delete(client: &Client, names: &[&str], args: &DeleteArgs) -> Outcome {
    let mut all = Vec::new();
    for name in names {
        all.push(find(client, name).await?);
    }
    for one in &all {
        delete_one(client, one, args).await?;
    }
    Ok(Exit::Done)
}

async fn find(client: &Client, name: &str) -> Result<KeptStorage, Failure> {
    let mut found = list(client, Some(name)).await?.storage;
    match (found.pop(), found.is_empty()) {
        (Some(one), true) => Ok(one),
        (None, _) => Err(Failure::new(
            Exit::NotFound,
            format!("error: no storage {name:?} is kept"),
        )
        .with_hint(&Hint::storage())),
        (Some(_), false) => Err(Failure::failed(format!(
            "several platforms keep a storage {name:?}; write PLATFORM/{name}"
        ))),
    }
}

async fn delete_one(client: &Client, one: &KeptStorage, args: &DeleteArgs) -> Outcome {
    let storage = one.storage.clone().unwrap_or_default();
    let what = format!(
        "storage/{} with the data of {}/{} on {}",
        storage.id,
        storage.cluster_id,
        node_name(&storage.group, storage.ordinal),
        one.platform
    );
    if one.claim() == StorageClaim::Foreign {
        return Err(Failure::failed(format!(
            "{what} was made by another orchestrator, which alone may delete it"
        )));
    }
    let name = format!("storage/{}", storage.id);
    if args.dry_run {
        let words = format!("{what} would be deleted; whether it may be is checked only then");
        output::result(args.output, &name, one, &words)?;
        return Ok(Exit::Done);
    }
    if !args.yes && !confirm::ask(&format!("Delete {what}? This cannot be undone."))? {
        return Err(Failure::failed("nothing deleted"));
    }
    let request = DeleteStorageRequest {
        platform: one.platform.clone(),
        id: storage.id.clone(),
        owner: storage.owner,
        cluster: storage.cluster_id,
        group: storage.group,
        ordinal: Some(storage.ordinal),
    };
    let answer = client
        .call(client.api.delete_storage(request, CALL_TIMEOUT))
        .await?;
    let word = if answer.gone {
        "deleted"
    } else {
        "deletion requested"
    };
    output::result(args.output, &name, &answer, &format!("{name} {word}"))?;
    Ok(Exit::Done)
}

pub(crate) fn table(all: &[KeptStorage]) -> output::Table {
    let now = SystemTime::now();
    output::Table {
        rows: all.iter().map(|one| rows::storage(one, now)).collect(),
        ..rows::storage_table()
    }
}
