//! The template catalogue of a platform: which template makes a node of which store, version and attributes.
//!
//! # A catalogue is a directory
//!
//! It holds the templates and one `index.yaml`:
//!
//! ```yaml
//! default:                        # for clusters that name no store; optional
//!   template: agent.yaml
//! stores:                         # first match wins, from top to bottom
//!   - store: redis
//!     versions:
//!       - version: ^7             # requirement: ^16, 3.4 (the same as ^3.4), ">=3.4, <5", "*" (anything)
//!         matchers:               # optional: attribute -> value, or a list of values one of which it must have
//!           tier: [hot, warm]
//!         template: redis.yaml    # a file of this directory
//!         options: {appendonly: true}      # free-form, `options` in the context; optional
//!         ports: [client]         # names of the ports of its nodes; optional
//!         health: {tcp: {port: client}, interval: 5s}    # the template's suggestions; all optional
//!         managementPolicy: OrderedReady   # or Parallel
//!         lifecycle:
//!           preStop: {exec: [redis-cli, shutdown], timeout: 10s}
//!           postPromote: {exec: [redis-cli, replicaof, "no", one]}
//! addons:                         # found by name; optional
//!   - name: haproxy
//!     template: haproxy.yaml
//! ```
//!
//! `health` has at most one of `phase: {}`, `grpc: {port, service}`, `http: {port, path, tls}`, `tcp: {port}` and
//! `exec: {command}`, and `interval`, `timeout`, `failureThreshold`, `successThreshold`, `startupTimeout`. A port is a
//! name of `ports` or a number. Times are written `500ms`, `10s`, `5m`, `1h`.
//!
//! Every other file whose name ends in `.yaml`, `.yml`, `.j2` or `.jinja` is parsed too, so that templates can
//! `{% include %}` and `{% import %}` it.
//!
//! Every entry has a [digest](Entry::digest) of what its nodes are made from.
//!
//! # Templates
//!
//! Templates are [minijinja](https://docs.rs/minijinja). They see [`Context`] and nothing else; a name that is not
//! defined is refused (`{{ options.size | default(1) }}` where it may be absent), nothing is escaped by itself
//! (`{{ value | tojson }}` quotes for YAML and JSON), and time and output are limited. `{{ refuse("why") }}` refuses a
//! request that the template cannot serve, in these words. Errors name file, line and column and never repeat what was
//! rendered.
//!
//! Templates are files that an operator installed. What a caller wrote is a [`Text`], and goes to a [`worker`].

mod catalogue;
mod context;
mod digest;
mod index;
mod render;
mod scope;
pub mod stores;
mod version;
pub mod worker;

pub use catalogue::{Catalogue, EmbeddedFile, Entry, Query, Reload, Selected};
pub use context::{
    ClusterContext, Context, EndpointContext, GroupContext, InfrastructureContext, NodeContext,
    NodeRole, NodeScope, PeerContext, StorageContext,
};
pub use index::{Health, Hook, Lifecycle, ManagementPolicy, Matcher, Port, Probe};
pub use render::{Rendered, Text, render_text};
pub use scope::Scope;
pub use version::Requirement;
