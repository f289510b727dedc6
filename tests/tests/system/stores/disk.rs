//! A disk that stands still: what reads it goes on, and what writes to it waits. One that is full is in `impaired`.

use std::{
    fs,
    os::unix::fs::{MetadataExt as _, chown},
    path::PathBuf,
};

use crate::stores::{
    alone::{Node, promoted, until},
    impaired::lacks,
    postgresql::{all_ready, alone, begin, insist},
    quorum::{acknowledged, acknowledges, counts},
    run,
};

/// A disk of its own for the storage of nodes.
pub(super) struct Disk {
    at: PathBuf,
    image: PathBuf,
}

impl Disk {
    /// Gives a node that was never started a disk.
    fn of(node: &Node) -> Self {
        Self::at(node.storage())
    }

    /// Mounts a disk at an empty directory.
    pub(super) fn at(at: PathBuf) -> Self {
        let image = at.with_extension("ext4");
        let owner = fs::metadata(&at).unwrap();
        fs::File::create(&image)
            .unwrap()
            .set_len(512 << 20)
            .unwrap();
        let (file, place) = (image.to_str().unwrap(), at.to_str().unwrap());
        does("mkfs.ext4", &["-q", "-m", "0", file]);
        does("mount", &["-o", "loop", file, place]);
        chown(&at, Some(owner.uid()), Some(owner.gid())).unwrap();
        fs::remove_dir(at.join("lost+found")).unwrap();
        Self { at, image }
    }

    /// Fills it up, but for this number of megabytes.
    pub(super) fn fill_but(&self, megabytes: u32) {
        let script = "free=$(df -Pk \"$1\" | awk 'NR == 2 { print $4 }') \
                      && fallocate -l $((free - 1024 * $2))K \"$1/.ballast\"";
        let (at, left) = (self.at.to_str().unwrap(), megabytes.to_string());
        does("sh", &["-c", script, "sh", at, &left]);
    }

    pub(super) fn free(&self) {
        fs::remove_file(self.at.join(".ballast")).unwrap();
    }

    pub(super) fn stands_still(&self) {
        does("fsfreeze", &["--freeze", self.at.to_str().unwrap()]);
    }

    pub(super) fn goes_on(&self) {
        does("fsfreeze", &["--unfreeze", self.at.to_str().unwrap()]);
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        let at = self.at.to_str().unwrap();
        let _ = run("fsfreeze", &["--unfreeze", at]);
        // What still uses it, does so until it ends.
        let _ = run("umount", &["--lazy", at]);
        let _ = fs::remove_file(&self.image);
    }
}

fn does(program: &str, arguments: &[&str]) {
    let answer = run(program, arguments);
    assert!(
        answer.status.success(),
        "{program} {arguments:?}: {answer:?}"
    );
}

fn is_alive(node: &Node) -> bool {
    node.does("alive").status.success()
}

#[test]
fn a_primary_whose_disk_stands_still_is_ended_and_a_standby_takes_over() {
    let one = |at| alone(at, &[]).with_environment("SYNCHRONOUS", "1");
    let mut nodes = [one(0), one(1)];
    // Goes before the nodes: what waits for it could not be waited for.
    let disk = Disk::of(&nodes[0]);
    begin(&mut nodes);
    let standby = ["db-1".to_owned()];
    until("the standby counts", &mut nodes, |nodes| {
        counts(&nodes[0], &standby)
    });
    insist(&nodes[0], "create table t (x int)");
    acknowledged(&nodes[0], 1);
    until("it is alive", &mut nodes, |nodes| is_alive(&nodes[0]));
    disk.stands_still();
    assert!(!acknowledges(&nodes[0], 2));
    until("it is of no use", &mut nodes, |nodes| !is_alive(&nodes[0]));
    assert!(!nodes[0].is_ready());
    until("it has ended", &mut nodes, |nodes| {
        is_alive(&nodes[0]);
        nodes[0].has_ended()
    });
    promoted(&mut nodes[1]);
    assert_eq!(insist(&nodes[1], "select x from t where x = 1"), "1");
    disk.goes_on();
}

#[test]
fn a_full_disk_is_found_whatever_the_interval_of_probes() {
    let mut nodes = [alone(0, &[])];
    let disk = Disk::of(&nodes[0]);
    begin(&mut nodes);
    let uptime = nodes[0].directory().join("uptime");
    nodes[0].sets("UPTIME", uptime.to_str().unwrap());
    let is_full_at = |second: u32| {
        fs::write(&uptime, format!("{second}.00 0.00\n")).unwrap();
        lacks(&nodes[0]) == ["DiskFull"]
    };
    // Every six seconds, whichever second that is.
    for phase in 10..16 {
        disk.fill_but(16);
        // Again and again at the same seconds: a look that takes too long says nothing.
        until(&format!("full: {phase}"), &mut [], |_| {
            is_full_at(phase) || is_full_at(phase + 6)
        });
        disk.free();
        until(&format!("free: {phase}"), &mut [], |_| {
            !is_full_at(phase + 12)
        });
    }
}

#[test]
fn once_not_to_have_answered_keeps_a_server_out_only_as_long_as_it_is_asked() {
    let mut nodes = [alone(0, &[])];
    begin(&mut nodes);
    let misses = nodes[0].directory().join("misses");
    let ready = nodes[0].directory().join("ready");
    fs::write(&misses, "\n").unwrap();
    fs::remove_file(&ready).unwrap();
    does("touch", &["-d", "2 minutes ago", misses.to_str().unwrap()]);
    until("it is of use again", &mut nodes, all_ready);
}

#[test]
fn a_server_that_nobody_follows_waits_for_its_disk() {
    let mut nodes = [alone(0, &[])];
    let disk = Disk::of(&nodes[0]);
    begin(&mut nodes);
    // A standby that is still to come has nothing to take over with.
    nodes[0].hears_of(&[alone(1, &[]).seen_as("standby")]);
    insist(&nodes[0], "create table t (x int)");
    disk.stands_still();
    assert!(!acknowledges(&nodes[0], 1));
    // As often as would be too often for one with a standby, and each time as after one at which it did not write.
    for _ in 0..4 {
        until("it is alive", &mut nodes, |nodes| {
            fs::write(nodes[0].directory().join("misses"), "\n").unwrap();
            is_alive(&nodes[0])
        });
    }
    assert!(!nodes[0].has_ended());
    disk.goes_on();
    until("it goes on", &mut nodes, |nodes| {
        all_ready(nodes) && acknowledges(&nodes[0], 2)
    });
}
