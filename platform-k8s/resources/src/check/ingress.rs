//! Ingresses, and the paths of their hosts.

use std::collections::BTreeSet;

use drover_core::Result;
use drover_proto::kubernetes::v1::{self as api, PathType, ingress_path, path_key};

use super::{Check, syntax};
use crate::served::Served;

/// Most paths of a host. One object must hold them all.
pub const MAX_PATHS: usize = 1000;

/// An ingress to create, and its backend.
pub(crate) fn create_ingress(
    request: api::CreateIngressRequest,
    served: &Served,
) -> Result<(api::Ingress, api::IngressBackend)> {
    let mut check = Check::default();
    check.known::<api::IngressBackend>("backend", request.backend);
    let backend = request.backend();
    if request.ingress.is_none() {
        check.wrong("ingress", "is required");
    }
    let mut ingress = request.ingress.unwrap_or_default();
    ingress.addresses.clear();
    ingress.backend = api::IngressBackend::Unspecified as i32;
    let metadata = &mut ingress.metadata;
    check.metadata(
        "ingress.metadata",
        metadata,
        syntax::subdomain,
        served,
        false,
    );
    let namespace = metadata
        .as_ref()
        .map(|metadata| metadata.namespace.clone())
        .unwrap_or_default();
    let mut hosts = BTreeSet::new();
    for (at, rule) in ingress.rules.iter_mut().enumerate() {
        let field = format!("ingress.rules[{at}]");
        let host = format!("{field}.host");
        check.optional(&host, &rule.host, syntax::host);
        check.unique(&mut hosts, host, rule.host.clone());
        check.paths(&format!("{field}.paths"), &mut rule.paths, &namespace);
    }
    for (at, tls) in ingress.tls.iter().enumerate() {
        let field = format!("ingress.tls[{at}]");
        if tls.hosts.is_empty() {
            check.wrong(format!("{field}.hosts"), "is required: at least one");
        }
        for (at, host) in tls.hosts.iter().enumerate() {
            check.required(format!("{field}.hosts[{at}]"), host, syntax::host);
        }
        check.required(format!("{field}.secret"), &tls.secret, syntax::subdomain);
    }
    check.optional("ingress.class_name", &ingress.class_name, class);
    check.finish()?;
    Ok((ingress, backend))
}

/// Paths to add or replace.
pub(crate) fn upsert_paths(
    mut request: api::UpsertPathsRequest,
    served: &Served,
) -> Result<api::UpsertPathsRequest> {
    let mut check = Check::default();
    check.namespace("namespace", &mut request.namespace, served);
    check.required("ingress", &request.ingress, syntax::subdomain);
    check.optional("host", &request.host, syntax::host);
    check.known::<api::IngressBackend>("backend", request.backend);
    if request.paths.is_empty() {
        check.wrong("paths", "is required: at least one");
    }
    check.paths("paths", &mut request.paths, &request.namespace);
    check.finish()?;
    Ok(request)
}

/// Paths to remove.
pub(crate) fn remove_paths(
    mut request: api::RemovePathsRequest,
    served: &Served,
) -> Result<api::RemovePathsRequest> {
    let mut check = Check::default();
    check.namespace("namespace", &mut request.namespace, served);
    check.required("ingress", &request.ingress, syntax::subdomain);
    check.optional("host", &request.host, syntax::host);
    check.known::<api::IngressBackend>("backend", request.backend);
    if request.paths.is_empty() {
        check.wrong("paths", "is required: at least one");
    }
    check.many("paths", request.paths.len());
    for (at, key) in request.paths.iter_mut().enumerate() {
        let field = format!("paths[{at}]");
        match &mut key.key {
            None => check.wrong(field, "is required: match, name or service"),
            Some(path_key::Key::Match(one)) => {
                let field = format!("{field}.match");
                check.path(&field, &one.path, &mut one.r#type);
            }
            Some(path_key::Key::Name(name)) => {
                check.required(format!("{field}.name"), name, syntax::subdomain);
            }
            Some(path_key::Key::Service(service)) => {
                check.target(&format!("{field}.service"), service);
            }
        }
    }
    check.finish()?;
    Ok(request)
}

impl Check {
    fn many(&mut self, field: &str, number: usize) {
        if number > MAX_PATHS {
            let why = format!("has {number} paths; at most {MAX_PATHS} are allowed");
            self.wrong(field, why);
        }
    }

    /// Paths of one host. `namespace` is that of the ingress.
    fn paths(&mut self, field: &str, paths: &mut [api::IngressPath], namespace: &str) {
        self.many(field, paths.len());
        let (mut keys, mut names) = (BTreeSet::new(), BTreeSet::new());
        for (at, path) in paths.iter_mut().enumerate() {
            let field = format!("{field}[{at}]");
            path.opaque = false;
            self.path(&field, &path.path, &mut path.r#type);
            let key = (path.path.clone(), path.r#type);
            self.unique(&mut keys, format!("{field}.path"), key);
            if !path.name.is_empty() {
                let name = format!("{field}.name");
                self.said(&name, syntax::subdomain(&path.name));
                self.unique(&mut names, name, path.name.clone());
            }
            match &mut path.target {
                None => self.wrong(field, "is required: service or upstream"),
                Some(ingress_path::Target::Service(service)) => {
                    self.target(&format!("{field}.service"), service);
                }
                Some(ingress_path::Target::Upstream(upstream)) => {
                    let field = format!("{field}.upstream");
                    self.required(format!("{field}.name"), &upstream.name, syntax::subdomain);
                    if upstream.namespace.is_empty() {
                        namespace.clone_into(&mut upstream.namespace);
                    }
                    self.said(
                        format!("{field}.namespace"),
                        syntax::label(&upstream.namespace),
                    );
                }
            }
        }
    }

    fn path(&mut self, field: &str, path: &str, kind: &mut i32) {
        self.known::<PathType>(format!("{field}.type"), *kind);
        if *kind == PathType::Unspecified as i32 {
            *kind = PathType::Prefix as i32;
        }
        let syntax = if *kind == PathType::Regex as i32 {
            syntax::regular
        } else {
            syntax::route
        };
        self.required(format!("{field}.path"), path, syntax);
    }

    fn target(&mut self, field: &str, service: &api::ServiceTarget) {
        self.required(format!("{field}.name"), &service.name, syntax::label_1035);
        let port = format!("{field}.port");
        self.port_ref(&port, service.port.as_ref(), syntax::label);
    }
}

/// An ingress class, or a Gateway with its namespace.
fn class(text: &str) -> Result<(), String> {
    match text.split_once('/') {
        None => syntax::subdomain(text),
        Some((namespace, name)) => syntax::label(namespace).and_then(|()| syntax::subdomain(name)),
    }
}
