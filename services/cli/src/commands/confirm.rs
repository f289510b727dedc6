//! Questions before nodes go. They are asked on a terminal only; elsewhere nobody could answer.

use std::io::{self, BufRead, IsTerminal, Write};

use drover_core::Error;
use drover_proto::orchestrator::v1::{PlanClusterRequest, plan_cluster_request::Subject};

use super::tally::Tally;
use crate::{
    client::{CALL_TIMEOUT, Client},
    failure::Outcome,
    output::visible,
};

/// Whether there is somebody who can answer.
pub(crate) fn can_ask() -> bool {
    io::stdin().is_terminal() && io::stderr().is_terminal()
}

/// Asks a question on a terminal. Without one the answer is yes, as nobody can be asked.
pub(crate) fn ask(question: &str) -> Outcome<bool> {
    if !can_ask() {
        return Ok(true);
    }
    eprint!("{} [y/N] ", visible(question));
    io::stderr().flush()?;
    let mut answer = String::new();
    io::stdin().lock().read_line(&mut answer)?;
    Ok(matches!(answer.trim().to_lowercase().as_str(), "y" | "yes"))
}

/// What a change would lead to.
pub(crate) async fn tally(client: &Client, subject: Subject) -> Result<Tally, Error> {
    let request = PlanClusterRequest {
        subject: Some(subject),
        min_revision: None,
    };
    let planned = client.call(client.api.plan_cluster(request, CALL_TIMEOUT));
    Ok(Tally::of(&planned.await?.plan.unwrap_or_default()))
}

/// Whether a change may be made: nobody has to be asked, no node goes, or the answer is yes.
pub(crate) async fn may_change(
    client: &Client,
    cluster: &str,
    subject: Subject,
    yes: bool,
) -> Outcome<bool> {
    if yes || !can_ask() {
        return Ok(true);
    }
    let tally = tally(client, subject).await?;
    if !tally.removes() {
        return Ok(true);
    }
    ask(&format!("{}Continue?", tally.stakes(cluster)))
}
