//! Hosts that exist before they are nodes, and their `InventoryService`.

pub mod metal3;
pub mod properties;
mod service;

use async_trait::async_trait;
use drover_core::Result;
use drover_proto::platform::v1::Host;

/// A backend whose nodes are hosts of an inventory: `create` claims them and `delete` releases them.
#[async_trait]
pub trait Inventory: Send + Sync {
    /// Lists all hosts, whoever has claimed them, in any order. Returns an error rather than an incomplete list.
    ///
    /// # Errors
    ///
    /// Those of the backend.
    async fn hosts(&self) -> Result<Vec<Host>>;
}
