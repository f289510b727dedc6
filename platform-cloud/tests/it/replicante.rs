//! The Replicante Platform API of the real server on loopback, called as its clients do: with literal documents over
//! HTTP.

mod behaviour;
mod client;
mod documents;
mod faults;
use crate::local_support;
mod processes;
