//! Whether this replica should lead. One that reaches fewer platforms than another one, whose clock differs from that of most
//! others, or that lacks the key of the secrets, should not while there is another one. A new key of the secrets is taken by
//! the next lead, so whoever leads hands over as soon as all replicas have it.

use std::{
    collections::{BTreeSet, HashMap},
    path::PathBuf,
    sync::Arc,
    time::Duration,
};

use bytes::Bytes;
use drover_core::{Error, Millis, Reason, Result};
use drover_platforms::Registration;
use drover_store::{Clock, Keyring, ReplicaReport, ReplicaRow, Revision, Store};
use futures::{StreamExt, future::BoxFuture, stream};
use parking_lot::Mutex;
use tokio::{
    sync::watch,
    time::{Instant, sleep},
};

use super::sight::find;

/// How often platforms are looked at, and how often the others: what they say of the time is the more exact the sooner it is
/// heard.
const LOOK: Duration = Duration::from_secs(5);
const LISTEN: Duration = Duration::from_secs(1);
/// How often the others are told, though nothing has changed.
const TELL: Duration = Duration::from_secs(10);
/// How long something has to be so before it counts: a platform that restarts, a clock that is set, or a file that is being
/// written is none of it.
const BLIND: Duration = Duration::from_secs(30);
const SKEWED: Duration = Duration::from_secs(15);
const KEYLESS: Duration = Duration::from_secs(15);
const RENEW: &str =
    "all replicas have the first key of the secrets, with which the next lead encrypts them";
/// How far a clock may be off.
const OFF: i64 = 1_000;
/// How long a platform may take to accept a connection, and how many are tried at the same time.
const ACCEPTS: Duration = Duration::from_secs(2);
const TOGETHER: usize = 64;

/// What a replica judges by.
#[derive(Clone)]
pub(super) struct Senses {
    /// File with the keys of the secrets.
    pub(super) keys: Option<PathBuf>,
    /// The clock of this machine.
    pub(super) wall: Arc<dyn Fn() -> Millis + Send + Sync>,
    /// Whether a platform is reached, by the URL of its registration.
    pub(super) reach: Arc<dyn Fn(String) -> BoxFuture<'static, bool> + Send + Sync>,
    /// Whether it can begin to lead without reading what the store has.
    pub(super) has_read: Arc<dyn Fn() -> bool + Send + Sync>,
}

impl Senses {
    pub(super) fn new(
        keys: Option<PathBuf>,
        wall: impl Fn() -> Millis + Send + Sync + 'static,
        has_read: impl Fn() -> bool + Send + Sync + 'static,
    ) -> Self {
        Self {
            keys,
            wall: Arc::new(wall),
            has_read: Arc::new(has_read),
            reach: Arc::new(|url| Box::pin(async move { find(&url, ACCEPTS).await.is_some() })),
        }
    }
}

/// What is known of this replica, over all its turns.
#[derive(Clone, Debug, Default)]
pub(super) struct Fitness {
    judged: watch::Sender<Judged>,
    since: Arc<Mutex<Since>>,
    /// The clock by which this replica works while it leads.
    clock: Arc<Mutex<Option<Arc<Clock>>>>,
}

/// What was found last.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Judged {
    /// Why this replica should not lead. Empty if it may.
    unfit: String,
    /// Another one may.
    another: bool,
    /// Why a new lead is better than this one, whoever has it. Empty if it is not.
    renew: String,
}

impl Judged {
    /// Why this lead should end.
    fn outdone(&self) -> Option<&str> {
        let renew = Some(&*self.renew).filter(|why| !why.is_empty());
        let unfit = Some(&*self.unfit).filter(|why| !why.is_empty() && self.another);
        unfit.or(renew)
    }
}

/// Since when something has been so, without a break.
#[derive(Debug, Default)]
struct Since {
    blind: Option<Instant>,
    skewed: Option<Instant>,
    keyless: Option<Instant>,
    renewable: Option<Instant>,
}

impl Since {
    /// What is found, once it has been found for so long.
    fn after(
        since: &mut Option<Instant>,
        least: Duration,
        found: Option<String>,
    ) -> Option<String> {
        if found.is_none() {
            *since = None;
            return None;
        }
        let lasted = since.get_or_insert_with(Instant::now).elapsed();
        found.filter(|_| lasted >= least)
    }
}

impl Fitness {
    /// This replica leads, and works by this clock, which does not follow that of the machine. Whether there are others is to
    /// be seen anew: the one that led may be gone.
    pub(super) fn leads(&self, clock: Arc<Clock>) {
        *self.clock.lock() = Some(clock);
        self.is_to_be_seen();
    }

    /// A turn is over.
    pub(super) fn left(&self) {
        *self.clock.lock() = None;
        self.is_to_be_seen();
    }

    fn is_to_be_seen(&self) {
        self.since.lock().renewable = None;
        self.judged.send_modify(|judged| {
            judged.another = false;
            judged.renew.clear();
        });
    }

    /// Why another replica should lead, if there is one that may.
    pub(super) fn outdone(&self) -> Option<String> {
        self.judged.borrow().outdone().map(str::to_owned)
    }

    /// The same, if another one is there still.
    pub(super) async fn outdone_now(&self, store: &Store) -> Option<String> {
        let why = self.outdone()?;
        if self.judged.borrow().renew == why {
            return Some(why);
        }
        let sealed_with = store.sealed_with().await.ok()?;
        let others = store.replicas().await.ok()?;
        let mut others = others.iter().filter(|replica| !replica.is_this);
        others
            .any(|other| may_lead(other, &sealed_with))
            .then_some(why)
    }

    /// Waits until this lead should end. Returns why.
    pub(super) async fn until_outdone(&self, store: &Store) -> String {
        let mut judged = self.judged.subscribe();
        loop {
            // The sender lives as long as this does.
            let _ = judged.wait_for(|judged| judged.outdone().is_some()).await;
            if let Some(why) = self.outdone_now(store).await {
                return why;
            }
            sleep(LISTEN).await;
        }
    }

    /// Looks again and again, for one turn, and tells the others.
    pub(super) async fn follow(&self, store: &Store, senses: Senses) {
        let mut observer = Observer {
            fitness: self,
            store,
            senses,
            clocks: Clocks::default(),
        };
        let mut told: Option<(Instant, ReplicaReport)> = None;
        let mut looked: Option<Instant> = None;
        loop {
            if looked.is_some_and(|at| at.elapsed() < LOOK) {
                observer.listen().await;
                // The sooner the others know, the sooner a leader can be stopped at no cost.
                if let Some((_, report)) = &told {
                    let takes = Some((observer.senses.has_read)());
                    let report = ReplicaReport {
                        takes,
                        ..report.clone()
                    };
                    observer.tell(&mut told, report).await;
                }
            } else {
                looked = Some(Instant::now());
                match observer.look().await {
                    Ok((judged, report)) => {
                        self.judge(judged);
                        observer.tell(&mut told, report).await;
                    }
                    Err(error) => tracing::debug!(%error, "the others are not seen"),
                }
            }
            sleep(LISTEN).await;
        }
    }

    fn judge(&self, judged: Judged) {
        if judged.unfit != self.judged.borrow().unfit && !judged.unfit.is_empty() {
            tracing::warn!(why = judged.unfit, "another replica should lead");
        }
        self.judged.send_replace(judged);
    }
}

struct Observer<'a> {
    fitness: &'a Fitness,
    store: &'a Store,
    senses: Senses,
    clocks: Clocks,
}

impl Observer<'_> {
    async fn look(&mut self) -> Result<(Judged, ReplicaReport)> {
        let registered = self.registered().await?;
        let platforms = self.reached(&registered).await;
        let (keys, lacks) = self.keys().await;
        let sealed_with = self.store.sealed_with().await?;
        let (this, others) = self.replicas().await?;
        let mut since = self.fitness.since.lock();
        let names = registered.into_iter().map(|(name, _)| name).collect();
        let fit: Vec<_> = others
            .iter()
            .filter(|other| may_lead(other, &sealed_with))
            .collect();
        let blind = blind(&platforms, &names, &fit);
        let blind = Since::after(&mut since.blind, BLIND, blind);
        let skewed = self.clocks.skewed(&this.name, &others);
        let skewed = Since::after(&mut since.skewed, SKEWED, skewed);
        let lacks = Since::after(&mut since.keyless, KEYLESS, lacks);
        let renew = this.leads && may_renew(&keys, &sealed_with, &others);
        let renew = renew.then(|| RENEW.to_owned());
        let renew = Since::after(&mut since.renewable, KEYLESS, renew);
        let judged = Judged {
            unfit: lacks.or(skewed).or(blind).unwrap_or_default(),
            another: !fit.is_empty(),
            renew: renew.unwrap_or_default(),
        };
        let report = ReplicaReport {
            time_ms: 0,
            platforms: platforms.into_iter().collect(),
            unfit: judged.unfit.clone(),
            secret_keys: keys,
            ahead: self.clocks.ahead(),
            takes: Some((self.senses.has_read)()),
        };
        Ok((judged, report))
    }

    /// Tells the others what they do not know yet, and now and then what they know.
    async fn tell(&self, told: &mut Option<(Instant, ReplicaReport)>, report: ReplicaReport) {
        let is_known = told
            .as_ref()
            .is_some_and(|(at, before)| at.elapsed() < TELL && *before == report);
        if is_known {
            return;
        }
        let time_ms = u64::try_from(self.clock()).unwrap_or_default();
        let timed = ReplicaReport {
            time_ms,
            ..report.clone()
        };
        match self.store.report(timed).await {
            Ok(()) => *told = Some((Instant::now(), report)),
            Err(error) => tracing::debug!(%error, "the others are not told"),
        }
    }

    /// Hears what time the others have.
    async fn listen(&mut self) {
        if let Err(error) = self.replicas().await {
            tracing::debug!(%error, "the others are not seen");
        }
    }

    /// This replica and the others.
    async fn replicas(&mut self) -> Result<(ReplicaRow, Vec<ReplicaRow>)> {
        let mut others = self.store.replicas().await?;
        self.clocks.read(&others, self.clock());
        let this = others.iter().position(|replica| replica.is_this);
        // Its lease has ended.
        let this = this.ok_or_else(|| Error::unavailable("this replica is none any more"))?;
        Ok((others.swap_remove(this), others))
    }

    /// Name and URL of each platform. One that cannot be read is not reached by any replica.
    async fn registered(&self) -> Result<Vec<(String, String)>> {
        let rows = self.store.platforms().await?.into_iter();
        let each = rows.filter_map(|row| {
            let registration = Registration::load(&row.value).ok()?;
            Some((row.value.name, registration.spec.endpoint))
        });
        Ok(each.collect())
    }

    async fn reached(&self, registered: &[(String, String)]) -> BTreeSet<String> {
        let looks = stream::iter(registered.iter().cloned()).map(|(name, url)| {
            let reached = (self.senses.reach)(url);
            async move { reached.await.then_some(name) }
        });
        let found = looks.buffer_unordered(TOGETHER);
        found.filter_map(std::future::ready).collect().await
    }

    /// Ids of the keys of secrets, which may be others by now than when this replica joined, and what is wrong with them.
    async fn keys(&self) -> (Vec<Bytes>, Option<String>) {
        let keys = self.senses.keys.as_ref().map(Keyring::read).transpose();
        let wrong = match &keys {
            Ok(keys) => self.store.check_keys(keys.as_ref()).await.err(),
            Err(error) => Some(error.clone()),
        };
        // A store that does not answer says nothing of the keys.
        let wrong = wrong.filter(|error| error.reason() != Reason::Unavailable);
        let ids = keys.ok().flatten().map(|keys| keys.ids());
        (
            ids.unwrap_or_default(),
            wrong.map(|error| error.message().to_owned()),
        )
    }

    /// What this replica takes for the time, whatever others have recorded.
    fn clock(&self) -> i64 {
        let clock = self.fitness.clock.lock().clone();
        let now = clock.map_or_else(|| (self.senses.wall)(), |clock| clock.of_machine());
        i64::try_from(now).unwrap_or(i64::MAX)
    }
}

/// Whether a replica has looked around, found nothing against itself, and has the key that the secrets are encrypted with,
/// if they are.
pub(super) fn may_lead(replica: &ReplicaRow, sealed_with: &Bytes) -> bool {
    let has = |keys: &[Bytes]| sealed_with.is_empty() || keys.contains(sealed_with);
    let report = replica.report.as_ref();
    report.is_some_and(|report| report.unfit.is_empty() && has(&report.secret_keys))
}

/// Whether the next lead would encrypt with the first one of these keys, and this one does not.
fn may_renew(keys: &[Bytes], sealed_with: &Bytes, others: &[ReplicaRow]) -> bool {
    let has = |replica: &ReplicaRow, key| {
        let report = replica.report.as_ref();
        report.is_some_and(|report| report.secret_keys.contains(key))
    };
    keys.first()
        .is_some_and(|first| first != sealed_with && others.iter().all(|other| has(other, first)))
}

/// Which platforms another replica reaches besides all that this one does.
fn blind(
    mine: &BTreeSet<String>,
    registered: &BTreeSet<String>,
    others: &[&ReplicaRow],
) -> Option<String> {
    let mut more = others.iter().filter_map(|other| {
        let theirs = other.report.as_ref()?.platforms.iter().cloned();
        let theirs: BTreeSet<String> = theirs.collect();
        let besides: Vec<String> = theirs
            .difference(mine)
            .filter(|name| registered.contains(*name))
            .cloned()
            .collect();
        (!besides.is_empty() && mine.is_subset(&theirs)).then_some((&other.name, besides))
    });
    let (other, besides) = more.next()?;
    Some(format!(
        "{other} reaches {}, and it does not",
        besides.join(", ")
    ))
}

/// How far the clocks of the others are ahead of this one, at least, in ms. How far they are behind they say themselves: what
/// they tell may be old when it is heard, so that their clock is only known not to be before it.
#[derive(Debug, Default)]
struct Clocks(HashMap<String, (Revision, i64)>);

impl Clocks {
    fn read(&mut self, replicas: &[ReplicaRow], now: i64) {
        self.0
            .retain(|name, _| replicas.iter().any(|replica| replica.name == *name));
        for replica in replicas.iter().filter(|replica| !replica.is_this) {
            let known = self.0.get(&replica.name);
            let Some(report) = &replica.report else {
                continue;
            };
            if known.is_some_and(|(revision, _)| *revision == replica.revision) {
                continue;
            }
            let told = i64::try_from(report.time_ms).unwrap_or(i64::MAX);
            let ahead = told.saturating_sub(now);
            self.0
                .insert(replica.name.clone(), (replica.revision, ahead));
        }
    }

    /// Whose clock is ahead of this one's for certain, by name.
    fn ahead(&self) -> Vec<String> {
        let ahead = self.0.iter().filter(|(_, (_, ahead))| *ahead > OFF);
        let mut names: Vec<String> = ahead.map(|(name, _)| name.clone()).collect();
        names.sort_unstable();
        names
    }

    /// Whether the clocks of most of the others are off to one side, so that this one is the one that is wrong.
    fn skewed(&self, this: &str, others: &[ReplicaRow]) -> Option<String> {
        // Of two clocks nobody can say which.
        if others.len() < 2 {
            return None;
        }
        let most = others.len() / 2;
        if self.ahead().len() > most {
            return Some(format!(
                "its clock is more than {OFF} ms behind those of most others"
            ));
        }
        let says_so = |other: &&ReplicaRow| {
            let report = other.report.as_ref();
            report.is_some_and(|report| report.ahead.iter().any(|name| name == this))
        };
        (others.iter().filter(says_so).count() > most)
            .then(|| format!("its clock is more than {OFF} ms ahead of those of most others"))
    }
}

#[cfg(test)]
mod tests;
