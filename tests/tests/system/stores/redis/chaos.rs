//! Redis under deaths, hangs and a cut network at random, with promotions that wait for a proof: no confirmed write is lost, no two
//! servers confirm, and one that is cut off refuses. `STORES_ROUNDS=200 DROVER_SEED=…` has it go on for as long.

use std::{collections::BTreeSet, thread::sleep, time::Duration};

use tokio::time::Instant;

use super::{all_ready, alone, hangs::signal};
use crate::stores::{
    alone::{Node, introduce_as, until},
    installed,
    network::{Network, others},
    run,
    writers::{Gaps, Terms, Writers, in_turn, never_by_two, none_lost},
};

/// A primary and two replicas.
const NODES: usize = 3;
const PORT: u16 = 6379;

/// What a server answers to commands on one connection, each of which ends with `\n`.
fn ask(host: &str, commands: &str) -> String {
    let script = format!("printf '{commands}' | timeout 5 redis-cli -h {host} -p {PORT}");
    String::from_utf8_lossy(&run("sh", &["-c", &script]).stdout).into_owned()
}

/// Whether a server takes a write that this number of its replicas has within a second.
fn confirms(host: &str, key: &str, replicas: u32) -> bool {
    // On one connection, because WAIT covers only writes of its own connection.
    let answer = ask(host, &format!("set {key} x\\nwait {replicas} 1000\\n"));
    let have = answer
        .strip_prefix("OK\n")
        .and_then(|count| count.trim().parse::<u32>().ok());
    have >= Some(replicas)
}

/// Clients that set keys.
fn writers(nodes: &[Node]) -> Writers {
    let hosts: Vec<String> = nodes.iter().map(|node| node.host().to_owned()).collect();
    Writers::start(nodes.len(), move |at, number| {
        confirms(&hosts[at], &number.to_string(), 1)
    })
}

/// What befalls the primary.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Fault {
    /// Nothing, and nobody is promoted.
    None,
    Killed,
    /// It hangs until its script ends it.
    Hangs,
    /// It hears and reaches clients only. It lives, so nobody is promoted.
    CutOff,
}

const FAULTS: [Fault; 4] = [Fault::None, Fault::Killed, Fault::Hangs, Fault::CutOff];

/// Does what an orchestrator does for a group: nobody is promoted before the primary is dead.
struct Group {
    /// Ended first: the addresses may be those of another network afterwards.
    writers: Writers,
    nodes: Vec<Node>,
    network: Network,
    random: fastrand::Rng,
    active: usize,
    terms: Terms,
    /// Times to the next confirmed write from a fault, with up to a second in which nobody does anything, or from when it was
    /// healed.
    gaps: Gaps<Fault>,
}

impl Group {
    fn new(seed: u64) -> Self {
        let network = Network::new(NODES);
        let made = |at: usize| {
            let host = network.host(at);
            let node = alone(u32::try_from(at).unwrap())
                .with(&["--bind", &host, "--protected-mode", "no"])
                // One that was killed comes back with writes that nobody else has.
                .with(&["--appendonly", "yes"]);
            node.in_network(&network.namespace(at), &host, &[("client", PORT)])
        };
        let mut nodes: Vec<Node> = (0..NODES).map(made).collect();
        nodes[0].start("active");
        for standby in &mut nodes[1..] {
            standby.start("standby");
        }
        introduce_as(&nodes, &[0]);
        let writers = writers(&nodes);
        let mut group = Self {
            nodes,
            network,
            random: fastrand::Rng::with_seed(seed),
            writers,
            active: 0,
            terms: Terms::from([((0, 1), 0)]),
            gaps: Gaps::new(),
        };
        group.settles();
        group
    }

    fn primary(&self) -> String {
        self.network.host(self.active)
    }

    /// Waits until all are of use, and both replicas have what the primary has.
    fn settles(&mut self) {
        let primary = self.primary();
        until("all are of use and follow", &mut self.nodes, |nodes| {
            all_ready(nodes) && confirms(&primary, "settled", 2)
        });
    }

    /// Promotes one of the replicas. The old primary is dead, may still be called active, and comes back as a standby.
    fn one_takes_over(&mut self) {
        let old = self.active;
        assert!(self.nodes[old].has_ended(), "it may live");
        let new = others(old)[self.random.usize(0..2)];
        self.nodes[new].hears_role("active");
        introduce_as(&self.nodes, &[old, new]);
        let (life, term) = (self.writers.life(new), self.terms.len());
        self.terms.insert((new, life), term);
        until("a replica is promoted", &mut self.nodes, |nodes| {
            let answer = nodes[new].promote();
            if !answer.status.success() {
                println!("{}", String::from_utf8_lossy(&answer.stderr));
            }
            answer.status.success()
        });
        self.active = new;
        if self.random.bool() {
            self.nodes[old].empties();
        }
        self.nodes[old].start("standby");
        self.writers.begins_again(old);
        introduce_as(&self.nodes, &[new]);
    }

    /// Waits until the primary refuses writes, and returns when it was healed after that.
    fn refuses_until_healed(&mut self, struck: Instant) -> Instant {
        let primary = self.primary();
        until("it refuses writes", &mut self.nodes, |_| {
            ask(&primary, "set refused x\\n").starts_with("NOREPLICAS")
        });
        let took = struck.elapsed().as_secs_f64();
        println!("cut off from its replicas, it refused writes after {took:.1} s");
        sleep(Duration::from_millis(self.random.u64(0..1_000)));
        let healed = Instant::now();
        let confirmed = self.writers.after(struck);
        assert!(confirmed.is_none(), "without a replica: {confirmed:?}");
        self.network.heal();
        healed
    }

    fn strikes(&mut self, fault: Fault) {
        let (a, [b, c]) = (self.active, others(self.active));
        match fault {
            Fault::None => {}
            Fault::Killed => self.nodes[a].kill(),
            Fault::Hangs => signal(self.nodes[a].pid(), "-STOP"),
            Fault::CutOff => {
                // Which it learns from the list of nodes.
                let primary = self.primary();
                until("it needs a replica", &mut self.nodes, |_| {
                    let needs = ask(&primary, "config get min-replicas-to-write\\n");
                    needs.trim_end().ends_with("\n1")
                });
                let network = &self.network;
                network.cut_each(&[(a, b), (a, c), (b, a), (c, a)]);
            }
        }
    }

    fn round(&mut self, fault: Fault) {
        let (old, began) = (self.active, Instant::now());
        self.strikes(fault);
        let struck = Instant::now();
        sleep(Duration::from_millis(self.random.u64(0..1_000)));
        let since = match fault {
            Fault::None => began,
            Fault::Killed => {
                self.one_takes_over();
                began
            }
            Fault::Hangs => {
                until("its script ends it", &mut self.nodes, |nodes| {
                    nodes[old].does("alive");
                    nodes[old].has_ended()
                });
                self.one_takes_over();
                began
            }
            Fault::CutOff => self.refuses_until_healed(struck),
        };
        let writers = &self.writers;
        until("a write is confirmed", &mut self.nodes, |_| {
            writers.after(struck).is_some()
        });
        let gap = writers.after(struck).unwrap().ended - since;
        self.settles();
        self.gaps.add(fault, gap);
        self.check(fault);
    }

    fn check(&mut self, fault: Fault) {
        let (history, primary) = (self.writers.acknowledged(), self.primary());
        let mut there = BTreeSet::new();
        until("it says what it has", &mut self.nodes, |_| {
            let keys = ask(&primary, "keys *\\n");
            there = keys.lines().filter_map(|key| key.parse().ok()).collect();
            !there.is_empty()
        });
        none_lost(fault, &history, &there);
        never_by_two(fault, &history, &self.terms);
    }
}

#[test]
fn nothing_that_redis_confirmed_is_lost_and_no_two_confirm_whatever_befalls_the_primary() {
    installed("redis-server", "redis-server");
    let seed = drover_testing::seed::seed();
    let mut group = Group::new(seed);
    for fault in in_turn(&FAULTS, seed) {
        group.round(fault);
    }
    group.gaps.report(&FAULTS);
    println!(
        "{} rounds, {} writes confirmed, none lost, never by two",
        group.gaps.rounds(),
        group.writers.acknowledged().len()
    );
}
