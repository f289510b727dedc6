//! The connection to one account in one region.

use std::{
    error::Error as StdError,
    path::Path,
    sync::{Arc, OnceLock},
    time::Duration,
};

#[expect(
    deprecated,
    reason = "the other path is a crate that nothing else here needs"
)]
use aws_config::profile::profile_file::{ProfileFileKind, ProfileFiles};
use aws_config::{
    BehaviorVersion, Region, SdkConfig, profile::ProfileFileCredentialsProvider,
    provider_config::ProviderConfig,
};
use aws_sdk_ec2::{
    Client,
    config::{
        ConfigBag, Intercept, RuntimeComponents, SharedHttpClient, StalledStreamProtectionConfig,
        http::HttpResponse, interceptors::AfterDeserializationInterceptorContextRef,
        retry::RetryConfig, timeout::TimeoutConfig,
    },
    error::{BoxError, ProvideErrorMetadata, SdkError},
};
use aws_smithy_http_client::{
    Builder as HttpBuilder,
    tls::{Provider, rustls_provider::CryptoMode},
};
use drover_core::{Class, Error, Result};
use parking_lot::{Mutex, RwLock};
use tokio::time::Instant;

use super::{errors, settings};
use crate::cloud::{Account, Action, Gate, Lane, traced};

mod credentials;

use credentials::Admitted;

/// Maximum number of concurrent calls of each kind: reads and changes.
const CONCURRENT: usize = 16;
/// Connect timeout, short enough for a wrong address to show before the call's own timeout.
const CONNECT: Duration = Duration::from_secs(5);
/// Minimum time between two reloads of refused credentials.
const RELOAD: Duration = Duration::from_secs(10);

/// The connection. Every call goes through its gate; only throttled calls are retried.
#[derive(Debug)]
pub(super) struct Api {
    gate: Gate,
    settings: settings::Settings,
    http: SharedHttpClient,
    clients: RwLock<Clients>,
    /// Whose resources these are. Known from the first call on.
    account: Arc<OnceLock<Account>>,
    reloaded: Mutex<Instant>,
}

#[derive(Clone, Debug)]
struct Clients {
    ec2: Client,
    sts: aws_sdk_sts::Client,
    region: String,
}

impl Api {
    /// Loads region and credentials from the settings and the SDK's default chain. Does not contact EC2 yet.
    pub(super) async fn open(settings: &settings::Settings) -> Result<Self> {
        let http = HttpBuilder::new()
            .tls_provider(Provider::Rustls(CryptoMode::Ring))
            .pool_max_idle_per_host(CONCURRENT)
            .build_https();
        let account = Arc::default();
        let clients = Clients::load(settings, &http, &account).await?;
        // Later credentials are for the same region, whatever their profile says.
        let mut settings = settings.clone();
        settings.region.clone_from(&clients.region);
        Ok(Self {
            gate: Gate::new(settings.common.calls_per_second, CONCURRENT),
            settings,
            http,
            clients: RwLock::new(clients),
            account,
            reloaded: Mutex::new(Instant::now()),
        })
    }

    pub(super) fn region(&self) -> String {
        self.clients.read().region.clone()
    }

    /// The client, for building requests.
    pub(super) fn ec2(&self) -> Client {
        self.clients.read().ec2.clone()
    }

    /// Makes the call that creates the instances of a launch, if its caller still waits when it is its turn.
    pub(super) async fn create<T, E, F, Fut>(&self, operation: &str, call: F) -> Result<T>
    where
        F: Fn(Client) -> Fut + Send + Sync,
        Fut: Future<Output = Result<T, SdkError<E, HttpResponse>>> + Send,
        E: ProvideErrorMetadata + StdError + Send + 'static,
        T: Send,
    {
        let action = action(operation);
        let outcome = self
            .gate
            .create_as(action, || self.once(operation, &call))
            .await;
        self.judged(outcome).await
    }

    /// Makes a call. The request is built anew for every attempt.
    pub(super) async fn send<T, E, F, Fut>(&self, operation: &str, call: F) -> Result<T>
    where
        F: Fn(Client) -> Fut + Send + Sync,
        Fut: Future<Output = Result<T, SdkError<E, HttpResponse>>> + Send,
        E: ProvideErrorMetadata + StdError + Send + 'static,
        T: Send,
    {
        let action = action(operation);
        let outcome = self
            .gate
            .call_as(action, || self.once(operation, &call))
            .await;
        self.judged(outcome).await
    }

    async fn once<T, E, F, Fut>(&self, operation: &str, call: &F) -> Result<T>
    where
        F: Fn(Client) -> Fut + Send + Sync,
        Fut: Future<Output = Result<T, SdkError<E, HttpResponse>>> + Send,
        E: ProvideErrorMetadata + StdError + Send + 'static,
        T: Send,
    {
        let call = Box::pin(call(self.ec2()));
        let call = async move { call.await.map_err(|error| errors::map(operation, &error)) };
        traced("EC2", operation, call).await
    }

    async fn judged<T: Send>(&self, outcome: Result<T>) -> Result<T> {
        if let Err(error) = &outcome
            && error.class() == Class::Credentials
        {
            self.reload().await;
        }
        outcome
    }

    /// Account id of the credentials. Those of another account are not used from now on.
    pub(super) async fn account(&self) -> Result<String> {
        let call = || {
            let sts = self.clients.read().sts.clone();
            async move { credentials::account_of(&sts).await }
        };
        let account = self.gate.call_as(Action::of(true), call).await?;
        self.account.get_or_init(|| Account::new(&account));
        Ok(account)
    }

    /// Reloads the credentials, so that a new login takes effect without a restart of the server.
    async fn reload(&self) {
        {
            let mut reloaded = self.reloaded.lock();
            if reloaded.elapsed() < RELOAD {
                return;
            }
            *reloaded = Instant::now();
        }
        match Clients::load(&self.settings, &self.http, &self.account).await {
            Ok(clients) => *self.clients.write() = clients,
            Err(error) => tracing::warn!(%error, "the AWS credentials cannot be read again"),
        }
    }
}

/// The limits of an action: EC2 has a bucket for each
/// (<https://docs.aws.amazon.com/ec2/latest/devguide/ec2-api-throttling.html>).
fn action(operation: &str) -> Action<'_> {
    let is_read = operation.starts_with("Describe") || operation.starts_with("Get");
    Action {
        name: operation,
        lane: if is_read { Lane::Read } else { Lane::Change },
    }
}

impl Clients {
    async fn load(
        settings: &settings::Settings,
        http: &SharedHttpClient,
        account: &Arc<OnceLock<Account>>,
    ) -> Result<Self> {
        let config = shared(settings, http).await;
        let region = config.region().map(ToString::to_string).unwrap_or_default();
        if region.is_empty() {
            return Err(Error::invalid(
                "region",
                "no AWS region is configured; say `region` in the settings of the platform or set AWS_REGION",
            ));
        }
        if !settings::is_region(&region) {
            return Err(Error::invalid(
                "region",
                format!("{region:?} is not an AWS region; expected something like eu-central-1"),
            ));
        }
        let mut ec2 = aws_sdk_ec2::config::Builder::from(&config).interceptor(WholeAnswer);
        let mut sts = aws_sdk_sts::config::Builder::from(&config);
        if !settings.endpoint.is_empty() {
            ec2 = ec2.endpoint_url(&settings.endpoint);
            sts = sts.endpoint_url(&settings.endpoint);
        }
        if !settings.sts_endpoint.is_empty() {
            sts = sts.endpoint_url(&settings.sts_endpoint);
        }
        if let Some(provider) = config.credentials_provider() {
            let sts = sts.clone();
            ec2 = ec2.credentials_provider(Admitted::new(provider, sts, Arc::clone(account)));
        }
        Ok(Self {
            ec2: Client::from_conf(ec2.build()),
            sts: aws_sdk_sts::Client::from_conf(sts.build()),
            region,
        })
    }
}

async fn shared(settings: &settings::Settings, http: &SharedHttpClient) -> SdkConfig {
    let timeout = settings.common.call_timeout();
    let mut loader = aws_config::defaults(BehaviorVersion::latest())
        .http_client(http.clone())
        // The gate and the callers decide on retries, as they know which calls are safe to repeat.
        .retry_config(RetryConfig::disabled())
        .stalled_stream_protection(StalledStreamProtectionConfig::disabled())
        .timeout_config(
            TimeoutConfig::builder()
                .connect_timeout(CONNECT.min(timeout))
                .operation_attempt_timeout(timeout)
                .operation_timeout(timeout)
                .build(),
        );
    if !settings.region.is_empty() {
        loader = loader.region(Region::new(settings.region.clone()));
    }
    if !settings.profile.is_empty() {
        loader = loader.profile_name(&settings.profile);
    }
    if let Some(file) = &settings.credentials_file {
        loader = loader.profile_files(files(file));
    }
    if !settings.profile.is_empty() || settings.credentials_file.is_some() {
        // A configured profile takes precedence over keys that happen to be in the environment.
        // The provider configuration is for profiles that fetch their keys (roles, single sign-on).
        let region = (!settings.region.is_empty()).then(|| Region::new(settings.region.clone()));
        let config = ProviderConfig::default()
            .with_http_client(http.clone())
            .with_region(region);
        let mut provider = ProfileFileCredentialsProvider::builder().configure(&config);
        if !settings.profile.is_empty() {
            provider = provider.profile_name(&settings.profile);
        }
        if let Some(file) = &settings.credentials_file {
            provider = provider.profile_files(files(file));
        }
        loader = loader.credentials_provider(provider.build());
    }
    loader.load().await
}

#[expect(deprecated, reason = "see the import")]
fn files(credentials: &Path) -> ProfileFiles {
    ProfileFiles::builder()
        .include_default_config_file(true)
        .with_file(ProfileFileKind::Credentials, credentials)
        .build()
}

/// Rejects a truncated response, which the SDK would parse as a shorter one.
#[derive(Debug)]
struct WholeAnswer;

#[derive(Debug)]
struct CutOff;

impl std::fmt::Display for CutOff {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("the answer was cut off")
    }
}

impl StdError for CutOff {}

impl Intercept for WholeAnswer {
    fn name(&self) -> &'static str {
        "WholeAnswer"
    }

    fn read_after_deserialization(
        &self,
        context: &AfterDeserializationInterceptorContextRef<'_>,
        _: &RuntimeComponents,
        _: &mut ConfigBag,
    ) -> Result<(), BoxError> {
        let response = context.response();
        match response.body().bytes() {
            Some(body) if response.status().is_success() && !is_whole(body) => Err(CutOff.into()),
            _ => Ok(()),
        }
    }
}

/// Whether an XML document ends with the closing tag of its root element.
fn is_whole(body: &[u8]) -> bool {
    let text = String::from_utf8_lossy(body);
    let mut rest = text.as_ref();
    // The first element that is neither a declaration nor a comment.
    let root = loop {
        let Some(at) = rest.find('<') else {
            return false;
        };
        rest = &rest[at + 1..];
        if !rest.starts_with(['?', '!']) {
            break rest;
        }
    };
    let end = root
        .find(|c: char| c == '>' || c == '/' || c.is_whitespace())
        .unwrap_or(root.len());
    let name = &root[..end];
    let tail = text.trim_end();
    if root[end..].trim_start().starts_with("/>") {
        return true;
    }
    tail.strip_suffix('>')
        .map(str::trim_end)
        .and_then(|tail| tail.strip_suffix(name))
        .is_some_and(|tail| tail.ends_with("</"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_that_were_cut_off_are_told_from_whole_ones() {
        let whole = "<?xml version=\"1.0\"?>\n<!-- x -->\n<AResponse xmlns=\"u\"><set><item/></set></AResponse>\n";
        assert!(is_whole(whole.as_bytes()));
        assert!(is_whole(b"<AResponse/>"));
        for end in 0..whole.trim_end().len() {
            assert!(!is_whole(&whole.as_bytes()[..end]), "{}", &whole[..end]);
        }
    }
}
