//! Catalogue of the region: zones, instance types, images.

#[derive(Debug)]
pub(crate) struct InstanceType {
    pub(crate) name: &'static str,
    pub(crate) vcpus: u32,
    pub(crate) cores: u32,
    pub(crate) mib: u64,
    pub(crate) architecture: &'static str,
    pub(crate) burstable: bool,
    pub(crate) current: bool,
    pub(crate) free_tier: bool,
    pub(crate) hypervisor: &'static str,
    pub(crate) network: &'static str,
    /// Element of the API that describes its accelerators, if it has any.
    pub(crate) accelerators: Option<&'static str>,
}

const fn t2(name: &'static str, vcpus: u32, mib: u64) -> InstanceType {
    InstanceType {
        name,
        vcpus,
        cores: vcpus,
        mib,
        architecture: "x86_64",
        burstable: true,
        current: true,
        free_tier: false,
        hypervisor: "xen",
        network: "Low to Moderate",
        accelerators: None,
    }
}

const fn nitro(
    name: &'static str,
    vcpus: u32,
    mib: u64,
    network: &'static str,
    burstable: bool,
) -> InstanceType {
    InstanceType {
        name,
        vcpus,
        cores: vcpus / 2,
        mib,
        architecture: "x86_64",
        burstable,
        current: true,
        free_tier: false,
        hypervisor: "nitro",
        network,
        accelerators: None,
    }
}

const fn arm(name: &'static str, vcpus: u32, mib: u64) -> InstanceType {
    InstanceType {
        cores: vcpus,
        architecture: "arm64",
        ..nitro(name, vcpus, mib, "Up to 5 Gigabit", true)
    }
}

/// All instance types, with the sizes that the provider publishes.
pub(crate) static TYPES: &[InstanceType] = &[
    t2("t2.nano", 1, 512),
    InstanceType {
        free_tier: true,
        ..t2("t2.micro", 1, 1024)
    },
    t2("t2.small", 1, 2048),
    t2("t2.medium", 2, 4096),
    t2("t2.large", 2, 8192),
    nitro("t3.nano", 2, 512, "Up to 5 Gigabit", true),
    nitro("t3.micro", 2, 1024, "Up to 5 Gigabit", true),
    nitro("t3.small", 2, 2048, "Up to 5 Gigabit", true),
    nitro("t3.medium", 2, 4096, "Up to 5 Gigabit", true),
    nitro("t3.large", 2, 8192, "Up to 5 Gigabit", true),
    nitro("t3.xlarge", 4, 16384, "Up to 5 Gigabit", true),
    nitro("t3.2xlarge", 8, 32768, "Up to 5 Gigabit", true),
    arm("t4g.micro", 2, 1024),
    arm("t4g.small", 2, 2048),
    arm("t4g.medium", 2, 4096),
    nitro("m6i.large", 2, 8192, "Up to 12.5 Gigabit", false),
    nitro("m6i.xlarge", 4, 16384, "Up to 12.5 Gigabit", false),
    nitro("m6i.2xlarge", 8, 32768, "Up to 12.5 Gigabit", false),
    nitro("m6i.4xlarge", 16, 65536, "Up to 12.5 Gigabit", false),
    nitro("m6i.8xlarge", 32, 131_072, "12.5 Gigabit", false),
    nitro("m6i.12xlarge", 48, 196_608, "18.75 Gigabit", false),
    nitro("m6i.16xlarge", 64, 262_144, "25 Gigabit", false),
    nitro("m6i.24xlarge", 96, 393_216, "37.5 Gigabit", false),
    nitro("c6i.large", 2, 4096, "Up to 12.5 Gigabit", false),
    nitro("c6i.2xlarge", 8, 16384, "Up to 12.5 Gigabit", false),
    nitro("c5n.4xlarge", 16, 43008, "Up to 25 Gigabit", false),
    nitro("r6i.large", 2, 16384, "Up to 12.5 Gigabit", false),
    nitro("r6i.xlarge", 4, 32768, "Up to 12.5 Gigabit", false),
    nitro("r6i.2xlarge", 8, 65536, "Up to 12.5 Gigabit", false),
    // https://aws.amazon.com/ec2/instance-types/vt1/
    InstanceType {
        accelerators: Some("mediaAcceleratorInfo"),
        ..nitro("vt1.3xlarge", 12, 24576, "3.12 Gigabit", false)
    },
    // https://aws.amazon.com/ec2/instance-types/g4/
    InstanceType {
        accelerators: Some("gpuInfo"),
        ..nitro("g4dn.xlarge", 4, 16384, "Up to 25 Gigabit", false)
    },
    nitro("m6i.32xlarge", 128, 524_288, "50 Gigabit", false),
];

pub(crate) fn instance_type(name: &str) -> Option<&'static InstanceType> {
    TYPES.iter().find(|kind| kind.name == name)
}

#[derive(Debug)]
pub(crate) struct Image {
    pub(crate) id: &'static str,
    pub(crate) name: &'static str,
    pub(crate) description: &'static str,
    pub(crate) owner: &'static str,
    pub(crate) alias: Option<&'static str>,
    pub(crate) architecture: &'static str,
    pub(crate) created: &'static str,
    pub(crate) root: &'static str,
    pub(crate) gib: i64,
    /// Device of a data volume that outlives its instance, if there is one.
    pub(crate) data: Option<&'static str>,
    /// Whether the image requires IMDSv2.
    pub(crate) imds_v2: bool,
    pub(crate) deprecated: Option<&'static str>,
}

/// Size of the data volumes of images, in GiB.
const DATA: i64 = 10;

impl Image {
    /// Device, size in GiB, and whether it goes with its instance, of each volume.
    pub(crate) fn volumes(&self) -> impl Iterator<Item = (&'static str, i64, bool)> {
        let data = self.data.map(|device| (device, DATA, false));
        std::iter::once((self.root, self.gib, true)).chain(data)
    }
}

const DEBIAN: Image = Image {
    id: "",
    name: "",
    description: "Debian 12",
    owner: "136693071363",
    alias: None,
    architecture: "x86_64",
    created: "",
    root: "/dev/xvda",
    gib: 8,
    data: None,
    imds_v2: false,
    deprecated: None,
};

const AMAZON: Image = Image {
    description: "Amazon Linux 2023 AMI, HVM kernel-6.1",
    owner: "137112412989",
    alias: Some("amazon"),
    imds_v2: true,
    ..DEBIAN
};

/// All images. Several match one name pattern, so that selecting the newest is significant; some have another
/// architecture, and one a data volume.
pub(crate) static IMAGES: &[Image] = &[
    Image {
        id: "ami-0a1b2c3d4e5f60001",
        name: "debian-12-amd64-20240201-1644",
        created: "2024-02-01T16:47:10.000Z",
        deprecated: Some("2026-02-01T16:47:10.000Z"),
        ..DEBIAN
    },
    Image {
        id: "ami-0a1b2c3d4e5f60002",
        name: "debian-12-amd64-20250316-2053",
        created: "2025-03-16T20:55:42.000Z",
        ..DEBIAN
    },
    Image {
        id: "ami-0a1b2c3d4e5f60003",
        name: "debian-12-amd64-20260112-2355",
        created: "2026-01-12T23:58:03.000Z",
        ..DEBIAN
    },
    Image {
        id: "ami-0a1b2c3d4e5f60004",
        name: "debian-12-arm64-20260112-2355",
        created: "2026-01-12T23:58:09.000Z",
        architecture: "arm64",
        ..DEBIAN
    },
    Image {
        id: "ami-0a1b2c3d4e5f60011",
        name: "al2023-ami-2023.6.20250303.0-kernel-6.1-x86_64",
        created: "2025-03-03T18:02:00.000Z",
        ..AMAZON
    },
    Image {
        id: "ami-0a1b2c3d4e5f60012",
        name: "al2023-ami-2023.9.20251110.1-kernel-6.1-x86_64",
        created: "2025-11-10T17:43:00.000Z",
        ..AMAZON
    },
    Image {
        id: "ami-0a1b2c3d4e5f60013",
        name: "al2023-ami-2023.9.20251110.1-kernel-6.1-arm64",
        created: "2025-11-10T17:43:12.000Z",
        architecture: "arm64",
        ..AMAZON
    },
    Image {
        id: "ami-0a1b2c3d4e5f60021",
        name: "somebodys-base-with-data-20260301",
        description: "Debian 12 with a data volume",
        owner: "210987654321",
        created: "2026-03-01T12:00:00.000Z",
        data: Some("/dev/sdf"),
        ..DEBIAN
    },
];

pub(crate) fn image(id: &str) -> Option<&'static Image> {
    IMAGES.iter().find(|image| image.id == id)
}
