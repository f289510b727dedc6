//! API calls of users.

use drover_core::{Reason, Result};
use drover_proto::orchestrator::v1 as pb;

use super::{CALL, World, document};

impl World {
    pub async fn register(
        &mut self,
        name: &str,
        endpoint: &str,
    ) -> Result<pb::RegisterPlatformResponse> {
        let platform = pb::Platform {
            name: name.to_owned(),
            spec: Some(pb::PlatformSpec {
                endpoint: endpoint.to_owned(),
                ..Default::default()
            }),
            ..Default::default()
        };
        let request = pb::RegisterPlatformRequest {
            platform: Some(platform),
            ..Default::default()
        };
        self.call(async |client| client.register_platform(request.clone(), CALL).await)
            .await
    }

    pub async fn platform(&mut self, name: &str) -> pb::Platform {
        let request = pb::GetPlatformRequest {
            name: name.to_owned(),
            ..Default::default()
        };
        let answer = self
            .call(async |client| client.get_platform(request.clone(), CALL).await)
            .await;
        answer.unwrap().platform.unwrap()
    }

    pub async fn try_apply(
        &mut self,
        name: &str,
        groups: &[(&str, u32)],
    ) -> Result<pb::ApplyClusterResponse> {
        self.try_apply_with(name, groups, &|_| {}).await
    }

    /// Applies a cluster with further settings in its spec.
    pub async fn try_apply_with(
        &mut self,
        name: &str,
        groups: &[(&str, u32)],
        change: &dyn Fn(&mut pb::ClusterSpec),
    ) -> Result<pb::ApplyClusterResponse> {
        let mut cluster = document(name, "sim", groups);
        change(cluster.spec.as_mut().unwrap());
        if let Some(spec) = &mut cluster.spec {
            spec.infrastructure.clone_from(&self.below);
        }
        let request = pb::ApplyClusterRequest {
            cluster: Some(cluster),
            ..Default::default()
        };
        let answer = self
            .call(async |client| client.apply_cluster(request.clone(), CALL).await)
            .await?;
        let groups = groups
            .iter()
            .map(|(name, size)| ((*name).to_owned(), *size))
            .collect();
        self.wanted.insert(name.to_owned(), groups);
        Ok(answer)
    }

    /// Applies a cluster and adopts its nodes that have no record.
    pub async fn adopt(
        &mut self,
        name: &str,
        groups: &[(&str, u32)],
        validate_only: bool,
    ) -> Result<pb::ApplyClusterResponse> {
        let request = pb::ApplyClusterRequest {
            cluster: Some(document(name, "sim", groups)),
            adopt: true,
            validate_only,
            ..Default::default()
        };
        let answer = self
            .call(async |client| client.apply_cluster(request.clone(), CALL).await)
            .await?;
        if !validate_only {
            let groups = groups
                .iter()
                .map(|(name, size)| ((*name).to_owned(), *size))
                .collect();
            self.wanted.insert(name.to_owned(), groups);
        }
        Ok(answer)
    }

    pub async fn apply(&mut self, name: &str, groups: &[(&str, u32)]) {
        self.try_apply(name, groups).await.unwrap();
    }

    pub async fn scale(&mut self, name: &str, group: &str, size: u32) {
        let request = pb::ScaleGroupRequest {
            cluster: name.to_owned(),
            group: group.to_owned(),
            size: Some(size),
            ..Default::default()
        };
        self.call(async |client| client.scale_group(request.clone(), CALL).await)
            .await
            .unwrap();
        self.wanted
            .get_mut(name)
            .unwrap()
            .insert(group.to_owned(), size);
    }

    /// Deletes a cluster.
    pub async fn delete(&mut self, name: &str) {
        let uid = self.cluster(name).await.expect("a cluster to delete").uid;
        let request = pb::DeleteClusterRequest {
            name: name.to_owned(),
            ..Default::default()
        };
        let answer = self
            .call(async |client| client.delete_cluster(request.clone(), CALL).await)
            .await;
        match answer {
            Ok(_) => {}
            // The orchestrator crashed after the commit, and finished the deletion before the call could be repeated.
            Err(error) if error.reason() == Reason::NotFound && self.restarts > 0 => {}
            Err(error) => panic!("{error}"),
        }
        self.wanted.remove(name);
        self.gone.push(uid);
    }

    pub async fn cluster(&mut self, name: &str) -> Option<pb::Cluster> {
        let request = pb::GetClusterRequest {
            name: name.to_owned(),
            ..Default::default()
        };
        match self
            .call(async |client| client.get_cluster(request.clone(), CALL).await)
            .await
        {
            Ok(answer) => answer.cluster,
            Err(error) if error.reason() == Reason::NotFound => None,
            Err(error) => panic!("{error}"),
        }
    }

    /// Rebinds a platform, declaring that it is the same backend under another uid.
    pub async fn rebind(&mut self, platform: &str, uid: &str) {
        let request = pb::RegisterPlatformRequest {
            platform: Some(pb::Platform {
                name: platform.to_owned(),
                spec: self.platform(platform).await.spec,
                ..Default::default()
            }),
            rebind_uid: Some(uid.to_owned()),
            ..Default::default()
        };
        self.call(async |client| client.register_platform(request.clone(), CALL).await)
            .await
            .unwrap();
    }

    /// Lists all clusters.
    pub async fn clusters(&mut self) -> Vec<pb::Cluster> {
        let request = pb::ListClustersRequest {
            view: pb::ClusterView::Full.into(),
            ..pb::ListClustersRequest::default()
        };
        let answer = self
            .call(async |client| client.list_clusters(request.clone(), CALL).await)
            .await
            .unwrap();
        assert_eq!(answer.next_page_token, "", "more clusters than on a page");
        answer.clusters
    }

    /// Returns a condition of a cluster or of one of its groups, if it holds.
    pub async fn condition(&mut self, name: &str, kind: &str) -> Option<String> {
        let status = self.cluster(name).await?.status?;
        let groups = status.groups.iter().flat_map(|group| &group.conditions);
        let mut all = status.conditions.iter().chain(groups);
        all.find(|c| c.r#type == kind && c.status == Some(true))
            .map(|c| format!("{}: {}", c.reason, c.message))
    }

    pub async fn records(&mut self, name: &str) -> Vec<pb::Node> {
        self.records_of(Some(name)).await
    }

    /// Records of a cluster, or of all clusters.
    pub async fn records_of(&mut self, cluster: Option<&str>) -> Vec<pb::Node> {
        let mut nodes = Vec::new();
        let mut request = pb::ListNodesRequest {
            cluster: cluster.map(str::to_owned),
            page_size: 1000,
            ..Default::default()
        };
        loop {
            let answer = self
                .call(async |client| client.list_nodes(request.clone(), CALL).await)
                .await
                .unwrap();
            nodes.extend(answer.nodes);
            if answer.next_page_token.is_empty() {
                return nodes;
            }
            request.page_token = answer.next_page_token;
        }
    }
}
