//! The store of several orchestrators: a [`Backend`](drover_store::Backend) over etcd.
//!
//! `members` calls etcd's members, `commit`, `scan`, `watch` and `lease` are the parts of a backend, `backend` puts them
//! together. The part of etcd's API that is used is in `proto/etcd.proto`.

mod backend;
mod commit;
mod keys;
mod lease;
mod members;
mod scan;
mod settings;
mod watch;

pub use backend::EtcdBackend;
pub use settings::EtcdSettings;

/// The generated client.
mod api {
    #![allow(
        clippy::all,
        clippy::pedantic,
        missing_docs,
        unreachable_pub,
        missing_debug_implementations,
        reason = "generated"
    )]
    tonic::include_proto!("etcdserverpb");
}
