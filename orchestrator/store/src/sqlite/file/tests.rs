use super::*;

const MOUNTS: &str = "\
22 1 252:0 / / rw,relatime shared:1 - ext4 /dev/vda rw
30 22 0:40 / /data rw - nfs4 server:/export rw
31 30 252:1 / /data/fast rw - xfs /dev/vdb rw
32 22 0:41 / /with\\040blank rw shared:7 master:2 - cifs //server/share rw
33 22 0:42 / /covered rw - nfs4 server:/old rw
34 22 0:43 / /covered rw - tmpfs none rw
";

#[test]
fn the_deepest_and_last_mount_decides_the_file_system() {
    for (path, kind) in [
        ("/var/lib", "ext4"),
        ("/data/a", "nfs4"),
        ("/database", "ext4"),
        ("/data/fast/a", "xfs"),
        ("/with blank/a", "cifs"),
        ("/covered/a", "tmpfs"),
    ] {
        assert_eq!(file_system(MOUNTS, Path::new(path)), Some(kind), "{path}");
    }
}

fn rename_column(txn: &Transaction<'_>) -> rusqlite::Result<()> {
    txn.execute_batch("ALTER TABLE old RENAME TO new; INSERT INTO meta (k, v) VALUES ('epoch', 0), ('revision', 0)")
}

fn fail(txn: &Transaction<'_>) -> rusqlite::Result<()> {
    rename_column(txn)?;
    txn.execute_batch("SELECT * FROM missing")
}

fn older(directory: &Path) -> PathBuf {
    let path = directory.join(DATABASE);
    let connection = Connection::open(&path).unwrap();
    connection
        .pragma_update(None, "application_id", APPLICATION_ID)
        .unwrap();
    connection
        .execute_batch("CREATE TABLE old (a); INSERT INTO old VALUES (7); CREATE TABLE meta (k, v)")
        .unwrap();
    path
}

#[test]
fn an_older_format_is_copied_then_migrated() {
    let directory = tempfile::tempdir().unwrap();
    let path = older(directory.path());
    prepare(
        directory.path(),
        &Format {
            version: 1,
            steps: &[rename_column],
        },
    )
    .unwrap();
    let value = |path: &Path, table: &str| -> rusqlite::Result<i64> {
        Connection::open(path)?.query_row(&format!("SELECT a FROM {table}"), [], |row| row.get(0))
    };
    assert_eq!(value(&path, "new"), Ok(7));
    assert_eq!(value(&with_suffix(&path, ".v0"), "old"), Ok(7));
    prepare(
        directory.path(),
        &Format {
            version: 1,
            steps: &[rename_column],
        },
    )
    .expect("migrated once");
}

#[cfg(unix)]
fn mode(path: &Path) -> u32 {
    use std::os::unix::fs::PermissionsExt;
    fs::metadata(path).unwrap().permissions().mode() & 0o7777
}

#[cfg(unix)]
#[test]
fn databases_and_their_copies_are_their_owners_alone() {
    let directory = tempfile::tempdir().unwrap();
    let path = prepare(directory.path(), &FORMAT).unwrap();
    assert_eq!(mode(&path), 0o600);
    let to = directory.path().join("backup.db");
    backup(&path, &to).unwrap();
    assert_eq!(mode(&to), 0o600);
    // A database that others may read, as older versions created it: its copy is private nevertheless.
    let old = tempfile::tempdir().unwrap();
    let path = older(old.path());
    prepare(
        old.path(),
        &Format {
            version: 1,
            steps: &[rename_column],
        },
    )
    .unwrap();
    assert_eq!(mode(&with_suffix(&path, ".v0")), 0o600);
}

#[cfg(unix)]
#[test]
fn a_data_directory_that_everybody_may_write_to_is_refused() {
    use std::os::unix::fs::PermissionsExt;
    let directory = tempfile::tempdir().unwrap();
    let set = |mode| {
        let mode = fs::Permissions::from_mode(mode);
        fs::set_permissions(directory.path(), mode).unwrap();
    };
    for shared in [0o777, 0o1777, 0o707, 0o702] {
        set(shared);
        let error = lock(directory.path()).unwrap_err();
        assert_eq!(error.reason(), Reason::Precondition);
        assert!(error.message().contains("chmod 700"), "{error}");
        let inside = fs::read_dir(directory.path()).unwrap();
        assert_eq!(inside.count(), 0, "nothing was made");
    }
    for allowed in [0o700, 0o750, 0o755, 0o770, 0o2775] {
        set(allowed);
        drop(lock(directory.path()).unwrap());
    }
    drop(lock(&directory.path().join("a/b")).unwrap());
    assert_eq!(mode(&directory.path().join("a/b")) & 0o777, 0o700);
}

#[test]
fn a_migration_that_fails_changes_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let path = older(directory.path());
    let error = prepare(
        directory.path(),
        &Format {
            version: 1,
            steps: &[fail],
        },
    )
    .unwrap_err();
    assert!(error.message().contains("is unchanged"), "{error}");
    let connection = Connection::open(path).unwrap();
    assert_eq!(
        connection.query_row("SELECT a FROM old", [], |row| row.get(0)),
        Ok(7)
    );
    assert_eq!(
        connection.pragma_query_value(None, "user_version", |row| row.get(0)),
        Ok(0)
    );
}

#[test]
fn a_format_has_one_step_a_version() {
    assert_eq!(FORMAT.steps.len(), FORMAT.version);
}
