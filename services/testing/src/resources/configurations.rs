//! Configurations.

use drover_core::Reason;
use drover_proto::kubernetes::v1 as api;

use super::{
    Subject,
    fixture::{assert_reason, done, labels},
};

async fn update(
    subject: &Subject,
    new: api::Configuration,
) -> drover_core::Result<api::Configuration> {
    let request = api::UpdateConfigurationRequest {
        configuration: Some(new),
    };
    let answer = done(subject.configurations().update_configuration(request)).await?;
    Ok(answer.configuration.unwrap())
}

async fn get(subject: &Subject, of: &api::Configuration) -> api::Configuration {
    let metadata = of.metadata.clone().unwrap();
    let request = api::GetConfigurationRequest {
        namespace: metadata.namespace,
        name: metadata.name,
    };
    done(subject.configurations().get_configuration(request))
        .await
        .unwrap()
        .configuration
        .unwrap()
}

fn revision(of: &api::Configuration) -> String {
    of.metadata.clone().unwrap().revision
}

pub(super) async fn text_and_bytes_are_kept(subject: &Subject) {
    let mut new = subject.configuration();
    new.data = labels(&[("text", "a: ü\n"), ("empty", "")]);
    new.binary_data.insert("bytes".into(), vec![0, 255, 10]);
    let made = subject.create_configuration(new.clone()).await.unwrap();
    let found = get(subject, &made).await;
    assert_eq!(found, made);
    assert_eq!((found.data, found.binary_data), (new.data, new.binary_data));
}

pub(super) async fn an_update_replaces_everything(subject: &Subject) {
    let mut new = subject.configuration();
    new.metadata.as_mut().unwrap().labels = labels(&[("a", "1")]);
    let made = subject.create_configuration(new).await.unwrap();
    let mut next = made.clone();
    next.metadata.as_mut().unwrap().labels = labels(&[("b", "2")]);
    next.data = labels(&[("shape", "round")]);
    next.binary_data.insert("colour".into(), vec![1]);
    let updated = update(subject, next.clone()).await.unwrap();
    assert_ne!(revision(&updated), revision(&made));
    let found = get(subject, &made).await;
    assert_eq!(
        (found.data, found.binary_data),
        (next.data, next.binary_data)
    );
    let metadata = found.metadata.unwrap();
    assert_eq!(metadata.labels, labels(&[("b", "2")]));
    assert_eq!(metadata.uid, made.metadata.unwrap().uid);
}

pub(super) async fn an_update_of_an_old_revision_is_refused(subject: &Subject) {
    let made = subject
        .create_configuration(subject.configuration())
        .await
        .unwrap();
    let mut next = made.clone();
    next.data = labels(&[("colour", "green")]);
    update(subject, next.clone()).await.unwrap();
    next.data = labels(&[("colour", "red")]);
    assert_reason("old", update(subject, next).await, Reason::RevisionMismatch);
    assert_eq!(
        get(subject, &made).await.data,
        labels(&[("colour", "green")])
    );
}

pub(super) async fn an_update_without_a_revision_always_wins(subject: &Subject) {
    let mut next = subject
        .create_configuration(subject.configuration())
        .await
        .unwrap();
    next.metadata.as_mut().unwrap().revision.clear();
    for colour in ["green", "red"] {
        next.data = labels(&[("colour", colour)]);
        update(subject, next.clone()).await.unwrap();
    }
    assert_eq!(get(subject, &next).await.data, labels(&[("colour", "red")]));
}

pub(super) async fn an_immutable_configuration_is_never_changed(subject: &Subject) {
    let mut new = subject.configuration();
    new.immutable = true;
    let made = subject.create_configuration(new).await.unwrap();
    assert!(made.immutable);
    let mut next = made.clone();
    next.data = labels(&[("colour", "green")]);
    assert_reason("content", update(subject, next).await, Reason::Immutable);
    let mut next = made.clone();
    next.immutable = false;
    assert_reason("the mark", update(subject, next).await, Reason::Immutable);
    assert_eq!(get(subject, &made).await, made);
}

pub(super) async fn an_update_without_a_change_keeps_the_revision(subject: &Subject) {
    let made = subject
        .create_configuration(subject.configuration())
        .await
        .unwrap();
    let same = update(subject, made.clone()).await.unwrap();
    assert_eq!(revision(&same), revision(&made));
}

pub(super) async fn one_mebibyte_is_kept(subject: &Subject) {
    let mut new = subject.configuration();
    new.data = labels(&[("large", &"x".repeat(1_000_000))]);
    let made = subject.create_configuration(new).await.unwrap();
    assert_eq!(get(subject, &made).await.data["large"].len(), 1_000_000);
}

pub(super) async fn an_unknown_configuration_cannot_be_updated(subject: &Subject) {
    let outcome = update(subject, subject.configuration()).await;
    assert_reason("unknown", outcome, Reason::NotFound);
}
