//! PostgreSQL under deaths, hangs and cut networks at random, with promotions that wait for no proof: no acknowledged row is
//! lost, and no two servers acknowledge. `STORES_ROUNDS=200 DROVER_SEED=…` has it go on for as long.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering},
    },
    thread::{JoinHandle, sleep},
    time::Duration,
};

use tokio::time::Instant;

use crate::stores::{
    alone::{Node, until},
    network::{CLIENT, Network},
    postgresql::{PASSWORD, all_ready, alone, ask, insist, postgresql},
    quorum::{counts, signal},
    rounds, run,
};

/// A primary and two standbys.
const NODES: usize = 3;

/// A row that a server has acknowledged to a client.
#[derive(Clone, Copy, Debug)]
struct Acknowledged {
    row: u64,
    node: usize,
    /// Which of the servers of that node.
    life: u32,
    began: Instant,
    ended: Instant,
}

type History = Arc<Mutex<Vec<Acknowledged>>>;

/// Clients, one a node, that write there whatever it is, all the time.
struct Clients {
    history: History,
    lives: Arc<[AtomicU32; NODES]>,
    ended: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

impl Clients {
    fn start(nodes: &[Node]) -> Self {
        let (history, rows) = (History::default(), Arc::new(AtomicU64::new(1)));
        let lives: Arc<[AtomicU32; NODES]> = Arc::default();
        let ended = Arc::new(AtomicBool::new(false));
        let (_, programs) = postgresql();
        let psql = programs.join("psql").to_str().unwrap().to_owned();
        let thread = |(at, node): (usize, &Node)| {
            let to = format!(
                "host={} port={} user=postgres dbname=postgres password={PASSWORD} connect_timeout=2",
                node.host(),
                node.port("client")
            );
            let (history, rows, psql) = (history.clone(), rows.clone(), psql.clone());
            let (lives, ended) = (lives.clone(), ended.clone());
            std::thread::spawn(move || {
                while !ended.load(Ordering::Relaxed) {
                    let (life, began) = (lives[at].load(Ordering::SeqCst), Instant::now());
                    let row = rows.fetch_add(1, Ordering::Relaxed);
                    let insert = format!("insert into t values ({row})");
                    let answer = run("timeout", &["3", &psql, "-XAtqw", "-d", &to, "-c", &insert]);
                    // A warning says that it was not waited for the standbys.
                    if answer.status.success() && answer.stderr.is_empty() {
                        let ended = Instant::now();
                        let one = Acknowledged {
                            row,
                            node: at,
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
        let threads = nodes.iter().enumerate().map(thread).collect();
        Self {
            history,
            lives,
            ended,
            threads,
        }
    }

    fn acknowledged(&self) -> Vec<Acknowledged> {
        self.history.lock().unwrap().clone()
    }
}

impl Drop for Clients {
    fn drop(&mut self) {
        self.ended.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

/// What befalls the primary, or only seems to.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Fault {
    /// Nothing: somebody takes it for sick.
    None,
    Killed,
    KilledWithAStandby,
    /// It hangs, and goes on when another one is promoted.
    Hangs,
    /// It hears and reaches clients only.
    CutOff,
    /// Nobody reaches it, and it reaches nobody.
    Alone,
    /// What it sends to its standbys is lost.
    Mute,
    /// What its standbys send is lost.
    Deaf,
    /// It and one standby do not hear each other.
    CutFromOne,
    /// No two but the primary and one standby hear each other.
    HalfRing,
}

const FAULTS: [Fault; 10] = [
    Fault::None,
    Fault::Killed,
    Fault::KilledWithAStandby,
    Fault::Hangs,
    Fault::CutOff,
    Fault::Alone,
    Fault::Mute,
    Fault::Deaf,
    Fault::CutFromOne,
    Fault::HalfRing,
];

/// Does what an orchestrator does for a group, but never waits for a proof that anybody is dead.
struct Group {
    nodes: Vec<Node>,
    network: Network,
    random: fastrand::Rng,
    clients: Clients,
    active: usize,
    /// In which order the servers were promoted, by node and life.
    terms: BTreeMap<(usize, u32), usize>,
    /// Times from a fault to the next acknowledgement, with up to four seconds in which nobody does anything.
    gaps: Vec<(Fault, Duration)>,
    /// Why the last promotion was refused.
    refusal: String,
}

impl Group {
    fn new(seed: u64) -> Self {
        let network = Network::new(NODES);
        let made = |at: usize| {
            let ordinal = u32::try_from(at).unwrap();
            let mut node = alone(ordinal, &[])
                .with_environment("SYNCHRONOUS", "1")
                .in_network(&network.namespace(at), &network.host(at), 5432);
            node.is_given(format!("{PASSWORD}\n").as_bytes());
            node
        };
        let mut nodes: Vec<Node> = (0..NODES).map(made).collect();
        nodes[0].start("active");
        for standby in &mut nodes[1..] {
            standby.start("standby");
        }
        let clients = Clients::start(&nodes);
        for life in clients.lives.iter() {
            life.store(1, Ordering::SeqCst);
        }
        let mut group = Self {
            nodes,
            network,
            random: fastrand::Rng::with_seed(seed),
            clients,
            active: 0,
            terms: BTreeMap::from([((0, 1), 0)]),
            gaps: Vec::new(),
            refusal: String::new(),
        };
        group.introduce(&[0]);
        group.settles();
        insist(&group.nodes[0], "create table t (x bigint primary key)");
        group
    }

    fn others(&self) -> [usize; 2] {
        match self.active {
            0 => [1, 2],
            1 => [0, 2],
            _ => [0, 1],
        }
    }

    /// Has all hear of all; who is active, or still called so, is given.
    fn introduce(&self, active: &[usize]) {
        let role = |at: &usize| {
            if active.contains(at) {
                "active"
            } else {
                "standby"
            }
        };
        for (at, node) in self.nodes.iter().enumerate() {
            let others = (0..NODES).filter(|other| *other != at);
            let others: Vec<_> = others
                .map(|other| self.nodes[other].seen_as(role(&other)))
                .collect();
            node.hears_of(&others);
        }
    }

    fn starts_as_standby(&mut self, at: usize) {
        if self.random.u8(0..4) == 0 {
            self.nodes[at].kill();
            self.nodes[at].empties();
        }
        self.restarts(at);
    }

    /// With what it had.
    fn restarts(&mut self, at: usize) {
        self.nodes[at].start("standby");
        self.clients.lives[at].fetch_add(1, Ordering::SeqCst);
    }

    /// Waits until all are of use and count. Whoever ends is started as a standby.
    fn settles(&mut self) {
        let began = Instant::now();
        let [b, c] = self.others();
        let all = [self.nodes[b].name.clone(), self.nodes[c].name.clone()];
        loop {
            let ended: Vec<usize> = [b, c]
                .into_iter()
                .filter(|at| self.nodes[*at].has_ended())
                .collect();
            for at in ended {
                self.starts_as_standby(at);
                self.introduce(&[self.active]);
            }
            if all_ready(&mut self.nodes) && counts(&self.nodes[self.active], &all) {
                return;
            }
            if began.elapsed() > crate::stores::UP {
                until("the group is well again", &mut self.nodes, |_| false);
            }
            sleep(Duration::from_millis(100));
        }
    }

    fn cut(&self, pairs: &[(usize, usize)]) {
        for (from, to) in pairs {
            self.network.cut(*from, *to);
        }
    }

    fn strikes(&mut self, fault: Fault) {
        let (a, [b, c]) = (self.active, self.others());
        match fault {
            Fault::None => {}
            Fault::Killed => self.nodes[a].kill(),
            Fault::KilledWithAStandby => {
                self.nodes[a].kill();
                self.nodes[c].kill();
            }
            Fault::Hangs => signal(&self.nodes[a], "-STOP"),
            Fault::CutOff => self.cut(&[(a, b), (a, c), (b, a), (c, a)]),
            Fault::Alone => self.cut(&[(a, b), (a, c), (b, a), (c, a), (a, CLIENT)]),
            Fault::Mute => self.cut(&[(a, b), (a, c)]),
            Fault::Deaf => self.cut(&[(b, a), (c, a)]),
            Fault::CutFromOne => self.cut(&[(a, b), (b, a)]),
            Fault::HalfRing => self.cut(&[(a, b), (b, a), (b, c), (c, b)]),
        }
    }

    /// Promotes one of the standbys that run, and tells nobody else to stop.
    fn promotes_one(&mut self) -> Option<usize> {
        let old = self.active;
        let mut order = self.others();
        self.random.shuffle(&mut order);
        for at in order {
            if self.nodes[at].has_ended() || !self.nodes[at].is_ready() {
                continue;
            }
            self.nodes[at].hears_role("active");
            self.introduce(&[old, at]);
            let life = self.clients.lives[at].load(Ordering::SeqCst);
            let term = self.terms.len();
            self.terms.insert((at, life), term);
            let answer = self.nodes[at].promote();
            if answer.status.success() {
                return Some(at);
            }
            self.refusal = String::from_utf8_lossy(&answer.stderr).into_owned();
            self.terms.remove(&(at, life));
            self.nodes[at].hears_role("standby");
            self.introduce(&[old]);
        }
        None
    }

    fn round(&mut self, fault: Fault) {
        let began = Instant::now();
        let (old, [_, c]) = (self.active, self.others());
        self.strikes(fault);
        sleep(Duration::from_millis(self.random.u64(0..4_000)));
        let mut new = self.promotes_one();
        let killed = matches!(fault, Fault::KilledWithAStandby);
        if new.is_none() || killed {
            self.network.heal();
            if killed {
                // With its data, which may be all that is left of something.
                self.restarts(c);
                self.introduce(&new.map_or(vec![old], |new| vec![old, new]));
            }
        }
        if matches!(fault, Fault::Hangs) {
            // It does not know that it was away.
            signal(&self.nodes[old], "-CONT");
        }
        while new.is_none() {
            assert!(
                began.elapsed() < crate::stores::UP,
                "{fault:?}: nobody can be promoted: {}\n{}",
                self.refusal,
                self.nodes
                    .iter()
                    .map(Node::log)
                    .collect::<Vec<_>>()
                    .join("\n----\n")
            );
            sleep(Duration::from_millis(200));
            new = self.promotes_one();
        }
        // Meanwhile the old one may live, and be heard.
        sleep(Duration::from_millis(self.random.u64(0..3_000)));
        self.network.heal();
        self.active = new.unwrap();
        self.nodes[old].hears_role("standby");
        self.introduce(&[self.active]);
        self.settles();
        let gap = self.gap(began);
        self.gaps.push((fault, gap));
        self.check(fault);
    }

    /// From then until the new primary acknowledged something.
    fn gap(&mut self, since: Instant) -> Duration {
        let (active, history) = (self.active, Arc::clone(&self.clients.history));
        let life = self.clients.lives[active].load(Ordering::SeqCst);
        let first = || {
            let history = history.lock().unwrap();
            let mut own = history
                .iter()
                .filter(|it| (it.node, it.life) == (active, life));
            own.next().map(|it| it.ended - since)
        };
        until("the new primary acknowledges", &mut self.nodes, |_| {
            first().is_some()
        });
        first().unwrap()
    }

    fn check(&self, fault: Fault) {
        let history = self.clients.acknowledged();
        let rows = ask(&self.nodes[self.active], "select x from t").unwrap();
        let rows: BTreeSet<u64> = rows.lines().map(|row| row.parse().unwrap()).collect();
        let lost: Vec<_> = history
            .iter()
            .filter(|it| !rows.contains(&it.row))
            .collect();
        assert!(
            lost.is_empty(),
            "{fault:?}: lost {lost:?} of {}",
            history.len()
        );
        // Of each term and those after it, what was acknowledged first.
        let mut firsts: Vec<Option<Acknowledged>> = vec![None; self.terms.len() + 1];
        for one in &history {
            let first = &mut firsts[self.terms[&(one.node, one.life)]];
            if first.is_none_or(|first| one.ended < first.ended) {
                *first = Some(*one);
            }
        }
        for term in (0..self.terms.len()).rev() {
            let both = firsts[term].into_iter().chain(firsts[term + 1]);
            firsts[term] = both.min_by_key(|it| it.ended);
        }
        for one in &history {
            let later = firsts[self.terms[&(one.node, one.life)] + 1];
            let overtaken = later.filter(|other| other.ended < one.began);
            assert!(
                overtaken.is_none(),
                "{fault:?}: {one:?} was acknowledged after {overtaken:?}, of a later primary"
            );
        }
    }

    /// Prints how long it took, by what had befallen the group.
    fn report(&self) {
        for fault in FAULTS {
            let of_fault = self.gaps.iter().filter(|(of, _)| *of == fault);
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

#[test]
fn nothing_acknowledged_is_lost_and_no_two_acknowledge_whatever_befalls_servers_and_network() {
    let seed = drover_testing::seed::seed();
    let mut group = Group::new(seed);
    for round in 0..rounds(FAULTS.len()) {
        // Each of them in turn, in an order of its own.
        if round % FAULTS.len() == 0 {
            println!("round {round}");
        }
        let fault = FAULTS[(round * 7 + usize::try_from(seed % 10).unwrap()) % FAULTS.len()];
        group.round(fault);
        let (_, gap) = group.gaps.last().unwrap();
        println!(
            "{round} {fault:?}: writable again after {:.1} s",
            gap.as_secs_f64()
        );
    }
    group.report();
    println!(
        "{} rounds, {} rows acknowledged, none lost, never by two",
        group.gaps.len(),
        group.clients.acknowledged().len()
    );
}
