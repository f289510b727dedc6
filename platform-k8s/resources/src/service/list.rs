//! Lists: pages over the namespaces that are served.

use std::cmp::Ordering;

use drover_core::{Error, Result};
use drover_proto::{common::v1::LabelSelector, kubernetes::v1 as api};
use futures::future::BoxFuture;
use prost::Message;

use super::Call;
use crate::{
    check::{Check, syntax},
    page::{self, Place, Query},
    served::in_order,
};

/// Size at which a page ends, in bytes.
const MAX_PAGE_BYTES: usize = 1024 * 1024;

/// The request of a list.
pub(super) trait List: Message + Clone {
    /// What is listed.
    type Item: Message;
    /// One page.
    type Page;
    /// Name of the call.
    const CALL: &'static str;

    /// The fields that all lists have.
    fn fields(&mut self) -> Fields<'_>;

    /// Checks what else there is.
    fn more(&self, _check: &mut Check) {}

    /// Objects of a page, and the token of the next one.
    fn items(page: Self::Page) -> (Vec<Self::Item>, String);

    /// A page of objects.
    fn page(items: Vec<Self::Item>, next_page_token: String) -> Self::Page;

    /// Namespace of an object.
    fn namespace(item: &Self::Item) -> &str;
}

/// The fields that all lists have.
pub(super) struct Fields<'a> {
    /// `None` for what is in no namespace.
    pub(super) namespace: Option<&'a mut String>,
    pub(super) selector: Option<&'a mut LabelSelector>,
    pub(super) page_size: &'a mut i32,
    pub(super) page_token: &'a mut String,
}

/// One page, over all namespaces that the call may see.
pub(super) async fn pages<'a, R: List>(
    call: &Call,
    mut request: R,
    list: impl Fn(R) -> BoxFuture<'a, Result<R::Page>>,
) -> Result<R::Page> {
    let mut check = Check::default();
    let fields = request.fields();
    let (size, token) = (*fields.page_size, std::mem::take(fields.page_token));
    *fields.page_size = 0;
    check.selector("selector", fields.selector);
    let namespace = fields.namespace.map(|namespace| namespace.clone());
    if let Some(namespace) = &namespace {
        check.optional("namespace", namespace, syntax::label);
    }
    request.more(&mut check);
    let size = match page::size(size) {
        Ok(size) => size,
        Err(error) => {
            join(&mut check, &error);
            0
        }
    };
    let query = Query::of(&request, R::CALL);
    let place = match call.resources.tokens().place(query, &token) {
        Err(error) if error.fields().is_empty() => return Err(error),
        Err(error) => {
            join(&mut check, &error);
            None
        }
        Ok(place) => place,
    };
    check.finish()?;
    let kind = "list";
    match namespace.as_deref() {
        None => call.about(kind, "nodes")?,
        Some("") => call.caller.about(kind, "*"),
        Some(namespace) => call.inside(kind, namespace, "*")?,
    }
    let scopes = call
        .resources
        .served()
        .scopes(namespace.as_deref().unwrap_or_default());
    walk(
        call,
        &request,
        (scopes, place.unwrap_or_default(), size, query),
        list,
    )
    .await
}

fn join(check: &mut Check, error: &Error) {
    for violation in error.fields() {
        check.wrong(&violation.field, &violation.description);
    }
}

async fn walk<'a, R: List>(
    call: &Call,
    request: &R,
    (mut scopes, place, size, query): (Vec<String>, Place, usize, Query),
    list: impl Fn(R) -> BoxFuture<'a, Result<R::Page>>,
) -> Result<R::Page> {
    let left = |scope: &str| in_order(scope, &place.scope) != Ordering::Less;
    scopes.retain(|scope| left(scope) && (scope.is_empty() || call.sees(scope)));
    let mut items = Vec::new();
    let mut bytes = 0;
    for (at, scope) in scopes.iter().enumerate() {
        let mut asked = request.clone();
        let fields = asked.fields();
        let namespaced = fields.namespace.is_some();
        if let Some(namespace) = fields.namespace {
            namespace.clone_from(scope);
        }
        *fields.page_size = i32::try_from(size - items.len()).unwrap_or(i32::MAX);
        if *scope == place.scope {
            fields.page_token.clone_from(&place.token);
        }
        let (found, next) = R::items(list(asked).await?);
        for item in found {
            if !namespaced || call.sees(R::namespace(&item)) {
                bytes += item.encoded_len();
                items.push(item);
            }
        }
        let next = match (next.is_empty(), scopes.get(at + 1)) {
            (false, _) => Place {
                scope: scope.clone(),
                token: next,
            },
            (true, Some(scope)) if items.len() >= size || bytes >= MAX_PAGE_BYTES => Place {
                scope: scope.clone(),
                token: String::new(),
            },
            (true, _) => continue,
        };
        let token = call.resources.tokens().token(query, &next)?;
        return Ok(R::page(items, token));
    }
    Ok(R::page(items, String::new()))
}

macro_rules! lists {
    ($($request:ident => $page:ident { $items:ident: $item:ident } $call:literal $($backend:ident)?;)*) => {
        $(impl List for api::$request {
            type Item = api::$item;
            type Page = api::$page;
            const CALL: &'static str = $call;

            fn fields(&mut self) -> Fields<'_> {
                Fields {
                    namespace: Some(&mut self.namespace),
                    selector: self.selector.as_mut(),
                    page_size: &mut self.page_size,
                    page_token: &mut self.page_token,
                }
            }

            $(fn more(&self, check: &mut Check) {
                check.known::<api::IngressBackend>(stringify!($backend), self.$backend);
            })?

            fn items(page: Self::Page) -> (Vec<Self::Item>, String) {
                (page.$items, page.next_page_token)
            }

            fn page($items: Vec<Self::Item>, next_page_token: String) -> Self::Page {
                api::$page { $items, next_page_token }
            }

            fn namespace(item: &Self::Item) -> &str {
                item.metadata.as_ref().map_or("", |metadata| &metadata.namespace)
            }
        })*
    };
}

lists! {
    ListServicesRequest => ListServicesResponse { services: Service } "ListServices";
    ListIngressesRequest => ListIngressesResponse { ingresses: Ingress } "ListIngresses" backend;
    ListNetworkPoliciesRequest => ListNetworkPoliciesResponse { network_policies: NetworkPolicy } "ListNetworkPolicies";
    ListConfigurationsRequest => ListConfigurationsResponse { configurations: Configuration } "ListConfigurations";
}

impl List for api::ListPodsRequest {
    type Item = api::Pod;
    type Page = api::ListPodsResponse;
    const CALL: &'static str = "ListPods";

    fn fields(&mut self) -> Fields<'_> {
        Fields {
            namespace: Some(&mut self.namespace),
            selector: self.selector.as_mut(),
            page_size: &mut self.page_size,
            page_token: &mut self.page_token,
        }
    }

    fn more(&self, check: &mut Check) {
        check.optional("node", &self.node, syntax::subdomain);
    }

    fn items(page: Self::Page) -> (Vec<Self::Item>, String) {
        (page.pods, page.next_page_token)
    }

    fn page(pods: Vec<Self::Item>, next_page_token: String) -> Self::Page {
        api::ListPodsResponse {
            pods,
            next_page_token,
        }
    }

    fn namespace(item: &Self::Item) -> &str {
        let metadata = item.metadata.as_ref();
        metadata.map_or("", |metadata| &metadata.namespace)
    }
}

impl List for api::ListNodesRequest {
    type Item = api::Node;
    type Page = api::ListNodesResponse;
    const CALL: &'static str = "ListNodes";

    fn fields(&mut self) -> Fields<'_> {
        Fields {
            namespace: None,
            selector: self.selector.as_mut(),
            page_size: &mut self.page_size,
            page_token: &mut self.page_token,
        }
    }

    fn items(page: Self::Page) -> (Vec<Self::Item>, String) {
        (page.nodes, page.next_page_token)
    }

    fn page(nodes: Vec<Self::Item>, next_page_token: String) -> Self::Page {
        api::ListNodesResponse {
            nodes,
            next_page_token,
        }
    }

    fn namespace(_: &Self::Item) -> &str {
        ""
    }
}
