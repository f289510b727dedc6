//! Specs in API responses: digests of user data in a keyed form that does not permit guessing the data.

use drover_cluster::stored_spec;
use drover_proto::orchestrator::v1::{self as pb, bootstrap_source::Source};
use drover_store::digest::{ClusterDigests, is_keyed};

/// A stored spec as it is shown. `None` if it cannot be decoded.
pub(crate) fn shown_spec(stored: &[u8], key: &ClusterDigests<'_>) -> Option<pb::ClusterSpec> {
    stored_spec(stored).ok().map(|spec| shown(spec, key))
}

/// A decoded spec as it is shown.
pub(crate) fn shown(mut spec: pb::ClusterSpec, key: &ClusterDigests<'_>) -> pb::ClusterSpec {
    for (_, source) in sources(&mut spec) {
        if let Some(Source::Sha256(digest)) = &mut source.source
            && !is_keyed(digest)
        {
            *digest = key.user_data(&digest.to_ascii_lowercase());
        }
    }
    spec
}

/// All user data sources in a spec, with their paths.
pub(crate) fn sources(spec: &mut pb::ClusterSpec) -> Vec<(String, &mut pb::BootstrapSource)> {
    let mut found = Vec::new();
    if let Some(source) = &mut spec.bootstrap {
        found.push(("spec.bootstrap".to_owned(), source));
    }
    let named = |at: &str, groups| {
        let groups: &mut Vec<pb::GroupSpec> = groups;
        let groups = groups.iter_mut().enumerate();
        let groups = groups.map(|(index, group)| (format!("{at}.groups[{index}]"), group));
        groups.collect::<Vec<_>>()
    };
    let mut open = named("spec", &mut spec.groups);
    while let Some((at, group)) = open.pop() {
        if let Some(source) = &mut group.bootstrap {
            found.push((format!("{at}.bootstrap"), source));
        }
        open.extend(named(&at, &mut group.groups));
    }
    found
}
