//! The objects of one kind: read, listed in pages, made and deleted.

use std::fmt::Debug;

use drover_core::{Error, Reason, Result};
use k8s_openapi::NamespaceResourceScope;
use kube::{
    Api, Resource,
    api::{DeleteParams, ListParams, PostParams, Preconditions},
    core::Status,
};
use prost::Message;
use serde::{Serialize, de::DeserializeOwned};

use crate::{
    client::{ApiClient, Call, escape, limits},
    errors::{self, Fields},
};

/// Size at which a page ends, in bytes.
const MAX_PAGE_BYTES: usize = 1024 * 1024;
/// Who changed a field, as Kubernetes notes it.
pub(crate) const FIELD_MANAGER: &str = "drover";

/// A kind of objects, and how it is called.
pub(crate) struct Kind {
    /// As in rules of RBAC.
    pub(crate) plural: &'static str,
    /// In errors.
    pub(crate) name: &'static str,
    pub(crate) fields: Fields,
    /// How many the first call of a page asks for at most, before it is known how large they are.
    pub(crate) first_limit: u32,
}

impl Kind {
    /// What an object is called in errors.
    pub(crate) fn missing(&self, namespace: &str, name: &str) -> Error {
        Error::not_found(self.name, full_name(namespace, name))
    }

    /// The error of a call that kube made.
    pub(crate) fn failed(&self, call: &Call, error: kube::Error) -> Error {
        let error = errors::of(call, &error);
        match error.reason() {
            // Of a namespace that does not exist, Kubernetes says so in other words.
            Reason::NotFound
                if error
                    .resource()
                    .is_some_and(|(kind, _)| kind == self.plural) =>
            {
                self.missing(&call.namespace, &call.name)
            }
            Reason::AlreadyExists => {
                let name = full_name(&call.namespace, &call.name);
                let message = format!("there is a {} {name:?} already", self.name);
                Error::new(Reason::AlreadyExists, message).with_resource(self.name, name)
            }
            _ => self.fields.of_request(call, error),
        }
    }
}

fn full_name(namespace: &str, name: &str) -> String {
    if namespace.is_empty() {
        return name.to_owned();
    }
    format!("{namespace}/{name}")
}

/// One page of a list.
pub(crate) struct Page<T> {
    pub(crate) items: Vec<T>,
    pub(crate) next: String,
}

/// What a list selects.
pub(crate) struct Query<'a> {
    pub(crate) labels: String,
    pub(crate) fields: String,
    pub(crate) page_size: i32,
    pub(crate) page_token: &'a str,
}

/// The objects of one kind.
pub(crate) struct Objects<K> {
    pub(crate) client: ApiClient,
    pub(crate) kind: &'static Kind,
    object: std::marker::PhantomData<fn() -> K>,
}

impl<K> Clone for Objects<K> {
    fn clone(&self) -> Self {
        Self::new(self.client.clone(), self.kind)
    }
}

impl<K> Objects<K> {
    pub(crate) fn new(client: ApiClient, kind: &'static Kind) -> Self {
        Self {
            client,
            kind,
            object: std::marker::PhantomData,
        }
    }

    pub(crate) fn call(&self, verb: &'static str, namespace: &str, name: &str) -> Call {
        Call::new(verb, self.kind.plural, namespace, name)
    }
}

impl<K> Objects<K>
where
    K: Resource<Scope = NamespaceResourceScope, DynamicType = ()>
        + Clone
        + Debug
        + Serialize
        + DeserializeOwned,
{
    /// Objects of a namespace; of all where it is empty.
    pub(crate) fn api(&self, namespace: &str) -> Api<K> {
        match namespace {
            "" => Api::all(self.client.kube()),
            namespace => Api::namespaced(self.client.kube(), &escape(namespace)),
        }
    }

    pub(crate) async fn get(&self, namespace: &str, name: &str) -> Result<K> {
        let got = self.api(namespace).get(&escape(name)).await;
        got.map_err(|error| self.kind.failed(&self.call("get", namespace, name), error))
    }

    pub(crate) async fn create(&self, object: &K) -> Result<K> {
        let (namespace, name) = names(object);
        let call = self.call("create", &namespace, &name);
        let made = self.api(&namespace).create(&post(), object).await;
        made.map_err(|error| self.kind.failed(&call, error))
    }

    pub(crate) async fn replace(&self, object: &K) -> Result<K> {
        let (namespace, name) = names(object);
        let call = self.call("update", &namespace, &name);
        let api = self.api(&namespace);
        let made = api.replace(&escape(&name), &post(), object).await;
        made.map_err(|error| self.kind.failed(&call, error))
    }

    /// Deletes an object, or begins to. `None` if there is none; else its uid, where it is known.
    pub(crate) async fn delete(
        &self,
        namespace: &str,
        name: &str,
        how: &DeleteParams,
    ) -> Result<Option<Option<String>>> {
        let call = self.call("delete", namespace, name);
        match self.api(namespace).delete(&escape(name), how).await {
            Ok(deleted) => {
                let of_status = |status: Status| status.details.map(|details| details.uid);
                let uid = deleted.either(|object| object.meta().uid.clone(), of_status);
                Ok(Some(uid.filter(|uid| !uid.is_empty())))
            }
            Err(kube::Error::Api(status)) if status.code == 404 => Ok(None),
            Err(error) => {
                let error = self.kind.failed(&call, error);
                // In a deletion only the uid conflicts: the object of this name is another one now.
                if error.reason() == Reason::Conflict && wants_uid(how) {
                    let message = error.message().to_owned();
                    return Err(Error::new(Reason::RevisionMismatch, message)
                        .with_resource(self.kind.name, full_name(namespace, name)));
                }
                Err(error)
            }
        }
    }

    pub(crate) async fn existed(&self, namespace: &str, name: &str) -> Result<bool> {
        let deleted = self
            .delete(namespace, name, &DeleteParams::default())
            .await?;
        Ok(deleted.is_some())
    }

    pub(crate) async fn page<T: Message>(
        &self,
        namespace: &str,
        query: &Query<'_>,
        convert: impl Fn(K) -> T,
    ) -> Result<Page<T>> {
        let call = self.call("list", namespace, "");
        page(&self.api(namespace), self.kind, &call, query, convert).await
    }
}

/// An error of what comes after a write, which nobody may take for a refusal of it.
pub(crate) fn after_write(error: Error) -> Error {
    match error.reason() {
        Reason::Unavailable | Reason::DeadlineExceeded => error,
        _ => Error::unavailable(format!("it is done, but {}", error.message())),
    }
}

/// Most bytes of names in an error: a message has room for them and for what has failed.
const MAX_NAMES: usize = 2048;

/// The error of a deletion of several objects that has deleted some.
pub(crate) fn half_way(error: Error, kind: &str, deleted: &[String]) -> Error {
    if deleted.is_empty() {
        return error;
    }
    let mut names = String::new();
    let mut named = 0;
    for name in deleted {
        if names.len() + name.len() > MAX_NAMES {
            break;
        }
        names += if names.is_empty() { "" } else { ", " };
        names += name;
        named += 1;
    }
    if named < deleted.len() {
        names += &format!(" and {} more", deleted.len() - named);
    }
    let count = deleted.len();
    error
        .context(format!(
            "{count} of kind {kind} are deleted ({names}), and the others are not"
        ))
        .with_metadata("deleted", count)
}

fn wants_uid(how: &DeleteParams) -> bool {
    how.preconditions
        .as_ref()
        .is_some_and(|it| it.uid.is_some())
}

/// Only the object with this uid.
pub(crate) fn of_uid(uid: String) -> Option<Preconditions> {
    (!uid.is_empty()).then_some(Preconditions {
        resource_version: None,
        uid: Some(uid),
    })
}

/// A page, as large as asked for and not larger than answers may be.
pub(crate) async fn page<K, T: Message>(
    api: &Api<K>,
    kind: &Kind,
    call: &Call,
    query: &Query<'_>,
    convert: impl Fn(K) -> T,
) -> Result<Page<T>>
where
    K: Clone + Debug + DeserializeOwned,
{
    let mut filling = Filling::new(query.page_size, kind.first_limit, query.page_token);
    loop {
        let limit = filling.limit;
        let parameters = ListParams {
            label_selector: Some(query.labels.clone()).filter(|it| !it.is_empty()),
            field_selector: Some(query.fields.clone()).filter(|it| !it.is_empty()),
            limit: Some(limit),
            continue_token: Some(filling.page.next.clone()).filter(|it| !it.is_empty()),
            ..ListParams::default()
        };
        let list = match api.list(&parameters).await {
            Ok(list) => list,
            Err(error) if limit > 1 && limits::is_too_large(&error) => {
                filling.limit = limit / 2;
                continue;
            }
            Err(error) => return Err(kind.failed(call, error)),
        };
        let items: Vec<T> = list.items.into_iter().map(&convert).collect();
        if filling.add(items, list.metadata.continue_.unwrap_or_default()) {
            return Ok(filling.page);
        }
    }
}

/// A page that becomes full in several calls.
struct Filling<T> {
    page: Page<T>,
    most: usize,
    size: usize,
    /// How many the next call asks for.
    limit: u32,
}

impl<T: Message> Filling<T> {
    fn new(page_size: i32, first_limit: u32, token: &str) -> Self {
        let most = u32::try_from(page_size).unwrap_or(0).max(1);
        Self {
            page: Page {
                items: Vec::new(),
                next: token.to_owned(),
            },
            most: usize::try_from(most).unwrap_or(usize::MAX),
            size: 0,
            limit: most.min(first_limit),
        }
    }

    /// Whether the page is complete with an answer.
    fn add(&mut self, items: Vec<T>, next: String) -> bool {
        let room = MAX_PAGE_BYTES.saturating_sub(self.size);
        let mut size = 0;
        let fits = items.iter().take_while(|item| {
            size += item.encoded_len();
            size <= room
        });
        let mut fits = fits.count();
        if self.page.items.is_empty() {
            // One is told however large it is.
            fits = fits.max(1);
        }
        if fits < items.len() {
            // Where the next page begins only the API server can say, so that it is asked for fewer.
            self.limit = u32::try_from(fits).unwrap_or(1);
            return fits == 0;
        }
        self.size += items.iter().map(Message::encoded_len).sum::<usize>();
        self.page.items.extend(items);
        self.page.next = next;
        let count = self.page.items.len();
        if self.page.next.is_empty() || count >= self.most {
            return true;
        }
        let average = (self.size / count.max(1)).max(1);
        let room = MAX_PAGE_BYTES.saturating_sub(self.size) / average;
        let more = room.min(self.most - count);
        self.limit = u32::try_from(more).unwrap_or(u32::MAX);
        more == 0
    }
}

fn names<K: Resource>(object: &K) -> (String, String) {
    let meta = object.meta();
    let text = |it: &Option<String>| it.clone().unwrap_or_default();
    (text(&meta.namespace), text(&meta.name))
}

pub(crate) fn post() -> PostParams {
    PostParams {
        dry_run: false,
        field_manager: Some(FIELD_MANAGER.to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use drover_proto::kubernetes::v1::Configuration;

    use super::*;

    fn sized(bytes: usize, count: u32) -> Vec<Configuration> {
        let data = [("k".to_owned(), "x".repeat(bytes))];
        let one = Configuration {
            data: data.into(),
            ..Configuration::default()
        };
        vec![one; usize::try_from(count).unwrap()]
    }

    /// The limits of the calls for one page of objects of one size, and how many objects it has.
    fn calls(page_size: i32, bytes: usize, all: u32) -> (Vec<u32>, usize) {
        let mut filling = Filling::new(page_size, 16, "");
        let mut calls = Vec::new();
        loop {
            let limit = filling.limit;
            calls.push(limit);
            let told = u32::try_from(filling.page.items.len()).unwrap();
            let count = limit.min(all - told);
            let next = if told + count < all { "next" } else { "" };
            if filling.add(sized(bytes, count), next.to_owned()) {
                return (calls, filling.page.items.len());
            }
        }
    }

    #[test]
    fn a_page_of_small_objects_is_filled_in_two_calls() {
        assert_eq!(calls(500, 100, 1000), (vec![16, 484], 500));
        assert_eq!(calls(5, 100, 1000), (vec![5], 5));
        assert_eq!(calls(500, 100, 3), (vec![16], 3));
    }

    #[test]
    fn many_large_objects_are_never_asked_for_at_once() {
        let (limits, count) = calls(500, 1_000_000, 500);
        assert_eq!(count, 1);
        assert!(limits.iter().all(|limit| *limit <= 16), "{limits:?}");
        let (limits, count) = calls(500, 100_000, 500);
        assert_eq!(count, 10);
        assert!(limits.iter().all(|limit| *limit <= 16), "{limits:?}");
    }
}
