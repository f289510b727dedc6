//! `get -w`: rows as they change.

use std::{collections::BTreeMap, ops::ControlFlow, time::SystemTime};

use drover_proto::common::v1::LabelSelector;
use prost::{Message, Name};

use super::View;
use crate::{
    client::{Change, Client},
    commands::target,
    failure::{Failure, Outcome},
    output::{self, Format, Table, json, rows},
};

/// Prints rows as they change: first one table with all rows, then one row for each change.
struct Follower<'a> {
    view: View<'a>,
    table: Table,
    shown: BTreeMap<String, Vec<String>>,
    /// Column widths of the first table, once it is complete.
    widths: Option<Vec<usize>>,
}

impl<'a> Follower<'a> {
    fn new(view: View<'a>, table: Table) -> Self {
        Self {
            view,
            table,
            shown: BTreeMap::new(),
            widths: None,
        }
    }

    /// Ignores columns that change by themselves: only the age, the last of the narrow columns.
    fn changed(&mut self, key: &str, row: &[String]) -> bool {
        let age = self
            .table
            .header
            .iter()
            .position(|name| *name == "AGE")
            .unwrap_or(row.len());
        let stable: Vec<String> = row
            .iter()
            .enumerate()
            .filter(|(position, _)| *position != age)
            .map(|(_, cell)| cell.clone())
            .collect();
        self.shown.insert(key.to_owned(), stable.clone()) != Some(stable)
    }

    fn upsert<M: Message + Name>(
        &mut self,
        key: &str,
        name: &str,
        message: &M,
        row: Vec<String>,
    ) -> Outcome<()> {
        if !self.changed(key, &row) {
            return Ok(());
        }
        match self.view.format {
            Format::Json => output::print_on(&json::line(message)?)?,
            Format::Yaml => output::print_on(&json::document(message)?)?,
            Format::Name => output::print_on(&format!("{name}\n"))?,
            Format::Table | Format::Wide => {
                self.table.rows.push(row);
                if let Some(widths) = &self.widths {
                    output::print_painted_on(&self.table.below(widths, output::colours()))?;
                    self.table.rows.clear();
                }
            }
        }
        Ok(())
    }

    fn remove(&mut self, key: &str) -> Outcome<()> {
        if self.shown.remove(key).is_some() {
            complain!("{key} is gone");
        }
        Ok(())
    }

    fn complete(&mut self) -> Outcome<()> {
        if self.widths.is_some() {
            return Ok(());
        }
        let widths = widths(&self.table);
        if matches!(self.view.format, Format::Table | Format::Wide) {
            let mut text = self.table.below(&widths, output::colours());
            if self.view.header {
                text.insert_str(0, &self.table.head(&widths));
            }
            output::print_painted_on(&text)?;
        }
        self.widths = Some(widths);
        self.table.rows.clear();
        Ok(())
    }
}

/// Column widths for rows that are still to come: states change, and no later one is to move the columns behind it.
fn widths(table: &Table) -> Vec<usize> {
    let width = |(width, name): (usize, &&str)| match *name {
        "STATUS" => width.max(rows::STATUS_WIDTH),
        _ => width,
    };
    let widths = table.widths().into_iter();
    widths.zip(&table.header).map(width).collect()
}

fn flow(result: Outcome<()>) -> ControlFlow<Failure> {
    match result {
        Ok(()) => ControlFlow::Continue(()),
        Err(failure) => ControlFlow::Break(failure),
    }
}

pub(super) async fn clusters(
    client: &Client,
    name: Option<String>,
    selector: Option<LabelSelector>,
    view: View<'_>,
) -> Outcome<()> {
    let mut follower = Follower::new(view, rows::clusters(view.wide()));
    let failure = client
        .watch_clusters(name.as_deref(), selector, |change| {
            flow(match change {
                Change::Upsert(cluster) => {
                    let row = rows::cluster(cluster, view.wide(), SystemTime::now());
                    let name = format!("cluster/{}", cluster.name);
                    follower.upsert(&name, &name, cluster, row)
                }
                Change::Removal(name) => follower.remove(&format!("cluster/{name}")),
                Change::Complete => follower.complete(),
            })
        })
        .await?;
    Err(failure)
}

pub(super) async fn nodes(client: &Client, name: Option<String>, view: View<'_>) -> Outcome<()> {
    let (cluster, only) = match name.as_deref().map(target::cluster) {
        Some(name) if name.contains('/') => {
            target::node(name).map(|(cluster, node)| (Some(cluster), Some(node)))?
        }
        name => (name.map(str::to_owned), None),
    };
    let mut follower = Follower::new(view, rows::nodes(view.wide()));
    let failure = client
        .watch_nodes(cluster.as_deref(), |change| {
            flow(match change {
                Change::Upsert(node)
                    if only
                        .as_ref()
                        .is_some_and(|only| node.name != *only && node.id != *only) =>
                {
                    Ok(())
                }
                Change::Upsert(node) => {
                    let row = rows::node(node, view.wide(), SystemTime::now());
                    let key = format!("node/{}/{}", node.cluster, node.id);
                    follower.upsert(
                        &key,
                        &format!("node/{}/{}", node.cluster, node.name),
                        node,
                        row,
                    )
                }
                Change::Removal(name) => follower.remove(&format!("node/{name}")),
                Change::Complete => follower.complete(),
            })
        })
        .await
        .map_err(|error| match only {
            Some(_) => Failure::from(error),
            None => super::of_nodes(error),
        })?;
    Err(failure)
}

#[cfg(test)]
mod tests {
    use drover_proto::orchestrator::v1::{Node, NodeState};

    use super::*;

    #[test]
    fn no_state_moves_the_columns_behind_it() {
        let row = |state: NodeState| {
            let node = Node {
                platform: "local".into(),
                state: state.into(),
                ..Default::default()
            };
            rows::node(&node, false, SystemTime::now())
        };
        let mut table = rows::nodes(false);
        table.rows = vec![row(NodeState::Ready)];
        let widths = widths(&table);
        let head = table.head(&widths);
        for state in [NodeState::Provisioning, NodeState::Deprovisioning] {
            table.rows = vec![row(NodeState::Ready), row(state)];
            let text = head.clone() + &table.below(&widths, false);
            let columns = text.lines().map(|line| {
                let at = line.find("PLATFORM").or_else(|| line.find("local"));
                at.unwrap()
            });
            let columns: Vec<usize> = columns.collect();
            assert_eq!(columns, [columns[0]; 3], "{text}");
        }
    }
}
