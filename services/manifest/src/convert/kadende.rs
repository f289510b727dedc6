//! Kadende cluster configurations (`version`, `name`, `groups`, optional `id`).
//!
//! Converts a tree to a tree: the result is a Drover manifest whose parts still refer to the lines that they came from.

use std::collections::{BTreeMap, BTreeSet};

use super::{
    Converted,
    build::{entry, list, map, renamed, text},
    fields::is_label_value,
};
use crate::{
    decode::Decoder,
    path::join,
    tree::{Entry, Node, Span, Value},
};

const CLUSTER_FIELDS: [(&str, &str); 4] = [
    ("id", "a string"),
    ("version", "a string"),
    ("name", "a string"),
    (
        "groups",
        "a map of groups by name, or a list of groups with a name",
    ),
];
const GROUP_FIELDS: [(&str, &str); 4] = [
    ("size", "a whole number"),
    ("resourcePlugin", "a map {name, version, url}"),
    ("resourceProperties", "a map"),
    (
        "groups",
        "a map of groups by name, or a list of groups with a name",
    ),
];
const PLUGIN_FIELDS: [(&str, &str); 3] = [
    ("name", "a string"),
    ("version", "a string, default latest"),
    ("url", "a string"),
];

/// Plugins that mean the same platform; the alias is only tried if the exact name is not registered.
const ALIASES: [(&str, &str); 4] = [
    ("gcd", "gcp"),
    ("gcp", "gcd"),
    ("digitalOcean", "digitalocean"),
    ("digitalocean", "digitalOcean"),
];

pub(super) fn convert(
    decoder: &mut Decoder<'_>,
    root: &Node,
    registered: Option<&BTreeSet<String>>,
) -> Converted {
    let mut converter = Converter {
        decoder,
        registered,
        platforms: BTreeMap::new(),
        unresolved: BTreeSet::new(),
        warnings: Vec::new(),
    };
    let cluster = converter.cluster(root);
    let Converter {
        platforms,
        unresolved,
        warnings,
        ..
    } = converter;
    Converted {
        cluster,
        platforms,
        unresolved,
        warnings,
    }
}

struct Converter<'a, 'd> {
    decoder: &'a mut Decoder<'d>,
    registered: Option<&'a BTreeSet<String>>,
    platforms: BTreeMap<String, String>,
    unresolved: BTreeSet<String>,
    warnings: Vec<String>,
}

impl Converter<'_, '_> {
    fn cluster(&mut self, root: &Node) -> Node {
        let entries = root.map().unwrap_or_default();
        self.check_fields(entries, "", &CLUSTER_FIELDS);
        let mut metadata = Vec::new();
        let mut labels = Vec::new();
        match root.entry("name") {
            Some(name) => metadata.push(renamed("name", name)),
            None => self.missing(root.span, "name", "the cluster's name"),
        }
        match root.entry("version") {
            Some(version) => labels.extend(self.label("kadende.io/version", version)),
            None => self.missing(root.span, "version", "the cluster's version, a string"),
        }
        labels.extend(
            root.entry("id")
                .and_then(|id| self.label("kadende.io/id", id)),
        );
        if !labels.is_empty() {
            let span = labels[0].span;
            metadata.push(entry("labels", span, map(span, labels)));
        }
        let mut spec = Vec::new();
        if let Some(groups) = root.entry("groups") {
            let children = self.groups(&groups.value, "groups", false);
            if children.is_empty() {
                self.decoder
                    .mismatch(&groups.value, "groups", "at least one group");
            }
            spec.push(entry(
                "groups",
                groups.span,
                map(groups.value.span, children),
            ));
        }
        let span = root.span;
        map(
            span,
            vec![
                entry("apiVersion", span, text(span, "drover.dev/v1")),
                entry("kind", span, text(span, "Cluster")),
                entry("metadata", span, map(span, metadata)),
                entry("spec", span, map(span, spec)),
            ],
        )
    }

    fn check_fields(
        &mut self,
        entries: &[Entry],
        path: &str,
        known: &[(&'static str, &'static str)],
    ) {
        for entry in entries {
            if !known.iter().any(|(key, _)| *key == entry.key) {
                let known: Vec<(&str, String)> = known
                    .iter()
                    .map(|(key, expected)| (*key, (*expected).to_owned()))
                    .collect();
                self.decoder.unknown(entry, path, &known);
            }
        }
    }

    fn missing(&mut self, span: Span, field: &str, expected: &str) {
        self.decoder.error(
            span,
            field,
            format!("`{field}` is missing"),
            &format!("expected {expected}"),
        );
    }

    /// A text that is kept as a label, if it is a valid label value.
    fn label(&mut self, key: &str, value: &Entry) -> Option<Entry> {
        let text = self.decoder.text(&value.value, &value.key, "a string")?;
        if !is_label_value(&text) {
            let expected = "expected at most 63 letters, digits, hyphens, underscores and dots, since it is kept as a label";
            let message = format!("`{}` cannot be kept as the label {key}", value.key);
            self.decoder
                .error(value.value.span, &value.key, message, expected);
            return None;
        }
        Some(renamed(key, value))
    }

    /// Groups as a map or as a list of maps with a `name`.
    fn groups(&mut self, node: &Node, path: &str, has_plugin: bool) -> Vec<Entry> {
        let mut groups = Vec::new();
        match &node.value {
            Value::Map(entries) => {
                for child in entries {
                    let path = join(path, &child.key);
                    let group = self.group(&child.value, &path, has_plugin, false);
                    groups.push(entry(&child.key, child.span, group));
                }
            }
            Value::List(items) => {
                for item in items {
                    let Some(name) = item.entry("name") else {
                        self.decoder.error(
                            item.span,
                            path,
                            "a group in a list needs a `name`",
                            "expected a name",
                        );
                        continue;
                    };
                    let Some(key) = self
                        .decoder
                        .text(&name.value, &join(path, "name"), "a string")
                    else {
                        continue;
                    };
                    let path = join(path, &key);
                    let group = self.group(item, &path, has_plugin, true);
                    groups.push(entry(&key, name.value.span, group));
                }
            }
            Value::Scalar { .. } => {
                self.decoder.mismatch(
                    node,
                    path,
                    "a map of groups by name, or a list of groups with a name",
                );
            }
        }
        self.unique(groups, path)
    }

    fn unique(&mut self, groups: Vec<Entry>, path: &str) -> Vec<Entry> {
        let mut seen = BTreeSet::new();
        let mut unique = Vec::new();
        for group in groups {
            if seen.insert(group.key.clone()) {
                unique.push(group);
            } else {
                let message = format!("there are two groups named `{}`", group.key);
                self.decoder
                    .error(group.span, path, message, "expected different names");
            }
        }
        unique
    }

    fn group(&mut self, node: &Node, path: &str, inherited_plugin: bool, listed: bool) -> Node {
        let mut fields = Vec::new();
        let mut children = Vec::new();
        let entries = self.decoder.map(
            node,
            path,
            "a group: a map with size, resourcePlugin and resourceProperties",
        );
        let has_plugin = inherited_plugin || node.entry("resourcePlugin").is_some();
        for child in entries {
            let child_path = join(path, &child.key);
            match child.key.as_str() {
                "size" => fields.push(child.clone()),
                "resourceProperties" => fields.push(renamed("properties", child)),
                "resourcePlugin" => fields.extend(self.plugin(child, &child_path)),
                "groups" => children.extend(self.groups(&child.value, &child_path, has_plugin)),
                "name" if listed => {}
                key if is_group(&child.value, 0) => {
                    let group = self.group(&child.value, &child_path, has_plugin, false);
                    children.push(entry(key, child.span, group));
                }
                _ => {
                    let known: Vec<(&str, String)> = GROUP_FIELDS
                        .iter()
                        .map(|(key, expected)| (*key, (*expected).to_owned()))
                        .collect();
                    self.decoder.unknown(child, path, &known);
                }
            }
        }
        if children.is_empty() {
            if !has_plugin && !entries.is_empty() {
                let path = join(path, "resourcePlugin");
                self.decoder.error(
                    node.span,
                    &path,
                    "`resourcePlugin` is missing",
                    "expected a map {name, version, url}",
                );
            }
        } else {
            let children = self.unique(children, path);
            if let Some(size) = node.entry("size") {
                let message = "a group has a size or groups inside, never both";
                self.decoder.error(
                    size.span,
                    &join(path, "size"),
                    message,
                    "move these nodes to a group of their own",
                );
            }
            fields.push(entry("groups", children[0].span, map(node.span, children)));
        }
        map(node.span, fields)
    }

    /// `platforms` for a plugin.
    fn plugin(&mut self, plugin: &Entry, path: &str) -> Option<Entry> {
        let entries = self
            .decoder
            .map(&plugin.value, path, "a map {name, version, url}");
        self.check_fields(entries, path, &PLUGIN_FIELDS);
        let Some(name) = plugin.value.entry("name") else {
            if !entries.is_empty() {
                self.missing(plugin.value.span, &join(path, "name"), "the plugin's name");
            }
            return None;
        };
        let plugin_name = self
            .decoder
            .text(&name.value, &join(path, "name"), "a string")?;
        let url = plugin.value.entry("url").and_then(|url| {
            let text = self
                .decoder
                .text(&url.value, &join(path, "url"), "a string")?;
            Some((url.value.span, text))
        });
        let platform = self.platform(&plugin_name, url, path);
        let mut fields = vec![entry("name", name.span, text(name.value.span, &platform))];
        if let Some(version) = plugin.value.entry("version")
            && let Some(requirement) = self.requirement(version, path)
        {
            fields.push(entry(
                "versionRequirement",
                version.span,
                text(version.value.span, &requirement),
            ));
        }
        let choice = map(plugin.value.span, fields);
        Some(entry(
            "platforms",
            plugin.span,
            list(plugin.value.span, vec![choice]),
        ))
    }

    /// The name of the platform for a plugin.
    fn platform(&mut self, plugin: &str, url: Option<(Span, String)>, path: &str) -> String {
        let registered = |name: &str| self.registered.is_none_or(|names| names.contains(name));
        if let Some((span, url)) = url {
            if let Some(endpoint) = endpoint(&url) {
                if let Some(other) = self
                    .platforms
                    .insert(plugin.to_owned(), endpoint.clone())
                    .filter(|other| *other != endpoint)
                {
                    let message = format!("plugin `{plugin}` is at {other} too");
                    self.decoder.error(
                        span,
                        &join(path, "url"),
                        message,
                        "expected one address for one name",
                    );
                }
                return plugin.to_owned();
            }
            if !registered(plugin) {
                self.unresolved.insert(plugin.to_owned());
                let message = format!(
                    "plugin `{plugin}` is a file to load into a process, which Drover never does"
                );
                let advice = format!(
                    "serve it as a platform over gRPC and register it: {{apiVersion: drover.dev/v1, kind: Platform, \
                     metadata: {{name: {plugin}}}, spec: {{endpoint: \"http://HOST:PORT\"}}}}"
                );
                self.decoder
                    .error(span, &join(path, "url"), message, &advice);
                return plugin.to_owned();
            }
            self.warnings.push(if self.registered.is_some() {
                format!("plugin {plugin}: {url} is not loaded; the registered platform {plugin} is used instead")
            } else {
                format!("plugin {plugin}: {url} is not loaded; a platform named {plugin} must be registered")
            });
        }
        if !registered(plugin)
            && let Some((_, alias)) = ALIASES
                .iter()
                .find(|(name, alias)| *name == plugin && registered(alias))
        {
            self.warnings.push(format!(
                "plugin {plugin}: the registered platform {alias} is used"
            ));
            return (*alias).to_owned();
        }
        plugin.to_owned()
    }

    /// The version of a plugin as a requirement on the platform server. A bare number is the minimum: the version of
    /// the plugin that the configuration was written for.
    fn requirement(&mut self, version: &Entry, path: &str) -> Option<String> {
        let text = self
            .decoder
            .text(&version.value, &join(path, "version"), "a string")?;
        if text == "latest" {
            return None;
        }
        let bare = text.strip_prefix('v').unwrap_or(&text);
        let numeric = bare.starts_with(|c: char| c.is_ascii_digit());
        Some(if numeric { format!(">={bare}") } else { text })
    }
}

/// Whether an entry is a group, and not a misspelt field.
fn is_group(node: &Node, depth: usize) -> bool {
    let Some(entries) = node.map() else {
        return false;
    };
    GROUP_FIELDS
        .iter()
        .any(|(key, _)| node.entry(key).is_some())
        || (depth < 8
            && entries
                .iter()
                .any(|entry| is_group(&entry.value, depth + 1)))
}

/// The endpoint of a platform, if the URL is the address of a server and not a file to load.
fn endpoint(url: &str) -> Option<String> {
    let (scheme, rest) = url.split_once("://")?;
    let scheme = match scheme {
        "grpc" | "http" => "http",
        "grpcs" | "https" => "https",
        _ => return None,
    };
    let authority = rest.strip_suffix('/').unwrap_or(rest);
    let (host, port) = authority.rsplit_once(':')?;
    let plain = !host.is_empty() && !authority.contains(['/', '?', '#', '@']);
    (plain && port.parse::<u16>().is_ok_and(|port| port > 0))
        .then(|| format!("{scheme}://{authority}"))
}
