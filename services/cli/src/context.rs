//! Names for orchestrators, kept in the user's config directory.

use std::{collections::BTreeMap, fs, path::PathBuf};

use anyhow::Context as _;
use serde::{Deserialize, Serialize};

use crate::{
    cli::{ContextCommand, Global},
    failure::{Exit, Failure, Outcome},
    output::{self, Table},
};

/// Address of an orchestrator that nobody said anything about.
pub(crate) const DEFAULT_SERVER: &str = "http://127.0.0.1:7400";

#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Config {
    /// Name of the context in use.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    current: Option<String>,
    #[serde(default)]
    contexts: BTreeMap<String, Entry>,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Entry {
    /// Address of the orchestrator.
    server: String,
}

fn path() -> anyhow::Result<PathBuf> {
    let base = std::env::var_os("XDG_CONFIG_HOME")
        .filter(|path| !path.is_empty())
        .map(PathBuf::from)
        .or_else(|| std::env::var_os("HOME").map(|home| PathBuf::from(home).join(".config")))
        .context("neither XDG_CONFIG_HOME nor HOME is set")?;
    Ok(base.join("drover").join("config.yaml"))
}

fn load() -> anyhow::Result<Config> {
    let path = path()?;
    match fs::read_to_string(&path) {
        Ok(text) => {
            serde_saphyr::from_str(&text).with_context(|| format!("cannot read {}", path.display()))
        }
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(Config::default()),
        Err(error) => Err(error).with_context(|| format!("cannot read {}", path.display())),
    }
}

fn save(config: &Config) -> anyhow::Result<()> {
    let path = path()?;
    let failed = || format!("cannot write {}", path.display());
    if let Some(directory) = path.parent() {
        fs::create_dir_all(directory).with_context(failed)?;
    }
    let text = serde_saphyr::to_string(config)
        .map_err(|error| anyhow::anyhow!("{error}"))
        .with_context(failed)?;
    let new = path.with_extension("new");
    fs::write(&new, text)
        .and_then(|()| fs::rename(&new, &path))
        .with_context(failed)
}

/// The address to use: flag or environment, then the named context, then the current one, then the default.
pub(crate) fn server(global: &Global) -> Outcome<String> {
    if let (Some(server), None) = (&global.server, &global.context) {
        return Ok(server.clone());
    }
    let config = load()?;
    let Some(name) = global.context.as_ref().or(config.current.as_ref()) else {
        return Ok(DEFAULT_SERVER.to_owned());
    };
    let entry = config
        .contexts
        .get(name)
        .ok_or_else(|| unknown(name, &config))?;
    Ok(entry.server.clone())
}

fn unknown(name: &str, config: &Config) -> Failure {
    let names: Vec<&str> = config.contexts.keys().map(String::as_str).collect();
    let list = if names.is_empty() {
        "there is none yet".to_owned()
    } else {
        names.join(", ")
    };
    Failure::new(
        Exit::NotFound,
        format!("error: there is no context `{name}` (contexts: {list})"),
    )
}

pub(crate) fn run(command: ContextCommand) -> Outcome {
    let mut config = load()?;
    match command {
        ContextCommand::List => {
            let mut table = Table::new(&["CURRENT", "NAME", "SERVER"]);
            for (name, entry) in &config.contexts {
                let mark = if config.current.as_ref() == Some(name) {
                    "*"
                } else {
                    ""
                };
                table
                    .rows
                    .push(vec![mark.into(), name.clone(), entry.server.clone()]);
            }
            output::print(&table.render(true, false))?;
        }
        ContextCommand::Use { name } => {
            if !config.contexts.contains_key(&name) {
                return Err(unknown(&name, &config));
            }
            config.current = Some(name.clone());
            save(&config)?;
            output::line(&format!("using context {name}"))?;
        }
        ContextCommand::Set { name, url } => {
            url.parse::<drover_client::Target>()?;
            config.contexts.insert(name.clone(), Entry { server: url });
            config.current.get_or_insert_with(|| name.clone());
            save(&config)?;
            output::line(&format!("context {name} set"))?;
        }
    }
    Ok(Exit::Done)
}
