//! Nodes that are hosts of metal3, at a real API server with the kind BareMetalHost. Nobody runs metal3 there: the tests
//! write what it would.

mod claims;
mod conformance;
mod crashes;
mod faults;
mod life;
mod place;
mod power;
mod rights;
mod wrong;

use place::{Place, host};
