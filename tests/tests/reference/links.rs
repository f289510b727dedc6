//! Relative links and anchors in the documentation.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Component, Path, PathBuf},
};

use crate::root;

/// Returns broken links: file, line, target.
pub(crate) fn broken() -> Vec<String> {
    let mut pages = ["README.md", "CONTRIBUTING.md", "SECURITY.md"]
        .map(|page| root().join(page))
        .to_vec();
    for folder in [
        "docs",
        "platform-cloud/emulators",
        "tests/kubernetes",
        "tests/prism",
        "deploy",
    ] {
        find(&root().join(folder), &mut pages);
    }
    let mut anchors: BTreeMap<PathBuf, BTreeSet<String>> = BTreeMap::new();
    let mut broken = Vec::new();
    let mut links = 0;
    for page in &pages {
        let text = fs::read_to_string(page).unwrap();
        for (name, target) in code(&text) {
            let file = plain(&page.parent().unwrap().join(target));
            let source = fs::read_to_string(&file).unwrap_or_default();
            let last = name.rsplit("::").next().unwrap_or_default();
            if !source.contains(last) {
                let shown = page.strip_prefix(root()).unwrap().display();
                broken.push(format!("{shown}: {target}: has no {name}"));
            }
        }
        for (line, target) in targets(&text) {
            if target.contains("://") || target.starts_with("mailto:") {
                continue;
            }
            links += 1;
            let (path, anchor) = target.split_once('#').unwrap_or((&target, ""));
            let file = if path.is_empty() {
                page.clone()
            } else {
                plain(&page.parent().unwrap().join(path))
            };
            let shown = page.strip_prefix(root()).unwrap().display();
            if !file.exists() {
                broken.push(format!("{shown}:{line}: {target}: no such file"));
            } else if !anchor.is_empty() {
                let known = anchors
                    .entry(file.clone())
                    .or_insert_with(|| ids(&fs::read_to_string(&file).unwrap_or_default()));
                if !known.contains(anchor) {
                    broken.push(format!("{shown}:{line}: {target}: no such heading"));
                }
            }
        }
    }
    assert!(links > 50, "only {links} links found");
    broken
}

fn find(folder: &Path, pages: &mut Vec<PathBuf>) {
    let mut entries: Vec<_> = fs::read_dir(folder)
        .unwrap()
        .map(|e| e.unwrap().path())
        .collect();
    entries.sort();
    for entry in entries {
        if entry.is_dir() {
            find(&entry, pages);
        } else if entry.extension().is_some_and(|e| e == "md") {
            pages.push(entry);
        }
    }
}

/// Resolves `..` lexically, without accessing the file system.
fn plain(path: &Path) -> PathBuf {
    let mut out = PathBuf::new();
    for part in path.components() {
        match part {
            Component::ParentDir => {
                out.pop();
            }
            Component::CurDir => {}
            other => out.push(other),
        }
    }
    out
}

/// The lines outside of code blocks, with inline code blanked.
fn prose(text: &str) -> impl Iterator<Item = (usize, String)> + '_ {
    let mut fenced = false;
    (1..).zip(text.lines()).filter_map(move |(number, line)| {
        if line.trim_start().starts_with("```") {
            fenced = !fenced;
            return None;
        }
        if fenced {
            return None;
        }
        let parts: Vec<&str> = line.split('`').collect();
        let outside = parts.iter().step_by(2).copied().collect::<Vec<_>>();
        Some((number, outside.join("")))
    })
}

fn targets(text: &str) -> Vec<(usize, String)> {
    let mut all = Vec::new();
    for (number, line) in prose(text) {
        for after in line.split("](").skip(1) {
            if let Some((target, _)) = after.split_once(')') {
                all.push((number, target.trim().to_owned()));
            }
        }
    }
    all
}

/// What is named as being in a file of Rust: the name, and the file.
fn code(text: &str) -> impl Iterator<Item = (&str, &str)> {
    text.split("[`").skip(1).filter_map(|after| {
        let (name, rest) = after.split_once("`](")?;
        let (target, _) = rest.split_once(')')?;
        let is_name = !name.contains(['`', '.', '/']);
        (is_name && target.ends_with(".rs")).then_some((name, target))
    })
}

/// Link targets: headings with the anchors that GitHub gives them, and explicit ids.
fn ids(text: &str) -> BTreeSet<String> {
    let mut all = BTreeSet::new();
    let mut times: BTreeMap<String, usize> = BTreeMap::new();
    let mut fenced = false;
    for line in text.lines() {
        if line.trim_start().starts_with("```") {
            fenced = !fenced;
        }
        if fenced {
            continue;
        }
        if let Some(id) = line.split("<a id=\"").nth(1) {
            all.insert(id.split('"').next().unwrap().to_owned());
        }
        if !line.starts_with('#') {
            continue;
        }
        let heading = line.trim_start_matches('#').trim();
        let slug: String = heading
            .to_lowercase()
            .chars()
            .filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'))
            .map(|c| if c == ' ' { '-' } else { c })
            .collect();
        let count = times.entry(slug.clone()).or_default();
        all.insert(if *count == 0 {
            slug.clone()
        } else {
            format!("{slug}-{count}")
        });
        *count += 1;
    }
    all
}
