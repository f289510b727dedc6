//! `failover`: a standby takes over without what only the last active node of its group may have acknowledged.

use drover_core::Error;
use drover_proto::orchestrator::v1::{Cluster, FailOverGroupRequest, FailOverGroupResponse};

use super::{confirm, rollout, target, wait};
use crate::{
    cli::FailoverArgs,
    client::{CALL_TIMEOUT, Client},
    failure::{Failure, Outcome, is_unaccepted},
    hint::Hint,
    output::{self, one_line},
};

pub(crate) async fn run(client: &Client, args: FailoverArgs) -> Outcome {
    let (cluster, path) = target::cluster_or_group(&args.target)?;
    let group = match path {
        Some(path) => path.to_owned(),
        None => only_group(&rollout::get(client, cluster).await?)?,
    };
    let of = format!("{cluster}/{group}");
    if !args.accept_loss {
        let refusal = loss(client, cluster, &group).await;
        let command = ["failover", of.as_str()].map(str::to_owned);
        return Err(Failure::from(refusal).of(&command));
    }
    if !args.yes && confirm::can_ask() {
        let refusal = loss(client, cluster, &group).await;
        if !is_unaccepted(&refusal) {
            return Err(refusal.into());
        }
        let stakes = one_line(refusal.message());
        if !confirm::ask(&format!("{stakes}\nDo without them?"))? {
            return Err(Failure::failed("nothing changed"));
        }
    }
    let answer = fail_over(client, cluster, &group, true).await?;
    let node = &answer.node_name;
    let words = format!("{of}: a standby takes over without what {node} acknowledged alone");
    output::result(args.change.output, &format!("group/{of}"), &answer, &words)?;
    if !args.change.wait.wait {
        complain!("how it goes: {}", Hint::describe(cluster).told());
    }
    wait::after(client, cluster, &args.change.wait).await
}

async fn fail_over(
    client: &Client,
    cluster: &str,
    group: &str,
    accept_loss: bool,
) -> Result<FailOverGroupResponse, Error> {
    let request = FailOverGroupRequest {
        cluster: cluster.to_owned(),
        group: group.to_owned(),
        accept_loss,
    };
    client
        .call(client.api.fail_over_group(request, CALL_TIMEOUT))
        .await
}

/// What would be lost, or why nothing has to be: who does not accept a loss is told so, and nothing changes.
async fn loss(client: &Client, cluster: &str, group: &str) -> Error {
    match fail_over(client, cluster, group, false).await {
        Err(error) => error,
        Ok(_) => Error::internal("the orchestrator did not say what would be lost"),
    }
}

/// Path of the only group of a cluster.
fn only_group(cluster: &Cluster) -> Outcome<String> {
    let name = &cluster.name;
    let groups = cluster.status.iter().flat_map(|status| &status.groups);
    let paths: Vec<&str> = groups.map(|group| group.path.as_str()).collect();
    match paths.as_slice() {
        [] => Err(Failure::failed(format!("cluster {name} has no groups"))),
        [only] => Ok((*only).to_owned()),
        [first, ..] => {
            let names = paths.join(", ");
            let failure = Failure::usage(format!("cluster {name} has several groups: {names}"));
            Err(failure.with_hint(&Hint::fail_over(&format!("{name}/{first}"))))
        }
    }
}

#[cfg(test)]
mod tests {
    use drover_core::Reason;
    use drover_proto::orchestrator::v1::{ClusterStatus, GroupStatus};

    use super::*;
    use crate::failure::Exit;

    fn cluster(groups: &[&str]) -> Cluster {
        let group = |path: &&str| GroupStatus {
            path: (*path).to_owned(),
            ..Default::default()
        };
        let status = ClusterStatus {
            groups: groups.iter().map(group).collect(),
            ..Default::default()
        };
        Cluster {
            name: "orders".to_owned(),
            status: Some(status),
            ..Default::default()
        }
    }

    #[test]
    fn a_group_is_asked_for_where_there_are_several() {
        assert_eq!(only_group(&cluster(&["data/hot"])).unwrap(), "data/hot");
        let failure = only_group(&cluster(&["db", "web"])).unwrap_err();
        assert_eq!(failure.exit, Exit::Usage);
        let said = "cluster orders has several groups: db, web";
        assert!(failure.message.contains(said), "{failure}");
        let hint = "hint: drover failover orders/db";
        assert!(failure.message.ends_with(hint), "{failure}");
        let failure = only_group(&cluster(&[])).unwrap_err();
        assert_eq!(failure.exit, Exit::Failed);
    }

    #[test]
    fn who_has_not_accepted_a_loss_is_told_what_it_is_and_how_to_accept_it() {
        let lost = Error::new(Reason::Precondition, "db-0 has what nobody else has");
        let command = ["failover", "orders/db"].map(str::to_owned);
        let failure = Failure::from(lost.clone()).of(&command);
        assert_eq!(failure.message, "error: db-0 has what nobody else has");
        let unaccepted = lost.with_violation("accept_loss", "has to be true");
        assert!(is_unaccepted(&unaccepted));
        let failure = Failure::from(unaccepted).of(&command);
        assert_eq!(
            failure.message,
            "error: db-0 has what nobody else has\n\
             hint: to do without them: drover failover orders/db --accept-loss"
        );
    }
}
