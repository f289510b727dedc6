//! DigitalOcean API v2, as far as droplets need it: droplets and their actions, tags, sizes, regions, images, SSH keys,
//! VPCs and the account.
//!
//! Operations are called `droplets.create`, `droplets.list`, `droplets.get`, `droplets.delete`,
//! `droplets.delete-by-tag`, `droplets.act`, `droplets.actions`, `tags.create`, `tags.list`, `tags.get`, `tags.delete`,
//! `tags.tag`, `tags.untag`, `account.get`, `keys.list`, `keys.get`, `keys.create`, `regions.list`, `sizes.list`,
//! `images.list`, `images.get`, `vpcs.list`, `vpcs.get`, `actions.get`, `firewalls.list`, `firewalls.create`.
//!
//! As in the real API, there is no idempotency token: two identical create requests create two droplets. A request to
//! destroy a droplet or to power it on or off is refused while another event of the droplet is pending. A tag stays in
//! the account after the last of its resources, until it is deleted. A create request that fails later
//! ([`Fault::FailLater`](crate::Fault::FailLater)) is accepted; then its actions end errored, and its droplets are gone.

mod catalogue;
mod create;
mod droplet;
mod firewall;
mod read;
mod state;
mod write;

use std::{collections::BTreeMap, io, sync::Arc, time::Duration};

use parking_lot::Mutex;
use serde_json::{Value, json};

use crate::{
    server::{Answer, Api, Call, Emulator, Refusal},
    world::{Clock, Hand, Ledger, Machine, Made, Settings},
};

pub use state::SshKey;
use state::State;

/// Default access token, valid unless the settings name others.
pub const TOKEN: &str = "dop_v1_emulator";
/// DigitalOcean's rate limit in calls per hour.
pub const HOURLY: u64 = 5000;
/// Maximum page size, in elements.
const MAX_PAGE: usize = 200;
const DEFAULT_PAGE: usize = 20;

/// Settings of the emulator.
#[derive(Clone, Debug)]
pub struct DigitalOceanSettings {
    /// Common settings. `quota` is the account's droplet limit; `None`: 10,000.
    pub common: Settings,
    /// Tokens with full access.
    pub tokens: Vec<String>,
    /// Tokens with read-only access.
    pub read_only_tokens: Vec<String>,
    /// Calls per hour in a sliding window. `None`: no limit; the headers then report that none of it is used.
    pub hourly_limit: Option<u64>,
    /// SSH keys of the account.
    pub keys: Vec<SshKey>,
    /// Private images (snapshots) as id and name.
    pub snapshots: Vec<(u64, String)>,
    /// UUID of the team that the tokens are of.
    pub team: String,
    /// Time after which a new droplet has its tags: they are applied "to the Droplet after it is created"
    /// (<https://docs.digitalocean.com/reference/api/reference/droplets/#droplets_create>).
    pub tag_delay: Duration,
    /// Another account behind the same API, with its own tokens and droplets.
    pub other: Option<Box<Self>>,
}

impl Default for DigitalOceanSettings {
    fn default() -> Self {
        Self {
            common: Settings::default(),
            tokens: vec![TOKEN.to_owned()],
            read_only_tokens: Vec::new(),
            hourly_limit: None,
            keys: vec![SshKey {
                id: 289_794,
                name: "mwas".to_owned(),
                fingerprint: "3b:16:e4:bf:8b:00:8b:b8:59:8c:a9:d3:f0:19:fa:45".to_owned(),
            }],
            snapshots: vec![(63_663_980, "golden".to_owned())],
            team: "5df3e3004a17e242b7c20ca6c9fc25b701a47ece".to_owned(),
            tag_delay: Duration::ZERO,
            other: None,
        }
    }
}

/// A running emulator.
pub type DigitalOcean = Emulator<World>;

/// State of the emulated API.
pub struct World {
    settings: DigitalOceanSettings,
    clock: Arc<Clock>,
    ledger: Ledger,
    state: Mutex<State>,
    other: Option<Box<Self>>,
}

impl Emulator<World> {
    /// Serves the API on the settings' port of 127.0.0.1. Must be called within a tokio runtime.
    ///
    /// # Errors
    /// Returns the error of binding the port.
    pub async fn start(settings: DigitalOceanSettings) -> io::Result<Self> {
        let clock = Arc::new(Clock::default());
        let common = settings.common.clone();
        let world = World::new(settings, &clock);
        Self::serve(Arc::new(world), clock, &common).await
    }

    /// Adds droplets of another owner in all regions; they are running and visible immediately.
    pub fn add_foreign(&self, count: usize) {
        self.api().add_foreign(count);
    }

    /// Rejects every token while `expired` is true.
    pub fn expire_credentials(&self, expired: bool) {
        self.api().state.lock().expired = expired;
    }

    /// Revokes a token.
    pub fn revoke(&self, token: &str) {
        self.api().state.lock().revoked.push(token.to_owned());
    }

    /// Locks or unlocks a droplet, as an administrator of the provider would. Returns false if there is no such
    /// droplet.
    pub fn lock(&self, id: &str, locked: bool) -> bool {
        self.api().lock(id, locked)
    }

    /// Returns the id of the account's default VPC in a region.
    #[must_use]
    pub fn default_vpc(&self, region: &str) -> Option<String> {
        self.api().state.lock().default_vpc(region)
    }

    /// Names by id of all droplets ever created by requests, including deleted ones. A name tells which slot a droplet
    /// is for.
    #[must_use]
    pub fn names(&self) -> BTreeMap<String, String> {
        let state = self.api().state.lock();
        let names = state.names.iter();
        names
            .map(|(id, name)| (id.to_string(), name.clone()))
            .collect()
    }

    /// Whether a TCP port of a droplet can be reached from everywhere.
    #[must_use]
    pub fn lets_in(&self, id: &str, port: u16) -> bool {
        self.api().lets_in(id, port)
    }

    /// The ledger of the other account. Empty if there is none.
    #[must_use]
    pub fn made_elsewhere(&self) -> Vec<Made> {
        self.api()
            .other
            .as_ref()
            .map_or_else(Vec::new, |other| other.ledger())
    }

    /// Tags of the account as first written, with the number of droplets that have them.
    #[must_use]
    pub fn tags(&self) -> Vec<(String, usize)> {
        self.api().tags_with_counts()
    }
}

fn operation(call: &Call) -> &'static str {
    let segments = call.segments();
    let parts: Vec<&str> = segments.iter().map(String::as_str).collect();
    match (call.method.as_str(), parts.as_slice()) {
        ("GET", ["v2", "account"]) => "account.get",
        ("GET", ["v2", "account", "keys"]) => "keys.list",
        ("POST", ["v2", "account", "keys"]) => "keys.create",
        ("GET", ["v2", "account", "keys", _]) => "keys.get",
        ("GET", ["v2", "actions", _]) => "actions.get",
        ("GET", ["v2", "droplets"]) => "droplets.list",
        ("POST", ["v2", "droplets"]) => "droplets.create",
        ("DELETE", ["v2", "droplets"]) => "droplets.delete-by-tag",
        ("GET", ["v2", "droplets", _]) => "droplets.get",
        ("DELETE", ["v2", "droplets", _]) => "droplets.delete",
        ("GET", ["v2", "droplets", _, "actions"]) => "droplets.actions",
        ("POST", ["v2", "droplets", _, "actions"]) => "droplets.act",
        ("GET", ["v2", "images"]) => "images.list",
        ("GET", ["v2", "images", _]) => "images.get",
        ("GET", ["v2", "firewalls"]) => "firewalls.list",
        ("POST", ["v2", "firewalls"]) => "firewalls.create",
        ("GET", ["v2", "regions"]) => "regions.list",
        ("GET", ["v2", "sizes"]) => "sizes.list",
        ("GET", ["v2", "tags"]) => "tags.list",
        ("POST", ["v2", "tags"]) => "tags.create",
        ("GET", ["v2", "tags", _]) => "tags.get",
        ("DELETE", ["v2", "tags", _]) => "tags.delete",
        ("POST", ["v2", "tags", _, "resources"]) => "tags.tag",
        ("DELETE", ["v2", "tags", _, "resources"]) => "tags.untag",
        ("GET", ["v2", "vpcs"]) => "vpcs.list",
        ("GET", ["v2", "vpcs", _]) => "vpcs.get",
        _ => "?",
    }
}

impl Api for World {
    fn name(&self, call: &Call) -> (String, Vec<(String, String)>) {
        let operation = operation(call);
        let mut parameters = call.query.clone();
        if let Some(id) = call.segments().get(2) {
            parameters.push(("id".to_owned(), id.clone()));
        }
        if let Ok(Value::Object(body)) = call.json() {
            let shown = body
                .into_iter()
                .filter(|(key, _)| key != "user_data" && key != "public_key");
            parameters.extend(shown.map(|(key, value)| match value {
                Value::String(text) => (key, text),
                other => (key, other.to_string()),
            }));
        }
        (operation.to_owned(), parameters)
    }

    fn handle(&self, operation: &str, call: &Call) -> Answer {
        let other = self.other.as_deref();
        if let Some(other) = other.filter(|other| other.knows(token(call))) {
            return other.handle(operation, call);
        }
        if let Err(refusal) = self.authenticate(operation, call) {
            return self.headers(refusal);
        }
        if let Err(wait) = self.spend() {
            return self.refuse(
                operation,
                call,
                &Refusal::Throttle {
                    retry_after: Some(wait),
                },
            );
        }
        let parts = call.segments();
        let id = parts.get(2).map(String::as_str).unwrap_or_default();
        let answer = match operation {
            "account.get" => Ok(self.account()),
            "keys.list" | "images.list" | "regions.list" | "sizes.list" | "tags.list"
            | "vpcs.list" | "firewalls.list" | "droplets.list" | "droplets.actions" => {
                self.list(operation, call, id)
            }
            "firewalls.create" => self.create_firewall(call),
            "keys.get" => self.key(parts.get(3).map(String::as_str).unwrap_or_default()),
            "images.get" => self.image(id),
            "tags.get" => self.tag(id),
            "vpcs.get" => self.vpc(id),
            "actions.get" => self.action(id),
            "droplets.get" => self.droplet(id),
            "droplets.create" => self.create(call, false),
            "droplets.delete" => self.delete(id),
            "droplets.act" => self.act(id, call),
            "tags.create" => self.create_tag(call),
            "tags.tag" => self.tag_resources(id, call, true),
            "tags.untag" => self.tag_resources(id, call, false),
            "tags.delete" => self.delete_tag(id),
            // Affects resources of other owners, so a driver that handles only its own never calls it.
            "droplets.delete-by-tag" | "keys.create" => Err(error(
                403,
                "forbidden",
                "this emulator does not do that: it would hit what is not the caller's",
            )),
            _ => Err(not_found()),
        };
        self.headers(answer.unwrap_or_else(|refused| refused))
    }

    fn refuse(&self, operation: &str, call: &Call, refusal: &Refusal) -> Answer {
        let answer = match refusal {
            Refusal::Error {
                status,
                code,
                message,
            } => error(*status, code, message),
            Refusal::Throttle { retry_after } => {
                let wait = retry_after.unwrap_or(Duration::from_secs(1));
                let reset = self.clock.now().as_second() + wait.as_secs_f64().ceil() as i64;
                return error(429, "too_many_requests", "API Rate limit exceeded.")
                    .header("ratelimit-limit", self.limit().to_string())
                    .header("ratelimit-remaining", "0")
                    .header("ratelimit-reset", reset.to_string())
                    .header("retry-after", wait.as_secs_f64().ceil().to_string());
            }
            Refusal::Later { .. } if operation == "droplets.create" => {
                self.create(call, true).unwrap_or_else(|refused| refused)
            }
            Refusal::Later { code, message } => error(500, code, message),
            Refusal::NoCapacity => unprocessable("Size is not available in this region."),
            Refusal::Quota => {
                unprocessable("creating this/these droplet(s) will exceed your droplet limit")
            }
        };
        self.headers(answer)
    }

    fn machines(&self) -> Vec<Machine> {
        self.all_machines()
    }

    fn ledger(&self) -> Vec<Made> {
        self.settle();
        self.ledger.all()
    }

    fn by_hand(&self, id: &str, hand: &Hand) -> bool {
        self.act_by_hand(id, hand)
    }
}

impl World {
    fn new(mut settings: DigitalOceanSettings, clock: &Arc<Clock>) -> Self {
        let other = settings.other.take();
        Self {
            state: Mutex::new(State::new()),
            ledger: Ledger::default(),
            clock: Arc::clone(clock),
            other: other.map(|other| Box::new(Self::new(*other, clock))),
            settings,
        }
    }

    /// Whether a token is of this account.
    fn knows(&self, token: &str) -> bool {
        let settings = &self.settings;
        let mut tokens = settings.tokens.iter().chain(&settings.read_only_tokens);
        tokens.any(|known| known == token)
    }

    fn authenticate(&self, operation: &str, call: &Call) -> Result<(), Answer> {
        let token = token(call);
        let known = |tokens: &[String]| tokens.iter().any(|known| known == token);
        let reads = call.method == http::Method::GET;
        let state = self.state.lock();
        if state.expired || known(&state.revoked) {
            return Err(unauthenticated());
        }
        drop(state);
        if known(&self.settings.tokens) || (reads && known(&self.settings.read_only_tokens)) {
            return Ok(());
        }
        if known(&self.settings.read_only_tokens) {
            return Err(error(
                403,
                "Forbidden",
                &format!("You are missing the required permission for {operation}"),
            ));
        }
        Err(unauthenticated())
    }

    fn limit(&self) -> u64 {
        self.settings.hourly_limit.unwrap_or(HOURLY)
    }

    /// Adds the headers that every response has.
    fn headers(&self, answer: Answer) -> Answer {
        let (remaining, reset) = self.remaining();
        answer
            .header("ratelimit-limit", self.limit().to_string())
            .header("ratelimit-remaining", remaining.to_string())
            .header("ratelimit-reset", reset.to_string())
            .header("x-request-id", uuid::Uuid::new_v4().to_string())
    }

    /// Returns the page that the query asks for.
    fn page<T>(
        &self,
        call: &Call,
        name: &str,
        all: &[T],
        show: impl Fn(&T) -> Value,
    ) -> Result<Answer, Answer> {
        let number = |key: &str, default: usize, most: usize| match call.query(key) {
            None => Ok(default),
            Some(text) => text
                .parse::<usize>()
                .ok()
                .filter(|number| (1..=most).contains(number))
                .ok_or_else(|| error(400, "bad_request", &format!("{key} is out of range"))),
        };
        let per_page = number("per_page", DEFAULT_PAGE, MAX_PAGE)?;
        let per_page = per_page
            .min(self.settings.common.page_size.unwrap_or(MAX_PAGE))
            .max(1);
        let page = number("page", 1, usize::MAX)?;
        let (total, pages) = (all.len(), all.len().div_ceil(per_page).max(1));
        // Absolute URLs of the real API, whatever host the request went to, as that API does: a client that follows
        // them sends its token there.
        let filters = ["tag_name", "name", "type"].into_iter();
        let filter: String = filters
            .filter_map(|key| Some(format!("&{key}={}", call.query(key)?)))
            .collect();
        let link = |page: usize| {
            let path = call.path.trim_end_matches('/');
            json!(format!(
                "https://api.digitalocean.com{path}?page={page}&per_page={per_page}{filter}"
            ))
        };
        let mut links = serde_json::Map::new();
        if page > 1 {
            links.insert("first".to_owned(), link(1));
            links.insert("prev".to_owned(), link(page - 1));
        }
        if page < pages {
            links.insert("next".to_owned(), link(page + 1));
            links.insert("last".to_owned(), link(pages));
        }
        let start = (page - 1).saturating_mul(per_page);
        let shown: Vec<Value> = all.iter().skip(start).take(per_page).map(show).collect();
        Ok(Answer::json(
            200,
            &json!({
                name: shown, "links": {"pages": links}, "meta": {"total": total},
            }),
        ))
    }
}

fn token(call: &Call) -> &str {
    call.header("authorization")
        .and_then(|header| header.strip_prefix("Bearer "))
        .unwrap_or_default()
}

fn error(status: u16, id: &str, message: &str) -> Answer {
    let request = uuid::Uuid::new_v4().to_string();
    Answer::json(
        status,
        &json!({"id": id, "message": message, "request_id": request}),
    )
}

fn unprocessable(message: &str) -> Answer {
    error(422, "unprocessable_entity", message)
}

fn not_found() -> Answer {
    error(
        404,
        "not_found",
        "The resource you were accessing could not be found.",
    )
}

fn unauthenticated() -> Answer {
    error(401, "Unauthorized", "Unable to authenticate you")
}
