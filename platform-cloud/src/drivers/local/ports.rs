//! Free TCP ports.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::{IpAddr, TcpListener},
    ops::RangeInclusive,
};

use drover_core::{Error, Reason, Result};

/// Port numbers by their names in the template.
pub(super) type PortNumbers = BTreeMap<String, u16>;

/// Chooses a free port for each name: not `taken` by another node, and without a listener at this time. The search
/// starts at a random port, so that two platforms on one machine rarely choose the same one.
///
/// # Errors
/// `NoCapacity` if the range is exhausted.
pub(super) fn choose(
    names: &[String],
    range: RangeInclusive<u16>,
    host: IpAddr,
    taken: &BTreeSet<u16>,
) -> Result<PortNumbers> {
    let mut chosen = PortNumbers::new();
    if names.is_empty() {
        return Ok(chosen);
    }
    let begin = fastrand::u16(range.clone());
    let (first, last) = range.clone().into_inner();
    let mut candidates = (begin..=last)
        .chain(first..begin)
        .filter(|port| !taken.contains(port) && free(host, *port));
    for name in names {
        let port = candidates.next().ok_or_else(|| {
            Error::new(
                Reason::NoCapacity,
                format!("no free port is left between {first} and {last}"),
            )
        })?;
        chosen.insert(name.clone(), port);
    }
    Ok(chosen)
}

/// Whether nothing listens on the port at this time.
pub(super) fn free(host: IpAddr, port: u16) -> bool {
    TcpListener::bind((host, port)).is_ok()
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;

    const HOST: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

    #[test]
    fn ports_of_others_and_listening_ones_are_left_out_and_an_empty_range_is_no_capacity() {
        let listening = TcpListener::bind((HOST, 0)).unwrap();
        let busy = listening.local_addr().unwrap().port();
        let names = ["client".to_owned()];
        let error = choose(&names, busy..=busy, HOST, &BTreeSet::new()).unwrap_err();
        assert_eq!(error.reason(), Reason::NoCapacity);
        drop(listening);
        assert_eq!(
            choose(&names, busy..=busy, HOST, &BTreeSet::new()).unwrap()["client"],
            busy
        );
        let error = choose(&names, busy..=busy, HOST, &BTreeSet::from([busy])).unwrap_err();
        assert_eq!(error.reason(), Reason::NoCapacity);
    }
}
