//! Changes the owner of storage.

use std::{
    collections::BTreeMap,
    ffi::CStr,
    fs, io,
    os::{fd::OwnedFd, unix::fs::MetadataExt},
    path::Path,
};

use rustix::fs::{
    AtFlags, CWD, Dir, FileType, Gid, Mode, OFlags, Stat, Uid, chownat, fchown, openat, statat,
};

use tracing::warn;

use super::spec::User;

/// Maximum depth of directories. Deeper ones are not plausible data, but a way to exhaust file descriptors.
const MAX_DEPTH: usize = 200;

/// Changes the owner of a directory and of the contents that belong to its current owner. Files of other owners are
/// left alone, as are files with a hard link outside: they may have been linked into the directory to be given away.
/// The directory itself is changed last, so that an interrupted change is resumed.
pub(super) fn tree(path: &Path, user: User) -> io::Result<()> {
    let before = fs::symlink_metadata(path)?.uid();
    if before == user.uid {
        return Ok(());
    }
    let directory = open(CWD, path)?;
    let mut names = BTreeMap::new();
    walk(&directory, 0, &mut |_, _, stat| {
        if stat.st_nlink > 1 {
            *names.entry((stat.st_dev, stat.st_ino)).or_insert(0) += 1;
        }
        Ok(())
    })?;
    let mut left = 0_u64;
    walk(&directory, 0, &mut |directory, name, stat| {
        let is_inside = stat.st_nlink == 1
            || is_directory(stat)
            || names.get(&(stat.st_dev, stat.st_ino)) == Some(&stat.st_nlink);
        if stat.st_uid != before {
            return Ok(());
        }
        if !is_inside {
            left += 1;
            return Ok(());
        }
        let flags = AtFlags::SYMLINK_NOFOLLOW;
        Ok(chownat(
            directory,
            name,
            Some(uid(user)),
            Some(gid(user)),
            flags,
        )?)
    })?;
    if left > 0 {
        let path = path.display();
        warn!(%path, left, "files in storage also have a name elsewhere; they stay whose they are");
    }
    fchown(&directory, Some(uid(user)), Some(gid(user)))?;
    Ok(())
}

/// Visits everything in a directory, contents before their directory.
fn walk(
    directory: &OwnedFd,
    depth: usize,
    visit: &mut impl FnMut(&OwnedFd, &CStr, &Stat) -> io::Result<()>,
) -> io::Result<()> {
    if depth > MAX_DEPTH {
        return Err(io::Error::other(format!(
            "storage has more than {MAX_DEPTH} directories inside each other"
        )));
    }
    for entry in Dir::read_from(directory)? {
        let entry = entry?;
        let name = entry.file_name();
        if matches!(name.to_bytes(), b"." | b"..") {
            continue;
        }
        let stat = statat(directory, name, AtFlags::SYMLINK_NOFOLLOW)?;
        if is_directory(&stat) {
            walk(&open(directory, name)?, depth + 1, visit)?;
        }
        visit(directory, name, &stat)?;
    }
    Ok(())
}

fn is_directory(stat: &Stat) -> bool {
    FileType::from_raw_mode(stat.st_mode) == FileType::Directory
}

fn open<Fd: std::os::fd::AsFd, P: rustix::path::Arg>(at: Fd, path: P) -> io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    Ok(openat(at, path, flags, Mode::empty())?)
}

fn uid(user: User) -> Uid {
    Uid::from_raw(user.uid)
}

fn gid(user: User) -> Gid {
    Gid::from_raw(user.gid)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{chown, symlink};

    use super::*;

    #[test]
    fn all_of_a_directory_is_given_but_what_it_leads_to() {
        if !rustix::process::geteuid().is_root() {
            return;
        }
        let directory = tempfile::tempdir().unwrap();
        let outside = directory.path().join("outside");
        fs::write(&outside, "another's").unwrap();
        chown(&outside, Some(700_001), Some(700_001)).unwrap();
        let storage = directory.path().join("storage");
        fs::create_dir_all(storage.join("a/b")).unwrap();
        fs::write(storage.join("a/b/file"), "data").unwrap();
        symlink(&outside, storage.join("a/link")).unwrap();
        fs::hard_link(&outside, storage.join("a/name")).unwrap();
        fs::hard_link(storage.join("a/b/file"), storage.join("snapshot")).unwrap();
        // Belongs to the old owner, too.
        let escaped = directory.path().join("escaped");
        fs::write(storage.join("a/escaped"), "shared").unwrap();
        fs::hard_link(storage.join("a/escaped"), &escaped).unwrap();
        let owner = fs::metadata(&escaped).unwrap().uid();
        let user = User {
            uid: 700_002,
            gid: 700_002,
        };
        for _ in 0..2 {
            tree(&storage, user).unwrap();
            for inner in ["", "a", "a/b", "a/b/file", "a/link", "snapshot"] {
                let meta = fs::symlink_metadata(storage.join(inner)).unwrap();
                assert_eq!((meta.uid(), meta.gid()), (700_002, 700_002), "{inner}");
            }
            assert_eq!(fs::metadata(&outside).unwrap().uid(), 700_001);
            assert_eq!(fs::metadata(&escaped).unwrap().uid(), owner);
        }
    }
}
