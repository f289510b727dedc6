//! A random number for each addon, in a Secret: digests of secrets that stand elsewhere are made with it.

use base64::{Engine as _, engine::general_purpose::STANDARD as BASE64};
use drover_core::Result;
use k8s_openapi::api::core::v1::Secret;
use serde_json::json;
use uuid::Uuid;

use super::Backend;
use crate::{labels, objects::Object};

const KEY: &str = "salt";

fn secret(name: &str) -> String {
    format!("{name}-salt")
}

impl Backend {
    /// The salt of an addon whose objects have this name; a new one if it has none.
    ///
    /// # Errors
    /// It cannot be read.
    pub(super) async fn salt(&self, name: &str) -> Result<Vec<u8>> {
        let (kind, namespace) = (&self.secrets, &self.namespace);
        let there = self
            .api
            .get::<Secret>(kind, namespace, &secret(name))
            .await?;
        let salt = there.and_then(|there| there.data?.remove(KEY));
        let salt = salt.map(|salt| salt.0).filter(|salt| !salt.is_empty());
        Ok(salt.unwrap_or_else(|| {
            [Uuid::new_v4(), Uuid::new_v4()]
                .map(Uuid::into_bytes)
                .concat()
        }))
    }

    /// The Secret that keeps a salt.
    pub(super) fn salted(&self, name: &str, salt: &[u8]) -> Object {
        let mut object = self.secret(&secret(name));
        let annotations = json!({labels::ONCE: "1"});
        object.body["metadata"]["annotations"] = annotations;
        let data = json!({KEY: BASE64.encode(salt)});
        object.body.insert("data".to_owned(), data);
        object
    }

    /// A Secret without content.
    pub(super) fn secret(&self, name: &str) -> Object {
        let body = [
            ("apiVersion", json!("v1")),
            ("kind", json!("Secret")),
            ("metadata", json!({"name": name})),
        ];
        Object {
            document: None,
            api_version: "v1".to_owned(),
            kind: "Secret".to_owned(),
            namespace: self.namespace.clone(),
            name: name.to_owned(),
            body: body
                .map(|(key, value)| (key.to_owned(), value))
                .into_iter()
                .collect(),
        }
    }
}
