use super::*;

fn settings(change: impl FnOnce(&mut Settings)) -> Settings {
    let mut settings = Settings::default();
    change(&mut settings);
    settings
}

fn all(from: Source) -> ResourcesSettings {
    let part = PartSettings {
        from,
        ..PartSettings::default()
    };
    ResourcesSettings {
        nodes: part.clone(),
        pods: part.clone(),
        services: part.clone(),
        ingresses: part.clone(),
        ingress_rules: part.clone(),
        network_policies: part.clone(),
        configurations: part,
        ..ResourcesSettings::default()
    }
}

#[tokio::test]
async fn wrong_settings_are_named() {
    let remote = |endpoint: &str| PartSettings {
        from: Source::Remote,
        remote: RemoteSettings {
            endpoint: endpoint.to_owned(),
            ..RemoteSettings::default()
        },
        ..PartSettings::default()
    };
    type Change = Box<dyn FnOnce(&mut Settings)>;
    let wrong: Vec<(&str, Change)> = vec![
        (
            "resources.max_waits",
            Box::new(|it| it.resources.max_waits = 0),
        ),
        (
            "resources.max_streams",
            Box::new(|it| it.resources.max_streams = 0),
        ),
        (
            "resources.max_waits_per_caller",
            Box::new(|it| it.resources.max_waits_per_caller = Some(0)),
        ),
        (
            "resources.max_streams_per_caller",
            Box::new(|it| it.resources.max_streams_per_caller = Some(0)),
        ),
        (
            "resources.default_namespace",
            Box::new(|it| {
                it.namespaces = vec!["shop".into()];
                it.resources.default_namespace = Some("bank".into());
            }),
        ),
        (
            "resources.pods.remote.endpoint",
            Box::new(move |it| it.resources.pods = remote("a b")),
        ),
        (
            "resources.nodes.remote.endpoint",
            Box::new(move |it| {
                it.resources.nodes = PartSettings {
                    from: Source::Remote,
                    ..PartSettings::default()
                };
            }),
        ),
    ];
    for (field, change) in wrong {
        let settings = settings(|it| {
            it.resources = all(Source::Fake);
            change(it);
        });
        let error = open(&settings, &Clients::default()).await.err().unwrap();
        assert_eq!(error.fields()[0].field, field);
    }
}

#[tokio::test]
async fn a_server_without_an_api_server_opens_from_memory_or_with_everything_off() {
    for from in [Source::Fake, Source::Off] {
        let settings = settings(|it| it.resources = all(from));
        let opened = open(&settings, &Clients::default()).await;
        assert!(opened.is_ok(), "{from:?}");
    }
}
