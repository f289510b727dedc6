//! Whether hosts are free: two objects that route one host are served in an order that nobody chose.

use std::collections::BTreeSet;

use drover_core::{Error, Reason, Result};
use kube::{ResourceExt, core::DynamicObject};

use super::{
    discovery::Kind,
    meta,
    objects::{self, Objects},
    route,
};

/// Refuses hosts that something other than the ingress routes. The rule for every host is nobody's alone.
pub(super) async fn check_free(
    objects: &Objects,
    kind: Kind,
    namespace: &str,
    ingress: &str,
    hosts: &BTreeSet<&str>,
) -> Result<()> {
    if hosts.iter().all(|host| host.is_empty()) {
        return Ok(());
    }
    let all = objects
        .list(&kind.resource(), &objects.everywhere(), "")
        .await?;
    for object in &all {
        let own =
            object.namespace().as_deref() == Some(namespace) && meta::ingress_of(object) == ingress;
        if !own && !route::is_behind(object) {
            check(kind, object, hosts)?;
        }
    }
    Ok(())
}

fn check(kind: Kind, object: &DynamicObject, hosts: &BTreeSet<&str>) -> Result<()> {
    let taken = objects::hosts(kind, object);
    let Some(host) = taken
        .iter()
        .find(|host| !host.is_empty() && hosts.contains(host.as_str()))
    else {
        return Ok(());
    };
    let namespace = object.namespace().unwrap_or_default();
    // By the name under which callers find it, not by that of the object that it is made of.
    let name = format!("{namespace}/{}", meta::ingress_of(object));
    let message = format!("the {} {name:?} routes the host {host:?}", kind.name());
    Err(Error::new(Reason::IngressHostTaken, message)
        .with_resource(kind.name(), name)
        .with_metadata("host", host))
}

#[cfg(test)]
mod tests {
    use drover_core::Reason;
    use serde_json::json;

    use super::*;

    #[test]
    fn an_ingress_of_several_objects_is_named_as_one() {
        let object: DynamicObject = serde_json::from_value(json!({
            "metadata": {
                "name": "shop-1f0c2a", "namespace": "n", "annotations": {"drover.dev/ingress": "shop"},
            },
            "spec": {"virtualHost": {"domains": ["a.example"]}},
        }))
        .unwrap();
        let error = check(Kind::VirtualService, &object, &["a.example"].into()).unwrap_err();
        assert_eq!(error.resource(), Some(("VirtualService", "n/shop")));
    }

    #[test]
    fn a_host_that_another_object_routes_is_refused_with_its_name() {
        let object: DynamicObject = serde_json::from_value(json!({
            "metadata": {"name": "shop", "namespace": "n"},
            "spec": {"rules": [{"host": "a.example"}, {}]},
        }))
        .unwrap();
        let error = check(Kind::Ingress, &object, &["a.example"].into()).unwrap_err();
        assert_eq!(error.reason(), Reason::IngressHostTaken);
        assert_eq!(error.resource(), Some(("Ingress", "n/shop")));
        check(Kind::Ingress, &object, &["b.example", ""].into()).unwrap();
    }
}
