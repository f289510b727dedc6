//! Clusters: creation, changes by users, and loading.

use std::{collections::BTreeMap, fmt, vec};

use bytes::Bytes;
use drover_core::{Error, Reason, Result, spec::MAX_SPEC};
use prost::Message;
use uuid::Uuid;

use super::{
    API_WAIT, Store, Unread, Versioned,
    commit::{self, Marker},
    damaged, decode, outcome_unknown,
};
use crate::{
    backend::{CommitError, Entry, Expect, LIMITS, Lane, Op, PAGE, Range, Revision, Scan, Txn},
    keys::{self, Key, Name},
    value::{Desired, Head, RevisionRow, marked, new_txn_id},
};

/// Everything that is stored about a cluster, except for events.
#[derive(Clone, Debug, PartialEq)]
pub struct ClusterRow {
    /// Uid of the cluster.
    pub uid: Uuid,
    /// Its desired state.
    pub desired: Versioned<Desired>,
    /// The owner's head. `None` until its first step.
    pub head: Option<Versioned<Head>>,
    /// Node records by slot.
    pub nodes: Vec<NodeRow>,
    /// Open provision requests, by id.
    pub requests: Vec<(String, Bytes)>,
    /// Records of infrastructure and addons.
    pub resources: Vec<ResourceRow>,
}

/// A node record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeRow {
    /// Slot of the node.
    pub slot: u64,
    /// The record, encoded by the orchestrator.
    pub value: Bytes,
}

/// A record of an infrastructure resource or addon.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ResourceRow {
    /// Kind, without a slash.
    pub kind: String,
    /// Name, unique within its kind.
    pub name: String,
    /// The record, encoded by the orchestrator.
    pub value: Bytes,
}

/// Reads all clusters at one revision, one after the other. Take it to the end before reading anything else, because it
/// occupies one of the store's readers.
#[derive(Debug)]
pub struct Loader {
    scan: Scan,
    page: vec::IntoIter<Entry>,
    building: Option<Building>,
}

#[derive(Debug)]
struct Building {
    uid: Uuid,
    desired: Option<Versioned<Desired>>,
    head: Option<Versioned<Head>>,
    nodes: Vec<NodeRow>,
    requests: Vec<(String, Bytes)>,
    resources: Vec<ResourceRow>,
}

impl Loader {
    fn new(scan: Scan) -> Self {
        Self {
            scan,
            page: Vec::new().into_iter(),
            building: None,
        }
    }

    /// Revision at which it reads; [`Store::changes`] after it misses nothing.
    #[must_use]
    pub fn revision(&self) -> Revision {
        self.scan.revision()
    }

    /// Returns the next clusters, at most so many. Empty after the last.
    pub async fn next_some(&mut self, most: usize) -> Result<Vec<ClusterRow>> {
        let mut rows = Vec::with_capacity(most);
        while rows.len() < most
            && let Some(row) = self.next().await?
        {
            rows.push(row);
        }
        Ok(rows)
    }

    /// Returns the next cluster, or `None` after the last.
    pub async fn next(&mut self) -> Result<Option<ClusterRow>> {
        loop {
            for entry in self.page.by_ref() {
                if let Some(done) = add(&mut self.building, entry)? {
                    return done.finish().map(Some);
                }
            }
            match self.scan.next().await {
                Some(page) => self.page = page?.into_iter(),
                None => return self.building.take().map(Building::finish).transpose(),
            }
        }
    }
}

/// Adds an entry. Returns the cluster before it if the entry begins the next one.
fn add(building: &mut Option<Building>, entry: Entry) -> Result<Option<Building>> {
    let Some(name) = entry.key.parse() else {
        return Err(damaged(&entry.key));
    };
    let (Name::Desired(uid)
    | Name::Head(uid)
    | Name::Node(uid, _)
    | Name::Request(uid, _)
    | Name::Resource(uid, ..)) = name
    else {
        return Err(damaged(&entry.key));
    };
    let done = building.take_if(|building| building.uid != uid);
    let cluster = building.get_or_insert_with(|| Building {
        uid,
        desired: None,
        head: None,
        nodes: Vec::new(),
        requests: Vec::new(),
        resources: Vec::new(),
    });
    match name {
        Name::Desired(_) => cluster.desired = Some(decode(&entry)?),
        Name::Head(_) => cluster.head = Some(decode(&entry)?),
        Name::Node(_, slot) => cluster.nodes.push(NodeRow {
            slot,
            value: entry.value,
        }),
        Name::Request(_, id) => cluster.requests.push((id, entry.value)),
        Name::Resource(_, kind, name) => cluster.resources.push(ResourceRow {
            kind,
            name,
            value: entry.value,
        }),
        _ => return Err(damaged(&entry.key)),
    }
    Ok(done)
}

/// A cluster from its entries. `None` if it has none.
pub(super) fn row_of(entries: impl Iterator<Item = Entry>) -> Result<Option<ClusterRow>> {
    let mut building = None;
    for entry in entries {
        add(&mut building, entry)?;
    }
    building.map(Building::finish).transpose()
}

impl Building {
    fn finish(self) -> Result<ClusterRow> {
        let Self {
            uid,
            desired,
            head,
            nodes,
            requests,
            resources,
        } = self;
        let desired = desired.ok_or_else(|| damaged(&Name::Desired(uid).into()))?;
        Ok(ClusterRow {
            uid,
            desired,
            head,
            nodes,
            requests,
            resources,
        })
    }
}

impl Store {
    /// Loads all clusters.
    pub async fn load(&self) -> Result<Loader> {
        Ok(Loader::new(
            self.backend
                .scan(Range::prefix(&keys::clusters()), PAGE)
                .await?,
        ))
    }

    /// The clusters that changed since a reader that stood by with this process has read them from that copy. `None` if
    /// there is no such copy any more: all are to be loaded.
    pub async fn load_unread(&self, copy: u64) -> Result<Option<Unread>> {
        self.led.unread_since(copy).await
    }

    /// Loads one cluster. `None` if it does not exist.
    pub async fn load_cluster(&self, uid: Uuid) -> Result<Option<ClusterRow>> {
        Loader::new(
            self.backend
                .scan(Range::prefix(&keys::cluster(uid)), PAGE)
                .await?,
        )
        .next()
        .await
    }

    /// Desired state of a cluster. `None` if it does not exist.
    pub async fn desired(&self, uid: Uuid) -> Result<Option<Versioned<Desired>>> {
        self.read(&Name::Desired(uid).into()).await
    }

    /// The same, once no change of unknown outcome can be made any more: what is still on its way expects the revision
    /// before this one.
    pub async fn settled_desired(&self, uid: Uuid) -> Result<Option<Versioned<Desired>>> {
        let Some(mut desired) = self.desired(uid).await? else {
            return Ok(None);
        };
        let same = desired.value.clone();
        desired.revision = self.update_desired(uid, desired.revision, same).await?;
        Ok(Some(desired))
    }

    /// Uid of the cluster that currently has this name.
    pub async fn find_cluster(&self, name: &str) -> Result<Option<Uuid>> {
        let key = Name::ClusterName(name.into()).into();
        let Some(entry) = self.backend.get(&key).await? else {
            return Ok(None);
        };
        Uuid::from_slice(&entry.value)
            .map(Some)
            .map_err(|_| damaged(&key))
    }

    /// Creates a cluster. `CLUSTER_EXISTS` if the name is taken, even by a cluster that is being deleted.
    pub async fn create_cluster(&self, desired: Desired) -> Result<(Uuid, Revision)> {
        let uid = Uuid::now_v7();
        let data = UserData::default();
        let revision = self.create_cluster_with(uid, desired, data).await?;
        Ok((uid, revision))
    }

    /// Like [`Self::create_cluster`], under a new uid, with the user data that its spec refers to.
    pub async fn create_cluster_with(
        &self,
        uid: Uuid,
        desired: Desired,
        data: UserData,
    ) -> Result<Revision> {
        check(&desired)?;
        data.check()?;
        let data = self.sealed(uid, data)?;
        let marker = Marker {
            key: Name::Desired(uid).into(),
            txn: new_txn_id(),
        };
        let name = Name::ClusterName(desired.name.clone()).into();
        let mut txn = Txn {
            max_wait: Some(API_WAIT),
            ..Txn::default()
        }
        .expect(marker.key.clone(), Expect::Absent)
        .expect(Clone::clone(&name), Expect::Absent)
        .put(marker.key.clone(), marked(&desired, &marker.txn))
        .put(name, Bytes::copy_from_slice(uid.as_bytes()));
        data.add(uid, &mut txn);
        match commit::commit(&*self.backend, txn, Lane::Bulk, &marker).await {
            Ok(revision) => Ok(revision),
            Err(CommitError::Conflict(_)) => Err(Error::new(
                Reason::ClusterExists,
                format!("there is a cluster {:?} already", desired.name),
            )
            .with_resource("cluster", desired.name)),
            Err(CommitError::Unknown) => Err(outcome_unknown()),
            Err(error) => Err(error.into()),
        }
    }

    /// Changes the desired state, except for the name. `REVISION_MISMATCH` if it was changed since `expected`.
    pub async fn update_desired(
        &self,
        uid: Uuid,
        expected: Revision,
        desired: Desired,
    ) -> Result<Revision> {
        self.update_desired_with(uid, expected, desired, Along::default())
            .await
    }

    /// Like [`Self::update_desired`], with what is stored and deleted along with it.
    pub async fn update_desired_with(
        &self,
        uid: Uuid,
        expected: Revision,
        desired: Desired,
        along: Along,
    ) -> Result<Revision> {
        check(&desired)?;
        along.data.check()?;
        let data = self.sealed(uid, along.data)?;
        if expected == 0 {
            return Err(Error::internal("a cluster is made with create_cluster"));
        }
        let marker = Marker {
            key: Name::Desired(uid).into(),
            txn: new_txn_id(),
        };
        let mut txn = Txn {
            max_wait: Some(API_WAIT),
            ..Txn::default()
        }
        .put(marker.key.clone(), marked(&desired, &marker.txn))
        .expect(marker.key.clone(), Expect::at(expected));
        if let Some(former) = along.former {
            former.add(uid, &mut txn);
        }
        data.add(uid, &mut txn);
        match commit::commit(&*self.backend, txn, Lane::Bulk, &marker).await {
            Ok(revision) => Ok(revision),
            Err(CommitError::Conflict(key)) => Err(commit::mismatch(&*self.backend, &key).await),
            Err(error) => Err(error.into()),
        }
    }

    /// User data of a cluster. `None` if none with this digest is stored. Secret.
    pub async fn user_data(&self, uid: Uuid, digest: &str) -> Result<Option<Bytes>> {
        let key = Name::UserData(uid, digest.to_owned()).into();
        let entry = self.backend.get(&key).await?;
        entry
            .map(|entry| self.opened_data(&entry, digest))
            .transpose()
    }

    /// Digests of the stored user data of a cluster.
    pub async fn user_data_digests(&self, uid: Uuid) -> Result<Vec<String>> {
        let range = Range::prefix(&keys::user_data(uid));
        let entries = self.backend.scan(range, 8).await?.collect().await?;
        Ok(entries
            .into_iter()
            .filter_map(|entry| match entry.key.parse() {
                Some(Name::UserData(_, digest)) => Some(digest),
                _ => None,
            })
            .collect())
    }

    /// Retained specs of a cluster with their generations, oldest first.
    pub async fn revisions(&self, uid: Uuid) -> Result<Vec<(u64, RevisionRow)>> {
        let range = Range::prefix(&keys::revisions(uid));
        let entries = self.backend.scan(range, 8).await?.collect().await?;
        entries
            .iter()
            .map(|entry| match entry.key.parse() {
                Some(Name::Revision(_, generation)) => {
                    Ok((generation, decode::<RevisionRow>(entry)?.value))
                }
                _ => Err(damaged(&entry.key)),
            })
            .collect()
    }

    /// Deletes the retained specs of a cluster that is about to be finished.
    pub async fn drop_revisions(&self, uid: Uuid) -> Result<()> {
        let kept = self.revisions(uid).await?;
        if kept.is_empty() {
            return Ok(());
        }
        let mut txn = Txn::default();
        txn.ops
            .extend(kept.into_iter().take(MAX_DROPS).map(|(old, _)| Op::Delete {
                key: Key::from(Name::Revision(uid, old)),
            }));
        self.backend.commit(txn, Lane::Bulk).await?;
        Ok(())
    }

    /// Deletes all user data of a cluster that is about to be finished, for which nothing is created any more.
    pub async fn drop_user_data(&self, uid: Uuid) -> Result<()> {
        let drop = self.user_data_digests(uid).await?;
        for drop in drop.chunks(MAX_DROPS) {
            let data = UserData {
                drop: drop.to_vec(),
                ..UserData::default()
            };
            let mut txn = Txn::default();
            data.add(uid, &mut txn);
            // If the outcome is not known, a repetition finds the rest.
            self.backend.commit(txn, Lane::Bulk).await?;
        }
        Ok(())
    }
}

/// What is stored and deleted along with a changed desired state.
#[derive(Clone, Default)]
pub struct Along {
    /// User data.
    pub data: UserData,
    /// The spec that is replaced, if it is retained.
    pub former: Option<Former>,
}

/// A spec that is retained.
#[derive(Clone)]
pub struct Former {
    /// Its generation.
    pub generation: u64,
    /// The spec.
    pub row: RevisionRow,
    /// Generations of earlier ones that are retained no longer, at most 16.
    pub drop: Vec<u64>,
}

/// Maximum number of earlier specs that one change deletes.
const MAX_FORMER_DROPS: usize = 16;

impl Former {
    fn add(self, uid: Uuid, txn: &mut Txn) {
        let name = |generation| Name::Revision(uid, generation).into();
        let drops = self.drop.into_iter().take(MAX_FORMER_DROPS);
        txn.ops.extend(drops.map(|generation| Op::Delete {
            key: name(generation),
        }));
        txn.ops.push(Op::Put {
            key: name(self.generation),
            value: self.row.encode_to_vec().into(),
        });
    }
}

/// User data of a cluster that is written and deleted together with the state that refers to it. Secret: `Debug` shows
/// digests and sizes.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct UserData {
    /// New data by its digest.
    pub put: BTreeMap<String, Bytes>,
    /// Digests of data that is no longer needed, at most 64.
    pub drop: Vec<String>,
}

impl fmt::Debug for UserData {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let sizes = self.put.iter().map(|(digest, data)| (digest, data.len()));
        f.debug_struct("UserData")
            .field("put", &sizes.collect::<Vec<_>>())
            .field("drop", &self.drop)
            .finish()
    }
}

/// Maximum size of the new user data of one change, so that it fits into one transaction with the largest spec.
pub const MAX_USER_DATA: usize = 96 * 1024;
/// Maximum number of entries that one transaction deletes.
const MAX_DROPS: usize = 64;

impl UserData {
    fn check(&self) -> Result<()> {
        let size: usize = self.put.values().map(Bytes::len).sum();
        if size > MAX_USER_DATA {
            let message = format!(
                "brings {size} bytes of new user data, at most {MAX_USER_DATA} are possible at a time"
            );
            return Err(Error::invalid("spec", message));
        }
        Ok(())
    }

    fn add(self, uid: Uuid, txn: &mut Txn) {
        let name = |digest| Name::UserData(uid, digest).into();
        // What there is no room for is found again by the next change.
        let room = LIMITS
            .operations
            .saturating_sub(txn.ops.len() + self.put.len());
        let drops = self.drop.into_iter().take(MAX_DROPS.min(room));
        txn.ops
            .extend(drops.map(|digest| Op::Delete { key: name(digest) }));
        txn.ops
            .extend(self.put.into_iter().map(|(digest, value)| Op::Put {
                key: name(digest),
                value,
            }));
    }
}

fn check(desired: &Desired) -> Result<()> {
    if desired.spec.len() > MAX_SPEC {
        return Err(Error::invalid(
            "spec",
            format!(
                "takes {} bytes, at most {MAX_SPEC} are possible; put user data into a secret and refer to it",
                desired.spec.len()
            ),
        ));
    }
    Ok(())
}
