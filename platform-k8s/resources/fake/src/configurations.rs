//! Configurations.

use async_trait::async_trait;
use drover_core::{Error, Reason, Result};
use drover_proto::kubernetes::v1 as api;
use drover_resources::parts::Configurations;

use crate::{
    Shared,
    selector::selects,
    store::{Store, exists, key, named},
};

impl Store {
    fn create_configuration(&mut self, mut new: api::Configuration) -> Result<api::Configuration> {
        let key = key(&new);
        self.check_namespace(&key.0)?;
        if self.configurations.get(&key).is_some() {
            return Err(exists::<api::Configuration>(&key));
        }
        self.stamp(&mut new);
        self.configurations.put(new.clone());
        Ok(new)
    }

    fn update_configuration(&mut self, mut new: api::Configuration) -> Result<api::Configuration> {
        let key = key(&new);
        let old = self.configurations.find(&key)?.clone();
        let before = old.metadata.clone().unwrap_or_default();
        let metadata = new.metadata.get_or_insert_default();
        if !metadata.revision.is_empty() && metadata.revision != before.revision {
            let name = named(&key);
            let message = format!("the configuration {name:?} has changed since");
            let error = Error::new(Reason::RevisionMismatch, message);
            return Err(error.with_resource("configuration", name));
        }
        metadata.uid = before.uid;
        metadata.revision = before.revision;
        metadata.create_time = before.create_time;
        let same = old.data == new.data && old.binary_data == new.binary_data;
        if old.immutable && !(same && new.immutable) {
            let name = named(&key);
            let message = format!("the configuration {name:?} is immutable");
            let error = Error::new(Reason::Immutable, message);
            return Err(error.with_resource("configuration", name));
        }
        if new != old {
            self.touch(&mut new);
            self.configurations.put(new.clone());
        }
        Ok(new)
    }
}

#[async_trait]
impl Configurations for Shared {
    async fn create(&self, configuration: api::Configuration) -> Result<api::Configuration> {
        self.call("configurations.create", async {
            self.change(|store| store.create_configuration(configuration))
        })
        .await
    }

    async fn get(&self, namespace: &str, name: &str) -> Result<api::Configuration> {
        let key = (namespace.to_owned(), name.to_owned());
        self.call("configurations.get", async {
            self.store.lock().configurations.find(&key).cloned()
        })
        .await
    }

    async fn list(
        &self,
        request: api::ListConfigurationsRequest,
    ) -> Result<api::ListConfigurationsResponse> {
        self.call("configurations.list", async {
            let mut store = self.store.lock();
            let revision = store.tick();
            let matches = |one: &api::Configuration| {
                let metadata = one.metadata.clone().unwrap_or_default();
                (request.namespace.is_empty() || metadata.namespace == request.namespace)
                    && selects(request.selector.as_ref(), &metadata.labels)
            };
            let place = (request.page_size, &*request.page_token);
            let page = store.configurations.page(place, revision, matches)?;
            let (configurations, next_page_token) = page;
            Ok(api::ListConfigurationsResponse {
                configurations,
                next_page_token,
            })
        })
        .await
    }

    async fn update(&self, configuration: api::Configuration) -> Result<api::Configuration> {
        self.call("configurations.update", async {
            self.change(|store| store.update_configuration(configuration))
        })
        .await
    }

    async fn delete(&self, namespace: &str, name: &str) -> Result<bool> {
        let key = (namespace.to_owned(), name.to_owned());
        self.call("configurations.delete", async {
            Ok(self
                .change(|store| store.configurations.remove(&key))
                .is_some())
        })
        .await
    }
}
