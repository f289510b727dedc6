//! `settings.md`: every setting of every server: key, flag, variable, type, default, meaning. Keys and defaults come
//! from `--print-config`, meanings from the comments of the deserialized structs.

use std::{collections::BTreeMap, fmt::Write as _};

use serde_json::Value;

use crate::{
    cell,
    cli::{self, Row},
    head,
    sources::{self, File, Member},
};

/// A server and the file that declares the struct of its settings.
struct Server {
    program: &'static str,
    root: (&'static str, &'static str),
}

const SERVERS: &[Server] = &[
    Server {
        program: "drover-orchestrator",
        root: ("orchestrator/src/lib.rs", "Settings"),
    },
    Server {
        program: "drover-platform-k8s",
        root: ("platform-k8s/src/settings.rs", "Settings"),
    },
    Server {
        program: "drover-platform-cloud",
        root: ("platform-cloud/src/main.rs", "FileSettings"),
    },
];

const EVERY: (&str, &str) = ("services/server/src/settings/mod.rs", "ServerSettings");

/// Types that are declared under another name: file and name there.
const ALIASES: &[(&str, &str, &str)] = &[
    (
        "AwsSettings",
        "platform-cloud/src/drivers/aws/settings.rs",
        "Settings",
    ),
    (
        "GcpSettings",
        "platform-cloud/src/drivers/gcp/settings.rs",
        "Settings",
    ),
    (
        "DigitalOceanSettings",
        "platform-cloud/src/drivers/digitalocean/settings.rs",
        "Settings",
    ),
    (
        "MetalSettings",
        "platform-cloud/src/drivers/metal.rs",
        "Settings",
    ),
];

/// Flags whose name cannot be derived from the setting's.
const FLAGS: &[(&str, &str)] = &[
    ("platform_tls.ca", "platform-ca"),
    ("platform_tls.crl", "platform-crl"),
    ("platform_tls.require_role", "platform-require-role"),
    ("limits.watch_bytes_per_caller", "watch-bytes-per-caller"),
    ("limits.plans_per_caller", "plans-per-caller"),
    (
        "limits.plans_per_second_per_caller",
        "plans-per-second-per-caller",
    ),
    ("etcd.endpoints", "etcd-endpoint"),
    ("namespaces", "namespace"),
    ("allowed_hosts", "allowed-host"),
    ("excluded_namespaces", "excluded-namespace"),
    ("plain_labels", "plain-label"),
    ("resources.enabled", "resources"),
];
/// Flags that are not settings.
const NO_SETTING: &[&str] = &["config", "print-config", "help", "version"];

struct Page {
    out: String,
    files: BTreeMap<String, File>,
    /// All sources, to find the declaration of a type.
    programs: Vec<(String, String)>,
    /// Flags of the program that are not yet matched to a setting.
    flags: Vec<Row>,
}

pub(crate) fn page() -> String {
    let mut page = Page {
        out: head("Settings"),
        files: BTreeMap::new(),
        programs: sources::programs(),
        flags: Vec::new(),
    };
    page.out.push_str(
        "Of `drover-orchestrator`, `drover-platform-k8s` and `drover-platform-cloud`. Each layer goes before the one above it: \
         defaults, the YAML file (`--config FILE`, `DROVER_CONFIG`), the environment, flags.\n\n\
         The value of a variable is YAML. `--print-config` prints what comes out, secrets masked. An unknown setting or variable \
         is an error, with its place. The settings of the command line are its flags: [cli.md](cli.md).\n",
    );
    let taken: Vec<String> = page.read(EVERY.0).structs[EVERY.1]
        .iter()
        .map(|member| member.name.clone())
        .collect();
    let mut common = config(SERVERS[0].program);
    common.retain(|key, _| taken.contains(key));
    page.flags = cli::help(SERVERS[0].program, &[]).rows;
    page.out.push_str("\n## Every server\n\n`listen` is port 7400 of the orchestrator, 7401 of the platform on Kubernetes, 7402 of the others.\n");
    page.section("", EVERY.0, EVERY.1, Some(&common));
    for server in SERVERS {
        write!(page.out, "\n## {}\n", server.program).unwrap();
        let mut own = config(server.program);
        own.retain(|key, _| !taken.contains(key));
        page.flags = cli::help(server.program, &[]).rows;
        page.flags
            .retain(|row| row.flag().is_none_or(|flag| !is_common(flag, &taken)));
        page.section("", server.root.0, server.root.1, Some(&own));
        let left: Vec<_> = page.flags.iter().filter_map(Row::flag).collect();
        let left: Vec<_> = left
            .iter()
            .filter(|flag| !NO_SETTING.contains(flag))
            .collect();
        assert!(
            left.is_empty(),
            "{}: flags of no setting: {left:?}",
            server.program
        );
    }
    page.out
}

fn is_common(flag: &str, taken: &[String]) -> bool {
    let named = FLAGS.iter().find(|(_, own)| *own == flag);
    let key = named.map_or_else(|| flag.replace('-', "_"), |(name, _)| (*name).to_owned());
    taken
        .iter()
        .any(|name| *name == key || key.starts_with(&format!("{name}_")))
}

fn config(program: &str) -> serde_json::Map<String, Value> {
    let text = cli::run(program, &["--print-config"]);
    serde_saphyr::from_str(&text).unwrap()
}

impl Page {
    fn read(&mut self, path: &str) -> &File {
        self.files
            .entry(path.to_owned())
            .or_insert_with(|| sources::read(path))
    }

    /// Finds the declaration of a field's struct or enum, if it is one of ours: in the same file, or else the only one
    /// of its name. Returns file and name.
    fn declared(&mut self, kind: &str, from: &str) -> Option<(String, String)> {
        let file = self.read(from);
        if file.structs.contains_key(kind) || file.enums.contains_key(kind) {
            return Some((from.to_owned(), kind.to_owned()));
        }
        if let Some((_, path, name)) = ALIASES.iter().find(|(alias, ..)| *alias == kind) {
            return Some(((*path).to_owned(), (*name).to_owned()));
        }
        let says = |text: &str| {
            ["struct", "enum"]
                .iter()
                .any(|word| text.contains(&format!("{word} {kind} {{")))
        };
        let mut found = self.programs.iter().filter(|(_, text)| says(text));
        match (found.next(), found.next()) {
            (Some((path, _)), None) => Some((path.clone(), kind.to_owned())),
            _ => None,
        }
    }

    fn find(&mut self, kind: &str, from: &str) -> Option<(String, String)> {
        let (path, name) = self.declared(kind, from)?;
        self.read(&path)
            .structs
            .contains_key(&name)
            .then_some((path, name))
    }

    /// The values of an enum.
    fn words(&mut self, kind: &str, from: &str) -> Option<Vec<Member>> {
        let (path, name) = self.declared(kind, from)?;
        self.read(&path).enums.get(&name).cloned()
    }

    /// Documents the settings of a struct, then those of nested structs. `values` is the printed configuration of the
    /// struct, or empty for an element of a list.
    fn section(
        &mut self,
        prefix: &str,
        path: &str,
        name: &str,
        values: Option<&serde_json::Map<String, Value>>,
    ) {
        let members = self.read(path).structs[name].clone();
        if let Some(values) = values {
            let mut known: Vec<&String> = members.iter().map(|member| &member.name).collect();
            let mut printed: Vec<&String> = values.keys().collect();
            known.sort();
            printed.sort();
            assert_eq!(
                known, printed,
                "{prefix}: built without the clouds, or {path} has changed"
            );
        }
        let mut inner = Vec::new();
        let flags = values.is_some() && !self.flags.is_empty();
        let head = if flags && prefix.matches('.').count() < 2 {
            "\n| key, variable | flag | type | default | meaning |\n|---|---|---|---|---|\n"
        } else if values.is_some() {
            "\n| key, variable | type | default | meaning |\n|---|---|---|---|\n"
        } else {
            "\n| key | type | default | meaning |\n|---|---|---|---|\n"
        };
        let mut rows = String::new();
        for member in &members {
            let key = format!("{prefix}{}", member.name);
            let value = values.map(|values| &values[&member.name]);
            let item = item(&member.kind);
            let found = self.find(item, path);
            let direct = item == member.kind;
            if let (Some(found), true) = (&found, direct) {
                inner.push((format!("{key}."), member.doc.clone(), found.clone(), true));
                continue;
            }
            let kind = self.describe(member, path, found.is_some());
            if let Some(found) = found {
                let dots = if member.kind.contains("Map<") {
                    "NAME"
                } else {
                    "N"
                };
                inner.push((format!("{key}.{dots}."), member.doc.clone(), found, false));
            }
            let flag = if head.contains("flag") {
                format!(" {} |", self.flag(&key))
            } else {
                String::new()
            };
            writeln!(
                rows,
                "| `{key}`{} |{flag} {kind} | {} | {} |",
                variable(&key, values.is_some()),
                default(value),
                cell(&meaning(&member.doc))
            )
            .unwrap();
        }
        if !rows.is_empty() {
            self.out.push_str(head);
            self.out.push_str(&rows);
        }
        for (prefix, about, (path, name), printed) in inner {
            let values = values
                .filter(|_| printed)
                .map(|values| values[own_name(&prefix)].as_object().unwrap());
            write!(
                self.out,
                "\n### {}\n\n{}\n",
                prefix.trim_end_matches('.'),
                cell(&about)
            )
            .unwrap();
            self.section(&prefix, &path, &name, values);
        }
    }

    fn flag(&mut self, key: &str) -> String {
        let wanted = FLAGS.iter().find(|(name, _)| *name == key).map_or_else(
            || key.replace(['.', '_'], "-"),
            |(_, flag)| (*flag).to_owned(),
        );
        let found = self
            .flags
            .iter()
            .position(|row| row.flag() == Some(wanted.as_str()));
        found.map_or_else(String::new, |at| {
            format!("`{}`", self.flags.remove(at).name.replace('|', "\\|"))
        })
    }

    fn describe(&mut self, member: &Member, path: &str, is_struct: bool) -> String {
        let item = item(&member.kind);
        let word = match item {
            _ if is_struct => "settings, see below".to_owned(),
            "bool" => "true or false".to_owned(),
            "f64" | "f32" => "number".to_owned(),
            "u8" | "u16" | "u32" | "u64" | "usize" => "whole number".to_owned(),
            "(u32, u32)" | "[u16; 2]" => "two whole numbers".to_owned(),
            "PathBuf" => "path".to_owned(),
            "Duration" => "duration (`30s`)".to_owned(),
            "SocketAddr" => "address:port".to_owned(),
            "String" | "Secret" => "text".to_owned(),
            "IpAddr" => "IP address".to_owned(),
            "serde_json::Value" | "Value" => "anything".to_owned(),
            other => match self.words(other, path) {
                Some(words) => words
                    .iter()
                    .map(|word| format!("`{}`", word.name))
                    .collect::<Vec<_>>()
                    .join(", "),
                None => panic!(
                    "{path}: {}: what is a {other}? (tests/tests/reference/settings.rs)",
                    member.name
                ),
            },
        };
        if member.kind.contains("Map<") {
            format!("map of {word}")
        } else if member.kind.starts_with("Vec<") {
            format!("list of {word}")
        } else {
            word
        }
    }
}

/// The environment variable of a setting; elements of lists and maps do not have any.
fn variable(key: &str, has_one: bool) -> String {
    let name = key.replace('.', "__").to_uppercase();
    if has_one {
        format!("<br>`DROVER_{name}`")
    } else {
        String::new()
    }
}

fn own_name(prefix: &str) -> &str {
    prefix.trim_end_matches('.').rsplit('.').next().unwrap()
}

/// The type inside `Option`, `Vec` and the values of maps.
fn item(kind: &str) -> &str {
    for wrapper in ["Option<", "Vec<", "Box<"] {
        if let Some(inner) = kind.strip_prefix(wrapper) {
            return item(inner.trim_end_matches('>'));
        }
    }
    if kind.contains("Map<") {
        return kind
            .rsplit(", ")
            .next()
            .map_or(kind, |inner| item(inner.trim_end_matches('>')));
    }
    kind
}

fn default(value: Option<&Value>) -> String {
    match value {
        None | Some(Value::Null) => String::new(),
        Some(Value::String(text)) if text.is_empty() => String::new(),
        Some(Value::Array(items)) if items.is_empty() => String::new(),
        Some(Value::Object(items)) if items.is_empty() => String::new(),
        Some(Value::String(text)) => format!("`{text}`"),
        Some(Value::Array(items)) if items.len() > 3 => {
            format!("{} of them: `--print-config`", items.len())
        }
        Some(other) => format!("`{other}`"),
    }
}

/// Rewrites the comment in terms of YAML.
fn meaning(doc: &str) -> String {
    doc.replace("`None` (default): ", "Absent: ")
        .replace("`None`: ", "Absent: ")
}
