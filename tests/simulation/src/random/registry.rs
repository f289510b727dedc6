//! The operator's actions on platforms and on the volumes retained there.

use drover_proto::orchestrator::v1 as pb;

use super::{Run, operator::CALL};

impl Run {
    fn platform(&self, at: usize, token: bool) -> pb::Platform {
        let site = &self.model.sites[at];
        pb::Platform {
            name: site.name.clone(),
            spec: Some(pb::PlatformSpec {
                endpoint: site.endpoint.clone(),
                token_secret: if token {
                    "door".to_owned()
                } else {
                    String::new()
                },
                ..pb::PlatformSpec::default()
            }),
            ..pb::Platform::default()
        }
    }

    /// Changes the registration of a platform: another address, with or without a token, or another uid.
    pub(super) async fn register(&mut self) {
        let at = self.random.usize(..self.model.sites.len());
        let site = &mut self.model.sites[at];
        if site.lost {
            return;
        }
        if self.random.bool() && !site.impostor {
            let endpoint = format!("http://{}.at-{}", site.name, self.random.u8(..10));
            self.world.sites.put(&endpoint, &site.real);
            site.endpoint = endpoint;
        }
        let token = self.random.bool();
        let rebind_uid = (self.random.u8(..4) == 0).then(|| self.model.sites[at].uid.clone());
        let what = format!(
            "register {} at {}, token: {token}, uid {rebind_uid:?}",
            self.model.sites[at].name, self.model.sites[at].endpoint
        );
        self.note(what);
        if self.enroll(at, token, rebind_uid).await {
            self.model.sites[at].registered = true;
        }
    }

    /// Registers a platform at its current address, with or without a token.
    pub(super) async fn register_again(&mut self, at: usize) {
        let token = self.random.bool();
        let what = format!(
            "register {} once more, token: {token}",
            self.model.sites[at].name
        );
        self.note(what);
        if self.enroll(at, token, None).await {
            self.model.sites[at].registered = true;
        }
    }

    /// Registers a platform at its current address. Returns whether the request was granted.
    pub(super) async fn enroll(
        &mut self,
        at: usize,
        token: bool,
        rebind_uid: Option<String>,
    ) -> bool {
        let request = pb::RegisterPlatformRequest {
            platform: Some(self.platform(at, token)),
            rebind_uid,
            ..pb::RegisterPlatformRequest::default()
        };
        self.ask("RegisterPlatform", async |client| {
            client.register_platform(request.clone(), CALL).await
        })
        .await
        .is_some()
    }

    pub(super) async fn unregister(&mut self) {
        let at = self.random.usize(..self.model.sites.len());
        let name = self.model.sites[at].name.clone();
        self.note(format!("unregister {name}"));
        let request = pb::UnregisterPlatformRequest { name };
        let granted = self
            .ask("UnregisterPlatform", async |client| {
                client.unregister_platform(request.clone(), CALL).await
            })
            .await
            .is_some();
        if granted {
            self.model.sites[at].registered = false;
        }
    }

    pub(super) async fn rotate_token(&mut self) {
        self.note("rotates the token of platforms");
        let token = format!("token-{}", self.random.u64(..));
        let value = pb::SecretValue {
            value: Some(pb::secret_value::Value::Text(token)),
        };
        let request = pb::ApplySecretRequest {
            name: "door".to_owned(),
            data: [("token".to_owned(), value)].into(),
            purpose: pb::SecretPurpose::Platform.into(),
            ..pb::ApplySecretRequest::default()
        };
        self.ask("ApplySecret", async |client| {
            client.apply_secret(request.clone(), CALL).await
        })
        .await;
    }

    pub(super) async fn confirm_loss(&mut self) {
        let at = self.random.usize(..self.model.sites.len());
        let name = self.model.sites[at].name.clone();
        let request = pb::GetPlatformRequest {
            name: name.clone(),
            ..pb::GetPlatformRequest::default()
        };
        let found = self
            .ask("GetPlatform", async |client| {
                client.get_platform(request.clone(), CALL).await
            })
            .await;
        let status = found
            .and_then(|found| found.platform)
            .and_then(|platform| platform.status);
        let vanished_count = status.unwrap_or_default().vanished_count;
        // An operator would not confirm the loss of nodes that exist, so the number is wrong on purpose and must be
        // refused.
        let said = if self.model.sites[at].impostor {
            vanished_count + 1
        } else {
            vanished_count
        };
        self.note(format!(
            "confirm the loss of {said} of {vanished_count} on {name}"
        ));
        let request = pb::ConfirmNodeLossRequest {
            platform: name,
            vanished_count: said,
        };
        self.ask("ConfirmNodeLoss", async |client| {
            client.confirm_node_loss(request.clone(), CALL).await
        })
        .await;
    }

    pub(super) async fn delete_storage(&mut self) {
        let request = pb::ListStorageRequest::default();
        let found = self
            .ask("ListStorage", async |client| {
                client.list_storage(request.clone(), CALL).await
            })
            .await;
        let kept = found.map(|found| found.storage).unwrap_or_default();
        if kept.is_empty() {
            return;
        }
        let one = kept[self.random.usize(..kept.len())].clone();
        let Some(storage) = one.storage else { return };
        self.note(format!("delete storage {} on {}", storage.id, one.platform));
        if let Some(at) = self
            .model
            .sites
            .iter()
            .position(|site| site.name == one.platform)
        {
            for cluster in self.model.clusters.values_mut() {
                cluster.kept.remove(&(at, storage.id.clone()));
            }
        }
        let request = pb::DeleteStorageRequest {
            platform: one.platform,
            id: storage.id,
            owner: storage.owner,
            cluster: storage.cluster_id,
            group: storage.group,
            ordinal: Some(storage.ordinal),
        };
        self.ask("DeleteStorage", async |client| {
            client.delete_storage(request.clone(), CALL).await
        })
        .await;
    }
}
