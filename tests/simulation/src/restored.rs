//! A world after its store was restored from an older backup.

use std::{collections::BTreeSet, sync::Arc};

use drover_store::{Store, import};

use crate::{Crash, Disk, Site, World, immortal, settings};

/// Node ids at a backend.
pub fn ids(site: &Site) -> BTreeSet<String> {
    site.all().into_iter().map(|node| node.node_id).collect()
}

/// Returns a world whose store was restored to its state before `later` and is held until a confirmation, and the nodes
/// that existed after `later`.
pub async fn restored(
    later: impl AsyncFn(&mut World),
    crash: Arc<Crash>,
) -> (World, BTreeSet<String>) {
    let mut world = World::new(settings(), immortal()).await;
    world.apply("one", &[("web", 3)]).await;
    world.converge().await;
    let mut copy = Vec::new();
    let reader = Store::open(world.disk.clone()).await.unwrap();
    reader.export(&mut copy).await.unwrap();
    drop(reader);
    later(&mut world).await;
    world.converge().await;
    let living = ids(&world.site);
    world.orchestrator.take().unwrap().kill().await;
    let disk = Disk::new();
    import(&*disk, &mut copy.as_slice()).await.unwrap();
    let restored = World::over(disk, world.sites.clone(), world.site.clone(), crash).await;
    (restored, living)
}

impl World {
    /// Backs up the store while it is in use. `None` if it cannot be read.
    pub async fn back_up(&self) -> Option<Vec<u8>> {
        let mut copy = Vec::new();
        let reader = Store::open(self.disk.clone()).await.ok()?;
        reader.export(&mut copy).await.ok()?;
        Some(copy)
    }

    /// Loses the store with its process and replaces it by a backup, which is held until somebody confirms.
    pub async fn restore(&mut self, mut copy: &[u8]) {
        self.end().await;
        let disk = self.disk.another();
        import(&*disk, &mut copy).await.unwrap();
        self.disk = disk;
        self.begin().await;
    }

    /// Confirms that resources unknown to the restored store may be deleted.
    pub async fn confirm_restore(&mut self) {
        self.end().await;
        self.disk.faults().restart();
        let store = Store::open(self.disk.clone()).await.unwrap();
        store.confirm_restore().await.unwrap();
        drop(store);
        self.begin().await;
    }
}
