//! What requests say of paths, as the model has it.

use drover_core::{Error, Result};
use drover_proto::kubernetes::v1 as api;

use super::{
    discovery::Kind,
    rule::{Key, Matching, Path, Port, Selected, ServicePort, Target, Upstream},
};

/// The paths of an upsert or of a new rule. `field` is where they stand in the request.
pub(super) fn paths(
    field: &str,
    paths: &[api::IngressPath],
    kind: Kind,
    namespace: &str,
) -> Result<Vec<Path>> {
    let read = |(index, path)| one(&format!("{field}[{index}]"), path, kind, namespace);
    paths.iter().enumerate().map(read).collect()
}

fn one(field: &str, path: &api::IngressPath, kind: Kind, namespace: &str) -> Result<Path> {
    use api::ingress_path::Target as To;
    let key = key(field, &path.path, path.r#type, kind)?;
    let target = match (&path.target, kind) {
        (Some(To::Service(service)), _) => {
            Target::Service(service_port(&format!("{field}.service"), service)?)
        }
        (Some(To::Upstream(upstream)), Kind::VirtualService) => {
            if upstream.name.is_empty() {
                return Err(required(&format!("{field}.upstream.name")));
            }
            let own = upstream.namespace.is_empty();
            Target::Upstream(Upstream {
                namespace: if own { namespace } else { &upstream.namespace }.to_owned(),
                name: upstream.name.clone(),
                service: None,
            })
        }
        (Some(To::Upstream(_)), Kind::Ingress | Kind::HttpRoute) => {
            return Err(Error::invalid(
                format!("{field}.upstream"),
                "only a VirtualService leads to an upstream; name a service",
            ));
        }
        (None, _) => return Err(required(&format!("{field}.service"))),
    };
    Ok(Path {
        key,
        name: (!path.name.is_empty()).then(|| path.name.clone()),
        target,
        raw: None,
    })
}

fn key(field: &str, path: &str, matching: i32, kind: Kind) -> Result<Key> {
    let matching = self::matching(&format!("{field}.type"), matching)?;
    let refused = match (matching, kind) {
        (Matching::Regex, Kind::Ingress) => Some(
            "an Ingress knows no regular expressions; its class may, with IMPLEMENTATION_SPECIFIC",
        ),
        (Matching::Specific, Kind::HttpRoute | Kind::VirtualService) => {
            Some("only an Ingress has a class that could decide")
        }
        (Matching::Regex | Matching::Specific | Matching::Prefix | Matching::Exact, _) => None,
    };
    if let Some(why) = refused {
        return Err(Error::invalid(format!("{field}.type"), why));
    }
    let slash = match matching {
        Matching::Prefix | Matching::Exact => true,
        Matching::Regex | Matching::Specific => false,
    };
    if path.is_empty() && matching != Matching::Specific {
        return Err(required(&format!("{field}.path")));
    }
    if slash && !path.starts_with('/') {
        let why = "does not begin with a slash";
        return Err(Error::invalid(format!("{field}.path"), why));
    }
    Ok(Key {
        path: path.to_owned(),
        matching,
    })
}

fn matching(field: &str, value: i32) -> Result<Matching> {
    let known = api::PathType::try_from(value)
        .map_err(|_| Error::invalid(field, format!("unknown value {value}")))?;
    Ok(match known {
        api::PathType::Unspecified | api::PathType::Prefix => Matching::Prefix,
        api::PathType::Exact => Matching::Exact,
        api::PathType::Regex => Matching::Regex,
        api::PathType::ImplementationSpecific => Matching::Specific,
    })
}

fn service_port(field: &str, service: &api::ServiceTarget) -> Result<ServicePort> {
    use api::port_ref::Port as Ref;
    if service.name.is_empty() {
        return Err(required(&format!("{field}.name")));
    }
    let port = match service.port.as_ref().and_then(|port| port.port.as_ref()) {
        Some(Ref::Number(number)) => match u16::try_from(*number) {
            Ok(number) if number > 0 => Port::Number(number),
            Ok(_) | Err(_) => {
                let why = format!("{number} is not from 1 to 65535");
                return Err(Error::invalid(format!("{field}.port.number"), why));
            }
        },
        Some(Ref::Name(name)) if !name.is_empty() => Port::Name(name.clone()),
        Some(Ref::Name(_)) | None => return Err(required(&format!("{field}.port"))),
    };
    Ok(ServicePort {
        name: service.name.clone(),
        port,
    })
}

/// The paths of a removal. A service is found by the port as it is written in the request.
pub(super) fn selected(keys: &[api::PathKey], kind: Kind) -> Result<Vec<Selected>> {
    use api::path_key::Key as By;
    let read = |(index, key): (usize, &api::PathKey)| {
        let field = format!("paths[{index}]");
        Ok(match &key.key {
            Some(By::Match(found)) => {
                let field = format!("{field}.match");
                Selected::Match(self::key(&field, &found.path, found.r#type, kind)?)
            }
            Some(By::Name(name)) if !name.is_empty() => Selected::Name(name.clone()),
            Some(By::Service(service)) => {
                let found = service_port(&format!("{field}.service"), service)?;
                Selected::Service {
                    name: found.name,
                    ports: vec![found.port],
                }
            }
            Some(By::Name(_)) | None => return Err(required(&field)),
        })
    };
    keys.iter().enumerate().map(read).collect()
}

fn required(field: &str) -> Error {
    Error::invalid(field, "is required")
}
