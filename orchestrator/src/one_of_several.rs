//! Serving as one of several orchestrators on one etcd: standing by, leading, and standing by again.

use std::{pin::pin, time::Duration};

use drover_core::{Error, Reason};
use drover_orchestrator::{Orchestrator, Routing, Settings, Standby};
use drover_server::{ServerSettings, Shutdown};
use tokio::{
    net::TcpListener,
    time::{Instant, sleep},
};

use crate::Outcome;

/// Delay before a replica that lost its lease joins again. It doubles up to the longest, and begins anew with a lead.
const FIRST_PAUSE: Duration = Duration::from_millis(200);
const LONGEST_PAUSE: Duration = Duration::from_secs(10);
/// How long an etcd that does not answer at the start is waited for.
const ETCD_STARTS: Duration = Duration::from_secs(15);
const LOOK_AGAIN: Duration = Duration::from_secs(1);

/// What a replica needs in each turn.
struct Site {
    settings: Settings,
    routing: Routing,
    stop: Shutdown,
}

/// What this replica was when the process was asked to stop.
enum Last {
    Standby(Standby),
    Leader(Standby, Orchestrator),
    /// Neither: it had lost its lease.
    Outside,
}

/// Serves until the process is to stop. What is wrong at the start ends it; what goes wrong later does not, such as a file that
/// somebody is changing: it joins the others again once that is well.
pub(crate) async fn serve(
    server: &ServerSettings,
    settings: Settings,
    listener: TcpListener,
    stop: Shutdown,
) -> Outcome {
    let site = Site {
        routing: Routing::of(&settings)?,
        settings,
        stop: stop.clone(),
    };
    let Some(standby) = site.join().await? else {
        return Ok(());
    };
    // One for all turns: neither connections nor calls end with one.
    let service = site.routing.service();
    let running = drover_server::spawn(service, listener, server, Shutdown::new())?;
    match site.take_turns(standby).await {
        Last::Leader(replica, orchestrator) => {
            // Calls go to the next one from then on, also those that come while this server ends.
            let handed_over = replica.hand_over(&orchestrator).await;
            tokio::join!(running.shutdown(), settle(orchestrator, handed_over));
            if handed_over {
                replica.leave().await;
            }
        }
        Last::Standby(replica) => {
            let mut ends = pin!(running.shutdown());
            tokio::select! {
                () = &mut ends => {}
                () = replica.declines() => {}
            }
            replica.leave().await;
        }
        Last::Outside => running.shutdown().await,
    }
    Ok(())
}

/// Lets what is under way end, if another replica leads by now and will ask for its outcome.
async fn settle(orchestrator: Orchestrator, handed_over: bool) {
    if handed_over {
        orchestrator.settle().await;
    } else {
        orchestrator.kill().await;
    }
}

impl Site {
    /// Stands by and leads, until the process is to stop.
    async fn take_turns(&self, mut standby: Standby) -> Last {
        let mut pause = FIRST_PAUSE;
        loop {
            match self.stand_by(&standby).await {
                Ok(None) => return Last::Standby(standby),
                Ok(Some(orchestrator)) => {
                    pause = FIRST_PAUSE;
                    let lost = orchestrator.stopped();
                    tokio::select! {
                        () = self.stop.cancelled() => return Last::Leader(standby, orchestrator),
                        () = lost.cancelled() => {
                            // What it has under way is refused from now on, and need not be waited for.
                            tokio::spawn(orchestrator.shutdown());
                        }
                        why = standby.outdone() => {
                            tracing::warn!(why, "this replica hands over the lead");
                            let handed_over = standby.hand_over(&orchestrator).await;
                            settle(orchestrator, handed_over).await;
                            if handed_over {
                                standby.leave().await;
                            }
                        }
                    }
                    tracing::warn!("this replica leads no more, and stands by");
                }
                Err(error) => tracing::warn!(%error, "this replica joins again"),
            }
            // With all that it had read ahead.
            drop(standby);
            match self.again(&mut pause).await {
                Some(next) => standby = next,
                None => return Last::Outside,
            }
        }
    }

    /// Joins the replicas. An etcd that is started with this process is waited for. `None` if the process is to stop.
    async fn join(&self) -> Result<Option<Standby>, Error> {
        let end = Instant::now() + ETCD_STARTS;
        loop {
            match Standby::open(&self.settings, &self.routing).await {
                Ok(standby) => return Ok(Some(standby)),
                Err(error) if error.reason() != Reason::Unavailable || Instant::now() >= end => {
                    return Err(error);
                }
                Err(error) => tracing::warn!(%error, "waiting for etcd"),
            }
            tokio::select! {
                () = self.stop.cancelled() => return Ok(None),
                () = sleep(LOOK_AGAIN) => {}
            }
        }
    }

    /// Waits until this replica has the lead. `None` if the process is to stop.
    async fn stand_by(&self, standby: &Standby) -> Result<Option<Orchestrator>, Error> {
        loop {
            tokio::select! {
                () = self.stop.cancelled() => return Ok(None),
                vacancy = standby.vacancy() => vacancy?,
            }
            // Half a lead that is not waited for ends with the lease.
            let Some(led) = self.stop.run_until_cancelled(standby.lead()).await else {
                return Ok(None);
            };
            if let Some(orchestrator) = led? {
                return Ok(Some(orchestrator));
            }
        }
    }

    /// Joins the replicas again. `None` if the process is to stop.
    async fn again(&self, pause: &mut Duration) -> Option<Standby> {
        loop {
            tokio::select! {
                () = self.stop.cancelled() => return None,
                () = sleep(*pause) => {}
            }
            *pause = (*pause * 2).min(LONGEST_PAUSE);
            let joining = Standby::open(&self.settings, &self.routing);
            match self.stop.run_until_cancelled(joining).await? {
                Ok(standby) => return Some(standby),
                Err(error) => tracing::warn!(%error, "this replica cannot stand by yet"),
            }
        }
    }
}
