//! Failure domains that do not answer while others do.

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    time::Duration,
};

use drover_core::{Class, Error, Result};
use drover_proto::platform::v1::{NodePhase, Warning};
use tokio::time::Instant;

use super::super::{CloudListing, Filter, Machine};

/// What each failure domain held when it last answered, for clouds that read them one by one.
pub(super) struct Domains {
    /// How long lists may lack what a call has made, from the begin of the call.
    settles_after: Duration,
    /// Lists that began earlier may lack what another process has made.
    settled: Instant,
    known: BTreeMap<String, Known>,
    /// The domains that did not answer the last complete list.
    silent: HashSet<String>,
    /// When creations ended in doubt, by domain and request.
    doubts: HashMap<(String, String), Instant>,
}

struct Known {
    machines: Vec<Machine>,
    /// Begin of the list.
    read: Instant,
}

impl Domains {
    pub(super) fn new(settles_after: Duration) -> Self {
        Self {
            settles_after,
            settled: Instant::now() + settles_after,
            known: BTreeMap::new(),
            silent: HashSet::new(),
            doubts: HashMap::new(),
        }
    }

    /// The domains that did not answer the last complete list.
    pub(super) fn silent(&self) -> impl Iterator<Item = &str> {
        self.silent.iter().map(String::as_str)
    }

    /// Remembers a created machine, in case its domain falls silent before it is listed.
    pub(super) fn made(&mut self, machine: &Machine) {
        if let Some(known) = self.known.get_mut(&machine.failure_domain) {
            known.machines.push(machine.clone());
        }
    }

    /// Remembers that a creation may have succeeded without being listed yet.
    pub(super) fn doubt(&mut self, domain: &str, request: &str) {
        let key = (domain.to_owned(), request.to_owned());
        self.doubts.insert(key, Instant::now());
    }

    /// Completes a list: the known machines of the domains that did not answer are in an unknown phase, and a warning
    /// stands for what may be there besides.
    ///
    /// # Errors
    /// That of a silent domain: if no domain answers, if the credentials are refused, and if what was asked for may be
    /// there unknown.
    pub(super) fn complete(
        &mut self,
        listed: &mut CloudListing,
        filter: &Filter,
        began: Instant,
    ) -> Result<()> {
        let mut silent: Vec<(String, Error)> = Vec::new();
        let mut answered = Vec::new();
        for (domain, outcome) in std::mem::take(&mut listed.domains) {
            match outcome {
                Ok(()) => answered.push(domain),
                Err(error) if error.class() != Class::Unknown => return Err(error),
                Err(error) => silent.push((domain, error)),
            }
        }
        if let (true, Some((_, error))) = (answered.is_empty(), silent.first()) {
            return Err(error.clone());
        }
        let is_found = matches!(filter, Filter::Id(_)) && !listed.machines.is_empty();
        for (domain, error) in &silent {
            self.show(listed, filter, domain, error);
            let knows_all = self.knows_all(domain, filter);
            match filter {
                Filter::All | Filter::Cluster(_) => {
                    listed.warnings.push(warning(domain, error, knows_all));
                }
                // At most one machine has the id, so the other domains do not matter once it is found.
                Filter::Id(_) if is_found => {}
                Filter::Id(_) | Filter::Request(_) if !knows_all => return Err(error.clone()),
                Filter::Id(_) | Filter::Request(_) => {}
            }
        }
        if *filter == Filter::All {
            self.silent = silent.into_iter().map(|(domain, _)| domain).collect();
            self.remember(&listed.machines, answered, began);
        }
        Ok(())
    }

    /// Adds the known machines of a silent domain.
    fn show(&self, listed: &mut CloudListing, filter: &Filter, domain: &str, error: &Error) {
        let present: HashSet<String> = listed.machines.iter().map(|m| m.id.clone()).collect();
        let known = self.known.get(domain).into_iter();
        let missing = known
            .flat_map(|known| &known.machines)
            .filter(|machine| filter.fits(machine) && !present.contains(&machine.id));
        listed.machines.extend(missing.map(|machine| Machine {
            phase: NodePhase::Unknown,
            ready: Some(false),
            message: drover_core::error::cut(format!("{domain} does not answer: {error}")),
            ..machine.clone()
        }));
    }

    /// Whether everything in a silent domain that matches the filter is known from its last list.
    fn knows_all(&self, domain: &str, filter: &Filter) -> bool {
        let Some(known) = self.known.get(domain) else {
            return false;
        };
        let mut doubts = self
            .doubts
            .iter()
            .filter(|((of, _), at)| of == domain && known.read < **at + self.settles_after);
        known.read >= self.settled
            && match filter {
                Filter::Request(request) => !doubts.any(|((_, of), _)| of == request),
                // Nobody has been told the id of a machine whose creation is in doubt.
                Filter::Id(_) => true,
                Filter::All | Filter::Cluster(_) => doubts.next().is_none(),
            }
    }

    fn remember(&mut self, machines: &[Machine], answered: Vec<String>, began: Instant) {
        for domain in answered {
            let of_domain = machines.iter().filter(|m| m.failure_domain == domain);
            let known = Known {
                machines: of_domain.cloned().collect(),
                read: began,
            };
            self.known.insert(domain, known);
        }
        let settles_after = self.settles_after;
        let read = |domain: &str| self.known.get(domain).map(|known| known.read);
        self.doubts
            .retain(|(domain, _), at| read(domain).is_none_or(|read| read < *at + settles_after));
    }
}

/// The warning for a silent domain. If everything in it is known, it explains only the absence of what has no node id yet.
fn warning(domain: &str, error: &Error, knows_all: bool) -> Warning {
    let rest = if knows_all {
        "the nodes in it are in an unknown state"
    } else {
        "it may hold nodes that are not known"
    };
    Warning {
        message: drover_core::error::cut(format!("{domain} does not answer, so {rest}: {error}")),
        id: knows_all.then(|| domain.to_owned()),
        name: Some(domain.to_owned()),
        ..Warning::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SETTLES: Duration = Duration::from_secs(60);

    fn machine(id: &str, domain: &str) -> Machine {
        Machine {
            id: id.to_owned(),
            failure_domain: domain.to_owned(),
            phase: NodePhase::Running,
            ..Machine::default()
        }
    }

    fn listed(machines: &[Machine], b: Result<()>) -> CloudListing {
        CloudListing {
            machines: machines.to_vec(),
            domains: vec![("a".to_owned(), Ok(())), ("b".to_owned(), b)],
            ..CloudListing::default()
        }
    }

    fn down() -> Result<()> {
        Err(Error::unavailable("down"))
    }

    fn complete(
        domains: &mut Domains,
        mut list: CloudListing,
        filter: &Filter,
    ) -> Result<CloudListing> {
        domains.complete(&mut list, filter, Instant::now())?;
        Ok(list)
    }

    #[tokio::test(start_paused = true)]
    async fn what_a_silent_domain_held_is_unknown_and_nothing_else_is_in_doubt() {
        let mut domains = Domains::new(SETTLES);
        tokio::time::sleep(SETTLES).await;
        let both = [machine("1", "a"), machine("2", "b")];
        complete(&mut domains, listed(&both, Ok(())), &Filter::All).unwrap();
        let list = complete(&mut domains, listed(&both[..1], down()), &Filter::All).unwrap();
        let phases: Vec<_> = list
            .machines
            .iter()
            .map(|m| (m.id.as_str(), m.phase))
            .collect();
        assert_eq!(
            phases,
            [("1", NodePhase::Running), ("2", NodePhase::Unknown)]
        );
        assert_eq!(list.warnings[0].id.as_deref(), Some("b"));
        assert_eq!(domains.silent().collect::<Vec<_>>(), ["b"]);
        let request = Filter::Request("r".to_owned());
        complete(&mut domains, listed(&[], down()), &request).unwrap();
        domains.doubt("b", "r");
        let error = complete(&mut domains, listed(&[], down()), &request).unwrap_err();
        assert_eq!(error.message(), "down");
        let list = complete(&mut domains, listed(&both[..1], down()), &Filter::All).unwrap();
        assert_eq!(list.warnings[0].id, None);
    }

    #[tokio::test(start_paused = true)]
    async fn a_domain_that_was_never_read_may_hold_anything() {
        let mut domains = Domains::new(SETTLES);
        let one = [machine("1", "a")];
        let list = complete(&mut domains, listed(&one, down()), &Filter::All).unwrap();
        assert_eq!(list.warnings[0].id, None, "no absence counts");
        let id = Filter::Id("2".to_owned());
        assert!(complete(&mut domains, listed(&[], down()), &id).is_err());
        complete(&mut domains, listed(&[machine("2", "a")], down()), &id).unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn without_any_answer_nothing_is_listed() {
        let mut domains = Domains::new(SETTLES);
        let mut list = listed(&[], down());
        list.domains[0].1 = down();
        assert!(complete(&mut domains, list, &Filter::All).is_err());
    }
}
