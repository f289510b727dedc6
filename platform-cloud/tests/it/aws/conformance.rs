//! The conformance suite of platforms.

use std::{sync::Arc, time::Duration};

use aws_sdk_ec2::types::{InstanceType, ResourceType, Tag, TagSpecification};
use drover_emulators::ec2::Ec2Settings;
use drover_proto::platform::v1::{
    EndpointSpec, FirewallDirection, FirewallRule, FirewallSpec, InfrastructureSpec, NetworkSpec,
    PortRange,
};
use drover_testing::platform::{Subject, conformance};
use drover_testing::wait::PATIENCE;
use futures::FutureExt;

use crate::aws::bench::{Backend, Bench, sdk, serve};

/// A spec with network, endpoint and a rule.
pub(crate) fn wanted() -> InfrastructureSpec {
    InfrastructureSpec {
        network: Some(NetworkSpec {
            cidr: "10.20.0.0/20".to_owned(),
            public: "internet".to_owned(),
            ..NetworkSpec::default()
        }),
        endpoint: Some(EndpointSpec::default()),
        firewall: Some(FirewallSpec {
            rules: vec![FirewallRule {
                direction: FirewallDirection::Ingress.into(),
                cidrs: vec!["203.0.113.0/24".to_owned()],
                ports: vec![PortRange { first: 22, last: 0 }],
                comment: "office".to_owned(),
                ..FirewallRule::default()
            }],
            ..FirewallSpec::default()
        }),
        properties: None,
    }
}

fn subject(bench: &Bench) -> Subject {
    let server = Arc::clone(&bench.server);
    let mut subject = Subject::new(move || drover_client::in_process(server.lock().routes()));
    subject.patience = PATIENCE;
    subject.infrastructure = Some(wanted());
    subject.unknown_store = Some("no-such-store".to_owned());
    subject.fuzz_rounds = 100;
    let url = bench.settings.endpoint.clone();
    let image = bench.settings.image.clone();
    subject.make_foreign = Some(Arc::new(move || {
        let (url, image) = (url.clone(), image.clone());
        async move {
            let client = sdk(&url);
            let images = client
                .describe_images()
                .owners("amazon")
                .send()
                .await
                .unwrap();
            let image = if image.starts_with("ami-") {
                image
            } else {
                images.images()[0].image_id().unwrap().to_owned()
            };
            let tag = Tag::builder().key("team").value("somebody").build();
            let tags = TagSpecification::builder()
                .resource_type(ResourceType::Instance)
                .tags(tag)
                .build();
            let made = client
                .run_instances()
                .image_id(image)
                .instance_type(InstanceType::T3Micro)
                .min_count(1)
                .max_count(1)
                .tag_specifications(tags)
                .send()
                .await
                .unwrap();
            let id = made.instances()[0].instance_id().unwrap().to_owned();
            (String::new(), id)
        }
        .boxed()
    }));
    let (server, settings) = (Arc::clone(&bench.server), bench.settings.clone());
    subject.restart = Some(Arc::new(move || {
        let (server, settings) = (Arc::clone(&server), settings.clone());
        async move {
            let before = Arc::clone(&server.lock());
            before.shutdown().await;
            let after = serve(&settings).await.unwrap();
            *server.lock() = Arc::new(after);
        }
        .boxed()
    }));
    subject
}

/// No slot was created twice: every instance of a request has its own row.
fn nothing_is_doubled(bench: &Bench) {
    let Backend::Emulator(ec2) = &bench.backend else {
        return;
    };
    let mut keys: Vec<String> = ec2
        .ledger()
        .into_iter()
        .filter(|made| made.kind == "instance" && !made.foreign)
        .filter(|made| made.tags.contains_key("drover.dev/request"))
        .map(|made| made.id)
        .collect();
    let all = keys.len();
    keys.sort();
    keys.dedup();
    assert!(all > 0 && keys.len() == all);
}

#[tokio::test(flavor = "multi_thread")]
async fn ec2_conforms_on_the_emulator() {
    let mut settings = Ec2Settings {
        vpc_quota: 50,
        address_quota: 50,
        ..Ec2Settings::default()
    };
    settings.common.pending_delay = Duration::from_millis(50);
    settings.common.stopping_delay = Duration::from_millis(50);
    settings.common.visibility_delay = Duration::from_millis(50);
    let bench = Bench::emulated(settings).await;
    conformance(&subject(&bench)).await;
    nothing_is_doubled(&bench);
}

#[tokio::test(flavor = "multi_thread")]
async fn ec2_conforms_on_moto() {
    let bench = Bench::moto().await;
    let mut subject = subject(&bench);
    // Random requests are the emulator's business.
    subject.fuzz_rounds = 20;
    conformance(&subject).await;
}
