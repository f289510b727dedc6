//! Services, network policies and configurations.

use drover_proto::kubernetes::v1 as api;
use serde_json::json;

use super::{Row, selector};
use crate::faults::world::{World, done};

const POLICIES: &str = "networkpolicies.networking.k8s.io";

fn service(world: &World, name: &str) -> api::CreateServiceRequest {
    api::CreateServiceRequest {
        service: Some(api::Service {
            metadata: world.metadata(name),
            spec: Some(api::ServiceSpec {
                ports: vec![api::ServicePort {
                    port: 80,
                    ..api::ServicePort::default()
                }],
                ..api::ServiceSpec::default()
            }),
            ..api::Service::default()
        }),
    }
}

fn policy(world: &World, name: &str) -> api::CreateNetworkPolicyRequest {
    api::CreateNetworkPolicyRequest {
        network_policy: Some(api::NetworkPolicy {
            metadata: world.metadata(name),
            spec: Some(api::NetworkPolicySpec::default()),
        }),
    }
}

fn configuration(world: &World, name: &str, text: &str) -> api::Configuration {
    api::Configuration {
        metadata: world.metadata(name),
        data: [("text".to_owned(), text.to_owned())].into(),
        ..api::Configuration::default()
    }
}

macro_rules! make {
    ($resource:literal $($body:tt)*) => {
        |world, name| {
            Box::pin(async move {
                let object = json!({
                    "metadata": {"name": name, "labels": {"case": name}}, $($body)*
                });
                world.namespace.create($resource, &object).await.unwrap();
            })
        }
    };
}

macro_rules! call {
    ($client:ident.$call:ident, $request:ident { $($fields:tt)* } $(=> $check:expr)?) => {
        |world, name| {
            Box::pin(async move {
                let request = api::$request {
                    namespace: world.namespace.name.clone(),
                    ..call!(@fields name $request $($fields)*)
                };
                let answer = done(world.$client().$call(request)).await?;
                call!(@check answer $($check)?);
                Ok(())
            })
        }
    };
    (@check $answer:ident) => {
        let _ = $answer;
    };
    (@check $answer:ident $check:expr) => {
        ($check)($answer)
    };
    (@fields $name:ident $request:ident name) => {
        api::$request { name: $name.to_owned(), ..Default::default() }
    };
    (@fields $name:ident $request:ident selector) => {
        api::$request { selector: selector($name), ..Default::default() }
    };
}

pub(super) fn rows() -> Vec<Row> {
    let mut rows = services();
    rows.extend(policies());
    rows.extend(configurations());
    rows
}

fn services() -> Vec<Row> {
    vec![
        Row::creates(
            "ServiceService/CreateService",
            |world, name| {
                Box::pin(async move {
                    let request = service(world, name);
                    done(world.services().create_service(request))
                        .await
                        .map(drop)
                })
            },
            "services",
            |world, name| Box::pin(world.has("services", name)),
        ),
        Row::reads(
            "ServiceService/GetService",
            make!("services" "spec": {"ports": [{"port": 80}]}),
            call!(services.get_service, GetServiceRequest { name }),
        ),
        Row::reads(
            "ServiceService/ListServices",
            make!("services" "spec": {"ports": [{"port": 80}]}),
            call!(services.list_services, ListServicesRequest { selector }
                => |answer: api::ListServicesResponse| assert_eq!(answer.services.len(), 1)),
        ),
        Row::changes(
            "ServiceService/DeleteService",
            make!("services" "spec": {"ports": [{"port": 80}]}),
            call!(services.delete_service, DeleteServiceRequest { name }),
            ("delete", "services", |world, name| {
                Box::pin(async move { !world.has("services", name).await })
            }),
        ),
    ]
}

fn policies() -> Vec<Row> {
    vec![
        Row::creates(
            "NetworkPolicyService/CreateNetworkPolicy",
            |world, name| {
                Box::pin(async move {
                    let request = policy(world, name);
                    done(world.policies().create_network_policy(request))
                        .await
                        .map(drop)
                })
            },
            POLICIES,
            |world, name| Box::pin(world.has(POLICIES, name)),
        ),
        Row::reads(
            "NetworkPolicyService/GetNetworkPolicy",
            make!("networkpolicies.networking.k8s.io" "spec": {"podSelector": {}}),
            call!(
                policies.get_network_policy,
                GetNetworkPolicyRequest { name }
            ),
        ),
        Row::reads(
            "NetworkPolicyService/ListNetworkPolicies",
            make!("networkpolicies.networking.k8s.io" "spec": {"podSelector": {}}),
            call!(policies.list_network_policies, ListNetworkPoliciesRequest { selector }
            => |answer: api::ListNetworkPoliciesResponse| {
                assert_eq!(answer.network_policies.len(), 1);
            }),
        ),
        Row::changes(
            "NetworkPolicyService/DeleteNetworkPolicy",
            make!("networkpolicies.networking.k8s.io" "spec": {"podSelector": {}}),
            call!(
                policies.delete_network_policy,
                DeleteNetworkPolicyRequest { name }
            ),
            ("delete", POLICIES, |world, name| {
                Box::pin(async move { !world.has(POLICIES, name).await })
            }),
        ),
        Row::changes(
            "NetworkPolicyService/DeleteNetworkPolicies",
            make!("networkpolicies.networking.k8s.io" "spec": {"podSelector": {}}),
            call!(
                policies.delete_network_policies,
                DeleteNetworkPoliciesRequest { selector }
            ),
            ("delete", POLICIES, |world, name| {
                Box::pin(async move { !world.has(POLICIES, name).await })
            }),
        ),
    ]
}

fn configurations() -> Vec<Row> {
    vec![
        Row::creates(
            "ConfigurationService/CreateConfiguration",
            |world, name| {
                Box::pin(async move {
                    let request = api::CreateConfigurationRequest {
                        configuration: Some(configuration(world, name, "new")),
                    };
                    let call = world.configurations();
                    done({ call }.create_configuration(request)).await.map(drop)
                })
            },
            "configmaps",
            |world, name| Box::pin(world.has("configmaps", name)),
        ),
        Row::reads(
            "ConfigurationService/GetConfiguration",
            make!("configmaps" "data": {"text": "old"}),
            call!(
                configurations.get_configuration,
                GetConfigurationRequest { name }
            ),
        ),
        Row::reads(
            "ConfigurationService/ListConfigurations",
            make!("configmaps" "data": {"text": "old"}),
            call!(configurations.list_configurations, ListConfigurationsRequest { selector }
            => |answer: api::ListConfigurationsResponse| {
                assert_eq!(answer.configurations.len(), 1);
            }),
        ),
        Row::changes(
            "ConfigurationService/UpdateConfiguration",
            make!("configmaps" "data": {"text": "old"}),
            |world, name| {
                Box::pin(async move {
                    let request = api::UpdateConfigurationRequest {
                        configuration: Some(configuration(world, name, "new")),
                    };
                    let call = world.configurations();
                    done({ call }.update_configuration(request)).await.map(drop)
                })
            },
            ("update", "configmaps", |world, name| {
                Box::pin(async move {
                    let found = world.namespace.get("configmaps", name).await.unwrap();
                    found["data"]["text"] == "new"
                })
            }),
        ),
        Row::changes(
            "ConfigurationService/DeleteConfiguration",
            make!("configmaps" "data": {"text": "old"}),
            call!(
                configurations.delete_configuration,
                DeleteConfigurationRequest { name }
            ),
            ("delete", "configmaps", |world, name| {
                Box::pin(async move { !world.has("configmaps", name).await })
            }),
        ),
    ]
}
