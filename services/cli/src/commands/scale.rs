//! `scale`: the size of a group, in numbers of nodes or by how many more or fewer.

use std::{num::IntErrorKind, str::FromStr};

use drover_core::{Reason, spec::MAX_NODES};
use drover_proto::orchestrator::v1::{
    Cluster, GetClusterRequest, GroupSpec, ScaleGroupRequest, ScaleGroupResponse,
    plan_cluster_request::Subject,
};

use super::{apply, confirm, rollout, tally::Tally, target, wait};
use crate::{
    cli::ScaleArgs,
    client::{CALL_TIMEOUT, Client},
    failure::{Failure, Outcome},
    hint::Hint,
    output::{self, Format, count},
};

/// Attempts to change a size by so many nodes while others change the cluster.
const ATTEMPTS: usize = 5;

/// A number of nodes, or a difference.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Size {
    To(u32),
    By(i64),
}

impl FromStr for Size {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let number = || {
            text.parse::<i64>().map_err(|error| match error.kind() {
                IntErrorKind::PosOverflow | IntErrorKind::NegOverflow => beyond(),
                _ => format!("`{text}` is not a number of nodes; write N, +N or -N"),
            })
        };
        let most = i64::from(MAX_NODES);
        let number = number()?;
        if !(-most..=most).contains(&number) {
            return Err(beyond());
        }
        if text.starts_with(['+', '-']) {
            return Ok(Self::By(number));
        }
        u32::try_from(number).map(Self::To).map_err(|_| beyond())
    }
}

fn beyond() -> String {
    format!("a group has 0 to {MAX_NODES} nodes")
}

impl Size {
    fn is_difference(self) -> bool {
        matches!(self, Self::By(_))
    }

    /// The number of nodes, of so many now.
    fn of(self, what: &str, now: u32) -> Outcome<u32> {
        let by = match self {
            Self::To(size) => return Ok(size),
            Self::By(by) => by,
        };
        let sum = u32::try_from(i64::from(now) + by).ok();
        sum.filter(|sum| *sum <= MAX_NODES).ok_or_else(|| {
            let have = count(now as usize, what);
            Failure::usage(format!("{by:+} of {have} is not possible: {}", beyond()))
        })
    }
}

/// Cluster, path of the group, and its size.
type Meant = (String, String, Option<Size>);

fn parse(words: &[String]) -> Outcome<Meant> {
    let size = |word: &String| word.parse::<Size>().map_err(Failure::usage);
    match target::group(words) {
        (cluster, group, rest @ ([] | [_])) if !cluster.is_empty() && !group.is_empty() => {
            let size = rest.first().map(size).transpose()?;
            Ok((cluster.to_owned(), group.to_owned(), size))
        }
        (cluster, "", _) if !cluster.is_empty() => Err(Failure::usage(format!(
            "which group of {cluster}? write CLUSTER/GROUP SIZE"
        ))
        .with_hint(&Hint::describe(cluster))),
        _ => Err(Failure::usage(
            "expected CLUSTER/GROUP SIZE, like shop/web 3",
        )),
    }
}

pub(crate) async fn run(client: &Client, args: ScaleArgs) -> Outcome {
    let (cluster, group, size) = parse(&args.target)?;
    if size.is_none() && args.standby.is_none() && args.remove.is_empty() {
        return Err(
            Failure::usage("how many nodes? write their number, or +1 for one more")
                .with_hint(&Hint::describe(&cluster)),
        );
    }
    let wanted = Wanted {
        size,
        standby: args.standby,
        request: ScaleGroupRequest {
            cluster: cluster.clone(),
            group: group.clone(),
            size: None,
            standby: None,
            expected_generation: args.expect_generation,
            // The node of this cluster, with or without the name of the cluster.
            remove_nodes: args
                .remove
                .iter()
                .map(|node| node.rsplit('/').next().unwrap_or(node).to_owned())
                .collect(),
        },
    };
    if args.planned.dry_run {
        let (request, _) = wanted.request(client).await?;
        return rollout::dry_run(
            client,
            &cluster,
            Subject::Scale(request),
            args.planned.change.output,
        )
        .await;
    }
    let Some((before, answer)) = scaled(client, &wanted, args.planned.yes).await? else {
        return Err(Failure::failed("not scaled"));
    };
    let format = args.planned.change.output;
    tell(format, &cluster, &group, before, &answer)?;
    wait::after(client, &cluster, &args.planned.change.wait).await
}

struct Wanted {
    size: Option<Size>,
    standby: Option<Size>,
    request: ScaleGroupRequest,
}

impl Wanted {
    fn is_difference(&self) -> bool {
        [self.size, self.standby]
            .into_iter()
            .flatten()
            .any(Size::is_difference)
    }

    /// The request, and the generation that it was made for; `None` if the caller may not read the cluster.
    async fn request(&self, client: &Client) -> Outcome<(ScaleGroupRequest, Option<u64>)> {
        let mut request = self.request.clone();
        let read = GetClusterRequest {
            name: request.cluster.clone(),
            min_revision: None,
        };
        let read = client
            .call(client.api.get_cluster(read, CALL_TIMEOUT))
            .await;
        let cluster = match read {
            Ok(answer) => answer.cluster.unwrap_or_default(),
            Err(error) if self.is_difference() => return Err(error.into()),
            // Who may scale and not read: the server says what is wrong.
            Err(_) => Cluster::default(),
        };
        let (active, standby) = sizes(&cluster, &request.group);
        let of = |size: Option<Size>, what, now| size.map(|it| it.of(what, now)).transpose();
        request.size = of(self.size, "node", active)?;
        request.standby = of(self.standby, "standby node", standby)?;
        let generation = (cluster.generation > 0).then_some(cluster.generation);
        if self.is_difference() {
            request.expected_generation = request.expected_generation.or(generation);
        }
        Ok((request, generation))
    }
}

/// Active and standby nodes that a group wants. What is wrong with its path, the server says.
fn sizes(cluster: &Cluster, path: &str) -> (u32, u32) {
    fn find<'a>(groups: &'a [GroupSpec], path: &str) -> Option<&'a GroupSpec> {
        groups.iter().find_map(|group| {
            let rest = path.strip_prefix(&group.name)?;
            match rest.strip_prefix('/') {
                Some(inner) => find(&group.groups, inner),
                None => rest.is_empty().then_some(group),
            }
        })
    }
    let spec = cluster.spec.as_ref();
    let group = spec.and_then(|spec| find(&spec.groups, path));
    group.map_or((0, 0), |group| {
        (group.size.unwrap_or(1), group.standby.unwrap_or(0))
    })
}

/// Scales, after a question where nodes would be deleted. `None`: the answer was no.
async fn scaled(
    client: &Client,
    wanted: &Wanted,
    yes: bool,
) -> Outcome<Option<(Option<u64>, ScaleGroupResponse)>> {
    let mut attempts = ATTEMPTS;
    loop {
        attempts -= 1;
        let (request, generation) = wanted.request(client).await?;
        let subject = Subject::Scale(request.clone());
        if !confirm::may_change(client, &request.cluster, subject, yes).await? {
            return Ok(None);
        }
        let answer = client
            .call(client.api.scale_group(request, CALL_TIMEOUT))
            .await;
        match answer {
            Ok(answer) => return Ok(Some((generation, answer))),
            // So many more than there are now.
            Err(error)
                if error.reason() == Reason::GenerationMismatch
                    && wanted.request.expected_generation.is_none()
                    && attempts > 0 => {}
            Err(error) => return Err(error.into()),
        }
    }
}

fn tell(
    format: Format,
    cluster: &str,
    group: &str,
    before: Option<u64>,
    answer: &ScaleGroupResponse,
) -> Outcome<()> {
    let generation = answer.cluster.as_ref().map_or(0, |it| it.generation);
    let word = if before == Some(generation) {
        "unchanged"
    } else {
        "scaled"
    };
    let plan = answer.plan.as_ref();
    let tally = plan.map(Tally::of).unwrap_or_default();
    let words = tally.words();
    let name = format!("group/{cluster}/{group}");
    let words = format!("{name} {word} (generation {generation}): {words}");
    output::result(format, &name, answer, &words)?;
    apply::tell_paused(answer.cluster.as_ref());
    Ok(())
}

#[cfg(test)]
mod tests {
    use drover_proto::orchestrator::v1::ClusterSpec;

    use super::*;

    fn words(line: &str) -> Vec<String> {
        line.split_whitespace().map(str::to_owned).collect()
    }

    #[test]
    fn a_group_is_named_as_it_is_shown_or_in_two_words() {
        let three = Some(Size::To(3));
        for (line, meant) in [
            ("shop web 3", ("shop", "web", three)),
            ("shop/web 3", ("shop", "web", three)),
            ("group/shop/web 3", ("shop", "web", three)),
            ("cluster/shop web 3", ("shop", "web", three)),
            ("shop data/hot 3", ("shop", "data/hot", three)),
            ("shop/data/hot +3", ("shop", "data/hot", Some(Size::By(3)))),
            ("group/web -1", ("group", "web", Some(Size::By(-1)))),
            ("shop/web", ("shop", "web", None)),
            ("shop web", ("shop", "web", None)),
        ] {
            let (cluster, group, size) = parse(&words(line)).unwrap();
            assert_eq!((&*cluster, &*group, size), meant, "{line}");
        }
        for (line, why) in [
            ("shop", "which group of shop?"),
            ("shop/ 3", "which group of shop?"),
            ("/web 3", "CLUSTER/GROUP SIZE"),
            ("shop/web 3 4", "CLUSTER/GROUP SIZE"),
            ("shop web three", "`three` is not a number of nodes"),
            ("shop web +", "`+` is not a number of nodes"),
            ("shop web 10001", "0 to 10000"),
            ("shop web -99999999999999999999", "0 to 10000"),
        ] {
            let failure = parse(&words(line)).unwrap_err();
            assert!(failure.message.contains(why), "{line}: {failure}");
        }
    }

    #[test]
    fn a_difference_is_one_to_what_the_group_wants() {
        let inner = GroupSpec {
            name: "hot".into(),
            size: Some(4),
            standby: Some(1),
            ..Default::default()
        };
        let outer = |name: &str, groups| GroupSpec {
            name: name.into(),
            groups,
            ..Default::default()
        };
        let groups = vec![outer("da", vec![]), outer("data", vec![inner])];
        let spec = ClusterSpec {
            groups,
            ..Default::default()
        };
        let cluster = Cluster {
            spec: Some(spec),
            ..Default::default()
        };
        assert_eq!(sizes(&cluster, "data/hot"), (4, 1));
        assert_eq!(sizes(&cluster, "da"), (1, 0));
        assert_eq!(Size::By(2).of("node", 4).unwrap(), 6);
        assert_eq!(Size::By(-4).of("node", 4).unwrap(), 0);
        assert_eq!(Size::To(2).of("node", 4).unwrap(), 2);
        let failure = Size::By(-5).of("node", 4).unwrap_err();
        let said = "-5 of 4 nodes is not possible: a group has 0 to 10000 nodes";
        assert!(failure.message.contains(said), "{failure}");
    }
}
