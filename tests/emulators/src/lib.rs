//! Emulators of the cloud APIs that the drivers speak to.
