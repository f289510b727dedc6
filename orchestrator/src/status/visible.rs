//! What of clusters can be seen now: that depends on which platforms are visible.

use std::{collections::BTreeMap, sync::Arc};

use drover_cluster::Cluster;
use drover_core::{Millis, Sym};
use drover_platforms::Platforms;
use drover_proto::orchestrator::v1 as pb;
use drover_store::{Clock, DigestKey};

/// Visibility of platforms at the time of a response.
#[derive(Debug)]
pub(crate) struct Visible {
    pub(super) now: Millis,
    pub(super) digests: Arc<DigestKey>,
    /// Backend uid of each visible platform.
    pub(super) uids: BTreeMap<Sym, String>,
    /// Why each other platform is not visible.
    pub(super) troubles: BTreeMap<Sym, Box<str>>,
}

/// Shows clusters as they are now.
#[derive(Clone)]
pub(crate) struct Viewer {
    pub(crate) platforms: Arc<Platforms>,
    pub(crate) digests: Arc<DigestKey>,
    pub(crate) clock: Arc<Clock>,
}

impl Viewer {
    pub(crate) fn visible(&self) -> Visible {
        let now = self.clock.now();
        let platforms = self.platforms.read();
        let (mut uids, mut troubles) = (BTreeMap::new(), BTreeMap::new());
        for (name, registered) in platforms.iter() {
            let platform = &registered.platform;
            if platform.is_visible(now) {
                uids.insert(name.clone(), platform.registration().uid);
            } else {
                troubles.insert(name.clone(), platform.view(now).trouble);
            }
        }
        Visible {
            now,
            digests: self.digests.clone(),
            uids,
            troubles,
        }
    }

    /// A cluster with its spec.
    pub(crate) fn shown(&self, of: &Cluster) -> pb::Cluster {
        let visible = self.visible();
        super::cluster(of, &of.lock(), &visible, true)
    }
}

impl Visible {
    /// Backend uid of each visible platform.
    pub(crate) fn backends(&self) -> &BTreeMap<Sym, String> {
        &self.uids
    }

    pub(super) fn sees(&self, platform: &Sym, uid: &Sym) -> bool {
        self.uids.get(platform).is_some_and(|seen| **seen == **uid)
    }
}
