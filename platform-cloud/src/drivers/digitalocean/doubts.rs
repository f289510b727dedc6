//! Droplets that are there without their tags. These come after the droplet
//! (<https://docs.digitalocean.com/reference/api/reference/droplets/#droplets_create>), so a look-up by tag may find
//! nothing of what an earlier attempt has made. The name is there from the beginning, and no other slot ever has it.

use std::{collections::HashMap, sync::atomic::Ordering, time::Duration};

use drover_core::{Error, Result};
use parking_lot::Mutex;
use serde_json::Value;
use tokio::time::Instant;

use super::{DigitalOcean, tags};
use crate::cloud::{Filter, Launch, REQUEST};

/// Droplets by name, each with the request of its tags. `None` if they name none, or are not there yet.
pub(super) type Names = HashMap<String, Option<String>>;

/// What is known of names without a call.
pub(super) struct Doubts {
    /// How long lists may lack a droplet, from the call that asks for it.
    settles_after: Duration,
    /// Until then another process may have asked for any droplet.
    began: Instant,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// When this process has asked for droplets, by name, as far as the last list does not tell what became of them.
    asked: HashMap<String, Instant>,
    /// Begin of the last complete list.
    read: Option<Instant>,
    /// The droplets in it, by name, each with the request of its tags.
    there: Names,
}

impl State {
    /// Whether the last list shows what was asked for until then.
    fn tells(&self, asked: Instant, settles_after: Duration) -> bool {
        self.read.is_some_and(|read| read >= asked + settles_after)
    }
}

impl Doubts {
    pub(super) fn new(settles_after: Duration) -> Self {
        Self {
            settles_after,
            began: Instant::now(),
            state: Mutex::default(),
        }
    }

    /// Takes in a complete list.
    pub(super) fn saw(&self, began: Instant, there: Names) {
        let mut state = self.state.lock();
        if state.read.is_some_and(|read| read > began) {
            return;
        }
        state.read = Some(began);
        state.there = there;
        let settles_after = self.settles_after;
        state
            .asked
            .retain(|_, asked| began < *asked + settles_after);
    }

    /// Remembers that droplets with these names are asked for.
    pub(super) fn asked(&self, names: &[&str]) {
        let now = Instant::now();
        let mut state = self.state.lock();
        let names = names.iter().map(|name| ((*name).to_owned(), now));
        state.asked.extend(names);
    }

    /// The names of which the last list does not tell whether a droplet has them.
    ///
    /// # Errors
    /// `Unavailable` if it tells that one does.
    fn untold<'a>(&self, names: &[&'a str], request: Option<&String>) -> Result<Vec<&'a str>> {
        let state = self.state.lock();
        let is_there = |name: &&&str| {
            let of = state.there.get(**name);
            of.is_some_and(|of| may_be_of(of.as_ref(), request))
        };
        if let Some(name) = names.iter().find(is_there) {
            return Err(doubted(name));
        }
        let tells = |asked: Instant| state.tells(asked, self.settles_after);
        let is_untold = |name: &&str| {
            !tells(self.began) || state.asked.get(*name).is_some_and(|asked| !tells(*asked))
        };
        Ok(names.iter().copied().filter(is_untold).collect())
    }
}

impl DigitalOcean {
    /// Makes sure that no droplet of a launch is there already.
    ///
    /// # Errors
    /// `Unavailable` if one may be; those of the API.
    pub(super) async fn check_doubts(&self, launch: &Launch) -> Result<()> {
        let request = launch.tags.get(REQUEST);
        let names = self.doubts.untold(&names(launch), request)?;
        if names.is_empty() {
            return Ok(());
        }
        for droplet in self.named(&names).await? {
            let name = droplet["name"].as_str().unwrap_or_default();
            if names.contains(&name) && may_be_of(request_of(&droplet).as_ref(), request) {
                return Err(doubted(name));
            }
        }
        Ok(())
    }

    /// Droplets, among them all with these names.
    async fn named(&self, names: &[&str]) -> Result<Vec<Value>> {
        // Those with GPUs are in a list of their own.
        if self.settings.gpus || names.len() >= self.pages.load(Ordering::Relaxed) {
            return Ok(self.droplets(&Filter::All).await?.items);
        }
        let mut found = Vec::new();
        for name in names {
            let query = [("name", (*name).to_owned())];
            found.extend(self.client.list(&["droplets"], &query).await?.items);
        }
        Ok(found)
    }
}

/// The names of the droplets of a launch.
pub(super) fn names(launch: &Launch) -> Vec<&str> {
    let slots = launch.slots.iter();
    slots.map(|slot| slot.identity.id.as_str()).collect()
}

/// The request of a droplet's tags.
pub(super) fn request_of(droplet: &Value) -> Option<String> {
    let tags = droplet["tags"].as_array().into_iter().flatten();
    let decoded = tags::decode(tags.filter_map(Value::as_str));
    decoded.tags.get(REQUEST).cloned()
}

/// Whether a droplet may have been made for a request.
fn may_be_of(of: Option<&String>, request: Option<&String>) -> bool {
    of.is_none() || of == request
}

fn doubted(name: &str) -> Error {
    Error::unavailable(format!(
        "a droplet is called {name} already, and an earlier call has perhaps made it: none is made beside it before its \
         tags are there. Delete it if they stay away"
    ))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const SETTLES: Duration = Duration::from_secs(60);

    async fn list(doubts: &Doubts, there: &[(&str, Option<&str>)]) {
        let owned = |of: &Option<&str>| of.map(str::to_owned);
        let there = there
            .iter()
            .map(|(name, of)| ((*name).to_owned(), owned(of)));
        doubts.saw(Instant::now(), there.collect());
        tokio::time::sleep(Duration::from_secs(1)).await;
    }

    #[tokio::test(start_paused = true)]
    async fn names_are_looked_for_until_a_list_tells_what_became_of_them() {
        let doubts = Doubts::new(SETTLES);
        let (both, request) = (["a", "b"], "r-1".to_owned());
        let untold = || doubts.untold(&both, Some(&request));
        assert_eq!(untold().unwrap(), both, "nothing is known");
        list(&doubts, &[]).await;
        assert_eq!(untold().unwrap(), both, "the list is too early");
        tokio::time::sleep(SETTLES).await;
        list(&doubts, &[]).await;
        assert!(untold().unwrap().is_empty());
        doubts.asked(&["a"]);
        list(&doubts, &[]).await;
        assert_eq!(untold().unwrap(), ["a"]);
        tokio::time::sleep(SETTLES).await;
        // Its tags may have come since it was looked for by them.
        for of in [None, Some("r-1")] {
            list(&doubts, &[("a", of)]).await;
            assert!(untold().is_err(), "there it is");
        }
        list(&doubts, &[("a", Some("r-2"))]).await;
        assert!(untold().unwrap().is_empty(), "another request has the name");
        assert!(doubts.state.lock().asked.is_empty());
    }

    #[test]
    fn a_droplet_of_another_request_is_no_doubt() {
        let request = "r-1".to_owned();
        for (tags, may_be) in [
            (json!([]), true),
            (json!(null), true),
            (json!(["web", "drover-private"]), true),
            (json!(["drover:request:r-1"]), true),
            (json!(["drover:request:r-2"]), false),
        ] {
            let of = request_of(&json!({"name": "a", "tags": tags}));
            assert_eq!(may_be_of(of.as_ref(), Some(&request)), may_be, "{of:?}");
        }
    }
}
