//! Probes over the network: gRPC health, HTTP and TCP, in plaintext and over TLS.

use std::{net::SocketAddr, time::Duration};

use drover_core::spec::{Health, Probe};
use drover_proto::agent::v1::{GetInfoRequest, agent_service_client::AgentServiceClient};
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt},
    net::TcpStream,
    time::timeout,
};
use tonic_health::pb::{
    HealthCheckRequest, health_check_response::ServingStatus, health_client::HealthClient,
};

use super::{
    Failed, plain,
    reach::Gate,
    tls::{self, Secure, Spoken},
};

/// Length of an HTTP response up to the end of the status code.
const HTTP_STATUS: usize = 12;
/// The first bytes with which a TLS server responds to a plaintext request.
const TLS_ALERT: &[u8] = &[0x15, 3];

/// Probes a node, over TLS if `secure` is given. The error explains why the node is unhealthy.
pub(super) async fn ask(
    health: &Health,
    address: &str,
    gate: Gate<'_>,
    id: &str,
    secure: Option<&Secure>,
) -> Result<(), Failed> {
    let asked = async {
        match &health.probe {
            Probe::Phase | Probe::Exec { .. } => Ok(()),
            Probe::Tcp { .. } => connected(address, gate)
                .await
                .map(drop)
                .map_err(|failed| failed.of(&format!("tcp {address}"))),
            Probe::Http { path, .. } => {
                let scheme = if secure.is_some() { "https" } else { "http" };
                let answer = http(address, gate, path, secure).await;
                answer.map_err(|failed| failed.of(&format!("{scheme} {address}{path}")))
            }
            Probe::Grpc { service, .. } => grpc(address, gate, service, id, secure)
                .await
                .map_err(|failed| failed.of(&format!("grpc {address}"))),
        }
    };
    timeout(health.timeout, asked).await.unwrap_or_else(|_| {
        let why = format!("{address}: no answer within {:?}", health.timeout);
        Err(Failed::Node(why))
    })
}

/// Connects to one of the addresses that the probe may use.
async fn connected(address: &str, gate: Gate<'_>) -> Result<TcpStream, Failed> {
    let at = gate.pass(address).await?;
    let stream = TcpStream::connect(&at[..]).await;
    stream.map_err(|error| Failed::Node(plain(&error)))
}

/// Chooses among the addresses that the probe may use.
async fn chosen(address: &str, gate: Gate<'_>) -> Result<SocketAddr, Failed> {
    let at = gate.pass(address).await?;
    match at[..] {
        [only] => Ok(only),
        _ => {
            let stream = TcpStream::connect(&at[..]).await;
            let chosen = stream.and_then(|stream| stream.peer_addr());
            chosen.map_err(|error| Failed::Node(plain(&error)))
        }
    }
}

async fn http(
    address: &str,
    gate: Gate<'_>,
    path: &str,
    secure: Option<&Secure>,
) -> Result<(), Failed> {
    let node = |error: &std::io::Error| Failed::Node(plain(error));
    let stream = connected(address, gate).await?;
    let line = match secure {
        None => status_line(stream, address, path)
            .await
            .map_err(|e| node(&e)),
        Some(secure) => {
            let Spoken { stream, words } = tls::speak(stream, address, secure).await?;
            let line = status_line(stream, address, path).await;
            line.map_err(|e| words.of(&e))
        }
    }?;
    judge(&line).map_err(Failed::Node)
}

/// Requests a path and reads the beginning of the response, which is shorter if the connection was closed early.
async fn status_line(
    mut stream: impl AsyncRead + AsyncWrite + Unpin,
    address: &str,
    path: &str,
) -> std::io::Result<Vec<u8>> {
    /// Only the status line is read.
    const STATUS_LINE: usize = 64;
    let request = format!("GET {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n");
    let written = async {
        stream.write_all(request.as_bytes()).await?;
        stream.flush().await
    };
    let written = written.await;
    let mut line = Vec::with_capacity(STATUS_LINE);
    while line.len() < HTTP_STATUS {
        match stream.read_buf(&mut line).await {
            // A server that closes the connection may have sent the reason before.
            Ok(0) => return written.map(|()| line),
            Ok(_) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(line)
}

/// Checks the beginning of an HTTP response.
fn judge(line: &[u8]) -> Result<(), String> {
    if line.starts_with(TLS_ALERT) {
        return Err("it speaks TLS there: set http.tls".to_owned());
    }
    if line.len() < HTTP_STATUS {
        return Err("it closed the connection without an answer".to_owned());
    }
    let text = String::from_utf8_lossy(line);
    let code = text
        .strip_prefix("HTTP/1.")
        .and_then(|rest| rest.get(2..5))
        .and_then(|code| code.parse::<u16>().ok());
    match code {
        Some(200..=399) => Ok(()),
        Some(code) => Err(format!("status {code}")),
        None => Err("it does not speak HTTP".to_owned()),
    }
}

async fn grpc(
    address: &str,
    gate: Gate<'_>,
    service: &str,
    id: &str,
    secure: Option<&Secure>,
) -> Result<(), Failed> {
    let scheme = if secure.is_some() { "https" } else { "http" };
    let target = format!("{scheme}://{address}").parse::<drover_client::Target>();
    let mut target = target.map_err(|e| Failed::Node(e.message().to_owned()))?;
    target.at = Some(chosen(address, gate).await?);
    if let Some(secure) = secure {
        target.tls = secure.settings.clone();
    }
    let channel = drover_client::connect(&target);
    let request = HealthCheckRequest {
        service: service.to_owned(),
    };
    let answer = HealthClient::new(channel.clone())
        .check(request)
        .await
        .map_err(|status| {
            let unreachable = drover_client::is_unreachable(&drover_client::to_error(&status));
            match (unreachable, secure) {
                (true, Some(_)) => tls::judged(status.message().to_owned()),
                (true, None) => Failed::Node("cannot be reached".to_owned()),
                (false, _) => answered(&status),
            }
        })?;
    let status = answer.into_inner().status();
    if status != ServingStatus::Serving {
        return Err(Failed::Node(format!("{status:?}")));
    }
    // Another node may have taken over the address: its health says nothing about this one.
    match AgentServiceClient::new(channel)
        .get_info(GetInfoRequest {})
        .await
    {
        Ok(info) if info.get_ref().node_id == id || info.get_ref().node_id.is_empty() => Ok(()),
        Ok(info) => {
            let why = format!("it is another node ({})", info.get_ref().node_id);
            Err(Failed::Node(why))
        }
        // The node does not run our agent.
        Err(status) if status.code() == tonic::Code::Unimplemented => Ok(()),
        Err(status) => Err(answered(&status)),
    }
}

fn answered(status: &tonic::Status) -> Failed {
    Failed::Node(format!("{:?}: {}", status.code(), status.message()))
}

/// Whether the agent at this address proves that the node with this id is alive.
pub async fn agent_says(address: &str, id: &str, within: Duration, gate: Gate<'_>) -> bool {
    let Some((scheme, address)) = address.split_once("://") else {
        return false;
    };
    if scheme != "grpc" {
        return false;
    }
    // An annotation of a pod may name a path besides.
    let address = address.split(['/', '?', '#']).next().unwrap_or_default();
    let Ok(mut target) = format!("http://{address}").parse::<drover_client::Target>() else {
        return false;
    };
    let asked = async {
        target.at = Some(chosen(address, gate).await.ok()?);
        let mut client = AgentServiceClient::new(drover_client::connect(&target));
        client.get_info(GetInfoRequest {}).await.ok()
    };
    matches!(timeout(within, asked).await, Ok(Some(info)) if info.get_ref().node_id == id)
}

#[cfg(test)]
pub(crate) mod tests;
