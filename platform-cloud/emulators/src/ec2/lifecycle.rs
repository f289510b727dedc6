//! Stopping, starting and terminating instances.

use std::collections::BTreeSet;

use tokio::time::Instant;

use crate::ec2::World;
use crate::ec2::asked::is_hex;
use crate::ec2::model::{Phase, State};
use crate::ec2::params::{Outcome, Params, Wrong, wrong};
use crate::ec2::run::no_capacity;
use crate::ec2::xml::Xml;

const BY_USER: &str = "Client.UserInitiatedShutdown";

impl World {
    /// Returns the instances that a call names. Fails unless all of them exist and are visible.
    pub(crate) fn named(&self, state: &State, params: &Params, now: Instant) -> Outcome<Vec<u64>> {
        let ids = params.list("InstanceId");
        if ids.is_empty() {
            return Err(wrong(
                "MissingParameter",
                "The request must contain the parameter InstanceId",
            ));
        }
        self.numbers(state, &ids, now)
    }

    pub(crate) fn numbers(&self, state: &State, ids: &[String], now: Instant) -> Outcome<Vec<u64>> {
        let (mut numbers, mut seen, mut missing) = (Vec::new(), BTreeSet::new(), Vec::new());
        for id in ids {
            if !id.strip_prefix("i-").is_some_and(is_hex) {
                return Err(wrong(
                    "InvalidInstanceID.Malformed",
                    format!("Invalid id: \"{id}\" (expecting \"i-...\")"),
                ));
            }
            let known = state
                .by_id
                .get(id)
                .and_then(|number| Some((*number, state.instances.get(number)?)));
            match known {
                Some((number, instance)) if instance.is_visible(now, &self.delays) => {
                    if seen.insert(number) {
                        numbers.push(number);
                    }
                }
                _ => missing.push(id.as_str()),
            }
        }
        match missing.as_slice() {
            [] => Ok(numbers),
            [id] => Err(wrong(
                "InvalidInstanceID.NotFound",
                format!("The instance ID '{id}' does not exist"),
            )),
            many => {
                let message = format!("The instance IDs '{}' do not exist", many.join(", "));
                Err(wrong("InvalidInstanceID.NotFound", message))
            }
        }
    }

    /// Protected instances, and those in the same zones, are not terminated; the others are, and the call fails.
    pub(crate) fn terminate_instances(
        &self,
        state: &mut State,
        params: &Params,
        now: Instant,
    ) -> Outcome<Xml> {
        let numbers = self.named(state, params, now)?;
        let mut kept = BTreeSet::new();
        let mut refused = None;
        for instance in numbers
            .iter()
            .filter_map(|number| state.instances.get(number))
        {
            if instance.protected && !instance.phase(now, &self.delays).is_over() {
                kept.insert(instance.zone.clone());
                refused.get_or_insert_with(|| instance.id.clone());
            }
        }
        let mut changes = Vec::new();
        for number in numbers {
            let Some(instance) = state.instances.get(&number) else {
                continue;
            };
            if kept.contains(&instance.zone) {
                continue;
            }
            let (id, before) = (instance.id.clone(), instance.phase(now, &self.delays));
            self.terminate(state, number, now);
            changes.push((id, before, self.phase_of(state, number, now)));
        }
        match refused {
            Some(id) => {
                let message = format!(
                    "The instance '{id}' may not be terminated. Modify its 'disableApiTermination' instance attribute and \
                     try again."
                );
                Err(wrong("OperationNotPermitted", message))
            }
            None => Ok(changed(&changes)),
        }
    }

    fn phase_of(&self, state: &State, number: u64, now: Instant) -> Phase {
        state
            .instances
            .get(&number)
            .map_or(Phase::Terminated, |instance| {
                instance.phase(now, &self.delays)
            })
    }

    /// Terminates an instance. Returns false if it is already terminated.
    pub(crate) fn terminate(&self, state: &mut State, number: u64, now: Instant) -> bool {
        let Some(instance) = state.instances.get_mut(&number) else {
            return false;
        };
        if instance.terminates.is_some() {
            return false;
        }
        instance.terminates = Some(now);
        instance.reason = Some((
            BY_USER,
            "Client.UserInitiatedShutdown: User initiated shutdown",
        ));
        instance.drawn = None;
        let elastic = instance.elastic.take();
        if let Some(subnet) = state.subnets.get_mut(&instance.subnet) {
            subnet.give_back(instance.private);
        }
        self.ledger.gone(&instance.id);
        for volume in instance
            .volumes
            .iter()
            .filter(|volume| volume.delete_on_termination)
        {
            self.ledger.gone(&volume.id);
        }
        if let Some(address) =
            elastic.and_then(|(allocation, _, _)| state.addresses.get_mut(&allocation))
        {
            address.bound = None;
        }
        state.ended.push_back((now, number));
        true
    }

    pub(crate) fn stop_instances(
        &self,
        state: &mut State,
        params: &Params,
        now: Instant,
    ) -> Outcome<Xml> {
        let numbers = self.named(state, params, now)?;
        for instance in numbers
            .iter()
            .filter_map(|number| state.instances.get(number))
        {
            let phase = instance.phase(now, &self.delays);
            if instance.spot {
                let message = format!(
                    "You can't stop the Spot Instance '{}' because it is associated with a one-time \
                                       Spot Instance request.",
                    instance.id
                );
                return Err(wrong("UnsupportedOperation", message));
            }
            if instance.stop_protected {
                let message = format!(
                    "The instance '{}' may not be stopped. Modify its 'disableApiStop' instance \
                                       attribute and try again.",
                    instance.id
                );
                return Err(wrong("OperationNotPermitted", message));
            }
            if !matches!(phase, Phase::Running | Phase::Stopping | Phase::Stopped) {
                return Err(bad_state(&instance.id, "stopped"));
            }
        }
        let mut changes = Vec::new();
        for number in numbers {
            let before = self.phase_of(state, number, now);
            self.stop(state, number, now);
            let Some(instance) = state.instances.get(&number) else {
                continue;
            };
            changes.push((
                instance.id.clone(),
                before,
                instance.phase(now, &self.delays),
            ));
        }
        Ok(changed(&changes))
    }

    /// Stops an instance. Returns false if it is not running.
    pub(crate) fn stop(&self, state: &mut State, number: u64, now: Instant) -> bool {
        let Some(instance) = state.instances.get_mut(&number) else {
            return false;
        };
        if instance.phase(now, &self.delays) != Phase::Running {
            return false;
        }
        instance.stops = Some(now);
        instance.reason = Some((
            BY_USER,
            "Client.UserInitiatedShutdown: User initiated shutdown",
        ));
        instance.drawn = None;
        true
    }

    pub(crate) fn start_instances(
        &self,
        state: &mut State,
        params: &Params,
        now: Instant,
    ) -> Outcome<Xml> {
        let numbers = self.named(state, params, now)?;
        for instance in numbers
            .iter()
            .filter_map(|number| state.instances.get(number))
        {
            match instance.phase(now, &self.delays) {
                Phase::Pending | Phase::Running => {}
                Phase::Stopped => {
                    if self.room(state, &instance.zone, instance.spot, now) == Some(0) {
                        return Err(no_capacity(
                            instance.kind.name,
                            &instance.zone,
                            instance.spot,
                        ));
                    }
                }
                Phase::ShuttingDown | Phase::Terminated | Phase::Stopping => {
                    return Err(bad_state(&instance.id, "started"));
                }
            }
        }
        let mut changes = Vec::new();
        for number in numbers {
            let before = self.phase_of(state, number, now);
            if before == Phase::Stopped {
                // A public address is released when the instance stops.
                let public = state.public_address();
                if let Some(instance) = state.instances.get_mut(&number) {
                    instance.public = instance.public.map(|_| public);
                    instance.stops = None;
                    instance.starts = now + self.delays.pending;
                    instance.reason = None;
                    instance.drawn = None;
                }
            }
            let Some(instance) = state.instances.get(&number) else {
                continue;
            };
            changes.push((
                instance.id.clone(),
                before,
                instance.phase(now, &self.delays),
            ));
        }
        Ok(changed(&changes))
    }
}

pub(crate) fn bad_state(id: &str, done: &str) -> Wrong {
    let message = format!("The instance '{id}' is not in a state from which it can be {done}.");
    wrong("IncorrectInstanceState", message)
}

fn changed(changes: &[(String, Phase, Phase)]) -> Xml {
    let mut xml = Xml::new();
    xml.list("instancesSet", changes, |xml, (id, before, after)| {
        xml.text("instanceId", id);
        xml.nest("currentState", |xml| phase(xml, *after));
        xml.nest("previousState", |xml| phase(xml, *before));
    });
    xml
}

pub(crate) fn phase(xml: &mut Xml, phase: Phase) {
    xml.value("code", phase.code());
    xml.text("name", phase.name());
}
