//! Loading, selection and reloading of catalogues.

mod directory;

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    sync::Arc,
};

use drover_core::{Error, Reason, Result, name};
use minijinja::Environment;
use parking_lot::Mutex;
use serde_json::{Map, Value};
use serde_saphyr::Spanned;

use self::directory::{Stamps, stamps};
use crate::{
    digest::digest,
    index::{EntryFile, Health, IndexFile, Lifecycle, Limits, ManagementPolicy, Matcher, Port},
    render::{self, Position, Rendered},
    scope::Scope,
    version::Requirement,
};

/// Name of the index file in a catalogue.
const INDEX: &str = "index.yaml";

/// A catalogue file that is embedded in a program.
#[derive(Clone, Copy, Debug)]
pub struct EmbeddedFile {
    /// Name within the catalogue; `index.yaml` is the index.
    pub name: &'static str,
    /// Content, usually from `include_str!`.
    pub content: &'static str,
}

/// Embeds a file of a catalogue: its directory relative to the source, with a slash at the end, and its name.
#[macro_export]
macro_rules! embedded {
    ($directory:literal, $name:literal) => {
        $crate::EmbeddedFile {
            name: $name,
            content: include_str!(concat!($directory, $name)),
        }
    };
}

/// The templates of a platform: those of a directory first, then the embedded ones.
///
/// Cheap to share behind an `Arc`. Reading files blocks; call [`open`](Self::open) and
/// [`reload_if_changed`](Self::reload_if_changed) where blocking is allowed.
#[derive(Debug)]
pub struct Catalogue {
    embedded: Option<Arc<Layer>>,
    directory: Option<PathBuf>,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    user: Option<Arc<Layer>>,
    stamps: Stamps,
    warning: Option<String>,
}

/// Selection criteria.
#[derive(Clone, Copy, Debug)]
pub struct Query<'a> {
    /// Store software. Empty for the default entry.
    pub store: &'a str,
    /// Store version. Empty for any, so that the first entry of the store is selected.
    pub version: &'a str,
    /// Merged attributes of the group.
    pub attributes: &'a Map<String, Value>,
}

/// A catalogue entry, for listing.
#[derive(Clone, Debug, PartialEq)]
pub struct Entry {
    /// Store software. Empty for the default entry and for addons.
    pub store: String,
    /// Versions that it supports. `None` for the default entry and for addons.
    pub version: Option<Requirement>,
    /// Matchers that the attributes must satisfy.
    pub matchers: BTreeMap<String, Matcher>,
    /// Name of the template: its file, or the name of the addon.
    pub template: String,
    /// Whether it creates an addon.
    pub addon: bool,
    /// Options passed to the template.
    pub options: Map<String, Value>,
    /// Names of its nodes' ports.
    pub ports: Vec<String>,
    /// Default health policy.
    pub health: Option<Health>,
    /// Default order within a group.
    pub management_policy: Option<ManagementPolicy>,
    /// Default lifecycle hooks.
    pub lifecycle: Option<Lifecycle>,
    /// What groups may ask for.
    pub limits: Limits,
    /// SHA-256 in hexadecimal of everything that nodes are created from: the template, the files that it refers to (all
    /// files, if it computes a name), options and ports. The same content has the same digest on every machine.
    pub digest: String,
    file: String,
}

/// A selected entry, ready to be rendered. It is not affected by reloads of the catalogue.
#[derive(Clone, Debug)]
pub struct Selected {
    layer: Arc<Layer>,
    entry: Entry,
}

/// Outcome of [`Catalogue::reload_if_changed`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reload {
    /// No file has changed.
    Unchanged,
    /// The new catalogue is in use.
    Reloaded,
    /// The new catalogue is invalid, for this reason; the last valid one stays in use. Returned once per change.
    Refused(String),
}

/// The entries and templates of one source.
#[derive(Debug)]
struct Layer {
    /// Prefix of file names in errors: the directory, or empty for embedded files.
    prefix: String,
    entries: Vec<Entry>,
    unlisted: Option<Entry>,
    environment: Environment<'static>,
}

pub(crate) type Files = BTreeMap<String, String>;

impl Catalogue {
    /// Creates a catalogue that is embedded in the program.
    ///
    /// # Errors
    ///
    /// `Invalid` with file, line and column.
    pub fn embedded(files: &[EmbeddedFile]) -> Result<Self> {
        Self::open(files, None)
    }

    /// Creates a catalogue from a directory, if given, followed by embedded files. Entries of the directory take
    /// precedence, and so does its default entry.
    ///
    /// # Errors
    ///
    /// `Invalid` with file, line and column; `Precondition` if the directory cannot be read.
    pub fn open(files: &[EmbeddedFile], directory: Option<&Path>) -> Result<Self> {
        let embedded = if files.is_empty() {
            None
        } else {
            let files = files
                .iter()
                .map(|file| (file.name.to_owned(), file.content.to_owned()))
                .collect();
            Some(Arc::new(Layer::parse("built-in/", files)?))
        };
        let mut state = State {
            user: None,
            stamps: Stamps::new(),
            warning: None,
        };
        if let Some(directory) = directory {
            state.stamps = stamps(directory)?;
            state.user = Some(Arc::new(Layer::read(directory, &state.stamps)?));
        }
        Ok(Self {
            embedded,
            directory: directory.map(Path::to_owned),
            state: Mutex::new(state),
        })
    }

    /// Reloads the directory if any of its files has changed.
    pub fn reload_if_changed(&self) -> Reload {
        let Some(directory) = &self.directory else {
            return Reload::Unchanged;
        };
        let found = match stamps(directory) {
            Ok(found) => found,
            Err(error) => return self.refuse(Stamps::new(), error.message()),
        };
        if self.state.lock().stamps == found {
            return Reload::Unchanged;
        }
        match Layer::read(directory, &found) {
            Ok(layer) => {
                let mut state = self.state.lock();
                *state = State {
                    user: Some(Arc::new(layer)),
                    stamps: found,
                    warning: None,
                };
                Reload::Reloaded
            }
            Err(error) => self.refuse(found, error.message()),
        }
    }

    fn refuse(&self, stamps: Stamps, why: &str) -> Reload {
        let warning = format!(
            "the template catalogue was changed and is wrong, the last good one stays in force: {why}"
        );
        let mut state = self.state.lock();
        state.stamps = stamps;
        if state.warning.as_ref() == Some(&warning) {
            return Reload::Unchanged;
        }
        state.warning = Some(warning.clone());
        Reload::Refused(warning)
    }

    /// Warning for the operator: why the catalogue on disk is not the one in use.
    #[must_use]
    pub fn warning(&self) -> Option<String> {
        self.state.lock().warning.clone()
    }

    /// All entries in the order in which they are tried: nodes first, then addons.
    #[must_use]
    pub fn entries(&self) -> Vec<Entry> {
        let layers = self.layers();
        let all = || layers.iter().flat_map(|layer| &layer.entries);
        all()
            .filter(|entry| !entry.addon)
            .chain(all().filter(|entry| entry.addon))
            .cloned()
            .collect()
    }

    /// Selects the first matching entry.
    ///
    /// # Errors
    ///
    /// `TemplateNotFound`; the message contains the query and the available entries.
    pub fn select(&self, query: Query<'_>) -> Result<Selected> {
        self.find(|entry| entry.fits(query))
            .ok_or_else(|| self.not_found(query))
    }

    /// The template for replacing nodes of stores that no entry fits any more. Not listed, as nothing new is made from it.
    #[must_use]
    pub fn unlisted(&self) -> Option<Selected> {
        self.layers().into_iter().find_map(|layer| {
            let entry = layer.unlisted.clone()?;
            Some(Selected { layer, entry })
        })
    }

    /// Selects the template of an addon by name.
    ///
    /// # Errors
    ///
    /// `TemplateNotFound`; the message lists the available addons.
    pub fn select_addon(&self, name: &str) -> Result<Selected> {
        self.find(|entry| entry.addon && entry.template == name)
            .ok_or_else(|| {
                let offered = self.offered(|entry| entry.addon.then(|| entry.template.clone()));
                let entries = self.entries();
                let addons = entries.iter().filter(|entry| entry.addon);
                let meant = meant(name, addons.map(|entry| entry.template.as_str()));
                Error::new(
                    Reason::TemplateNotFound,
                    format!("no addon template `{name}`; the catalogue offers {offered}{meant}"),
                )
                .with_resource("template", name)
            })
    }

    fn find(&self, fits: impl Fn(&Entry) -> bool) -> Option<Selected> {
        self.layers().into_iter().find_map(|layer| {
            let entry = layer.entries.iter().find(|entry| fits(entry))?.clone();
            Some(Selected { layer, entry })
        })
    }

    fn layers(&self) -> Vec<Arc<Layer>> {
        self.state
            .lock()
            .user
            .iter()
            .chain(&self.embedded)
            .cloned()
            .collect()
    }

    fn not_found(&self, query: Query<'_>) -> Error {
        let offered = self.offered(|entry| (!entry.addon).then(|| entry.describe()));
        let asked = match (query.store, query.version) {
            ("", _) => "no store".to_owned(),
            (store, "") => format!("store `{store}`"),
            (store, version) => format!("store `{store}` version `{version}`"),
        };
        // Only the names of attributes are shown, because their values belong to the user.
        let names = query
            .attributes
            .keys()
            .map(String::as_str)
            .collect::<Vec<_>>();
        let with = if names.is_empty() {
            String::new()
        } else {
            format!(" with attributes {}", names.join(", "))
        };
        let entries = self.entries();
        let nodes = entries.iter().filter(|entry| !entry.addon);
        let meant = meant(query.store, nodes.map(|entry| entry.store.as_str()));
        Error::new(
            Reason::TemplateNotFound,
            format!("no template for {asked}{with}; the catalogue offers {offered}{meant}"),
        )
        .with_resource(
            "template",
            if query.store.is_empty() {
                "default"
            } else {
                query.store
            },
        )
        .with_metadata("store", query.store)
        .with_metadata("version", query.version)
    }

    fn offered(&self, describe: impl Fn(&Entry) -> Option<String>) -> String {
        let offered = self
            .entries()
            .iter()
            .filter_map(describe)
            .collect::<Vec<_>>();
        if offered.is_empty() {
            "none".to_owned()
        } else {
            offered.join(", ")
        }
    }
}

/// A suggestion instead of a name that is not offered. Empty if it is offered, or if none is similar.
fn meant<'a>(wrong: &str, offered: impl Iterator<Item = &'a str>) -> String {
    match name::closest(wrong, offered.filter(|name| !name.is_empty())) {
        Some(name) if name != wrong => format!("; did you mean `{name}`?"),
        _ => String::new(),
    }
}

impl Selected {
    /// The selected entry.
    #[must_use]
    pub fn entry(&self) -> &Entry {
        &self.entry
    }

    /// Renders the template with the `options` of the entry.
    ///
    /// # Errors
    ///
    /// `Precondition` with file, line and column, without any rendered content.
    pub fn render(&self, scope: &Scope) -> Result<Rendered> {
        let scope = scope.clone().with_options(&self.entry.options);
        let name = format!("{}{}", self.layer.prefix, self.entry.file);
        render::render(&self.layer.environment, &self.entry.file, &name, scope)
    }
}

impl Entry {
    fn fits(&self, query: Query<'_>) -> bool {
        !self.addon
            && self.store == query.store
            && self
                .version
                .as_ref()
                .is_none_or(|version| version.accepts(query.version))
            && self
                .matchers
                .iter()
                .all(|(name, matcher)| matcher.accepts(query.attributes.get(name)))
    }

    fn describe(&self) -> String {
        let version = self
            .version
            .as_ref()
            .map_or_else(|| "no store".to_owned(), |v| format!("{} {v}", self.store));
        if self.matchers.is_empty() {
            return version;
        }
        let matchers = self
            .matchers
            .iter()
            .map(|(name, matcher)| format!("{name}={}", matcher.to_value()));
        format!("{version} with {}", matchers.collect::<Vec<_>>().join(" "))
    }
}

impl Layer {
    fn read(path: &Path, stamps: &Stamps) -> Result<Self> {
        let files = directory::read(path, stamps)?;
        Self::parse(&format!("{}/", path.display()), files)
    }

    fn parse(prefix: &str, mut files: Files) -> Result<Self> {
        let index = files.remove(INDEX).ok_or_else(|| {
            Error::invalid(
                format!("{prefix}{INDEX}"),
                "a template catalogue needs this file",
            )
        })?;
        let place = format!("{prefix}{INDEX}");
        let mut index: IndexFile =
            serde_saphyr::from_str_with_options(&index, render::yaml_options()).map_err(
                |error| {
                    let at = Position::of(error.location());
                    wrong(&place, &at, &message(&error))
                },
            )?;
        let mut environment = render::environment();
        for (name, source) in &files {
            environment
                .add_template_owned(name.clone(), source.clone())
                .map_err(|error| {
                    render::template_error(&format!("{prefix}{name}"), &error, Reason::Invalid)
                })?;
        }
        let unlisted = index.unlisted.take();
        let unlisted = unlisted.map(|file| plain(&place, file, &files));
        let unlisted = unlisted.transpose()?;
        let entries = entries(&place, index, &files)?;
        Ok(Self {
            prefix: prefix.to_owned(),
            entries,
            unlisted,
            environment,
        })
    }
}

/// Builds an [`Entry`] from one of the structs of the index file.
macro_rules! entry {
    ($check:expr, $file:expr, $($field:ident: $value:expr),* $(,)?) => {{
        let file = $file;
        $check.template(&file.template)?;
        if let Some(health) = &file.health {
            $check.health(health, &file.ports)?;
        }
        Entry {
            digest: digest(&file.template.value, &file.options, &file.ports, $check.files),
            file: file.template.value,
            options: file.options,
            ports: file.ports,
            health: file.health.map(|health| health.value),
            management_policy: file.management_policy,
            lifecycle: file.lifecycle,
            limits: file.limits,
            $($field: $value,)*
        }
    }};
}

/// An entry that is of no store.
fn plain(place: &str, file: EntryFile, files: &Files) -> Result<Entry> {
    let check = Check { place, files };
    let template = file.template.value.clone();
    Ok(entry!(check, file,
        store: String::new(), version: None, matchers: BTreeMap::new(), template: template, addon: false))
}

fn entries(place: &str, index: IndexFile, files: &Files) -> Result<Vec<Entry>> {
    let check = Check { place, files };
    let mut entries = Vec::new();
    if let Some(file) = index.default {
        entries.push(plain(place, file, files)?);
    }
    for store in index.stores {
        if store.store.value.is_empty() {
            return Err(check.wrong(
                &store.store,
                "a store has a name; clusters without one use `default`",
            ));
        }
        for file in store.versions {
            let (template, version, matchers) = (
                file.template.value.clone(),
                file.version.clone(),
                file.matchers.clone(),
            );
            entries.push(entry!(check, file,
                store: store.store.value.clone(), version: Some(version), matchers: matchers, template: template,
                addon: false));
        }
    }
    for file in index.addons {
        let name = file.name.value.clone();
        if name.is_empty()
            || entries
                .iter()
                .any(|entry: &Entry| entry.addon && entry.template == name)
        {
            return Err(check.wrong(&file.name, "every addon has a name of its own"));
        }
        entries.push(entry!(check, file,
            store: String::new(), version: None, matchers: BTreeMap::new(), template: name, addon: true));
    }
    Ok(entries)
}

/// Validates what the types of the index file cannot express.
struct Check<'a> {
    place: &'a str,
    files: &'a Files,
}

impl Check<'_> {
    fn template(&self, name: &Spanned<String>) -> Result<()> {
        if self.files.contains_key(&name.value) {
            return Ok(());
        }
        let there = self
            .files
            .keys()
            .map(String::as_str)
            .collect::<Vec<_>>()
            .join(", ");
        Err(self.wrong(
            name,
            &format!(
                "there is no template file `{}`; there are: {there}",
                name.value
            ),
        ))
    }

    fn health(&self, health: &Spanned<Health>, ports: &[String]) -> Result<()> {
        match health.value.probe.as_ref().and_then(|probe| probe.port()) {
            Some(Port::Name(name)) if !ports.contains(name) => {
                Err(self.wrong(health, &format!("port `{name}` is not one of `ports`")))
            }
            _ => Ok(()),
        }
    }

    fn wrong<T>(&self, at: &Spanned<T>, what: &str) -> Error {
        wrong(self.place, &Position::of(Some(at.referenced)), what)
    }
}

fn wrong(place: &str, at: &Position, what: &str) -> Error {
    let Position { line, column } = at;
    Error::invalid(format!("{place}:{line}:{column}"), what)
        .with_metadata("file", place)
        .with_metadata("line", line)
        .with_metadata("column", column)
}

/// The index is not secret, so errors may repeat its content.
fn message(error: &serde_saphyr::Error) -> String {
    let text = error.without_snippet().to_string();
    text.lines().next().unwrap_or_default().to_owned()
}
