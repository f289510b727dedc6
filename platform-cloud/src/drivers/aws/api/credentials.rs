//! Credentials that are used only if they belong to the account of the platform. Whatever renews them (a new login, a
//! profile, a role, a process), they pass here before a request is signed with them.

use std::{
    fmt,
    sync::{Arc, OnceLock},
};

use aws_credential_types::{
    Credentials,
    provider::{
        ProvideCredentials, Result as Provided, SharedCredentialsProvider, error::CredentialsError,
        future,
    },
};
use aws_sdk_sts::config::Builder;
use drover_core::{Error, Result};

use crate::{cloud::Account, drivers::aws::errors};

/// The credentials of another provider, without those of another account.
pub(super) struct Admitted {
    provider: SharedCredentialsProvider,
    /// Configuration of STS, for clients with the credentials to be admitted.
    sts: Builder,
    account: Arc<OnceLock<Account>>,
}

impl fmt::Debug for Admitted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Admitted").finish_non_exhaustive()
    }
}

impl Admitted {
    pub(super) fn new(
        provider: SharedCredentialsProvider,
        sts: Builder,
        account: Arc<OnceLock<Account>>,
    ) -> Self {
        Self {
            provider,
            sts,
            account,
        }
    }

    async fn load(&self) -> Provided {
        let credentials = self.provider.provide_credentials().await?;
        // Before the account is known, nothing can be of another one.
        let Some(account) = self.account.get() else {
            return Ok(credentials);
        };
        let known = [
            credentials.access_key_id(),
            credentials.secret_access_key(),
            credentials.session_token().unwrap_or_default(),
        ];
        let known = known.join("\n");
        // The calls to EC2 wait inside their gate; STS has limits of its own.
        let owner = self.owner_of(credentials.clone());
        match account.admit(known.as_bytes(), owner).await {
            Ok(()) => Ok(credentials),
            Err(error) => Err(CredentialsError::provider_error(error)),
        }
    }

    async fn owner_of(&self, credentials: Credentials) -> Result<String> {
        let config = self.sts.clone().credentials_provider(credentials);
        account_of(&aws_sdk_sts::Client::from_conf(config.build())).await
    }
}

impl ProvideCredentials for Admitted {
    fn provide_credentials<'a>(&'a self) -> future::ProvideCredentials<'a>
    where
        Self: 'a,
    {
        future::ProvideCredentials::new(self.load())
    }

    fn fallback_on_interrupt(&self) -> Option<Credentials> {
        // Of those that the provider would fall back on, nobody has asked whose they are.
        let is_known = self.account.get().is_some();
        (!is_known).then(|| self.provider.fallback_on_interrupt())?
    }
}

/// The account that a client acts for.
pub(super) async fn account_of(sts: &aws_sdk_sts::Client) -> Result<String> {
    let identity = Box::pin(sts.get_caller_identity().send())
        .await
        .map_err(|error| errors::map("GetCallerIdentity", &error))?;
    identity
        .account
        .filter(|account| !account.is_empty())
        .ok_or_else(|| Error::unavailable("GetCallerIdentity: the answer names no account"))
}
