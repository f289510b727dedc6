//! The template catalogue of a platform, which selects a template by store, version and attributes of a node.
//!
//! # Format
//!
//! A catalogue is a directory with the templates and an `index.yaml`:
//!
//! ```yaml
//! default:                        # for clusters without a store; optional
//!   template: agent.yaml
//! stores:                         # first match wins, from top to bottom
//!   - store: redis
//!     versions:
//!       - version: ^7             # requirement: ^16, 3.4 (the same as ^3.4), ">=3.4, <5", "*" (anything)
//!         matchers:               # optional: attribute -> required value, or list of accepted values
//!           tier: [hot, warm]
//!         template: redis.yaml    # a file in this directory
//!         options: {appendonly: true}      # free-form, `options` in the context; optional
//!         ports: [client]         # names of the ports of its nodes; optional
//!         health: {tcp: {port: client}, interval: 5s}    # defaults of the template; all optional
//!         managementPolicy: OrderedReady   # or Parallel
//!         lifecycle:
//!           preStop: {exec: [redis-cli, shutdown], timeout: 10s}
//!           postPromote: {exec: [redis-cli, replicaof, "no", one]}
//!           soleWriter:           # of a store whose active node waits for standby nodes: how it goes on without them
//!             allow: {exec: [sh, db.sh, sole]}         # optional
//!             revoke: {exec: [sh, db.sh, together]}
//!             standbysAttribute: synchronous           # how many it needs; optional, 1 without it
//!         limits:                 # what groups may ask for; optional, and so is each of them
//!           maxSize: 3            # active nodes
//!           maxStandby: 2
//!           maxSizeWithStandby: 1 # active nodes of a group with standby nodes
//!           ignores: [version, nodeClass]   # makes no difference to its nodes, so that setting it is refused
//! addons:                         # found by name; optional
//!   - name: haproxy
//!     template: haproxy.yaml
//! ```
//!
//! `health` has at most one of `phase: {}`, `grpc: {port, service}`, `http: {port, path, tls}`, `tcp: {port}` and
//! `exec: {command}`, and optionally `interval`, `timeout`, `failureThreshold`, `successThreshold`, `startupTimeout`. A
//! port is a name in `ports` or a number. Durations are written as `500ms`, `10s`, `5m`, `1h`.
//!
//! All other files with the extension `.yaml`, `.yml`, `.j2` or `.jinja` are parsed too, so that templates can
//! `{% include %}` and `{% import %}` them.
//!
//! Every entry has a [digest](Entry::digest) of everything that its nodes are created from.
//!
//! # Templates
//!
//! Templates use [minijinja](https://docs.rs/minijinja) and can read [`Context`] only. An undefined name is an error
//! (use `{{ options.size | default(1) }}` if it may be absent), there is no automatic escaping (`{{ value | tojson }}`
//! quotes for YAML and JSON), and time and output are limited. `{{ refuse("why") }}` rejects a request that the
//! template cannot serve, with this message; `b64encode` and `b64decode` are filters for texts. Errors contain file, line and column, and never repeat rendered content.
//!
//! Templates are files installed by an operator. A template written by a caller is a [`Text`], and is rendered by a
//! [`worker`].

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
    AddonScope, ClusterContext, Context, EndpointContext, GroupContext, InfrastructureContext,
    NodeContext, NodeRole, NodeScope, PeerContext, StorageContext,
};
pub use index::{
    Health, Hook, Ignored, Lifecycle, Limits, ManagementPolicy, Matcher, Port, Probe, SoleWriter,
};
pub use render::{Rendered, Text, render_text};
pub use scope::Scope;
pub use version::Requirement;
