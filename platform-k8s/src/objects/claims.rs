//! Declared storage in the volume claims of a node.

use drover_core::{Error, Reason, Result};
use drover_proto::platform::v1::Storage;
use serde_json::{Map, Value};

use super::{Object, child};

/// The claim templates in an object.
///
/// # Errors
/// `Precondition` if they are not a list of maps.
pub(crate) fn templates(object: &mut Object) -> Result<Vec<&mut Map<String, Value>>> {
    if object.group() != "apps" || object.kind != "StatefulSet" {
        return Ok(Vec::new());
    }
    let path = "spec.volumeClaimTemplates";
    let claims = object
        .body
        .get("spec")
        .and_then(|spec| spec.get("volumeClaimTemplates"));
    match claims {
        None | Some(Value::Null) => return Ok(Vec::new()),
        Some(Value::Array(claims)) if claims.iter().all(Value::is_object) => {}
        Some(_) => return Err(object.wrong(format_args!("{path} is not a list of objects"))),
    }
    let claims = object
        .body
        .get_mut("spec")
        .and_then(|spec| spec.get_mut("volumeClaimTemplates"))
        .and_then(Value::as_array_mut);
    Ok(claims
        .into_iter()
        .flatten()
        .filter_map(Value::as_object_mut)
        .collect())
}

/// Sets the declared size and class on the claims of a node. The size goes to the only claim, or to those whose size
/// the template leaves open; the class to all that name none, a declared class to all that get the size.
///
/// # Errors
/// `Precondition` if storage is declared and no claim can take it.
pub(crate) fn apply(
    objects: &mut [Object],
    storage: Option<&Storage>,
    default_class: Option<&str>,
) -> Result<()> {
    let mut claims = Vec::new();
    for object in objects.iter_mut() {
        if object.group().is_empty() && object.kind == "PersistentVolumeClaim" {
            object.map_at(&["spec"])?;
            claims.push(&mut object.body);
        } else {
            claims.extend(templates(object)?);
        }
    }
    let only = claims.len() == 1;
    let mut served = false;
    for claim in claims {
        let spec = child(claim, "spec");
        let open = spec
            .get("resources")
            .and_then(|it| it.get("requests"))
            .and_then(|it| it.get("storage"))
            .is_none_or(Value::is_null);
        if let Some(storage) = storage.filter(|_| only || open) {
            served = true;
            if let Some(size) = storage.size_bytes {
                let requests = child(child(spec, "resources"), "requests");
                requests.insert("storage".to_owned(), Value::String(quantity(size)));
            }
            if !storage.class.is_empty() {
                let class = Value::String(storage.class.clone());
                spec.insert("storageClassName".to_owned(), class);
            }
        }
        let has_class = spec.get("storageClassName").is_some_and(|it| !it.is_null());
        if let Some(class) = default_class.filter(|_| !has_class) {
            spec.insert("storageClassName".to_owned(), class.into());
        }
    }
    if storage.is_some() && !served {
        return Err(Error::new(
            Reason::Precondition,
            "storage is declared, and the template makes no volume claim whose size it leaves open",
        ));
    }
    Ok(())
}

/// Bytes as a Kubernetes quantity, in the largest unit without a fraction.
fn quantity(bytes: u64) -> String {
    ["Ki", "Mi", "Gi", "Ti"]
        .iter()
        .scan(bytes, |rest, unit| {
            (*rest > 0 && rest.is_multiple_of(1024)).then(|| {
                *rest /= 1024;
                format!("{rest}{unit}")
            })
        })
        .last()
        .unwrap_or_else(|| bytes.to_string())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::objects::render::tests::objects;

    const CLAIM: &str = "{apiVersion: v1, kind: PersistentVolumeClaim, metadata: {name: a}, spec: {resources: {requests: {storage: 1Gi}}}}";
    const SET: &str = "{apiVersion: apps/v1, kind: StatefulSet, metadata: {name: b}, spec: {volumeClaimTemplates: [{metadata: {name: data}}, {spec: {storageClassName: slow, resources: {requests: {storage: 2Gi}}}}]}}";

    fn storage(class: &str) -> Storage {
        Storage {
            size_bytes: Some(5 << 30),
            class: class.to_owned(),
        }
    }

    #[test]
    fn sizes_are_written_as_people_write_them() {
        assert_eq!(quantity(5 << 30), "5Gi");
        assert_eq!(quantity(1 << 20), "1Mi");
        assert_eq!(quantity((1 << 20) + 1024), "1025Ki");
        assert_eq!(quantity(1000), "1000");
        assert_eq!(quantity(0), "0");
        assert_eq!(quantity(3 << 50), "3072Ti");
    }

    #[test]
    fn the_only_claim_gets_the_declared_size_and_class() {
        let mut all = objects(CLAIM);
        apply(&mut all, Some(&storage("fast")), Some("default")).unwrap();
        assert_eq!(
            all[0].body["spec"],
            json!({"resources": {"requests": {"storage": "5Gi"}}, "storageClassName": "fast"})
        );
    }

    #[test]
    fn of_several_claims_those_whose_size_is_open_get_it() {
        let mut all = objects(&format!("{CLAIM}\n---\n{SET}"));
        apply(&mut all, Some(&storage("")), Some("default")).unwrap();
        assert_eq!(
            all[0].body["spec"],
            json!({"resources": {"requests": {"storage": "1Gi"}}, "storageClassName": "default"})
        );
        let claims = &all[1].body["spec"]["volumeClaimTemplates"];
        assert_eq!(
            claims[0]["spec"],
            json!({"resources": {"requests": {"storage": "5Gi"}}, "storageClassName": "default"})
        );
        assert_eq!(claims[1]["spec"]["storageClassName"], "slow");
        assert_eq!(claims[1]["spec"]["resources"]["requests"]["storage"], "2Gi");
    }

    #[test]
    fn storage_that_no_claim_can_have_is_refused() {
        let mut all = objects("{apiVersion: v1, kind: Pod, metadata: {name: a}}");
        let error = apply(&mut all, Some(&storage("")), None).unwrap_err();
        assert!(error.message().contains("storage is declared"), "{error:?}");
        apply(&mut all, None, Some("fast")).unwrap();
    }
}
