//! A platform: its driver, and the state that its calls share.

use std::{
    sync::{Arc, OnceLock},
    time::Duration,
};

use drover_convert::value::{object, to_struct};
use drover_core::{Error, Reason, Result, error::Violation};
use drover_proto::platform::v1::{
    Capability, Node, NodeRole, NodeTarget, Platform as Handshake, TemplateEntry,
};
use drover_templates::worker;
use jsonschema::error::ValidationErrorKind;
use parking_lot::Mutex;
use prost::Message;
use prost_types::Struct;
use serde_json::{Map, Value};
use sha2::{Digest, Sha256};
use tokio::time::Instant;
use tokio_util::{sync::CancellationToken, task::TaskTracker};
use uuid::Uuid;

use crate::{
    addons::Addons,
    check::need,
    clock::Clock,
    driver::{Description, Driver},
    fences::Fences,
    identity::hex,
    inventory::properties::{HOST_LABELS, HostLabels},
    limits,
    locks::Locks,
    observer::Observer,
    owner::Working,
    pages::Pages,
    policy::{PROPERTIES, Policy},
    provision::{Memory, Requests},
    templates::{self, Templates},
    texts::Texts,
};

/// How long a shutdown waits for mutating calls.
const MAX_SHUTDOWN: Duration = Duration::from_secs(10);

/// Interval at which a template directory is checked. People who save a template should not have to wait longer.
const CATALOGUE_INTERVAL: Duration = Duration::from_secs(2);

/// A platform, shared by its services.
pub struct Platform {
    pub(crate) driver: Arc<dyn Driver>,
    pub(crate) templates: Templates,
    pub(crate) texts: Arc<Texts>,
    pub(crate) observer: Arc<Observer>,
    pub(crate) fences: Arc<Fences>,
    pub(crate) requests: Requests,
    pub(crate) memory: Memory,
    pub(crate) pages: Pages,
    pub(crate) working: Working,
    /// Changes of nodes, by node id: one that comes later is written later, whatever became of its caller.
    pub(crate) nodes: Locks,
    /// Mutating calls run here, so that they complete even if their caller disconnects.
    pub(crate) tasks: TaskTracker,
    pub(crate) shutdown: CancellationToken,
    /// Restrictions for callers. Unrestricted if not set.
    pub(crate) policy: OnceLock<Policy>,
    instance_id: String,
    validator: Mutex<Option<(Arc<Value>, Arc<jsonschema::Validator>)>>,
}

impl Platform {
    /// Creates a platform over a driver. Starts its background tasks; [`Platform::shutdown`] ends them.
    #[must_use]
    pub fn new(driver: Arc<dyn Driver>, templates: Templates, clock: Clock) -> Arc<Self> {
        let platform = Arc::new(Self {
            observer: Observer::new(Arc::clone(&driver), clock),
            driver,
            templates,
            texts: Arc::default(),
            fences: Fences::new(),
            requests: Requests::default(),
            memory: Memory::default(),
            pages: Pages::default(),
            working: Working::default(),
            nodes: Locks::default(),
            tasks: TaskTracker::new(),
            shutdown: CancellationToken::new(),
            policy: OnceLock::new(),
            instance_id: Uuid::new_v4().to_string(),
            validator: Mutex::new(None),
        });
        platform.start();
        platform
    }

    fn start(self: &Arc<Self>) {
        if self.driver.live().is_none() {
            let this = Arc::clone(self);
            self.background(async move { this.poll().await });
        }
        let renders = self
            .driver
            .description()
            .capabilities
            .contains(&Capability::BootstrapRender);
        if renders && worker::is_itself() {
            let texts = Arc::clone(&self.texts);
            self.background(async move {
                let tried = tokio::task::spawn_blocking(move || texts.try_out()).await;
                if let Ok(Err(error)) = tried {
                    tracing::error!("{error}; clusters whose user data is rendered wait");
                }
            });
        }
        if let Templates::Catalogue(catalogue) = &self.templates {
            let catalogue = Arc::clone(catalogue);
            self.background(async move {
                loop {
                    tokio::time::sleep(CATALOGUE_INTERVAL).await;
                    let catalogue = Arc::clone(&catalogue);
                    let reload =
                        tokio::task::spawn_blocking(move || catalogue.reload_if_changed()).await;
                    if let Ok(drover_templates::Reload::Refused(why)) = reload {
                        tracing::warn!("{why}");
                    }
                }
            });
        }
    }

    fn background(&self, work: impl Future<Output = ()> + Send + 'static) {
        let shutdown = self.shutdown.clone();
        self.tasks.spawn(async move {
            tokio::select! {
                () = shutdown.cancelled() => {}
                () = work => {}
            }
        });
    }

    async fn poll(self: Arc<Self>) {
        loop {
            let read = Instant::now();
            if let Err(error) = self.observer.read().await {
                tracing::warn!(%error, "the backend could not be read");
            }
            let usual = limits::min_poll_interval(&self.driver.description().limits);
            while !self.observer.pause(read, usual).await {
                match self.observer.look().await {
                    Ok(true) => {}
                    Ok(false) => break,
                    Err(error) => {
                        tracing::debug!(%error, "what is on its way cannot be read alone");
                        break;
                    }
                }
            }
        }
    }

    /// Ends watches, waits for mutating calls (at most 10 s), and shuts down the driver.
    pub async fn shutdown(&self) {
        self.shutdown.cancel();
        self.tasks.close();
        if tokio::time::timeout(MAX_SHUTDOWN, self.tasks.wait())
            .await
            .is_err()
        {
            tracing::warn!("calls were still under way at the end of the shutdown");
        }
        self.driver.shutdown().await;
    }

    /// The backend.
    #[must_use]
    pub fn driver(&self) -> &dyn Driver {
        &*self.driver
    }

    /// The driver's description, extended by the capabilities of this layer.
    #[must_use]
    pub fn description(&self) -> Description {
        let mut description = self.driver.description();
        for capability in [Capability::Watch, Capability::Fence] {
            if !description.capabilities.contains(&capability) {
                description.capabilities.push(capability);
            }
        }
        if description
            .capabilities
            .contains(&Capability::BootstrapRender)
        {
            description.capabilities.push(Capability::BootstrapParse);
        }
        if self.driver.infrastructure().is_some() {
            description.capabilities.push(Capability::Infrastructure);
        }
        if self.driver.inventory().is_some() {
            description.capabilities.push(Capability::Inventory);
        }
        if self.driver.addons().is_some() {
            description.capabilities.push(Capability::Addons);
        }
        description.capabilities.sort_unstable();
        description.capabilities.dedup();
        description
    }

    /// The handshake response.
    #[must_use]
    pub fn handshake(&self) -> Handshake {
        let description = self.description();
        let free = |value: Option<Arc<Value>>| value.and_then(|v| v.as_object().map(to_struct));
        let mut warnings = description.warnings;
        warnings.extend(self.templates.warning());
        let mut handshake = Handshake {
            uid: description.uid,
            instance_id: self.instance_id.clone(),
            name: description.name,
            kind: description.kind,
            driver: description.driver,
            version: env!("CARGO_PKG_VERSION").to_owned(),
            backend_version: description.backend_version,
            scope: description.scope,
            capabilities: description
                .capabilities
                .into_iter()
                .map(Into::into)
                .collect(),
            limits: Some(description.limits),
            failure_domains: description.failure_domains.to_vec(),
            node_classes: description.node_classes,
            templates: self.template_entries(),
            properties_schema: free(description.properties_schema),
            properties_example: free(description.properties_example),
            etag: String::new(),
            addon_kinds: self.addon_kinds(),
            warnings,
        };
        handshake.etag = hex(&Sha256::digest(handshake.encode_to_vec())[..16]);
        handshake
    }

    /// The templates of nodes, and those of addons that nodes have no part in.
    fn template_entries(&self) -> Vec<TemplateEntry> {
        let mut entries = self.templates.entries();
        let addons = self.driver.addons().and_then(Addons::templates);
        for entry in addons.into_iter().flat_map(|catalogue| catalogue.entries()) {
            let is_same = |other: &TemplateEntry| other.addon && other.template == entry.template;
            if entry.addon && !entries.iter().any(is_same) {
                entries.push(templates::entry(&entry));
            }
        }
        entries
    }

    pub(crate) fn etag(&self) -> String {
        self.handshake().etag
    }

    pub(crate) fn instance_id(&self) -> &str {
        &self.instance_id
    }

    /// Checks that a call is addressed to this backend and this run of the server.
    pub(crate) fn meant(&self, uid: &str, uid_required: bool, instance: &str) -> Result<()> {
        if uid.is_empty() && uid_required {
            return Err(Error::invalid("expected_platform_uid", "is required"));
        }
        let own = self.driver.description().uid;
        if !uid.is_empty() && uid != own {
            return Err(Error::new(
                Reason::PlatformMismatch,
                format!("this is platform {own}, not the one meant"),
            )
            .with_metadata("platform_uid", own));
        }
        if !instance.is_empty() && instance != self.instance_id {
            return Err(Error::new(
                Reason::PlatformRestarted,
                "the platform server was started again since",
            )
            .with_metadata("instance_id", &self.instance_id));
        }
        Ok(())
    }

    /// Validates properties against the policy and the driver's JSON Schema.
    pub(crate) fn check_properties(&self, properties: Option<&Struct>) -> Result<()> {
        let properties =
            properties.map_or(Ok(Map::new()), |properties| object(PROPERTIES, properties))?;
        none_of(self.violations(properties)?)
    }

    /// Validates labels of hosts that a change of a node brings, by the rules of the property.
    pub(crate) fn check_host_labels(&self, labels: &HostLabels) -> Result<()> {
        need(&self.driver.description(), Capability::RelabelHosts)?;
        let labels = labels.iter();
        let labels = labels.map(|(key, text)| (key.clone(), text.clone().into()));
        let labels = Value::Object(labels.collect());
        let field = format!("{PROPERTIES}.{HOST_LABELS}");
        let found = self.violations(Map::from_iter([(HOST_LABELS.to_owned(), labels)]))?;
        // What else a group must have is none of this.
        let found = found.into_iter().filter_map(|found| {
            let rest = found.field.strip_prefix(&field)?;
            Some(Violation {
                field: format!("change.host_labels.labels{rest}"),
                ..found
            })
        });
        none_of(found.collect())
    }

    /// What policy or schema refuse of properties.
    fn violations(&self, properties: Map<String, Value>) -> Result<Vec<Violation>> {
        if let Some(policy) = self.policy.get() {
            let refused = policy.violations(&properties);
            if !refused.is_empty() {
                return Ok(refused);
            }
        }
        let Some(schema) = self.driver.description().properties_schema else {
            return Ok(Vec::new());
        };
        let validator = self.validator(&schema)?;
        let properties = Value::Object(properties);
        let violations = validator
            .iter_errors(&properties)
            .flat_map(|error| violated(&schema, &error));
        Ok(violations.collect())
    }

    fn validator(&self, schema: &Arc<Value>) -> Result<Arc<jsonschema::Validator>> {
        let mut cached = self.validator.lock();
        if let Some((known, validator)) = &*cached
            && Arc::ptr_eq(known, schema)
        {
            return Ok(Arc::clone(validator));
        }
        let validator = jsonschema::validator_for(schema).map_err(|error| {
            Error::internal(format!("the driver's properties schema is wrong: {error}"))
        })?;
        let validator = Arc::new(validator);
        *cached = Some((Arc::clone(schema), Arc::clone(&validator)));
        Ok(validator)
    }

    /// Finds the node that a node-access call refers to.
    pub(crate) async fn find(&self, target: &NodeTarget) -> Result<Node> {
        let found = self.driver.by_node_id(&target.node_id).await?;
        if found.is_empty() {
            return Err(Error::not_found("node", &target.node_id));
        }
        let Some(node) = found
            .into_iter()
            .map(|f| f.node)
            .find(|node| node.cluster_id == target.cluster_id)
        else {
            return Err(Error::new(
                Reason::NodeNotInCluster,
                "the node belongs to another cluster",
            ));
        };
        match &target.expected_slot {
            Some(slot) if node.slot.as_ref() != Some(slot) => Err(Error::new(
                Reason::SlotMismatch,
                "the node has another slot than expected",
            )),
            _ => Ok(node),
        }
    }
}

fn none_of(violations: Vec<Violation>) -> Result<()> {
    if violations.is_empty() {
        return Ok(());
    }
    Err(Error::violations(violations))
}

/// What an error of validation says of which fields. Properties may contain confidential values, so values are not
/// repeated.
fn violated(schema: &Value, error: &jsonschema::ValidationError<'_>) -> Vec<Violation> {
    let at = format!("{PROPERTIES}{}", path(error.instance_path().as_str()));
    let ValidationErrorKind::AdditionalProperties { unexpected } = error.kind() else {
        return vec![Violation {
            field: at,
            description: error.masked().to_string(),
        }];
    };
    let place = error.schema_path().as_str();
    let parent = place.rsplit_once('/').map_or("", |(parent, _)| parent);
    let known = schema.pointer(&format!("{parent}/properties"));
    let known: Vec<&str> = known
        .and_then(Value::as_object)
        .map_or_else(Vec::new, |known| known.keys().map(String::as_str).collect());
    let unknown = unexpected.iter().map(|name| {
        let instead = match drover_core::name::closest(name, known.iter().copied()) {
            Some(name) => format!(", did you mean `{name}`?"),
            None if known.is_empty() => String::new(),
            None => format!("; there are: {}", known.join(", ")),
        };
        Violation {
            field: format!("{at}.{name}"),
            description: format!("no such property{instead}"),
        }
    });
    unknown.collect()
}

/// Converts a JSON pointer to a field path.
fn path(pointer: &str) -> String {
    let parts = pointer
        .split('/')
        .skip(1)
        .map(|part| part.replace("~1", "/").replace("~0", "~"));
    parts
        .map(|part| {
            if part.parse::<usize>().is_ok() {
                format!("[{part}]")
            } else {
                format!(".{part}")
            }
        })
        .collect()
}

/// Converts a validated role. `None` if it is unspecified.
pub(crate) fn role(value: i32) -> Option<NodeRole> {
    NodeRole::try_from(value)
        .ok()
        .filter(|role| *role != NodeRole::Unspecified)
}
