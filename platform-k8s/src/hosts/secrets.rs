//! Secrets of hosts: their network data, and whether their management controllers have credentials. No content leaves
//! this module but addresses.

use std::{collections::HashMap, sync::Arc, time::Duration};

use drover_core::{Error, Result};
use drover_platform::inventory::metal3::{self, CREDENTIALS, NETWORK_DATA, NO_CREDENTIALS};
use drover_proto::common::v1::Address;
use drover_resources_kubernetes::{
    client::{ApiClient, Call},
    errors,
};
use k8s_openapi::api::core::v1::Secret;
use kube::Api;
use parking_lot::Mutex;
use tokio::time::Instant;

use super::host::{self, BareMetalHost};

/// How long what a secret said is believed. Secrets are not watched: that would need the right to list all of them.
const BELIEVED: Duration = Duration::from_secs(60);
/// How long it is believed that a secret says nothing.
const DOUBTED: Duration = Duration::from_secs(2);

/// What the network data of a host says.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Networks {
    pub(super) addresses: Vec<Address>,
    /// What is wrong with it, for people. Empty if nothing is.
    pub(super) problem: String,
}

/// Name and namespace of a secret.
type Key = (String, String);

/// Why a secret says nothing.
struct Unread {
    /// For people.
    why: String,
    /// What hinders the reading, if that may pass: nothing is known of the secret then.
    error: Option<Error>,
}

impl From<Unread> for String {
    fn from(unread: Unread) -> Self {
        unread.why
    }
}

impl Unread {
    fn missing(why: String) -> Self {
        Self { why, error: None }
    }

    fn of(name: &str, error: Error) -> Self {
        if errors::is_forbidden(&error) {
            return Self::missing(format!("this platform may not read Secret {name}"));
        }
        Self {
            why: format!("Secret {name} cannot be read: {}", error.message()),
            error: Some(error),
        }
    }
}

pub(super) struct Secrets {
    client: ApiClient,
    networks: Mutex<HashMap<Key, (Instant, Arc<Networks>)>>,
    /// Secrets that have user name and password, and when they had.
    credentials: Mutex<HashMap<Key, Instant>>,
}

impl Secrets {
    pub(super) fn new(client: ApiClient) -> Self {
        Self {
            client,
            networks: Mutex::default(),
            credentials: Mutex::default(),
        }
    }

    /// The network data of a host, read at most a minute ago.
    pub(super) async fn networks(&self, host: &BareMetalHost) -> Arc<Networks> {
        let Some(key) = host::network_secret(host) else {
            return Arc::default();
        };
        if let Some(networks) = self.known(&key) {
            return networks;
        }
        let networks = Arc::new(self.read_networks(&key).await);
        let mut all = self.networks.lock();
        if all.len() == all.capacity() {
            all.retain(|_, (read, _)| read.elapsed() < BELIEVED);
        }
        all.insert(key, (Instant::now(), Arc::clone(&networks)));
        networks
    }

    fn known(&self, key: &Key) -> Option<Arc<Networks>> {
        let networks = self.networks.lock();
        let (read, networks) = networks.get(key)?;
        let lasts = if networks.problem.is_empty() {
            BELIEVED
        } else {
            DOUBTED
        };
        (read.elapsed() < lasts).then(|| Arc::clone(networks))
    }

    async fn read_networks(&self, key: &Key) -> Networks {
        let problem = |problem: String| Networks {
            problem,
            ..Networks::default()
        };
        let secret = match self.get(key).await {
            Ok(secret) => secret,
            Err(unread) => return problem(unread.why),
        };
        let data = secret.data.unwrap_or_default();
        let Some(data) = data.get(NETWORK_DATA) else {
            return problem(format!("Secret {} has no key {NETWORK_DATA}", key.1));
        };
        match metal3::addresses(&data.0) {
            Ok(addresses) => Networks {
                addresses,
                problem: String::new(),
            },
            Err(why) => problem(format!("key {NETWORK_DATA} of Secret {} {why}", key.1)),
        }
    }

    /// Checks that the management controller of a host has user name and password.
    ///
    /// # Errors
    /// What is missing, for people.
    pub(super) async fn check_credentials(&self, host: &BareMetalHost) -> Result<(), String> {
        let Some(key) = host::bmc_secret(host) else {
            return Err(NO_CREDENTIALS.to_owned());
        };
        let known = self.credentials.lock().get(&key).copied();
        if known.is_some_and(|read| read.elapsed() < BELIEVED) {
            return Ok(());
        }
        let data = self.get(&key).await?.data.unwrap_or_default();
        let given = |name: &&str| data.get(*name).is_some_and(|text| !text.0.is_empty());
        match CREDENTIALS.iter().find(|name| !given(name)) {
            None => {
                let mut all = self.credentials.lock();
                if all.len() == all.capacity() {
                    all.retain(|_, read| read.elapsed() < BELIEVED);
                }
                all.insert(key, Instant::now());
                Ok(())
            }
            Some(missing) => Err(format!("Secret {} has no key {missing}", key.1)),
        }
    }

    /// User name and password of the management controller of a host.
    ///
    /// # Errors
    /// They are not known; what is missing, for people.
    pub(super) async fn credentials(
        &self,
        host: &BareMetalHost,
    ) -> Result<Result<(String, String), String>> {
        let Some(key) = host::bmc_secret(host) else {
            return Ok(Err(NO_CREDENTIALS.to_owned()));
        };
        let data = match self.get(&key).await {
            Ok(secret) => secret.data.unwrap_or_default(),
            Err(Unread {
                error: Some(error), ..
            }) => return Err(error),
            Err(unread) => return Ok(Err(unread.why)),
        };
        let text = |name: &str| {
            let content = data.get(name).filter(|content| !content.0.is_empty());
            let content = content.ok_or_else(|| format!("Secret {} has no key {name}", key.1))?;
            String::from_utf8(content.0.clone())
                .map_err(|_| format!("key {name} of Secret {} is not text", key.1))
        };
        let [user, password] = CREDENTIALS;
        Ok(text(user).and_then(|user| Ok((user, text(password)?))))
    }

    async fn get(&self, (namespace, name): &Key) -> Result<Secret, Unread> {
        let api: Api<Secret> = Api::namespaced(self.client.kube(), namespace);
        match api.get_opt(name).await {
            Ok(Some(secret)) => Ok(secret),
            Ok(None) => Err(Unread::missing(format!("Secret {name} is missing"))),
            Err(error) => {
                let call = Call::new("get", "secrets", namespace, name);
                Err(Unread::of(name, errors::of(&call, &error)))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use drover_core::Reason;

    use super::*;

    #[test]
    fn only_a_secret_that_may_not_be_read_is_lacking_others_may_be_read_later() {
        let call = Call::new("get", "secrets", "metal", "bmc");
        let lacks = errors::lacks_right(&call, "may not get secrets");
        assert!(Unread::of("bmc", lacks).error.is_none());
        let unread = |reason| Unread::of("bmc", Error::new(reason, "words")).error;
        for passing in [Reason::Unavailable, Reason::Internal, Reason::Conflict] {
            let error = unread(passing).map(|error| error.reason());
            assert_eq!(error, Some(passing));
        }
    }
}
