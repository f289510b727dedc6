//! Tags of all resources.

use tokio::time::Instant;

use crate::ec2::World;
use crate::ec2::asked::is_hex;
use crate::ec2::model::State;
use crate::ec2::params::{Filters, Outcome, Params, Wrong, wrong};
use crate::ec2::xml::Xml;

/// Id prefix, resource type of the API, and prefix of its error codes.
const KINDS: &[(&str, &str, &str)] = &[
    ("i", "instance", "InvalidInstanceID"),
    ("vol", "volume", "InvalidVolume"),
    ("vpc", "vpc", "InvalidVpcID"),
    ("subnet", "subnet", "InvalidSubnetID"),
    ("sg", "security-group", "InvalidGroup"),
    ("igw", "internet-gateway", "InvalidInternetGatewayID"),
    ("rtb", "route-table", "InvalidRouteTableID"),
    ("eipalloc", "elastic-ip", "InvalidAllocationID"),
    ("key", "key-pair", "InvalidKeyPair"),
    ("lt", "launch-template", "InvalidLaunchTemplateId"),
];

fn kind(id: &str) -> Option<&'static (&'static str, &'static str, &'static str)> {
    let (prefix, digits) = id.rsplit_once('-')?;
    KINDS
        .iter()
        .find(|(known, _, _)| *known == prefix && is_hex(digits))
}

fn no_resource(id: &str) -> Wrong {
    match kind(id) {
        Some((_, _, error)) => wrong(
            &format!("{error}.NotFound"),
            format!("The ID '{id}' does not exist"),
        ),
        None => wrong("InvalidID", format!("The ID '{id}' is not valid")),
    }
}

impl World {
    /// Returns the resources of a call. Fails unless all of them exist.
    fn tagged_resources(
        &self,
        state: &State,
        params: &Params,
        now: Instant,
    ) -> Outcome<Vec<String>> {
        let ids = params.list("ResourceId");
        if ids.is_empty() {
            return Err(wrong(
                "MissingParameter",
                "The request must contain the parameter resourceIdSet",
            ));
        }
        for id in &ids {
            let there = match kind(id).map(|(prefix, _, _)| *prefix) {
                Some("i") => {
                    self.numbers(state, std::slice::from_ref(id), now)?;
                    true
                }
                Some("vol") => state.tags.contains_key(id),
                Some("vpc") => state.vpcs.contains_key(id),
                Some("subnet") => state.subnets.contains_key(id),
                Some("sg") => state.groups.contains_key(id),
                Some("igw") => state.gateways.contains_key(id),
                Some("rtb") => state.route_tables.contains_key(id),
                Some("eipalloc") => state.addresses.contains_key(id),
                Some("key") => state.keys.values().any(|key| key.id == *id),
                Some("lt") => state.templates.contains_key(id),
                _ => false,
            };
            if !there {
                return Err(no_resource(id));
            }
        }
        Ok(ids)
    }

    pub(crate) fn create_tags(
        &self,
        state: &mut State,
        params: &Params,
        now: Instant,
    ) -> Outcome<Xml> {
        let ids = self.tagged_resources(state, params, now)?;
        let tags = params.tags("Tag")?;
        if tags.is_empty() {
            return Err(wrong(
                "MissingParameter",
                "The request must contain the parameter tagSet",
            ));
        }
        for id in &ids {
            let old = state.tags_of(id);
            if old.len() + tags.keys().filter(|key| !old.contains_key(*key)).count() > 50 {
                let message = "The maximum number of Tags for a resource has been reached.";
                return Err(wrong("TagLimitExceeded", message));
            }
        }
        for id in &ids {
            match state.by_id.get(id).copied() {
                Some(number) => {
                    for (key, value) in &tags {
                        state.tag_instance(number, key, Some(value));
                    }
                }
                None => state
                    .tags
                    .entry(id.clone())
                    .or_default()
                    .extend(tags.clone()),
            }
        }
        Ok(Xml::done())
    }

    /// A tag given with a value is only deleted if it has that value; if no tags are given, all are deleted.
    pub(crate) fn delete_tags(
        &self,
        state: &mut State,
        params: &Params,
        now: Instant,
    ) -> Outcome<Xml> {
        let ids = self.tagged_resources(state, params, now)?;
        let asked = params.items("Tag");
        for id in &ids {
            let goes = |key: &str, value: &str| {
                asked.is_empty()
                    || asked.iter().any(|tag| {
                        tag.get("Key") == Some(key)
                            && tag.get("Value").is_none_or(|wanted| wanted == value)
                    })
            };
            let gone: Vec<String> = state
                .tags_of(id)
                .iter()
                .filter(|(key, value)| goes(key, value))
                .map(|(key, _)| key.clone())
                .collect();
            match state.by_id.get(id).copied() {
                Some(number) => {
                    for key in gone {
                        state.tag_instance(number, &key, None);
                    }
                }
                None => {
                    if let Some(tags) = state.tags.get_mut(id) {
                        tags.retain(|key, _| !gone.contains(key));
                    }
                }
            }
        }
        Ok(Xml::done())
    }

    pub(crate) fn describe_tags(
        &self,
        state: &State,
        params: &Params,
        now: Instant,
    ) -> Outcome<Xml> {
        let filters = Filters::new(params, &["key", "resource-id", "resource-type", "value"])?;
        let instances = state
            .instances
            .values()
            .filter(|instance| instance.is_visible(now, &self.delays));
        let mut all: Vec<(&str, &str, &str, &str)> = Vec::new();
        let resources = instances
            .map(|instance| (&instance.id, &instance.tags))
            .chain(state.tags.iter())
            .filter_map(|(id, tags)| Some((id.as_str(), tags, kind(id)?.1)));
        for (id, tags, kind) in resources {
            for (key, value) in tags {
                let own = std::iter::once((key.clone(), value.clone())).collect();
                let holds = filters.hold(&own, |name| match name {
                    "key" => vec![key.clone()],
                    "value" => vec![value.clone()],
                    "resource-id" => vec![id.to_owned()],
                    _ => vec![kind.to_owned()],
                });
                if holds {
                    all.push((id, kind, key, value));
                }
            }
        }
        all.sort_unstable();
        let (page, next) = self.page(params, all)?;
        let mut xml = Xml::new();
        xml.list("tagSet", page, |xml, (id, kind, key, value)| {
            xml.text("resourceId", id);
            xml.text("resourceType", kind);
            xml.text("key", key);
            xml.text("value", value);
        });
        xml.maybe("nextToken", next.as_deref());
        Ok(xml)
    }
}
