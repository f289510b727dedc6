//! Status checks and scheduled events of instances, and tags in their metadata.

use std::time::Duration;

use tokio::time::Instant;

use crate::ec2::asked;
use crate::ec2::catalogue::Image;
use crate::ec2::model::{Instance, MetadataOptions, Phase, State};
use crate::ec2::params::{Outcome, Params, wrong};
use crate::ec2::xml::Xml;
use crate::ec2::{World, lifecycle};

/// Maximum number of instances that a call may name.
const NAMED: usize = 100;

impl World {
    /// Without ids, all running instances in pages; `IncludeAllInstances` adds the others
    /// (<https://docs.aws.amazon.com/AWSEC2/latest/APIReference/API_DescribeInstanceStatus.html>).
    pub(crate) fn describe_instance_status(
        &self,
        state: &State,
        params: &Params,
        now: Instant,
    ) -> Outcome<Xml> {
        let ids = params.list("InstanceId");
        if ids.len() > NAMED {
            let message = format!("at most {NAMED} instances may be named");
            return Err(wrong("InvalidParameterValue", message));
        }
        if !ids.is_empty() && params.has("MaxResults") {
            let message = "The parameter instancesSet cannot be used with the parameter maxResults";
            return Err(wrong("InvalidParameterCombination", message));
        }
        let all = params.bool("IncludeAllInstances")? == Some(true);
        let numbers = if ids.is_empty() {
            state.instances.keys().copied().collect()
        } else {
            self.numbers(state, &ids, now)?
        };
        let shown = numbers
            .iter()
            .filter_map(|number| state.instances.get(number))
            .filter(|instance| instance.is_visible(now, &self.delays))
            .filter(|instance| all || instance.phase(now, &self.delays) == Phase::Running)
            .collect();
        let (page, next) = self.page(params, shown)?;
        let mut xml = Xml::new();
        xml.list("instanceStatusSet", page, |xml, instance: &Instance| {
            self.status(xml, instance, now);
        });
        xml.maybe("nextToken", next.as_deref());
        Ok(xml)
    }

    fn status(&self, xml: &mut Xml, instance: &Instance, now: Instant) {
        let phase = instance.phase(now, &self.delays);
        xml.text("instanceId", &instance.id);
        xml.text("availabilityZone", &instance.zone);
        xml.nest("instanceState", |xml| lifecycle::phase(xml, phase));
        let checking = now < instance.starts + self.settings.checks_delay;
        let (status, reachability) = match phase {
            Phase::Running if checking => ("initializing", "initializing"),
            Phase::Running if instance.impaired => ("impaired", "failed"),
            Phase::Running => ("ok", "passed"),
            _ => ("not-applicable", ""),
        };
        for kind in ["systemStatus", "instanceStatus"] {
            xml.nest(kind, |xml| {
                xml.text("status", status);
                let details = (!reachability.is_empty()).then_some(());
                xml.list("details", details, |xml, ()| {
                    xml.text("name", "reachability");
                    xml.text("status", reachability);
                });
            });
        }
        xml.list("eventsSet", &instance.event, |xml, (code, begins)| {
            xml.text("code", code);
            xml.text(
                "description",
                "The instance is running on degraded hardware",
            );
            xml.text("notBefore", &self.timestamp(*begins));
            xml.text(
                "notAfter",
                &self.timestamp(*begins + Duration::from_secs(3600)),
            );
        });
    }

    /// Reads the metadata options of a new instance. Tags in the metadata restrict the keys of tags
    /// (<https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/work-with-tags-in-IMDS.html>: no spaces, no `/`).
    pub(crate) fn metadata(&self, params: &Params, image: &Image) -> Outcome<MetadataOptions> {
        let options = asked::metadata(params, image, &self.settings.metadata_tags)?;
        if options.tags == "enabled" {
            let tags = params.tag_specifications(&[
                "instance",
                "volume",
                "network-interface",
                "spot-instances-request",
            ])?;
            let keys = tags.get("instance").into_iter().flatten();
            if let Some((key, _)) = keys.into_iter().find(|(key, _)| key.contains(['/', ' '])) {
                let message = format!(
                    "'{key}' is not a valid tag key. Tag keys must match pattern ([0-9a-zA-Z\\-_+=,.@:]{{1,255}}), and \
                     must not be a reserved name ('.', '..', '_index')"
                );
                return Err(wrong("InvalidParameterValue", message));
            }
        }
        Ok(options)
    }
}
