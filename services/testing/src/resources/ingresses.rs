//! Ingresses and their rules, with all backends that there are.

use std::{collections::BTreeSet, time::Duration};

use drover_core::Reason;
use drover_proto::kubernetes::v1::{
    self as api, IngressBackend, PathType, ingress_path::Target, path_key::Key,
};
use futures::future::join_all;
use tonic::Request;

use super::{
    Subject,
    fixture::{assert_reason, assert_refused, done, port},
};

/// A path that leads to port 80 of a service.
pub(super) fn path(path: &str, service: &str) -> api::IngressPath {
    api::IngressPath {
        path: path.into(),
        target: Some(Target::Service(target(service))),
        ..Default::default()
    }
}

fn target(service: &str) -> api::ServiceTarget {
    api::ServiceTarget {
        name: service.into(),
        port: port(80),
    }
}

/// An ingress of a backend, with one host and without paths, and a service for its paths.
struct Fixture<'a> {
    subject: &'a Subject,
    backend: IngressBackend,
    ingress: String,
    host: String,
    service: String,
}

impl<'a> Fixture<'a> {
    async fn new(subject: &'a Subject, backend: IngressBackend) -> Self {
        let mut new = subject.service();
        new.spec.as_mut().unwrap().selector.clear();
        let service = subject
            .create_service(new)
            .await
            .unwrap()
            .metadata
            .unwrap()
            .name;
        let ingress = subject.name("ingress");
        let host = format!("{ingress}.{}.example", subject.namespace);
        let it = Self {
            subject,
            backend,
            ingress,
            host,
            service,
        };
        let host = it.host.clone();
        it.create(&it.ingress, &host).await.unwrap();
        if backend == IngressBackend::VirtualService {
            // The discovery of upstreams takes its time.
            let mut request = it.request(vec![it.path("/")]);
            request.wait = true;
            done(it.subject.ingresses().upsert_paths(request))
                .await
                .unwrap();
            let path = "/".to_owned();
            it.remove(vec![Key::Match(api::PathMatch { path, r#type: 0 })])
                .await
                .unwrap();
        }
        it
    }

    async fn create(&self, name: &str, host: &str) -> drover_core::Result<api::Ingress> {
        let class_name = match self.backend {
            IngressBackend::HttpRoute => "gateways/public",
            IngressBackend::Ingress
            | IngressBackend::VirtualService
            | IngressBackend::Unspecified => "",
        };
        let request = api::CreateIngressRequest {
            ingress: Some(api::Ingress {
                metadata: Some(api::Metadata {
                    namespace: self.subject.namespace.clone(),
                    name: name.into(),
                    ..Default::default()
                }),
                rules: vec![api::IngressRule {
                    host: host.into(),
                    paths: Vec::new(),
                }],
                class_name: class_name.into(),
                ..Default::default()
            }),
            backend: self.backend as i32,
        };
        let answer = done(self.subject.ingresses().create_ingress(request)).await?;
        Ok(answer.ingress.unwrap())
    }

    fn path(&self, at: &str) -> api::IngressPath {
        path(at, &self.service)
    }

    fn request(&self, paths: Vec<api::IngressPath>) -> api::UpsertPathsRequest {
        api::UpsertPathsRequest {
            namespace: self.subject.namespace.clone(),
            ingress: self.ingress.clone(),
            host: self.host.clone(),
            backend: self.backend as i32,
            paths,
            wait: false,
        }
    }

    async fn upsert(&self, paths: Vec<api::IngressPath>) -> drover_core::Result<api::IngressRule> {
        let request = self.request(paths);
        let answer = done(self.subject.ingresses().upsert_paths(request)).await?;
        Ok(answer.rule.unwrap())
    }

    async fn remove(&self, keys: Vec<Key>) -> drover_core::Result<api::IngressRule> {
        let request = api::RemovePathsRequest {
            namespace: self.subject.namespace.clone(),
            ingress: self.ingress.clone(),
            host: self.host.clone(),
            backend: self.backend as i32,
            paths: keys
                .into_iter()
                .map(|key| api::PathKey { key: Some(key) })
                .collect(),
        };
        let answer = done(self.subject.ingresses().remove_paths(request)).await?;
        Ok(answer.rule.unwrap())
    }

    async fn rule_of(&self, ingress: &str, host: &str) -> drover_core::Result<api::IngressRule> {
        let request = api::GetRuleRequest {
            namespace: self.subject.namespace.clone(),
            ingress: ingress.into(),
            host: host.into(),
            backend: self.backend as i32,
        };
        Ok(done(self.subject.ingresses().get_rule(request))
            .await?
            .rule
            .unwrap())
    }

    /// Path, type and name of each path of the host.
    async fn paths(&self) -> Vec<(String, PathType, String)> {
        let rule = self.rule_of(&self.ingress, &self.host).await.unwrap();
        let all = rule.paths.into_iter();
        all.map(|one| (one.path.clone(), one.r#type(), one.name))
            .collect()
    }

    async fn places(&self) -> Vec<String> {
        self.paths()
            .await
            .into_iter()
            .map(|(path, _, _)| path)
            .collect()
    }
}

pub(super) async fn an_ingress_is_answered_as_it_was_created(subject: &Subject) {
    for backend in subject.backends() {
        let it = Fixture::new(subject, backend).await;
        let request = api::GetIngressRequest {
            namespace: subject.namespace.clone(),
            name: it.ingress.clone(),
            backend: backend as i32,
        };
        let found = done(subject.ingresses().get_ingress(request))
            .await
            .unwrap()
            .ingress
            .unwrap();
        assert_eq!(found.backend(), backend);
        assert_eq!(found.rules.len(), 1, "{backend:?}");
        assert_eq!(
            (&found.rules[0].host, found.rules[0].paths.len()),
            (&it.host, 0)
        );
        let taken = it.create(&it.ingress, "").await;
        assert_reason("taken", taken, Reason::AlreadyExists);
        for existed in [true, false] {
            let request = api::DeleteIngressRequest {
                namespace: subject.namespace.clone(),
                name: it.ingress.clone(),
                backend: backend as i32,
            };
            let answer = done(subject.ingresses().delete_ingress(request))
                .await
                .unwrap();
            assert_eq!(answer.existed, existed, "{backend:?}");
        }
    }
}

pub(super) async fn paths_are_added_and_replaced_by_path_and_type(subject: &Subject) {
    for backend in subject.backends() {
        let it = Fixture::new(subject, backend).await;
        let exact = api::IngressPath {
            r#type: PathType::Exact as i32,
            ..it.path("/a")
        };
        it.upsert(vec![it.path("/b"), it.path("/a")]).await.unwrap();
        let rule = it.upsert(vec![exact]).await.unwrap();
        let keys: Vec<_> = rule
            .paths
            .iter()
            .map(|one| (one.path.as_str(), one.r#type()))
            .collect();
        assert_eq!(
            keys,
            [
                ("/a", PathType::Prefix),
                ("/a", PathType::Exact),
                ("/b", PathType::Prefix)
            ]
        );
        assert!(
            rule.paths
                .iter()
                .all(|one| one.target.is_some() && !one.opaque),
            "{rule:?}"
        );
        let named = api::IngressPath {
            name: "b".into(),
            ..it.path("/b")
        };
        it.upsert(vec![named.clone()]).await.unwrap();
        it.upsert(vec![named]).await.unwrap();
        let paths = it.paths().await;
        assert_eq!(paths.len(), 3, "{backend:?}: {paths:?}");
        assert_eq!(paths[2].2, "b");
    }
}

pub(super) async fn a_path_with_a_name_is_moved(subject: &Subject) {
    for backend in subject.backends() {
        let it = Fixture::new(subject, backend).await;
        let named = |at: &str| api::IngressPath {
            name: "sim-1".into(),
            ..it.path(at)
        };
        it.upsert(vec![named("/old"), it.path("/other")])
            .await
            .unwrap();
        it.upsert(vec![named("/new")]).await.unwrap();
        assert_eq!(it.places().await, ["/new", "/other"], "{backend:?}");
    }
}

pub(super) async fn a_path_without_a_name_has_that_of_its_service(subject: &Subject) {
    for backend in subject.backends() {
        let it = Fixture::new(subject, backend).await;
        it.upsert(vec![it.path("/a")]).await.unwrap();
        assert_eq!(it.paths().await[0].2, it.service, "{backend:?}");
        it.upsert(vec![it.path("/b")]).await.unwrap();
        let names: Vec<String> = it
            .paths()
            .await
            .into_iter()
            .map(|(_, _, name)| name)
            .collect();
        assert_eq!(names, ["", ""], "{backend:?}: two paths of one service");
    }
}

pub(super) async fn paths_are_removed_by_match_name_and_service(subject: &Subject) {
    for backend in subject.backends() {
        let it = Fixture::new(subject, backend).await;
        let named = api::IngressPath {
            name: "b".into(),
            ..it.path("/b")
        };
        it.upsert(vec![it.path("/a"), named, it.path("/c"), it.path("/d")])
            .await
            .unwrap();
        let by_match = Key::Match(api::PathMatch {
            path: "/a".into(),
            r#type: 0,
        });
        it.remove(vec![by_match]).await.unwrap();
        assert_eq!(it.places().await, ["/b", "/c", "/d"], "{backend:?}");
        it.remove(vec![Key::Name("b".into())]).await.unwrap();
        assert_eq!(it.places().await, ["/c", "/d"], "{backend:?}");
        let rule = it
            .remove(vec![Key::Service(target(&it.service))])
            .await
            .unwrap();
        assert!(rule.paths.is_empty(), "{rule:?}");
    }
}

pub(super) async fn the_last_path_can_be_removed_and_the_host_stays(subject: &Subject) {
    for backend in subject.backends() {
        let it = Fixture::new(subject, backend).await;
        it.upsert(vec![it.path("/a")]).await.unwrap();
        it.remove(vec![Key::Service(target(&it.service))])
            .await
            .unwrap();
        assert_eq!(it.places().await, Vec::<String>::new(), "{backend:?}");
        it.upsert(vec![it.path("/a")]).await.unwrap();
        assert_eq!(it.places().await, ["/a"], "{backend:?}");
    }
}

pub(super) async fn removing_what_is_absent_is_no_error(subject: &Subject) {
    for backend in subject.backends() {
        let it = Fixture::new(subject, backend).await;
        it.upsert(vec![it.path("/a")]).await.unwrap();
        let rule = it
            .remove(vec![Key::Name("never-made".into())])
            .await
            .unwrap();
        assert_eq!(rule.paths.len(), 1, "{backend:?}");
    }
}

pub(super) async fn a_new_host_is_added(subject: &Subject) {
    for backend in subject.backends() {
        let it = Fixture::new(subject, backend).await;
        let host = format!("new-{}", it.host);
        let request = api::UpsertPathsRequest {
            host: host.clone(),
            ..it.request(vec![it.path("/")])
        };
        done(subject.ingresses().upsert_paths(request))
            .await
            .unwrap();
        assert_eq!(
            it.rule_of(&it.ingress, &host).await.unwrap().paths.len(),
            1,
            "{backend:?}"
        );
        assert_eq!(it.places().await, Vec::<String>::new(), "the other host");
    }
}

pub(super) async fn a_host_that_another_routes_is_refused_and_named(subject: &Subject) {
    for backend in subject.backends() {
        let (first, second) = (
            Fixture::new(subject, backend).await,
            Fixture::new(subject, backend).await,
        );
        let request = api::UpsertPathsRequest {
            host: first.host.clone(),
            ..second.request(vec![second.path("/")])
        };
        let outcome = done(subject.ingresses().upsert_paths(request)).await;
        let error = assert_reason("upsert", outcome, Reason::IngressHostTaken);
        assert!(error.message().contains(&first.ingress), "{error}");
        let outcome = second.create(&subject.name("third"), &first.host).await;
        assert_reason("create", outcome, Reason::IngressHostTaken);
    }
}

pub(super) async fn unknown_hosts_and_ingresses_are_told_apart(subject: &Subject) {
    for backend in subject.backends() {
        let it = Fixture::new(subject, backend).await;
        let outcome = it.rule_of(&it.ingress, "never-made.example").await;
        assert_reason("host", outcome, Reason::RuleNotFound);
        let outcome = it.rule_of("never-made", &it.host).await;
        assert_reason("ingress", outcome, Reason::NotFound);
        let request = api::UpsertPathsRequest {
            ingress: "never-made".into(),
            ..it.request(vec![it.path("/")])
        };
        let outcome = done(subject.ingresses().upsert_paths(request)).await;
        assert_reason("upsert", outcome, Reason::NotFound);
    }
}

pub(super) async fn a_missing_service_is_an_error_or_waited_for(subject: &Subject) {
    for backend in subject.backends() {
        let it = Fixture::new(subject, backend).await;
        let service = subject.service();
        let name = service.metadata.clone().unwrap().name;
        let paths = vec![path("/late", &name)];
        let outcome = it.upsert(paths.clone()).await;
        assert_reason("missing", outcome, Reason::IngressUpstreamMissing);
        assert_eq!(it.places().await, Vec::<String>::new());
        let wait = || api::UpsertPathsRequest {
            wait: true,
            ..it.request(paths.clone())
        };
        let mut short = Request::new(wait());
        short.set_timeout(Duration::from_millis(300));
        assert!(done(subject.ingresses().upsert_paths(short)).await.is_err());
        let mut client = subject.ingresses();
        let (waited, created) = tokio::join!(
            done(client.upsert_paths(wait())),
            subject.create_service(service)
        );
        created.unwrap();
        waited.unwrap();
        assert_eq!(it.places().await, ["/late"], "{backend:?}");
    }
}

pub(super) async fn a_refused_change_changes_nothing(subject: &Subject) {
    for backend in subject.backends() {
        let it = Fixture::new(subject, backend).await;
        it.upsert(vec![it.path("/a")]).await.unwrap();
        let outcome = it
            .upsert(vec![it.path("/b"), path("/c", "never-made")])
            .await;
        assert_reason("one of two", outcome, Reason::IngressUpstreamMissing);
        assert_eq!(it.places().await, ["/a"], "{backend:?}");
    }
}

pub(super) async fn no_change_of_many_writers_is_lost(subject: &Subject) {
    const WRITERS: usize = 10;
    const EACH: usize = 8;
    for backend in subject.backends() {
        let it = Fixture::new(subject, backend).await;
        let writers = (0..WRITERS).map(|writer| {
            let it = &it;
            async move {
                for at in 0..EACH {
                    it.upsert(vec![it.path(&format!("/{writer}-{at}"))])
                        .await
                        .unwrap();
                    if at % 2 == 1 {
                        let gone = Key::Match(api::PathMatch {
                            path: format!("/{writer}-{at}"),
                            r#type: 0,
                        });
                        it.remove(vec![gone]).await.unwrap();
                    }
                }
            }
        });
        join_all(writers).await;
        let expected: BTreeSet<String> = (0..WRITERS)
            .flat_map(|writer| {
                (0..EACH)
                    .step_by(2)
                    .map(move |at| format!("/{writer}-{at}"))
            })
            .collect();
        let found: BTreeSet<String> = it.places().await.into_iter().collect();
        assert_eq!(found, expected, "{backend:?}");
    }
}

pub(super) async fn what_a_backend_does_not_know_is_refused(subject: &Subject) {
    for backend in subject.backends() {
        let it = Fixture::new(subject, backend).await;
        let plain = backend == IngressBackend::Ingress;
        let refused = if plain {
            PathType::Regex
        } else {
            PathType::ImplementationSpecific
        };
        let wrong = api::IngressPath {
            r#type: refused as i32,
            ..it.path("/a")
        };
        assert_refused("the type", it.upsert(vec![wrong]).await, "paths[0].type");
        if backend != IngressBackend::VirtualService {
            let upstream = api::UpstreamTarget {
                name: "up".into(),
                namespace: String::new(),
            };
            let wrong = api::IngressPath {
                target: Some(Target::Upstream(upstream)),
                ..it.path("/a")
            };
            assert_refused(
                "an upstream",
                it.upsert(vec![wrong]).await,
                "paths[0].upstream",
            );
        }
        if !plain {
            let regular = api::IngressPath {
                r#type: PathType::Regex as i32,
                ..it.path("/a.*")
            };
            let rule = it.upsert(vec![regular]).await.unwrap();
            assert_eq!(rule.paths[0].r#type(), PathType::Regex);
        }
    }
}

pub(super) async fn a_host_takes_a_thousand_paths_and_no_more(subject: &Subject) {
    for backend in subject.backends() {
        let it = Fixture::new(subject, backend).await;
        let all: Vec<_> = (0..1000).map(|at| it.path(&format!("/{at}"))).collect();
        let rule = it.upsert(all).await.unwrap();
        assert_eq!(rule.paths.len(), 1000, "{backend:?}");
        let outcome = it.upsert(vec![it.path("/one-more")]).await;
        assert_refused("one more", outcome, "paths");
        let first = it.upsert(vec![it.path("/0")]).await.unwrap();
        assert_eq!(first.paths.len(), 1000, "{backend:?}");
    }
}
