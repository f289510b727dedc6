//! Unix sockets that are accessible to their owner only.

use std::{
    fs, io,
    os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt},
    path::{Path, PathBuf},
    time::Duration,
};

use tokio::net::{UnixListener, UnixSocket, UnixStream};

/// Socket mode: only the owner can connect.
const MODE: u32 = 0o600;
/// Mode bits that allow others to write.
const WRITE: u32 = 0o022;
/// Mode bit of directories in which files can only be removed by their owners.
const STICKY: u32 = 0o1000;
/// Maximum path length in bytes that all systems support (`sun_path`).
const MAX_PATH: usize = 103;
/// Maximum number of pending connections.
const BACKLOG: u32 = 1024;
/// How long to wait for another process that holds the lock of the directory, and the interval of attempts. The lock is
/// held only briefly.
const PATIENCE: Duration = Duration::from_secs(2);
const PAUSE: Duration = Duration::from_millis(10);

/// Why the socket cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("cannot listen on the socket {}: {why}", path.display())]
pub struct SocketError {
    path: PathBuf,
    why: String,
}

/// The file of a socket. It is removed on drop, unless it was replaced by another one.
#[derive(Debug)]
pub(crate) struct SocketFile {
    path: PathBuf,
    device: u64,
    inode: u64,
}

impl SocketFile {
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        let ours = fs::symlink_metadata(&self.path)
            .is_ok_and(|found| (found.dev(), found.ino()) == (self.device, self.inode));
        if ours && let Err(error) = fs::remove_file(&self.path) {
            tracing::warn!(path = %self.path.display(), %error, "the socket cannot be removed");
        }
    }
}

/// Binds a socket that only this user can connect to. A socket left by a dead process is replaced.
pub(crate) async fn bind(path: &Path) -> Result<(UnixListener, SocketFile), SocketError> {
    let failed = |why: String| SocketError {
        path: path.to_owned(),
        why,
    };
    let directory = directory(path).map_err(failed)?;
    let place = directory.join(path.file_name().unwrap_or_default());
    if place.as_os_str().len() > MAX_PATH {
        return Err(failed(format!(
            "the path is longer than {MAX_PATH} bytes; choose a shorter one"
        )));
    }
    // Locked, so that two processes that start concurrently do not mistake each other's socket for a stale one.
    let lock = lock(&directory).await.map_err(failed)?;
    make_way(&place).await.map_err(failed)?;
    let bound = listen(&place).map_err(|error| failed(error.to_string()))?;
    drop(lock);
    Ok(bound)
}

fn listen(path: &Path) -> io::Result<(UnixListener, SocketFile)> {
    let socket = UnixSocket::new_stream()?;
    socket.bind(path)?;
    let found = fs::symlink_metadata(path)?;
    let file = SocketFile {
        path: path.to_owned(),
        device: found.dev(),
        inode: found.ino(),
    };
    // Before anyone can connect, regardless of the umask.
    fs::set_permissions(path, fs::Permissions::from_mode(MODE))?;
    Ok((socket.listen(BACKLOG)?, file))
}

/// Returns the directory of a socket. Fails if it does not exist, or if others could replace the socket.
fn directory(path: &Path) -> Result<PathBuf, String> {
    if path.file_name().is_none() {
        return Err("it names no file".to_owned());
    }
    let absolute = std::path::absolute(path).map_err(|error| error.to_string())?;
    let parent = absolute.parent().unwrap_or(&absolute);
    let directory = parent
        .canonicalize()
        .map_err(|error| format!("directory {}: {error}", parent.display()))?;
    let own = rustix::process::geteuid().as_raw();
    for (depth, above) in directory.ancestors().enumerate() {
        let found = fs::metadata(above)
            .map_err(|error| format!("directory {}: {error}", above.display()))?;
        let (owner, mode) = (found.uid(), found.mode());
        let shared = mode & WRITE != 0 && (depth == 0 || mode & STICKY == 0);
        if shared || (owner != own && owner != 0) {
            return Err(format!(
                "others could replace it, because they may write to {}; choose a directory of your own (chmod 700)",
                above.display()
            ));
        }
    }
    Ok(directory)
}

async fn lock(directory: &Path) -> Result<fs::File, String> {
    let wrong = |error: io::Error| format!("directory {}: {error}", directory.display());
    let file = fs::File::open(directory).map_err(wrong)?;
    let taken = async {
        loop {
            match file.try_lock() {
                Ok(()) => return Ok(()),
                Err(fs::TryLockError::WouldBlock) => tokio::time::sleep(PAUSE).await,
                Err(fs::TryLockError::Error(error)) => return Err(wrong(error)),
            }
        }
    };
    match tokio::time::timeout(PATIENCE, taken).await {
        Ok(outcome) => outcome?,
        Err(_) => {
            return Err(format!(
                "another process holds the lock of directory {}",
                directory.display()
            ));
        }
    }
    Ok(file)
}

/// Removes a stale socket. Fails if a process listens on it, or if it is not a socket.
async fn make_way(path: &Path) -> Result<(), String> {
    let found = match fs::symlink_metadata(path) {
        Ok(found) => found,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(error.to_string()),
    };
    if !found.file_type().is_socket() {
        return Err("there is something else, which was left alone".to_owned());
    }
    match UnixStream::connect(path).await {
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
            fs::remove_file(path).map_err(|error| error.to_string())
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        _ => Err("another process listens there; stop it, or choose another path".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn refused(path: &Path) -> String {
        match bind(path).await {
            Ok(_) => panic!("{} is listened on", path.display()),
            Err(error) => error.to_string(),
        }
    }

    fn mode(path: &Path, mode: u32) {
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    }

    #[tokio::test]
    async fn it_is_for_its_owner_and_removed_at_the_end() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("api");
        let (_listener, file) = bind(&path).await.unwrap();
        let found = fs::symlink_metadata(&path).unwrap();
        assert!(found.file_type().is_socket());
        assert_eq!(found.mode() & 0o7777, 0o600);
        UnixStream::connect(&path).await.unwrap();
        drop(file);
        assert!(!path.exists());
    }

    #[tokio::test]
    async fn one_that_is_left_is_replaced_and_one_that_lives_is_not() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("api");
        // Its process has ended without removing it.
        drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
        assert!(path.exists());
        let (_listener, file) = bind(&path).await.unwrap();
        let why = refused(&path).await;
        assert!(why.contains("another process listens there"), "{why}");
        UnixStream::connect(&path).await.unwrap();
        // A different socket at the same path is kept.
        fs::remove_file(&path).unwrap();
        let other = std::os::unix::net::UnixListener::bind(&path).unwrap();
        drop(file);
        assert!(path.exists());
        drop(other);
    }

    #[tokio::test]
    async fn what_is_no_socket_is_left_alone() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("thesis.tex");
        fs::write(&path, "x").unwrap();
        assert!(refused(&path).await.contains("something else"));
        assert_eq!(fs::read_to_string(&path).unwrap(), "x");
        let link = directory.path().join("link");
        std::os::unix::fs::symlink(&path, &link).unwrap();
        assert!(refused(&link).await.contains("something else"));
    }

    #[tokio::test]
    async fn a_directory_that_others_may_write_to_is_refused() {
        let root = tempfile::tempdir().unwrap();
        let directory = root.path().join("d");
        fs::create_dir(&directory).unwrap();
        for (shared, words) in [
            (0o777, "others could replace it"),
            (0o1777, "others could replace it"),
            (0o770, "others could replace it"),
        ] {
            mode(&directory, shared);
            let why = refused(&directory.join("api")).await;
            assert!(why.contains(words), "{shared:o}: {why}");
        }
        mode(&directory, 0o755);
        bind(&directory.join("api")).await.unwrap();
        // Anyone who can rename the directory can replace it.
        mode(root.path(), 0o777);
        let why = refused(&directory.join("api")).await;
        assert!(why.contains("others could replace it"), "{why}");
        mode(root.path(), 0o1777);
        bind(&directory.join("api")).await.unwrap();
        let why = refused(&root.path().join("nothing/api")).await;
        assert!(why.contains("nothing"), "{why}");
        let why = refused(&directory.join("x".repeat(120))).await;
        assert!(why.contains("longer than 103 bytes"), "{why}");
    }
}
