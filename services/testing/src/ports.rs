//! Ports of servers that tests start, and start again at the same address.
#![allow(clippy::unwrap_used, reason = "a test that gets no port cannot go on")]

use std::{
    fs::{self, File},
    net::{SocketAddr, TcpListener},
    ops::Range,
};

use parking_lot::Mutex;

/// Below the ephemeral ports of Linux, and apart from the ports of nodes.
const PORTS: Range<u16> = 11_000..19_000;

/// A loopback port on which nobody listens, and that no other test is given as long as this process lives.
#[must_use]
pub fn free_port() -> u16 {
    static TAKEN: Mutex<Vec<File>> = Mutex::new(Vec::new());
    let folder = std::env::temp_dir().join("drover-ports");
    fs::create_dir_all(&folder).unwrap();
    loop {
        let port = fastrand::u16(PORTS);
        let lock = File::create(folder.join(port.to_string())).unwrap();
        if lock.try_lock().is_ok() && TcpListener::bind(("127.0.0.1", port)).is_ok() {
            TAKEN.lock().push(lock);
            return port;
        }
    }
}

/// The address of a [`free_port`].
#[must_use]
pub fn free_address() -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], free_port()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_port_is_given_twice() {
        let ports: std::collections::BTreeSet<u16> = (0..500).map(|_| free_port()).collect();
        assert_eq!(ports.len(), 500);
    }
}
