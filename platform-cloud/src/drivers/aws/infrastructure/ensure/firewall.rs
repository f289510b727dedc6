//! The security group and its rules.

use std::collections::BTreeMap;

use aws_sdk_ec2::types::{IpPermission, ResourceType};
use drover_core::Result;

use super::{Work, already, retag};
use crate::drivers::aws::{
    infrastructure::{
        Kind, Network, SUBNETS, Source,
        rules::{Rule, missing},
        seen::{Group, Thing},
        wanted::to_tag,
    },
    launch::tagged,
};

const CLUSTER_GROUP: &str = "cluster";

impl Work<'_> {
    pub(super) async fn group(
        &mut self,
        network: &Network,
        vpc: &str,
        given: &BTreeMap<String, String>,
    ) -> Result<()> {
        if self.seen.groups.is_empty() {
            if !self.begin(Kind::Firewall, CLUSTER_GROUP) {
                return Ok(());
            }
            let mut tags = self.tags(Kind::Firewall, CLUSTER_GROUP);
            if matches!(network.source, Source::Given { .. }) {
                tags.insert(SUBNETS.to_owned(), to_tag(given));
            }
            // The name is unique within a network, which also guards against creating a second group.
            let name = format!(
                "drover-{}-{}",
                self.owner.cluster_id,
                short(&self.owner.owner)
            );
            let outcome = self
                .aws
                .api
                .send("CreateSecurityGroup", |ec2| {
                    ec2.create_security_group()
                        .group_name(&name)
                        .description(format!("Nodes of cluster {}", self.owner.cluster_id))
                        .vpc_id(vpc)
                        .tag_specifications(tagged(ResourceType::SecurityGroup, &tags))
                        .send()
                })
                .await
                .map(|answer| answer.group_id);
            let id = self.end(Kind::Firewall, CLUSTER_GROUP, outcome)?;
            self.seen.groups.push(Group {
                thing: Thing {
                    id,
                    tags,
                    pending: false,
                },
                vpc: vpc.to_owned(),
                rules: vec![Rule::everywhere()],
            });
        }
        if let (Source::Given { .. }, Some(group)) = (&network.source, self.seen.groups.first_mut())
        {
            let wanted = BTreeMap::from([(SUBNETS.to_owned(), to_tag(given))]);
            retag(self.aws, &mut group.thing, wanted).await?;
        }
        self.rules().await
    }

    async fn rules(&mut self) -> Result<()> {
        let Some(group) = self.seen.groups.first_mut() else {
            return Ok(());
        };
        let id = group.thing.id.clone();
        let mut wanted = self.wanted.rules.clone();
        wanted.push(Rule::within(false, &id));
        if !wanted.iter().any(|rule| rule.same(&Rule::everywhere())) {
            wanted.push(Rule::within(true, &id));
        }
        let api = &self.aws.api;
        for egress in [false, true] {
            let add = permissions(missing(&wanted, &group.rules, egress));
            let remove = permissions(missing(&group.rules, &wanted, egress));
            if let Some(add) = add {
                let outcome = if egress {
                    api.send("AuthorizeSecurityGroupEgress", |ec2| {
                        ec2.authorize_security_group_egress()
                            .group_id(&id)
                            .set_ip_permissions(Some(add.clone()))
                            .send()
                    })
                    .await
                    .map(drop)
                } else {
                    api.send("AuthorizeSecurityGroupIngress", |ec2| {
                        ec2.authorize_security_group_ingress()
                            .group_id(&id)
                            .set_ip_permissions(Some(add.clone()))
                            .send()
                    })
                    .await
                    .map(drop)
                };
                already(outcome, "InvalidPermission.Duplicate")?;
            }
            if let Some(remove) = remove {
                let outcome = if egress {
                    api.send("RevokeSecurityGroupEgress", |ec2| {
                        ec2.revoke_security_group_egress()
                            .group_id(&id)
                            .set_ip_permissions(Some(remove.clone()))
                            .send()
                    })
                    .await
                    .map(drop)
                } else {
                    api.send("RevokeSecurityGroupIngress", |ec2| {
                        ec2.revoke_security_group_ingress()
                            .group_id(&id)
                            .set_ip_permissions(Some(remove.clone()))
                            .send()
                    })
                    .await
                    .map(drop)
                };
                already(outcome, "InvalidPermission.NotFound")?;
            }
        }
        group.rules = wanted;
        Ok(())
    }
}

fn short(owner: &str) -> &str {
    owner.get(..8).unwrap_or(owner)
}

fn permissions(rules: Vec<&Rule>) -> Option<Vec<IpPermission>> {
    (!rules.is_empty()).then(|| rules.into_iter().map(Rule::permission).collect())
}
