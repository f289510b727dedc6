//! Renders the templates of requests.

mod context;
mod entry;

use std::{
    collections::VecDeque,
    fmt,
    sync::{Arc, OnceLock},
    time::Duration,
};

use drover_convert::template::exceeded;
use drover_core::{
    Class, Error, Reason, Result,
    secrecy::{Hidden, placeholder},
};
use drover_proto::platform::v1::{
    self as proto, ProvisionRequest, Slot, TemplateEntry, bootstrap::UserData,
};
use drover_templates::{
    Catalogue, Context, NodeScope, Query, Scope, Selected, worker::sees_secrets,
};
use serde_json::{Map, Value};
use tokio::time::Instant;

use self::{
    context::{context, own},
    entry::limits,
};
use crate::texts::{Session, Texts};

pub(crate) use entry::entry;

/// Name of user data in errors.
const BOOTSTRAP: &str = "bootstrap";

/// Maximum time that a request renders before it yields to others.
const SLICE: Duration = Duration::from_millis(50);

/// Name of the only entry of [`Templates::Anything`].
const ANYTHING: &str = "anything";

/// Source of templates.
#[derive(Clone)]
pub enum Templates {
    /// A catalogue.
    Catalogue(Arc<Catalogue>),
    /// Accepts every store and version and renders nothing, for backends that run no software.
    Anything,
}

/// Location of a node as visible to its template. Known only when the node is created.
#[derive(Clone, Default)]
pub struct Place {
    /// Name of its failure domain. Empty if none or not known.
    pub failure_domain: String,
    /// `platform` in the template context; the keys are documented by each driver.
    pub platform: Map<String, Value>,
    /// Directory of the node's storage, on platforms where storage is a directory.
    pub storage_path: Option<String>,
}

/// The rendered templates of one node. Secret: `Debug` shows lengths only.
#[derive(Clone)]
pub struct Rendered {
    /// The output of the template. Its meaning is up to the driver.
    pub document: drover_templates::Rendered,
    /// User data, rendered if requested. `None` if there is none.
    pub bootstrap: Option<Vec<u8>>,
}

impl fmt::Debug for Rendered {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bootstrap = self.bootstrap.as_ref().map(Vec::len);
        write!(
            f,
            "Rendered({} bytes, bootstrap {bootstrap:?} bytes, redacted)",
            self.document.expose().len()
        )
    }
}

/// The template of a request, and the context that all of its nodes share.
pub struct Renderer {
    selected: Option<Selected>,
    scope: Scope,
    bootstrap: Option<proto::Bootstrap>,
    hidden: Hidden,
    texts: Arc<Texts>,
    caller: String,
    /// The user data, if it is to be rendered.
    session: OnceLock<Result<Session>>,
    /// The error for user data that kills every rendering process.
    fatal: OnceLock<Error>,
}

/// A failed rendering.
enum Failed {
    /// Caused by the user data, and possibly by the secrets that it reads.
    Text { error: Error, by_content: bool },
    /// Caused by the template, and possibly by the secrets and user data that it reads.
    Template(Error),
}

/// The content that is rendered.
#[derive(Clone, Copy, PartialEq)]
enum Content {
    /// The content of the request.
    Real,
    /// Placeholders, to find errors that do not depend on the content.
    Placeholder,
}

impl Content {
    fn of(self, text: &str) -> String {
        match self {
            Self::Real => text.to_owned(),
            Self::Placeholder => {
                String::from_utf8_lossy(&placeholder(text.as_bytes())).into_owned()
            }
        }
    }
}

impl Templates {
    /// The entries as listed by `GetPlatform`.
    #[must_use]
    pub fn entries(&self) -> Vec<TemplateEntry> {
        match self {
            Self::Catalogue(catalogue) => catalogue.entries().iter().map(entry).collect(),
            Self::Anything => ["", "*"]
                .map(|store| TemplateEntry {
                    store: store.to_owned(),
                    version_requirement: "*".to_owned(),
                    template: ANYTHING.to_owned(),
                    ..TemplateEntry::default()
                })
                .to_vec(),
        }
    }

    /// Warning for the operator, if any.
    #[must_use]
    pub fn warning(&self) -> Option<String> {
        match self {
            Self::Catalogue(catalogue) => catalogue.warning(),
            Self::Anything => None,
        }
    }

    /// Selects the template of a request, and reads its free-form values.
    ///
    /// # Errors
    ///
    /// `TemplateNotFound`; `Invalid` for a free-form value that cannot be represented exactly.
    pub fn select(&self, request: &ProvisionRequest) -> Result<Renderer> {
        let context = context(request)?;
        let selected = match self {
            Self::Catalogue(catalogue) => {
                let version = match context.group.version.as_str() {
                    "" => &context.cluster.version,
                    version => version,
                };
                let query = Query {
                    store: &context.cluster.store,
                    version,
                    attributes: &context.group.attributes,
                };
                match catalogue.select(query) {
                    // Who has it already is not left without a replacement: its user data are all that it needs.
                    Err(error)
                        if error.reason() == Reason::TemplateNotFound
                            && !request.validate_only
                            && request.bootstrap.as_ref().is_some_and(is_run) =>
                    {
                        Some(catalogue.unlisted().ok_or(error)?)
                    }
                    selected => Some(selected?),
                }
            }
            Self::Anything => None,
        };
        Ok(Renderer {
            selected,
            scope: context.into(),
            bootstrap: request.bootstrap.clone(),
            hidden: drover_convert::secrecy::hidden(request),
            texts: Arc::default(),
            caller: String::new(),
            session: OnceLock::new(),
            fatal: OnceLock::new(),
        })
    }
}

/// Whether user data are something that a machine runs: a script, or what cloud-init understands.
fn is_run(bootstrap: &proto::Bootstrap) -> bool {
    let data = match &bootstrap.user_data {
        Some(UserData::Text(text)) => text.as_bytes(),
        Some(UserData::Binary(data)) => data,
        None => return false,
    };
    [&b"#!"[..], b"#cloud-"]
        .iter()
        .any(|start| data.starts_with(start))
}

impl Renderer {
    /// Refuses the first nodes of a group that asks for more than the template provides for. Groups that have Ready nodes
    /// are not judged again: the limits may be newer than they are.
    ///
    /// # Errors
    ///
    /// `Invalid`, with the field.
    pub fn check_limits(&self, request: &ProvisionRequest) -> Result<()> {
        let (Some(selected), Some(group)) = (&self.selected, &request.group) else {
            return Ok(());
        };
        // Nodes that are only asked for are peers too.
        let mut peers = request.peers.iter();
        if peers.any(|peer| peer.ready && peer.group == group.path) {
            return Ok(());
        }
        let standby = (request.slots.iter()).filter(|slot| slot.role() == proto::NodeRole::Standby);
        let limits = limits(&selected.entry().limits);
        match exceeded(&limits, group.size, standby.count() as u32)
            .into_iter()
            .next()
        {
            None => Ok(()),
            Some((field, why)) => {
                let why = format!("template {} {why}", selected.entry().template);
                Err(Error::invalid(format!("group.{field}"), why))
            }
        }
    }

    /// Names of the nodes' ports, from the catalogue entry.
    #[must_use]
    pub fn ports(&self) -> &[String] {
        self.selected
            .as_ref()
            .map_or(&[], |selected| &selected.entry().ports)
    }

    /// Digest of the template, from the catalogue entry. Empty if there is none.
    #[must_use]
    pub fn digest(&self) -> &str {
        self.selected
            .as_ref()
            .map_or("", |selected| &selected.entry().digest)
    }

    /// Content that messages about the request must not repeat.
    #[must_use]
    pub fn hidden(&self) -> &Hidden {
        &self.hidden
    }

    /// Renders user data with `texts`, in the turns of `caller`.
    pub(crate) fn in_turn(mut self, texts: &Arc<Texts>, caller: &str) -> Self {
        self.texts = Arc::clone(texts);
        caller.clone_into(&mut self.caller);
        self
    }

    /// Renders slots at their places, in their order, for as long as they are `wanted`. Fails with `Precondition` if
    /// the template or the user data does not support the values of the request, and with `Unavailable` if user data
    /// cannot be rendered at the moment. Errors neither depend on the content of secrets nor repeat any user data.
    pub(crate) async fn render_all(
        self: &Arc<Self>,
        slots: Vec<(Slot, Place)>,
        wanted: impl Fn() -> bool,
    ) -> Vec<Result<Rendered>> {
        let of_caller = self.text().is_some();
        let mut slots = VecDeque::from(slots);
        let mut all = Vec::with_capacity(slots.len());
        while !slots.is_empty() && wanted() {
            let turn: Option<Box<dyn Send>> = if of_caller {
                let cluster = &self.scope.context().cluster.id;
                Some(Box::new(self.texts.turn(&self.caller, cluster).await))
            } else if self.selected.is_some() {
                Some(Box::new(self.texts.template_turn().await))
            } else {
                None
            };
            let Some(turn) = turn else {
                // There is nothing to evaluate.
                all.extend(
                    slots
                        .drain(..)
                        .map(|(slot, place)| self.render(&slot, &place)),
                );
                break;
            };
            let (this, rest) = (Arc::clone(self), std::mem::take(&mut slots));
            let count = rest.len();
            match tokio::task::spawn_blocking(move || this.slice(rest, turn)).await {
                Ok((made, rest)) => {
                    all.extend(made);
                    slots = rest;
                }
                // The message of a panic may contain secret content.
                Err(_) => {
                    let error = Error::internal("a template could not be rendered: it is a defect");
                    all.extend(std::iter::repeat_n(Err(error), count));
                }
            }
        }
        let left = || {
            Err(Error::new(
                Reason::Cancelled,
                "nobody waits for it any more",
            ))
        };
        all.extend(slots.iter().map(|_| left()));
        all
    }

    /// Renders until the time slice is over. Returns the results and the remaining slots.
    fn slice(
        &self,
        mut slots: VecDeque<(Slot, Place)>,
        turn: Box<dyn Send>,
    ) -> (Vec<Result<Rendered>>, VecDeque<(Slot, Place)>) {
        let began = Instant::now();
        let mut made = Vec::new();
        while let Some((slot, place)) = slots.pop_front() {
            made.push(self.render(&slot, &place));
            if began.elapsed() >= SLICE {
                break;
            }
        }
        drop(turn);
        (made, slots)
    }

    fn render(&self, slot: &Slot, place: &Place) -> Result<Rendered> {
        if let Some(error) = self.fatal.get() {
            return Err(error.clone());
        }
        let made = self.make(self.scope.clone(), slot, place, Content::Real);
        made.map_err(|failed| match failed {
            Failed::Text { error, by_content } => {
                let survived = !is_fatal(self.session.get());
                let error = if by_content {
                    self.without_content(error, slot, place)
                } else {
                    self.hidden.error(error)
                };
                if survived {
                    error
                } else {
                    self.fatal.get_or_init(|| error).clone()
                }
            }
            Failed::Template(error) => self.without_content(error, slot, place),
        })
    }

    /// A template can transform secret content in ways that cannot be enumerated (reversed, or with substituted
    /// characters). Therefore the error is that of a second rendering with placeholders.
    fn without_content(&self, error: Error, slot: &Slot, place: &Place) -> Error {
        let mut context = self.scope.context().clone();
        if context.secrets.is_empty() && self.bootstrap.is_none() {
            return error;
        }
        for content in context.secrets.values_mut() {
            *content = Content::Placeholder.of(content);
        }
        match self.make(context.into(), slot, place, Content::Placeholder) {
            Err(Failed::Text { error, .. } | Failed::Template(error)) => self.hidden.error(error),
            Ok(_) => Error::new(
                Reason::Precondition,
                "its template fails because of what its secrets or its user data hold, and would not with other \
                 content; why is not told, since that could repeat them",
            ),
        }
    }

    fn make(
        &self,
        scope: Scope,
        slot: &Slot,
        place: &Place,
        content: Content,
    ) -> Result<Rendered, Failed> {
        let own = own(&scope, slot, place);
        let bootstrap = self.bootstrap(&scope, &own, content)?;
        // User data that is not text cannot be part of a template; it is passed to the node unchanged.
        let text = bootstrap
            .as_ref()
            .and_then(|data| str::from_utf8(data).ok())
            .map(|text| content.of(text));
        let scope = scope.of_node(&own).with_bootstrap(text.as_deref());
        let document = match &self.selected {
            Some(selected) => selected.render(&scope).map_err(Failed::Template)?,
            None => drover_templates::Rendered::default(),
        };
        Ok(Rendered {
            document,
            bootstrap,
        })
    }

    /// The user data, if it is to be rendered.
    fn text(&self) -> Option<&str> {
        let bootstrap = self.bootstrap.as_ref().filter(|it| it.render)?;
        match &bootstrap.user_data {
            Some(UserData::Text(text)) => Some(text),
            Some(UserData::Binary(_)) | None => None,
        }
    }

    fn bootstrap(
        &self,
        scope: &Scope,
        own: &NodeScope,
        content: Content,
    ) -> Result<Option<Vec<u8>>, Failed> {
        let Some(bootstrap) = &self.bootstrap else {
            return Ok(None);
        };
        let Some(text) = self.text() else {
            return Ok(match &bootstrap.user_data {
                Some(UserData::Text(text)) => Some(text.clone().into_bytes()),
                Some(UserData::Binary(data)) => Some(data.clone()),
                None => None,
            });
        };
        let begin = || Session::new(BOOTSTRAP, text, scope.context());
        let rendered = if bootstrap.parse_only {
            let session = Session::new(BOOTSTRAP, text, &Context::default());
            let parsed = session.and_then(|session| self.texts.parse(&session));
            parsed.map(|()| Content::Placeholder.of(text))
        } else if content == Content::Placeholder {
            begin().and_then(|session| self.texts.render(&session, own.clone()))
        } else {
            let session = self.session.get_or_init(begin).as_ref();
            let session = session.map_err(Clone::clone);
            session.and_then(|session| self.texts.render(session, own.clone()))
        };
        let text = rendered.map_err(|error| Failed::Text {
            by_content: error.class() == Class::Cannot
                && !scope.context().secrets.is_empty()
                && sees_secrets(text),
            error,
        })?;
        Ok(Some(text.into_bytes()))
    }
}

fn is_fatal(session: Option<&Result<Session>>) -> bool {
    session.is_some_and(|session| session.as_ref().is_ok_and(Session::is_fatal))
}

#[cfg(test)]
mod tests;
