//! Emulators in this process, and drivers for them.

use std::{collections::BTreeMap, fs, path::PathBuf, pin::Pin, time::Duration};

use anyhow::Context;
use drover_emulators::{
    digitalocean::{DigitalOcean, DigitalOceanSettings, SshKey},
    ec2::{Ec2, Ec2Settings},
    gce::{Gce, GceSettings},
    metal::{Access, Metal, MetalSettings},
};
use drover_platform_cloud::{
    DriverSettings, Settings,
    cloud::CloudSettings,
    drivers::{aws, digitalocean, gcp, metal},
};

use super::{super::data::DataDir, Cloud, Emulated};

/// How long machines take to start and to terminate: long enough for people to see it.
const PENDING: Duration = Duration::from_secs(2);
/// How long lists do not contain a new machine, as on real clouds.
const INVISIBLE: Duration = Duration::from_millis(500);
/// Names of the key pairs in the examples.
const KEYS: [&str; 3] = ["default", "mwas", "ops"];
const REGION: &str = "eu-central-1";
/// The project of the examples.
const PROJECT: &str = "00000000-0000-0000-0000-000000000000";

/// Shuts down an emulator.
type End = Pin<Box<dyn Future<Output = ()> + Send>>;

/// The running emulators.
#[derive(Default)]
pub(in crate::dev) struct Emulators {
    ends: Vec<End>,
    urls: Vec<(String, String)>,
}

/// A running emulator, and the settings of a driver for it.
struct Started {
    driver: DriverSettings,
    url: String,
    end: End,
}

impl Emulators {
    /// Starts the emulators. Returns the settings of the platforms on them.
    pub(in crate::dev) async fn start(
        emulated: &[Emulated],
        data: &DataDir,
    ) -> anyhow::Result<(Self, Vec<(String, Settings)>)> {
        let mut running = Self::default();
        let mut platforms = Vec::new();
        for one in emulated {
            let started = start(one, data)
                .await
                .with_context(|| format!("emulator {}", one.name))?;
            running.ends.push(started.end);
            running.urls.push((one.name.clone(), started.url));
            let settings = Settings {
                driver: started.driver,
                templates: None,
            };
            platforms.push((one.name.clone(), settings));
        }
        Ok((running, platforms))
    }

    /// Names of the platforms, and URLs of their clouds.
    pub(in crate::dev) fn urls(&self) -> &[(String, String)] {
        &self.urls
    }

    pub(in crate::dev) async fn shutdown(self) {
        for end in self.ends {
            end.await;
        }
    }
}

async fn start(one: &Emulated, data: &DataDir) -> anyhow::Result<Started> {
    Ok(match one.cloud {
        Cloud::Aws => {
            let emulator = Ec2::start(Ec2Settings {
                common: delays(),
                region: REGION.into(),
                key_pairs: KEYS.map(str::to_owned).to_vec(),
                ..Ec2Settings::default()
            })
            .await?;
            let credentials =
                "[default]\naws_access_key_id = emulated\naws_secret_access_key = emulated\n";
            let settings = aws::Settings {
                common: quick(CloudSettings::default()),
                region: REGION.into(),
                endpoint: emulator.url(),
                credentials_file: Some(secret(data, &one.name, credentials)?),
                profile: "default".into(),
                image: "debian".into(),
                // The release that the emulator has.
                catalogue: BTreeMap::from([(
                    "debian".to_owned(),
                    aws::ImagePattern {
                        owner: "136693071363".into(),
                        name: "debian-12-{deb_arch}-*".into(),
                    },
                )]),
                instance_type: "t3.small".into(),
                ..aws::Settings::default()
            };
            Started {
                driver: DriverSettings::from(settings),
                url: emulator.url(),
                end: Box::pin(async move { emulator.shutdown().await }),
            }
        }
        Cloud::Gcp => {
            let project = GceSettings::default().project;
            let emulator = Gce::start(GceSettings {
                common: delays(),
                ..GceSettings::default()
            })
            .await?;
            // The sample of Kadende uses names that only exist on EC2.
            let mut common = quick(CloudSettings::default());
            common.images.insert("amazonlinux".into(), "rocky".into());
            for (theirs, ours) in [("t2.micro", "e2-micro"), ("t2.small", "e2-small")] {
                common.node_classes.insert(theirs.into(), ours.into());
            }
            let settings = gcp::Settings {
                common,
                project,
                region: "europe-west3".into(),
                endpoint: Some(emulator.url()),
                anonymous: true,
                ssh_keys: public_keys(true),
                ..gcp::Settings::default()
            };
            Started {
                driver: DriverSettings::from(settings),
                url: emulator.url(),
                end: Box::pin(async move { emulator.shutdown().await }),
            }
        }
        Cloud::DigitalOcean => {
            let mut emulated = DigitalOceanSettings {
                common: delays(),
                ..DigitalOceanSettings::default()
            };
            let token = emulated.tokens.first().cloned().unwrap_or_default();
            for (id, name) in (1u64..).zip(KEYS) {
                if !emulated.keys.iter().any(|key| key.name == name) {
                    let fingerprint = format!("00:{id:02x}");
                    emulated.keys.push(SshKey {
                        id,
                        name: name.to_owned(),
                        fingerprint,
                    });
                }
            }
            let emulator = DigitalOcean::start(emulated).await?;
            let settings = digitalocean::Settings {
                common: quick(digitalocean::Settings::default().common),
                endpoint: emulator.url(),
                token_file: Some(secret(data, &one.name, &token)?),
                regions: vec!["fra1".into()],
                instance_type: "s-1vcpu-1gb".into(),
                ..digitalocean::Settings::default()
            };
            Started {
                driver: DriverSettings::from(settings),
                url: emulator.url(),
                end: Box::pin(async move { emulator.shutdown().await }),
            }
        }
        Cloud::Metal => {
            let emulated = MetalSettings {
                common: delays(),
                ..MetalSettings::default()
            };
            let may_edit = |(_, access): &(&String, &Access)| matches!(access, Access::Edit);
            let token = emulated.tokens.iter().find(may_edit);
            let token = token.map(|(token, _)| token.clone()).unwrap_or_default();
            let emulator = Metal::start(emulated).await?;
            let settings = metal::Settings {
                common: quick(metal::Settings::default().common),
                url: emulator.url(),
                project: PROJECT.into(),
                stack: "emulated".into(),
                token_file: Some(secret(data, &one.name, &token)?),
                ssh_keys: public_keys(false),
                ..metal::Settings::default()
            };
            Started {
                driver: DriverSettings::from(settings),
                url: emulator.url(),
                end: Box::pin(async move { emulator.shutdown().await }),
            }
        }
    })
}

fn delays() -> drover_emulators::Settings {
    drover_emulators::Settings {
        pending_delay: PENDING,
        stopping_delay: PENDING,
        visibility_delay: INVISIBLE,
        ..drover_emulators::Settings::default()
    }
}

/// Polls faster, as calls to an emulator cost nothing and a person is watching.
fn quick(common: CloudSettings) -> CloudSettings {
    CloudSettings {
        calls_per_second: 50.0,
        poll_interval_seconds: 1.0,
        pending_poll_interval_seconds: 0.5,
        visibility_delay_seconds: 2.0,
        ..common
    }
}

/// Public keys by their names in the examples, in the format of Compute Engine (with a user) or of metal-stack.
fn public_keys(with_user: bool) -> BTreeMap<String, String> {
    let user = if with_user { "drover:" } else { "" };
    let key = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIGVtdWxhdGVkZW11bGF0ZWRlbXVsYXRlZGVtdWxhdGVk";
    KEYS.map(|name| (name.to_owned(), format!("{user}{key} {name}")))
        .into()
}

/// Writes a file with credentials that are only valid for an emulator. Drivers read credentials from files.
fn secret(data: &DataDir, name: &str, content: &str) -> anyhow::Result<PathBuf> {
    let path = data.emulated(name);
    fs::write(&path, content).with_context(|| format!("cannot write {}", path.display()))?;
    Ok(path)
}
