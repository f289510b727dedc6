//! Ingresses and their rules, made of each of the three kinds of object.

use drover_core::Error;
use drover_proto::kubernetes::v1::{
    self as api, IngressBackend as Backend, ingress_service_client::IngressServiceClient,
};

use super::{Row, selector};
use crate::faults::world::{World, done};

fn host(world: &World, name: &str) -> String {
    format!("{name}.{}.example", world.namespace.name)
}

fn path(service: &str) -> api::IngressPath {
    api::IngressPath {
        path: format!("/{service}"),
        name: service.to_owned(),
        target: Some(api::ingress_path::Target::Service(api::ServiceTarget {
            name: service.to_owned(),
            port: Some(api::PortRef {
                port: Some(api::port_ref::Port::Number(80)),
            }),
        })),
        ..api::IngressPath::default()
    }
}

fn new(world: &World, name: &str, backend: Backend) -> api::CreateIngressRequest {
    let class_name = match backend {
        Backend::HttpRoute => "gateways/public",
        Backend::Unspecified | Backend::Ingress | Backend::VirtualService => "",
    };
    api::CreateIngressRequest {
        ingress: Some(api::Ingress {
            metadata: world.metadata(name),
            rules: vec![api::IngressRule {
                host: host(world, name),
                paths: vec![path("one")],
            }],
            class_name: class_name.to_owned(),
            ..api::Ingress::default()
        }),
        backend: backend.into(),
    }
}

async fn create(world: &World, name: &str, backend: Backend) -> Result<(), Error> {
    let request = new(world, name, backend);
    done(world.ingresses().create_ingress(request))
        .await
        .map(drop)
}

async fn make(world: &World, name: &str, backend: Backend) {
    let request = new(world, name, backend);
    let client = IngressServiceClient::new(world.direct.clone());
    done({ client }.create_ingress(request)).await.unwrap();
}

/// Names of the paths, past the proxy. `None`: there is no such ingress.
async fn paths(world: &World, name: &str, backend: Backend) -> Option<Vec<String>> {
    let request = api::GetRuleRequest {
        namespace: world.namespace.name.clone(),
        ingress: name.to_owned(),
        host: host(world, name),
        backend: backend.into(),
    };
    let client = IngressServiceClient::new(world.direct.clone());
    match done({ client }.get_rule(request)).await {
        Ok(answer) => {
            let paths = answer.rule.unwrap().paths.into_iter();
            Some(paths.map(|path| path.name).collect())
        }
        Err(error) if error.reason() == drover_core::Reason::NotFound => None,
        Err(error) => panic!("{error}"),
    }
}

async fn get(world: &World, name: &str, backend: Backend) -> Result<(), Error> {
    let request = api::GetIngressRequest {
        namespace: world.namespace.name.clone(),
        name: name.to_owned(),
        backend: backend.into(),
    };
    done(world.ingresses().get_ingress(request)).await.map(drop)
}

async fn list(world: &World, name: &str, backend: Backend) -> Result<(), Error> {
    let request = api::ListIngressesRequest {
        namespace: world.namespace.name.clone(),
        selector: selector(name),
        backend: backend.into(),
        ..api::ListIngressesRequest::default()
    };
    let listed = done(world.ingresses().list_ingresses(request)).await?;
    assert_eq!(listed.ingresses.len(), 1);
    Ok(())
}

async fn delete(world: &World, name: &str, backend: Backend) -> Result<(), Error> {
    let request = api::DeleteIngressRequest {
        namespace: world.namespace.name.clone(),
        name: name.to_owned(),
        backend: backend.into(),
    };
    let outcome = done(world.ingresses().delete_ingress(request)).await;
    outcome.map(drop)
}

async fn rule(world: &World, name: &str, backend: Backend) -> Result<(), Error> {
    let request = api::GetRuleRequest {
        namespace: world.namespace.name.clone(),
        ingress: name.to_owned(),
        host: host(world, name),
        backend: backend.into(),
    };
    let answer = done(world.ingresses().get_rule(request)).await?;
    assert_eq!(answer.rule.unwrap().paths.len(), 1);
    Ok(())
}

async fn upsert(world: &World, name: &str, backend: Backend) -> Result<(), Error> {
    let request = api::UpsertPathsRequest {
        namespace: world.namespace.name.clone(),
        ingress: name.to_owned(),
        host: host(world, name),
        paths: vec![path("two")],
        backend: backend.into(),
        ..api::UpsertPathsRequest::default()
    };
    let answer = done(world.ingresses().upsert_paths(request)).await?;
    assert_eq!(answer.rule.unwrap().paths.len(), 2);
    Ok(())
}

async fn remove(world: &World, name: &str, backend: Backend) -> Result<(), Error> {
    let key = api::path_key::Key::Name("one".to_owned());
    let request = api::RemovePathsRequest {
        namespace: world.namespace.name.clone(),
        ingress: name.to_owned(),
        host: host(world, name),
        paths: vec![api::PathKey { key: Some(key) }],
        backend: backend.into(),
    };
    let answer = done(world.ingresses().remove_paths(request)).await?;
    assert!(answer.rule.unwrap().paths.is_empty());
    Ok(())
}

macro_rules! kind {
    ($backend:path, $resource:literal) => {
        [
            Row::creates(
                "IngressService/CreateIngress",
                |world, name| Box::pin(create(world, name, $backend)),
                $resource,
                |world, name| Box::pin(async move { paths(world, name, $backend).await.is_some() }),
            ),
            Row::reads(
                "IngressService/GetIngress",
                |world, name| Box::pin(make(world, name, $backend)),
                |world, name| Box::pin(get(world, name, $backend)),
            ),
            Row::reads(
                "IngressService/ListIngresses",
                |world, name| Box::pin(make(world, name, $backend)),
                |world, name| Box::pin(list(world, name, $backend)),
            ),
            Row::changes(
                "IngressService/DeleteIngress",
                |world, name| Box::pin(make(world, name, $backend)),
                |world, name| Box::pin(delete(world, name, $backend)),
                ("delete", $resource, |world, name| {
                    Box::pin(async move { paths(world, name, $backend).await.is_none() })
                }),
            ),
            Row::reads(
                "IngressService/GetRule",
                |world, name| Box::pin(make(world, name, $backend)),
                |world, name| Box::pin(rule(world, name, $backend)),
            ),
            Row::changes(
                "IngressService/UpsertPaths",
                |world, name| Box::pin(make(world, name, $backend)),
                |world, name| Box::pin(upsert(world, name, $backend)),
                ("patch", $resource, |world, name| {
                    Box::pin(async move {
                        let paths = paths(world, name, $backend).await;
                        paths.unwrap() == ["one", "two"]
                    })
                }),
            ),
            Row::changes(
                "IngressService/RemovePaths",
                |world, name| Box::pin(make(world, name, $backend)),
                |world, name| Box::pin(remove(world, name, $backend)),
                ("patch", $resource, |world, name| {
                    Box::pin(async move {
                        let paths = paths(world, name, $backend).await;
                        paths.unwrap().is_empty()
                    })
                }),
            ),
        ]
        .map(|row| Row {
            leaves: Some($resource),
            ..row
        })
    };
}

pub(super) fn rows() -> Vec<Row> {
    let mut rows = Vec::new();
    rows.extend(kind!(Backend::Ingress, "ingresses.networking.k8s.io"));
    rows.extend(kind!(
        Backend::HttpRoute,
        "httproutes.gateway.networking.k8s.io"
    ));
    rows.extend(kind!(
        Backend::VirtualService,
        "virtualservices.gateway.solo.io"
    ));
    rows
}
