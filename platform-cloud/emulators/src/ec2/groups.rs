//! Security groups and their rules.

use tokio::time::Instant;

use crate::ec2::asked::is_hex;
use crate::ec2::model::{Cidr, Peer, Phase, Rule, SecurityGroup, State, new_id};
use crate::ec2::network::{depends, find_vpc};
use crate::ec2::params::{Filters, Outcome, Params, Wrong, invalid_value, wrong};
use crate::ec2::xml::Xml;
use crate::ec2::{ACCOUNT, World};

impl World {
    pub(crate) fn create_security_group(&self, state: &mut State, params: &Params) -> Outcome<Xml> {
        let name = params.need("GroupName")?.to_owned();
        let description = params.need("GroupDescription")?.to_owned();
        let tags = params.tags_for("security-group")?;
        let vpc = match params.get("VpcId") {
            Some(vpc) => vpc.to_owned(),
            None => state
                .default_vpc()
                .ok_or_else(|| wrong("VPCIdNotSpecified", "No default VPC for this user"))?,
        };
        find_vpc(state, &vpc)?;
        if name.starts_with("sg-") {
            return Err(invalid_value(
                "groupName",
                &name,
                "It may not begin with sg-.",
            ));
        }
        if name == "default" {
            return Err(wrong(
                "InvalidParameterValue",
                "Cannot use reserved security group name: default",
            ));
        }
        if state
            .groups
            .values()
            .any(|group| group.vpc == vpc && group.name == name)
        {
            let message = format!("The security group '{name}' already exists for VPC '{vpc}'");
            return Err(wrong("InvalidGroup.Duplicate", message));
        }
        let id = new_id("sg");
        self.made("security-group", &id, None, &tags, false);
        let rules = everywhere(find_vpc(state, &vpc)?.ipv6.is_some());
        state.groups.insert(
            id.clone(),
            SecurityGroup {
                name,
                description,
                vpc,
                rules,
            },
        );
        state.tags.insert(id.clone(), tags);
        let mut xml = Xml::done();
        xml.text("groupId", &id);
        xml.tags(state.tags_of(&id));
        xml.text("securityGroupArn", &self.group_arn(&id));
        Ok(xml)
    }

    fn group_arn(&self, id: &str) -> String {
        format!(
            "arn:aws:ec2:{}:{ACCOUNT}:security-group/{id}",
            self.settings.region
        )
    }

    pub(crate) fn delete_security_group(
        &self,
        state: &mut State,
        params: &Params,
        now: Instant,
    ) -> Outcome<Xml> {
        let id = group_id(state, params)?;
        let group = state.groups.get(&id).ok_or_else(|| no_group(&id))?;
        if group.name == "default" {
            let message = format!(
                "the specified group: \"{id}\" name: \"default\" cannot be deleted by a user"
            );
            return Err(wrong("CannotDelete", message));
        }
        let in_use = state.instances.values().any(|instance| {
            instance.groups.contains(&id) && instance.phase(now, &self.delays) != Phase::Terminated
        });
        let peer = Peer::Group(id.clone());
        let mut others = state.groups.iter().filter(|(other, _)| **other != id);
        if in_use || others.any(|(_, group)| group.rules.iter().any(|rule| rule.peer == peer)) {
            return Err(depends(&format!("resource {id} has a dependent object")));
        }
        state.groups.remove(&id);
        state.tags.remove(&id);
        self.ledger.gone(&id);
        let mut xml = Xml::done();
        xml.text("groupId", &id);
        Ok(xml)
    }

    pub(crate) fn describe_security_groups(&self, state: &State, params: &Params) -> Outcome<Xml> {
        let filters = Filters::new(
            params,
            &[
                "description",
                "group-id",
                "group-name",
                "owner-id",
                "vpc-id",
            ],
        )?;
        let (ids, names) = (params.list("GroupId"), params.list("GroupName"));
        if let Some(id) = ids.iter().find(|id| !state.groups.contains_key(*id)) {
            return Err(no_group(id));
        }
        if let Some(name) = names
            .iter()
            .find(|name| !state.groups.values().any(|group| group.name == **name))
        {
            return Err(no_group(name));
        }
        let shown = state.groups.iter().filter(|(id, group)| {
            (ids.is_empty() && names.is_empty() || ids.contains(id) || names.contains(&group.name))
                && filters.hold(state.tags_of(id), |name| match name {
                    "description" => vec![group.description.clone()],
                    "group-id" => vec![(*id).clone()],
                    "group-name" => vec![group.name.clone()],
                    "owner-id" => vec![ACCOUNT.to_owned()],
                    _ => vec![group.vpc.clone()],
                })
        });
        let (page, next) = self.page(params, shown.collect())?;
        let mut xml = Xml::new();
        xml.list("securityGroupInfo", page, |xml, (id, group)| {
            xml.text("groupId", id);
            xml.text("groupName", &group.name);
            xml.text("groupDescription", &group.description);
            xml.text("ownerId", ACCOUNT);
            xml.text("vpcId", &group.vpc);
            xml.text("securityGroupArn", &self.group_arn(id));
            draw_rules(
                xml,
                "ipPermissions",
                group.rules.iter().filter(|rule| !rule.egress),
            );
            draw_rules(
                xml,
                "ipPermissionsEgress",
                group.rules.iter().filter(|rule| rule.egress),
            );
            xml.tags(state.tags_of(id));
        });
        xml.maybe("nextToken", next.as_deref());
        Ok(xml)
    }

    /// Adds either all rules of a call or none.
    pub(crate) fn authorize(
        &self,
        state: &mut State,
        params: &Params,
        egress: bool,
    ) -> Outcome<Xml> {
        let id = group_id(state, params)?;
        let rules = rules(state, params, egress)?;
        let group = state.groups.get_mut(&id).ok_or_else(|| no_group(&id))?;
        for rule in &rules {
            if group.rules.iter().any(|known| known.same(rule)) {
                let peer = peer(&rule.peer);
                let message = format!(
                    "the specified rule \"peer: {peer}, {}, ALLOW\" already exists",
                    ports(rule)
                );
                return Err(wrong("InvalidPermission.Duplicate", message));
            }
        }
        group.rules.extend(rules.iter().cloned());
        let mut xml = Xml::done();
        xml.list("securityGroupRuleSet", &rules, |xml, rule| {
            xml.text("securityGroupRuleId", &rule.id);
            xml.text("groupId", &id);
            xml.text("groupOwnerId", ACCOUNT);
            xml.value("isEgress", rule.egress);
            xml.text("ipProtocol", &rule.protocol);
            let (from, to) = rule.ports.unwrap_or((-1, -1));
            xml.value("fromPort", from);
            xml.value("toPort", to);
            match &rule.peer {
                Peer::V4(block) => xml.text("cidrIpv4", block),
                Peer::V6(block) => xml.text("cidrIpv6", block),
                Peer::Group(id) => xml.nest("referencedGroupInfo", |xml| {
                    xml.text("groupId", id);
                    xml.text("userId", ACCOUNT);
                }),
            }
            xml.maybe("description", rule.description.as_deref());
        });
        Ok(xml)
    }

    pub(crate) fn revoke(&self, state: &mut State, params: &Params, egress: bool) -> Outcome<Xml> {
        let id = group_id(state, params)?;
        let by_id = params.list("SecurityGroupRuleId");
        let rules = if by_id.is_empty() {
            rules(state, params, egress)?
        } else {
            Vec::new()
        };
        let group = state.groups.get_mut(&id).ok_or_else(|| no_group(&id))?;
        let known = |rule: &Rule| group.rules.iter().any(|known| known.same(rule));
        let known_id = |id: &String| {
            group
                .rules
                .iter()
                .any(|rule| rule.id == *id && rule.egress == egress)
        };
        if !rules.iter().all(known) {
            let message = "The specified rule does not exist in this security group.";
            return Err(wrong("InvalidPermission.NotFound", message));
        }
        if let Some(id) = by_id.iter().find(|id| !known_id(id)) {
            let message = format!("The security group rule ID '{id}' does not exist");
            return Err(wrong("InvalidSecurityGroupRuleId.NotFound", message));
        }
        group
            .rules
            .retain(|rule| !by_id.contains(&rule.id) && !rules.iter().any(|gone| gone.same(rule)));
        Ok(Xml::done())
    }
}

/// Default egress rules of a new group: all traffic, including IPv6 if the VPC has it.
pub(crate) fn everywhere(ipv6: bool) -> Vec<Rule> {
    let peers = [
        Some(Peer::V4("0.0.0.0/0".into())),
        ipv6.then(|| Peer::V6("::/0".into())),
    ];
    let rule = |peer| Rule {
        egress: true,
        protocol: "-1".into(),
        ports: None,
        peer,
        description: None,
        id: new_id("sgr"),
    };
    peers.into_iter().flatten().map(rule).collect()
}

/// Resolves the group of a call by its id, or by its name in the default VPC.
fn group_id(state: &State, params: &Params) -> Outcome<String> {
    if let Some(id) = params.get("GroupId") {
        if !id.strip_prefix("sg-").is_some_and(is_hex) {
            return Err(wrong(
                "InvalidGroupId.Malformed",
                format!("Invalid id: \"{id}\" (expecting \"sg-...\")"),
            ));
        }
        return if state.groups.contains_key(id) {
            Ok(id.to_owned())
        } else {
            Err(no_group(id))
        };
    }
    let name = params.need("GroupName")?;
    let vpc = state.default_vpc();
    let found = state
        .groups
        .iter()
        .find(|(_, group)| group.name == name && Some(&group.vpc) == vpc.as_ref());
    found
        .map(|(id, _)| id.clone())
        .ok_or_else(|| no_group(name))
}

/// Expands the rules of a call: one for each protocol, port range and peer.
fn rules(state: &State, params: &Params, egress: bool) -> Outcome<Vec<Rule>> {
    let mut items = params.items("IpPermissions");
    if items.is_empty() && params.has("IpProtocol") {
        // The legacy form: a single rule in the call's own parameters.
        let mut pairs: Vec<(String, String)> = params
            .iter()
            .map(|(key, value)| (key.clone(), value.clone()))
            .collect();
        if let Some(block) = params.get("CidrIp") {
            pairs.push(("IpRanges.1.CidrIp".to_owned(), block.to_owned()));
        }
        items.push(Params::new(pairs));
    }
    if items.is_empty() {
        return Err(wrong(
            "MissingParameter",
            "The request must contain the parameter ipPermissions",
        ));
    }
    let mut rules: Vec<Rule> = Vec::new();
    for item in items {
        let protocol = protocol(item.need("IpProtocol")?)?;
        let ports = match (item.int("FromPort")?, item.int("ToPort")?) {
            _ if protocol == "-1" => None,
            (Some(from), Some(to))
                if (-1..=65535).contains(&from) && (from..=65535).contains(&to) || to == -1 =>
            {
                Some((from, to))
            }
            (Some(from), Some(to)) => {
                return Err(wrong(
                    "InvalidParameterValue",
                    format!("Invalid TCP/UDP port range ({from}:{to})"),
                ));
            }
            _ => {
                let message = "Invalid value 'Must specify both from and to ports with TCP/UDP.' for portRange.";
                return Err(wrong("InvalidParameterValue", message));
            }
        };
        for (peer, description) in peers(state, &item)? {
            let rule = Rule {
                egress,
                protocol: protocol.clone(),
                ports,
                peer,
                description,
                id: new_id("sgr"),
            };
            if rules.iter().any(|known| known.same(&rule)) {
                let message = "The same permission must not appear multiple times";
                return Err(wrong("InvalidParameterValue", message));
            }
            rules.push(rule);
        }
    }
    if rules.is_empty() {
        return Err(wrong(
            "MissingParameter",
            "The request must contain a source or a destination of the rule",
        ));
    }
    Ok(rules)
}

fn protocol(text: &str) -> Outcome<String> {
    Ok(match text {
        "6" => "tcp".to_owned(),
        "17" => "udp".to_owned(),
        "1" => "icmp".to_owned(),
        "all" => "-1".to_owned(),
        "tcp" | "udp" | "icmp" | "icmpv6" | "-1" => text.to_owned(),
        number if number.parse::<u8>().is_ok() => number.to_owned(),
        other => {
            let message = format!("Invalid value '{other}' for IP protocol. Unknown protocol.");
            return Err(wrong("InvalidParameterValue", message));
        }
    })
}

fn peers(state: &State, item: &Params) -> Outcome<Vec<(Peer, Option<String>)>> {
    let mut peers = Vec::new();
    let said = |part: &Params| part.get("Description").map(str::to_owned);
    for range in item.items("IpRanges") {
        let text = range.need("CidrIp")?;
        let malformed = || {
            wrong(
                "InvalidParameterValue",
                format!("CIDR block {text} is malformed"),
            )
        };
        let cidr = Cidr::parse(text).ok_or_else(malformed)?;
        peers.push((Peer::V4(cidr.to_string()), said(&range)));
    }
    for range in item.items("Ipv6Ranges") {
        peers.push((Peer::V6(range.need("CidrIpv6")?.to_owned()), said(&range)));
    }
    for group in item.items("Groups") {
        let id = group.need("GroupId")?;
        if !state.groups.contains_key(id) {
            return Err(no_group(id));
        }
        peers.push((Peer::Group(id.to_owned()), said(&group)));
    }
    Ok(peers)
}

/// Groups rules with the same protocol and ports into one permission.
fn draw_rules<'a>(xml: &mut Xml, name: &str, rules: impl Iterator<Item = &'a Rule>) {
    let mut permissions: Vec<Vec<&Rule>> = Vec::new();
    for rule in rules {
        let same = |known: &&mut Vec<&Rule>| {
            known
                .first()
                .is_some_and(|known| known.protocol == rule.protocol && known.ports == rule.ports)
        };
        match permissions.iter_mut().find(same) {
            Some(known) => known.push(rule),
            None => permissions.push(vec![rule]),
        }
    }
    xml.list(name, &permissions, |xml, rules| {
        let Some(first) = rules.first() else { return };
        xml.text("ipProtocol", &first.protocol);
        if let Some((from, to)) = first.ports {
            xml.value("fromPort", from);
            xml.value("toPort", to);
        }
        let said =
            |xml: &mut Xml, rule: &Rule| xml.maybe("description", rule.description.as_deref());
        xml.list(
            "groups",
            rules
                .iter()
                .filter(|rule| matches!(rule.peer, Peer::Group(_))),
            |xml, rule| {
                xml.text("userId", ACCOUNT);
                xml.text("groupId", peer(&rule.peer));
                said(xml, rule);
            },
        );
        xml.list(
            "ipRanges",
            rules.iter().filter(|rule| matches!(rule.peer, Peer::V4(_))),
            |xml, rule| {
                xml.text("cidrIp", peer(&rule.peer));
                said(xml, rule);
            },
        );
        xml.list(
            "ipv6Ranges",
            rules.iter().filter(|rule| matches!(rule.peer, Peer::V6(_))),
            |xml, rule| {
                xml.text("cidrIpv6", peer(&rule.peer));
                said(xml, rule);
            },
        );
        xml.nest("prefixListIds", |_| {});
    });
}

fn peer(peer: &Peer) -> &str {
    match peer {
        Peer::V4(text) | Peer::V6(text) | Peer::Group(text) => text,
    }
}

fn ports(rule: &Rule) -> String {
    let Some((from, to)) = rule.ports else {
        return "ALL".to_owned();
    };
    format!(
        "{}, from port: {from}, to port: {to}",
        rule.protocol.to_uppercase()
    )
}

pub(crate) fn no_group(id: &str) -> Wrong {
    wrong(
        "InvalidGroup.NotFound",
        format!("The security group '{id}' does not exist"),
    )
}
