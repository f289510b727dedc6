//! Merging of the settings layers.

use std::{fmt, path::Path};

use serde::{
    Deserialize, Serialize,
    de::{DeserializeOwned, DeserializeSeed, IgnoredAny, IntoDeserializer, MapAccess, Visitor},
};
use serde_json::{Map, Value};
use serde_saphyr::{Spanned, from_str, from_str_with_options};

use super::{ServerArgs, ServerSettings};

/// Prefix of environment variables.
const PREFIX: &str = "DROVER_";
/// Variables with this prefix that are not settings: those of the command line, and the one that names the file.
const OTHERS: &[&str] = &[
    "DROVER_SERVER",
    "DROVER_SERVER_NAME",
    "DROVER_CONTEXT",
    "DROVER_CONFIG",
    "DROVER_CA",
    "DROVER_CRL",
    "DROVER_CERT",
    "DROVER_KEY",
    "DROVER_TOKEN",
    "DROVER_TOKEN_FILE",
    "DROVER_REQUIRE_ROLE",
];
/// Maximum edit distance between an unknown name and a suggestion.
const MAX_EDITS: usize = 2;

/// An invalid setting, with its location.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct SettingsError(String);

/// Merges the layers: `defaults` and `S::default()`, the file, the environment, the flags. Fails for an unknown setting
/// or an invalid value, with file, line and column, or the name of the variable.
pub fn load<S>(
    defaults: &ServerSettings,
    args: &ServerArgs,
    flags: &impl Serialize,
    environment: impl IntoIterator<Item = (String, String)>,
) -> Result<(ServerSettings, S), SettingsError>
where
    S: Default + Serialize + DeserializeOwned,
{
    let common = object(defaults)?;
    let own = object(&S::default())?;
    let common_names: Vec<String> = common.keys().cloned().collect();
    let mut all = common;
    all.extend(own);

    if let Some(path) = &args.config {
        let file = read_file::<S>(path, &all, &common_names)?;
        merge(&mut all, file);
    }
    let mut variables: Vec<_> = environment
        .into_iter()
        .filter(|(name, _)| name.starts_with(PREFIX) && !OTHERS.contains(&name.as_str()))
        .collect();
    variables.sort();
    for (name, text) in variables {
        set_variable::<S>(&mut all, &common_names, &name, &text)?;
    }
    merge(&mut all, object(args)?);
    merge(&mut all, object(flags)?);
    let (server, own) = typed(&all, &common_names).map_err(SettingsError)?;
    server.check().map_err(SettingsError)?;
    Ok((server, own))
}

/// Formats the settings as YAML, with secrets masked.
pub fn render(server: &ServerSettings, own: &impl Serialize) -> Result<String, SettingsError> {
    let mut all = object(server)?;
    all.extend(object(own)?);
    serde_saphyr::to_string(&all)
        .map_err(|e| SettingsError(format!("the settings cannot be shown: {e}")))
}

fn object(value: &impl Serialize) -> Result<Map<String, Value>, SettingsError> {
    match serde_json::to_value(value) {
        Ok(Value::Object(map)) => Ok(map),
        // A unit struct: the server has no settings of its own.
        Ok(Value::Null) => Ok(Map::new()),
        Ok(_) => Err(SettingsError("settings have to be a struct".to_owned())),
        Err(e) => Err(SettingsError(format!(
            "settings that cannot be written: {e}"
        ))),
    }
}

/// The upper layer takes precedence, key by key; lists are replaced as a whole.
fn merge(below: &mut Map<String, Value>, above: Map<String, Value>) {
    for (key, value) in above {
        match (below.get_mut(&key), value) {
            (Some(Value::Object(below)), Value::Object(above)) => merge(below, above),
            (_, value) => {
                below.insert(key, value);
            }
        }
    }
}

fn typed<S: DeserializeOwned + Default>(
    all: &Map<String, Value>,
    common_names: &[String],
) -> Result<(ServerSettings, S), String> {
    let (common, own): (Map<_, _>, Map<_, _>) = all
        .clone()
        .into_iter()
        .partition(|(key, _)| common_names.contains(key));
    let server = serde_json::from_value(Value::Object(common)).map_err(|e| e.to_string())?;
    let own = if own.is_empty() {
        S::default()
    } else {
        serde_json::from_value(Value::Object(own)).map_err(|e| e.to_string())?
    };
    Ok((server, own))
}

fn read_file<S: DeserializeOwned + Default>(
    path: &Path,
    known: &Map<String, Value>,
    common_names: &[String],
) -> Result<Map<String, Value>, SettingsError> {
    let shown = path.display();
    let text = std::fs::read_to_string(path).map_err(|e| SettingsError(format!("{shown}: {e}")))?;
    let at = |e: serde_saphyr::Error| {
        let text = match e.without_snippet() {
            // Without the value, which may be secret.
            serde_saphyr::Error::QuotingRequired { .. } => {
                "expected text, and this reads as a number or a truth value: put it in quotes (a duration: add its unit)"
                    .to_owned()
            }
            e => e.to_string(),
        };
        match e.location() {
            Some(l) => SettingsError(format!("{shown}:{}:{}: {text}", l.line(), l.column())),
            None => SettingsError(format!("{shown}: {text}")),
        }
    };
    if text
        .lines()
        .all(|line| line.trim().is_empty() || line.trim_start().starts_with('#'))
    {
        return Ok(Map::new());
    }
    let Keys(keys) = from_str_with_options(&text, yaml()).map_err(at)?;
    for key in keys {
        if !known.contains_key(&key.value) {
            let (line, column) = (key.referenced.line(), key.referenced.column());
            let hint = hint(&key.value, known.keys().map(String::as_str));
            return Err(SettingsError(format!(
                "{shown}:{line}:{column}: unknown setting `{}`{hint}",
                key.value
            )));
        }
    }
    // Parsed once just to check the types, because only here the location of a value in the file is known.
    let common = |key: &str| common_names.iter().any(|name| name == key);
    let _: ServerSettings = from_part(&text, &common).map_err(at)?;
    if known.len() > common_names.len() {
        let _: S = from_part(&text, &|key: &str| !common(key)).map_err(at)?;
    }
    from_str_with_options(&text, yaml()).map_err(at)
}

fn yaml() -> serde_saphyr::Options {
    serde_saphyr::options! {
        // Snippets would show the lines around an error, which may contain secrets.
        with_snippet: false,
        // An unquoted `1.10` is rejected for a string: the next layer would read it as a number and turn it into `1.1`.
        no_schema: true,
    }
}

fn set_variable<S: DeserializeOwned + Default>(
    all: &mut Map<String, Value>,
    common_names: &[String],
    name: &str,
    text: &str,
) -> Result<(), SettingsError> {
    let path: Vec<String> = name[PREFIX.len()..]
        .split("__")
        .map(str::to_ascii_lowercase)
        .collect();
    if !exists(all, &path) {
        let mut names = Vec::new();
        variables(all, PREFIX, &mut names);
        let hint = hint(name, names.iter().map(String::as_str));
        return Err(SettingsError(format!(
            "unknown setting in the environment: {name}{hint}"
        )));
    }
    // `8080` may be a number or a string, depending on the type of the setting.
    let mut first = None;
    for value in [
        from_str::<Value>(text).ok(),
        Some(Value::String(text.to_owned())),
    ]
    .into_iter()
    .flatten()
    {
        let mut candidate = all.clone();
        put(&mut candidate, &path, value);
        match typed::<S>(&candidate, common_names) {
            Ok(_) => {
                *all = candidate;
                return Ok(());
            }
            Err(e) => first = first.or(Some(e)),
        }
    }
    Err(SettingsError(format!(
        "{name}: {}",
        first.unwrap_or_default()
    )))
}

fn exists(all: &Map<String, Value>, path: &[String]) -> bool {
    match path {
        [] => false,
        [last] => all.contains_key(last),
        [first, rest @ ..] => all
            .get(first)
            .and_then(Value::as_object)
            .is_some_and(|inner| exists(inner, rest)),
    }
}

fn put(all: &mut Map<String, Value>, path: &[String], value: Value) {
    match path {
        [] => {}
        [last] => {
            all.insert(last.clone(), value);
        }
        [first, rest @ ..] => {
            if let Some(inner) = all.get_mut(first).and_then(Value::as_object_mut) {
                put(inner, rest, value);
            }
        }
    }
}

fn variables(all: &Map<String, Value>, prefix: &str, names: &mut Vec<String>) {
    for (key, value) in all {
        let name = format!("{prefix}{}", key.to_ascii_uppercase());
        if let Value::Object(inner) = value {
            variables(inner, &format!("{name}__"), names);
        }
        names.push(name);
    }
}

fn hint<'a>(wrong: &str, known: impl Iterator<Item = &'a str>) -> String {
    known
        .map(|name| (edits(wrong, name), name))
        .filter(|(edits, _)| *edits <= MAX_EDITS)
        .min()
        .map(|(_, name)| format!(", did you mean `{name}`?"))
        .unwrap_or_default()
}

/// Levenshtein distance.
fn edits(a: &str, b: &str) -> usize {
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.bytes().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, y) in b.bytes().enumerate() {
            let next = (row[j] + 1)
                .min(row[j + 1] + 1)
                .min(diagonal + usize::from(x != y));
            diagonal = std::mem::replace(&mut row[j + 1], next);
        }
    }
    row[b.len()]
}

/// The keys of a mapping with their locations.
struct Keys(Vec<Spanned<String>>);

impl<'de> Deserialize<'de> for Keys {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct All;
        impl<'de> Visitor<'de> for All {
            type Value = Keys;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a mapping of settings")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Keys, A::Error> {
                let mut keys = Vec::new();
                while let Some(key) = map.next_key()? {
                    keys.push(key);
                    map.next_value::<IgnoredAny>()?;
                }
                Ok(Keys(keys))
            }
        }
        deserializer.deserialize_map(All)
    }
}

/// Deserializes the part of a mapping with the wanted keys, keeping the locations in the whole document.
fn from_part<T: DeserializeOwned>(
    text: &str,
    wanted: &dyn Fn(&str) -> bool,
) -> Result<T, serde_saphyr::Error> {
    serde_saphyr::with_deserializer_from_str_with_options(text, yaml(), |deserializer| {
        struct Part<'a, T>(&'a dyn Fn(&str) -> bool, std::marker::PhantomData<T>);
        impl<'de, T: Deserialize<'de>> Visitor<'de> for Part<'_, T> {
            type Value = T;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a mapping of settings")
            }

            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<T, A::Error> {
                T::deserialize(serde::de::value::MapAccessDeserializer::new(Wanted(
                    map, self.0,
                )))
            }
        }
        serde::Deserializer::deserialize_map(deserializer, Part(wanted, std::marker::PhantomData))
    })
}

struct Wanted<'a, A>(A, &'a dyn Fn(&str) -> bool);

impl<'de, A: MapAccess<'de>> MapAccess<'de> for Wanted<'_, A> {
    type Error = A::Error;

    fn next_key_seed<K: DeserializeSeed<'de>>(
        &mut self,
        seed: K,
    ) -> Result<Option<K::Value>, A::Error> {
        while let Some(key) = self.0.next_key::<String>()? {
            if (self.1)(&key) {
                return seed.deserialize(key.into_deserializer()).map(Some);
            }
            self.0.next_value::<IgnoredAny>()?;
        }
        Ok(None)
    }

    fn next_value_seed<V: DeserializeSeed<'de>>(&mut self, seed: V) -> Result<V::Value, A::Error> {
        self.0.next_value_seed(seed)
    }
}
