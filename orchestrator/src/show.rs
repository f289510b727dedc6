//! Formats stored records for dumps, for the kinds that only the orchestrator can decode.

use drover_cluster::{Interner, codec, resources};
use drover_planner::State;
use drover_proto::orchestrator::v1 as pb;
use drover_store::keys::Name;
use prost::Message;
use serde_json::{Value, json};

/// A stored value as JSON. `None` if it is not one of the orchestrator's kinds, or cannot be decoded.
#[must_use]
pub fn show(name: &Name, bytes: &[u8]) -> Option<Value> {
    let interner = Interner::default();
    match name {
        Name::Node(_, slot) => codec::decode_node(*slot, bytes, &interner, None).ok().map(|node| {
            json!({
                "name": node.name(), "request": node.request, "index": node.index, "sequence": node.sequence,
                "group": *node.group, "platform": *node.platform, "platformUid": *node.platform_uid,
                "nodeId": node.node_id, "state": format!("{:?}", node.state), "stateTimeMs": node.state_time,
                "reason": *node.reason, "message": node.message, "specHash": *node.spec_hash, "template": *node.template,
                "role": format!("{:?}", node.role), "removal": node.removal.map(|removal| removal.reason.as_str()),
                "storage": node.storage, "storageKept": node.removal.map(|removal| removal.retain), "settledMs": node.settled,
            })
        }),
        Name::Request(..) => {
            let (request, body) = codec::decode_request(&bytes.to_vec().into(), &interner).ok()?;
            Some(json!({
                "sequence": request.sequence, "group": *request.group, "platform": *request.platform,
                "platformUid": *request.platform_uid, "attempts": request.attempts,
                "madeNothing": request.made_nothing, "deadlineMs": request.deadline, "bodyBytes": body.len(),
            }))
        }
        Name::Resource(_, kind, _) if resources::KINDS.contains(&&**kind) => {
            let (key, record) = resources::codec::decode(bytes, &interner).ok()?;
            Some(crate::resources::show::json(&key, &record))
        }
        Name::Resource(..) => None,
        Name::Head(_) => {
            let mut state = State::default();
            codec::decode_head(bytes, &mut state, &interner).ok()?;
            let conditions = state.conditions.iter().map(|(key, condition)| {
                json!({
                    "group": *key.group, "type": key.kind.as_str(), "reason": *condition.reason,
                    "message": condition.message, "sinceMs": condition.since,
                })
            });
            let back_offs = state.backoffs.iter().map(|(key, back_off)| {
                json!({
                    "group": *key.group, "platform": *key.platform, "failures": back_off.failures,
                    "nextMs": back_off.next, "message": back_off.message,
                })
            });
            Some(json!({
                "conditions": conditions.collect::<Vec<_>>(), "backOffs": back_offs.collect::<Vec<_>>(),
                "used": state.used.iter().map(|(name, uid)| json!([**name, **uid])).collect::<Vec<_>>(),
            }))
        }
        Name::Platform(_) => {
            let spec = pb::PlatformSpec::decode(bytes).ok()?;
            Some(json!({"endpoint": spec.endpoint}))
        }
        Name::Replica(_)
        | Name::Doubt(_)
        | Name::Desired(_)
        | Name::Epoch(_)
        | Name::Owner(_)
        | Name::Meta
        | Name::ClusterName(_)
        | Name::Secret(_)
        | Name::UserData(..)
        | Name::Revision(..)
        | Name::Tombstone(_)
        | Name::Events(..) => None,
    }
}
