//! The calls to Compute Engine, all through one gate.

use std::time::Duration;

use drover_core::{Error, Reason, Result};
use google_cloud_compute_v1::{
    client::{Images, Instances, MachineTypes, ZoneOperations, Zones},
    model::{Instance, InstancesSetLabelsRequest, Operation, Zone, operation::Status},
};
use google_cloud_gax::retry_policy::NeverRetry;
use http::{HeaderMap, HeaderName, HeaderValue};
use tokio::time::{Instant, sleep, timeout, timeout_at};

use super::{Settings, credentials, error, machine};
use crate::cloud::{Action, Gate, Lane, each_once, traced};

/// Maximum number of concurrent calls of each kind: reads and changes.
const CONCURRENT: usize = 64;
/// Maximum number of concurrent waits for operations. The API answers them only when the operation ends.
const WAITS: usize = 512;
/// Page size: the maximum of the API.
const PAGE: u32 = 500;
/// The fields of a list beside the machines.
const LIST: &[&str] = &["nextPageToken", "warning"];
/// Initial and maximum interval between polls of an operation.
const POLL: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(2));
/// Maximum number of consecutive failed polls of an operation.
const POLL_FAILURES: u32 = 5;
/// Maximum size of console output; the API keeps no more.
const MAX_CONSOLE: usize = 1 << 20;

/// Compute Engine in one project.
pub(super) struct Client {
    project: String,
    call_timeout: Duration,
    gate: Gate,
    instances: Instances,
    /// For lists of machines, whose answers hold [`machine::FIELDS`] only.
    listed: Instances,
    /// The same for a single machine.
    got: Instances,
    operations: ZoneOperations,
    zones: Zones,
    machine_types: MachineTypes,
    images: Images,
}

macro_rules! service {
    ($kind:ty, $settings:expr, $credentials:expr) => {
        service!($kind, $settings, $credentials, HeaderMap::new())
    };
    ($kind:ty, $settings:expr, $credentials:expr, $headers:expr) => {{
        let mut builder = <$kind>::builder()
            .with_credentials($credentials.clone())
            // A single attempt: the gate retries throttled calls, and the callers decide about all others.
            .with_retry_policy(NeverRetry)
            .with_extension($headers)
            .with_attempt_timeout($settings.common.call_timeout());
        if let Some(endpoint) = &$settings.endpoint {
            builder = builder.with_endpoint(endpoint);
        }
        builder.build().await.map_err(|error| {
            Error::invalid(
                "endpoint",
                format!("Compute Engine cannot be reached through it: {error}"),
            )
        })?
    }};
}

impl Client {
    pub(super) async fn open(settings: &Settings) -> Result<Self> {
        let credentials = credentials::open(settings).await?;
        Ok(Self {
            project: settings.project.clone(),
            call_timeout: settings.common.call_timeout(),
            gate: Gate::with_waits(settings.common.calls_per_second, CONCURRENT, WAITS),
            instances: service!(Instances, settings, credentials),
            listed: service!(Instances, settings, credentials, mask("items.", LIST)?),
            got: service!(Instances, settings, credentials, mask("", &[])?),
            operations: service!(ZoneOperations, settings, credentials),
            zones: service!(Zones, settings, credentials),
            machine_types: service!(MachineTypes, settings, credentials),
            images: service!(Images, settings, credentials),
        })
    }

    async fn call<T, F, Fut>(&self, what: &str, call: F) -> Result<T>
    where
        T: Send,
        F: Fn() -> Fut + Send + Sync,
        Fut: Future<Output = google_cloud_gax::Result<T>> + Send,
    {
        self.gate.call_as(action(what), || once(what, call())).await
    }

    /// A read of one zone, which may be silent while others answer.
    async fn call_within<T, F, Fut>(&self, what: &str, patience: Duration, call: F) -> Result<T>
    where
        T: Send,
        F: Fn() -> Fut + Send + Sync,
        Fut: Future<Output = google_cloud_gax::Result<T>> + Send,
    {
        self.gate
            .call_as(action(what), || async {
                timeout(patience, once(what, call()))
                    .await
                    .unwrap_or_else(|_| {
                        let error = Error::new(
                            Reason::DeadlineExceeded,
                            format!("Compute Engine did not answer within {patience:?}"),
                        );
                        Err(error.context(what))
                    })
            })
            .await
    }

    pub(super) async fn zones(&self, region: &str) -> Result<Vec<Zone>> {
        let mut zones = Vec::new();
        let mut token = None;
        loop {
            let page = self
                .call("zones.list", || {
                    self.zones
                        .list()
                        .set_project(&self.project)
                        .set_or_clear_page_token(token.clone())
                        .send()
                })
                .await?;
            zones.extend(page.items);
            token = page.next_page_token.filter(|token| !token.is_empty());
            if token.is_none() {
                break;
            }
        }
        let of_region = |zone: &Zone| machine::last(zone.region.as_deref()) == region;
        zones.retain(of_region);
        Ok(zones)
    }

    /// All machines of a zone that match the filter, from all pages; `patience` for each of them.
    pub(super) async fn list(
        &self,
        zone: &str,
        filter: Option<&str>,
        patience: Duration,
    ) -> Result<Vec<Instance>> {
        let mut instances = Vec::new();
        let mut token: Option<String> = None;
        loop {
            let page = self
                .call_within("instances.list", patience, || {
                    self.listed
                        .list()
                        .set_project(&self.project)
                        .set_zone(zone)
                        .set_max_results(PAGE)
                        .set_or_clear_filter(filter)
                        .set_or_clear_page_token(token.clone())
                        .send()
                })
                .await?;
            if let Some(warning) = page.warning
                && let Some(code) = warning.code
                && code.name() != Some("NO_RESULTS_ON_PAGE")
            {
                let message = warning.message.unwrap_or_default();
                return Err(Error::unavailable(format!(
                    "the machines of zone {zone} cannot all be listed: {} {message}",
                    code.name().unwrap_or_default()
                )));
            }
            instances.extend(page.items);
            let next = page.next_page_token.filter(|token| !token.is_empty());
            if next.is_some() && next == token {
                return Err(Error::unavailable(format!(
                    "the list of machines of zone {zone} does not end"
                )));
            }
            token = next;
            if token.is_none() {
                return Ok(each_once(instances, |instance| instance.id));
            }
        }
    }

    /// The machine with this id, if it is in the zone.
    pub(super) async fn find(
        &self,
        zone: &str,
        id: &str,
        patience: Duration,
    ) -> Result<Vec<Instance>> {
        let got = self.get_within(zone, id, patience).await?;
        Ok(got.into_iter().collect())
    }

    /// Reads a machine by name or id. `None` if it does not exist.
    pub(super) async fn get(&self, zone: &str, name: &str) -> Result<Option<Instance>> {
        self.get_within(zone, name, self.call_timeout).await
    }

    async fn get_within(
        &self,
        zone: &str,
        name: &str,
        patience: Duration,
    ) -> Result<Option<Instance>> {
        let got = self
            .call_within("instances.get", patience, || {
                self.got
                    .get()
                    .set_project(&self.project)
                    .set_zone(zone)
                    .set_instance(name)
                    .send()
            })
            .await;
        absent(got)
    }

    pub(super) async fn insert(
        &self,
        zone: &str,
        request_id: &str,
        body: &Instance,
    ) -> Result<Operation> {
        let what = "instances.insert";
        let insert = || {
            self.instances
                .insert()
                .set_project(&self.project)
                .set_zone(zone)
                .set_request_id(request_id)
                .set_body(body.clone())
                .send()
        };
        self.gate
            .create_as(action(what), || once(what, insert()))
            .await
    }

    /// Starts the deletion of a machine by its id. `None` if it does not exist.
    pub(super) async fn delete(
        &self,
        zone: &str,
        id: &str,
        request_id: &str,
    ) -> Result<Option<Operation>> {
        let deleted = self
            .call("instances.delete", || {
                self.instances
                    .delete()
                    .set_project(&self.project)
                    .set_zone(zone)
                    .set_instance(id)
                    .set_request_id(request_id)
                    .send()
            })
            .await;
        absent(deleted)
    }

    pub(super) async fn set_labels(
        &self,
        zone: &str,
        id: &str,
        body: &InstancesSetLabelsRequest,
    ) -> Result<Operation> {
        self.call("instances.setLabels", || {
            self.instances
                .set_labels()
                .set_project(&self.project)
                .set_zone(zone)
                .set_instance(id)
                .set_body(body.clone())
                .send()
        })
        .await
    }

    /// Waits until an operation is done. It may have failed.
    ///
    /// # Errors
    /// Of class `Unknown` if the operation is not done in time.
    pub(super) async fn ended(
        &self,
        mut operation: Operation,
        zone: &str,
        within: Duration,
    ) -> Result<Operation> {
        let name = operation.name.clone().unwrap_or_default();
        let deadline = Instant::now() + within;
        let (mut pause, longest) = POLL;
        let mut failures = 0;
        loop {
            if operation.status == Some(Status::Done) {
                return Ok(operation);
            }
            let look = self.call("zoneOperations.wait", || {
                self.operations
                    .wait()
                    .set_project(&self.project)
                    .set_zone(zone)
                    .set_operation(&name)
                    .send()
            });
            match timeout_at(deadline, look).await {
                Err(_) => {
                    return Err(Error::new(
                        Reason::DeadlineExceeded,
                        format!("operation {name} in zone {zone} has not ended within {within:?}"),
                    ));
                }
                Ok(Ok(seen)) => {
                    operation = seen;
                    failures = 0;
                }
                // A poll is read-only, so a failed one is retried; the outcome of the operation stays unknown.
                Ok(Err(error)) => {
                    failures += 1;
                    let waits = error.reason() == Reason::DeadlineExceeded;
                    if failures >= POLL_FAILURES && !waits {
                        return Err(Error::unavailable(format!(
                            "the end of operation {name} in zone {zone} is not known: {error}"
                        )));
                    }
                }
            }
            if operation.status != Some(Status::Done) {
                // Usually the API itself delays the response (long poll); the pause limits the rate where it does not.
                sleep(pause).await;
                pause = (pause * 2).min(longest);
            }
        }
    }

    /// The output of a machine's first serial port.
    pub(super) async fn console(&self, zone: &str, id: &str) -> Result<Vec<u8>> {
        let mut text = Vec::new();
        let mut start = 0;
        loop {
            let output = self
                .call("instances.getSerialPortOutput", || {
                    self.instances
                        .get_serial_port_output()
                        .set_project(&self.project)
                        .set_zone(zone)
                        .set_instance(id)
                        .set_port(1)
                        .set_start(start)
                        .send()
                })
                .await?;
            let contents = output.contents.unwrap_or_default();
            text.extend_from_slice(contents.as_bytes());
            let next = output.next.unwrap_or(start);
            if contents.is_empty() || next <= start || text.len() >= MAX_CONSOLE {
                return Ok(text);
            }
            start = next;
        }
    }

    /// Checks that a machine type is available in a zone.
    pub(super) async fn check_machine_type(&self, zone: &str, name: &str) -> Result<()> {
        self.call("machineTypes.get", || {
            self.machine_types
                .get()
                .set_project(&self.project)
                .set_zone(zone)
                .set_machine_type(name)
                .send()
        })
        .await
        .map(|_| ())
    }

    /// Checks that an image can be read. Other paths are validated by the insert.
    pub(super) async fn check_image(&self, path: &str) -> Result<()> {
        let Some((project, image)) = path
            .strip_prefix("projects/")
            .and_then(|path| path.split_once("/global/images/"))
        else {
            return Ok(());
        };
        match image.strip_prefix("family/") {
            Some(family) => self
                .call("images.getFromFamily", || {
                    self.images
                        .get_from_family()
                        .set_project(project)
                        .set_family(family)
                        .send()
                })
                .await
                .map(|_| ()),
            None => self
                .call("images.get", || {
                    self.images
                        .get()
                        .set_project(project)
                        .set_image(image)
                        .send()
                })
                .await
                .map(|_| ()),
        }
    }
}

/// The header that limits answers to the fields of machines under this prefix and to others
/// (<https://cloud.google.com/apis/docs/system-parameters>). The client library has no parameter for it.
fn mask(prefix: &str, others: &[&str]) -> Result<HeaderMap> {
    let fields = machine::FIELDS.iter();
    let fields = fields.map(|field| format!("{prefix}{field}"));
    let all: Vec<String> = fields
        .chain(others.iter().map(|field| (*field).to_owned()))
        .collect();
    let value = HeaderValue::try_from(all.join(","))
        .map_err(|error| Error::internal(format!("the fields are no header: {error}")))?;
    Ok(HeaderMap::from_iter([(
        HeaderName::from_static("x-goog-fieldmask"),
        value,
    )]))
}

/// The limits of a method.
fn action(what: &str) -> Action<'_> {
    let method = what.rsplit('.').next().unwrap_or_default();
    let lane = match method {
        "wait" => Lane::Wait,
        "insert" | "delete" | "setLabels" => Lane::Change,
        _ => Lane::Read,
    };
    Action { name: what, lane }
}

async fn once<T>(what: &str, call: impl Future<Output = google_cloud_gax::Result<T>>) -> Result<T> {
    let call = async { call.await.map_err(|failure| error::of_call(what, &failure)) };
    traced("Compute", what, call).await
}

/// Converts "not found" to `None`.
fn absent<T>(outcome: Result<T>) -> Result<Option<T>> {
    match outcome {
        Ok(there) => Ok(Some(there)),
        Err(error)
            if error.reason() == Reason::NotFound && error.message().contains("/instances/") =>
        {
            Ok(None)
        }
        Err(error) => Err(error),
    }
}
