//! Checks of the portable export and of the human-readable dump.

use std::sync::Arc;

use drover_core::Reason;
use drover_store::{Bytes, Desired, import};

use super::{
    Make, Subject, add_nodes, check_consistent, everything, load_all, open, reason, wanted,
};
use crate::store::MemoryBackend;

/// Everything except claims of processes and the mark of the import; the copy is held until a person confirms it.
pub async fn an_export_imported_elsewhere_is_the_same(make: Make<'_>) {
    let Subject { backend, _keep } = make();
    let store = open(&backend).await;
    let shards = store.take_all().await.unwrap();
    for i in 0..5 {
        let (uid, _) = store
            .create_cluster(wanted(&format!("c{i}")))
            .await
            .unwrap();
        add_nodes(&store, shards.of(uid), uid, 30).await;
    }
    store.put_secret("db", "hidden".into(), None).await.unwrap();
    let mut bytes = Vec::new();
    let summary = store.export(&mut bytes).await.unwrap();

    let other = make();
    for target in [other.backend.clone(), Arc::new(MemoryBackend::new())] {
        let imported = import(&*target, &mut bytes.as_slice()).await.unwrap();
        assert_eq!(imported, summary);
        let portable = |entries: Vec<(String, Bytes)>| -> Vec<(String, Bytes)> {
            entries
                .into_iter()
                .filter(|(key, _)| !(key.starts_with("a/") || key.starts_with("o/") || key == "m"))
                .collect()
        };
        assert_eq!(
            portable(everything(&*target).await),
            portable(everything(&*backend).await)
        );
        let copy = open(&target).await;
        assert_eq!(
            (copy.id(), copy.incarnation()),
            (store.id(), store.incarnation() + 1)
        );
        assert!(
            copy.restored_hold(),
            "nothing may be swept before a person confirms"
        );
        copy.confirm_restore().await.unwrap();
        assert!(!copy.restored_hold());
        assert!(!open(&target).await.restored_hold(), "for good");
        let epochs = copy.take_all().await.unwrap();
        for (new, old) in epochs.all().iter().zip(shards.all()) {
            assert!(new.epoch() > old.epoch(), "epochs grow across an import");
        }
        let (_, row) = load_all(&copy).await.pop_first().unwrap();
        assert_eq!(check_consistent(&copy, row.uid).await, 30);
        let mut again = Vec::new();
        copy.export(&mut again).await.unwrap();
        assert_eq!(
            reason(import(&*target, &mut again.as_slice())).await,
            Reason::AlreadyExists,
            "only into an empty one"
        );
    }
}

/// Truncated or changed anywhere, or not an export at all: nothing can be opened as a store afterwards.
pub async fn a_damaged_export_is_refused(make: Make<'_>) {
    let Subject { backend, _keep } = make();
    let store = open(&backend).await;
    store.create_cluster(wanted("shop")).await.unwrap();
    let mut whole = Vec::new();
    store.export(&mut whole).await.unwrap();
    let flip = |at: usize| {
        let mut bytes = whole.clone();
        bytes[at] ^= 1;
        bytes
    };
    let damaged = [
        whole[..whole.len() - 1].to_vec(),
        whole[..40].to_vec(),
        Vec::new(),
        flip(0),
        flip(whole.len() / 2),
        flip(30),
    ];
    for bytes in damaged {
        let target: Arc<dyn drover_store::Backend> = Arc::new(MemoryBackend::new());
        assert_eq!(
            reason(import(&*target, &mut bytes.as_slice())).await,
            Reason::Invalid
        );
        assert!(
            target
                .get(&drover_store::keys::Name::Meta.into())
                .await
                .unwrap()
                .is_none()
        );
    }
}

/// One line of JSON per key, with lengths in place of values that may be secret.
pub async fn a_dump_shows_no_secret(make: Make<'_>) {
    let Subject { backend, _keep } = make();
    let store = open(&backend).await;
    let shards = store.take_all().await.unwrap();
    let desired = Desired {
        spec: "hidden-in-spec".into(),
        ..wanted("shop")
    };
    assert!(!format!("{desired:?}").contains("hidden"));
    let (uid, _) = store.create_cluster(desired).await.unwrap();
    add_nodes(&store, shards.of(uid), uid, 1).await;
    store
        .put_secret("db", "hidden-secret".into(), None)
        .await
        .unwrap();
    let mut text = Vec::new();
    let summary = store.dump(&mut text, &|_, _| None).await.unwrap();
    let text = String::from_utf8(text).unwrap();
    assert_eq!(text.lines().count() as u64, summary.entries);
    assert!(!text.contains("hidden"));
    let line = |key: &str| {
        text.lines()
            .find(|line| line.contains(key))
            .unwrap_or_else(|| panic!("no {key} in {text}"))
    };
    assert!(line(&format!("c/{uid}/d")).contains(r#""spec":{"bytes":14}"#));
    assert!(line(&format!("c/{uid}/h")).contains(r#""lastSeq":1"#));
    assert!(line("s/db").contains(r#""value":{"bytes""#));
    assert!(line(&format!("z/{uid}/1")).contains("NodeReady"));
}
