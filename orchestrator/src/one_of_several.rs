//! Serving as one of several orchestrators on one etcd: standing by, leading, and standing by again.

use std::time::Duration;

use drover_core::{Error, Reason};
use drover_orchestrator::{Orchestrator, Settings, Standby};
use drover_server::{Running, ServerSettings, Shutdown};
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

/// What a replica is served with.
struct Site<'a> {
    server: &'a ServerSettings,
    settings: Settings,
    listener: std::net::TcpListener,
    stop: Shutdown,
}

/// How a turn as standby or leader ended.
enum Ended {
    Stopped,
    Lost,
}

/// Serves until the process is to stop. What is wrong at the start ends it, what goes wrong later does not.
pub(crate) async fn serve(
    server: &ServerSettings,
    settings: Settings,
    listener: TcpListener,
    stop: Shutdown,
) -> Outcome {
    let site = Site {
        server,
        settings,
        listener: listener.into_std()?,
        stop,
    };
    let Some(mut standby) = site.join().await? else {
        return Ok(());
    };
    let mut pause = FIRST_PAUSE;
    loop {
        match site.stand_by(&standby).await {
            Ok(None) => return Ok(()),
            Ok(Some(orchestrator)) => {
                pause = FIRST_PAUSE;
                match site.lead(orchestrator).await? {
                    Ended::Stopped => return Ok(()),
                    Ended::Lost => tracing::warn!("this replica leads no more, and stands by"),
                }
            }
            Err(error) if is_final(&error) => return Err(error.into()),
            Err(error) => tracing::warn!(%error, "this replica joins again"),
        }
        // With all that it had read ahead.
        drop(standby);
        match site.again(&mut pause).await? {
            Some(next) => standby = next,
            None => return Ok(()),
        }
    }
}

impl Site<'_> {
    fn serve(
        &self,
        service: drover_server::Service,
    ) -> Result<(Running, Shutdown), Box<dyn std::error::Error + Send + Sync>> {
        let listener = TcpListener::from_std(self.listener.try_clone()?)?;
        let ended = self.stop.child_token();
        let running = drover_server::spawn(service, listener, self.server, ended.clone())?;
        Ok((running, ended))
    }

    /// Joins the replicas. An etcd that is started with this process is waited for. `None` if the process is to stop.
    async fn join(&self) -> Result<Option<Standby>, Error> {
        let end = Instant::now() + ETCD_STARTS;
        loop {
            match Standby::open(&self.settings).await {
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

    /// Refuses callers until this replica has the lead. `None` if the process is to stop.
    async fn stand_by(&self, standby: &Standby) -> Result<Option<Orchestrator>, Error> {
        let served = self.serve(standby.service());
        let (running, _) = served.map_err(|error| Error::internal(error.to_string()))?;
        let led = loop {
            tokio::select! {
                () = self.stop.cancelled() => {
                    running.finished().await;
                    standby.leave().await;
                    return Ok(None);
                }
                vacancy = standby.vacancy() => vacancy?,
            }
            if let Some(orchestrator) = standby.lead().await? {
                break orchestrator;
            }
        };
        running.shutdown().await;
        Ok(Some(led))
    }

    async fn lead(
        &self,
        orchestrator: Orchestrator,
    ) -> Result<Ended, Box<dyn std::error::Error + Send + Sync>> {
        tracing::info!("this replica leads");
        let (running, ended) = self.serve(orchestrator.service())?;
        let lost = orchestrator.stopped();
        tokio::select! {
            () = self.stop.cancelled() => {}
            () = lost.cancelled() => ended.cancel(),
        }
        // At the same time, since the next replica waits for the second, and calls under way may take their time.
        tokio::join!(running.finished(), orchestrator.shutdown());
        Ok(if self.stop.is_cancelled() {
            Ended::Stopped
        } else {
            Ended::Lost
        })
    }

    /// Joins the replicas again. `None` if the process is to stop.
    async fn again(&self, pause: &mut Duration) -> Result<Option<Standby>, Error> {
        loop {
            tokio::select! {
                () = self.stop.cancelled() => return Ok(None),
                () = sleep(*pause) => {}
            }
            *pause = (*pause * 2).min(LONGEST_PAUSE);
            match Standby::open(&self.settings).await {
                Ok(standby) => return Ok(Some(standby)),
                Err(error) if is_final(&error) => return Err(error),
                Err(error) => tracing::warn!(%error, "this replica cannot stand by yet"),
            }
        }
    }
}

/// Whether a person has to change something: a setting, a key, a version.
fn is_final(error: &Error) -> bool {
    matches!(error.reason(), Reason::Invalid | Reason::Precondition)
}
