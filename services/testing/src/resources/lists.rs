//! Lists: pages, tokens, selectors.

use std::collections::BTreeSet;

use drover_proto::{
    common::v1::{LabelOperator, LabelSelector},
    kubernetes::v1 as api,
};

use super::{
    Subject,
    fixture::{assert_refused, done, labels, requirement, selector},
};

/// Labels of something that has none of its own.
const NONE: &[(&str, &str)] = &[];

/// Configurations with labels, under one label of their own. Answers its value.
async fn several(subject: &Subject, all: &[&[(&str, &str)]]) -> String {
    let group = subject.name("group");
    for own in all {
        let mut new = subject.configuration();
        let metadata = new.metadata.as_mut().unwrap();
        metadata.labels = labels(own);
        metadata.labels.insert("group".into(), group.clone());
        subject.create_configuration(new).await.unwrap();
    }
    group
}

fn request(subject: &Subject, group: &str) -> api::ListConfigurationsRequest {
    api::ListConfigurationsRequest {
        namespace: subject.namespace.clone(),
        selector: selector(&[("group", group)]),
        ..Default::default()
    }
}

async fn names(subject: &Subject, selector: Option<LabelSelector>) -> Vec<String> {
    let request = api::ListConfigurationsRequest {
        namespace: subject.namespace.clone(),
        selector,
        ..Default::default()
    };
    let page = done(subject.configurations().list_configurations(request))
        .await
        .unwrap();
    assert_eq!(page.next_page_token, "");
    let name = |one: api::Configuration| one.metadata.unwrap().name;
    page.configurations.into_iter().map(name).collect()
}

pub(super) async fn pages_are_complete_and_in_order(subject: &Subject) {
    let group = several(subject, &[NONE; 7]).await;
    let whole = names(subject, selector(&[("group", &group)])).await;
    let mut sorted = whole.clone();
    sorted.sort();
    assert_eq!(whole, sorted);
    assert_eq!(whole.len(), 7);
    let mut found = Vec::new();
    let mut page_token = String::new();
    loop {
        let request = api::ListConfigurationsRequest {
            page_size: 3,
            page_token,
            ..request(subject, &group)
        };
        let page = done(subject.configurations().list_configurations(request))
            .await
            .unwrap();
        assert!(page.configurations.len() <= 3);
        found.extend(
            page.configurations
                .into_iter()
                .map(|one| one.metadata.unwrap().name),
        );
        page_token = page.next_page_token;
        if page_token.is_empty() {
            break;
        }
    }
    assert_eq!(found, whole);
}

async fn first_token(subject: &Subject, group: &str) -> String {
    let request = api::ListConfigurationsRequest {
        page_size: 1,
        ..request(subject, group)
    };
    let page = done(subject.configurations().list_configurations(request))
        .await
        .unwrap();
    assert_ne!(page.next_page_token, "");
    page.next_page_token
}

pub(super) async fn a_page_token_belongs_to_its_query(subject: &Subject) {
    let group = several(subject, &[NONE; 3]).await;
    let page_token = first_token(subject, &group).await;
    let other = api::ListConfigurationsRequest {
        selector: None,
        page_token: page_token.clone(),
        ..request(subject, &group)
    };
    let outcome = done(subject.configurations().list_configurations(other)).await;
    assert_refused("another selector", outcome, "page_token");
    let other = api::ListServicesRequest {
        namespace: subject.namespace.clone(),
        selector: selector(&[("group", &group)]),
        page_token: page_token.clone(),
        ..Default::default()
    };
    let outcome = done(subject.services().list_services(other)).await;
    assert_refused("another kind", outcome, "page_token");
    // The size of pages is no part of the query.
    let same = api::ListConfigurationsRequest {
        page_size: 2,
        page_token,
        ..request(subject, &group)
    };
    let page = done(subject.configurations().list_configurations(same))
        .await
        .unwrap();
    assert_eq!(page.configurations.len(), 2);
}

pub(super) async fn a_damaged_page_token_is_refused(subject: &Subject) {
    let group = several(subject, &[NONE; 3]).await;
    let token = first_token(subject, &group).await;
    for page_token in ["x", "€", &token[1..], &format!("{token}!")] {
        let request = api::ListConfigurationsRequest {
            page_token: page_token.to_owned(),
            ..request(subject, &group)
        };
        let outcome = done(subject.configurations().list_configurations(request)).await;
        assert_refused(page_token, outcome, "page_token");
    }
}

pub(super) async fn selectors_have_the_whole_language(subject: &Subject) {
    let all: [&[(&str, &str)]; 3] = [&[("tier", "web")], &[("tier", "db")], &[]];
    let group = several(subject, &all).await;
    let every = names(subject, selector(&[("group", &group)])).await;
    let [web, db, none] = &every[..] else {
        panic!("{every:?}")
    };
    for (operator, values, expected) in [
        (LabelOperator::In, &["web", "cache"][..], vec![web]),
        (LabelOperator::NotIn, &["web"], vec![db, none]),
        (LabelOperator::Exists, &[], vec![web, db]),
        (LabelOperator::NotExists, &[], vec![none]),
    ] {
        let mut wanted = requirement("tier", operator, values).unwrap();
        wanted.match_labels = labels(&[("group", &group)]);
        let found = names(subject, Some(wanted)).await;
        assert_eq!(found.iter().collect::<Vec<_>>(), expected, "{operator:?}");
    }
}

pub(super) async fn a_list_of_everything_shows_every_namespace_that_is_served(subject: &Subject) {
    let group = several(subject, &[NONE; 2]).await;
    let request = api::ListConfigurationsRequest {
        selector: selector(&[("group", &group)]),
        ..Default::default()
    };
    let page = done(subject.configurations().list_configurations(request))
        .await
        .unwrap();
    let namespaces: BTreeSet<String> = page
        .configurations
        .into_iter()
        .map(|one| one.metadata.unwrap().namespace)
        .collect();
    assert_eq!(namespaces, BTreeSet::from([subject.namespace.clone()]));
}
