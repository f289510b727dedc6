//! The state file: a log of changes, one JSON value per line. Compacted when it is opened.

use std::{
    collections::BTreeMap,
    fs::{self, File, OpenOptions},
    io::{self, BufRead, BufReader, Write},
    path::Path,
};

use serde::{Deserialize, Serialize};

use super::volumes::Volume;
use drover_platform::{identity::Identity, inventory::properties::HostLabels};

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Line {
    Uid(String),
    /// The highest number that was assigned, so that no number is reused.
    Last(u32),
    Put(u32, Box<Stored>),
    Gone(u32),
    Volume(Box<Volume>),
    NoVolume(String),
}

/// The persistent form of a node.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Stored {
    pub(super) identity: Identity,
    pub(super) domain: String,
    /// Empty for none.
    #[serde(default)]
    pub(super) host: String,
    /// Milliseconds since the Unix epoch.
    pub(super) created: u64,
    pub(super) phase: i32,
    pub(super) message: Option<String>,
    /// Labels that the host has for the group of the node.
    #[serde(default)]
    pub(super) host_labels: HostLabels,
}

/// The content of a state file.
#[derive(Debug, Default)]
pub(super) struct Past {
    pub(super) uid: Option<String>,
    pub(super) nodes: BTreeMap<u32, Stored>,
    pub(super) last_id: u32,
    pub(super) volumes: BTreeMap<String, Volume>,
}

#[derive(Debug)]
pub(super) struct Journal(File);

pub(super) fn open(path: &Path) -> io::Result<(Journal, Past)> {
    let mut past = match File::open(path) {
        Ok(file) => read(BufReader::new(file))?,
        Err(error) if error.kind() == io::ErrorKind::NotFound => Past::default(),
        Err(error) => return Err(error),
    };
    let uid = past
        .uid
        .get_or_insert_with(|| uuid::Uuid::new_v4().to_string());
    let mut text = line(&Line::Uid(uid.clone()));
    text.push_str(&line(&Line::Last(past.last_id)));
    for (number, stored) in &past.nodes {
        text.push_str(&line(&Line::Put(*number, Box::new(stored.clone()))));
    }
    for volume in past.volumes.values() {
        text.push_str(&line(&Line::Volume(Box::new(volume.clone()))));
    }
    let new = path.with_extension("new");
    fs::write(&new, text)?;
    fs::rename(&new, path)?;
    Ok((Journal(OpenOptions::new().append(true).open(path)?), past))
}

fn read(file: impl BufRead) -> io::Result<Past> {
    let mut past = Past::default();
    let mut lines = file.lines().peekable();
    while let Some(text) = lines.next() {
        match serde_json::from_str(&text?) {
            Ok(Line::Uid(uid)) => past.uid = Some(uid),
            Ok(Line::Last(last)) => past.last_id = past.last_id.max(last),
            Ok(Line::Put(number, stored)) => {
                past.last_id = past.last_id.max(number);
                past.nodes.insert(number, *stored);
            }
            Ok(Line::Gone(number)) => {
                past.nodes.remove(&number);
            }
            Ok(Line::Volume(volume)) => {
                past.volumes.insert(volume.id.clone(), *volume);
            }
            Ok(Line::NoVolume(id)) => {
                past.volumes.remove(&id);
            }
            // The last line may be incomplete after a crash.
            Err(_) if lines.peek().is_none() => {}
            Err(error) => return Err(io::Error::new(io::ErrorKind::InvalidData, error)),
        }
    }
    Ok(past)
}

fn line(line: &Line) -> String {
    // Serializing these types cannot fail.
    let mut text = serde_json::to_string(line).unwrap_or_default();
    text.push('\n');
    text
}

impl Journal {
    pub(super) fn put(&mut self, number: u32, stored: Stored) {
        self.write(&Line::Put(number, Box::new(stored)));
    }

    pub(super) fn gone(&mut self, number: u32) {
        self.write(&Line::Gone(number));
    }

    pub(super) fn volume(&mut self, volume: Volume) {
        self.write(&Line::Volume(Box::new(volume)));
    }

    pub(super) fn no_volume(&mut self, id: String) {
        self.write(&Line::NoVolume(id));
    }

    fn write(&mut self, what: &Line) {
        if let Err(error) = self.0.write_all(line(what).as_bytes()) {
            tracing::error!(%error, "the state file cannot be written; simulated nodes will be forgotten");
        }
    }
}
