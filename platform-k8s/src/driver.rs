//! The driver: what the modules do, as one.
