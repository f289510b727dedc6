//! Firewalls that apply to droplets by their tags
//! (<https://docs.digitalocean.com/products/networking/firewalls/details/features/>): a droplet without any lets in
//! everything; with some, it lets in what one of them does.

use serde_json::{Value, json};
use tokio::time::Instant;

use super::{World, error, unprocessable};
use crate::server::{Answer, Call};

impl World {
    pub(super) fn create_firewall(&self, call: &Call) -> Result<Answer, Answer> {
        let Ok(Value::Object(mut firewall)) = call.json() else {
            return Err(error(400, "bad_request", "the body is not a JSON object"));
        };
        let name = firewall
            .get("name")
            .and_then(Value::as_str)
            .unwrap_or_default();
        let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-');
        if name.is_empty() || !name.chars().all(allowed) {
            return Err(unprocessable("name is invalid"));
        }
        let mut state = self.state.lock();
        if state.firewalls.iter().any(|known| known["name"] == name) {
            return Err(error(409, "conflict", "duplicate name"));
        }
        let tags = firewall.get("tags").and_then(Value::as_array).cloned();
        for tag in tags.iter().flatten() {
            if !state.tags.values().any(|known| tag == known) {
                return Err(unprocessable("tag does not exist"));
            }
        }
        for (key, value) in [
            ("id", json!(uuid::Uuid::new_v4().to_string())),
            ("status", json!("succeeded")),
            ("created_at", json!("2024-01-01T00:00:00Z")),
            ("droplet_ids", json!([])),
            ("pending_changes", json!([])),
        ] {
            firewall.insert(key.to_owned(), value);
        }
        let firewall = Value::Object(firewall);
        state.firewalls.push(firewall.clone());
        Ok(Answer::json(202, &json!({"firewall": firewall})))
    }

    /// Whether a TCP port of a droplet can be reached from everywhere.
    pub(super) fn lets_in(&self, id: &str, port: u16) -> bool {
        let state = self.state.lock();
        let droplet = id.parse().ok().and_then(|id: u64| state.droplets.get(&id));
        let Some(droplet) = droplet.filter(|droplet| droplet.public) else {
            return false;
        };
        let tags = droplet.tags(Instant::now());
        let mut applying = state
            .firewalls
            .iter()
            .filter(|firewall| {
                let of = firewall["tags"].as_array();
                of.is_some_and(|of| of.iter().any(|tag| tags.iter().any(|has| tag == has)))
            })
            .peekable();
        applying.peek().is_none() || applying.any(|firewall| opens(firewall, port))
    }
}

fn opens(firewall: &Value, port: u16) -> bool {
    let rules = firewall["inbound_rules"].as_array();
    rules.into_iter().flatten().any(|rule| {
        let sources = rule["sources"]["addresses"].as_array();
        let everywhere = sources.is_some_and(|sources| sources.contains(&json!("0.0.0.0/0")));
        let ports = rule["ports"].as_str().unwrap_or_default();
        let (first, last) = ports.split_once('-').unwrap_or((ports, ports));
        let within = match (first.parse::<u16>(), last.parse::<u16>()) {
            (Ok(0), _) => true,
            (Ok(first), Ok(last)) => (first..=last).contains(&port),
            _ => ports == "all",
        };
        everywhere && within && rule["protocol"] == "tcp"
    })
}
