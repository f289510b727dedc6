//! Infrastructure and addons: shown, and swept where clusters no longer exist.

pub(crate) mod show;
pub(crate) mod sweep;

pub(crate) use sweep::Leaks;
