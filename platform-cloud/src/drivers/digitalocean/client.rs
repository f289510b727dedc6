//! API client: token, timeout, rate limit, paging.

use std::{
    collections::HashSet,
    path::PathBuf,
    sync::OnceLock,
    time::{Duration, SystemTime},
};

use drover_core::{Error, Reason, Result};
use parking_lot::Mutex;
use reqwest::{Method, Response, StatusCode, Url, header::HeaderMap, redirect::Policy};
use serde_json::Value;

use super::{Settings, cloud_info, errors, quota::Quota};
use crate::cloud::{Account, Action, Gate, traced};

const ENDPOINT: &str = "https://api.digitalocean.com";
const VARIABLES: [&str; 2] = ["DIGITALOCEAN_TOKEN", "DIGITALOCEAN_ACCESS_TOKEN"];
/// Maximum number of concurrent calls. More do not help against a rate limit.
const CONCURRENT: usize = 8;
/// Page size: the maximum of the API.
const PER_PAGE: usize = 200;
/// Maximum number of attempts to read a list that changes while it is read.
const READINGS: usize = 4;
/// Divisor of the hourly limit below which calls slow down: one tenth.
const LOW: u64 = 10;
/// Minimum time over which the remaining calls are spread: the API's clock may differ from ours, and calls expire one
/// by one.
const LEAST_SPREAD: Duration = Duration::from_secs(60);

pub(super) struct Client {
    http: reqwest::Client,
    endpoint: Url,
    token: Token,
    gate: Gate,
    /// Whose droplets these are, once it is known.
    account: OnceLock<Account>,
    quota: Mutex<Option<Quota>>,
}

/// A response, except for rate limiting and broken connections, which are errors.
#[derive(Debug)]
pub(super) struct Reply {
    pub(super) status: u16,
    /// Null if there is none, or none that can be parsed.
    pub(super) body: Value,
}

struct Token {
    file: Option<PathBuf>,
    value: Mutex<String>,
}

impl Client {
    /// # Errors
    /// `Invalid` for a wrong endpoint; `CredentialsRefused` without a token.
    pub(super) fn new(settings: &Settings) -> Result<Self> {
        let endpoint = endpoint(&settings.endpoint)?;
        let token = Token::read(settings.token_file.clone())?;
        // Fails if another driver has installed a provider first, which is fine.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let http = reqwest::Client::builder()
            .timeout(settings.common.call_timeout())
            .pool_max_idle_per_host(CONCURRENT)
            .user_agent(concat!("drover/", env!("CARGO_PKG_VERSION")))
            // The token must not be sent to any other host.
            .redirect(Policy::none())
            .build()
            .map_err(|error| {
                Error::internal(format!("cannot call the API: {}", errors::causes(&error)))
            })?;
        Ok(Self {
            http,
            endpoint,
            token,
            gate: Gate::new(settings.common.calls_per_second, CONCURRENT),
            account: OnceLock::new(),
            quota: Mutex::default(),
        })
    }

    /// Accepts only tokens of this account from now on.
    pub(super) fn belongs_to(&self, owner: &str) {
        self.account.get_or_init(|| Account::new(owner));
    }

    /// What was left of the hourly quota at the last answer. `None` if the API has not said so.
    pub(super) fn quota(&self) -> Option<Quota> {
        *self.quota.lock()
    }

    /// Makes a call. `path` holds the segments after `/v2`.
    ///
    /// # Errors
    /// `RateLimited` if nothing was done because of too many calls; `CredentialsRefused` and `PermissionDenied`;
    /// `DeadlineExceeded` and `Unavailable` if it is unknown whether the call took effect.
    pub(super) async fn call(
        &self,
        method: Method,
        path: &[&str],
        query: &[(&str, String)],
        body: Option<&Value>,
    ) -> Result<Reply> {
        let mut url = self.endpoint.clone();
        if let Ok(mut segments) = url.path_segments_mut() {
            segments.pop_if_empty().push("v2").extend(path);
        }
        if !query.is_empty() {
            url.query_pairs_mut().extend_pairs(query);
        }
        let token = self.token.get();
        let operation = format!("{method} {}", path.first().unwrap_or(&""));
        let once = |token: String| {
            let call = self.once(method.clone(), url.clone(), token, body);
            traced("DigitalOcean", &operation, call)
        };
        let action = Action::of(method == Method::GET);
        let mut reply = self.gate.call_as(action, || once(token.clone())).await?;
        if reply.status == 401 {
            let now = self.renewed(&token).await?;
            if now != token {
                reply = self.gate.call_as(action, || once(now.clone())).await?;
            }
        }
        reply.accepted(&self.token)
    }

    /// The token after `refused` was: another one only if it is of the same account.
    ///
    /// # Errors
    /// `CredentialsRefused` if it is of another account, or cannot be read.
    async fn renewed(&self, refused: &str) -> Result<String> {
        let known = self.token.get();
        if known != refused {
            return Ok(known);
        }
        let now = self.token.load()?;
        if let Some(account) = self.account.get().filter(|_| now != refused) {
            account.admit(now.as_bytes(), self.owner_of(&now)).await?;
            self.token.value.lock().clone_from(&now);
        }
        Ok(now)
    }

    async fn owner_of(&self, token: &str) -> Result<String> {
        let mut url = self.endpoint.clone();
        if let Ok(mut segments) = url.path_segments_mut() {
            segments.pop_if_empty().extend(["v2", "account"]);
        }
        let call = || self.once(Method::GET, url.clone(), token.to_owned(), None);
        let reply = self.gate.call_as(Action::of(true), call).await?;
        let reply = reply.accepted(&self.token)?;
        cloud_info::owner(&reply.body["account"])
            .map(str::to_owned)
            .ok_or_else(|| reply.error("to say whose the token is"))
    }

    /// Reads a resource. `None` if it does not exist.
    ///
    /// # Errors
    /// As [`Client::call`], and every other refusal.
    pub(super) async fn get(
        &self,
        path: &[&str],
        query: &[(&str, String)],
    ) -> Result<Option<Value>> {
        let reply = self.call(Method::GET, path, query, None).await?;
        match reply.status {
            200 => Ok(Some(reply.body)),
            404 => Ok(None),
            _ => Err(reply.error(&path.join("/"))),
        }
    }

    /// Reads all pages of a list. Returns an error rather than a partial list.
    ///
    /// # Errors
    /// As [`Client::call`], and `Unavailable` if the list cannot be read completely.
    pub(super) async fn list(&self, path: &[&str], query: &[(&str, String)]) -> Result<List> {
        let name = path.join("/");
        let key = path.last().map_or("", |last| match *last {
            "keys" => "ssh_keys",
            last => last,
        });
        for _ in 0..READINGS {
            if let Some(list) = self.read(path, query, key, &name).await? {
                return Ok(list);
            }
        }
        Err(Error::unavailable(format!(
            "the list of {name} changed whenever it was read; it is read again"
        )))
    }

    /// Reads the list once. `None` if it changed in the meantime, so that items may be missing.
    ///
    /// Pages are read from last to first: a deletion shifts the following items towards the first page, where they are
    /// read again rather than missed. New items are appended; if the list is not in that order, any change requires
    /// another attempt.
    async fn read(
        &self,
        path: &[&str],
        query: &[(&str, String)],
        key: &str,
        name: &str,
    ) -> Result<Option<List>> {
        let first = self.page(path, query, key, name, 1).await?;
        let pages = match first.items.len() {
            0 if first.more => return Ok(None),
            length if first.more => first.total.div_ceil(length),
            _ => 1,
        };
        let mut read = vec![first];
        for number in (2..=pages).rev() {
            read.push(self.page(path, query, key, name, number).await?);
        }
        let totals = || read.iter().map(|page| page.total);
        let (least, changed) = (totals().min(), totals().any(|total| total != read[0].total));
        if changed {
            if !read.iter().all(Page::is_ascending) {
                return Ok(None);
            }
            read.push(self.page(path, query, key, name, 1).await?);
        }
        let mut known = HashSet::new();
        let mut items: Vec<Value> = Vec::new();
        for item in read.into_iter().flat_map(|page| page.items) {
            if known.insert(identity(&item)) {
                items.push(item);
            }
        }
        Ok((Some(items.len()) >= least).then_some(List { items, pages }))
    }

    async fn page(
        &self,
        path: &[&str],
        query: &[(&str, String)],
        key: &str,
        name: &str,
        number: usize,
    ) -> Result<Page> {
        let mut query = query.to_vec();
        query.push(("page", number.to_string()));
        query.push(("per_page", PER_PAGE.to_string()));
        let body = self.get(path, &query).await?;
        let mut body =
            body.ok_or_else(|| Error::unavailable(format!("the API has no list of {name}")))?;
        let total = body["meta"]["total"].as_u64();
        // The link itself is not followed, as the token must not be sent to any other host.
        let more = !body["links"]["pages"]["next"].is_null();
        match (body[key].take(), total) {
            (Value::Array(items), Some(total)) => Ok(Page {
                items,
                total: total as usize,
                more,
            }),
            _ => Err(Error::unavailable(format!(
                "page {number} of the list of {name} cannot be read"
            ))),
        }
    }

    async fn once(
        &self,
        method: Method,
        url: Url,
        token: String,
        body: Option<&Value>,
    ) -> Result<Reply> {
        let mut request = self.http.request(method, url).bearer_auth(token);
        if let Some(body) = body {
            request = request.json(body);
        }
        let response = request
            .send()
            .await
            .map_err(|error| errors::transport(&error))?;
        self.heed(response.headers());
        if response.status() == StatusCode::TOO_MANY_REQUESTS {
            return Err(throttled(response).await);
        }
        let status = response.status().as_u16();
        let bytes = response
            .bytes()
            .await
            .map_err(|error| errors::transport(&error))?;
        let body = if bytes.is_empty() {
            Value::Null
        } else {
            match serde_json::from_slice(&bytes) {
                Ok(body) => body,
                // The request may have taken effect.
                Err(_) if status < 400 => {
                    return Err(Error::unavailable(
                        "the answer of DigitalOcean cannot be read; it was cut off or is not JSON",
                    ));
                }
                Err(_) => Value::Null,
            }
        };
        Ok(Reply { status, body })
    }

    /// Slows down before the API starts to throttle.
    fn heed(&self, headers: &HeaderMap) {
        let (Some(limit), Some(remaining), Some(reset)) = (
            number(headers, "ratelimit-limit"),
            number(headers, "ratelimit-remaining"),
            until_reset(headers),
        ) else {
            return;
        };
        *self.quota.lock() = Some(Quota { limit, remaining });
        if remaining == 0 {
            self.gate.left(0, reset);
        } else if remaining.saturating_mul(LOW) < limit {
            self.gate
                .left(remaining, reset.clamp(LEAST_SPREAD, 60 * LEAST_SPREAD));
        }
    }

    #[cfg(test)]
    pub(super) fn rate(&self) -> f64 {
        self.gate.rate()
    }
}

/// A complete list.
pub(super) struct List {
    pub(super) items: Vec<Value>,
    /// Number of pages it was read from.
    pub(super) pages: usize,
}

struct Page {
    items: Vec<Value>,
    /// Item count of the whole list.
    total: usize,
    /// Whether there is another page after this one.
    more: bool,
}

impl Page {
    /// Whether new items come last.
    fn is_ascending(&self) -> bool {
        let ids = self.items.iter().map(|item| item["id"].as_u64());
        self.items.iter().all(|item| item["id"].is_u64()) && ids.is_sorted()
    }
}

/// The key that identifies an element of a list.
fn identity(item: &Value) -> String {
    ["id", "slug", "name"]
        .iter()
        .map(|key| &item[key])
        .find(|value| !value.is_null())
        .unwrap_or(item)
        .to_string()
}

impl Reply {
    fn accepted(self, token: &Token) -> Result<Self> {
        let message = self.message();
        match self.status {
            401 => Err(Error::new(
                Reason::CredentialsRefused,
                format!(
                    "DigitalOcean refuses {}: {message}. {}",
                    token.name(),
                    token.way_out()
                ),
            )),
            403 => Err(Error::new(
                Reason::PermissionDenied,
                format!(
                    "DigitalOcean does not allow this with {}: {message}. Give it a token with the scopes account:read, \
                     regions:read, sizes:read, image:read, ssh_key:read, vpc:read, actions:read, droplet, firewall and tag",
                    token.name()
                ),
            )),
            _ => Ok(self),
        }
    }

    /// The error message of the API.
    pub(super) fn message(&self) -> String {
        match self.body["message"]
            .as_str()
            .or(self.body["error"].as_str())
        {
            Some(message) => message.to_owned(),
            None => format!("status {}", self.status),
        }
    }

    /// Converts the reply to an error about `what`.
    pub(super) fn error(&self, what: &str) -> Error {
        errors::refused(self, what)
    }
}

impl Token {
    fn read(file: Option<PathBuf>) -> Result<Self> {
        let token = Self {
            file,
            value: Mutex::default(),
        };
        let value = token.load()?;
        *token.value.lock() = value;
        Ok(token)
    }

    fn load(&self) -> Result<String> {
        let refused = |message: String| Error::new(Reason::CredentialsRefused, message);
        let value = match &self.file {
            Some(file) => std::fs::read_to_string(file).map_err(|error| {
                refused(format!(
                    "the token of DigitalOcean cannot be read from {}: {error}",
                    file.display()
                ))
            })?,
            None => VARIABLES
                .iter()
                .find_map(|name| std::env::var(name).ok())
                .unwrap_or_default(),
        };
        let value = value.trim().to_owned();
        if value.is_empty() || !value.bytes().all(|byte| byte.is_ascii_graphic()) {
            return Err(refused(format!(
                "{} is missing or no token of DigitalOcean. {}",
                self.name(),
                self.way_out()
            )));
        }
        Ok(value)
    }

    fn get(&self) -> String {
        self.value.lock().clone()
    }

    fn name(&self) -> String {
        match &self.file {
            Some(file) => format!("the token in {}", file.display()),
            None => format!("the token in {}", VARIABLES.join(" or ")),
        }
    }

    fn way_out(&self) -> String {
        match &self.file {
            Some(file) => format!(
                "Make one at https://cloud.digitalocean.com/account/api/tokens and write it to {}; it is read again at once",
                file.display()
            ),
            None => format!(
                "Make one at https://cloud.digitalocean.com/account/api/tokens, set {} and start the platform again",
                VARIABLES[0]
            ),
        }
    }
}

fn endpoint(given: &str) -> Result<Url> {
    let text = if given.is_empty() { ENDPOINT } else { given };
    let wrong = |why: String| Error::invalid("digitalocean.endpoint", why);
    let url = Url::parse(text).map_err(|error| wrong(format!("{text:?} is not a URL: {error}")))?;
    let here = matches!(url.host_str(), Some("127.0.0.1" | "localhost" | "[::1]"));
    match url.scheme() {
        "https" => Ok(url),
        "http" if here => Ok(url),
        _ => Err(wrong(format!(
            "{text:?} would send the token in the clear; https is required"
        ))),
    }
}

async fn throttled(response: Response) -> Error {
    let wait = number(response.headers(), "retry-after").map(Duration::from_secs);
    // If the hourly quota is not used up, the per-minute limit was hit, which has no reset time.
    let used_up = number(response.headers(), "ratelimit-remaining") == Some(0);
    let wait = wait.or_else(|| until_reset(response.headers()).filter(|_| used_up));
    let body: Value = response.json().await.unwrap_or_default();
    let message = body["message"].as_str().unwrap_or("too many calls");
    let error = Error::new(Reason::RateLimited, format!("DigitalOcean: {message}"));
    match wait {
        Some(wait) => error.with_retry_after(wait),
        None => error,
    }
}

fn number(headers: &HeaderMap, name: &str) -> Option<u64> {
    headers.get(name)?.to_str().ok()?.parse().ok()
}

/// Time until the oldest call expires, by the API's own clock, as ours may be wrong.
fn until_reset(headers: &HeaderMap) -> Option<Duration> {
    let reset = number(headers, "ratelimit-reset")?;
    let date = headers.get("date").and_then(|date| date.to_str().ok());
    let now = date.and_then(http_date).or_else(|| {
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
        now.ok().map(|now| now.as_secs())
    })?;
    Some(Duration::from_secs(reset.saturating_sub(now)))
}

/// Seconds since the Unix epoch of `Sun, 06 Nov 1994 08:49:37 GMT`.
fn http_date(text: &str) -> Option<u64> {
    const MONTHS: &str = "JanFebMarAprMayJunJulAugSepOctNovDec";
    let (_, rest) = text.split_once(", ")?;
    let mut parts = rest.split([' ', ':']);
    let mut next = || parts.next();
    let day = next()?;
    let month = MONTHS.find(next()?)? / 3 + 1;
    let (year, hour, minute, second) = (next()?, next()?, next()?, next()?);
    let written = format!("{year}-{month:02}-{day}T{hour}:{minute}:{second}Z");
    let time: prost_types::Timestamp = written.parse().ok()?;
    u64::try_from(time.seconds).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_of_headers_are_read() {
        assert_eq!(
            http_date("Sun, 06 Nov 1994 08:49:37 GMT"),
            Some(784_111_777)
        );
        assert_eq!(
            http_date("Sat, 21 Nov 2026 12:03:33 GMT"),
            Some(1_795_262_613)
        );
        assert_eq!(http_date("yesterday"), None);
    }

    #[test]
    fn the_token_goes_over_plain_http_to_this_machine_only() {
        assert_eq!(
            endpoint("").unwrap().as_str(),
            "https://api.digitalocean.com/"
        );
        assert!(endpoint("http://127.0.0.1:8002").is_ok());
        assert!(endpoint("http://api.digitalocean.com").is_err());
        assert!(endpoint("ftp://x").is_err());
        assert!(endpoint("nowhere").is_err());
    }

    #[test]
    fn few_calls_that_are_left_slow_down_the_others() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), "dop_v1_x").unwrap();
        let settings = Settings {
            token_file: Some(file.path().to_owned()),
            ..Settings::default()
        };
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build();
        let _guard = runtime.as_ref().unwrap().enter();
        let client = Client::new(&settings).unwrap();
        let mut headers = HeaderMap::new();
        // The local clock does not matter: this date is long past.
        headers.insert("date", "Sun, 06 Nov 1994 08:49:37 GMT".parse().unwrap());
        headers.insert("ratelimit-limit", 5000.into());
        headers.insert("ratelimit-reset", (784_111_777 + 100).into());
        headers.insert("ratelimit-remaining", 4000.into());
        client.heed(&headers);
        assert_eq!(client.rate(), 4.0);
        headers.insert("ratelimit-remaining", 100.into());
        client.heed(&headers);
        assert_eq!(client.rate(), 1.0);
    }
}
