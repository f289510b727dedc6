//! A process of the server that dies (`kill -9`) at one of its calls to the API server.

use drover_client::Channel;
use drover_testing::kubernetes::{Fault, FaultProxy, On, Rig, until};

use crate::process::Server;

/// A call at which a process dies, and whether it still arrives.
#[derive(Clone)]
pub(crate) struct Point {
    on: On,
    fault: Fault,
    /// Calls of its kind that arrived.
    pub(crate) arrived: usize,
    pub(crate) what: String,
}

/// Before and after each of the first calls of a kind.
pub(crate) fn points(verb: &'static str, resource: &str, most: usize) -> Vec<Point> {
    let point = |nth: usize, fault: Fault| Point {
        on: On::call(verb, resource).nth(nth),
        arrived: if matches!(fault, Fault::DieAfter) {
            nth
        } else {
            nth - 1
        },
        what: format!("{verb} {resource} {nth}: {}", fault.name()),
        fault,
    };
    let both = |nth| [point(nth, Fault::DieBefore), point(nth, Fault::DieAfter)];
    (1..=most).flat_map(both).collect()
}

pub(crate) struct Doomed {
    proxy: FaultProxy,
    server: Server,
}

impl Doomed {
    pub(crate) async fn start(rig: &Rig, namespace: &str, arguments: &[&str]) -> Self {
        let proxy = FaultProxy::start(rig).await;
        let server = Server::start(&proxy.kubeconfig(), namespace, arguments).await;
        Self { proxy, server }
    }

    pub(crate) fn channel(&self) -> Channel {
        self.server.channel.clone()
    }

    /// Lets it work until it dies at a point, which it must reach.
    pub(crate) async fn dies<T>(self, point: &Point, work: impl Future<Output = T>) {
        println!("{}", point.what);
        self.proxy.fail(point.on.clone(), point.fault.clone());
        let dead = until("it has died", || async {
            self.proxy.is_dead().then_some(())
        });
        let died = tokio::select! {
            () = dead => true,
            _ = work => self.proxy.is_dead(),
        };
        self.server.kill();
        assert!(died, "{} is reached", point.what);
    }
}
