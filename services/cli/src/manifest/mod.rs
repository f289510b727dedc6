//! Manifests: YAML or JSON from files, directories and standard input, as requests for the orchestrator.

pub(crate) mod decode;
pub(crate) mod diagnostic;
mod document;
pub(crate) mod encode;
pub(crate) mod explain;
pub(crate) mod path;
pub(crate) mod scalar;
pub(crate) mod schema;
#[cfg(test)]
mod tests;
pub(crate) mod tree;
pub(crate) mod yaml;

use std::{
    collections::BTreeSet,
    fs,
    io::IsTerminal,
    path::{Path, PathBuf},
    sync::Arc,
};

use anyhow::{Context, bail};
use drover_core::error::Violation;
use drover_proto::orchestrator::v1::{ApplySecretRequest, Cluster, Platform, PlatformSpec};

use self::{
    decode::{Decoder, read_limited, read_stream},
    diagnostic::{Diagnostic, Diagnostics},
    path::join,
    tree::{MAX_FILE_BYTES, Node, Source},
};
use crate::convert::{self, Origin};

/// The version that every manifest names.
pub(crate) const API_VERSION: &str = "drover.dev/v1";

/// A document that was read but not yet decoded.
#[derive(Debug)]
struct Raw {
    source: Arc<Source>,
    base: PathBuf,
    root: Node,
}

/// All documents of one command.
#[derive(Debug, Default)]
pub(crate) struct Manifests {
    raw: Vec<Raw>,
    unreadable: Vec<Diagnostic>,
    hidden: Vec<Arc<Source>>,
}

/// A decoded document.
#[derive(Debug)]
pub(crate) struct Document<T> {
    pub(crate) object: T,
    source: Arc<Source>,
    root: Node,
}

/// All documents, by the order in which they are applied.
#[derive(Debug, Default)]
pub(crate) struct Objects {
    pub(crate) secrets: Vec<Document<ApplySecretRequest>>,
    pub(crate) platforms: Vec<Document<Platform>>,
    pub(crate) clusters: Vec<Document<Cluster>>,
    /// What was converted and may surprise, each a sentence.
    pub(crate) warnings: Vec<String>,
    pub(crate) diagnostics: Diagnostics,
    /// Plugins of converted documents that are no platforms; reported already.
    unresolved: BTreeSet<String>,
}

impl Manifests {
    /// Reads files, directories (their `.yaml`, `.yml` and `.json` files, by name) and standard input (`-`).
    pub(crate) fn read(inputs: &[String]) -> anyhow::Result<Self> {
        let mut manifests = Self::default();
        for input in inputs {
            if input == "-" {
                if std::io::stdin().is_terminal() {
                    eprintln!("reading a manifest from the terminal, end with Ctrl-D");
                }
                let content = read_stream(std::io::stdin().lock(), MAX_FILE_BYTES)
                    .context("cannot read standard input")?;
                manifests.add("stdin", PathBuf::from("."), content)?;
                continue;
            }
            let path = Path::new(input);
            let meta = fs::metadata(path).with_context(|| format!("cannot read {input}"))?;
            if meta.is_dir() {
                let files = manifest_files(path).with_context(|| format!("cannot read {input}"))?;
                if files.is_empty() {
                    bail!("{input} has no .yaml, .yml or .json file");
                }
                for file in files {
                    manifests.add_file(&file)?;
                }
            } else {
                manifests.add_file(path)?;
            }
        }
        Ok(manifests)
    }

    fn add_file(&mut self, path: &Path) -> anyhow::Result<()> {
        let content = read_limited(path, MAX_FILE_BYTES)
            .with_context(|| format!("cannot read {}", path.display()))?;
        let base = path.parent().map(Path::to_path_buf).unwrap_or_default();
        self.add(&path.display().to_string(), base, content)
    }

    fn add(&mut self, name: &str, base: PathBuf, content: Vec<u8>) -> anyhow::Result<()> {
        let text =
            String::from_utf8(content).map_err(|_| anyhow::anyhow!("{name} is not UTF-8 text"))?;
        self.add_text(name, base, text);
        Ok(())
    }

    /// Adds the documents of one text.
    pub(crate) fn add_text(&mut self, name: &str, base: PathBuf, text: String) {
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
        if !diagnostics.is_empty() {
            self.hidden.push(source);
        }
    }

    /// Decodes all documents. `registered` are the platforms that the orchestrator has, if it could be asked.
    pub(crate) fn decode(&self, registered: Option<&[String]>) -> Objects {
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
            objects.add(raw, names.as_ref());
        }
        objects.check_names();
        if let Some(names) = names {
            objects.check_platforms(names);
        }
        objects
    }
}

impl Raw {
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
            root: root.clone(),
        }
    }
}

/// The manifests in a directory, by name.
fn manifest_files(directory: &Path) -> std::io::Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    for entry in fs::read_dir(directory)? {
        let path = entry?.path();
        let extension = path
            .extension()
            .and_then(|extension| extension.to_str())
            .unwrap_or_default();
        if matches!(extension, "yaml" | "yml" | "json") && path.is_file() {
            files.push(path);
        }
    }
    files.sort();
    Ok(files)
}

impl Objects {
    fn add(&mut self, raw: &Raw, registered: Option<&BTreeSet<String>>) {
        let mut decoder = Decoder {
            source: &raw.source,
            base: raw.base.clone(),
            diagnostics: &mut self.diagnostics,
            kind: "cluster",
        };
        match convert::recognise(&raw.root) {
            Origin::Drover => {}
            Origin::Kadende => {
                let converted = convert::kadende(&mut decoder, &raw.root, registered);
                if let Some(cluster) = document::cluster(&mut decoder, &converted.cluster) {
                    self.clusters
                        .push(raw.document(cluster, &converted.cluster));
                }
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
                    self.platforms
                        .push(raw.document(platform, &converted.cluster));
                }
                self.warnings.extend(converted.warnings);
                self.unresolved.extend(converted.unresolved);
                return;
            }
            Origin::Unsupported(what) => {
                let span = raw.root.get("kind").map_or(raw.root.span, |kind| kind.span);
                decoder.error(span, "kind", format!("{what} is not supported yet"), "expected Cluster, Platform or Secret of drover.dev/v1, or a Kadende configuration");
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
                decoder.kind = "platform";
                if let Some(platform) = document::platform(&mut decoder, &raw.root) {
                    self.platforms.push(raw.document(platform, &raw.root));
                }
            }
            Some("Secret") => {
                decoder.kind = "secret";
                decoder.diagnostics.hide(&raw.source, raw.root.lines());
                if let Some(secret) = document::secret(&mut decoder, &raw.root) {
                    self.secrets.push(raw.document(secret, &raw.root));
                }
            }
            _ => {}
        }
    }

    /// Two documents for one object would leave the winner to chance.
    fn check_names(&mut self) {
        let mut seen = BTreeSet::new();
        let mut twice = Vec::new();
        let secrets = self
            .secrets
            .iter()
            .map(|d| ("secret", &d.object.name, &d.source, &d.root));
        let platforms = self
            .platforms
            .iter()
            .map(|d| ("platform", &d.object.name, &d.source, &d.root));
        let clusters = self
            .clusters
            .iter()
            .map(|d| ("cluster", &d.object.name, &d.source, &d.root));
        for (kind, name, source, root) in secrets.chain(platforms).chain(clusters) {
            if !seen.insert((kind, name.clone())) {
                let (span, _) = path::locate(root, "metadata.name");
                twice.push(Diagnostic::new(
                    source,
                    span,
                    "metadata.name",
                    format!("{kind} `{name}` stands here twice"),
                ));
            }
        }
        twice
            .into_iter()
            .for_each(|diagnostic| self.diagnostics.push(diagnostic));
    }

    /// Whether every platform that a cluster names will be there.
    fn check_platforms(&mut self, mut registered: BTreeSet<String>) {
        registered.extend(
            self.platforms
                .iter()
                .map(|document| document.object.name.clone()),
        );
        let list = if registered.is_empty() {
            "none is registered".to_owned()
        } else {
            format!(
                "registered: {}",
                registered.iter().cloned().collect::<Vec<_>>().join(", ")
            )
        };
        for document in &self.clusters {
            for (path, name) in platform_names(&document.object) {
                if !name.is_empty()
                    && !registered.contains(&name)
                    && !self.unresolved.contains(&name)
                {
                    let (span, shown) = path::locate(&document.root, &path);
                    let message = format!("no platform `{name}` ({list})");
                    self.diagnostics
                        .push(Diagnostic::new(&document.source, span, shown, message));
                }
            }
        }
    }
}

impl<T> Document<T> {
    /// What the server objects to, at the place in the manifest that it is about.
    pub(crate) fn violation(&self, violation: &Violation) -> Diagnostic {
        let (span, path) = path::locate(&self.root, &violation.field);
        Diagnostic::new(&self.source, span, path, violation.description.clone())
    }

    /// Something that is about the document as a whole.
    pub(crate) fn refusal(&self, message: impl Into<String>) -> Diagnostic {
        Diagnostic::new(
            &self.source,
            path::locate(&self.root, "metadata.name").0,
            "",
            message,
        )
    }

    /// Where it came from.
    pub(crate) fn origin(&self) -> &str {
        &self.source.name
    }
}

/// Every platform that a cluster names, with the path that names it.
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
