//! Clusters as users make and change them, and as they are loaded.

use std::{collections::BTreeMap, fmt, vec};

use bytes::Bytes;
use drover_core::{Error, Reason, Result, spec::MAX_SPEC};
use prost::Message;
use uuid::Uuid;

use super::{
    API_WAIT, Store, Versioned,
    commit::{self, Marker},
    damaged, decode, outcome_unknown,
};
use crate::{
    backend::{CommitError, Entry, Expect, Lane, Op, PAGE, Range, Revision, Scan, Txn},
    keys::{self, Key, Name},
    value::{Desired, Head, RevisionRow, marked, new_txn_id},
};

/// Everything that is stored about a cluster, events aside.
#[derive(Clone, Debug, PartialEq)]
pub struct ClusterRow {
    /// Uid.
    pub uid: Uuid,
    /// What the user wants.
    pub desired: Versioned<Desired>,
    /// The owner's head; `None` until its first step.
    pub head: Option<Versioned<Head>>,
    /// Node records by slot.
    pub nodes: Vec<NodeRow>,
    /// Stored provision requests by id.
    pub requests: Vec<(String, Bytes)>,
    /// Records of infrastructure and addons.
    pub resources: Vec<ResourceRow>,
}

/// A node record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeRow {
    /// Slot.
    pub slot: u64,
    /// The record, encoded by the orchestrator.
    pub value: Bytes,
}

/// A record of an infrastructure resource or addon.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ResourceRow {
    /// Kind, without a slash.
    pub kind: String,
    /// Name.
    pub name: String,
    /// The record, encoded by the orchestrator.
    pub value: Bytes,
}

/// All clusters at one revision, one after the other. Take it to the end before reading anything else: it keeps one of
/// the store's readers busy.
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

    /// The next cluster, `None` after the last.
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

/// Adds an entry; answers the cluster before it when the entry begins the next one.
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
    /// All clusters.
    pub async fn load(&self) -> Result<Loader> {
        Ok(Loader::new(
            self.backend
                .scan(Range::prefix(&keys::clusters()), PAGE)
                .await?,
        ))
    }

    /// One cluster, `None` when there is none.
    pub async fn load_cluster(&self, uid: Uuid) -> Result<Option<ClusterRow>> {
        Loader::new(
            self.backend
                .scan(Range::prefix(&keys::cluster(uid)), PAGE)
                .await?,
        )
        .next()
        .await
    }

    /// What the user wants of a cluster, `None` when there is none.
    pub async fn desired(&self, uid: Uuid) -> Result<Option<Versioned<Desired>>> {
        self.read(&Name::Desired(uid).into()).await
    }

    /// Uid of the cluster that has a name now.
    pub async fn find_cluster(&self, name: &str) -> Result<Option<Uuid>> {
        let key = Name::ClusterName(name.into()).into();
        let Some(entry) = self.backend.get(&key).await? else {
            return Ok(None);
        };
        Uuid::from_slice(&entry.value)
            .map(Some)
            .map_err(|_| damaged(&key))
    }

    /// Makes a cluster. `CLUSTER_EXISTS` when the name is taken, also by one that is being deleted.
    pub async fn create_cluster(&self, desired: Desired) -> Result<(Uuid, Revision)> {
        let uid = Uuid::now_v7();
        let data = UserData::default();
        let revision = self.create_cluster_with(uid, desired, data).await?;
        Ok((uid, revision))
    }

    /// The same under a new uid, with user data that its spec refers to.
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

    /// Changes what the user wants; the name stays. `REVISION_MISMATCH` when it was changed since `expected`.
    pub async fn update_desired(
        &self,
        uid: Uuid,
        expected: Revision,
        desired: Desired,
    ) -> Result<Revision> {
        self.update_desired_with(uid, expected, desired, UserData::default())
            .await
    }

    /// The same with user data that comes and goes with it.
    pub async fn update_desired_with(
        &self,
        uid: Uuid,
        expected: Revision,
        desired: Desired,
        data: UserData,
    ) -> Result<Revision> {
        check(&desired)?;
        data.check()?;
        let data = self.sealed(uid, data)?;
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
        data.add(uid, &mut txn);
        match commit::commit(&*self.backend, txn, Lane::Bulk, &marker).await {
            Ok(revision) => Ok(revision),
            Err(CommitError::Conflict(key)) => Err(commit::mismatch(&*self.backend, &key).await),
            Err(error) => Err(error.into()),
        }
    }

    /// User data of a cluster, `None` when none of this digest is stored. Secret.
    pub async fn user_data(&self, uid: Uuid, digest: &str) -> Result<Option<Bytes>> {
        let key = Name::UserData(uid, digest.to_owned()).into();
        let entry = self.backend.get(&key).await?;
        entry
            .map(|entry| self.opened_data(&entry, digest))
            .transpose()
    }

    /// Digests of the user data that is stored of a cluster.
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

    /// Specs that a cluster had, by generation, oldest first.
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

    /// Keeps a spec that is about to be replaced, and of those before it the newest, `most` in all. Written again it is
    /// the same: it may come before a change that then fails.
    pub async fn keep_revision(
        &self,
        uid: Uuid,
        generation: u64,
        row: RevisionRow,
        most: usize,
    ) -> Result<()> {
        let kept = self.revisions(uid).await?;
        let older = kept
            .iter()
            .map(|(old, _)| *old)
            .filter(|old| *old != generation);
        let older: Vec<u64> = older.collect();
        let surplus = (older.len() + 1).saturating_sub(most);
        let mut txn = Txn {
            max_wait: Some(API_WAIT),
            ..Txn::default()
        }
        .put(
            Key::from(Name::Revision(uid, generation)),
            Bytes::from(row.encode_to_vec()),
        );
        txn.ops
            .extend(older.into_iter().take(surplus).map(|old| Op::Delete {
                key: Key::from(Name::Revision(uid, old)),
            }));
        // Of unknown outcome: the change that follows is refused or repeats it.
        self.backend.commit(txn, Lane::Bulk).await?;
        Ok(())
    }

    /// Deletes the specs that a cluster had: it is about to be finished.
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

    /// Deletes all user data of a cluster: it is about to be finished, and nothing is made for it any more.
    pub async fn drop_user_data(&self, uid: Uuid) -> Result<()> {
        let drop = self.user_data_digests(uid).await?;
        for drop in drop.chunks(MAX_DROPS) {
            let data = UserData {
                drop: drop.to_vec(),
                ..UserData::default()
            };
            let mut txn = Txn::default();
            data.add(uid, &mut txn);
            // Of unknown outcome: whoever comes again finds what is left.
            self.backend.commit(txn, Lane::Bulk).await?;
        }
        Ok(())
    }
}

/// User data of a cluster that is written and deleted together with what refers to it. Secret: `Debug` shows digests
/// and sizes.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct UserData {
    /// New data by its digest.
    pub put: BTreeMap<String, Bytes>,
    /// Digests of what is not needed any more, at most 64.
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

/// Most new user data of one change, so that it fits into one transaction beside the largest spec.
pub const MAX_USER_DATA: usize = 96 * 1024;
/// Most digests that one transaction deletes.
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
        let drops = self.drop.into_iter().take(MAX_DROPS);
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
