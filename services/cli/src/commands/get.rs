//! `get`: lists objects, and follows their changes.

mod watch;

use std::{cell::RefCell, collections::HashMap, time::SystemTime};

use drover_core::{Error, Reason};
use drover_manifest::{
    encode,
    yaml::{self, Yaml},
};
use drover_proto::{
    common::v1::LabelSelector,
    orchestrator::v1::{
        Cluster, GetClusterRequest, GetNodeRequest, GetPlatformRequest,
        ListDiscoveredClustersRequest, ListDiscoveredClustersResponse, ListHostsRequest,
        ListHostsResponse, ListReplicasRequest, ListSecretsRequest, ListSecretsResponse, Node,
    },
};
use prost::{Message, Name};

use super::{
    events, storage,
    target::{self, Kind, Target},
};
use crate::{
    cli::{EventsArgs, GetArgs},
    client::{CALL_TIMEOUT, Client},
    failure::{Exit, Failure, Outcome},
    output::{self, Format, Table, json, rows},
};

pub(crate) async fn run(client: &Client, args: GetArgs) -> Outcome {
    let targets = Target::several(&args.target)?;
    if let [target] = targets.as_slice() {
        return one(client, target.clone(), &args, None).await;
    }
    if args.watch {
        return Err(Failure::usage(
            "one thing at a time can be watched, or all of a kind",
        ));
    }
    let together = RefCell::default();
    let mut missing = false;
    for target in targets {
        match one(client, target, &args, Some(&together)).await {
            Ok(_) => {}
            // The others are shown all the same.
            Err(failure) if failure.exit == Exit::NotFound => {
                complain!("{failure}");
                missing = true;
            }
            Err(failure) => return Err(failure),
        }
    }
    let tables = together.into_inner();
    let tables: Vec<String> = tables
        .iter()
        .map(|table| table.render(!args.no_headers, output::colours()))
        .collect();
    output::print_painted(&tables.join("\n"))?;
    Ok(if missing { Exit::NotFound } else { Exit::Done })
}

async fn one(
    client: &Client,
    target: Target,
    args: &GetArgs,
    together: Option<&RefCell<Vec<Table>>>,
) -> Outcome {
    let selector = args.selector.as_deref().map(target::selector).transpose()?;
    if args.all && (target.kind != Kind::Storage || target.name.is_some()) {
        return Err(Failure::usage(
            "--all is for `get storage`; of other kinds all are shown without a name",
        ));
    }
    if selector.is_some() && !matches!(target.kind, Kind::Cluster | Kind::Host) {
        return Err(Failure::usage(
            "only clusters and hosts have labels to select by",
        ));
    }
    let Some(format) = args.output.of_answer() else {
        return manifests(client, target, selector, args.watch, together.is_some()).await;
    };
    let view = View {
        format,
        header: !args.no_headers,
        together,
    };
    match (target.kind, args.watch) {
        (Kind::Cluster, false) => clusters(client, target.name, selector, view).await?,
        (Kind::Cluster, true) => watch::clusters(client, target.name, selector, view).await?,
        (Kind::Node, false) => nodes(client, target.name, view).await?,
        (Kind::Node, true) => watch::nodes(client, target.name, view).await?,
        (Kind::Event, watch) => {
            let args = EventsArgs {
                cluster: target.name,
                watch,
                after: None,
                since: None,
                types: Vec::new(),
                output: format,
                no_headers: args.no_headers,
            };
            return events::run(client, args).await;
        }
        (_, true) => {
            return Err(Failure::usage(
                "only clusters, nodes and events can be watched",
            ));
        }
        (Kind::Platform, false) => platforms(client, target.name, view).await?,
        (Kind::Host, false) => hosts(client, target.name()?, selector, view).await?,
        (Kind::Discovered, false) => discovered(client, target.name, view).await?,
        (Kind::Storage, false) => kept_storage(client, target.name, view).await?,
        (Kind::Secret, false) => secrets(client, target.name, view).await?,
        (Kind::Replica, false) => replicas(client, target.name, view).await?,
    }
    Ok(Exit::Done)
}

/// Output options of a list.
#[derive(Clone, Copy, Debug)]
struct View<'a> {
    format: Format,
    header: bool,
    /// Where rows are put until all of several things are read. `None` to print them at once.
    together: Option<&'a RefCell<Vec<Table>>>,
}

impl View<'_> {
    fn wide(self) -> bool {
        self.format == Format::Wide
    }

    fn yaml<A: Message + Name>(self, answer: &A) -> Outcome<()> {
        match self.together {
            Some(_) => output::yaml(answer)?,
            None => output::print(&yaml::write(&json::to_yaml(&json::value(answer)?)))?,
        }
        Ok(())
    }

    /// Prints a response. `names` and `table` are only called if needed.
    fn print<A: Message + Name>(
        self,
        answer: &A,
        names: impl FnOnce() -> Vec<String>,
        table: impl FnOnce() -> Table,
    ) -> Outcome<()> {
        match self.format {
            Format::Json => output::print(&json::pretty(answer)?)?,
            Format::Yaml => self.yaml(answer)?,
            Format::Name => output::print(
                &names()
                    .into_iter()
                    .map(|name| name + "\n")
                    .collect::<String>(),
            )?,
            Format::Table | Format::Wide => {
                let table = table();
                if let Some(together) = self.together {
                    let mut tables = together.borrow_mut();
                    match tables.last_mut() {
                        Some(last) if last.header == table.header => last.rows.extend(table.rows),
                        _ => tables.push(table),
                    }
                } else if table.rows.is_empty() {
                    complain!("nothing found");
                } else {
                    output::print_painted(&table.render(self.header, output::colours()))?;
                }
            }
        }
        Ok(())
    }
}

/// Prints clusters or platforms as documents that `drover apply` takes.
async fn manifests(
    client: &Client,
    target: Target,
    selector: Option<LabelSelector>,
    watch: bool,
    one_of_several: bool,
) -> Outcome {
    if watch {
        return Err(Failure::usage("manifests are not watched; leave -w out"));
    }
    let documents: Vec<Yaml> = match (target.kind, target.name) {
        (Kind::Cluster, None) => {
            let answer = client.list_clusters(selector).await?;
            let documents = answer.clusters.iter().map(encode::cluster);
            documents.collect::<Result<_, _>>()?
        }
        (Kind::Cluster, Some(name)) => {
            let request = GetClusterRequest {
                name,
                min_revision: None,
            };
            let answer = client
                .call(client.api.get_cluster(request, CALL_TIMEOUT))
                .await?;
            let documents = answer.cluster.iter().map(encode::cluster);
            documents.collect::<Result<_, _>>()?
        }
        (Kind::Platform, None) => {
            let answer = client.list_platforms().await?;
            let documents = answer.platforms.iter().map(encode::platform);
            documents.collect::<Result<_, _>>()?
        }
        (Kind::Platform, Some(name)) => {
            vec![encode::platform(&client.get_platform(&name).await?)?]
        }
        (kind, _) => {
            let word = kind.word();
            return Err(Failure::usage(format!(
                "there are no manifests of a {word}; only of clusters and platforms"
            )));
        }
    };
    if documents.is_empty() {
        complain!("nothing found");
    }
    let texts: Vec<String> = documents.iter().map(yaml::write).collect();
    let separator = if one_of_several { "---\n" } else { "" };
    output::print(&format!("{separator}{}", texts.join("---\n")))?;
    Ok(Exit::Done)
}

async fn clusters(
    client: &Client,
    name: Option<String>,
    selector: Option<LabelSelector>,
    view: View<'_>,
) -> Outcome<()> {
    let now = SystemTime::now();
    let (found, answer): (Vec<Cluster>, Option<_>) = match name {
        Some(name) => {
            let request = GetClusterRequest {
                name,
                min_revision: None,
            };
            let answer = client
                .call(client.api.get_cluster(request, CALL_TIMEOUT))
                .await?;
            match view.format {
                Format::Json => return Ok(output::print(&json::pretty(&answer)?)?),
                Format::Yaml => return view.yaml(&answer),
                Format::Table | Format::Wide | Format::Name => {}
            }
            (answer.cluster.into_iter().collect(), None)
        }
        None => {
            let answer = client.list_clusters(selector).await?;
            (answer.clusters.clone(), Some(answer))
        }
    };
    let names = || {
        found
            .iter()
            .map(|cluster| format!("cluster/{}", cluster.name))
            .collect()
    };
    let table = || {
        let mut table = rows::clusters(view.wide());
        table.rows = found
            .iter()
            .map(|cluster| rows::cluster(cluster, view.wide(), now))
            .collect();
        table
    };
    view.print(&answer.unwrap_or_default(), names, table)
}

/// Groups in their order of appearance, and the nodes of each by ordinal: a replacement takes the place of its
/// predecessor.
pub(super) fn in_order(nodes: &[Node]) -> Vec<&Node> {
    let mut first = HashMap::new();
    for (index, node) in nodes.iter().enumerate() {
        first.entry((&node.cluster, &node.group)).or_insert(index);
    }
    let mut ordered: Vec<&Node> = nodes.iter().collect();
    ordered.sort_by_key(|node| (first[&(&node.cluster, &node.group)], node.ordinal));
    ordered
}

/// `get nodes`, `get nodes CLUSTER`, `get node CLUSTER/NODE`.
async fn nodes(client: &Client, name: Option<String>, view: View<'_>) -> Outcome<()> {
    let now = SystemTime::now();
    let table = |nodes: &[Node]| {
        let mut table = rows::nodes(view.wide());
        table.rows = in_order(nodes)
            .into_iter()
            .map(|node| rows::node(node, view.wide(), now))
            .collect();
        table
    };
    let names = |nodes: &[Node]| {
        in_order(nodes)
            .into_iter()
            .map(|node| format!("node/{}/{}", node.cluster, node.name))
            .collect()
    };
    if let Some(name) = name
        .as_deref()
        .filter(|name| target::cluster(name).contains('/'))
    {
        let (cluster, id) = target::node(name)?;
        let request = GetNodeRequest {
            cluster,
            id,
            min_revision: None,
        };
        let answer = client
            .call(client.api.get_node(request, CALL_TIMEOUT))
            .await?;
        let found: Vec<Node> = answer.node.iter().cloned().collect();
        return view.print(&answer, || names(&found), || table(&found));
    }
    let cluster = name.map(|name| target::cluster(&name).to_owned());
    let answer = client.list_nodes(cluster).await.map_err(of_nodes)?;
    view.print(&answer, || names(&answer.nodes), || table(&answer.nodes))
}

/// Who names a node without its cluster asks for all nodes of a cluster that there is not.
fn of_nodes(error: Error) -> Failure {
    match error.resource() {
        Some(("cluster", name)) if error.reason() == Reason::NotFound => Error::new(
            Reason::NotFound,
            format!(
                "there is no cluster {name:?}; a node is CLUSTER/NODE, for example orders/db-1"
            ),
        )
        .with_resource("cluster", name)
        .into(),
        _ => error.into(),
    }
}

async fn platforms(client: &Client, name: Option<String>, view: View<'_>) -> Outcome<()> {
    let now = SystemTime::now();
    let table = |platforms: &[drover_proto::orchestrator::v1::Platform]| {
        let mut table = rows::platforms_table(view.wide());
        table.rows = platforms
            .iter()
            .map(|platform| rows::platform(platform, view.wide(), now))
            .collect();
        table
    };
    if let Some(name) = name {
        let request = GetPlatformRequest {
            name,
            min_revision: None,
        };
        let answer = client
            .call(client.api.get_platform(request, CALL_TIMEOUT))
            .await?;
        let found: Vec<_> = answer.platform.iter().cloned().collect();
        let names = || {
            found
                .iter()
                .map(|platform| format!("platform/{}", platform.name))
                .collect()
        };
        return view.print(&answer, names, || table(&found));
    }
    let answer = client.list_platforms().await?;
    let names = || {
        answer
            .platforms
            .iter()
            .map(|platform| format!("platform/{}", platform.name))
            .collect()
    };
    view.print(&answer, names, || table(&answer.platforms))
}

async fn hosts(
    client: &Client,
    platform: &str,
    selector: Option<LabelSelector>,
    view: View<'_>,
) -> Outcome<()> {
    let mut all = ListHostsResponse::default();
    loop {
        let request = ListHostsRequest {
            platform: platform.to_owned(),
            selector: selector.clone(),
            page_token: std::mem::take(&mut all.next_page_token),
            ..Default::default()
        };
        let page = client
            .call(client.api.list_hosts(request, CALL_TIMEOUT))
            .await?;
        all.hosts.extend(page.hosts);
        all.next_page_token = page.next_page_token;
        if all.next_page_token.is_empty() {
            break;
        }
    }
    let names = || {
        all.hosts
            .iter()
            .map(|host| format!("host/{}", host.id))
            .collect()
    };
    view.print(&all, names, || Table {
        rows: all.hosts.iter().map(rows::host).collect(),
        ..rows::hosts()
    })
}

async fn replicas(client: &Client, name: Option<String>, view: View<'_>) -> Outcome<()> {
    let now = SystemTime::now();
    let request = ListReplicasRequest {};
    let mut answer = client
        .call(client.api.list_replicas(request, CALL_TIMEOUT))
        .await?;
    if let Some(name) = name {
        answer.replicas.retain(|replica| replica.name == name);
        if answer.replicas.is_empty() {
            return Err(Error::not_found("replica", name).into());
        }
    }
    let names = || {
        let replicas = answer.replicas.iter();
        replicas
            .map(|replica| format!("replica/{}", replica.name))
            .collect()
    };
    view.print(&answer, names, || Table {
        rows: answer
            .replicas
            .iter()
            .map(|replica| rows::replica(replica, now))
            .collect(),
        ..rows::replicas()
    })
}

async fn discovered(client: &Client, platform: Option<String>, view: View<'_>) -> Outcome<()> {
    let now = SystemTime::now();
    let mut all = ListDiscoveredClustersResponse::default();
    loop {
        let request = ListDiscoveredClustersRequest {
            platform: platform.clone(),
            page_token: std::mem::take(&mut all.next_page_token),
            ..Default::default()
        };
        let page = client
            .call(client.api.list_discovered_clusters(request, CALL_TIMEOUT))
            .await?;
        all.clusters.extend(page.clusters);
        all.next_page_token = page.next_page_token;
        if all.next_page_token.is_empty() {
            break;
        }
    }
    let names = || {
        all.clusters
            .iter()
            .map(|cluster| format!("discovered/{}/{}", cluster.platform, cluster.cluster_id))
            .collect()
    };
    view.print(&all, names, || Table {
        rows: all
            .clusters
            .iter()
            .map(|cluster| rows::discovered(cluster, now))
            .collect(),
        ..rows::discovered_table()
    })
}

async fn kept_storage(client: &Client, name: Option<String>, view: View<'_>) -> Outcome<()> {
    let all = storage::list(client, name.as_deref()).await?;
    if let (Some(name), true) = (name, all.storage.is_empty()) {
        return Err(Error::not_found("storage", name).into());
    }
    let names = || {
        all.storage
            .iter()
            .map(|one| format!("storage/{}", storage::id(one)))
            .collect()
    };
    view.print(&all, names, || storage::table(&all.storage))
}

async fn secrets(client: &Client, name: Option<String>, view: View<'_>) -> Outcome<()> {
    let now = SystemTime::now();
    let mut all = ListSecretsResponse::default();
    loop {
        let request = ListSecretsRequest {
            name: name.clone(),
            page_token: std::mem::take(&mut all.next_page_token),
            ..Default::default()
        };
        let page = client
            .call(client.api.list_secrets(request, CALL_TIMEOUT))
            .await?;
        all.secrets.extend(page.secrets);
        all.revision = page.revision;
        all.next_page_token = page.next_page_token;
        if all.next_page_token.is_empty() {
            break;
        }
    }
    if let (Some(name), true) = (name, all.secrets.is_empty()) {
        return Err(Error::not_found("secret", name).into());
    }
    let names = || {
        all.secrets
            .iter()
            .map(|secret| format!("secret/{}", secret.name))
            .collect()
    };
    view.print(&all, names, || Table {
        rows: all
            .secrets
            .iter()
            .map(|secret| rows::secret(secret, now))
            .collect(),
        ..rows::secrets()
    })
}
