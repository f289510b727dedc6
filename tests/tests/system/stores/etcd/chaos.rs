//! etcd under deaths, hangs and cut networks at random: nothing acknowledged is lost, and whatever befalls the member that leads,
//! somebody acknowledges before it is over. `STORES_ROUNDS=200 DROVER_SEED=…` has it go on for as long.

use std::{collections::BTreeSet, thread::sleep, time::Duration};

use tokio::time::Instant;

use super::{all_ready, alone, at as asked, kept_alive, signal, url};
use crate::stores::{
    alone::{Node, until},
    installed,
    network::{CLIENT, Network, others},
    run,
    writers::{Gaps, Writers, in_turn, none_lost},
};

const NODES: usize = 3;
const PORTS: [(&str, u16); 2] = [("client", 2379), ("peer", 2380)];
/// How the keys of clients begin, each of which is written once, with its number.
const KEYS: &str = "n/";

/// Clients that put keys.
fn writers(nodes: &[Node]) -> Writers {
    let to: Vec<String> = nodes.iter().map(url).collect();
    Writers::start(nodes.len(), move |at, number| {
        let (key, value) = (format!("{KEYS}{number}"), number.to_string());
        let within = ["--dial-timeout", "1s", "--command-timeout", "2s"];
        let put = ["--endpoints", &to[at], "put", &key, &value];
        run("etcdctl", &[&within[..], &put[..]].concat())
            .status
            .success()
    })
}

/// The member that leads, once all say the same.
fn leader(nodes: &[Node]) -> Option<usize> {
    let said = |node: &Node| {
        let status = asked(node, &["endpoint", "status", "-w", "fields"])?;
        let field = |name: &str| {
            let start = format!("\"{name}\" : ");
            let mut lines = status.lines();
            lines.find_map(|line| line.strip_prefix(start.as_str()).map(str::to_owned))
        };
        Some((field("MemberID")?, field("Leader")?))
    };
    let all: Vec<(String, String)> = nodes.iter().map(said).collect::<Option<_>>()?;
    let (_, leader) = &all[0];
    let same = all.iter().all(|(_, its)| its == leader);
    let mut members = all.iter().map(|(member, _)| member);
    members.position(|member| same && member == leader)
}

/// What befalls the member that leads.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Fault {
    None,
    /// It begins again later, with its data.
    Killed,
    /// It hangs until others go on without it, and does not know that it was away.
    Hangs,
    /// It hears and reaches clients only.
    CutOff,
    /// Nobody reaches it, and it reaches nobody.
    Alone,
    /// What it sends to the others is lost.
    Mute,
    /// What the others send is lost.
    Deaf,
    /// It and one of the others do not hear each other.
    CutFromOne,
}

const FAULTS: [Fault; 8] = [
    Fault::None,
    Fault::Killed,
    Fault::Hangs,
    Fault::CutOff,
    Fault::Alone,
    Fault::Mute,
    Fault::Deaf,
    Fault::CutFromOne,
];

/// Members that begin again when they end, and are helped in nothing else.
struct Group {
    /// Ended first: the addresses may be those of another network afterwards.
    writers: Writers,
    nodes: Vec<Node>,
    network: Network,
    random: fastrand::Rng,
    /// Times from a fault to the next acknowledgement, by whichever member.
    gaps: Gaps<Fault>,
}

impl Group {
    fn new(seed: u64) -> Self {
        let network = Network::new(NODES);
        let mut nodes = Vec::new();
        for at in 0..NODES {
            let node = alone(u32::try_from(at).unwrap());
            nodes.push(node.in_network(&network.namespace(at), &network.host(at), &PORTS));
            until("a member more", &mut nodes, all_ready);
        }
        let writers = writers(&nodes);
        let mut group = Self {
            nodes,
            network,
            random: fastrand::Rng::with_seed(seed),
            writers,
            gaps: Gaps::new(),
        };
        group.settles();
        group
    }

    /// Waits until all members are there and take writes.
    fn settles(&mut self) {
        until("all are members", &mut self.nodes, all_ready);
        let (moment, writers) = (Instant::now(), &self.writers);
        let takes = |at: usize| writers.first(|it| it.node == at && it.began > moment);
        until("all take writes", &mut self.nodes, |nodes| {
            kept_alive(nodes);
            (0..NODES).all(|at| takes(at).is_some())
        });
    }

    fn leader(&mut self) -> usize {
        let mut leads = None;
        until("one of them leads", &mut self.nodes, |nodes| {
            leads = leader(nodes);
            leads.is_some()
        });
        leads.unwrap()
    }

    fn strikes(&mut self, fault: Fault, a: usize) {
        let (network, [b, c]) = (&self.network, others(a));
        match fault {
            Fault::None => {}
            Fault::Killed => self.nodes[a].kill(),
            Fault::Hangs => signal(&self.nodes[a], "-STOP"),
            Fault::CutOff => network.cut_each(&[(a, b), (a, c), (b, a), (c, a)]),
            Fault::Alone => network.cut_each(&[(a, b), (a, c), (b, a), (c, a), (a, CLIENT)]),
            Fault::Mute => network.cut_each(&[(a, b), (a, c)]),
            Fault::Deaf => network.cut_each(&[(b, a), (c, a)]),
            Fault::CutFromOne => network.cut_each(&[(a, b), (b, a)]),
        }
    }

    fn round(&mut self, fault: Fault) {
        let leader = self.leader();
        let began = Instant::now();
        self.strikes(fault, leader);
        let (struck, writers) = (Instant::now(), &self.writers);
        until("somebody acknowledges", &mut self.nodes, |_| {
            writers.after(struck).is_some()
        });
        let gap = writers.after(struck).unwrap().ended - began;
        // The others are left to go on without it for a while.
        sleep(Duration::from_millis(self.random.u64(0..1_000)));
        self.network.heal();
        if fault == Fault::Hangs {
            signal(&self.nodes[leader], "-CONT");
        }
        self.settles();
        self.gaps.add(fault, gap);
        self.check(fault);
    }

    /// Whoever is asked has all that was acknowledged by anybody.
    fn check(&mut self, fault: Fault) {
        let history = self.writers.acknowledged();
        for at in 0..NODES {
            let mut answer = None;
            until("it says what it has", &mut self.nodes, |nodes| {
                kept_alive(nodes);
                answer = asked(&nodes[at], &["get", "--prefix", KEYS]);
                answer.is_some()
            });
            let answer = answer.unwrap();
            let mut lines = answer.lines();
            let mut there = BTreeSet::new();
            while let (Some(key), Some(value)) = (lines.next(), lines.next()) {
                assert_eq!(key.strip_prefix(KEYS), Some(value));
                there.insert(value.parse().unwrap());
            }
            none_lost(fault, &history, &there);
        }
    }
}

#[test]
fn nothing_that_etcd_acknowledged_is_lost_and_others_go_on_whatever_befalls_the_member_that_leads()
{
    installed("etcd", "etcd-server");
    installed("etcdctl", "etcd-client");
    let seed = drover_testing::seed::seed();
    let mut group = Group::new(seed);
    for fault in in_turn(&FAULTS, seed) {
        group.round(fault);
    }
    group.gaps.report(&FAULTS);
    println!(
        "{} rounds, {} keys acknowledged, none lost",
        group.gaps.rounds(),
        group.writers.acknowledged().len()
    );
}
