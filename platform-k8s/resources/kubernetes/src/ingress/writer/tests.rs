use std::{collections::BTreeSet, sync::atomic::AtomicUsize};

use futures::future::join_all;
use tokio::sync::Semaphore;

use super::{
    super::rule::{Key, Matching, Path, Paths, Port, Selected, ServicePort, Target},
    *,
};

/// An object at an API server: writes compare the version.
#[derive(Clone)]
struct Server(Arc<Inner>);

struct Inner {
    object: Mutex<(u64, Rules)>,
    /// Writes that have begun.
    writing: AtomicUsize,
    writes: AtomicUsize,
    conflicts: AtomicUsize,
    /// A write takes one of these.
    permits: Semaphore,
    /// How often somebody else writes between a read and a write.
    others: AtomicUsize,
    /// Whether somebody else writes right after a write.
    follows: AtomicBool,
    /// Whether what follows from the object cannot be made to, once.
    unsettled: AtomicBool,
    /// What a write is answered with in place of success.
    refuses: fn(&Rules) -> Option<Error>,
}

impl Server {
    fn new() -> Self {
        Self::that_refuses(|_| None)
    }

    fn that_refuses(refuses: fn(&Rules) -> Option<Error>) -> Self {
        let rules = [(HOST.to_owned(), Paths::new())].into();
        Self(Arc::new(Inner {
            object: Mutex::new((1, rules)),
            writing: AtomicUsize::new(0),
            writes: AtomicUsize::new(0),
            conflicts: AtomicUsize::new(0),
            permits: Semaphore::new(Semaphore::MAX_PERMITS),
            others: AtomicUsize::new(0),
            follows: AtomicBool::new(false),
            unsettled: AtomicBool::new(false),
            refuses,
        }))
    }

    /// The paths of the host.
    fn paths(&self) -> BTreeSet<String> {
        let object = self.0.object.lock();
        let paths = object.1[HOST].entries.iter();
        paths.map(|path| path.key.path.clone()).collect()
    }
}

const HOST: &str = "a.example";

#[async_trait]
impl Object for Server {
    type Version = u64;

    async fn read(&self) -> Result<State<u64>> {
        tokio::task::yield_now().await;
        let object = self.0.object.lock();
        Ok(State {
            version: object.0,
            rules: object.1.clone(),
        })
    }

    async fn admit(&self, _: &u64, host: &str) -> Result<()> {
        match host {
            "taken.example" => Err(Error::new(Reason::IngressHostTaken, "taken")),
            _ => Ok(()),
        }
    }

    async fn settle(&self, _: &State<u64>) -> Result<()> {
        match self.0.unsettled.swap(false, Ordering::Relaxed) {
            true => Err(Error::unavailable("not settled")),
            false => Ok(()),
        }
    }

    async fn reserve(&self, _: &BTreeSet<&str>) -> Reserved {
        Reserved::new()
    }

    async fn withdraw(&self, _: &BTreeSet<&str>) -> Result<()> {
        Ok(())
    }

    async fn write(&self, state: &State<u64>, rules: &Rules) -> Result<State<u64>> {
        self.0.writing.fetch_add(1, Ordering::Relaxed);
        self.0.permits.acquire().await.unwrap().forget();
        tokio::task::yield_now().await;
        let mut object = self.0.object.lock();
        let other = self
            .0
            .others
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |n| n.checked_sub(1));
        if let Ok(number) = other {
            object.0 += 1;
            let path = path(&format!("/other/{number}"));
            object.1.get_mut(HOST).unwrap().entries.push(path);
        }
        if object.0 != state.version {
            self.0.conflicts.fetch_add(1, Ordering::Relaxed);
            return Err(Error::new(Reason::Conflict, "changed"));
        }
        if let Some(error) = (self.0.refuses)(rules) {
            return Err(error);
        }
        self.0.writes.fetch_add(1, Ordering::Relaxed);
        *object = (object.0 + 1, rules.clone());
        let version = object.0;
        if self.0.follows.swap(false, Ordering::Relaxed) {
            object.0 += 1;
            object.1.get_mut(HOST).unwrap().entries.push(path("/other"));
        }
        Ok(State {
            version,
            rules: rules.clone(),
        })
    }
}

fn path(at: &str) -> Path {
    Path {
        key: Key {
            path: at.to_owned(),
            matching: Matching::Prefix,
        },
        name: None,
        target: Target::Service(ServicePort {
            name: "web".to_owned(),
            port: Port::Number(80),
        }),
        raw: None,
    }
}

fn put(at: &str) -> Change {
    Change::Upsert(vec![path(at)])
}

fn cut(at: &str) -> Change {
    Change::Remove(vec![Selected::Match(path(at).key)])
}

async fn make(writers: &Writers, server: &Server, change: Change) -> Result<api::IngressRule> {
    writers
        .change("it".to_owned(), server.clone(), HOST, change)
        .await
}

async fn until(what: impl Fn() -> bool) {
    while !what() {
        tokio::task::yield_now().await;
    }
}

#[tokio::test(start_paused = true)]
async fn no_update_of_fifty_writers_in_two_processes_is_lost() {
    let server = Server::new();
    server.0.others.store(20, Ordering::Relaxed);
    let processes = [Writers::default(), Writers::default()];
    let writer = |number: usize| {
        let (server, writers) = (&server, &processes[number % 2]);
        async move {
            for n in 0..20 {
                let at = format!("/{number}/{n}");
                let rule = make(writers, server, put(&at)).await.unwrap();
                assert!(
                    rule.paths.iter().any(|path| path.path == at),
                    "the answer has {at}"
                );
                if n % 3 == 0 {
                    let rule = make(writers, server, cut(&at)).await.unwrap();
                    assert!(
                        rule.paths.iter().all(|path| path.path != at),
                        "the answer lacks {at}"
                    );
                }
            }
        }
    };
    join_all((0..50).map(writer)).await;
    let mut expected: BTreeSet<String> = (1..=20).map(|n| format!("/other/{n}")).collect();
    for number in 0..50 {
        let kept = (0..20).filter(|n| n % 3 != 0);
        expected.extend(kept.map(|n| format!("/{number}/{n}")));
    }
    assert_eq!(server.paths(), expected);
    assert!(server.0.conflicts.load(Ordering::Relaxed) >= 20);
}

#[tokio::test(start_paused = true)]
async fn waiting_changes_are_merged_into_one_write() {
    let server = Server::new();
    let writers = Writers::default();
    let changes: Vec<String> = (0..50).map(|n| format!("/{n}")).collect();
    let calls = changes.iter().map(|at| make(&writers, &server, put(at)));
    for outcome in join_all(calls).await {
        outcome.unwrap();
    }
    assert_eq!(server.paths().len(), 50);
    let writes = server.0.writes.load(Ordering::Relaxed);
    assert!(writes <= 2, "{writes} writes");
}

#[tokio::test(start_paused = true)]
async fn a_change_that_fails_leaves_the_others() {
    let server = Server::new();
    let writers = Writers::default();
    let other =
        |host: &'static str, change| writers.change("it".to_owned(), server.clone(), host, change);
    let (a, taken, missing, b) = tokio::join!(
        make(&writers, &server, put("/a")),
        other("taken.example", put("/x")),
        other("none.example", cut("/x")),
        make(&writers, &server, put("/b")),
    );
    assert_eq!(taken.unwrap_err().reason(), Reason::IngressHostTaken);
    assert_eq!(missing.unwrap_err().reason(), Reason::RuleNotFound);
    a.unwrap();
    b.unwrap();
    assert_eq!(server.paths(), ["/a".to_owned(), "/b".to_owned()].into());
}

#[tokio::test(start_paused = true)]
async fn what_the_api_server_refuses_of_one_change_is_not_refused_of_the_others() {
    let server = Server::that_refuses(|rules| {
        let bad = rules[HOST]
            .entries
            .iter()
            .any(|path| path.key.path == "/bad");
        bad.then(|| Error::invalid("spec", "must not be bad"))
    });
    let writers = Writers::default();
    let changes = ["/1", "/2", "/bad", "/3"];
    let outcomes = join_all(changes.map(|at| make(&writers, &server, put(at)))).await;
    let done: Vec<bool> = outcomes.iter().map(Result::is_ok).collect();
    assert_eq!(done, [true, true, false, true]);
    assert_eq!(outcomes[2].as_ref().unwrap_err().reason(), Reason::Invalid);
    assert_eq!(server.paths().len(), 3);
}

#[tokio::test(start_paused = true)]
async fn a_caller_that_goes_away_takes_nobodys_change_with_it() {
    let server = Server::new();
    // Nothing is written until the test says so.
    server.0.permits.forget_permits(Semaphore::MAX_PERMITS);
    let writers = Writers::default();
    let mut first = Box::pin(make(&writers, &server, put("/first")));
    let mut waits = Box::pin(make(&writers, &server, put("/gone")));
    let mut stays = Box::pin(make(&writers, &server, put("/stays")));
    assert!(futures::poll!(&mut first).is_pending());
    until(|| server.0.writing.load(Ordering::Relaxed) == 1).await;
    // The first is being written, the others wait; one of them and the writing one go.
    assert!(futures::poll!(&mut waits).is_pending());
    assert!(futures::poll!(&mut stays).is_pending());
    drop((first, waits));
    server.0.permits.add_permits(10);
    stays.await.unwrap();
    assert_eq!(
        server.paths(),
        ["/first".to_owned(), "/stays".to_owned()].into()
    );
}

#[tokio::test(start_paused = true)]
async fn an_idle_writer_goes_away() {
    let server = Server::new();
    let writers = Writers::default();
    make(&writers, &server, put("/a")).await.unwrap();
    until(|| writers.running() == 0).await;
    make(&writers, &server, put("/b")).await.unwrap();
    assert_eq!(server.paths().len(), 2);
}

#[tokio::test(start_paused = true)]
async fn a_change_of_nothing_is_decided_by_what_is_there_now() {
    let server = Server::new();
    let writers = Writers::default();
    server.0.permits.forget_permits(Semaphore::MAX_PERMITS);
    let mut first = Box::pin(make(&writers, &server, put("/a")));
    let mut second = Box::pin(make(&writers, &server, cut("/other")));
    assert!(futures::poll!(&mut first).is_pending());
    until(|| server.0.writing.load(Ordering::Relaxed) == 1).await;
    assert!(futures::poll!(&mut second).is_pending());
    // The writer will remember what it wrote for the first, without the path that somebody else writes then.
    server.0.follows.store(true, Ordering::Relaxed);
    server.0.permits.add_permits(10);
    first.await.unwrap();
    second.await.unwrap();
    assert_eq!(server.paths(), ["/a".to_owned()].into());
}

#[tokio::test(start_paused = true)]
async fn nobody_waits_for_a_writer_that_has_ended() {
    let server = Server::new();
    let writers = Writers::default();
    server.0.permits.close();
    // The write panics in the test's server, as a bug would.
    let error = make(&writers, &server, put("/a")).await.unwrap_err();
    assert_eq!(error.reason(), Reason::Unavailable);
    until(|| writers.running() == 0).await;
}

#[tokio::test(start_paused = true)]
async fn a_change_of_nothing_is_done_only_once_all_follows_from_what_is_there() {
    let server = Server::new();
    let writers = Writers::default();
    make(&writers, &server, put("/a")).await.unwrap();
    server.0.unsettled.store(true, Ordering::Relaxed);
    let error = make(&writers, &server, put("/a")).await.unwrap_err();
    assert_eq!(error.reason(), Reason::Unavailable);
    make(&writers, &server, put("/a")).await.unwrap();
    assert_eq!(server.0.writes.load(Ordering::Relaxed), 1);
}
