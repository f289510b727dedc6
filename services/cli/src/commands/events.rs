//! `events`: the events of a cluster, or of all.

use std::{
    collections::{HashMap, HashSet},
    ops::ControlFlow,
    time::{Duration, SystemTime},
};

use drover_client::watch::EventUpdate;
use drover_core::{Error, Reason, Result};
use drover_manifest::yaml;
use drover_proto::orchestrator::v1::{Event, EventSeverity, ListEventsRequest, ListEventsResponse};
use tokio::sync::mpsc;
use tokio_stream::StreamExt;

use super::target;
use crate::{
    cli::EventsArgs,
    client::{CALL_TIMEOUT, Change, Client},
    failure::{Exit, Failure, Outcome},
    output::{self, Format, age, json, rows},
};

/// Column widths of events that are printed one by one.
const COLUMN_WIDTHS: [usize; 6] = [3, 9, 7, 20, 20, 0];
/// The same of the column in front of them, if they are of several clusters.
const CLUSTER_WIDTH: usize = 12;

struct Filter {
    since: Option<Duration>,
    types: Vec<EventSeverity>,
}

impl Filter {
    fn new(args: &EventsArgs) -> Outcome<Self> {
        let types = args
            .types
            .iter()
            .map(|text| match text.to_lowercase().as_str() {
                "warning" => Ok(EventSeverity::Warning),
                "info" | "normal" => Ok(EventSeverity::Info),
                _ => Err(Failure::usage(format!(
                    "unknown type `{text}` (types: Info, Warning)"
                ))),
            });
        Ok(Self {
            since: args.since,
            types: types.collect::<Outcome<_>>()?,
        })
    }

    fn shows(&self, event: &Event, now: SystemTime) -> bool {
        let age = age::elapsed(event.event_time.as_ref(), now);
        self.since
            .is_none_or(|since| age.is_none_or(|age| age <= since))
            && (self.types.is_empty() || self.types.contains(&event.severity()))
    }
}

pub(crate) async fn run(client: &Client, args: EventsArgs) -> Outcome {
    let filter = Filter::new(&args)?;
    let now = SystemTime::now();
    let name = args
        .cluster
        .as_deref()
        .map(|name| target::cluster(name).to_owned());
    let mut answer = ListEventsResponse::default();
    let clusters = match &name {
        Some(name) => vec![name.clone()],
        None => client
            .list_clusters(None)
            .await?
            .clusters
            .into_iter()
            .map(|cluster| cluster.name)
            .collect(),
    };
    let mut seen = HashMap::new();
    for cluster in clusters {
        let page = list(client, &cluster, args.after.unwrap_or(0)).await?;
        seen.insert(
            cluster,
            page.events.last().map_or(0, |event| event.sequence),
        );
        answer.events.extend(page.events);
        answer.oldest_sequence = page.oldest_sequence;
        answer.revision = page.revision;
    }
    let last = answer.events.last().map(|event| event.sequence);
    answer.events.retain(|event| filter.shows(event, now));
    if name.is_none() {
        answer
            .events
            .sort_by_key(|event| event.event_time.map(|time| (time.seconds, time.nanos)));
    }
    print(&answer, &args, now)?;
    match &name {
        _ if !args.watch => Ok(Exit::Done),
        Some(name) => {
            let after = last.or(args.after).unwrap_or(0);
            watch(client, name, after, &filter, &args).await
        }
        None => watch_all(client, seen, &filter, &args).await,
    }
}

/// All events of a cluster after a sequence number.
async fn list(client: &Client, cluster: &str, after: u64) -> Result<ListEventsResponse> {
    let mut all = ListEventsResponse::default();
    loop {
        let request = ListEventsRequest {
            cluster: cluster.to_owned(),
            after_sequence: after,
            page_token: std::mem::take(&mut all.next_page_token),
            ..Default::default()
        };
        let page = client
            .call(client.api.list_events(request, CALL_TIMEOUT))
            .await?;
        all.events.extend(page.events);
        all.oldest_sequence = page.oldest_sequence;
        all.revision = page.revision;
        all.next_page_token = page.next_page_token;
        if all.next_page_token.is_empty() {
            return Ok(all);
        }
    }
}

fn print(answer: &ListEventsResponse, args: &EventsArgs, now: SystemTime) -> Outcome<()> {
    match args.output {
        Format::Json if args.watch => {
            for event in &answer.events {
                output::print(&json::line(event)?)?;
            }
        }
        Format::Yaml if args.watch => {
            for event in &answer.events {
                output::yaml(event)?;
            }
        }
        Format::Json => output::print(&json::pretty(answer)?)?,
        Format::Yaml => output::print(&yaml::write(&json::to_yaml(&json::value(answer)?)))?,
        Format::Name => {
            for event in &answer.events {
                output::line(&format!("event/{}/{}", event.cluster, event.sequence))?;
            }
        }
        Format::Table | Format::Wide => {
            let mut table = rows::events();
            if args.cluster.is_none() {
                table.header.insert(0, "CLUSTER");
            }
            let rows = answer.events.iter().map(|event| row(event, args, now));
            table.rows = rows.collect();
            if table.rows.is_empty() && !args.watch {
                complain!("nothing found");
            } else {
                output::print_painted(&table.render(!args.no_headers, output::colours()))?;
            }
        }
    }
    Ok(())
}

/// Prints events as they arrive, without gaps and duplicates, until the cluster is gone.
async fn watch(
    client: &Client,
    cluster: &str,
    after: u64,
    filter: &Filter,
    args: &EventsArgs,
) -> Outcome {
    let result = follow(client, cluster, after, |event| {
        match show(event, filter, args) {
            Ok(()) => ControlFlow::Continue(()),
            Err(failure) => ControlFlow::Break(failure),
        }
    })
    .await?;
    match result {
        Some(failure) => Err(failure),
        None => {
            complain!("cluster {cluster} is gone");
            Ok(Exit::Done)
        }
    }
}

/// Prints the events of all clusters as they arrive, also of those that are created meanwhile. `seen`: the sequence of
/// the last event of each cluster that was printed.
async fn watch_all(
    client: &Client,
    mut seen: HashMap<String, u64>,
    filter: &Filter,
    args: &EventsArgs,
) -> Outcome {
    let (sender, mut events) = mpsc::unbounded_channel();
    let mut followed = HashSet::new();
    let arrivals = client.watch_clusters::<()>(None, None, |change| {
        if let Change::Upsert(cluster) = change
            && followed.insert(cluster.uid.clone())
        {
            // A later cluster of the same name counts anew.
            let after = seen.remove(&cluster.name).unwrap_or(0);
            let (client, name, sender) = (client.clone(), cluster.name.clone(), sender.clone());
            tokio::spawn(async move {
                let ended = follow(&client, &name, after, |event| {
                    match sender.send(Ok(event.clone())) {
                        Ok(()) => ControlFlow::Continue(()),
                        Err(_) => ControlFlow::Break(()),
                    }
                });
                if let Err(error) = ended.await
                    && error.reason() != Reason::NotFound
                {
                    let _ = sender.send(Err(error));
                }
            });
        }
        ControlFlow::Continue(())
    });
    let shown = async {
        while let Some(event) = events.recv().await {
            show(&event?, filter, args)?;
        }
        Ok(Exit::Done)
    };
    tokio::select! {
        ended = arrivals => ended.map(|()| Exit::Done).map_err(Failure::from),
        ended = shown => ended,
    }
}

/// Prints one event, if it is asked for.
fn show(event: &Event, filter: &Filter, args: &EventsArgs) -> Outcome<()> {
    let now = SystemTime::now();
    if !filter.shows(event, now) {
        return Ok(());
    }
    let line = match args.output {
        Format::Json => json::line(event)?,
        Format::Yaml => json::document(event)?,
        Format::Name => format!("event/{}/{}\n", event.cluster, event.sequence),
        Format::Table | Format::Wide => columns(&row(event, args, now), args) + "\n",
    };
    Ok(output::print_on(&line)?)
}

fn row(event: &Event, args: &EventsArgs, now: SystemTime) -> Vec<String> {
    let mut row = rows::event(event, now);
    if args.cluster.is_none() {
        row.insert(0, event.cluster.clone());
    }
    row
}

/// A row that is printed on its own, in columns that are wide enough for most values.
fn columns(row: &[String], args: &EventsArgs) -> String {
    let first = args.cluster.is_none().then_some(CLUSTER_WIDTH);
    let cells = row.iter().zip(first.into_iter().chain(COLUMN_WIDTHS));
    let line: Vec<String> = cells
        .map(|(cell, width)| format!("{:width$}", output::one_line(cell)))
        .collect();
    line.join("   ").trim_end().to_owned()
}

/// Passes every event after a sequence number to `see` until it breaks, or until the cluster is gone.
async fn follow<T>(
    client: &Client,
    cluster: &str,
    after: u64,
    mut see: impl FnMut(&Event) -> ControlFlow<T>,
) -> Result<Option<T>> {
    let mut watch = client
        .call(client.api.watch_events(cluster, Some(after), CALL_TIMEOUT))
        .await?;
    while let Some(update) = watch.next().await {
        match update? {
            EventUpdate::Event(event) => {
                if let ControlFlow::Break(value) = see(&event) {
                    return Ok(Some(value));
                }
            }
            EventUpdate::Closed(_) => return Ok(None),
            EventUpdate::Reconnecting(error) => {
                complain!("the connection was lost ({error}), trying again");
            }
        }
    }
    Err(Error::unavailable("the watch ended"))
}
