//! A firewall for the droplets of Drover. Without one, every port of a droplet can be reached from everywhere, since it has
//! a public address by default.

use std::time::Duration;

use drover_core::Result;
use reqwest::Method;
use serde_json::{Value, json};
use tokio::time::Instant;

use super::{DigitalOcean, client::Client};

/// Name of the firewall, and the tag by which it applies to a droplet.
pub(super) const CLOSED: &str = "drover-private";
/// How long it is not looked for again.
const KNOWN_FOR: Duration = Duration::from_secs(600);

impl DigitalOcean {
    /// Makes the firewall if the account has none of its name. One that exists is used as it is.
    ///
    /// # Errors
    /// Those of the API, such as `PermissionDenied`.
    pub(super) async fn ensure_firewall(&self) -> Result<()> {
        if self
            .closed
            .lock()
            .is_some_and(|seen| seen.elapsed() < KNOWN_FOR)
        {
            return Ok(());
        }
        let listed = listed(&self.client).await?;
        if !listed.iter().any(applies) {
            let tag = self.make_tag(CLOSED).await?;
            let body = rules(&tag);
            let path = ["firewalls"];
            let reply = self
                .client
                .call(Method::POST, &path, &[], Some(&body))
                .await?;
            // Another platform may have been faster.
            let exists = matches!(reply.status, 409 | 422)
                && self
                    .client
                    .list(&path, &[])
                    .await?
                    .items
                    .iter()
                    .any(applies);
            if !(200..300).contains(&reply.status) && !exists {
                return Err(reply.error(&format!("to make the firewall {CLOSED}")));
            }
        }
        *self.closed.lock() = Some(Instant::now());
        Ok(())
    }
}

/// The firewalls of the account.
///
/// # Errors
/// Those of the API: `PermissionDenied` if the token does not have the scope.
pub(super) async fn listed(client: &Client) -> Result<Vec<Value>> {
    Ok(client.list(&["firewalls"], &[]).await?.items)
}

fn applies(firewall: &Value) -> bool {
    let tags = firewall["tags"].as_array();
    firewall["name"] == CLOSED && tags.is_some_and(|tags| tags.iter().any(|tag| tag == CLOSED))
}

/// Lets in SSH and ICMP from everywhere and all from private networks, and lets out all.
fn rules(tag: &str) -> Value {
    let everywhere = json!({"addresses": ["0.0.0.0/0", "::/0"]});
    let private = json!({"addresses": ["10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16"]});
    let rule = |protocol: &str, ports: &str, side: &str, far: &Value| {
        // Ports have no meaning for ICMP; 0 stands for all of them.
        json!({"protocol": protocol, "ports": ports, side: far})
    };
    let all = |side: &'static str, far: &Value| {
        ["tcp", "udp", "icmp"]
            .into_iter()
            .map(|protocol| rule(protocol, "0", side, far))
            .collect::<Vec<_>>()
    };
    let mut inbound = all("sources", &private);
    inbound.push(rule("tcp", "22", "sources", &everywhere));
    inbound.push(rule("icmp", "0", "sources", &everywhere));
    json!({
        "name": CLOSED,
        "tags": [tag],
        "inbound_rules": inbound,
        "outbound_rules": all("destinations", &everywhere),
    })
}
