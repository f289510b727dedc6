//! The driver for the simulated backend.

use std::{collections::BTreeMap, time::Duration};

use async_trait::async_trait;
use drover_convert::value::to_duration;
use drover_core::{Class, Error, Reason, Result};
use drover_proto::{
    common::v1::{Chunk, ProcessOutput, chunk::Content, process_output::Output},
    platform::v1::{
        Capability, DeprovisionState, ExecRequest, ExecStart, Host, KeptStorage, Limits, Node,
        NodeClass, NodePhase, Slot, StreamLogsRequest, exec_request::Input,
    },
};
use futures::{StreamExt, stream};

use super::{
    Simulated,
    faults::{Fault, Operation, lost},
    placement,
    world::{World, number},
};
use drover_platform::addons::Addons;
use drover_platform::driver::{
    Batch, Change, Changes, Deleted, Deletion, Description, Driver, ExecInput, ExecOutput, Found,
    Listing, Live, LogStream, Outcome, Place, Target, index,
};
use drover_platform::infrastructure::Infrastructure;
use drover_platform::inventory::Inventory;
use drover_platform::placement::domains::Placer;

/// Time after which a create call has taken effect or never will.
const MAX_CREATION: Duration = Duration::from_secs(10);
/// How long a request id is remembered after its nodes are gone.
const REQUEST_MEMORY: Duration = Duration::from_secs(600);
/// Minimum poll interval.
const MIN_POLL: Duration = Duration::from_secs(1);
/// Maximum concurrent calls while they take no time.
const MAX_AT_ONCE: u32 = 16;

impl Simulated {
    /// Draws the latency and the fault of a call.
    fn begin(&self, operation: Operation) -> (Duration, Option<Fault>) {
        let mut world = self.world.lock();
        let world = &mut *world;
        let latency = self.settings.jittered(
            self.settings.latency,
            self.settings.jitter,
            &mut world.random,
        );
        match world.faults.draw(operation, &mut world.random) {
            Some(Fault::Stall(longer)) => (latency + self.settings.scaled(longer), None),
            fault => (latency, fault),
        }
    }

    /// Waits for the latency of a call. Returns whether the response is lost after the call took effect.
    pub(super) async fn call(&self, operation: Operation) -> Result<bool> {
        let (latency, fault) = self.begin(operation);
        pause(latency).await;
        self.reached(fault)
    }

    fn reached(&self, fault: Option<Fault>) -> Result<bool> {
        if self.world.lock().paused {
            return Err(Error::unavailable(
                "the simulated backend cannot be reached",
            ));
        }
        match fault {
            Some(Fault::Refuse(error)) => Err(error),
            Some(Fault::LoseAnswer) => Ok(true),
            Some(Fault::Stall(_)) | None => Ok(false),
        }
    }

    async fn make(&self, batch: &Batch) -> Vec<Outcome> {
        let properties = match self.settings.properties(batch) {
            Ok(properties) => properties,
            Err(error) => {
                let failed = |_| Outcome::Failed(error.clone());
                return batch.slots().map(failed).collect();
            }
        };
        let data = self.user_data(batch).await;
        let mut world = self.world.lock();
        let domains = world.failure_domains();
        let mut placer = placement::placer(&world, &domains, &batch.request);
        let mut hosts = placement::hosts(&world, batch, self.settings.inventory, &properties);
        let mut shared = None;
        let storage = batch.request.storage.as_ref();
        let mut make = |slot: &Slot, data: Result<Option<Vec<u8>>>| {
            if !batch.may_start() {
                return Outcome::NotStarted;
            }
            let data = match data {
                Ok(data) => data,
                Err(error) => return Outcome::not_begun(error),
            };
            let host = hosts.remove(&index(slot)).transpose();
            let place = host.and_then(|host| match host {
                Some(host) => Ok((world.hosts[host].domain, Some(host))),
                None => Ok((domain(&world, &mut placer)?, None)),
            });
            let made = place.and_then(|(domain, host)| {
                let (identity, settings) = (batch.identity(slot), &self.settings);
                let (place, labels) = ((domain, host), &properties.host_labels);
                let made = world.create(identity, storage, place, labels, &mut shared, settings);
                let name = domain.map_or("", |at| domains[at].name.as_str());
                match (&made, host) {
                    (Ok(_), Some(_)) => placer.count(name, true),
                    (Ok(_), None) => placer.confirm(),
                    (Err(_), Some(_)) => {}
                    (Err(_), None) => placer.take_back(name),
                }
                placement::fill(&world, &mut placer);
                made
            });
            if let (Ok(node), Some(data)) = (&made, data)
                && let Some(number) = number(&node.node_id)
            {
                world.user_data.insert(number, data);
            }
            match made {
                Ok(node) => Outcome::Made(Box::new(node)),
                Err(error) => Outcome::Failed(error),
            }
        };
        let slots = batch.slots().zip(data);
        slots.map(|(slot, data)| make(slot, data)).collect()
    }

    /// The user data of the nodes to create.
    async fn user_data(&self, batch: &Batch) -> Vec<Result<Option<Vec<u8>>>> {
        if batch.request.bootstrap.is_none() {
            return batch.slots().map(|_| Ok(None)).collect();
        }
        let slots = batch.slots().map(|slot| (slot, Place::default()));
        let rendered = batch.render_all(slots).await.into_iter();
        rendered.map(|it| it.map(|it| it.bootstrap)).collect()
    }

    fn read(&self, read: impl FnOnce(&super::world::World) -> Vec<Found>) -> Listing {
        Listing {
            nodes: read(&self.world.lock()),
            warnings: Vec::new(),
        }
    }

    fn limits(&self) -> Limits {
        Limits {
            max_batch: Some(self.settings.max_batch),
            // What is answered at once is not answered sooner by more calls: they would wait for each other, and urgent
            // ones for them.
            max_concurrent_calls: (self.settings.latency + self.settings.jitter)
                .is_zero()
                .then_some(MAX_AT_ONCE),
            min_poll_interval: Some(to_duration(self.settings.scaled(MIN_POLL))),
            max_creation_time: Some(to_duration(MAX_CREATION)),
            request_memory: Some(to_duration(REQUEST_MEMORY)),
            visibility_delay: Some(to_duration(
                self.settings.scaled(self.settings.visibility_delay),
            )),
            max_bootstrap_bytes: self.settings.max_bootstrap_bytes,
            calls_per_second: self.settings.calls_per_second,
            // A retry reads the nodes of its request without the visibility delay.
            replay_delay: Some(to_duration(Duration::ZERO)),
            ..Limits::default()
        }
    }
}

/// The failure domain of the next node that is no host.
fn domain(world: &World, placer: &mut Placer<'_>) -> Result<Option<usize>> {
    let domain = placer.choose()?;
    Ok(domain.and_then(|name| world.domains.iter().position(|room| room.name == name)))
}

async fn pause(latency: Duration) {
    // Even a zero sleep would wait for the next tick of the timer.
    if !latency.is_zero() {
        tokio::time::sleep(latency).await;
    }
}

#[async_trait]
impl Driver for Simulated {
    fn description(&self) -> Description {
        let mut capabilities = vec![
            Capability::Adopt,
            Capability::UpdateNode,
            Capability::Bootstrap,
            Capability::BootstrapRender,
            Capability::GracePeriod,
            Capability::RetainStorage,
            Capability::Storage,
            Capability::GrowStorage,
            Capability::NodeLogs,
            Capability::NodeExec,
            // Preferred only: without failure domains every placement satisfies it.
            Capability::SpreadPreferred,
        ];
        // Hosts are spread over their own labels.
        if self.settings.inventory || !self.settings.failure_domains.is_empty() {
            capabilities.push(Capability::SpreadRequired);
        }
        if !self.settings.failure_domains.is_empty() {
            capabilities.push(Capability::FailureDomains);
        }
        if self.settings.hosts.iter().any(|it| !it.labels.is_empty()) {
            capabilities.push(Capability::HostLabels);
        }
        if !self.settings.hosts.is_empty() {
            capabilities.push(Capability::NamedHosts);
        }
        if self.settings.inventory && self.settings.properties_schema.is_none() {
            capabilities.push(Capability::RelabelHosts);
        }
        let world = self.world.lock();
        Description {
            uid: self.uid.lock().clone(),
            name: self.settings.name.clone(),
            kind: "simulated".to_owned(),
            driver: "simulated".to_owned(),
            backend_version: String::new(),
            scope: BTreeMap::from([("simulation".to_owned(), self.settings.name.clone())]),
            capabilities,
            limits: self.limits(),
            failure_domains: world.failure_domains().into(),
            node_classes: self
                .settings
                .node_classes
                .iter()
                .map(|class| NodeClass {
                    name: class.name.clone(),
                    description: String::new(),
                    cpus: class.cpus,
                    memory_bytes: class.memory_bytes,
                    disk_bytes: None,
                })
                .collect(),
            properties_schema: self.schema.clone(),
            properties_example: None,
            warnings: Vec::new(),
        }
    }

    async fn check(&self, batch: &Batch) -> Result<()> {
        {
            let world = self.world.lock();
            let class = batch
                .request
                .group
                .as_ref()
                .map(|group| group.node_class.as_str())
                .unwrap_or_default();
            if !class.is_empty() && !world.classes.is_empty() && !world.classes.contains_key(class)
            {
                return Err(Error::new(
                    Reason::NodeClassNotFound,
                    format!("there is no node class {class:?}"),
                )
                .with_resource("node class", class));
            }
            placement::check(&world, &batch.request, self.settings.inventory)?;
            self.settings.properties(batch)?;
        }
        match batch.slots().next() {
            Some(slot) => batch.render(slot, Place::default()).await.map(drop),
            None => Ok(()),
        }
    }

    async fn list(&self) -> Result<Listing> {
        let lost_answer = self.call(Operation::List).await?;
        if lost_answer {
            Err(lost())
        } else {
            Ok(self.read(|world| world.list(None)))
        }
    }

    async fn list_cluster(&self, cluster_id: &str) -> Result<Option<Listing>> {
        let lost_answer = self.call(Operation::List).await?;
        if lost_answer {
            Err(lost())
        } else {
            Ok(Some(self.read(|world| world.list(Some(cluster_id)))))
        }
    }

    async fn of_request(&self, request_id: &str) -> Result<Vec<Found>> {
        self.reached(None)?;
        Ok(self.world.lock().of_request(request_id))
    }

    async fn by_node_id(&self, node_id: &str) -> Result<Vec<Found>> {
        self.reached(None)?;
        Ok(self.world.lock().by_node_id(node_id).into_iter().collect())
    }

    async fn create(&self, batch: &Batch) -> Vec<Outcome> {
        let (latency, fault) = self.begin(Operation::Create);
        if !latency.is_zero() {
            tokio::select! {
                () = batch.ended() => return batch.slots().map(|_| Outcome::NotStarted).collect(),
                () = tokio::time::sleep(latency) => {}
            }
        }
        let lost_answer = match self.reached(fault) {
            Ok(lost_answer) => lost_answer,
            Err(error) => {
                let outcome = match error.class() {
                    Class::Unknown => Outcome::Unknown(error),
                    Class::Cannot
                    | Class::NoCapacity
                    | Class::Credentials
                    | Class::Stale
                    | Class::Reused => Outcome::Failed(error),
                };
                return batch.slots().map(|_| outcome.clone()).collect();
            }
        };
        let outcomes = self.make(batch).await;
        self.changed.send_replace(());
        if lost_answer {
            outcomes.iter().map(|_| Outcome::Unknown(lost())).collect()
        } else {
            outcomes
        }
    }

    async fn delete(&self, target: &Target, options: &Deletion) -> Result<Deleted> {
        let lost_answer = self.call(Operation::Delete).await?;
        let stop = self
            .settings
            .stop_delay
            .min(options.grace_period.unwrap_or(Duration::MAX));
        let deleted =
            self.world
                .lock()
                .delete(target, options.retain_storage, self.settings.scaled(stop))?;
        self.changed.send_replace(());
        if lost_answer {
            return Err(lost());
        }
        Ok(match deleted {
            Some(retained_storage) => Deleted {
                state: DeprovisionState::Deprovisioning,
                retained_storage,
            },
            None => Deleted {
                state: DeprovisionState::Gone,
                retained_storage: Vec::new(),
            },
        })
    }

    async fn kept_storage(&self) -> Result<Vec<KeptStorage>> {
        let lost_answer = self.call(Operation::List).await?;
        if lost_answer {
            return Err(lost());
        }
        Ok(self.world.lock().kept_storage())
    }

    async fn delete_storage(&self, meant: &KeptStorage) -> Result<DeprovisionState> {
        let lost_answer = self.call(Operation::Delete).await?;
        self.world.lock().delete_storage(meant)?;
        if lost_answer {
            return Err(lost());
        }
        Ok(DeprovisionState::Gone)
    }

    async fn update(&self, target: &Target, change: &Change) -> Result<Node> {
        if let Change::Edit { host_labels, .. } = change
            && let Some(wanted) = host_labels
        {
            let field = "change.host_labels.labels";
            self.settings
                .check_host_labels(field, wanted, &target.cluster_id)?;
        }
        let lost_answer = self.call(Operation::Update).await?;
        let node = self.world.lock().update(target, change)?;
        if lost_answer { Err(lost()) } else { Ok(node) }
    }

    async fn logs(&self, node: &Node, request: &StreamLogsRequest) -> Result<LogStream> {
        if node.phase() == NodePhase::Pending && !request.follow || request.previous {
            return Err(drover_platform::driver::not_running(&node.node_id));
        }
        let lines = [
            format!(
                "{} of group {} in cluster {}\n",
                node.id, node.group, node.cluster_id
            ),
            format!(
                "{} ready={}\n",
                node.phase().as_str_name(),
                node.ready.unwrap_or_default()
            ),
        ];
        let skip = request
            .tail_lines
            .map_or(0, |tail| lines.len().saturating_sub(tail as usize));
        let lines = stream::iter(
            lines
                .into_iter()
                .skip(skip)
                .map(|line| Ok(line.into_bytes())),
        );
        // A simulated node writes no further output; followers wait forever.
        Ok(if request.follow {
            lines.chain(stream::pending()).boxed()
        } else {
            lines.boxed()
        })
    }

    /// Simulates a command: `echo` writes its arguments, `cat` its input, `false` exits with 1; everything else exits
    /// with 0.
    async fn exec(&self, node: &Node, start: ExecStart, input: ExecInput) -> Result<ExecOutput> {
        if node.phase() != NodePhase::Running {
            return Err(drover_platform::driver::not_running(&node.node_id));
        }
        let exit = |code| stream::once(async move { Ok(output(Output::ExitCode(code))) });
        let program = start
            .command
            .first()
            .map(String::as_str)
            .unwrap_or_default();
        let deaf = self.world.lock().deaf;
        Ok(match program {
            _ if deaf => exit(1).boxed(),
            "false" => exit(1).boxed(),
            "sleep" => {
                let seconds = start.command.get(1).and_then(|text| text.parse().ok());
                let pause = Duration::from_secs(seconds.unwrap_or_default());
                let slept = stream::once(async move {
                    tokio::time::sleep(pause).await;
                    Ok(output(Output::ExitCode(0)))
                });
                slept.boxed()
            }
            "echo" => {
                let text = format!("{}\n", start.command[1..].join(" "));
                stream::once(async move { Ok(stdout(text.into_bytes())) })
                    .chain(exit(0))
                    .boxed()
            }
            "cat" if start.stdin => {
                let open = input.take_while(|item| {
                    let closed = matches!(
                        item,
                        Ok(ExecRequest {
                            input: Some(Input::StdinClosed(_))
                        })
                    );
                    async move { !closed }
                });
                let echoed = open.filter_map(|item| async move {
                    match item {
                        Ok(ExecRequest {
                            input: Some(Input::Stdin(chunk)),
                        }) => Some(Ok(output(Output::Stdout(chunk)))),
                        Ok(_) => None,
                        Err(error) => Some(Err(error)),
                    }
                });
                echoed.chain(exit(0)).boxed()
            }
            _ => exit(0).boxed(),
        })
    }

    fn infrastructure(&self) -> Option<&dyn Infrastructure> {
        Some(self)
    }

    fn inventory(&self) -> Option<&dyn Inventory> {
        self.settings.inventory.then_some(self as &dyn Inventory)
    }

    fn addons(&self) -> Option<&dyn Addons> {
        (!self.settings.addons.kinds.is_empty()).then_some(self as &dyn Addons)
    }

    fn live(&self) -> Option<&dyn Live> {
        self.settings.push.then_some(self as &dyn Live)
    }

    async fn shutdown(&self) {
        let timers = self.timers.lock().take();
        if let Some(timers) = timers {
            timers.abort();
        }
    }
}

#[async_trait]
impl Inventory for Simulated {
    async fn hosts(&self) -> Result<Vec<Host>> {
        let lost_answer = self.call(Operation::List).await?;
        if lost_answer {
            return Err(lost());
        }
        Ok(self.world.lock().inventory())
    }
}

impl Live for Simulated {
    fn connect(&self, changes: Changes) {
        self.world.lock().connect(changes);
    }

    fn node(&self, cluster_id: &str, node_id: &str) -> Option<Node> {
        let number = number(node_id)?;
        let world = self.world.lock();
        let node = world.visible(number)?;
        (node.cluster_id() == cluster_id).then(|| world.node(number, node))
    }

    fn is_current(&self) -> bool {
        !self.world.lock().paused
    }
}

fn output(output: Output) -> ProcessOutput {
    ProcessOutput {
        output: Some(output),
    }
}

fn stdout(data: Vec<u8>) -> ProcessOutput {
    output(Output::Stdout(Chunk {
        content: Some(Content::Data(data)),
    }))
}
