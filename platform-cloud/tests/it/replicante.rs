//! The Replicante Platform API over the real server on loopback, called as its clients call it: with literal documents
//! over HTTP.

mod behaviour;
mod client;
mod documents;
mod faults;
use crate::local_support;
mod processes;
