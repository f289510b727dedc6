use std::{collections::BTreeMap, time::Duration};

use drover_proto::platform::v1::{
    Capability, Node, NodePhase, WatchMark, WatchNodesRequest, WatchNodesResponse,
    watch_nodes_response::Event,
};
use tonic::Streaming;

use super::{
    Subject,
    fixture::{Fixture, client, ids},
};

/// Maximum number of nodes in a message.
const MAX_NODES: usize = 256;

struct Watch<'a> {
    subject: &'a Subject,
    stream: Streaming<WatchNodesResponse>,
    /// The nodes that the watch has reported so far.
    nodes: BTreeMap<(String, String), Node>,
    marks: Vec<WatchMark>,
}

impl<'a> Watch<'a> {
    async fn open(fixture: &Fixture<'a>, cluster: &str, heartbeat: Duration) -> Self {
        let request = WatchNodesRequest {
            expected_platform_uid: fixture.platform.uid.clone(),
            cluster_id: cluster.to_owned(),
            heartbeat_interval: prost_types::Duration::try_from(heartbeat).ok(),
            ..WatchNodesRequest::default()
        };
        let answer = client(fixture.subject)
            .watch_nodes(request)
            .await
            .expect("the watch opens");
        let mut watch = Self {
            subject: fixture.subject,
            stream: answer.into_inner(),
            nodes: BTreeMap::new(),
            marks: Vec::new(),
        };
        let Event::Started(started) = watch.next().await else {
            panic!("the first message is `started`")
        };
        assert_eq!(started.instance_id, fixture.platform.instance_id);
        assert_eq!(started.platform_etag, fixture.platform.etag);
        let interval =
            Duration::try_from(started.heartbeat_interval.expect("the interval is stated"))
                .unwrap();
        assert_eq!(
            interval,
            heartbeat.clamp(Duration::from_secs(1), Duration::from_secs(60))
        );
        watch
    }

    async fn next(&mut self) -> Event {
        let message = tokio::time::timeout(self.subject.patience, self.stream.message()).await;
        let message = message
            .expect("a message comes in time")
            .expect("the watch goes on")
            .expect("it does not end");
        let event = message.event.expect("a message says something");
        match &event {
            Event::Upserts(upserts) => {
                assert!(
                    (1..=MAX_NODES).contains(&upserts.nodes.len()),
                    "1 to {MAX_NODES} nodes in a message"
                );
                for node in &upserts.nodes {
                    self.nodes.insert(
                        (node.cluster_id.clone(), node.node_id.clone()),
                        node.clone(),
                    );
                }
            }
            Event::Removals(removals) => {
                assert!(
                    (1..=MAX_NODES).contains(&removals.nodes.len()),
                    "1 to {MAX_NODES} nodes in a message"
                );
                for node in &removals.nodes {
                    self.nodes
                        .remove(&(node.cluster_id.clone(), node.node_id.clone()));
                }
            }
            Event::SnapshotComplete(mark) | Event::Heartbeat(mark) => self.marks.push(mark.clone()),
            Event::Started(_) | Event::Warnings(_) => {}
        }
        event
    }

    async fn snapshot(&mut self) {
        loop {
            match self.next().await {
                Event::Upserts(_) | Event::Warnings(_) => {}
                Event::SnapshotComplete(_) => return,
                other => panic!("not part of a snapshot: {other:?}"),
            }
        }
    }

    async fn until(
        &mut self,
        what: &str,
        condition: impl Fn(&BTreeMap<(String, String), Node>) -> bool,
    ) {
        let patience = self.subject.patience;
        let wait = async {
            while !condition(&self.nodes) {
                self.next().await;
            }
        };
        tokio::time::timeout(patience, wait)
            .await
            .unwrap_or_else(|_| panic!("the watch does not show: {what}"));
    }
}

fn can_watch(fixture: &Fixture<'_>) -> bool {
    fixture.can(Capability::Watch)
}

pub(super) async fn a_watch_begins_with_a_snapshot(subject: &Subject) {
    let fixture = Fixture::new(subject).await;
    if !can_watch(&fixture) {
        return;
    }
    let (_, nodes) = fixture.make(3).await;
    fixture.until_listed(&nodes).await;
    let mut watch = Watch::open(&fixture, "", Duration::from_secs(10)).await;
    watch.snapshot().await;
    let shown: Vec<Node> = watch
        .nodes
        .values()
        .filter(|node| node.cluster_id == fixture.cluster)
        .cloned()
        .collect();
    assert_eq!(ids(&shown), ids(&nodes), "the snapshot is complete");
    assert!(watch.marks[0].observe_time.is_some());
    fixture.clean().await;
}

pub(super) async fn every_change_is_seen(subject: &Subject) {
    let fixture = Fixture::new(subject).await;
    if !can_watch(&fixture) {
        return;
    }
    let mut watch = Watch::open(&fixture, &fixture.cluster, Duration::from_secs(10)).await;
    watch.snapshot().await;
    assert!(watch.nodes.is_empty(), "nothing is there yet");
    let (request, nodes) = fixture.make(3).await;
    let expected = ids(&nodes);
    watch
        .until("the new nodes", |shown| {
            ids(&shown.values().cloned().collect::<Vec<_>>()) == expected
        })
        .await;
    watch
        .until("running nodes", |shown| {
            shown.values().all(|node| {
                node.phase() == NodePhase::Running
                    && (!subject.becomes_ready || node.ready == Some(true))
            })
        })
        .await;
    fixture
        .deprovision(&fixture.removal(&request, &nodes[0]))
        .await
        .expect("an own node can be removed");
    let gone = &nodes[0].node_id;
    watch
        .until("the removal", |shown| {
            shown
                .values()
                .all(|node| node.node_id != *gone || node.phase() == NodePhase::Terminated)
        })
        .await;
    let left = ids(&nodes[1..]);
    assert_eq!(
        ids(&watch.nodes.values().cloned().collect::<Vec<_>>()),
        left,
        "the others are still there"
    );
    assert_eq!(
        ids(&fixture.nodes().await),
        left,
        "watch and list show the same"
    );
    fixture.clean().await;
}

pub(super) async fn a_watch_of_a_cluster_shows_no_other(subject: &Subject) {
    let (fixture, other) = (Fixture::new(subject).await, Fixture::new(subject).await);
    if !can_watch(&fixture) {
        return;
    }
    let (_, before) = other.make(1).await;
    let mut watch = Watch::open(&fixture, &fixture.cluster, Duration::from_secs(10)).await;
    watch.snapshot().await;
    let (_, after) = other.make(1).await;
    let (_, nodes) = fixture.make(1).await;
    let expected = ids(&nodes);
    watch.until("the new node", |shown| !shown.is_empty()).await;
    assert_eq!(
        ids(&watch.nodes.values().cloned().collect::<Vec<_>>()),
        expected,
        "{before:?} {after:?} are not shown"
    );
    fixture.clean().await;
    other.clean().await;
}

pub(super) async fn heartbeats_come_and_are_fresh(subject: &Subject) {
    let fixture = Fixture::new(subject).await;
    if !can_watch(&fixture) {
        return;
    }
    // Before it opens: what is read late is still not sent too often.
    let begin = tokio::time::Instant::now();
    // Shorter than allowed: clamped to between 1 s and 60 s.
    let mut watch = Watch::open(&fixture, &fixture.cluster, Duration::from_millis(1)).await;
    watch.snapshot().await;
    while watch.marks.len() < 3 {
        watch.next().await;
    }
    assert!(
        begin.elapsed() >= Duration::from_millis(1500),
        "not more often than every second"
    );
    let times: Vec<_> = watch
        .marks
        .iter()
        .map(|mark| mark.observe_time.expect("observe_time is there"))
        .collect();
    let in_order = |pair: &[prost_types::Timestamp]| {
        (pair[0].seconds, pair[0].nanos) <= (pair[1].seconds, pair[1].nanos)
    };
    assert!(
        times.windows(2).all(in_order),
        "observe_time does not go back: {times:?}"
    );
    assert!(
        watch
            .marks
            .iter()
            .all(|mark| mark.platform_etag == fixture.platform.etag),
        "the etag is repeated"
    );
}
