//! Manifests: reads YAML or JSON as requests for the orchestrator, and writes and explains it. Documents of other tools
//! are recognised and converted.
//!
//! Only the files that a manifest names are read here; where the manifests themselves come from, and where diagnostics
//! go, is up to the caller.

mod content;
mod convert;
mod decode;
mod diagnostic;
mod document;
pub mod encode;
mod error;
pub mod explain;
pub mod path;
pub mod scalar;
pub mod schema;
mod syntax;
#[cfg(test)]
mod tests;
mod tip;
mod tree;
mod words;
pub mod yaml;

use std::{
    borrow::Cow,
    collections::{BTreeMap, BTreeSet},
    io::Read,
    path::PathBuf,
    sync::Arc,
};

use drover_core::error::Violation;
use drover_proto::orchestrator::v1::{ApplySecretRequest, Cluster, Platform, PlatformSpec};

use self::{
    convert::{Origin, capm, sip},
    decode::{Decoder, file},
    diagnostic::Hidden,
    path::join,
    tree::{MAX_FILE_BYTES, Node, Source, Span},
    words::{no_platform, sentence},
};
pub use self::{
    diagnostic::{Diagnostic, Diagnostics},
    error::Error,
};

/// `apiVersion` of all manifests.
pub(crate) const API_VERSION: &str = "drover.dev/v1";

/// A document that is parsed but not yet decoded.
#[derive(Clone, Debug)]
struct Raw {
    source: Arc<Source>,
    base: PathBuf,
    root: Node,
}

/// All documents of one command.
#[derive(Debug, Default)]
pub struct Manifests {
    raw: Vec<Raw>,
    unreadable: Vec<Diagnostic>,
}

/// A decoded document.
#[derive(Debug)]
pub struct Document<T> {
    /// What the orchestrator is asked for.
    pub object: T,
    source: Arc<Source>,
    /// Further files with parts of it, as [`tree::Span::file`] counts them.
    files: Arc<[Arc<Source>]>,
    root: Node,
    /// Lines that must not be shown with problems that the server reports.
    hidden: Vec<Hidden>,
    /// Whether it lacks a part of what it was converted from, so that what it lacks means nothing.
    partial: bool,
}

/// All documents, in the order in which they are applied.
#[derive(Debug, Default)]
pub struct Objects {
    /// Secrets.
    pub secrets: Vec<Document<ApplySecretRequest>>,
    /// Platforms, also those that converted documents name by an address.
    pub platforms: Vec<Document<Platform>>,
    /// Clusters.
    pub clusters: Vec<Document<Cluster>>,
    /// Warnings about converted documents, each a sentence.
    pub warnings: Vec<String>,
    /// What is wrong. If there is anything, the documents may be incomplete.
    pub diagnostics: Diagnostics,
    /// Plugins of converted documents that are not platforms; already reported.
    unresolved: BTreeSet<String>,
}

impl Manifests {
    /// Whether no document was added, readable or not.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.raw.is_empty() && self.unreadable.is_empty()
    }

    /// Adds the documents of one file. `name` is how diagnostics call it; paths in it are relative to `base`. Documents
    /// that cannot be parsed are reported by [`Manifests::decode`]; only what is no text is an error.
    pub fn add(&mut self, name: &str, base: PathBuf, content: Vec<u8>) -> Result<(), Error> {
        // UTF-16 contains NUL bytes, and its byte order mark is not UTF-8.
        let wide = content.starts_with(&[0xff, 0xfe])
            || content.starts_with(&[0xfe, 0xff])
            || content.contains(&0);
        let text = String::from_utf8(content).ok().filter(|_| !wide);
        match text {
            Some(text) => self.add_text(name, base, text),
            None if wide => return Err(Error::Wide(name.to_owned())),
            None => return Err(Error::NotText(name.to_owned())),
        }
        Ok(())
    }

    /// Adds the documents of one text, as [`Manifests::add`] does.
    pub fn add_text(&mut self, name: &str, base: PathBuf, text: String) {
        let text = text
            .strip_prefix('\u{feff}')
            .map_or(text.clone(), str::to_owned);
        let source = Source::new(name, text);
        let mut diagnostics = Diagnostics::default();
        for root in tree::parse(&source, &mut diagnostics) {
            self.raw.push(Raw {
                source: source.clone(),
                base: base.clone(),
                root,
            });
        }
        self.unreadable.extend(diagnostics.items().iter().cloned());
    }

    /// Decodes all documents. `registered` are the platforms of the orchestrator, if it answered.
    #[must_use]
    pub fn decode(&self, registered: Option<&[String]>) -> Objects {
        let mut objects = Objects::default();
        for diagnostic in &self.unreadable {
            objects.diagnostics.push(diagnostic.clone());
        }
        let names = registered.map(|names| {
            let own = self
                .raw
                .iter()
                .filter(|raw| raw.kind() == Some("Platform"))
                .filter_map(Raw::name);
            names
                .iter()
                .cloned()
                .chain(own)
                .collect::<BTreeSet<String>>()
        });
        for raw in &self.raw {
            objects.diagnostics.hide_secrets(&raw.source, &raw.root);
        }
        let mut bundle = capm::Bundle::default();
        let mut named = sip::secrets::Named::default();
        let all: Vec<Cow<'_, Raw>> = self.raw.iter().flat_map(Raw::unfold).collect();
        for raw in &all {
            named.add(&raw.root);
            if convert::recognise(&raw.root) == Origin::ClusterApi {
                bundle.add(&raw.source, &raw.root);
            }
        }
        for raw in &all {
            let origin = convert::recognise(&raw.root);
            // A Secret of Kubernetes only has a meaning beside documents that refer to it.
            if origin == Origin::Kubernetes
                && let Some(used) = named.used(&raw.root)
            {
                objects.add_secret(raw, used);
                continue;
            }
            match origin {
                Origin::ClusterApi => {}
                Origin::Kubernetes if !bundle.is_empty() => bundle.add(&raw.source, &raw.root),
                Origin::Kubernetes if named.any() => {
                    let title = sip::secrets::title(&raw.root);
                    objects.warnings.push(sip::secrets::left_out(&title));
                }
                _ => objects.add(raw, origin, names.as_ref()),
            }
        }
        objects.add_bundle(bundle, names.as_ref());
        objects.check_names();
        if let Some(names) = names {
            objects.check_platforms(names);
        }
        objects.hide();
        objects
    }
}

/// Reads the content of a manifest. More than 4 MiB is an error.
pub fn read(stream: impl Read) -> std::io::Result<Vec<u8>> {
    content::read_stream(stream, MAX_FILE_BYTES)
}

impl Raw {
    /// The document, or what it lists.
    fn unfold(&self) -> Vec<Cow<'_, Self>> {
        let items = convert::items(&self.root);
        if items.is_empty() {
            return vec![Cow::Borrowed(self)];
        }
        let item = |root: &Node| Self {
            root: root.clone(),
            ..self.clone()
        };
        items.iter().map(|root| Cow::Owned(item(root))).collect()
    }

    fn kind(&self) -> Option<&str> {
        self.root.get("kind").and_then(Node::text)
    }

    fn name(&self) -> Option<String> {
        self.root
            .get("metadata")?
            .get("name")?
            .text()
            .map(str::to_owned)
    }

    fn document<T>(&self, object: T, root: &Node) -> Document<T> {
        Document {
            object,
            source: self.source.clone(),
            files: Arc::default(),
            root: root.clone(),
            hidden: Vec::new(),
            partial: false,
        }
    }
}

impl Objects {
    fn add(&mut self, raw: &Raw, origin: Origin, registered: Option<&BTreeSet<String>>) {
        let before = self.diagnostics.count();
        let mut decoder = Decoder {
            source: &raw.source,
            files: &[],
            base: raw.base.clone(),
            diagnostics: &mut self.diagnostics,
            kind: Some("cluster"),
        };
        match origin {
            Origin::Drover | Origin::Kubernetes | Origin::ClusterApi => {}
            Origin::Kadende => {
                decoder.kind = None;
                let converted = convert::kadende(&mut decoder, &raw.root, registered);
                let cluster = document::cluster(&mut decoder, &converted.cluster);
                let partial = self.diagnostics.count() > before;
                self.clusters.extend(cluster.map(|cluster| Document {
                    partial,
                    ..raw.document(cluster, &converted.cluster)
                }));
                for (name, endpoint) in converted.platforms {
                    let spec = PlatformSpec {
                        endpoint,
                        ..Default::default()
                    };
                    let platform = Platform {
                        name,
                        spec: Some(spec),
                        ..Default::default()
                    };
                    // What is wrong with its name is wrong in the cluster.
                    self.platforms.push(Document {
                        partial: true,
                        ..raw.document(platform, &converted.cluster)
                    });
                }
                self.warnings.extend(converted.warnings);
                self.unresolved.extend(converted.unresolved);
                return;
            }
            Origin::Sip => {
                decoder.kind = None;
                let (root, warnings) = convert::sip(&mut decoder, &raw.root);
                self.warnings.extend(warnings);
                if let Some(root) = root
                    && let Some(cluster) = document::cluster(&mut decoder, &root)
                {
                    let partial = self.diagnostics.count() > before;
                    self.clusters.push(Document {
                        partial,
                        ..raw.document(cluster, &root)
                    });
                }
                return;
            }
            Origin::Unsupported(what) => {
                let span = raw.root.get("kind").map_or(raw.root.span, |kind| kind.span);
                decoder.error(span, "kind", format!("{what} is not supported yet"), "expected Cluster, Platform or Secret of drover.dev/v1, a Kadende configuration, a SIPCluster, or documents of the metal-stack provider for Cluster API");
                return;
            }
        }
        match document::kind(&mut decoder, &raw.root) {
            Some("Cluster") => {
                if let Some(cluster) = document::cluster(&mut decoder, &raw.root) {
                    self.clusters.push(raw.document(cluster, &raw.root));
                }
            }
            Some("Platform") => {
                decoder.kind = Some("platform");
                if let Some(platform) = document::platform(&mut decoder, &raw.root) {
                    self.platforms.push(raw.document(platform, &raw.root));
                }
            }
            Some("Secret") => {
                decoder.kind = None;
                decoder.hide(&raw.root);
                if let Some(secret) = document::secret(&mut decoder, &raw.root) {
                    self.secrets.push(raw.document(secret, &raw.root));
                }
            }
            _ => {}
        }
    }

    /// Adds a Secret of Kubernetes that a SIPCluster names.
    fn add_secret(&mut self, raw: &Raw, used: sip::secrets::Use) {
        let before = self.diagnostics.count();
        let mut decoder = Decoder {
            source: &raw.source,
            files: &[],
            base: raw.base.clone(),
            diagnostics: &mut self.diagnostics,
            kind: None,
        };
        let root = sip::secrets::convert(&mut decoder, &raw.root, used);
        if let Some(secret) = document::secret(&mut decoder, &root) {
            let partial = self.diagnostics.count() > before;
            self.secrets.push(Document {
                partial,
                ..raw.document(secret, &root)
            });
        }
    }

    /// Adds the clusters that documents of the Cluster API describe together.
    fn add_bundle(&mut self, bundle: capm::Bundle, registered: Option<&BTreeSet<String>>) {
        let before = self.diagnostics.count();
        let converted = bundle.convert(&mut self.diagnostics, registered);
        let Some(first) = converted.files.first() else {
            return;
        };
        for cluster in converted.clusters {
            let source = file(first, &converted.files, cluster.root.span).clone();
            let mut decoder = Decoder {
                source: &source,
                files: &converted.files,
                base: PathBuf::new(),
                diagnostics: &mut self.diagnostics,
                kind: None,
            };
            if let Some(object) = document::cluster(&mut decoder, &cluster.root) {
                self.clusters.push(Document {
                    object,
                    source,
                    files: converted.files.clone(),
                    root: cluster.root,
                    hidden: Vec::new(),
                    partial: self.diagnostics.count() > before,
                });
            }
        }
        self.warnings.extend(converted.warnings);
        self.unresolved.extend(converted.unresolved);
    }

    /// Lines that are hidden now stay hidden in later diagnostics.
    fn hide(&mut self) {
        let hidden = self.diagnostics.hidden();
        for document in &mut self.clusters {
            document.hidden = hidden.to_vec();
        }
        for document in &mut self.platforms {
            document.hidden = hidden.to_vec();
        }
        for document in &mut self.secrets {
            document.hidden = hidden.to_vec();
        }
    }

    /// Refuses two documents for one object: which of them wins would be arbitrary.
    fn check_names(&mut self) {
        let mut seen: BTreeMap<_, String> = BTreeMap::new();
        let mut twice = Vec::new();
        let secrets = self
            .secrets
            .iter()
            .map(|d| ("secret", &d.object.name, d.refusal("")));
        let platforms = self
            .platforms
            .iter()
            .map(|d| ("platform", &d.object.name, d.refusal("")));
        let clusters = self
            .clusters
            .iter()
            .map(|d| ("cluster", &d.object.name, d.refusal("")));
        for (kind, name, mut diagnostic) in secrets.chain(platforms).chain(clusters) {
            // What has no name is refused for that.
            if name.is_empty() {
                continue;
            }
            let place = format!("{}:{}", diagnostic.source.name, diagnostic.span.line);
            if let Some(first) = seen.get(&(kind, name.clone())) {
                diagnostic.path = "metadata.name".into();
                diagnostic.message = format!("{kind} `{name}` is defined twice (first in {first})");
                twice.push(diagnostic);
            } else {
                seen.insert((kind, name.clone()), place);
            }
        }
        twice
            .into_iter()
            .for_each(|diagnostic| self.diagnostics.push(diagnostic));
    }

    /// Checks that all platforms of the clusters will exist.
    fn check_platforms(&mut self, mut registered: BTreeSet<String>) {
        registered.extend(
            self.platforms
                .iter()
                .map(|document| document.object.name.clone()),
        );
        for document in &self.clusters {
            for (path, name) in platform_names(&document.object) {
                if !name.is_empty()
                    && !registered.contains(&name)
                    && !self.unresolved.contains(&name)
                {
                    let message = no_platform(&name, &registered);
                    let diagnostic = document.at(&path, message);
                    self.diagnostics.push(diagnostic);
                }
            }
        }
    }
}

impl<T> Document<T> {
    /// A problem that the server reports, at its position in the manifest.
    #[must_use]
    pub fn violation(&self, violation: &Violation) -> Diagnostic {
        let words = &violation.description;
        let mut diagnostic = self.at(&violation.field, String::new());
        // A message about a name follows the name, unless it repeats it.
        let is_name = violation.field.rsplit('.').next() == Some("name");
        diagnostic.message = if is_name && words.starts_with("is ") {
            format!("the name {words}")
        } else {
            sentence(&diagnostic.path, words)
        };
        diagnostic
    }

    /// Adds what is wrong with the object, unless something is known to be wrong there: where a value could not be read,
    /// the object has none.
    pub fn report(
        &self,
        wrong: impl IntoIterator<Item = Violation>,
        diagnostics: &mut Diagnostics,
    ) {
        if self.partial {
            return;
        }
        let lines = self.root.lines();
        let is_of = |known: &&Diagnostic| {
            Arc::ptr_eq(&known.source, &self.source) && lines.contains(&known.span.line)
        };
        let known: Vec<Diagnostic> = diagnostics.items().iter().filter(is_of).cloned().collect();
        for violation in wrong {
            let diagnostic = self.violation(&violation);
            if !known.iter().any(|known| known.explains(&diagnostic.path)) {
                diagnostics.push(diagnostic);
            }
        }
    }

    /// A diagnostic about one of its fields.
    fn at(&self, field: &str, message: String) -> Diagnostic {
        let (span, path) = path::locate(&self.root, field);
        let source = file(&self.source, &self.files, span);
        Diagnostic::new(source, span, path, message).secret(self.is_secret(source, span))
    }

    fn is_secret(&self, source: &Arc<Source>, span: Span) -> bool {
        self.hidden
            .iter()
            .any(|(hidden, lines)| Arc::ptr_eq(hidden, source) && lines.contains(&span.line))
    }

    /// A diagnostic about the whole document.
    #[must_use]
    pub fn refusal(&self, message: impl Into<String>) -> Diagnostic {
        let (span, _) = path::locate(&self.root, "metadata.name");
        let source = file(&self.source, &self.files, span);
        Diagnostic::new(source, span, "", message).secret(self.is_secret(source, span))
    }

    /// Name of its source.
    #[must_use]
    pub fn origin(&self) -> &str {
        &self.source.name
    }
}

/// All platforms in a cluster, with the paths of their names.
fn platform_names(cluster: &Cluster) -> Vec<(String, String)> {
    let mut names = Vec::new();
    let Some(spec) = &cluster.spec else {
        return names;
    };
    let choices = |path: &str,
                   choices: &[drover_proto::orchestrator::v1::PlatformChoice],
                   names: &mut Vec<_>| {
        for (position, choice) in choices.iter().enumerate() {
            names.push((
                format!("{path}.platforms[{position}].name"),
                choice.name.clone(),
            ));
        }
    };
    choices("spec", &spec.platforms, &mut names);
    let mut open: Vec<(String, &drover_proto::orchestrator::v1::GroupSpec)> = spec
        .groups
        .iter()
        .map(|group| (join("spec.groups", &group.name), group))
        .collect();
    while let Some((path, group)) = open.pop() {
        choices(&path, &group.platforms, &mut names);
        open.extend(
            group
                .groups
                .iter()
                .map(|inner| (join(&format!("{path}.groups"), &inner.name), inner)),
        );
    }
    for (position, infrastructure) in spec.infrastructure.iter().enumerate() {
        names.push((
            format!("spec.infrastructure[{position}].platform"),
            infrastructure.platform.clone(),
        ));
    }
    for (position, addon) in spec.addons.iter().enumerate() {
        names.push((
            format!("spec.addons[{position}].platform"),
            addon.platform.clone(),
        ));
    }
    names
}
