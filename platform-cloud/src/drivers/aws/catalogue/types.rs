//! Instance types, and which of them costs least.

use aws_sdk_ec2::types::InstanceTypeInfo;
use drover_core::Result;

use super::{Arch, filter};
use crate::drivers::aws::{api::Api, properties::CapacityType};

/// Prices in millionths of a dollar an hour, as they lie for the general families (m6i, c6i, r6i and t3 in us-east-1,
/// <https://aws.amazon.com/ec2/pricing/on-demand/>): proportional to vCPUs and memory, for burstable types to memory. They
/// only compare types with each other.
const VCPU: u64 = 35_700;
const GIB: u64 = 3_420;
const BURSTABLE_GIB: u64 = 10_400;

#[derive(Clone, Debug, PartialEq)]
pub(in crate::drivers::aws) struct Type {
    pub name: String,
    pub arch: Arch,
    memory_mib: i64,
    cpus: i32,
    spot: bool,
    on_demand: bool,
    current: bool,
    bare_metal: bool,
    burstable: bool,
    accelerated: bool,
}

impl Type {
    pub(super) fn of(info: &InstanceTypeInfo) -> Option<Self> {
        let architectures: Vec<&str> = info
            .processor_info()
            .map(aws_sdk_ec2::types::ProcessorInfo::supported_architectures)
            .unwrap_or_default()
            .iter()
            .map(aws_sdk_ec2::types::ArchitectureType::as_str)
            .collect();
        let usage = |class: &str| {
            let classes = info.supported_usage_classes();
            classes.is_empty() || classes.iter().any(|known| known.as_str() == class)
        };
        Some(Self {
            name: info.instance_type()?.as_str().to_owned(),
            arch: if architectures.contains(&"arm64") && !architectures.contains(&"x86_64") {
                Arch::Arm
            } else {
                Arch::X86
            },
            memory_mib: info
                .memory_info()
                .and_then(aws_sdk_ec2::types::MemoryInfo::size_in_mib)
                .unwrap_or_default(),
            cpus: info
                .v_cpu_info()
                .and_then(aws_sdk_ec2::types::VCpuInfo::default_v_cpus)
                .unwrap_or_default(),
            spot: usage("spot"),
            on_demand: usage("on-demand"),
            current: info.current_generation().unwrap_or(true),
            bare_metal: info.bare_metal().unwrap_or_default(),
            burstable: info.burstable_performance_supported().unwrap_or_default(),
            accelerated: info.gpu_info().is_some()
                || info.fpga_info().is_some()
                || info.inference_accelerator_info().is_some()
                || info.media_accelerator_info().is_some()
                || info.neuron_info().is_some(),
        })
    }

    /// Whether it is of a family whose price is that of its vCPUs and memory: t, m, c and r, without local disks or
    /// faster networks.
    fn is_general(&self) -> bool {
        let family = self.name.split('.').next().unwrap_or_default();
        let attributes = family
            .trim_start_matches(['t', 'm', 'c', 'r'])
            .trim_start_matches(|c: char| c.is_ascii_digit());
        family.starts_with(['t', 'm', 'c', 'r'])
            && family.as_bytes().get(1).is_some_and(u8::is_ascii_digit)
            && attributes.chars().all(|c| matches!(c, 'a' | 'i' | 'g'))
    }

    fn price(&self) -> u64 {
        let mib = u64::try_from(self.memory_mib).unwrap_or_default();
        let cpus = u64::try_from(self.cpus).unwrap_or_default();
        if self.burstable {
            BURSTABLE_GIB * mib / 1024
        } else {
            VCPU * cpus + GIB * mib / 1024
        }
    }
}

/// The type with at least this much memory in GiB that costs least. `None` if there is none.
pub(super) fn smallest(
    types: &[Type],
    memory: f64,
    arch: Arch,
    capacity: CapacityType,
) -> Option<Type> {
    let wanted = memory * 1024.0;
    types
        .iter()
        .filter(|t| t.current && !t.bare_metal && !t.accelerated && t.arch == arch)
        .filter(|t| match capacity {
            CapacityType::OnDemand => t.on_demand,
            CapacityType::Spot => t.spot,
        })
        // Memory sizes are far below 2^52 MiB, so the conversion to f64 is exact.
        .filter(|t| t.memory_mib as f64 >= wanted)
        .min_by(|a, b| {
            (!a.is_general(), a.price())
                .cmp(&(!b.is_general(), b.price()))
                // Among equal types, the newest generation: t3 before t2.
                .then_with(|| b.name.cmp(&a.name))
        })
        .cloned()
}

/// All current types.
pub(super) async fn all(api: &Api) -> Result<Vec<Type>> {
    let filter = filter("current-generation", ["true"]);
    let mut types = Vec::new();
    let mut token = None;
    loop {
        let answer = api
            .send("DescribeInstanceTypes", |ec2| {
                ec2.describe_instance_types()
                    .filters(filter.clone())
                    .max_results(100)
                    .set_next_token(token.clone())
                    .send()
            })
            .await?;
        types.extend(answer.instance_types().iter().filter_map(Type::of));
        match answer.next_token {
            Some(next) if !next.is_empty() => token = Some(next),
            _ => return Ok(types),
        }
    }
}
