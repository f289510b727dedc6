//! Observation of the process: panics and memory usage.

use std::{panic, sync::Once};

use parking_lot::Mutex;

static PANICS: Mutex<Vec<String>> = Mutex::new(Vec::new());

/// Records all panics, even if they are caught.
pub(crate) fn panics() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let before = panic::take_hook();
        panic::set_hook(Box::new(move |panic| {
            PANICS.lock().push(panic.to_string());
            before(panic);
        }));
    });
}

/// Takes the first panic since the last call.
pub(crate) fn panicked() -> Option<String> {
    let mut panics = PANICS.lock();
    (!panics.is_empty()).then(|| panics.remove(0))
}

/// Resident memory in bytes.
pub(crate) fn memory() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kib = line.and_then(|line| line.split_whitespace().next()?.parse::<u64>().ok());
    kib.unwrap_or_default() * 1024
}
