//! Handle on a running emulator for tests and people.

use std::io;
use std::sync::Arc;

use crate::control::Control;
use crate::server::{Api, Server};
use crate::world::{Clock, Hand, Machine, Made, Settings};

/// A running emulator: its API behind a [`Server`]. Clones are the same emulator; it stops when the last of them is
/// dropped.
///
/// The module of an API names its own with `pub type Ec2 = Emulator<World>` and adds `start` and its other methods in
/// an `impl Emulator<World>`.
pub struct Emulator<A> {
    api: Arc<A>,
    server: Arc<Server>,
}

impl<A> Clone for Emulator<A> {
    fn clone(&self) -> Emulator<A> {
        Emulator {
            api: self.api.clone(),
            server: self.server.clone(),
        }
    }
}

impl<A> std::fmt::Debug for Emulator<A> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Emulator")
            .field("url", &self.server.url())
            .finish_non_exhaustive()
    }
}

impl<A: Api> Emulator<A> {
    /// Serves an API; `clock` is the one from which the API takes its times.
    pub async fn serve(
        api: Arc<A>,
        clock: Arc<Clock>,
        settings: &Settings,
    ) -> io::Result<Emulator<A>> {
        let server = Server::start(api.clone(), clock, settings).await?;
        Ok(Emulator { api, server })
    }

    /// Direct access to the API, bypassing HTTP.
    pub fn api(&self) -> &A {
        &self.api
    }

    /// `http://127.0.0.1:PORT`
    pub fn url(&self) -> String {
        self.server.url()
    }

    /// Fault injection and request log.
    pub fn control(&self) -> &Control {
        self.server.control()
    }

    /// Sets the offset of the emulator's clock from the machine's, in milliseconds; negative if it is behind.
    pub fn set_skew_ms(&self, skew_ms: i64) {
        self.server.clock().set_skew_ms(skew_ms);
    }

    /// All machines that are not deleted, whether lists show them or not.
    pub fn machines(&self) -> Vec<Machine> {
        self.api.machines()
    }

    /// All resources ever created, oldest first.
    pub fn ledger(&self) -> Vec<Made> {
        self.api.ledger()
    }

    /// Terminates a machine out of band, as a person at the console would, even if it is protected. Returns false if
    /// there is no such machine.
    pub fn terminate_behind(&self, id: &str) -> bool {
        self.api.by_hand(id, &Hand::Terminate)
    }

    /// Stops a machine out of band, as a person at the console would. Returns false if there is no such machine or it
    /// is not running.
    pub fn stop_by_hand(&self, id: &str) -> bool {
        self.api.by_hand(id, &Hand::Stop)
    }

    /// Sets tags of a machine, and removes those without a value. Returns false if there is no such machine.
    pub fn retag_by_hand(&self, id: &str, tags: &[(&str, Option<&str>)]) -> bool {
        let tags = tags
            .iter()
            .map(|(key, value)| ((*key).to_owned(), value.map(str::to_owned)));
        self.api.by_hand(id, &Hand::Retag(tags.collect()))
    }

    /// Closes all connections and the port. The state remains readable.
    pub async fn shutdown(&self) {
        self.server.shutdown().await;
    }
}
