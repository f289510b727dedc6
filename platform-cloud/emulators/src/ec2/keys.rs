//! Key pairs; only public keys and their fingerprints are kept.

use sha2::{Digest, Sha256};
use tokio::time::Instant;

use crate::ec2::World;
use crate::ec2::model::{KeyPair, State, new_id};
use crate::ec2::params::{Filters, Outcome, Params, wrong};
use crate::ec2::xml::Xml;

impl World {
    pub(crate) fn key_pair(kind: &'static str, material: &[u8], created: String) -> KeyPair {
        let fingerprint = crate::base64::encode(&Sha256::digest(material));
        KeyPair {
            id: new_id("key"),
            kind,
            fingerprint,
            created,
        }
    }

    pub(crate) fn describe_key_pairs(&self, state: &State, params: &Params) -> Outcome<Xml> {
        let filters = Filters::new(params, &["fingerprint", "key-name", "key-pair-id"])?;
        let (names, ids) = (params.list("KeyName"), params.list("KeyPairId"));
        if let Some(name) = names.iter().find(|name| !state.keys.contains_key(*name)) {
            return Err(wrong(
                "InvalidKeyPair.NotFound",
                format!("The key pair '{name}' does not exist"),
            ));
        }
        if let Some(id) = ids
            .iter()
            .find(|id| !state.keys.values().any(|key| key.id == **id))
        {
            return Err(wrong(
                "InvalidKeyPair.NotFound",
                format!("The key pair with the ID '{id}' does not exist"),
            ));
        }
        let shown = state.keys.iter().filter(|(name, key)| {
            (names.is_empty() && ids.is_empty() || names.contains(name) || ids.contains(&key.id))
                && filters.hold(state.tags_of(&key.id), |field| match field {
                    "fingerprint" => vec![key.fingerprint.clone()],
                    "key-name" => vec![(*name).clone()],
                    _ => vec![key.id.clone()],
                })
        });
        let mut xml = Xml::new();
        xml.list("keySet", shown, |xml, (name, key)| {
            xml.text("keyPairId", &key.id);
            xml.text("keyName", name);
            xml.text("keyFingerprint", &key.fingerprint);
            xml.text("keyType", key.kind);
            xml.tags(state.tags_of(&key.id));
            xml.text("createTime", &key.created);
        });
        Ok(xml)
    }

    pub(crate) fn import_key_pair(
        &self,
        state: &mut State,
        params: &Params,
        now: Instant,
    ) -> Outcome<Xml> {
        let name = params.need("KeyName")?.to_owned();
        let tags = params.tags_for("key-pair")?;
        let invalid = || {
            wrong(
                "InvalidKey.Format",
                "Key is not in valid OpenSSH public key format",
            )
        };
        let material =
            crate::base64::decode(params.need("PublicKeyMaterial")?).ok_or_else(invalid)?;
        let kind = match material.split(|byte| *byte == b' ').next() {
            Some(b"ssh-ed25519") => "ed25519",
            Some(b"ssh-rsa") => "rsa",
            _ => return Err(invalid()),
        };
        if state.keys.contains_key(&name) {
            return Err(wrong(
                "InvalidKeyPair.Duplicate",
                format!("The keypair already exists: {name}"),
            ));
        }
        let key = World::key_pair(kind, &material, self.timestamp(now));
        let mut xml = Xml::new();
        xml.text("keyName", &name);
        xml.text("keyFingerprint", &key.fingerprint);
        xml.text("keyPairId", &key.id);
        xml.tags(&tags);
        self.made("key-pair", &key.id, None, &tags, false);
        state.tags.insert(key.id.clone(), tags);
        state.keys.insert(name, key);
        Ok(xml)
    }

    /// Succeeds for a key pair that does not exist, too.
    pub(crate) fn delete_key_pair(&self, state: &mut State, params: &Params) -> Outcome<Xml> {
        let named = params.get("KeyName").map(str::to_owned);
        let by_id = || {
            let id = params.get("KeyPairId")?;
            state
                .keys
                .iter()
                .find(|(_, key)| key.id == id)
                .map(|(name, _)| name.clone())
        };
        if let Some(key) = named
            .or_else(by_id)
            .and_then(|name| state.keys.remove(&name))
        {
            state.tags.remove(&key.id);
            self.ledger.gone(&key.id);
        }
        Ok(Xml::done())
    }
}
