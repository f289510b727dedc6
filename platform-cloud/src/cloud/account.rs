//! The account that the credentials of a platform belong to.

use std::fmt;

use drover_core::{Error, Reason, Result};
use sha2::{Digest, Sha256};
use tokio::sync::Mutex;

/// Admits credentials only if they belong to the account that the platform was opened with: with those of another
/// account, every list would be complete and empty, and nodes that run would count as gone.
pub struct Account {
    id: String,
    /// Digest of the credentials that were admitted last.
    admitted: Mutex<Option<[u8; 32]>>,
}

impl fmt::Debug for Account {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Account").field(&self.id).finish()
    }
}

impl Account {
    /// The account with this id at the cloud.
    #[must_use]
    pub fn new(id: impl Into<String>) -> Self {
        Self {
            id: id.into(),
            admitted: Mutex::default(),
        }
    }

    /// Admits these credentials, after asking the cloud for their account if they are not those that were admitted
    /// last. Called before every use of credentials that may have changed; concurrent calls ask once.
    ///
    /// # Errors
    /// `CredentialsRefused` for those of another account; otherwise those of `account_of`. Both mean that the
    /// credentials must not be used.
    pub async fn admit(
        &self,
        credentials: &[u8],
        account_of: impl Future<Output = Result<String>> + Send,
    ) -> Result<()> {
        let digest: [u8; 32] = Sha256::digest(credentials).into();
        let mut admitted = self.admitted.lock().await;
        if *admitted == Some(digest) {
            return Ok(());
        }
        let account = account_of.await?;
        if account != self.id {
            return Err(Error::new(
                Reason::CredentialsRefused,
                format!(
                    "the credentials belong to account {account}, and this platform is account {}; they are not used. \
                     Give it credentials of its account, or register the other account as a platform of its own",
                    self.id
                ),
            ));
        }
        *admitted = Some(digest);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn credentials_are_asked_about_once_and_those_of_another_account_never_admitted() {
        let account = Account::new("1");
        let of = |id: &'static str| async move { Ok(id.to_owned()) };
        account.admit(b"a", of("1")).await.unwrap();
        let unasked = async { Err(Error::internal("asked again")) };
        account.admit(b"a", unasked).await.unwrap();
        for _ in 0..2 {
            let error = account.admit(b"b", of("2")).await.unwrap_err();
            assert_eq!(error.reason(), Reason::CredentialsRefused);
            assert!(error.message().contains("account 2"), "{error}");
        }
        let silent = async { Err(Error::unavailable("no answer")) };
        let error = account.admit(b"c", silent).await.unwrap_err();
        assert_eq!(error.reason(), Reason::Unavailable);
        account
            .admit(b"a", async { Err(Error::internal("asked again")) })
            .await
            .unwrap();
    }
}
