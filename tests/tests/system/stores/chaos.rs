//! PostgreSQL under deaths, hangs and cut networks at random, with promotions that wait for no proof: no acknowledged row is
//! lost, and no two servers acknowledge. `STORES_ROUNDS=200 DROVER_SEED=…` has it go on for as long.

use std::{collections::BTreeSet, thread::sleep, time::Duration};

use tokio::time::Instant;

use crate::stores::{
    alone::{Node, introduce_as, until},
    network::{CLIENT, Network, others},
    postgresql::{PASSWORD, all_ready, alone, ask, insist, postgresql},
    quorum::{counts, signal},
    run,
    writers::{Gaps, Terms, Writers, in_turn, never_by_two, none_lost},
};

/// A primary and two standbys.
const NODES: usize = 3;

/// Clients that insert rows.
fn clients(nodes: &[Node]) -> Writers {
    let (_, programs) = postgresql();
    let psql = programs.join("psql").to_str().unwrap().to_owned();
    let to = |node: &Node| {
        format!(
            "host={} port={} user=postgres dbname=postgres password={PASSWORD} connect_timeout=2",
            node.host(),
            node.port("client")
        )
    };
    let to: Vec<String> = nodes.iter().map(to).collect();
    Writers::start(nodes.len(), move |at, row| {
        let insert = format!("insert into t values ({row})");
        let answer = run(
            "timeout",
            &["3", &psql, "-XAtqw", "-d", &to[at], "-c", &insert],
        );
        // A warning says that it was not waited for the standbys.
        answer.status.success() && answer.stderr.is_empty()
    })
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
    /// Ended first: the addresses may be those of another network afterwards.
    clients: Writers,
    nodes: Vec<Node>,
    network: Network,
    random: fastrand::Rng,
    active: usize,
    terms: Terms,
    /// Times from a fault to the next acknowledgement, with up to four seconds in which nobody does anything.
    gaps: Gaps<Fault>,
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
                .in_network(
                    &network.namespace(at),
                    &network.host(at),
                    &[("client", 5432)],
                );
            node.is_given(format!("{PASSWORD}\n").as_bytes());
            node
        };
        let mut nodes: Vec<Node> = (0..NODES).map(made).collect();
        nodes[0].start("active");
        for standby in &mut nodes[1..] {
            standby.start("standby");
        }
        let clients = clients(&nodes);
        let mut group = Self {
            nodes,
            network,
            random: fastrand::Rng::with_seed(seed),
            clients,
            active: 0,
            terms: Terms::from([((0, 1), 0)]),
            gaps: Gaps::new(),
            refusal: String::new(),
        };
        group.introduce(&[0]);
        group.settles();
        insist(&group.nodes[0], "create table t (x bigint primary key)");
        group
    }

    fn others(&self) -> [usize; 2] {
        others(self.active)
    }

    /// Has all hear of all; who is active, or still called so, is given.
    fn introduce(&self, active: &[usize]) {
        introduce_as(&self.nodes, active);
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
        self.clients.begins_again(at);
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
            Fault::CutOff => self.network.cut_each(&[(a, b), (a, c), (b, a), (c, a)]),
            Fault::Alone => self
                .network
                .cut_each(&[(a, b), (a, c), (b, a), (c, a), (a, CLIENT)]),
            Fault::Mute => self.network.cut_each(&[(a, b), (a, c)]),
            Fault::Deaf => self.network.cut_each(&[(b, a), (c, a)]),
            Fault::CutFromOne => self.network.cut_each(&[(a, b), (b, a)]),
            Fault::HalfRing => self.network.cut_each(&[(a, b), (b, a), (b, c), (c, b)]),
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
            let life = self.clients.life(at);
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
        self.gaps.add(fault, gap);
        self.check(fault);
    }

    /// From then until the new primary acknowledged something.
    fn gap(&mut self, since: Instant) -> Duration {
        let (active, life) = (self.active, self.clients.life(self.active));
        let clients = &self.clients;
        let first = || clients.first(|it| (it.node, it.life) == (active, life));
        until("the new primary acknowledges", &mut self.nodes, |_| {
            first().is_some()
        });
        first().unwrap().ended - since
    }

    fn check(&self, fault: Fault) {
        let history = self.clients.acknowledged();
        let rows = ask(&self.nodes[self.active], "select x from t").unwrap();
        let rows: BTreeSet<u64> = rows.lines().map(|row| row.parse().unwrap()).collect();
        none_lost(fault, &history, &rows);
        never_by_two(fault, &history, &self.terms);
    }
}

#[test]
fn nothing_acknowledged_is_lost_and_no_two_acknowledge_whatever_befalls_servers_and_network() {
    let seed = drover_testing::seed::seed();
    let mut group = Group::new(seed);
    for fault in in_turn(&FAULTS, seed) {
        group.round(fault);
    }
    group.gaps.report(&FAULTS);
    println!(
        "{} rounds, {} rows acknowledged, none lost, never by two",
        group.gaps.rounds(),
        group.clients.acknowledged().len()
    );
}
