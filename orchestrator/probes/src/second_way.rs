//! A second way to nodes that are probed by commands. Whoever runs them, a kubelet say, is on the node's host, so a probe that
//! cannot be carried out says nothing: it may be out of order while the node is well. If the node takes no connection
//! either, and did before, its host is gone or cut off, or all on it has ended; the platform may take a minute to say so.

use std::{io::ErrorKind, time::Duration};

use tokio::{
    net::TcpStream,
    time::{sleep, timeout},
};

use super::{Failed, reach::Gate};

/// How long a command may say nothing before the other way is tried.
const PATIENCE: Duration = Duration::from_millis(500);
/// Deadline of a connection. The first packet is sent again after a second (RFC 6298).
const CONNECT: Duration = Duration::from_millis(1500);

/// What is known of the way to a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Way {
    /// It did not lead there, this number of times, while commands did.
    Untried(u8),
    /// The node has answered there, before this number of commands.
    Known(u8),
}

impl Default for Way {
    fn default() -> Self {
        Self::Untried(0)
    }
}

impl Way {
    /// Tries of a way that others may have closed, a network policy say.
    const TRIES: u8 = 3;
    /// Commands for which a way is believed to lead where it did: somebody may close it.
    const BELIEVED: u8 = 30;

    pub(super) fn is_known(self) -> bool {
        matches!(self, Self::Known(_))
    }

    /// Learns whether a node whose command has succeeded can be reached, too.
    pub(super) async fn learn(self, address: &str, gate: Gate<'_>) -> Self {
        let otherwise = match self {
            Self::Untried(tries) if tries >= Self::TRIES => return self,
            Self::Untried(tries) => Self::Untried(tries + 1),
            Self::Known(commands) if commands < Self::BELIEVED => {
                return Self::Known(commands + 1);
            }
            Self::Known(_) => Self::default(),
        };
        match answers(address, gate).await {
            Some(true) => Self::Known(0),
            Some(false) | None => otherwise,
        }
    }
}

/// Whether anybody takes connections at an address. Who refuses them is not the node, or not any more. `None` if that cannot
/// be told from here.
pub(super) async fn answers(address: &str, gate: Gate<'_>) -> Option<bool> {
    let at = gate.pass(address).await.ok()?;
    match timeout(CONNECT, TcpStream::connect(&at[..])).await {
        Ok(Ok(_)) => Some(true),
        Ok(Err(error)) => match error.kind() {
            ErrorKind::ConnectionRefused
            | ErrorKind::ConnectionReset
            | ErrorKind::HostUnreachable
            | ErrorKind::TimedOut => Some(false),
            _ => None,
        },
        Err(_) => Some(false),
    }
}

/// Waits for a command, unless it says nothing for a while, or cannot be run, and the node does not answer either.
pub(super) async fn or_silent<T, Answer: Future<Output = Option<bool>>>(
    command: impl Future<Output = Result<T, Failed>>,
    address: &str,
    answers: impl Fn() -> Answer,
) -> Result<T, Failed> {
    let silent = |why: &str| Failed::Silent(format!("{why}, and {address} does not answer"));
    let other_way = async {
        sleep(PATIENCE).await;
        if answers().await != Some(false) {
            std::future::pending::<()>().await;
        }
    };
    tokio::select! {
        biased;
        asked = command => match asked {
            Err(Failed::Way(why)) if answers().await == Some(false) => Err(silent(&why)),
            asked => asked,
        },
        () = other_way => Err(silent("exec: it says nothing")),
    }
}

#[cfg(test)]
mod tests {
    use std::{
        cell::Cell,
        future::{pending, ready},
    };

    use tokio::time::Instant;

    use super::*;
    use crate::reach::Reach;

    const AT: &str = "db:5432";

    fn cannot() -> Failed {
        Failed::Way("exec: no route to host".to_owned())
    }

    #[tokio::test(start_paused = true)]
    async fn a_command_that_ends_is_believed_whatever_else_does_not_answer() {
        for outcome in [Ok(1), Err(Failed::Node("exec: exit code 1".to_owned()))] {
            let said = outcome.as_ref().map_err(|_| ()).copied();
            let slow = async {
                sleep(Duration::from_millis(400)).await;
                outcome
            };
            let judged = or_silent(slow, AT, || ready(Some(false))).await;
            assert_eq!(judged.as_ref().map_err(|_| ()).copied(), said);
            assert!(!matches!(judged, Err(Failed::Silent(_))));
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_command_that_cannot_be_run_says_nothing_of_a_node_that_answers() {
        for answer in [Some(true), None] {
            let judged = or_silent::<(), _>(async { Err(cannot()) }, AT, || ready(answer)).await;
            assert_eq!(judged, Err(cannot()));
        }
        let slow = async {
            sleep(Duration::from_secs(5)).await;
            Err(cannot())
        };
        assert_eq!(
            or_silent::<(), _>(slow, AT, || ready(Some(true))).await,
            Err(cannot())
        );
    }

    #[tokio::test(start_paused = true)]
    async fn a_node_is_silent_if_neither_a_command_nor_a_connection_reaches_it() {
        let judged = or_silent::<(), _>(async { Err(cannot()) }, AT, || ready(Some(false))).await;
        let why = "exec: no route to host, and db:5432 does not answer";
        assert_eq!(judged, Err(Failed::Silent(why.to_owned())));
        let began = Instant::now();
        let judged = or_silent::<(), _>(pending(), AT, || ready(Some(false))).await;
        let why = "exec: it says nothing, and db:5432 does not answer";
        assert_eq!(judged, Err(Failed::Silent(why.to_owned())));
        assert_eq!(began.elapsed(), PATIENCE, "nobody waits for the command");
    }

    fn local(reach: &Reach) -> Gate<'_> {
        Gate { reach, local: true }
    }

    #[tokio::test]
    async fn only_who_takes_a_connection_answers() {
        let reach = Reach::default();
        let socket = tokio::net::TcpSocket::new_v4().unwrap();
        socket.bind("127.0.0.1:0".parse().unwrap()).unwrap();
        let address = socket.local_addr().unwrap().to_string();
        assert_eq!(
            answers(&address, local(&reach)).await,
            Some(false),
            "refused"
        );
        let listener = socket.listen(1).unwrap();
        assert_eq!(answers(&address, local(&reach)).await, Some(true));
        // Nobody accepts, and once enough wait the packets of others are dropped, as on their way to a host without power.
        let mut waiting = Vec::new();
        while let Ok(Ok(one)) = timeout(CONNECT, TcpStream::connect(&address)).await {
            waiting.push(one);
        }
        assert_eq!(answers(&address, local(&reach)).await, Some(false));
        drop((waiting, listener));
        let elsewhere = Gate {
            reach: &reach,
            local: false,
        };
        assert_eq!(answers(&address, elsewhere).await, None, "never probed");
    }

    #[tokio::test]
    async fn a_way_that_never_led_to_a_node_is_not_tried_for_ever() {
        let reach = Reach::default();
        let tries = Cell::new(0);
        let mut way = Way::default();
        while way != Way::Untried(Way::TRIES) {
            // Not allowed, which cannot be told from a policy of somebody else.
            way = way.learn("169.254.169.254:80", local(&reach)).await;
            tries.set(tries.get() + 1);
        }
        assert_eq!(tries.get(), Way::TRIES);
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        assert_eq!(way.learn(&address, local(&reach)).await, way);
        assert!(
            Way::default()
                .learn(&address, local(&reach))
                .await
                .is_known()
        );
    }

    #[tokio::test]
    async fn a_way_that_somebody_closes_is_unknown_after_a_while() {
        let reach = Reach::default();
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let open = listener.local_addr().unwrap().to_string();
        let mut way = Way::default().learn(&open, local(&reach)).await;
        assert_eq!(way, Way::Known(0));
        // Not allowed from now on.
        let closed = "169.254.169.254:80";
        for _ in 0..Way::BELIEVED {
            way = way.learn(closed, local(&reach)).await;
            assert!(way.is_known());
        }
        assert_eq!(way.learn(&open, local(&reach)).await, Way::Known(0));
        assert_eq!(way.learn(closed, local(&reach)).await, Way::default());
    }
}
