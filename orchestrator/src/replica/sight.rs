//! Whether somebody accepts connections at an address. It needs no credentials, and says nothing of who it is.

use std::{io::ErrorKind, net::SocketAddr, time::Duration};

use drover_client::Target;
use tokio::{
    net::{TcpStream, lookup_host},
    time::timeout,
};

/// Whether a port is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Port {
    Open,
    Refused,
    /// Nothing can be said.
    Silent,
}

/// Where a port of a URL accepts connections. `None` if none does.
pub(super) async fn find(url: &str, within: Duration) -> Option<SocketAddr> {
    let target: Target = url.parse().ok()?;
    let default = if target.is_encrypted() { 443 } else { 80 };
    let port = target.uri().port_u16().unwrap_or(default);
    let host = target.uri().host()?;
    // An address of IPv6 is in brackets.
    let host = host.trim_start_matches('[').trim_end_matches(']');
    for address in timeout(within, lookup_host((host, port)))
        .await
        .ok()?
        .ok()?
    {
        if look(address, within).await == Port::Open {
            return Some(address);
        }
    }
    None
}

pub(super) async fn look(address: SocketAddr, within: Duration) -> Port {
    match timeout(within, TcpStream::connect(address)).await {
        Ok(Ok(_)) => Port::Open,
        Ok(Err(error)) if error.kind() == ErrorKind::ConnectionRefused => Port::Refused,
        Ok(Err(_)) | Err(_) => Port::Silent,
    }
}
