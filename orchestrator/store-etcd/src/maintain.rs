//! Giving back the room that etcd does not use, and making room in one that has none.

use std::time::Duration;

use drover_core::{Error, Reason, Result};
use futures::future::join_all;
use tokio::time::{Instant, sleep, timeout};
use tonic::{Code, Response, Status};

use crate::{
    EtcdSettings,
    api::{
        AlarmMember, AlarmRequest, AlarmType, CompactionRequest, DefragmentRequest,
        MemberListRequest, PutRequest, RangeRequest, RangeResponse, RequestOp, StatusResponse,
        TxnRequest, alarm_request::AlarmAction, cluster_client::ClusterClient, kv_client::KvClient,
        maintenance_client::MaintenanceClient, request_op::Request,
    },
    commit::said,
    keys::Prefix,
    login::{self, Login},
    members::{Way, is_of_member},
    scan::{is_refused, unsigned},
    space::{cluster, different, has_alarm, quota, status},
};

/// For a call that waits for the others. Longer than an election takes.
const CALL: Duration = Duration::from_secs(10);
/// For a call that rewrites a whole file: 8 GiB on a slow disk.
const REWRITE: Duration = Duration::from_secs(30 * 60);
/// How long members may take until all are healthy after one was defragmented: it catches up, and they may elect.
const RECOVERY: Duration = Duration::from_secs(120);
/// How long members that were not asked may take to discard what was replaced. Then they are defragmented all the same.
const DISCARD: Duration = Duration::from_secs(60);
const LOOK: Duration = Duration::from_millis(200);
/// Looks in a row at which the use must be the same to be taken for final.
const SAME: usize = 5;

/// Looks after the members of one etcd.
#[derive(Debug)]
pub struct Maintenance {
    members: Vec<(String, Way)>,
    login: Option<Login>,
    prefix: Prefix,
}

/// What was found, and what was done.
#[derive(Debug, Default)]
pub struct Report {
    /// The members, as they were listed.
    pub members: Vec<Member>,
    /// Whether one of them had no room.
    pub alarmed: bool,
    /// The revision before which everything that was replaced was discarded, if there was no room.
    pub compacted: Option<u64>,
    /// Whether the alarm was ended, and a write has succeeded since.
    pub disarmed: bool,
    /// Why not everything was done.
    pub failure: Option<Error>,
}

/// A member as it was found.
#[derive(Clone, Debug, Default)]
pub struct Member {
    /// Its client URL.
    pub endpoint: String,
    /// Its version. Empty if it does not answer.
    pub version: String,
    /// Bytes of its database file.
    pub size: u64,
    /// Bytes of it that hold something.
    pub in_use: u64,
    /// Bytes that the file may have. `None` before etcd 3.6, or without a limit.
    pub quota: Option<u64>,
    /// Whether it leads the others.
    pub leads: bool,
    /// Why it is not healthy.
    pub trouble: Option<String>,
    /// How it was defragmented.
    pub defragmented: Option<Defragmented>,
    /// Its number in etcd.
    pub id: u64,
    /// The number of its etcd.
    pub cluster: u64,
}

/// The defragmentation of a member.
#[derive(Clone, Debug)]
pub struct Defragmented {
    /// How many members came before it.
    pub turn: usize,
    /// Bytes of its database file afterwards. `None` if not all members were healthy again.
    pub size: Option<u64>,
    /// How long it took.
    pub took: Duration,
}

impl Maintenance {
    /// Prepares it, without a connection. Requires a tokio runtime.
    ///
    /// # Errors
    /// A setting is invalid, or a certificate or the file of the password cannot be used.
    pub fn new(settings: &EtcdSettings) -> Result<Self> {
        // With the usual patience of a client: a member that defragments its file is slow.
        let (targets, login) = (settings.targets()?, settings.login()?);
        let ways = targets.iter().map(|it| Way::new(it, login.as_ref()));
        let members: Vec<_> = settings.endpoints.iter().cloned().zip(ways).collect();
        if members.is_empty() {
            return Err(Error::invalid("etcd.endpoints", "lists no member of etcd"));
        }
        Ok(Self {
            members,
            login,
            prefix: Prefix::new(&settings.prefix),
        })
    }

    /// Defragments, one by one and the leader last, members whose file has more than `least` bytes and at least twice
    /// what is in use. If a member has no room: all members, after everything that was replaced was discarded, and ends
    /// the alarm. Nothing is done unless all members are healthy.
    pub async fn run(&self, least: u64) -> Report {
        let mut report = Report::default();
        report.failure = self.work(least, &mut report).await.err();
        report
    }

    async fn work(&self, least: u64, report: &mut Report) -> Result<()> {
        self.log_in().await?;
        report.members = self.look().await;
        healthy(&report.members)?;
        distinct(&report.members)?;
        self.complete(&report.members).await?;
        let alarms = self.alarms().await?;
        if alarms.is_empty() {
            let due = worth_it(&report.members, least);
            return self.defragment(due, report).await.map(drop);
        }
        report.alarmed = true;
        self.make_room(&alarms, report).await
    }

    /// Logs in anew: between two runs etcd may have been put back to an earlier state. Who is refused is told so, instead of
    /// that no member answers.
    async fn log_in(&self) -> Result<()> {
        if let Some(login) = &self.login {
            login.forget();
        }
        for (endpoint, way) in &self.members {
            match way.log_in().await {
                Ok(()) => return Ok(()),
                Err(status) if is_of_member(&status) => {}
                Err(status) => return Err(failed(endpoint, &status)),
            }
        }
        // What ails them is found next.
        Ok(())
    }

    /// Refuses to look after a part of the members: of one that is not listed it is not known whether it is healthy.
    async fn complete(&self, listed: &[Member]) -> Result<()> {
        let (endpoint, way) = &self.members[0];
        let list = way.call(|connection| async move {
            ClusterClient::new(connection)
                .member_list(MemberListRequest {})
                .await
        });
        let answer = within(CALL, list).await;
        let all = answer.map_err(|status| failed(endpoint, &status))?.members;
        let missing = all
            .iter()
            .filter(|member| !listed.iter().any(|known| known.id == member.id))
            .map(|member| format!("{} ({})", member.name, member.client_ur_ls.join(", ")));
        let missing: Vec<String> = missing.collect();
        if missing.is_empty() {
            return Ok(());
        }
        Err(Error::invalid(
            "etcd.endpoints",
            format!(
                "lists not all members of etcd: {} is missing",
                missing.join(", ")
            ),
        ))
    }

    async fn make_room(&self, alarms: &[AlarmMember], report: &mut Report) -> Result<()> {
        let known =
            |alarm: &&AlarmMember| !report.members.iter().any(|it| it.id == alarm.member_id);
        if let Some(alarm) = alarms.iter().find(known) {
            return Err(Error::invalid(
                "etcd.endpoints",
                format!(
                    "member {:x} has no room and is not listed; list all members. One that was removed leaves its \
                     alarm behind: etcdctl alarm disarm",
                    alarm.member_id
                ),
            ));
        }
        report.compacted = Some(self.compact().await?);
        self.until_discarded().await;
        let all = (0..self.members.len()).collect();
        let now = self.defragment(all, report).await?;
        // Those that discarded something only later.
        let due = worth_it(&now, 0);
        self.defragment(due, report).await?;
        for alarm in alarms {
            self.alarm(AlarmAction::Deactivate, *alarm).await?;
        }
        self.write(report).await?;
        report.disarmed = true;
        Ok(())
    }

    /// How all members are.
    async fn look(&self) -> Vec<Member> {
        let looks = self.members.iter().map(|(endpoint, way)| async move {
            let mut member = match status(way.clone()).await {
                Ok(status) => seen(&status),
                Err(status) if is_refused(&status) => Member {
                    trouble: Some(needs_root(&status)),
                    ..Member::default()
                },
                Err(status) => Member {
                    trouble: Some(format!("it does not answer ({})", status.message())),
                    ..Member::default()
                },
            };
            if member.trouble.is_none() {
                member.trouble = self.lags(way).await;
            }
            member.endpoint.clone_from(endpoint);
            member
        });
        join_all(looks).await
    }

    /// Whether a member does not know what the others do. Answered is this read only by one that knows.
    async fn lags(&self, way: &Way) -> Option<String> {
        match self.read_clock(way).await {
            Ok(_) => None,
            // Whoever may not read is told so by what follows.
            Err(status) if is_refused(&status) => None,
            Err(status) => Some(format!("it cannot be read ({})", status.message())),
        }
    }

    async fn read_clock(&self, way: &Way) -> Result<RangeResponse, Status> {
        let read = way.call(|connection| {
            let request = RangeRequest {
                key: self.prefix.clock(),
                keys_only: true,
                ..RangeRequest::default()
            };
            async move { KvClient::new(connection).range(request).await }
        });
        within(CALL, read).await
    }

    /// One by one. Returns how the members are then.
    async fn defragment(&self, mut due: Vec<usize>, report: &mut Report) -> Result<Vec<Member>> {
        let done = report.members.iter().filter(|it| it.defragmented.is_some());
        let mut turn = done.count();
        let mut now = report.members.clone();
        while !due.is_empty() {
            // As it is now: the lead may have gone to another one.
            let next = due.iter().position(|at| !now[*at].leads).unwrap_or(0);
            let at = due.remove(next);
            let (endpoint, way) = &self.members[at];
            let began = Instant::now();
            let rewrite = way.call(|connection| async move {
                MaintenanceClient::new(connection)
                    .defragment(DefragmentRequest {})
                    .await
            });
            within(REWRITE, rewrite)
                .await
                .map_err(|status| failed(endpoint, &status))?;
            let took = began.elapsed();
            let done = |size| Some(Defragmented { turn, size, took });
            // It counts also if the members do not recover.
            report.members[at].defragmented = done(None);
            now = self.until_healthy().await?;
            report.members[at].defragmented = done(Some(now[at].size));
            turn += 1;
        }
        for (member, now) in report.members.iter_mut().zip(&now) {
            member.leads = now.leads;
        }
        Ok(now)
    }

    async fn until_healthy(&self) -> Result<Vec<Member>> {
        let end = Instant::now() + RECOVERY;
        loop {
            let members = self.look().await;
            match healthy(&members) {
                Ok(()) => return Ok(members),
                Err(error) if Instant::now() >= end => return Err(error),
                Err(_) => sleep(LOOK).await,
            }
        }
    }

    /// Discards everything that was replaced. Returns the present revision.
    async fn compact(&self) -> Result<u64> {
        let (endpoint, way) = &self.members[0];
        let read = self.read_clock(way).await;
        let read = read.map_err(|status| failed(endpoint, &status))?;
        let revision = read.header.map_or(0, |header| header.revision);
        let request = CompactionRequest {
            revision,
            physical: true,
        };
        let compaction =
            way.call(|connection| async move { KvClient::new(connection).compact(request).await });
        match within(REWRITE, compaction).await {
            Ok(_) => {}
            // Done already.
            Err(status) if status.code() == Code::OutOfRange => {}
            Err(status) => return Err(failed(endpoint, &status)),
        }
        Ok(unsigned(revision))
    }

    /// The member that was asked has discarded; the others do so in their own time, and do not say when.
    async fn until_discarded(&self) {
        let end = Instant::now() + DISCARD;
        let (mut last, mut same) = (Vec::new(), 0);
        while same < SAME && Instant::now() < end {
            sleep(LOOK).await;
            let members = self.members.iter();
            let asked = members.map(|(_, way)| status(way.clone()));
            let answers = join_all(asked).await;
            let used: Vec<i64> = answers
                .iter()
                .flatten()
                .map(|it| it.db_size_in_use)
                .collect();
            same = if used == last { same + 1 } else { 0 };
            last = used;
        }
    }

    /// Members without room.
    async fn alarms(&self) -> Result<Vec<AlarmMember>> {
        let of_all = AlarmMember {
            member_id: 0,
            alarm: AlarmType::Nospace.into(),
        };
        self.alarm(AlarmAction::Get, of_all).await
    }

    async fn alarm(&self, action: AlarmAction, of: AlarmMember) -> Result<Vec<AlarmMember>> {
        let (endpoint, way) = &self.members[0];
        let request = AlarmRequest {
            action: action.into(),
            member_id: of.member_id,
            alarm: of.alarm,
        };
        let asked = way.call(|connection| async move {
            MaintenanceClient::new(connection).alarm(request).await
        });
        let answer = within(CALL, asked).await;
        let alarms = answer.map_err(|status| failed(endpoint, &status))?.alarms;
        let wanted = |alarm: &AlarmMember| alarm.alarm == i32::from(of.alarm());
        Ok(alarms.into_iter().filter(wanted).collect())
    }

    /// Writes what every change of a store writes.
    async fn write(&self, report: &Report) -> Result<()> {
        let (endpoint, way) = &self.members[0];
        let write = way.call(|connection| {
            let put = Request::RequestPut(PutRequest {
                key: self.prefix.clock(),
                ..PutRequest::default()
            });
            let request = TxnRequest {
                success: vec![RequestOp { request: Some(put) }],
                ..TxnRequest::default()
            };
            async move { KvClient::new(connection).txn(request).await }
        });
        let written = within(CALL, write).await;
        // A member may also raise its alarm for a write that was accepted.
        let full = match written {
            Ok(_) => !self.alarms().await?.is_empty(),
            Err(status) if status.message().contains("space exceeded") => true,
            Err(status) => return Err(failed(endpoint, &status)),
        };
        if !full {
            return Ok(());
        }
        let sizes = report
            .members
            .iter()
            .filter_map(|it| it.defragmented.as_ref()?.size);
        let largest = sizes.max().unwrap_or(0);
        Err(Error::new(
            Reason::StorageFull,
            format!(
                "etcd has no room although all that can be given back was: {largest} bytes are in use. Start its members \
                 with a larger --quota-backend-bytes, and run this again"
            ),
        ))
    }
}

fn seen(status: &StatusResponse) -> Member {
    let id = status.header.as_ref().map_or(0, |header| header.member_id);
    let trouble = if status.leader == 0 {
        Some("it knows no leader")
    } else if status.is_learner {
        Some("it is still a learner")
    } else if has_alarm(status, "CORRUPT") {
        Some("etcd says that data of a member is damaged (CORRUPT)")
    } else {
        None
    };
    Member {
        version: status.version.clone(),
        size: unsigned(status.db_size),
        in_use: unsigned(status.db_size_in_use),
        quota: quota(status),
        leads: status.leader == id,
        trouble: trouble.map(str::to_owned),
        id,
        cluster: cluster(status),
        ..Member::default()
    }
}

/// Numbers of the members that are to be defragmented.
fn worth_it(members: &[Member], least: u64) -> Vec<usize> {
    let is = |member: &Member| member.size > least && member.size / 2 >= member.in_use;
    let all = members.iter().enumerate();
    all.filter(|(_, member)| is(member))
        .map(|(at, _)| at)
        .collect()
}

/// With one away, another one that is busy with its file may cost the majority.
fn healthy(members: &[Member]) -> Result<()> {
    let ill = members.iter().filter_map(|member| {
        let trouble = member.trouble.as_ref()?;
        Some(format!("{}: {trouble}", member.endpoint))
    });
    let ill: Vec<String> = ill.collect();
    if ill.is_empty() {
        return Ok(());
    }
    Err(Error::unavailable(format!(
        "members of etcd are defragmented only while all are healthy; {}",
        ill.join("; ")
    )))
}

fn distinct(members: &[Member]) -> Result<()> {
    for (i, member) in members.iter().enumerate() {
        let before = &members[..i];
        if before.iter().any(|other| other.cluster != member.cluster) {
            let all: Vec<&str> = members.iter().map(|it| it.endpoint.as_str()).collect();
            return Err(different(&all.join(", ")));
        }
        if let Some(other) = before.iter().find(|other| other.id == member.id) {
            let message = format!(
                "{} and {} are the same member; list each member once, by its own address",
                other.endpoint, member.endpoint
            );
            return Err(Error::invalid("etcd.endpoints", message));
        }
    }
    Ok(())
}

async fn within<T>(
    most: Duration,
    call: impl Future<Output = Result<Response<T>, Status>>,
) -> Result<T, Status> {
    let late = || Err(Status::deadline_exceeded("no answer in time"));
    let answer = timeout(most, call).await.unwrap_or_else(|_| late());
    answer.map(Response::into_inner)
}

/// What somebody is told who may not do it.
fn needs_root(status: &Status) -> String {
    format!(
        "{}; maintenance needs the role `root` there: be a user with that role (etcd.user), or show a certificate \
         (etcd.cert) whose common name is one",
        said(status)
    )
}

fn failed(endpoint: &str, status: &Status) -> Error {
    if let Some(error) = login::refusal(status) {
        return error.clone();
    }
    if is_refused(status) {
        let message = format!("{endpoint}: {}", needs_root(status));
        return Error::new(Reason::Precondition, message);
    }
    Error::unavailable(format!("{endpoint}: {}", said(status)))
}
