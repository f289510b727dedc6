//! The data directory of `drover dev`: its content and its removal.

use std::{
    fs,
    io::{self, Write},
    os::unix::fs::OpenOptionsExt,
    path::{Path, PathBuf},
};

use anyhow::{Context, bail};
use drover_platform_cloud::drivers::local;

/// Marks a directory as ours; no other directory is ever removed. Also keeps it out of repositories.
const MARK: &str = "# Data of `drover dev`. Remove it with: drover dev --clean\n*\n";
const MARK_FILE: &str = ".gitignore";
/// Prefix of the state files of simulated platforms, before the name.
const SIMULATED: &str = "simulated-";

/// The directory with all data that are kept between runs.
#[derive(Clone, Debug)]
pub(super) struct DataDir {
    root: PathBuf,
    /// Whether it was just created.
    pub(super) new: bool,
}

/// Numbers of removed processes and files.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Removed {
    pub(super) processes: usize,
    pub(super) files: usize,
}

impl DataDir {
    /// Creates the directory if it does not exist.
    pub(super) fn open(root: &Path) -> anyhow::Result<Self> {
        let failed = || format!("cannot use {}", root.display());
        let new = !root.join(MARK_FILE).exists();
        if new {
            if root.exists() && fs::read_dir(root).with_context(failed)?.next().is_some() {
                bail!(
                    "{} has other things in it; choose another directory with --data-dir",
                    root.display()
                );
            }
            fs::create_dir_all(root).with_context(failed)?;
            fs::write(root.join(MARK_FILE), MARK).with_context(failed)?;
        } else {
            check_mark(root)?;
        }
        let root = root.canonicalize().with_context(failed)?;
        Ok(Self { root, new })
    }

    pub(super) fn store(&self) -> PathBuf {
        self.root.join("store")
    }

    pub(super) fn local(&self) -> PathBuf {
        self.root.join("local")
    }

    /// The file with the key of the store, which is created if missing.
    pub(super) fn keys(&self) -> anyhow::Result<PathBuf> {
        let path = self.root.join("secrets.key");
        let failed = || format!("cannot make {}", path.display());
        if path.try_exists().with_context(failed)? {
            return Ok(path);
        }
        let line = drover_orchestrator::new_key()?;
        // Created atomically: a truncated key would be useless, and would stay.
        let made = self.root.join("secrets.key.new");
        let mut options = fs::OpenOptions::new();
        options.write(true).create(true).truncate(true).mode(0o600);
        let mut file = options.open(&made).with_context(failed)?;
        file.write_all(line.as_bytes()).with_context(failed)?;
        file.sync_all().with_context(failed)?;
        fs::rename(&made, &path).with_context(failed)?;
        Ok(path)
    }

    pub(super) fn simulated(&self, name: &str) -> PathBuf {
        self.root.join(format!("{SIMULATED}{name}.json"))
    }

    /// The file with the simulated hosts.
    pub(super) fn hosts(&self) -> PathBuf {
        self.root.join("hosts.json")
    }

    /// Credentials file for an emulated cloud.
    #[cfg(feature = "emulate")]
    pub(super) fn emulated(&self, name: &str) -> PathBuf {
        self.root.join(format!("emulated-{name}"))
    }

    /// Names of the simulated platforms of earlier runs, whose nodes are still wanted.
    pub(super) fn known_simulated(&self) -> Vec<String> {
        let Ok(entries) = fs::read_dir(&self.root) else {
            return Vec::new();
        };
        let name = |entry: io::Result<fs::DirEntry>| {
            let file = entry.ok()?.file_name().into_string().ok()?;
            Some(
                file.strip_prefix(SIMULATED)?
                    .strip_suffix(".json")?
                    .to_owned(),
            )
        };
        let mut names: Vec<String> = entries.filter_map(name).collect();
        names.sort();
        names
    }
}

fn check_mark(root: &Path) -> anyhow::Result<()> {
    let mark = root.join(MARK_FILE);
    let text =
        fs::read_to_string(&mark).with_context(|| format!("cannot read {}", mark.display()))?;
    if text != MARK {
        bail!(
            "{} is not a directory of drover dev; it was left alone",
            root.display()
        );
    }
    Ok(())
}

/// Kills all nodes and removes everything. Does nothing if the directory does not exist.
pub(super) fn clean(root: &Path) -> anyhow::Result<Removed> {
    if !root.join(MARK_FILE).exists() {
        if root.exists() {
            bail!(
                "{} is not a directory of drover dev; it was left alone",
                root.display()
            );
        }
        return Ok(Removed::default());
    }
    check_mark(root)?;
    // Also fails while a `drover dev` uses it.
    let nodes = local::remove_all(&root.join("local"))?;
    let mut removed = Removed {
        processes: nodes.processes,
        files: nodes.files,
    };
    removed.files += count(root).with_context(|| format!("cannot read {}", root.display()))?;
    fs::remove_dir_all(root).with_context(|| format!("cannot remove {}", root.display()))?;
    Ok(removed)
}

fn count(directory: &Path) -> io::Result<usize> {
    let mut files = 0;
    for entry in fs::read_dir(directory)? {
        let entry = entry?;
        files += if entry.file_type()?.is_dir() {
            count(&entry.path())?
        } else {
            1
        };
    }
    Ok(files)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_of_somebody_else_is_neither_used_nor_removed() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("thesis.tex"), "x").unwrap();
        assert!(DataDir::open(dir.path()).is_err());
        assert!(clean(dir.path()).is_err());
        fs::write(dir.path().join(MARK_FILE), "*\n").unwrap();
        assert!(DataDir::open(dir.path()).is_err());
        assert!(clean(dir.path()).is_err());
        assert!(dir.path().join("thesis.tex").exists());
    }

    #[test]
    fn the_key_is_made_once_and_for_its_owner_alone() {
        use std::os::unix::fs::PermissionsExt;
        let dir = tempfile::tempdir().unwrap();
        let data = DataDir::open(&dir.path().join(".drover")).unwrap();
        let path = data.keys().unwrap();
        let text = fs::read_to_string(&path).unwrap();
        let mode = fs::metadata(&path).unwrap().permissions().mode();
        assert_eq!((text.lines().count(), mode & 0o777), (1, 0o600));
        assert_eq!(data.keys().unwrap(), path);
        assert_eq!(
            fs::read_to_string(&path).unwrap(),
            text,
            "kept between runs"
        );
    }

    #[test]
    fn cleaning_leaves_nothing_and_can_be_repeated() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().join(".drover");
        let data = DataDir::open(&root).unwrap();
        assert!(data.new);
        fs::create_dir(data.store()).unwrap();
        fs::write(data.store().join("db"), "x").unwrap();
        fs::write(data.simulated("aws"), "{}").unwrap();
        assert!(!DataDir::open(&root).unwrap().new, "kept between runs");
        assert_eq!(data.known_simulated(), ["aws"]);
        assert_eq!(
            clean(&root).unwrap(),
            Removed {
                processes: 0,
                files: 3
            }
        );
        assert!(!root.exists());
        assert_eq!(clean(&root).unwrap(), Removed::default());
    }
}
