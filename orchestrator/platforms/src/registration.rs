//! Registrations: validated, stored, bound to a backend.

use drover_core::{Error, Millis, Reason, Result, registration};
use drover_proto::orchestrator::v1 as pb;
use drover_store::PlatformRow;
use prost::Message;

use crate::{Platforms, Registered, connect};

/// The stored part of a registration.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Registration {
    /// What the user has registered.
    pub spec: pb::PlatformSpec,
    /// Number of its changes, from 1.
    pub generation: u64,
    /// Uid of the backend that the records refer to. Empty until the first handshake.
    pub uid: String,
    /// When it was registered.
    pub create_time: Millis,
}

impl Registration {
    /// Decodes what is stored.
    ///
    /// # Errors
    /// `Internal` if it is damaged.
    pub fn load(row: &PlatformRow) -> Result<Self> {
        let spec = pb::PlatformSpec::decode(row.spec.clone())
            .map_err(|_| Error::internal("a stored registration cannot be read"))?;
        Ok(Self {
            spec,
            generation: row.generation,
            uid: row.uid.clone(),
            create_time: u64::try_from(row.create_time_ms).unwrap_or(0),
        })
    }

    /// As it is stored.
    #[must_use]
    pub fn row(&self, name: &str) -> PlatformRow {
        PlatformRow {
            name: name.to_owned(),
            spec: self.spec.encode_to_vec().into(),
            generation: self.generation,
            uid: self.uid.clone(),
            create_time_ms: i64::try_from(self.create_time).unwrap_or(0),
            ..PlatformRow::default()
        }
    }
}

/// Validates the spec of a registration.
///
/// # Errors
/// `Invalid`, with the fields.
pub fn check(name: &str, spec: Option<&pb::PlatformSpec>) -> Result<pb::PlatformSpec> {
    let spec = spec.cloned().unwrap_or_default();
    let wrong = registration::check(name, &spec.endpoint, &spec.token_secret);
    if !wrong.is_empty() {
        return Err(Error::violations(wrong));
    }
    connect::check(&spec)?;
    Ok(spec)
}

impl Platforms {
    /// Refuses a backend that is registered under another name.
    ///
    /// # Errors
    /// `PlatformUidTaken`, with the other name.
    pub fn refuse_taken(&self, name: &str, uid: &str) -> Result<()> {
        let platforms = self.read();
        let taken = platforms
            .iter()
            .find(|(other, p)| ***other != *name && p.platform.registration().uid == uid);
        taken.map_or(Ok(()), |(other, _)| {
            let message = format!("it is the same backend as {other}, which is registered already");
            Err(Error::new(Reason::PlatformUidTaken, message).with_metadata("platform", other))
        })
    }

    /// Makes a changed registration durable.
    pub(crate) async fn store(
        &self,
        registered: &Registered,
        registration: Registration,
    ) -> Result<()> {
        let row = registration.row(&registered.platform.name);
        let expected = registered.revision();
        let stored = self.store.put_platform(row, Some(expected)).await;
        let revision = match stored {
            Ok(revision) => revision,
            Err(error) => {
                // It may be stored all the same, and the next one would expect a revision of the past.
                let _ = self.settle(registered).await;
                return Err(error);
            }
        };
        registered.set_revision(revision);
        registered.platform.set_registration(registration);
        self.wrote(revision);
        Ok(())
    }

    /// Takes in what became of a change of unknown outcome. `false` if what the user has registered is another one, or none.
    ///
    /// # Errors
    /// Those of the store, which is to be asked again.
    pub async fn settle(&self, registered: &Registered) -> Result<bool> {
        let stored = self.store.settled_platform(&registered.platform.name);
        let Some(row) = stored.await? else {
            return Ok(false);
        };
        let (stored, known) = (
            Registration::load(&row.value)?,
            registered.platform.registration(),
        );
        if stored.generation != known.generation || stored.spec != known.spec {
            return Ok(false);
        }
        registered.set_revision(row.revision);
        registered.platform.set_registration(stored);
        self.wrote(row.revision);
        Ok(true)
    }
}
