//! Nodes as real processes: lifecycle, deletion, and recovery by a restarted platform.

mod durable;
mod endpoints;
mod inside;
mod life;
mod limits;
mod making;
mod tenants;

use std::collections::BTreeMap;

use prost_types::{Struct, Value, value::Kind};

fn text(value: &str) -> Value {
    Value {
        kind: Some(Kind::StringValue(value.to_owned())),
    }
}

fn with_attribute(
    mut request: drover_proto::platform::v1::ProvisionRequest,
    name: &str,
    value: Value,
) -> drover_proto::platform::v1::ProvisionRequest {
    let attributes = Struct {
        fields: BTreeMap::from([(name.to_owned(), value)]),
    };
    request.cluster.as_mut().unwrap().attributes = Some(attributes);
    request
}
