//! Reads the manifests that a command names.

use std::{
    fs::{self, File},
    io::{self, IsTerminal},
    path::{Path, PathBuf},
};

use anyhow::{Context, bail};
use drover_manifest::Manifests;

use crate::output::quoted;

/// Reads files, directories (their `.yaml`, `.yml` and `.json` files, by name) and standard input (`-`).
pub(crate) fn manifests(inputs: &[String]) -> anyhow::Result<Manifests> {
    let mut manifests = Manifests::default();
    for input in inputs {
        if input == "-" {
            if io::stdin().is_terminal() {
                complain!("reading a manifest from the terminal, end with Ctrl-D");
            }
            let content =
                drover_manifest::read(io::stdin().lock()).context("cannot read standard input")?;
            manifests.add("stdin", PathBuf::from("."), content)?;
            continue;
        }
        if input.starts_with("http://") || input.starts_with("https://") {
            bail!(
                "-f takes files, not URLs; for example: curl -fsS {} | drover apply -f -",
                quoted(input)
            );
        }
        let path = Path::new(input);
        let meta = fs::metadata(path).with_context(|| format!("cannot read {input}"))?;
        if meta.is_dir() {
            let (files, directories) =
                files_in(path).with_context(|| format!("cannot read {input}"))?;
            if directories > 0 {
                let what = match directories {
                    1 => "1 directory".to_owned(),
                    number => format!("{number} directories"),
                };
                complain!("{input}: {what} inside not read; name what is meant");
            }
            if files.is_empty() {
                bail!("{input} has no .yaml, .yml or .json file");
            }
            for file in files {
                add_file(&mut manifests, &file)?;
            }
        } else {
            add_file(&mut manifests, path)?;
        }
    }
    // Empty input means that a pipe broke, or that it is the wrong file.
    if manifests.is_empty() {
        bail!("no document in {}", inputs.join(", "));
    }
    Ok(manifests)
}

fn add_file(manifests: &mut Manifests, path: &Path) -> anyhow::Result<()> {
    let content = File::open(path)
        .and_then(drover_manifest::read)
        .with_context(|| format!("cannot read {}", path.display()))?;
    let base = path.parent().map(Path::to_path_buf).unwrap_or_default();
    manifests.add(&path.display().to_string(), base, content)?;
    Ok(())
}

/// The manifests in a directory, sorted by name, and how many directories are beside them.
fn files_in(directory: &Path) -> io::Result<(Vec<PathBuf>, usize)> {
    let (mut files, mut directories) = (Vec::new(), 0);
    for entry in fs::read_dir(directory)? {
        let path = entry?.path();
        let extension = path
            .extension()
            .and_then(|extension| extension.to_str())
            .unwrap_or_default();
        directories += usize::from(path.is_dir());
        if matches!(extension, "yaml" | "yml" | "json") && path.is_file() {
            files.push(path);
        }
    }
    files.sort();
    Ok((files, directories))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_is_read_by_name_and_other_files_are_left_alone() {
        let dir = tempfile::tempdir().unwrap();
        let cluster = "apiVersion: drover.dev/v1\nkind: Cluster\nmetadata: {name: x}\nspec:\n  groups:\n    db: {size: 1}\n";
        fs::write(dir.path().join("b.yaml"), cluster).unwrap();
        fs::write(dir.path().join("a.json"), r#"{"apiVersion":"drover.dev/v1","kind":"Platform","metadata":{"name":"p"},"spec":{"endpoint":"http://127.0.0.1:1"}}"#).unwrap();
        fs::write(dir.path().join("notes.txt"), "not yaml: [").unwrap();
        let objects = manifests(&[dir.path().display().to_string()])
            .unwrap()
            .decode(None);
        assert!(
            objects.diagnostics.is_empty(),
            "{}",
            objects.diagnostics.render("")
        );
        assert_eq!((objects.platforms.len(), objects.clusters.len()), (1, 1));
    }
}
