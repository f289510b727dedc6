//! Initial resources of the region, and resources of other owners.

use tokio::time::Instant;

use crate::ec2::groups::everywhere;
use crate::ec2::model::{
    Cidr, Instance, MetadataOptions, Peer, Route, RouteTable, Rule, SecurityGroup, State, Subnet,
    Tags, Volume, Vpc, new_id,
};
use crate::ec2::{World, catalogue};

/// CIDR block of the default VPC, and the offset of the subnet of each zone in it.
const NETWORK: Cidr = Cidr {
    base: 0xac1f_0000,
    bits: 16,
};
const SUBNETS: [u32; 3] = [0x1000, 0x2000, 0];

impl World {
    pub(crate) fn furnish(&self, state: &mut State) {
        let vpc = self.add_vpc(state, NETWORK, true, true, "default", &Tags::new());
        let number = state.vpcs.get(&vpc).map_or(0, |vpc| vpc.number);
        for ((index, zone), offset) in (0u8..).zip(self.zones()).zip(SUBNETS) {
            let id = new_id("subnet");
            let ipv6 = Some(format!("2a05:d014:{number:x}:{index:x}::/64"));
            let cidr = Cidr {
                base: NETWORK.base + offset,
                bits: 20,
            };
            let subnet = Subnet {
                is_default: true,
                public: true,
                ..Subnet::new(&vpc, &zone, cidr, ipv6)
            };
            self.made("subnet", &id, None, &Tags::new(), true);
            state.subnets.insert(id, subnet);
        }
        let gateway = new_id("igw");
        self.made("internet-gateway", &gateway, None, &Tags::new(), true);
        if let Some(table) = state.route_tables.values_mut().next() {
            table.routes.push(Route {
                destination: "0.0.0.0/0".into(),
                target: gateway.clone(),
            });
        }
        state.gateways.insert(gateway, Some(vpc));
        for name in &self.settings.key_pairs {
            let key = Self::key_pair("ed25519", name.as_bytes(), self.timestamp(Instant::now()));
            self.made("key-pair", &key.id, None, &Tags::new(), true);
            state.keys.insert(name.clone(), key);
        }
    }

    /// Adds a VPC with its default security group and its main route table.
    pub(crate) fn add_vpc(
        &self,
        state: &mut State,
        cidr: Cidr,
        is_default: bool,
        ipv6: bool,
        tenancy: &str,
        tags: &Tags,
    ) -> String {
        let id = new_id("vpc");
        let table = new_id("rtb");
        state.networks += 1;
        let number = state.networks;
        let vpc = Vpc {
            cidr,
            ipv6: ipv6.then(|| format!("2a05:d014:{number:x}::/56")),
            is_default,
            dns_support: true,
            dns_hostnames: is_default,
            tenancy: tenancy.to_owned(),
            route_table: table.clone(),
            number,
        };
        let local = |destination| Route {
            destination,
            target: "local".into(),
        };
        let blocks = std::iter::once(cidr.to_string()).chain(vpc.ipv6.clone());
        let routes = blocks.map(local).collect();
        let association = new_id("rtbassoc");
        state.route_tables.insert(
            table,
            RouteTable {
                vpc: id.clone(),
                association,
                routes,
            },
        );
        let group = new_id("sg");
        let own = Rule {
            egress: false,
            protocol: "-1".into(),
            ports: None,
            peer: Peer::Group(group.clone()),
            description: None,
            id: new_id("sgr"),
        };
        let rules = std::iter::once(own).chain(everywhere(ipv6)).collect();
        let description = "default VPC security group".to_owned();
        state.groups.insert(
            group,
            SecurityGroup {
                name: "default".into(),
                description,
                vpc: id.clone(),
                rules,
            },
        );
        state.tags.insert(id.clone(), tags.clone());
        self.made("vpc", &id, None, tags, is_default);
        state.vpcs.insert(id.clone(), vpc);
        id
    }

    /// Adds instances of another owner in the default VPC that have been running for a long time.
    pub(crate) fn add_foreign(&self, state: &mut State, n: usize) {
        let now = Instant::now();
        let launched = self.timestamp(now);
        let Some(kind) = catalogue::instance_type("t3.micro") else {
            return;
        };
        let subnets: Vec<String> = state
            .subnets
            .iter()
            .filter(|(_, subnet)| subnet.is_default)
            .map(|(id, _)| id.clone())
            .collect();
        for index in 0..n {
            let Some(id) = subnets.get(index % subnets.len().max(1)) else {
                return;
            };
            let Some(subnet) = state.subnets.get_mut(id) else {
                return;
            };
            let Some(private) = subnet.take() else {
                continue;
            };
            let tags = Tags::from([
                ("Name".to_owned(), format!("foreign-{index}")),
                ("team".to_owned(), "somebody-else".to_owned()),
            ]);
            let (vpc, zone) = (subnet.vpc.clone(), subnet.zone.clone());
            let volume = Volume {
                id: new_id("vol"),
                device: "/dev/xvda".into(),
                gib: 8,
                kind: "gp3".into(),
                delete_on_termination: true,
                encrypted: false,
            };
            let instance = Instance {
                id: new_id("i"),
                reservation: new_id("r"),
                index: 0,
                image: "ami-0a1b2c3d4e5f60002".into(),
                kind,
                zone,
                subnet: id.clone(),
                groups: state.default_group(&vpc).into_iter().collect(),
                vpc,
                key_name: None,
                private,
                public: None,
                elastic: None,
                ipv6: Vec::new(),
                interface: new_id("eni"),
                volumes: vec![volume],
                tags,
                token: None,
                user_data: None,
                metadata: MetadataOptions {
                    tokens: "optional".into(),
                    hops: 1,
                    endpoint: "enabled".into(),
                    tags: "disabled".into(),
                },
                spot: false,
                protected: false,
                stop_protected: false,
                profile: None,
                tenancy: "default".into(),
                launched: launched.clone(),
                created: now.checked_sub(self.delays.visibility).unwrap_or(now),
                starts: now,
                stops: None,
                terminates: None,
                reason: None,
                half_tagged: false,
                impaired: false,
                event: None,
                drawn: None,
            };
            self.made("instance", &instance.id, None, &instance.tags, true);
            state.add(instance);
        }
    }
}

impl Subnet {
    pub(crate) fn new(vpc: &str, zone: &str, cidr: Cidr, ipv6: Option<String>) -> Subnet {
        Subnet {
            vpc: vpc.to_owned(),
            zone: zone.to_owned(),
            cidr,
            ipv6,
            is_default: false,
            public: false,
            ipv6_on_creation: false,
            next: 0,
            free: std::collections::BTreeSet::new(),
            used: 0,
            next_ipv6: 0,
        }
    }

    /// Allocates IPv6 addresses from the subnet's block.
    pub(crate) fn addresses6(&mut self, n: usize) -> Vec<String> {
        let Some(prefix) = self
            .ipv6
            .as_ref()
            .and_then(|block| block.split_once("::"))
            .map(|(prefix, _)| prefix)
        else {
            return Vec::new();
        };
        let addresses = (0..n).map(|_| {
            self.next_ipv6 += 1;
            format!(
                "{prefix}:{:x}:{:x}:0:{:x}",
                0xd00,
                self.next_ipv6 >> 16,
                self.next_ipv6 & 0xffff
            )
        });
        addresses.collect()
    }
}
