//! Amazon EC2: the query protocol of `2016-11-15`, in one region, and `GetCallerIdentity` of STS on the same endpoint.

mod account;
mod addresses;
mod asked;
mod attributes;
mod buckets;
mod catalogue;
mod describe;
mod furnish;
mod gateways;
mod groups;
mod keys;
mod lifecycle;
mod model;
mod network;
mod offers;
mod params;
mod run;
mod status;
mod tags;
mod templates;
mod xml;

use std::collections::BTreeMap;
use std::io;
use std::net::Ipv4Addr;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;
use uuid::Uuid;

use crate::control::ANY;
use crate::ec2::model::{Delays, State};
use crate::ec2::params::{Outcome, Params, Wrong, wrong};
use crate::ec2::xml::Xml;
use crate::server::{Answer, Api, Call, Emulator, Refusal};
use crate::world::{Clock, Hand, Ledger, Machine, Made, Settings};

/// Account of all access keys that [`Ec2Settings::accounts`] does not name.
pub const ACCOUNT: &str = "123456789012";
/// API version.
const VERSION: &str = "2016-11-15";

/// Settings of an emulated region.
#[derive(Clone, Debug)]
pub struct Ec2Settings {
    /// Common settings. `quota` counts instances; `capacity` counts on-demand instances.
    pub common: Settings,
    /// Region name; its zones end in a, b and c. Default: `eu-central-1`.
    pub region: String,
    /// Accepted access key ids. Empty, the default: all. Signatures are not checked.
    pub access_keys: Vec<String>,
    /// Accounts other than [`ACCOUNT`] by their access key ids. Each has resources of its own.
    pub accounts: BTreeMap<String, String>,
    /// Whether the calls of each action are limited as documented. Default: false.
    pub throttled: bool,
    /// How long the status checks of a new instance take. Default: 0.
    pub checks_delay: Duration,
    /// How long a terminated instance keeps all its tags: after that it loses half of them, and after twice as long all.
    /// `None`, the default: as long as it is listed
    /// (<https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/terminating-instances.html>: tags "are gradually
    /// disassociated from the instance").
    pub terminated_tagged: Option<Duration>,
    /// Whether the service-linked role of EC2 Spot exists, or may be created by the caller. Default: true.
    pub spot_role: bool,
    /// Default of the account for tags in the metadata of new instances: enabled or disabled. Default: disabled.
    pub metadata_tags: String,
    /// Operations that the account is not authorized for; [`ANY`] matches all.
    pub denied: Vec<String>,
    /// Names of the initial key pairs. Default: `default`.
    pub key_pairs: Vec<String>,
    /// Maximum number of spot instances per zone; unlimited for a zone that is not named.
    pub spot_capacity: BTreeMap<String, usize>,
    /// Spot price in dollars per hour; a lower maximum price is refused. Default: 0.0042.
    pub spot_price: f64,
    /// Maximum number of spot instances of the account; `None`: unlimited.
    pub spot_quota: Option<usize>,
    /// Maximum number of vCPUs of on-demand instances; `None`: unlimited.
    pub vcpu_quota: Option<u32>,
    /// Maximum number of Elastic IP addresses. Default: 5, as for a new account.
    pub address_quota: usize,
    /// Maximum number of VPCs. Default: 5.
    pub vpc_quota: usize,
    /// How long a terminated instance is still listed. Default: 1 h.
    pub terminated_shown: Duration,
    /// How long a client token is remembered. Default: 24 h.
    pub token_life: Duration,
}

impl Default for Ec2Settings {
    fn default() -> Ec2Settings {
        Ec2Settings {
            common: Settings::default(),
            region: "eu-central-1".into(),
            access_keys: Vec::new(),
            accounts: BTreeMap::new(),
            throttled: false,
            checks_delay: Duration::ZERO,
            terminated_tagged: None,
            spot_role: true,
            metadata_tags: "disabled".into(),
            denied: Vec::new(),
            key_pairs: vec!["default".into()],
            spot_capacity: BTreeMap::new(),
            spot_price: 0.0042,
            spot_quota: None,
            vcpu_quota: None,
            address_quota: 5,
            vpc_quota: 5,
            terminated_shown: Duration::from_secs(3600),
            token_life: Duration::from_secs(24 * 3600),
        }
    }
}

/// A running emulator of EC2.
pub type Ec2 = Emulator<World>;

impl Emulator<World> {
    /// Starts the emulator with a default VPC, one subnet in each zone, and images of Debian and Amazon Linux.
    pub async fn start(settings: Ec2Settings) -> io::Result<Ec2> {
        let common = settings.common.clone();
        let clock = Arc::new(Clock::default());
        let world = Arc::new(World::new(settings, clock.clone()));
        Emulator::serve(world, clock, &common).await
    }

    /// Adds running instances of another owner, spread over the zones.
    pub fn add_foreign(&self, n: usize) {
        let mut state = self.api().state.lock();
        self.api().add_foreign(&mut state, n);
    }

    /// Lets all credentials expire.
    pub fn expire_credentials(&self) {
        self.api().state.lock().expired = true;
    }

    /// Makes the credentials valid again.
    pub fn renew_credentials(&self) {
        self.api().state.lock().expired = false;
    }

    /// Lets each page of instances begin with the last one of the page before it, as where something moves between two
    /// reads.
    pub fn repeat_between_pages(&self) {
        self.api().state.lock().repeats = true;
    }

    /// Lets the status checks of an instance fail, or pass again. Returns false if there is no such instance.
    pub fn impair(&self, id: &str, impaired: bool) -> bool {
        self.api()
            .change(id, |instance| instance.impaired = impaired)
    }

    /// Schedules an event for an instance (`instance-retirement`), to begin after this time. Returns false if there is
    /// no such instance.
    pub fn schedule_event(&self, id: &str, code: &str, after: Duration) -> bool {
        let begins = Instant::now() + after;
        self.api().change(id, |instance| {
            instance.event = Some((code.to_owned(), begins));
        })
    }

    /// Returns the decoded user data of an instance.
    pub fn user_data(&self, id: &str) -> Option<Vec<u8>> {
        let state = self.api().state.lock();
        let instance = state.instances.get(state.by_id.get(id)?)?;
        crate::base64::decode(instance.user_data.as_deref()?)
    }

    /// Returns the private IPv4 address of an instance.
    pub fn private_address(&self, id: &str) -> Option<Ipv4Addr> {
        let state = self.api().state.lock();
        Some(state.instances.get(state.by_id.get(id)?)?.private)
    }

    /// Changes the on-demand capacity of a zone; `None`: unlimited.
    pub fn set_capacity(&self, zone: &str, most: Option<usize>) {
        let mut capacity = self.api().capacity.lock();
        match most {
            Some(most) => capacity.insert(zone.to_owned(), most),
            None => capacity.remove(zone),
        };
    }
}

/// An emulated region: its settings and all resources in it.
pub struct World {
    settings: Ec2Settings,
    delays: Delays,
    clock: Arc<Clock>,
    capacity: Mutex<BTreeMap<String, usize>>,
    state: Mutex<State>,
    /// The resources of the other accounts.
    others: Mutex<BTreeMap<String, State>>,
    buckets: buckets::Buckets,
    ledger: Ledger,
}

impl World {
    fn new(settings: Ec2Settings, clock: Arc<Clock>) -> World {
        let common = &settings.common;
        let delays = Delays {
            pending: common.pending_delay,
            stopping: common.stopping_delay,
            visibility: common.visibility_delay,
            terminated: settings.terminated_shown,
            token: settings.token_life,
            tagged: settings.terminated_tagged,
        };
        let capacity = Mutex::new(common.capacity.clone());
        let world = World {
            delays,
            clock,
            capacity,
            state: Mutex::default(),
            others: Mutex::default(),
            buckets: buckets::Buckets::default(),
            ledger: Ledger::default(),
            settings,
        };
        world.furnish(&mut world.state.lock());
        world
    }

    fn zones(&self) -> [String; 3] {
        ["a", "b", "c"].map(|letter| format!("{}{letter}", self.settings.region))
    }

    /// A timestamp in the API's format.
    fn timestamp(&self, at: Instant) -> String {
        self.clock
            .at(at)
            .strftime("%Y-%m-%dT%H:%M:%S.000Z")
            .to_string()
    }

    fn made(&self, kind: &str, id: &str, key: Option<&str>, tags: &model::Tags, foreign: bool) {
        self.ledger.made(Made {
            kind: kind.to_owned(),
            id: id.to_owned(),
            key: key.map(str::to_owned),
            tags: tags.clone(),
            foreign,
            gone: false,
        });
    }

    fn change(&self, id: &str, change: impl FnOnce(&mut model::Instance)) -> bool {
        let mut state = self.state.lock();
        let Some(number) = state.by_id.get(id).copied() else {
            return false;
        };
        state.instances.get_mut(&number).map(change).is_some()
    }

    fn in_account(&self, access_key: &str, operation: &str, params: &Params) -> Outcome<Xml> {
        let Some(account) = self.settings.accounts.get(access_key) else {
            return self.dispatch(operation, params, &mut self.state.lock());
        };
        let mut others = self.others.lock();
        let state = others.entry(account.clone()).or_insert_with(|| {
            let mut state = State::default();
            self.furnish(&mut state);
            state
        });
        self.dispatch(operation, params, state)
    }

    fn dispatch(&self, operation: &str, params: &Params, state: &mut State) -> Outcome<Xml> {
        let now = Instant::now();
        state.sweep(now, &self.delays);
        // RunInstances handles it itself, after validating its parameters.
        if operation != "RunInstances" && params.bool("DryRun")? == Some(true) {
            return Err(dry_run());
        }
        match operation {
            "RunInstances" => self.run_instances(state, params, now),
            "DescribeInstances" => self.describe_instances(state, params, now),
            "DescribeInstanceStatus" => self.describe_instance_status(state, params, now),
            "TerminateInstances" => self.terminate_instances(state, params, now),
            "StopInstances" => self.stop_instances(state, params, now),
            "StartInstances" => self.start_instances(state, params, now),
            "DescribeInstanceAttribute" => self.describe_instance_attribute(state, params, now),
            "ModifyInstanceAttribute" => self.modify_instance_attribute(state, params, now),
            "GetConsoleOutput" => self.get_console_output(state, params, now),
            "DescribeVolumes" => self.describe_volumes(state, params, now),
            "CreateTags" => self.create_tags(state, params, now),
            "DeleteTags" => self.delete_tags(state, params, now),
            "DescribeTags" => self.describe_tags(state, params, now),
            "DescribeImages" => self.describe_images(params),
            "DescribeInstanceTypes" => self.describe_instance_types(params),
            "DescribeAvailabilityZones" => self.describe_zones(params),
            "DescribeRegions" => self.describe_regions(),
            "DescribeKeyPairs" => self.describe_key_pairs(state, params),
            "ImportKeyPair" => self.import_key_pair(state, params, now),
            "DeleteKeyPair" => self.delete_key_pair(state, params),
            "CreateLaunchTemplate" => self.create_launch_template(state, params, now),
            "CreateLaunchTemplateVersion" => self.create_launch_template_version(state, params),
            "DeleteLaunchTemplate" => self.delete_launch_template(state, params),
            "DescribeLaunchTemplateVersions" => {
                self.describe_launch_template_versions(state, params)
            }
            "DescribeLaunchTemplates" => self.describe_launch_templates(state, params),
            _ => self.dispatch_network(operation, state, params, now),
        }
    }

    fn dispatch_network(
        &self,
        operation: &str,
        state: &mut State,
        params: &Params,
        now: Instant,
    ) -> Outcome<Xml> {
        match operation {
            "CreateVpc" => self.create_vpc(state, params),
            "DeleteVpc" => self.delete_vpc(state, params),
            "DescribeVpcs" => self.describe_vpcs(state, params),
            "ModifyVpcAttribute" => self.modify_vpc_attribute(state, params),
            "DescribeVpcAttribute" => self.describe_vpc_attribute(state, params),
            "CreateSubnet" => self.create_subnet(state, params),
            "DeleteSubnet" => self.delete_subnet(state, params, now),
            "DescribeSubnets" => self.describe_subnets(state, params),
            "ModifySubnetAttribute" => self.modify_subnet_attribute(state, params),
            "CreateInternetGateway" => self.create_internet_gateway(state, params),
            "AttachInternetGateway" => self.attach_internet_gateway(state, params),
            "DetachInternetGateway" => self.detach_internet_gateway(state, params, now),
            "DeleteInternetGateway" => self.delete_internet_gateway(state, params),
            "DescribeInternetGateways" => self.describe_internet_gateways(state, params),
            "DescribeRouteTables" => self.describe_route_tables(state, params),
            "CreateRoute" => self.create_route(state, params),
            "ReplaceRoute" => self.replace_route(state, params),
            "DeleteRoute" => self.delete_route(state, params),
            "CreateSecurityGroup" => self.create_security_group(state, params),
            "DeleteSecurityGroup" => self.delete_security_group(state, params, now),
            "DescribeSecurityGroups" => self.describe_security_groups(state, params),
            "AuthorizeSecurityGroupIngress" => self.authorize(state, params, false),
            "AuthorizeSecurityGroupEgress" => self.authorize(state, params, true),
            "RevokeSecurityGroupIngress" => self.revoke(state, params, false),
            "RevokeSecurityGroupEgress" => self.revoke(state, params, true),
            "AllocateAddress" => self.allocate_address(state, params),
            "ReleaseAddress" => self.release_address(state, params),
            "AssociateAddress" => self.associate_address(state, params, now),
            "DisassociateAddress" => self.disassociate_address(state, params),
            "DescribeAddresses" => self.describe_addresses(state, params),
            _ => {
                let message = format!("The action {operation} is not valid for this web service.");
                Err(wrong("InvalidAction", message))
            }
        }
    }

    fn refusal(&self, operation: &str, params: &Params, refusal: &Refusal) -> Wrong {
        let is_spot = params.get("InstanceMarketOptions.MarketType") == Some("spot");
        match refusal {
            Refusal::Error {
                status,
                code,
                message,
            } => Wrong {
                status: *status,
                code: code.clone(),
                message: message.clone(),
            },
            Refusal::Later { code, message } => Wrong {
                status: 500,
                code: code.clone(),
                message: message.clone(),
            },
            Refusal::Throttle { .. } => Wrong {
                status: 503,
                ..wrong("RequestLimitExceeded", "Request limit exceeded.")
            },
            Refusal::NoCapacity if operation == "CreateSubnet" => wrong(
                "InsufficientFreeAddressesInSubnet",
                "There are not enough free addresses.",
            ),
            Refusal::NoCapacity if operation == "AllocateAddress" => Wrong {
                status: 500,
                ..wrong(
                    "InsufficientAddressCapacity",
                    "There are not enough addresses available.",
                )
            },
            Refusal::NoCapacity => {
                let kind = params.get("InstanceType").unwrap_or("t3.micro");
                run::no_capacity(
                    kind,
                    params
                        .get("Placement.AvailabilityZone")
                        .unwrap_or("requested"),
                    is_spot,
                )
            }
            Refusal::Quota => match operation {
                "AllocateAddress" => addresses::too_many(),
                "CreateVpc" => network::too_many(),
                _ if is_spot => run::too_many_spot(),
                _ => run::too_many_vcpus(self.settings.vcpu_quota.unwrap_or(5)),
            },
        }
    }
}

fn dry_run() -> Wrong {
    Wrong {
        status: 412,
        ..wrong(
            "DryRunOperation",
            "Request would have succeeded, but DryRun flag is set.",
        )
    }
}

impl Api for World {
    fn name(&self, call: &Call) -> (String, Vec<(String, String)>) {
        let mut parameters = parameters(call);
        let operation = parameters
            .iter()
            .find(|(key, _)| key == "Action")
            .map(|(_, value)| value.clone());
        let secret = |key: &str| {
            key.ends_with("UserData") || key.ends_with("UserData.Value") || key.starts_with("X-Amz")
        };
        parameters.retain(|(key, _)| key != "Action" && key != "Version" && !secret(key));
        (operation.unwrap_or_else(|| "?".to_owned()), parameters)
    }

    fn change(&self, operation: &str, call: &Call) -> Option<String> {
        let params = Params::new(parameters(call));
        let is_dry = params.get("DryRun") == Some("true");
        let reads = ["Describe", "Get", "Assume", "?"];
        if is_dry || reads.iter().any(|read| operation.starts_with(read)) {
            return None;
        }
        if !["CreateTags", "DeleteTags"].contains(&operation) {
            return Some(operation.to_owned());
        }
        // Ids are made of their kind and a number.
        let id = params.get("ResourceId.1").unwrap_or_default();
        let kind = id.split('-').next().unwrap_or_default();
        Some(format!("{operation} of {kind}"))
    }

    fn handle(&self, operation: &str, call: &Call) -> Answer {
        let params = Params::new(parameters(call));
        let sts = params.get("Version") == Some(account::STS_VERSION);
        let expired = self.state.lock().expired;
        let outcome = self
            .check_credentials(operation, call, expired, sts)
            .and_then(|access_key| {
                if sts {
                    return self.sts(operation, &access_key);
                }
                if self.settings.throttled {
                    self.buckets.admit(operation, &params)?;
                }
                self.in_account(&access_key, operation, &params)
            });
        match outcome {
            Ok(xml) if sts => account::answer(operation, xml),
            Ok(xml) => success(operation, xml),
            Err(wrong) if sts => account::failure(&wrong),
            Err(wrong) => failure(&wrong),
        }
    }

    fn refuse(&self, operation: &str, call: &Call, refusal: &Refusal) -> Answer {
        let params = Params::new(parameters(call));
        let is_sts = params.get("Version") == Some(account::STS_VERSION);
        let wrong = match refusal {
            Refusal::Throttle { .. } if is_sts => wrong("Throttling", "Rate exceeded"),
            refusal => self.refusal(operation, &params, refusal),
        };
        if is_sts {
            account::failure(&wrong)
        } else {
            failure(&wrong)
        }
    }

    fn machines(&self) -> Vec<Machine> {
        let now = Instant::now();
        let state = self.state.lock();
        let shown = state
            .instances
            .values()
            .map(|instance| (instance, instance.phase(now, &self.delays)));
        shown
            .filter(|(_, phase)| *phase != model::Phase::Terminated)
            .map(|(instance, phase)| Machine {
                id: instance.id.clone(),
                state: phase.name().to_owned(),
                tags: instance.tags.clone(),
                zone: instance.zone.clone(),
            })
            .collect()
    }

    fn ledger(&self) -> Vec<Made> {
        self.ledger.all()
    }

    fn by_hand(&self, id: &str, hand: &Hand) -> bool {
        let now = Instant::now();
        let mut state = self.state.lock();
        let Some(number) = state.by_id.get(id).copied() else {
            return false;
        };
        match hand {
            Hand::Terminate => self.terminate(&mut state, number, now),
            Hand::Stop => self.stop(&mut state, number, now),
            Hand::Retag(tags) => {
                for (key, value) in tags {
                    state.tag_instance(number, key, value.as_deref());
                }
                true
            }
        }
    }
}

/// Collects the parameters, which may be in a form or in the query.
fn parameters(call: &Call) -> Vec<(String, String)> {
    let mut parameters = call.query.clone();
    parameters.extend(call.form());
    parameters
}

fn success(operation: &str, inner: Xml) -> Answer {
    let id = Uuid::new_v4().to_string();
    let mut xml = inner.into_string();
    let head = format!(
        "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<{operation}Response \
         xmlns=\"http://ec2.amazonaws.com/doc/{VERSION}/\"><requestId>{id}</requestId>"
    );
    // Inserted in place, because a list may be megabytes in size.
    xml.insert_str(0, &head);
    xml.push_str(&format!("</{operation}Response>"));
    Answer::text(200, "text/xml;charset=UTF-8", xml).header("x-amzn-requestid", id)
}

fn failure(wrong: &Wrong) -> Answer {
    let id = Uuid::new_v4().to_string();
    let mut xml = Xml::new();
    xml.raw("<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n");
    xml.nest("Response", |xml| {
        xml.nest("Errors", |xml| {
            xml.nest("Error", |xml| {
                xml.text("Code", &wrong.code);
                xml.text("Message", &wrong.message);
            });
        });
        xml.text("RequestID", &id);
    });
    Answer::text(wrong.status, "text/xml;charset=UTF-8", xml.into_string())
        .header("x-amzn-requestid", id)
}

fn names(list: &[String], operation: &str) -> bool {
    list.iter().any(|name| name == operation || name == ANY)
}
