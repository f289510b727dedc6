//! Converts launches to `RunInstances` requests and their responses to outcomes.

use std::{collections::BTreeMap, sync::Arc};

use aws_sdk_ec2::{
    client::Client,
    operation::run_instances::{RunInstancesOutput, builders::RunInstancesFluentBuilder},
    types::{
        BlockDeviceMapping, EbsBlockDevice, HttpTokensState, IamInstanceProfileSpecification,
        InstanceInterruptionBehavior, InstanceMarketOptionsRequest, InstanceMetadataEndpointState,
        InstanceMetadataOptionsRequest, InstanceMetadataTagsState,
        InstanceNetworkInterfaceSpecification, InstanceType, LaunchTemplateSpecification,
        MarketType, Placement, ResourceType, SpotInstanceType, SpotMarketOptions, Tag,
        TagSpecification, VolumeType,
    },
};
use aws_smithy_types::base64;
use drover_core::{Class, Error, Reason, Result};

use super::{
    EXTRA, NAME,
    api::Api,
    catalogue::{Arch, Catalogue, Image, ImageName, TemplateData},
    errors,
    machines::machine,
    properties::{self, CapacityType, MAX_USER_DATA, Properties},
    settings::Settings,
};
use crate::cloud::{CloudOutcome, Launch, PREFIX};

mod network;

use network::{Network, network};

/// Root device of most Linux images, for images that cannot be looked up.
const ROOT_DEVICE: &str = "/dev/xvda";
/// Hop limit of the metadata service: one more than the instance itself needs, so that containers on it can reach it.
const METADATA_HOPS: i32 = 2;
/// Maximum number of tags of a resource.
const MAX_TAGS: usize = 50;

/// A launch with all names resolved.
#[derive(Debug)]
pub(super) struct Plan {
    properties: Properties,
    class: Option<String>,
    image: Option<Image>,
    /// The image that is asked for. `None` if it is that of the launch template.
    image_id: Option<String>,
    template: Arc<TemplateData>,
    network: Network,
    tags: BTreeMap<String, String>,
    /// Whether to accept fewer instances than requested.
    partial: bool,
}

/// A launch as far as it can be validated without a call.
pub(super) struct LaunchRequest<'a> {
    launch: &'a Launch,
    properties: Properties,
    class: Option<String>,
    image: Option<ImageName>,
}

impl<'a> LaunchRequest<'a> {
    pub(super) fn of(launch: &'a Launch, settings: &Settings) -> Result<Self> {
        let properties = Properties::read(&launch.properties)?;
        if let Some(size) = launch.user_data.as_ref().map(|data| data.len())
            && size > MAX_USER_DATA
        {
            return Err(Error::invalid(
                "bootstrap",
                format!(
                    "the user data is {size} bytes large and EC2 takes {MAX_USER_DATA} at most; let it fetch the rest, or \
                     compress it"
                ),
            ));
        }
        let class = class(launch, &properties, settings)?;
        if class.is_none() && properties.memory.is_none() && properties.launch_template.is_none() {
            return Err(Error::invalid(
                "group.node_class",
                "which instance type? Say the node class, `instanceType` or `memory` of the group, or \
                 `instance_type` in the settings of the platform",
            ));
        }
        let image = image(&properties, settings)?;
        if image.is_none() && properties.launch_template.is_none() {
            return Err(Error::invalid(
                "group.properties.image",
                "which image? Say it in the group (debian, ami-…) or as `image` in the settings of the platform",
            ));
        }
        tags(launch, &properties)?;
        Ok(Self {
            launch,
            properties,
            class,
            image,
        })
    }

    /// Resolves names with the API. With `placed`, for the failure domain of the launch, otherwise for any.
    pub(super) async fn plan(
        self,
        api: &Api,
        catalogue: &Catalogue,
        settings: &Settings,
        placed: bool,
    ) -> Result<Plan> {
        let mut class = self.class;
        let mut arch = Arch::default();
        if let Some(name) = &class {
            arch = catalogue.instance_type(api, name).await?.arch;
        }
        let template = match &self.properties.launch_template {
            Some(template) => catalogue.template(api, template).await?,
            None => Arc::default(),
        };
        let of_template = template.image.clone().map(ImageName::Id);
        let image = match self.image.as_ref().or(of_template.as_ref()) {
            Some(name) => Some(catalogue.image(api, name, arch).await?),
            None => None,
        };
        let said = image.as_ref().filter(|_| self.image.is_some());
        let image_id = said.map(|image| image.id.clone());
        if class.is_none()
            && let Some(memory) = self.properties.memory
        {
            let arch = image.as_ref().map(|image| image.arch).unwrap_or_default();
            let smallest = catalogue
                .smallest(api, memory, arch, self.properties.capacity_type)
                .await?;
            class = Some(smallest.name);
        }
        let network = network(
            self.launch,
            &self.properties,
            api,
            catalogue,
            settings,
            placed,
        )
        .await?;
        let mut properties = self.properties;
        if properties.key().is_none() && !settings.key.is_empty() {
            properties.key = Some(settings.key.clone());
        }
        Ok(Plan {
            class,
            image,
            image_id,
            template,
            network,
            tags: tags(self.launch, &properties)?,
            partial: settings.partial_launches,
            properties,
        })
    }
}

fn class(launch: &Launch, properties: &Properties, settings: &Settings) -> Result<Option<String>> {
    let said = properties
        .instance_type
        .as_deref()
        .map(|name| settings.common.node_class(name));
    match (said, launch.node_class.as_str()) {
        (Some(said), class) if !class.is_empty() && class != said => Err(Error::invalid(
            "group.node_class",
            format!(
                "is {class:?}, but `instanceType` says {said:?}; give one of them, or the same in both"
            ),
        )),
        (Some(said), _) => Ok(Some(said.to_owned())),
        (None, class) if !class.is_empty() => Ok(Some(class.to_owned())),
        // A requested memory size takes precedence over the platform's default type.
        _ if properties.memory.is_some()
            || properties.launch_template.is_some()
            || settings.instance_type.is_empty() =>
        {
            Ok(None)
        }
        _ => Ok(Some(
            settings
                .common
                .node_class(&settings.instance_type)
                .to_owned(),
        )),
    }
}

fn image(properties: &Properties, settings: &Settings) -> Result<Option<ImageName>> {
    match &properties.image {
        Some(properties::Image::Name(name)) => ImageName::of(name, settings).map(Some),
        Some(properties::Image::Pattern(pattern)) => {
            Ok(Some(ImageName::Newest(vec![pattern.clone()])))
        }
        None if properties.launch_template.is_some() || settings.image.is_empty() => Ok(None),
        None => ImageName::of(&settings.image, settings).map(Some),
    }
}

/// All tags of the instances and volumes of a launch.
fn tags(launch: &Launch, properties: &Properties) -> Result<BTreeMap<String, String>> {
    let mut tags = launch.tags.clone();
    let extra: Vec<&str> = properties
        .tags
        .keys()
        .map(String::as_str)
        .filter(|key| !launch.tags.contains_key(*key))
        .collect();
    if !extra.is_empty() {
        tags.insert(EXTRA.to_owned(), extra.join(","));
    }
    for key in &extra {
        if key.contains(',') {
            return Err(Error::invalid(
                format!("group.properties.tags.{key}"),
                "has a comma in its name",
            ));
        }
        tags.insert((*key).to_owned(), properties.tags[*key].clone());
    }
    tags.entry(NAME.to_owned()).or_insert_with(|| name(launch));
    let too_long = tags
        .iter()
        .find(|(key, value)| key.chars().count() > 128 || value.chars().count() > 256);
    if let Some((key, _)) = too_long {
        return Err(Error::invalid(
            "group.properties.tags",
            format!(
                "tag {key:?} is too long: EC2 takes 128 characters in a key and 256 in a value"
            ),
        ));
    }
    if tags.len() > MAX_TAGS {
        return Err(Error::invalid(
            "group.properties.tags",
            format!(
                "the instances would need {} tags and EC2 takes {MAX_TAGS}; give fewer tags or labels",
                tags.len()
            ),
        ));
    }
    Ok(tags)
}

/// The name shown in the AWS console.
fn name(launch: &Launch) -> String {
    let name = match launch.slots.as_slice() {
        [only] => only.identity.id.clone(),
        [first, ..] => format!("{}/{}", first.identity.cluster_id, first.identity.group),
        [] => String::new(),
    };
    name.chars().take(256).collect()
}

impl Plan {
    /// Performs a dry run: checks permissions, key pair, profile and launch template.
    pub(super) async fn try_out(&self, api: &Api, launch: &Launch) -> Result<()> {
        // A dry run mainly checks permissions, so the key pair is looked up separately.
        if let Some(key) = self.properties.key() {
            let answer = api
                .send("DescribeKeyPairs", |ec2| {
                    ec2.describe_key_pairs().key_names(key).send()
                })
                .await;
            match answer {
                // Key pairs can be used without the permission to list them.
                Err(error) if error.class() != Class::Credentials => return Err(error),
                _ => {}
            }
        }
        let outcome = api
            .send("RunInstances", |ec2| {
                self.request(&ec2, launch)
                    .set_client_token(None)
                    .dry_run(true)
                    .send()
            })
            .await;
        match outcome {
            // The dry run does not check capacity.
            Err(error) if errors::code(&error) == "DryRunOperation" => Ok(()),
            Err(error) if error.reason() == Reason::NoCapacity => Ok(()),
            Err(error) => Err(error),
            Ok(_) => Err(Error::internal("EC2 has launched instances on a dry run")),
        }
    }

    /// Launches as many of the instances as there is capacity for.
    pub(super) async fn run(&self, api: &Api, launch: &Launch) -> Vec<CloudOutcome> {
        let outcome = api
            .create("RunInstances", |ec2| self.request(&ec2, launch).send())
            .await;
        match outcome {
            Ok(answer) => self.outcomes(api, launch, &answer),
            Err(error) => {
                let error = match &launch.failure_domain {
                    Some(zone) if error.reason() == Reason::NoCapacity => {
                        error.with_metadata("failure_domain", zone)
                    }
                    _ => error,
                };
                CloudOutcome::all(launch, &error)
            }
        }
    }

    fn outcomes(
        &self,
        api: &Api,
        launch: &Launch,
        answer: &RunInstancesOutput,
    ) -> Vec<CloudOutcome> {
        let mut made: BTreeMap<u32, CloudOutcome> = BTreeMap::new();
        for instance in answer.instances() {
            if let Some(mut machine) = machine(api, instance) {
                // Some responses omit the tags; they were set by the same call.
                if !machine.tags.keys().any(|key| key.starts_with(PREFIX)) {
                    machine.tags = launch.tags.clone();
                }
                let index = machine.launch_index.unwrap_or_default();
                made.insert(index, CloudOutcome::Made(Box::new(machine)));
            }
        }
        if made.is_empty() {
            return CloudOutcome::all(
                launch,
                &Error::unavailable("RunInstances: the answer names no instance"),
            );
        }
        let count = made.len();
        (0u32..)
            .zip(&launch.slots)
            .map(|(index, _)| {
                made.remove(&index)
                    .unwrap_or_else(|| CloudOutcome::Failed(self.none_left(launch, count)))
            })
            .collect()
    }

    fn none_left(&self, launch: &Launch, made: usize) -> Error {
        let zone = launch.failure_domain.as_deref();
        let error = Error::new(
            Reason::NoCapacity,
            format!(
                "RunInstances: EC2 had room for {made} of {} instances{}{}",
                launch.slots.len(),
                self.class
                    .as_deref()
                    .map(|class| format!(" of type {class}"))
                    .unwrap_or_default(),
                zone.map(|zone| format!(" in {zone}")).unwrap_or_default()
            ),
        );
        match zone {
            Some(zone) => error.with_metadata("failure_domain", zone),
            None => error,
        }
    }

    fn request(&self, ec2: &Client, launch: &Launch) -> RunInstancesFluentBuilder {
        let properties = &self.properties;
        let count = i32::try_from(launch.slots.len()).unwrap_or(i32::MAX);
        let mut request = ec2
            .run_instances()
            .min_count(if self.partial { 1 } else { count })
            .max_count(count)
            .client_token(&launch.token)
            .set_image_id(self.image_id.clone())
            .set_instance_type(self.class.as_deref().map(InstanceType::from))
            .set_key_name(properties.key().map(str::to_owned))
            .set_user_data(
                launch
                    .user_data
                    .as_ref()
                    .map(|data| base64::encode(data.as_slice())),
            )
            .metadata_options(
                InstanceMetadataOptionsRequest::builder()
                    .http_tokens(HttpTokensState::Required)
                    .http_endpoint(InstanceMetadataEndpointState::Enabled)
                    .http_put_response_hop_limit(METADATA_HOPS)
                    // Where the account turns these on, tags may not have keys with a slash.
                    .instance_metadata_tags(InstanceMetadataTagsState::Disabled)
                    .build(),
            )
            .tag_specifications(tagged(ResourceType::Instance, &self.tags))
            .tag_specifications(tagged(ResourceType::Volume, &self.tags))
            .set_iam_instance_profile(properties.iam_instance_profile.as_deref().map(profile))
            .set_block_device_mappings(self.volumes())
            .set_instance_market_options(self.market());
        if properties.termination_protection {
            request = request.disable_api_termination(true);
        }
        if let Some(template) = &properties.launch_template {
            request = request.launch_template(
                LaunchTemplateSpecification::builder()
                    .set_launch_template_id(template.id.clone())
                    .set_launch_template_name(template.name.clone())
                    .set_version(template.version.as_ref().map(properties::Version::text))
                    .build(),
            );
        }
        self.attach(request, launch)
    }

    fn attach(
        &self,
        request: RunInstancesFluentBuilder,
        launch: &Launch,
    ) -> RunInstancesFluentBuilder {
        let Network { subnet, groups } = &self.network;
        let groups = (!groups.is_empty()).then(|| groups.clone());
        let of_template = self.template.interface.as_ref();
        if self.properties.public_address.is_some() || self.properties.ipv6 || of_template.is_some()
        {
            // What is said here of an interface replaces what the template says.
            let template = of_template.cloned().unwrap_or_default();
            let template_groups = (!template.groups.is_empty()).then_some(template.groups);
            let public = self.properties.public_address.or(template.public_address);
            let ipv6 = self
                .properties
                .ipv6
                .then_some(1)
                .or(template.ipv6_addresses);
            return request.network_interfaces(
                InstanceNetworkInterfaceSpecification::builder()
                    .device_index(0)
                    .set_associate_public_ip_address(public)
                    .set_ipv6_address_count(ipv6)
                    .set_subnet_id(subnet.clone())
                    .set_groups(groups.or(template_groups))
                    .delete_on_termination(true)
                    .build(),
            );
        }
        let zone = launch.failure_domain.as_ref().filter(|_| subnet.is_none());
        request
            .set_subnet_id(subnet.clone())
            .set_security_group_ids(groups)
            .set_placement(zone.map(|zone| Placement::builder().availability_zone(zone).build()))
    }

    /// The root volume as the group says, and all volumes of image and template that would outlive the instance: nobody
    /// else deletes them.
    fn volumes(&self) -> Option<Vec<BlockDeviceMapping>> {
        let mut volumes: Vec<BlockDeviceMapping> = self.root_volume().into_iter().collect();
        let TemplateData {
            kept,
            others,
            left_out,
            ..
        } = &*self.template;
        let image = self.image.as_ref();
        let goes_whole = kept.is_empty() && image.is_none_or(|image| image.kept.is_empty());
        if volumes.is_empty() && goes_whole {
            return None;
        }
        let is_left_out = |volume: &&BlockDeviceMapping| {
            let mut devices = left_out.iter();
            devices.any(|device| volume.device_name() == Some(device.as_str()))
        };
        let of_image = image.into_iter().flat_map(|image| &image.kept);
        let of_image = of_image.filter(|volume| !is_left_out(volume));
        // The template may change a volume of the image, and what is said here may replace all that it says of volumes.
        for volume in kept.iter().chain(others).chain(of_image) {
            let is_said = |said: &BlockDeviceMapping| said.device_name() == volume.device_name();
            if !volumes.iter().any(is_said) {
                volumes.push(volume.clone());
            }
        }
        Some(volumes)
    }

    fn root_volume(&self) -> Option<BlockDeviceMapping> {
        let volume = self.properties.root_volume.as_ref()?;
        let device = self
            .image
            .as_ref()
            .map(|image| image.root_device.as_str())
            .filter(|device| !device.is_empty())
            .unwrap_or(ROOT_DEVICE);
        let ebs = EbsBlockDevice::builder()
            .delete_on_termination(true)
            .set_volume_size(volume.size)
            .set_volume_type(volume.r#type.as_deref().map(VolumeType::from))
            .set_encrypted(volume.encrypted)
            .build();
        Some(
            BlockDeviceMapping::builder()
                .device_name(device)
                .ebs(ebs)
                .build(),
        )
    }

    fn market(&self) -> Option<InstanceMarketOptionsRequest> {
        if self.properties.capacity_type == CapacityType::OnDemand {
            return None;
        }
        // One-time, so that AWS does not relaunch the instance on its own after an interruption.
        let spot = SpotMarketOptions::builder()
            .spot_instance_type(SpotInstanceType::OneTime)
            .instance_interruption_behavior(InstanceInterruptionBehavior::Terminate)
            .set_max_price(
                self.properties
                    .max_price
                    .as_ref()
                    .map(properties::Price::text),
            )
            .build();
        Some(
            InstanceMarketOptionsRequest::builder()
                .market_type(MarketType::Spot)
                .spot_options(spot)
                .build(),
        )
    }
}

fn profile(name: &str) -> IamInstanceProfileSpecification {
    let builder = IamInstanceProfileSpecification::builder();
    if name.starts_with("arn:") {
        builder.arn(name).build()
    } else {
        builder.name(name).build()
    }
}

/// The tags for the resources of a call.
pub(super) fn tagged(kind: ResourceType, tags: &BTreeMap<String, String>) -> TagSpecification {
    TagSpecification::builder()
        .resource_type(kind)
        .set_tags(Some(
            tags.iter()
                .map(|(key, value)| Tag::builder().key(key).value(value).build())
                .collect(),
        ))
        .build()
}
