use super::{
    super::{memory::Memory, writer::Writers},
    *,
};

#[test]
fn a_page_token_belongs_to_its_query() {
    let given = token("query", "n/web");
    let last = position(&given, "query").unwrap();
    assert_eq!(last.as_deref(), Some("n/web"));
    assert_eq!(position("", "query").unwrap(), None);
    for (token, query) in [(given.as_str(), "other"), ("%", "query"), ("YQ", "query")] {
        let error = position(token, query).unwrap_err();
        assert_eq!(error.fields()[0].field, "page_token", "{token} {query}");
    }
}

fn two_hosts() -> Rules {
    let hosts = ["a.example", "b.example"];
    hosts
        .map(|host| (host.to_owned(), rule::Paths::new()))
        .into()
}

fn tls(hosts: &[&str], secret: &str) -> api::IngressTls {
    api::IngressTls {
        hosts: hosts.iter().map(|host| (*host).to_owned()).collect(),
        secret: secret.to_owned(),
    }
}

fn made(kind: Kind, tls: &[api::IngressTls], class_name: &str) -> Result<Vec<DynamicObject>> {
    let metadata = api::Metadata {
        name: "web".to_owned(),
        namespace: "n".to_owned(),
        labels: [("team".to_owned(), "blue".to_owned())].into(),
        ..api::Metadata::default()
    };
    new_objects(kind, &metadata, &two_hosts(), tls, class_name)
}

#[test]
fn each_host_of_an_ingress_has_an_object_where_objects_have_one_host() {
    for (kind, class_name, objects) in [
        (Kind::Ingress, "nginx", 1),
        (Kind::HttpRoute, "n/gw", 2),
        (Kind::VirtualService, "", 2),
    ] {
        let made = made(kind, &[], class_name).unwrap();
        assert_eq!(made.len(), objects, "{kind:?}");
        let names: BTreeSet<String> = made.iter().map(ResourceExt::name_any).collect();
        assert!(names.contains("web") && names.len() == objects, "{names:?}");
        for object in &made {
            assert_eq!(meta::ingress_of(object), "web");
            assert_eq!(object.labels()["team"], "blue");
        }
        let answer = meta::answer("web", &made);
        assert_eq!((answer.name.as_str(), answer.labels.len()), ("web", 1));
        assert_eq!(answer.annotations.len(), 0, "{:?}", answer.annotations);
    }
}

#[test]
fn what_a_kind_of_object_cannot_say_is_refused_with_its_field() {
    let cert = [tls(&["a.example"], "cert")];
    let other = [tls(&["c.example"], "cert")];
    let twice = [
        tls(&["a.example"], "cert"),
        tls(&["b.example", "a.example"], "next"),
    ];
    for (kind, tls, class_name, field) in [
        (Kind::HttpRoute, &cert[..], "n/gw", "ingress.tls"),
        (Kind::HttpRoute, &[], "", "ingress.class_name"),
        (Kind::HttpRoute, &[], "nginx", "ingress.class_name"),
        (Kind::VirtualService, &[], "n/gw", "ingress.class_name"),
        (Kind::VirtualService, &other, "", "ingress.tls[0].hosts[0]"),
        (Kind::VirtualService, &twice, "", "ingress.tls[1].hosts[1]"),
    ] {
        let error = made(kind, tls, class_name).unwrap_err();
        assert_eq!(error.fields()[0].field, field, "{kind:?}");
    }
    made(Kind::VirtualService, &cert, "").unwrap();
}

fn class_of(kind: Kind) -> &'static str {
    match kind {
        Kind::Ingress => "nginx",
        Kind::HttpRoute => "n/gw",
        Kind::VirtualService => "",
    }
}

fn new(objects: &Objects, kind: Kind) -> New {
    New {
        objects: objects.clone(),
        kind,
        namespace: "n".to_owned(),
        name: "web".to_owned(),
        hosts: two_hosts().into_keys().collect(),
        built: made(kind, &[], class_of(kind)).unwrap(),
    }
}

async fn deleted(objects: &Objects, kind: Kind) -> Result<bool> {
    remove(objects.clone(), kind, "n".to_owned(), "web".to_owned()).await
}

#[tokio::test]
async fn an_ingress_is_created_whole_though_whoever_asked_has_gone() {
    let memory = Memory::default();
    let objects = memory.objects();
    let (kind, writers) = (Kind::HttpRoute.resource(), Writers::default());
    let mut asks = Box::pin(writers.whole(new(&objects, Kind::HttpRoute).create()));
    while memory.names(&kind).is_empty() {
        assert!(futures::poll!(&mut asks).is_pending());
        tokio::task::yield_now().await;
    }
    assert_eq!(memory.names(&kind).len(), 1);
    drop(asks);
    while memory.names(&kind).len() < 2 {
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn routes_that_cannot_be_completed_after_a_creation_are_no_refusal() {
    let memory = Memory::default();
    let objects = memory.objects();
    let path = |n: usize| super::super::rule::Path {
        key: rule::Key {
            path: format!("/{n}"),
            matching: rule::Matching::Prefix,
        },
        name: None,
        target: rule::Target::Service(rule::ServicePort {
            name: "web".to_owned(),
            port: rule::Port::Number(80),
        }),
        raw: None,
    };
    let mut new = new(&objects, Kind::HttpRoute);
    let paths = Paths::of((0..20).map(path).collect(), rule::Holder::Any);
    let parents = route::parent("n/gw").unwrap();
    let metadata = new.built[0].metadata.clone();
    new.built = vec![route::leading(metadata, "a.example", &parents, &paths, 1)];
    // Somebody else's, in the way of what follows.
    let name = route::name_behind("web", "a.example", 1);
    let other = serde_json::json!({"metadata": {"name": name, "namespace": "n"}, "spec": {}});
    memory.put(&Kind::HttpRoute.resource(), other);
    let error = new.create().await.unwrap_err();
    assert_eq!(error.reason(), Reason::Unavailable, "{error}");
}

#[tokio::test]
async fn what_is_in_the_way_of_a_part_is_named_and_the_other_parts_go_again() {
    let memory = Memory::default();
    let objects = memory.objects();
    let new = new(&objects, Kind::HttpRoute);
    // Without our label, so that nobody takes it for a part of the ingress before.
    let name = new.built[1].name_any();
    let other = serde_json::json!({
        "metadata": {"name": name, "namespace": "n", "annotations": {meta::INGRESS: "web"}}, "spec": {},
    });
    memory.put(&Kind::HttpRoute.resource(), other);
    let error = new.create().await.unwrap_err();
    assert_eq!(error.reason(), Reason::Precondition, "{error}");
    assert_eq!(error.resource(), Some(("HTTPRoute", name.as_str())));
    assert_eq!(memory.names(&Kind::HttpRoute.resource()), [name]);
}

/// An object without our label, in the way of the second part.
fn other(new: &New) -> serde_json::Value {
    serde_json::json!({
        "metadata": {
            "name": new.built[1].name_any(), "namespace": "n", "annotations": {meta::INGRESS: "web"},
        },
        "spec": {},
    })
}

#[tokio::test]
async fn parts_into_which_somebody_has_written_a_status_go_again_too() {
    let memory = Memory::default();
    memory.tend();
    let new = new(&memory.objects(), Kind::HttpRoute);
    let name = new.built[1].name_any();
    memory.put(&Kind::HttpRoute.resource(), other(&new));
    let error = new.create().await.unwrap_err();
    assert_eq!(error.reason(), Reason::Precondition, "{error}");
    assert_eq!(memory.names(&Kind::HttpRoute.resource()), [name]);
}

#[tokio::test]
async fn a_part_whose_answer_was_lost_is_found() {
    for kind in [Kind::Ingress, Kind::HttpRoute, Kind::VirtualService] {
        let memory = Memory::default();
        let new = new(&memory.objects(), kind);
        let (last, all) = (new.built.last().unwrap().name_any(), new.built.len());
        memory.lose(http::Method::POST, &last);
        let created = new.create().await.unwrap();
        assert_eq!(
            (created.len(), memory.names(&kind.resource()).len()),
            (all, all)
        );
    }
}

#[tokio::test(start_paused = true)]
async fn of_parts_of_which_one_was_not_made_none_stays() {
    let memory = Memory::default();
    let new = new(&memory.objects(), Kind::HttpRoute);
    memory.fail(http::Method::POST, &new.built[1].name_any());
    let error = new.create().await.unwrap_err();
    assert_eq!(error.reason(), Reason::Unavailable, "{error}");
    assert!(memory.names(&Kind::HttpRoute.resource()).is_empty());
}

#[tokio::test(start_paused = true)]
async fn parts_that_cannot_be_removed_again_are_named() {
    let memory = Memory::default();
    let new = new(&memory.objects(), Kind::HttpRoute);
    let first = new.built[0].name_any();
    memory.put(&Kind::HttpRoute.resource(), other(&new));
    // The last attempt removes it.
    memory.fail_times(2, http::Method::DELETE, &first);
    let error = new.clone().create().await.unwrap_err();
    assert_eq!(error.reason(), Reason::Precondition, "{error}");
    assert_eq!(memory.names(&Kind::HttpRoute.resource()).len(), 1);
    // Nobody may take it for a refusal then.
    memory.fail_times(3, http::Method::DELETE, &first);
    let error = new.create().await.unwrap_err();
    assert_eq!(error.reason(), Reason::Unavailable, "{error}");
    let said = format!("HTTPRoute {first}), delete the ingress");
    assert!(error.message().contains(&said), "{error}");
    assert_eq!(memory.names(&Kind::HttpRoute.resource()).len(), 2);
}

#[tokio::test]
async fn a_host_that_somebody_else_routes_meanwhile_is_given_up() {
    for kind in [Kind::Ingress, Kind::HttpRoute, Kind::VirtualService] {
        let memory = Memory::default();
        let new = new(&memory.objects(), kind);
        let mut theirs = New {
            name: "theirs".to_owned(),
            ..self::new(&memory.objects(), kind)
        };
        let object = &mut theirs.built[0];
        object.metadata.name = Some("theirs".to_owned());
        object.metadata.labels = None;
        object.metadata.annotations = None;
        let object = serde_json::to_value(object).unwrap();
        let last = new.built.last().unwrap().name_any();
        memory.put_during((http::Method::POST, &last), &kind.resource(), object);
        let error = new.create().await.unwrap_err();
        assert_eq!(
            error.reason(),
            Reason::IngressHostTaken,
            "{kind:?}: {error}"
        );
        assert_eq!(memory.names(&kind.resource()), ["theirs"], "{kind:?}");
    }
}

#[tokio::test]
async fn a_host_that_is_added_during_a_deletion_goes_with_the_others() {
    let memory = Memory::default();
    let objects = memory.objects();
    let kind = Kind::HttpRoute;
    let mut new = new(&objects, kind);
    let added = serde_json::to_value(new.built.pop().unwrap()).unwrap();
    let created = new.create().await.unwrap();
    let first = created[0].name_any();
    memory.put_during((http::Method::DELETE, &first), &kind.resource(), added);
    assert!(deleted(&objects, kind).await.unwrap());
    assert!(memory.names(&kind.resource()).is_empty());
}

#[test]
fn an_ingress_that_cannot_be_read_is_not_listed() {
    let mut objects = made(Kind::HttpRoute, &[], "n/gw").unwrap();
    assert!(is_readable(Kind::HttpRoute, &objects));
    let annotations = objects[1].metadata.annotations.as_mut().unwrap();
    annotations.insert(route::PATHS.to_owned(), "{".to_owned());
    assert!(!is_readable(Kind::HttpRoute, &objects));
}

#[tokio::test]
async fn a_deletion_that_fails_half_way_says_what_it_has_deleted_and_goes_on_when_repeated() {
    let memory = Memory::default();
    let objects = memory.objects();
    let kind = Kind::HttpRoute;
    let created = new(&objects, kind).create().await.unwrap();
    let names: Vec<String> = created.iter().map(ResourceExt::name_any).collect();
    memory.fail(http::Method::DELETE, &names[1]);
    let error = deleted(&objects, kind).await.unwrap_err();
    assert_eq!(error.reason(), Reason::Unavailable, "{error}");
    let said = format!("1 of kind HTTPRoute are deleted ({})", names[0]);
    assert!(error.message().contains(&said), "{error}");
    assert!(deleted(&objects, kind).await.unwrap());
    assert!(!deleted(&objects, kind).await.unwrap());
    assert!(memory.names(&kind.resource()).is_empty());
}
