//! The decision of a wait: what is met, what is missing, and whether it can still come. No I/O and no time.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use drover_core::{Error, Reason};
use drover_proto::kubernetes::v1 as api;

use crate::convert::Why;

/// Objects that progress names. Those beyond would only make it longer than an answer may be.
const MAX_PENDING: usize = 100;

/// What a wait is about.
#[derive(Debug, Default)]
pub(crate) struct Goal {
    pub(crate) kind: &'static str,
    /// Namespace of the names.
    pub(crate) namespace: String,
    /// Names that must be there. Empty: any that match.
    pub(crate) names: BTreeSet<String>,
    pub(crate) min_count: u32,
    pub(crate) fail_if_none: bool,
    /// About the objects of the first list only, each until it is gone or meets its conditions.
    pub(crate) gone: bool,
    /// With `gone`: about the objects with these uids only. Empty: any.
    pub(crate) uids: BTreeSet<String>,
    /// With `gone`: what is not seen any more may have lost its labels only, and counts when it is confirmed to be gone.
    pub(crate) confirm: bool,
}

/// Whether an object is as wanted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    Met,
    Pending(Why),
    /// It will never be.
    Impossible(Why),
}

/// An object as it was seen last.
#[derive(Clone, Debug)]
pub(crate) struct Seen {
    pub(crate) namespace: String,
    pub(crate) name: String,
    pub(crate) uid: String,
    pub(crate) verdict: Verdict,
}

/// What a list and the watch after it tell.
#[derive(Clone, Debug)]
pub(crate) enum Change<T> {
    /// A list begins, the first one or another: what is not in it is gone.
    Listing,
    /// An object of the list.
    Listed(T),
    /// The list is complete.
    Complete,
    /// An object is new or has changed.
    Changed(T),
    /// An object is gone, or matches no longer.
    Gone(T),
}

impl<T> Change<T> {
    pub(crate) fn map<U>(self, convert: impl FnOnce(T) -> U) -> Change<U> {
        match self {
            Self::Listing => Change::Listing,
            Self::Listed(it) => Change::Listed(convert(it)),
            Self::Complete => Change::Complete,
            Self::Changed(it) => Change::Changed(convert(it)),
            Self::Gone(it) => Change::Gone(convert(it)),
        }
    }
}

/// What a change leads to.
#[derive(Debug, Default)]
pub(crate) struct Step {
    /// The progress, if there is a new one.
    pub(crate) progress: Option<api::WaitProgress>,
    /// Why the wait cannot end well.
    pub(crate) failed: Option<Error>,
}

/// Namespace and name.
pub(crate) type Key = (Arc<str>, Arc<str>);
/// An object by key and uid.
pub(crate) type Subject = (Key, Arc<str>);

/// What is kept of an object beside its key. Many waits are about the same many objects.
#[derive(Debug)]
struct Held {
    uid: Arc<str>,
    /// `None`: it is as wanted.
    missing: Option<Missing>,
}

#[derive(Clone, Debug)]
struct Missing {
    why: Arc<Why>,
    impossible: bool,
}

/// A wait.
#[derive(Debug)]
pub(crate) struct Wait {
    goal: Goal,
    objects: BTreeMap<Key, Held>,
    /// Objects of a list that is not complete.
    arriving: Option<BTreeMap<Key, Held>>,
    /// Those of the object that came last: the next one mostly has the same.
    namespace: Arc<str>,
    why: Arc<Why>,
    /// With `gone`: the objects of the first list, by key and uid.
    subjects: Option<BTreeSet<Subject>>,
    /// Subjects that are gone for certain.
    confirmed: BTreeSet<Subject>,
    told: Option<api::WaitProgress>,
}

impl Wait {
    pub(crate) fn new(goal: Goal) -> Self {
        Self {
            goal,
            objects: BTreeMap::new(),
            arriving: None,
            namespace: "".into(),
            why: Arc::new(Why::new("", None)),
            subjects: None,
            confirmed: BTreeSet::new(),
            told: None,
        }
    }

    pub(crate) fn apply(&mut self, change: Change<Seen>) -> Step {
        match change {
            Change::Listing => self.arriving = Some(BTreeMap::new()),
            Change::Listed(seen) => {
                if self.wants(&seen) {
                    let (key, held) = self.held(seen);
                    self.arriving.get_or_insert_default().insert(key, held);
                }
            }
            Change::Complete => {
                self.objects = self.arriving.take().unwrap_or_default();
                if let Some(error) = self.begin() {
                    return Step {
                        progress: None,
                        failed: Some(error),
                    };
                }
                return self.decide();
            }
            Change::Changed(seen) => {
                if self.wants(&seen) {
                    let (key, held) = self.held(seen);
                    self.objects.insert(key, held);
                    return self.decide();
                }
            }
            Change::Gone(seen) => {
                let (key, held) = self.held(seen);
                let known = self.objects.get(&key);
                if known.is_some_and(|known| known.uid == held.uid) {
                    self.objects.remove(&key);
                    return self.decide();
                }
            }
        }
        Step::default()
    }

    /// Subjects that are not seen any more, and not known to be gone.
    pub(crate) fn unconfirmed(&self) -> Vec<Subject> {
        if !self.goal.confirm {
            return Vec::new();
        }
        let subjects = self.subjects.iter().flatten();
        let lost = subjects.filter(|it| !self.objects.contains_key(&it.0));
        let lost = lost.filter(|it| !self.confirmed.contains(it));
        lost.cloned().collect()
    }

    /// What a look at a subject by its name has found.
    pub(crate) fn confirm(&mut self, subject: Subject, found: Option<Seen>) -> Step {
        match found.filter(|seen| *seen.uid == *subject.1) {
            Some(seen) => {
                let (_, held) = self.held(seen);
                self.objects.insert(subject.0, held);
            }
            None => {
                let same = |known: &Held| known.uid == subject.1;
                if self.objects.get(&subject.0).is_some_and(same) {
                    self.objects.remove(&subject.0);
                }
                self.confirmed.insert(subject);
            }
        }
        self.decide()
    }

    /// What is kept of an object, with what it has in common with the one before it only once.
    fn held(&mut self, seen: Seen) -> (Key, Held) {
        if *self.namespace != *seen.namespace {
            self.namespace = seen.namespace.into();
        }
        let (why, impossible) = match seen.verdict {
            Verdict::Met => (None, false),
            Verdict::Pending(why) => (Some(why), false),
            Verdict::Impossible(why) => (Some(why), true),
        };
        let missing = why.map(|why| {
            if *self.why != why {
                self.why = Arc::new(why);
            }
            let why = Arc::clone(&self.why);
            Missing { why, impossible }
        });
        let key = (Arc::clone(&self.namespace), seen.name.into());
        let uid = seen.uid.into();
        (key, Held { uid, missing })
    }

    fn wants(&self, seen: &Seen) -> bool {
        let named = self.goal.names.is_empty() || self.goal.names.contains(&seen.name);
        named && (self.goal.uids.is_empty() || self.goal.uids.contains(&seen.uid))
    }

    /// After the first list.
    fn begin(&mut self) -> Option<Error> {
        if self.told.is_some() {
            return None;
        }
        if self.goal.fail_if_none && self.objects.is_empty() {
            let message = format!("no {} matches", self.goal.kind);
            return Some(Error::new(Reason::NothingMatches, message));
        }
        if self.goal.gone && self.subjects.is_none() {
            let objects = self.objects.iter();
            let subjects = objects.map(|(key, held)| (key.clone(), Arc::clone(&held.uid)));
            self.subjects = Some(subjects.collect());
        }
        None
    }

    fn decide(&mut self) -> Step {
        if !self.unconfirmed().is_empty() {
            return Step::default();
        }
        let progress = self.progress();
        let failed = if progress.done {
            None
        } else {
            self.impossible()
        };
        if self.told.as_ref() == Some(&progress) {
            return Step {
                progress: None,
                failed,
            };
        }
        self.told = Some(progress.clone());
        Step {
            progress: Some(progress),
            failed,
        }
    }

    /// The objects that count.
    fn counted(&self) -> impl Iterator<Item = (&Key, &Held)> {
        let counts = |(key, held): &(&Key, &Held)| match &self.subjects {
            None => true,
            Some(subjects) => subjects.contains(&((*key).clone(), Arc::clone(&held.uid))),
        };
        self.objects.iter().filter(counts)
    }

    fn progress(&self) -> api::WaitProgress {
        let mut open = 0;
        let mut pending = Vec::new();
        for (key, held) in self.counted() {
            let Some(missing) = &held.missing else {
                continue;
            };
            open += 1;
            // They come in order.
            if pending.len() < MAX_PENDING {
                pending.push(waiting(key, held, missing));
            }
        }
        let here = self.counted().count();
        let matched = self.subjects.as_ref().map_or(here, BTreeSet::len);
        let met = matched - open;
        let mut complete = open == 0;
        if self.subjects.is_none() {
            let before = pending.len();
            pending.extend(self.absent());
            complete &= pending.len() == before;
            pending.sort_by(|a, b| (&a.namespace, &a.name).cmp(&(&b.namespace, &b.name)));
        }
        let enough = self.subjects.is_some() || count(matched) >= self.goal.min_count;
        let done = complete && enough;
        pending.truncate(MAX_PENDING);
        api::WaitProgress {
            matched: count(matched),
            met: count(met),
            pending,
            done,
        }
    }

    /// Names that are waited for and not there.
    fn absent(&self) -> impl Iterator<Item = api::WaitPending> {
        let namespace = &self.goal.namespace;
        let within: Arc<str> = namespace.as_str().into();
        let names = self.goal.names.iter();
        let absent = names.filter(move |name| {
            let key = (Arc::clone(&within), name.as_str().into());
            !self.objects.contains_key(&key)
        });
        absent.map(|name| api::WaitPending {
            namespace: namespace.clone(),
            name: name.clone(),
            reason: "NotFound".to_owned(),
            ..api::WaitPending::default()
        })
    }

    fn impossible(&self) -> Option<Error> {
        let ((namespace, name), why) = self.counted().find_map(|(key, held)| {
            let missing = held.missing.as_ref().filter(|it| it.impossible);
            missing.map(|it| (key, &it.why))
        })?;
        let name = if namespace.is_empty() {
            name.to_string()
        } else {
            format!("{namespace}/{name}")
        };
        let kind = self.goal.kind;
        let mut message = format!("{kind} {name:?} will never be as wanted: {}", why.reason);
        if !why.message.is_empty() {
            message = format!("{message}: {}", why.message);
        }
        Some(Error::new(Reason::WaitImpossible, message).with_resource(kind, name))
    }
}

fn waiting((namespace, name): &Key, held: &Held, missing: &Missing) -> api::WaitPending {
    api::WaitPending {
        namespace: namespace.to_string(),
        name: name.to_string(),
        reason: missing.why.reason.clone(),
        message: missing.why.message.clone(),
        uid: held.uid.to_string(),
    }
}

pub(crate) fn count(number: usize) -> u32 {
    u32::try_from(number).unwrap_or(u32::MAX)
}
