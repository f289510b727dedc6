//! Clients that write at each node of a group while something befalls it, what is acknowledged to them, and how long nothing is.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Debug,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering},
    },
    thread::{JoinHandle, sleep},
    time::Duration,
};

use tokio::time::Instant;

/// A number that a server has acknowledged to a client.
#[derive(Clone, Copy, Debug)]
pub(super) struct Acknowledged {
    pub(super) number: u64,
    pub(super) node: usize,
    /// Which of the servers of that node.
    pub(super) life: u32,
    pub(super) began: Instant,
    pub(super) ended: Instant,
}

type History = Arc<Mutex<Vec<Acknowledged>>>;

/// In which order servers were promoted, by node and life.
pub(super) type Terms = BTreeMap<(usize, u32), usize>;

/// Clients, one a node, that write there whatever it is, all the time. Each number is written once.
pub(super) struct Writers {
    history: History,
    lives: Arc<[AtomicU32]>,
    ended: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

impl Writers {
    /// `write` is whether a node has acknowledged a number. It must return within seconds.
    pub(super) fn start(
        nodes: usize,
        write: impl Fn(usize, u64) -> bool + Send + Sync + 'static,
    ) -> Self {
        let (history, numbers) = (History::default(), Arc::new(AtomicU64::new(1)));
        let lives: Arc<[AtomicU32]> = (0..nodes).map(|_| AtomicU32::new(1)).collect();
        let (ended, write) = (Arc::new(AtomicBool::new(false)), Arc::new(write));
        let thread = |node: usize| {
            let (history, numbers, write) = (history.clone(), numbers.clone(), write.clone());
            let (lives, ended) = (lives.clone(), ended.clone());
            std::thread::spawn(move || {
                while !ended.load(Ordering::Relaxed) {
                    let (life, began) = (lives[node].load(Ordering::SeqCst), Instant::now());
                    let number = numbers.fetch_add(1, Ordering::Relaxed);
                    if write(node, number) {
                        let ended = Instant::now();
                        let one = Acknowledged {
                            number,
                            node,
                            life,
                            began,
                            ended,
                        };
                        history.lock().unwrap().push(one);
                        sleep(Duration::from_millis(20));
                    } else {
                        sleep(Duration::from_millis(150));
                    }
                }
            })
        };
        let threads = (0..nodes).map(thread).collect();
        Self {
            history,
            lives,
            ended,
            threads,
        }
    }

    pub(super) fn acknowledged(&self) -> Vec<Acknowledged> {
        self.history.lock().unwrap().clone()
    }

    /// The first acknowledgement of this kind.
    pub(super) fn first(&self, of: impl Fn(&Acknowledged) -> bool) -> Option<Acknowledged> {
        let history = self.history.lock().unwrap();
        history.iter().find(|it| of(it)).copied()
    }

    /// The first acknowledgement to somebody who asked after this moment.
    pub(super) fn after(&self, moment: Instant) -> Option<Acknowledged> {
        self.first(|it| it.began > moment)
    }

    pub(super) fn life(&self, node: usize) -> u32 {
        self.lives[node].load(Ordering::SeqCst)
    }

    /// Has the node count as another server from now on.
    pub(super) fn begins_again(&self, node: usize) {
        self.lives[node].fetch_add(1, Ordering::SeqCst);
    }
}

impl Drop for Writers {
    fn drop(&mut self) {
        self.ended.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

/// Checks that all acknowledged numbers are there.
pub(super) fn none_lost(fault: impl Debug, history: &[Acknowledged], there: &BTreeSet<u64>) {
    let lost: Vec<_> = history
        .iter()
        .filter(|it| !there.contains(&it.number))
        .collect();
    assert!(
        lost.is_empty(),
        "{fault:?}: lost {lost:?} of {}",
        history.len()
    );
}

/// Checks that no server has acknowledged anything once a later one had.
pub(super) fn never_by_two(fault: impl Debug, history: &[Acknowledged], terms: &Terms) {
    let term_of = |of: &Acknowledged| match terms.get(&(of.node, of.life)) {
        Some(term) => *term,
        None => panic!("{fault:?}: {of:?} is of a server that was never promoted"),
    };
    // Of each term and those after it, what was acknowledged first.
    let mut firsts: Vec<Option<Acknowledged>> = vec![None; terms.len() + 1];
    for one in history {
        let first = &mut firsts[term_of(one)];
        if first.is_none_or(|first| one.ended < first.ended) {
            *first = Some(*one);
        }
    }
    for term in (0..terms.len()).rev() {
        let both = firsts[term].into_iter().chain(firsts[term + 1]);
        firsts[term] = both.min_by_key(|it| it.ended);
    }
    for one in history {
        let later = firsts[term_of(one) + 1];
        let overtaken = later.filter(|other| other.ended < one.began);
        assert!(
            overtaken.is_none(),
            "{fault:?}: {one:?} was acknowledged after {overtaken:?}, of a later primary"
        );
    }
}

/// What befalls a group, round by round: all faults, in an order of the seed, again and again. `STORES_FAULTS=Killed,CutOff` has
/// only these befall it.
pub(super) fn in_turn<F: Copy + Debug>(faults: &[F], seed: u64) -> Vec<F> {
    let mut chosen = faults.to_vec();
    if let Ok(names) = std::env::var("STORES_FAULTS") {
        let named = |name: &str| {
            let mut faults = faults.iter();
            let found = faults.find(|fault| format!("{fault:?}") == name);
            *found.unwrap_or_else(|| panic!("STORES_FAULTS: no {name:?} in {faults:?}"))
        };
        chosen = names.split(',').map(named).collect();
    }
    let mut random = fastrand::Rng::with_seed(seed);
    let mut rounds = Vec::new();
    while rounds.len() < super::rounds(chosen.len()) {
        random.shuffle(&mut chosen);
        rounds.extend_from_slice(&chosen);
    }
    rounds.truncate(super::rounds(chosen.len()));
    rounds
}

/// How long nothing was acknowledged, by what had befallen the group: one a round.
pub(super) struct Gaps<F>(Vec<(F, Duration)>);

impl<F: Copy + Debug + PartialEq> Gaps<F> {
    pub(super) fn new() -> Self {
        Self(Vec::new())
    }

    pub(super) fn rounds(&self) -> usize {
        self.0.len()
    }

    /// Adds that of the next round, and prints it.
    pub(super) fn add(&mut self, fault: F, gap: Duration) {
        println!(
            "{} {fault:?}: writable again after {:.1} s",
            self.0.len(),
            gap.as_secs_f64()
        );
        self.0.push((fault, gap));
    }

    pub(super) fn report(&self, faults: &[F]) {
        for fault in faults {
            let of_fault = self.0.iter().filter(|(of, _)| of == fault);
            let mut gaps: Vec<_> = of_fault.map(|(_, gap)| gap.as_secs_f64()).collect();
            gaps.sort_by(f64::total_cmp);
            if let (Some(most), count) = (gaps.last(), gaps.len()) {
                let (median, most_but_one) = (gaps[count / 2], gaps[count * 99 / 100]);
                println!(
                    "{fault:?}: {count} rounds, writable again after {median:.1} s (median), {most_but_one:.1} s (p99), {most:.1} s (most)"
                );
            }
        }
    }
}
