//! Storage that becomes another user's.

use std::{
    fs, io,
    os::{fd::OwnedFd, unix::fs::MetadataExt},
    path::Path,
};

use rustix::fs::{
    AtFlags, CWD, Dir, FileType, Gid, Mode, OFlags, Stat, Uid, chownat, fchown, openat, statat,
};

use super::spec::User;

/// Directories inside each other. Deeper ones are nobody's data, but a way to use up descriptors.
const MAX_DEPTH: usize = 200;

/// Gives a directory, and what in it belongs to its owner, to a user. What belongs to somebody else stays so: it may have
/// been put there to be given away. The directory itself comes last, so that what was broken off goes on.
pub(super) fn tree(path: &Path, user: User) -> io::Result<()> {
    let before = fs::symlink_metadata(path)?.uid();
    if before == user.uid {
        return Ok(());
    }
    let directory = open(CWD, path)?;
    inside(&directory, before, user, 0)?;
    fchown(&directory, Some(uid(user)), Some(gid(user)))?;
    Ok(())
}

fn inside(directory: &OwnedFd, before: u32, user: User, depth: usize) -> io::Result<()> {
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
        let is_directory = FileType::from_raw_mode(stat.st_mode) == FileType::Directory;
        if is_directory {
            inside(&open(directory, name)?, before, user, depth + 1)?;
        }
        // Another name of a file may be anywhere.
        if stat.st_uid == before && (is_directory || only(&stat)) {
            let flags = AtFlags::SYMLINK_NOFOLLOW;
            chownat(directory, name, Some(uid(user)), Some(gid(user)), flags)?;
        }
    }
    Ok(())
}

fn only(stat: &Stat) -> bool {
    stat.st_nlink == 1
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
        let user = User {
            uid: 700_002,
            gid: 700_002,
        };
        for _ in 0..2 {
            tree(&storage, user).unwrap();
            for inner in ["", "a", "a/b", "a/b/file", "a/link"] {
                let meta = fs::symlink_metadata(storage.join(inner)).unwrap();
                assert_eq!((meta.uid(), meta.gid()), (700_002, 700_002), "{inner}");
            }
            assert_eq!(fs::metadata(&outside).unwrap().uid(), 700_001);
        }
    }
}
