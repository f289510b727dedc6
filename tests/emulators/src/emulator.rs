//! What a test or a person holds of a running emulator.

use std::io;
use std::sync::Arc;

use crate::control::Control;
use crate::server::{Api, Server};
use crate::world::{Clock, Hand, Machine, Made, Settings};

/// A running emulator: its API behind a [`Server`]. Clones are the same emulator; it ends when the last of them goes.
///
/// A module of an API names its own with `pub type Ec2 = Emulator<World>` and adds `start` and what else it has in an
/// `impl Emulator<World>`.
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
    /// Serves an API; `clock` is the one that it takes its times from.
    pub async fn serve(
        api: Arc<A>,
        clock: Arc<Clock>,
        settings: &Settings,
    ) -> io::Result<Emulator<A>> {
        let server = Server::start(api.clone(), clock, settings).await?;
        Ok(Emulator { api, server })
    }

    /// The API, past HTTP.
    pub fn api(&self) -> &A {
        &self.api
    }

    /// `http://127.0.0.1:PORT`
    pub fn url(&self) -> String {
        self.server.url()
    }

    /// Faults and log.
    pub fn control(&self) -> &Control {
        self.server.control()
    }

    /// How far the emulator's clock is ahead of the machine's, in milliseconds; negative: behind.
    pub fn set_skew_ms(&self, skew_ms: i64) {
        self.server.clock().set_skew_ms(skew_ms);
    }

    /// Every machine that is not gone, visible to lists or not.
    pub fn machines(&self) -> Vec<Machine> {
        self.api.machines()
    }

    /// Everything that was ever made, oldest first.
    pub fn ledger(&self) -> Vec<Made> {
        self.api.ledger()
    }

    /// Terminates a machine as a person at the console would, whatever protects it. False: there is none.
    pub fn terminate_behind(&self, id: &str) -> bool {
        self.api.by_hand(id, &Hand::Terminate)
    }

    /// Stops a machine as a person at the console would. False: there is none, or it does not run.
    pub fn stop_by_hand(&self, id: &str) -> bool {
        self.api.by_hand(id, &Hand::Stop)
    }

    /// Sets tags of a machine, and removes those without a value. False: there is no such machine.
    pub fn retag_by_hand(&self, id: &str, tags: &[(&str, Option<&str>)]) -> bool {
        let tags = tags
            .iter()
            .map(|(key, value)| ((*key).to_owned(), value.map(str::to_owned)));
        self.api.by_hand(id, &Hand::Retag(tags.collect()))
    }

    /// Closes every connection and the port. The state stays readable.
    pub async fn shutdown(&self) {
        self.server.shutdown().await;
    }
}
