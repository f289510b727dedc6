//! Emulators of what stands around a platform. They speak the real protocols, keep state, and fail on demand. Those of
//! the clouds are in `platform-cloud/emulators`.

pub mod redfish;
