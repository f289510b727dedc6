//! Services.

use drover_core::Reason;
use drover_proto::kubernetes::v1::{self as api, ServiceType};

use super::{
    Subject,
    fixture::{assert_reason, done, port},
};

async fn made(subject: &Subject, change: impl FnOnce(&mut api::ServiceSpec)) -> api::Service {
    let mut service = subject.service();
    change(service.spec.as_mut().unwrap());
    let made = subject.create_service(service).await.unwrap();
    let request = api::GetServiceRequest {
        namespace: subject.namespace.clone(),
        name: made.metadata.clone().unwrap().name,
    };
    let found = done(subject.services().get_service(request))
        .await
        .unwrap()
        .service
        .unwrap();
    assert_eq!(found.spec, made.spec);
    made
}

pub(super) async fn a_service_gets_an_address(subject: &Subject) {
    let spec = made(subject, |_| {}).await.spec.unwrap();
    assert_eq!(spec.r#type(), ServiceType::ClusterIp);
    assert!(
        spec.cluster_ip.parse::<std::net::IpAddr>().is_ok(),
        "{:?}",
        spec.cluster_ip
    );
    assert_eq!(spec.ports[0].node_port, 0);
}

pub(super) async fn target_ports_default_to_the_port(subject: &Subject) {
    let spec = made(subject, |_| {}).await.spec.unwrap();
    assert_eq!(spec.ports[0].target_port, port(80));
    let spec = made(subject, |spec| spec.ports[0].target_port = port(8080))
        .await
        .spec
        .unwrap();
    assert_eq!(spec.ports[0].target_port, port(8080));
}

pub(super) async fn a_node_port_is_chosen_and_answered(subject: &Subject) {
    let spec = made(subject, |spec| spec.r#type = ServiceType::NodePort as i32)
        .await
        .spec
        .unwrap();
    assert!(
        spec.ports[0].node_port >= 1024,
        "{}",
        spec.ports[0].node_port
    );
    assert_ne!(spec.cluster_ip, "");
}

pub(super) async fn a_headless_service_has_no_address(subject: &Subject) {
    let change = |spec: &mut api::ServiceSpec| {
        spec.cluster_ip = "None".into();
        spec.publish_not_ready_addresses = true;
    };
    let spec = made(subject, change).await.spec.unwrap();
    assert_eq!(spec.cluster_ip, "None");
    assert!(spec.publish_not_ready_addresses);
}

pub(super) async fn an_external_name_is_answered(subject: &Subject) {
    let change = |spec: &mut api::ServiceSpec| {
        spec.r#type = ServiceType::ExternalName as i32;
        spec.external_name = "db.example".into();
        spec.ports.clear();
        spec.selector.clear();
    };
    let spec = made(subject, change).await.spec.unwrap();
    assert_eq!(spec.r#type(), ServiceType::ExternalName);
    assert_eq!(
        (spec.external_name.as_str(), spec.cluster_ip.as_str()),
        ("db.example", "")
    );
}

pub(super) async fn several_ports_and_protocols_are_kept(subject: &Subject) {
    let change = |spec: &mut api::ServiceSpec| {
        let of = |name: &str, protocol: api::Protocol| api::ServicePort {
            name: name.into(),
            port: 53,
            protocol: protocol as i32,
            ..Default::default()
        };
        spec.ports = vec![
            of("dns", api::Protocol::Udp),
            of("dns-tcp", api::Protocol::Tcp),
        ];
        spec.ports[1].app_protocol = "example.com/dns".into();
    };
    let spec = made(subject, change).await.spec.unwrap();
    let kept: Vec<_> = spec
        .ports
        .iter()
        .map(|one| (one.name.as_str(), one.port, one.protocol()))
        .collect();
    assert_eq!(
        kept,
        [
            ("dns", 53, api::Protocol::Udp),
            ("dns-tcp", 53, api::Protocol::Tcp)
        ]
    );
    assert_eq!(spec.ports[1].app_protocol, "example.com/dns");
}

pub(super) async fn an_allocated_node_port_is_refused(subject: &Subject) {
    let taken = made(subject, |spec| spec.r#type = ServiceType::NodePort as i32)
        .await
        .spec
        .unwrap();
    let mut service = subject.service();
    let spec = service.spec.as_mut().unwrap();
    spec.r#type = ServiceType::NodePort as i32;
    spec.ports[0].node_port = taken.ports[0].node_port;
    assert_reason(
        "taken",
        subject.create_service(service).await,
        Reason::Invalid,
    );
}

pub(super) async fn services_are_deleted(subject: &Subject) {
    let name = made(subject, |_| {}).await.metadata.unwrap().name;
    for existed in [true, false] {
        let request = api::DeleteServiceRequest {
            namespace: subject.namespace.clone(),
            name: name.clone(),
        };
        let answer = done(subject.services().delete_service(request))
            .await
            .unwrap();
        assert_eq!(answer.existed, existed);
    }
}
