use std::{
    io::Write,
    os::unix::fs::OpenOptionsExt,
    sync::atomic::{AtomicU64, Ordering},
};

use drover_proto::orchestrator::v1 as pb;
use drover_store::{Backend, Keyring, Me, Shards};
use drover_testing::store::MemoryBackend;
use tokio::time::timeout;

use super::*;

/// Longer than anything has to last before it counts, and is told.
const LONG: Duration = Duration::from_secs(60);
const NOON: u64 = 1_700_000_000_000;

/// A replica of a store, with a network, a clock and keys of its own.
struct Site {
    store: Arc<Store>,
    fitness: Fitness,
    /// Platforms that it does not reach.
    cut: Arc<Mutex<BTreeSet<String>>>,
    /// What its clock shows at the begin of the test.
    clock: Arc<AtomicU64>,
    _follows: tokio_util::task::AbortOnDropHandle<()>,
}

async fn site(backend: &Arc<MemoryBackend>, name: &str, keys: Option<PathBuf>) -> Site {
    let backend: Arc<dyn Backend> = backend.clone();
    let store = Arc::new(Store::open_as(backend, Me::named(name)).await.unwrap());
    let (fitness, cut) = (
        Fitness::default(),
        Arc::<Mutex<BTreeSet<String>>>::default(),
    );
    let (clock, begin) = (Arc::new(AtomicU64::new(NOON)), Instant::now());
    let senses = Senses {
        keys,
        has_read: Arc::new(|| true),
        wall: Arc::new({
            let clock = clock.clone();
            move || {
                let passed = u64::try_from(begin.elapsed().as_millis()).unwrap();
                clock.load(Ordering::Relaxed) + passed
            }
        }),
        reach: Arc::new({
            let cut = cut.clone();
            move |url| {
                let reached = !cut.lock().contains(&url);
                Box::pin(std::future::ready(reached))
            }
        }),
    };
    let follows = tokio::spawn({
        let (store, fitness) = (store.clone(), fitness.clone());
        async move { fitness.follow(&store, senses).await }
    });
    Site {
        store,
        fitness,
        cut,
        clock,
        _follows: tokio_util::task::AbortOnDropHandle::new(follows),
    }
}

impl Site {
    async fn register(&self, name: &str) {
        let registration = Registration {
            spec: pb::PlatformSpec {
                endpoint: url(name),
                ..pb::PlatformSpec::default()
            },
            ..Registration::default()
        };
        self.store
            .put_platform(registration.row(name), Some(0))
            .await
            .unwrap();
    }

    fn loses(&self, platform: &str) {
        self.cut.lock().insert(url(platform));
    }

    /// What it tells the others.
    async fn told(&self) -> ReplicaReport {
        let replicas = self.store.replicas().await.unwrap();
        let own = replicas.into_iter().find(|replica| replica.is_this);
        own.unwrap().report.unwrap_or_default()
    }

    async fn outdone(&self) -> Option<String> {
        timeout(LONG, self.fitness.until_outdone(&self.store))
            .await
            .ok()
    }
}

fn url(platform: &str) -> String {
    format!("http://{platform}:7401")
}

async fn three() -> (Site, Site, Site) {
    let backend = Arc::new(MemoryBackend::new());
    let sites = (
        site(&backend, "a", None).await,
        site(&backend, "b", None).await,
        site(&backend, "c", None).await,
    );
    sites.0.register("east").await;
    sites.0.register("west").await;
    sites
}

#[tokio::test(start_paused = true)]
async fn replicas_that_reach_the_same_and_agree_on_the_time_may_all_lead() {
    let (a, b, c) = three().await;
    sleep(LONG).await;
    for site in [a, b, c] {
        assert_eq!(site.fitness.outdone(), None);
        let told = site.told().await;
        assert_eq!(told.platforms, ["east", "west"]);
        assert_eq!(told.unfit, "");
    }
}

#[tokio::test(start_paused = true)]
async fn one_that_reaches_fewer_platforms_than_another_is_outdone_after_half_a_minute() {
    let (a, b, _c) = three().await;
    sleep(LONG).await;
    a.loses("west");
    let begin = Instant::now();
    let why = a.outdone().await.unwrap();
    assert!(why.contains("reaches west"), "{why}");
    assert!(begin.elapsed() >= BLIND, "{:?}", begin.elapsed());
    sleep(TELL).await;
    assert_eq!(a.told().await.unfit, why, "the others are told");
    assert_eq!(b.fitness.outdone(), None);
    a.cut.lock().clear();
    sleep(LONG).await;
    assert_eq!(
        (a.fitness.outdone(), a.told().await.unfit),
        (None, String::new())
    );
}

#[tokio::test(start_paused = true)]
async fn a_platform_that_nobody_reaches_or_each_another_one_outdoes_nobody() {
    let (a, b, c) = three().await;
    sleep(LONG).await;
    for site in [&a, &b, &c] {
        site.loses("west");
    }
    sleep(LONG).await;
    for site in [&a, &b, &c] {
        assert_eq!(site.fitness.outdone(), None);
    }
    b.cut.lock().clear();
    b.loses("east");
    c.loses("east");
    sleep(LONG).await;
    assert_eq!(a.fitness.outdone(), None, "it reaches one that b does not");
    assert_eq!(b.fitness.outdone(), None, "it reaches one that a does not");
    assert!(c.fitness.outdone().is_some(), "it reaches none");
}

#[tokio::test(start_paused = true)]
async fn a_platform_that_is_away_for_a_moment_outdoes_nobody() {
    let (a, _b, _c) = three().await;
    sleep(LONG).await;
    a.loses("west");
    sleep(BLIND / 2).await;
    a.cut.lock().clear();
    sleep(LOOK * 2).await;
    a.loses("west");
    sleep(BLIND / 2).await;
    assert_eq!(a.fitness.outdone(), None);
}

#[tokio::test(start_paused = true)]
async fn the_one_whose_clock_is_off_is_outdone_and_not_the_others() {
    for off in [-3_600_000_i64, -2_500, 2_500, 3_600_000] {
        let (a, b, c) = three().await;
        sleep(LONG).await;
        a.clock
            .store(NOON.saturating_add_signed(off), Ordering::Relaxed);
        let why = a.outdone().await.unwrap();
        let side = if off < 0 { "behind" } else { "ahead of" };
        assert!(why.contains(side), "{off}: {why}");
        assert_eq!(
            (b.fitness.outdone(), c.fitness.outdone()),
            (None, None),
            "{off}"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn a_clock_that_goes_on_from_what_another_one_recorded_is_not_off() {
    let (a, _b, _c) = three().await;
    let clock = Arc::new(Clock::new(NOON));
    clock.not_before(NOON + 3_600_000);
    a.fitness.leads(clock);
    assert_eq!(a.outdone().await, None);
}

#[tokio::test(start_paused = true)]
async fn whoever_is_heard_late_is_not_taken_for_one_that_is_late() {
    let row = |name: &str, is_this, time_ms| ReplicaRow {
        name: name.to_owned(),
        address: String::new(),
        version: String::new(),
        key: Bytes::new(),
        since_ms: 0,
        leads: is_this,
        epoch: 1,
        is_this,
        lease: None,
        revision: time_ms + 1,
        report: Some(ReplicaReport {
            time_ms,
            ..ReplicaReport::default()
        }),
    };
    let mut clocks = Clocks::default();
    for (now, told) in [(0, 0), (2_500, 0), (6_000, 2_000)] {
        let replicas = [
            row("a", true, 0),
            row("b", false, told),
            row("c", false, told),
        ];
        clocks.read(&replicas, now);
        assert_eq!(clocks.skewed("a", &replicas[1..]), None, "{now}");
        assert_eq!(clocks.ahead(), [""; 0], "{now}");
    }
}

#[tokio::test(start_paused = true)]
async fn of_two_clocks_nobody_says_which_is_wrong() {
    let (a, b, c) = three().await;
    c.store.resign().await.unwrap();
    drop(c);
    sleep(LONG).await;
    a.clock.store(NOON + 3_600_000, Ordering::Relaxed);
    sleep(LONG).await;
    assert_eq!((a.fitness.outdone(), b.fitness.outdone()), (None, None));
}

#[tokio::test(start_paused = true)]
async fn nobody_is_outdone_who_is_alone() {
    let backend = Arc::new(MemoryBackend::new());
    let a = site(&backend, "a", None).await;
    a.register("east").await;
    a.loses("east");
    sleep(LONG).await;
    assert_eq!(a.fitness.outdone(), None);
}

#[tokio::test(start_paused = true)]
async fn the_last_one_leads_however_unfit_and_does_not_resign() {
    let (a, b, c) = three().await;
    sleep(LONG).await;
    a.loses("west");
    assert!(a.outdone().await.is_some());
    for other in [b, c] {
        other.store.resign().await.unwrap();
    }
    assert_eq!(a.fitness.outdone_now(&a.store).await, None);
    a.fitness.leads(Arc::new(Clock::new(NOON)));
    assert_eq!(a.outdone().await, None);
}

#[tokio::test(start_paused = true)]
async fn a_platform_whose_address_nobody_can_read_silences_nobody() {
    let (a, ..) = three().await;
    let mut row = Registration::default().row("broken");
    row.spec = Bytes::from_static(b"\xff\xff");
    a.store.put_platform(row, Some(0)).await.unwrap();
    sleep(LONG).await;
    assert_eq!(a.told().await.platforms, ["east", "west"]);
}

fn key_file(directory: &tempfile::TempDir, name: &str, keys: &[&str]) -> PathBuf {
    let path = directory.path().join(name);
    let mut options = std::fs::OpenOptions::new();
    options.write(true).create(true).truncate(true).mode(0o600);
    let mut file = options.open(&path).unwrap();
    file.write_all(keys.concat().as_bytes()).unwrap();
    path
}

/// Takes the lead as a process does, and reads the keys of its file. How many values it has encrypted; `None` if it encrypts
/// nothing yet.
async fn takes_the_lead(site: &Site, file: &PathBuf) -> (Shards, Option<usize>) {
    let shards = site.store.take_all().await.unwrap();
    let keys = Keyring::read(file).unwrap();
    let Some(keys) = site.store.agreed(keys).await.unwrap() else {
        return (shards, None);
    };
    let renewed = site.store.unlock(keys).await.unwrap();
    (shards, Some(renewed))
}

/// The same, and gives it up.
async fn leads(site: &Site, file: &PathBuf) -> usize {
    let (shards, renewed) = takes_the_lead(site, file).await;
    site.store.release_all(&shards).await.unwrap();
    renewed.unwrap()
}

#[tokio::test(start_paused = true)]
async fn secrets_get_a_new_key_only_once_every_replica_has_it() {
    let directory = tempfile::tempdir().unwrap();
    let [old, new] = [(); 2].map(|()| Keyring::generate().unwrap());
    let a_file = key_file(&directory, "a", &[&old]);
    let b_file = key_file(&directory, "b", &[&old]);
    let backend = Arc::new(MemoryBackend::new());
    let a = site(&backend, "a", Some(a_file.clone())).await;
    let b = site(&backend, "b", Some(b_file.clone())).await;
    sleep(LONG).await;
    let (shards, renewed) = takes_the_lead(&a, &a_file).await;
    assert_eq!(renewed, Some(0));
    let content = Bytes::from_static(b"content");
    a.store.put_secret("s", content, None).await.unwrap();
    a.store.release_all(&shards).await.unwrap();
    sleep(LONG).await;

    // One of them has got the new key.
    let a_file = key_file(&directory, "a", &[&new, &old]);
    drop(a);
    let a = site(&backend, "a2", Some(a_file.clone())).await;
    sleep(LONG).await;
    assert_eq!(
        leads(&a, &a_file).await,
        0,
        "the other one could not read it"
    );
    let b_keys = Keyring::read(&b_file).unwrap();
    b.store.check_keys(Some(&b_keys)).await.unwrap();

    // Now both have it.
    key_file(&directory, "b", &[&new, &old]);
    drop(a);
    let a = site(&backend, "a3", Some(a_file.clone())).await;
    sleep(LONG).await;
    assert!(leads(&a, &a_file).await > 0);

    // Whoever comes with the former key alone is refused, and is unfit if it was there before.
    let c_file = key_file(&directory, "c", &[&old]);
    let c = site(&backend, "c", Some(c_file.clone())).await;
    let refused = c
        .store
        .check_keys(Some(&Keyring::read(&c_file).unwrap()))
        .await;
    let message = refused.unwrap_err().message().to_owned();
    assert!(message.contains("add that key"), "{message}");
    let why = c.outdone().await.unwrap();
    assert!(why.contains("add that key"), "{why}");
}

#[tokio::test(start_paused = true)]
async fn whoever_leads_hands_over_once_a_key_that_others_lacked_can_encrypt() {
    let directory = tempfile::tempdir().unwrap();
    let [old, new] = [(); 2].map(|()| Keyring::generate().unwrap());
    let a_file = key_file(&directory, "a", &[&old]);
    let b_file = key_file(&directory, "b", &[&new, &old]);
    let backend = Arc::new(MemoryBackend::new());
    let a = site(&backend, "a", Some(a_file.clone())).await;
    let b = site(&backend, "b", Some(b_file.clone())).await;
    sleep(LONG).await;
    leads(&a, &a_file).await;
    // A is about to end, and what it has told last lacks the new key.
    let (shards, renewed) = takes_the_lead(&b, &b_file).await;
    assert_eq!(renewed, Some(0));
    assert_eq!(b.outdone().await, None, "the other one lacks it");
    drop(a);
    key_file(&directory, "a", &[&new, &old]);
    let a = site(&backend, "a2", Some(a_file.clone())).await;
    let why = b.outdone().await.unwrap();
    assert!(why.contains("first key"), "{why}");
    b.store.release_all(&shards).await.unwrap();
    b.fitness.left();
    let (_shards, _) = takes_the_lead(&a, &a_file).await;
    let first = Keyring::read(&a_file).unwrap().ids().remove(0);
    assert_eq!(a.store.sealed_with().await.unwrap(), first);
    assert_eq!(a.outdone().await, None, "now it encrypts");
}

#[tokio::test(start_paused = true)]
async fn the_first_key_of_all_encrypts_only_once_every_replica_has_it() {
    let directory = tempfile::tempdir().unwrap();
    let key = Keyring::generate().unwrap();
    let file = key_file(&directory, "a", &[&key]);
    let backend = Arc::new(MemoryBackend::new());
    let a = site(&backend, "a", Some(file.clone())).await;
    let b = site(&backend, "b", None).await;
    sleep(LONG).await;
    let (_shards, renewed) = takes_the_lead(&a, &file).await;
    assert_eq!(renewed, None, "the other one could not read it");
    b.store.check_keys(None).await.unwrap();
    assert_eq!(a.outdone().await, None);
    drop(b);
    let _b = site(&backend, "b2", Some(file.clone())).await;
    let why = a.outdone().await.unwrap();
    assert!(why.contains("first key"), "{why}");
}

#[tokio::test(start_paused = true)]
async fn whoever_loses_its_keys_leads_on_while_the_others_have_lost_theirs_as_well() {
    let directory = tempfile::tempdir().unwrap();
    let key = Keyring::generate().unwrap();
    let backend = Arc::new(MemoryBackend::new());
    let file = key_file(&directory, "first", &[&key]);
    let first = site(&backend, "first", Some(file.clone())).await;
    leads(&first, &file).await;
    drop(first);
    let mut sites = Vec::new();
    for name in ["a", "b", "c"] {
        let file = key_file(&directory, name, &[&key]);
        sites.push((site(&backend, name, Some(file.clone())).await, file));
    }
    sleep(LONG).await;
    for (_, file) in &sites {
        std::fs::remove_file(file).unwrap();
    }
    let ends = sites.iter().map(|(site, _)| site.outdone());
    assert_eq!(futures::future::join_all(ends).await, [None, None, None]);
}
