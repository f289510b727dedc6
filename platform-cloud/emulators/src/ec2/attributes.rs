//! Instance attributes, volumes and console output.

use tokio::time::Instant;

use crate::ec2::World;
use crate::ec2::model::{Phase, State};
use crate::ec2::params::{Filters, Outcome, Params, invalid_value, wrong};
use crate::ec2::xml::Xml;

impl World {
    fn one(&self, state: &State, params: &Params, now: Instant) -> Outcome<u64> {
        let id = params.need("InstanceId")?.to_owned();
        let numbers = self.numbers(state, &[id], now)?;
        numbers
            .first()
            .copied()
            .ok_or_else(|| wrong("InternalError", "An internal error has occurred"))
    }

    pub(crate) fn describe_instance_attribute(
        &self,
        state: &State,
        params: &Params,
        now: Instant,
    ) -> Outcome<Xml> {
        let number = self.one(state, params, now)?;
        let name = params.need("Attribute")?;
        let mut xml = Xml::new();
        let Some(instance) = state.instances.get(&number) else {
            return Ok(xml);
        };
        xml.text("instanceId", &instance.id);
        let value = match name {
            "disableApiTermination" => instance.protected.to_string(),
            "disableApiStop" => instance.stop_protected.to_string(),
            "instanceType" => instance.kind.name.to_owned(),
            "instanceInitiatedShutdownBehavior" => "stop".to_owned(),
            "sourceDestCheck" => "true".to_owned(),
            "userData" => instance.user_data.clone().unwrap_or_default(),
            "rootDeviceName" => instance
                .volumes
                .first()
                .map(|volume| volume.device.clone())
                .unwrap_or_default(),
            "ebsOptimized" => "false".to_owned(),
            "groupSet" => {
                xml.list("groupSet", &instance.groups, |xml, id| {
                    xml.text("groupId", id);
                    xml.text(
                        "groupName",
                        state.groups.get(id).map_or("", |group| &group.name),
                    );
                });
                return Ok(xml);
            }
            _ => return Err(invalid_value("attribute", name, "Unknown attribute.")),
        };
        xml.nest(name, |xml| {
            if !value.is_empty() {
                xml.text("value", &value);
            }
        });
        Ok(xml)
    }

    pub(crate) fn modify_instance_attribute(
        &self,
        state: &mut State,
        params: &Params,
        now: Instant,
    ) -> Outcome<Xml> {
        let number = self.one(state, params, now)?;
        let asked = |name: &str, attribute: &str| -> Outcome<Option<bool>> {
            let named = params.get("Attribute") == Some(attribute);
            Ok(params.bool(&format!("{name}.Value"))?.or(if named {
                params.bool("Value")?
            } else {
                None
            }))
        };
        let protected = asked("DisableApiTermination", "disableApiTermination")?;
        let stop_protected = asked("DisableApiStop", "disableApiStop")?;
        let groups = params.list("GroupId");
        if protected.is_none() && stop_protected.is_none() && groups.is_empty() {
            return Err(wrong(
                "InvalidParameterCombination",
                "No attributes specified.",
            ));
        }
        for id in &groups {
            let group = state
                .groups
                .get(id)
                .ok_or_else(|| super::groups::no_group(id))?;
            if state
                .instances
                .get(&number)
                .is_some_and(|instance| instance.vpc != group.vpc)
            {
                let message =
                    format!("The security group '{id}' does not belong to the instance's network");
                return Err(wrong("InvalidGroup.NotFound", message));
            }
        }
        let Some(instance) = state.instances.get_mut(&number) else {
            return Ok(Xml::done());
        };
        if protected == Some(true) && instance.spot {
            let message = "You can't enable termination protection for a Spot Instance.";
            return Err(wrong("UnsupportedOperation", message));
        }
        instance.protected = protected.unwrap_or(instance.protected);
        instance.stop_protected = stop_protected.unwrap_or(instance.stop_protected);
        if !groups.is_empty() {
            instance.groups = groups;
        }
        instance.drawn = None;
        Ok(Xml::done())
    }

    pub(crate) fn get_console_output(
        &self,
        state: &State,
        params: &Params,
        now: Instant,
    ) -> Outcome<Xml> {
        let number = self.one(state, params, now)?;
        let mut xml = Xml::new();
        let Some(instance) = state.instances.get(&number) else {
            return Ok(xml);
        };
        xml.text("instanceId", &instance.id);
        xml.text("timestamp", &self.timestamp(now));
        if instance.phase(now, &self.delays) != Phase::Pending {
            let [a, b, c, d] = instance.private.octets();
            let text = format!("[    0.000000] Linux version 6.1.0\nip-{a}-{b}-{c}-{d} login: ");
            xml.text("output", &crate::base64::encode(text.as_bytes()));
        }
        Ok(xml)
    }

    pub(crate) fn describe_volumes(
        &self,
        state: &State,
        params: &Params,
        now: Instant,
    ) -> Outcome<Xml> {
        let known = [
            "volume-id",
            "attachment.instance-id",
            "status",
            "availability-zone",
            "size",
            "volume-type",
        ];
        let filters = Filters::new(params, &known)?;
        let ids = params.list("VolumeId");
        let mut found = Vec::new();
        for instance in state.instances.values() {
            let ended = instance.phase(now, &self.delays) == Phase::Terminated;
            for volume in &instance.volumes {
                let status = if ended { "available" } else { "in-use" };
                let shown = !(ended && volume.delete_on_termination)
                    && instance.is_visible(now, &self.delays)
                    && (ids.is_empty() || ids.contains(&volume.id))
                    && filters.hold(state.tags_of(&volume.id), |name| match name {
                        "volume-id" => vec![volume.id.clone()],
                        "attachment.instance-id" if !ended => vec![instance.id.clone()],
                        "status" => vec![status.to_owned()],
                        "availability-zone" => vec![instance.zone.clone()],
                        "size" => vec![volume.gib.to_string()],
                        "volume-type" => vec![volume.kind.clone()],
                        _ => Vec::new(),
                    });
                if shown {
                    found.push((instance, volume, status));
                }
            }
        }
        if let Some(id) = ids
            .iter()
            .find(|id| !found.iter().any(|(_, volume, _)| volume.id == **id))
        {
            return Err(wrong(
                "InvalidVolume.NotFound",
                format!("The volume '{id}' does not exist."),
            ));
        }
        let (page, next) = self.page(params, found)?;
        let mut xml = Xml::new();
        xml.list("volumeSet", page, |xml, (instance, volume, status)| {
            xml.text("volumeId", &volume.id);
            xml.value("size", volume.gib);
            xml.text("availabilityZone", &instance.zone);
            xml.text("status", status);
            xml.text("createTime", &instance.launched);
            xml.list(
                "attachmentSet",
                Some(()).filter(|()| status == "in-use"),
                |xml, ()| {
                    xml.text("volumeId", &volume.id);
                    xml.text("instanceId", &instance.id);
                    xml.text("device", &volume.device);
                    xml.text("status", "attached");
                    xml.text("attachTime", &instance.launched);
                    xml.value("deleteOnTermination", volume.delete_on_termination);
                },
            );
            xml.tags(state.tags_of(&volume.id));
            xml.text("volumeType", &volume.kind);
            xml.value("encrypted", volume.encrypted);
        });
        xml.maybe("nextToken", next.as_deref());
        Ok(xml)
    }
}
