//! The store of several orchestrators: a [`Backend`](drover_store::Backend) over etcd.
//!
//! `members` calls etcd's members, as the user that `login` logs in or a certificate names. `commit`, `scan`, `watch` and
//! `lease` are the parts of a backend, `backend` puts them together. `space` and `maintain` look after the room that etcd has.
//! The part of etcd's API that is used is in `proto/etcd.proto`.

mod backend;
mod commit;
mod keys;
mod lease;
mod login;
mod maintain;
mod members;
mod scan;
mod settings;
mod space;
mod watch;

pub use backend::EtcdBackend;
pub use maintain::{Defragmented, Maintenance, Member, Report};
pub use settings::EtcdSettings;
pub use space::Space;

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
