//! A small disk that can be filled up. Needs root.

use std::{fs, io::Write, path::PathBuf, process::Command};

/// A tmpfs that is unmounted on drop.
pub struct Disk(PathBuf);

impl Disk {
    pub fn mount(at: PathBuf, megabytes: u32) -> Self {
        fs::create_dir_all(&at).unwrap();
        let options = format!("size={megabytes}m,mode=700");
        let mounted = Command::new("mount")
            .args(["-t", "tmpfs", "-o", &options, "tmpfs"])
            .arg(&at)
            .output()
            .unwrap();
        assert!(
            mounted.status.success(),
            "a small disk cannot be mounted; run this test as root: {mounted:?}"
        );
        Self(at)
    }

    /// Fills the disk to the last byte.
    pub fn fill(&self) {
        let mut file = fs::OpenOptions::new()
            .create(true)
            .append(true)
            .open(self.0.join("ballast"))
            .unwrap();
        for size in [64 * 1024, 4096, 1] {
            let block = vec![0; size];
            while file.write_all(&block).is_ok() {}
        }
        let full = file.write_all(b"x").unwrap_err();
        assert_eq!(full.kind(), std::io::ErrorKind::StorageFull);
    }

    pub fn free(&self) {
        fs::remove_file(self.0.join("ballast")).unwrap();
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("--lazy").arg(&self.0).status();
    }
}
