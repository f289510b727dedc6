//! The decision of a wait: what is met, what is missing, and whether it can still come. No I/O and no time.

use std::collections::{BTreeMap, BTreeSet};

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

pub(crate) type Key = (String, String);
/// An object by key and uid.
pub(crate) type Subject = (Key, String);

/// A wait.
#[derive(Debug)]
pub(crate) struct Wait {
    goal: Goal,
    objects: BTreeMap<Key, Seen>,
    /// Objects of a list that is not complete.
    arriving: Option<BTreeMap<Key, Seen>>,
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
                    let arriving = self.arriving.get_or_insert_default();
                    arriving.insert(key(&seen), seen);
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
                    self.objects.insert(key(&seen), seen);
                    return self.decide();
                }
            }
            Change::Gone(seen) => {
                let known = self.objects.get(&key(&seen));
                if known.is_some_and(|known| known.uid == seen.uid) {
                    self.objects.remove(&key(&seen));
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
        match found.filter(|seen| seen.uid == subject.1) {
            Some(seen) => {
                self.objects.insert(subject.0, seen);
            }
            None => {
                let same = |known: &Seen| known.uid == subject.1;
                if self.objects.get(&subject.0).is_some_and(same) {
                    self.objects.remove(&subject.0);
                }
                self.confirmed.insert(subject);
            }
        }
        self.decide()
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
            let subjects = objects.map(|(key, seen)| (key.clone(), seen.uid.clone()));
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
    fn counted(&self) -> impl Iterator<Item = &Seen> {
        self.objects.values().filter(|seen| match &self.subjects {
            None => true,
            Some(subjects) => subjects.contains(&(key(seen), seen.uid.clone())),
        })
    }

    fn progress(&self) -> api::WaitProgress {
        let mut pending: Vec<api::WaitPending> = self
            .counted()
            .filter_map(|seen| match &seen.verdict {
                Verdict::Met => None,
                Verdict::Pending(why) | Verdict::Impossible(why) => Some(missing(seen, why)),
            })
            .collect();
        let here = self.counted().count();
        let open = pending.len();
        let matched = self.subjects.as_ref().map_or(here, BTreeSet::len);
        let met = matched - open;
        if self.subjects.is_none() {
            pending.extend(self.absent());
            pending.sort_by(|a, b| (&a.namespace, &a.name).cmp(&(&b.namespace, &b.name)));
        }
        let enough = self.subjects.is_some() || count(matched) >= self.goal.min_count;
        let done = pending.is_empty() && enough;
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
        let names = self.goal.names.iter();
        let absent = names.filter(|name| {
            !self
                .objects
                .contains_key(&(namespace.clone(), (*name).clone()))
        });
        absent.map(|name| api::WaitPending {
            namespace: namespace.clone(),
            name: name.clone(),
            reason: "NotFound".to_owned(),
            ..api::WaitPending::default()
        })
    }

    fn impossible(&self) -> Option<Error> {
        let (seen, why) = self.counted().find_map(|seen| match &seen.verdict {
            Verdict::Impossible(why) => Some((seen, why)),
            Verdict::Met | Verdict::Pending(_) => None,
        })?;
        let name = if seen.namespace.is_empty() {
            seen.name.clone()
        } else {
            format!("{}/{}", seen.namespace, seen.name)
        };
        let kind = self.goal.kind;
        let mut message = format!("{kind} {name:?} will never be as wanted: {}", why.reason);
        if !why.message.is_empty() {
            message = format!("{message}: {}", why.message);
        }
        Some(Error::new(Reason::WaitImpossible, message).with_resource(kind, name))
    }
}

fn key(seen: &Seen) -> Key {
    (seen.namespace.clone(), seen.name.clone())
}

fn missing(seen: &Seen, why: &Why) -> api::WaitPending {
    api::WaitPending {
        namespace: seen.namespace.clone(),
        name: seen.name.clone(),
        reason: why.reason.clone(),
        message: why.message.clone(),
        uid: seen.uid.clone(),
    }
}

pub(crate) fn count(number: usize) -> u32 {
    u32::try_from(number).unwrap_or(u32::MAX)
}
