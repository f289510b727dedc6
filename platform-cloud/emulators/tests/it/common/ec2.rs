//! Calls to the EC2 emulator.
#![allow(
    dead_code,
    unreachable_pub,
    clippy::expect_used,
    reason = "each test binary uses a part of it"
)]

use std::io;

use drover_emulators::ec2::{Ec2, Ec2Settings};

use super::{Reply, encode, send};

pub const DEBIAN: &str = "ami-0a1b2c3d4e5f60003";
pub const SCOPE: &str = "20260101/eu-central-1/ec2/aws4_request";

pub async fn start(settings: Ec2Settings) -> Ec2 {
    Ec2::start(settings).await.expect("a free port")
}

pub fn authorization(key: &str, scope: &str) -> String {
    format!("AWS4-HMAC-SHA256 Credential={key}/{scope}, SignedHeaders=host, Signature=0")
}

/// Calls an action. Fails if the connection is closed without a response.
pub async fn try_call(ec2: &Ec2, action: &str, parameters: &[(&str, &str)]) -> io::Result<Reply> {
    let authorization = authorization("AKIDEXAMPLE", SCOPE);
    call_as(
        ec2,
        &[("authorization", &authorization)],
        action,
        parameters,
    )
    .await
}

pub async fn call_as(
    ec2: &Ec2,
    headers: &[(&str, &str)],
    action: &str,
    parameters: &[(&str, &str)],
) -> io::Result<Reply> {
    let version = if action == "GetCallerIdentity" {
        "2011-06-15"
    } else {
        "2016-11-15"
    };
    let mut form = format!("Action={action}&Version={version}");
    for (key, value) in parameters {
        form.push_str(&format!("&{}={}", encode(key), encode(value)));
    }
    send(&ec2.url(), "POST", "/", headers, form).await
}

pub async fn call(ec2: &Ec2, action: &str, parameters: &[(&str, &str)]) -> Reply {
    try_call(ec2, action, parameters).await.expect("an answer")
}

/// Calls an action that must succeed.
pub async fn done(ec2: &Ec2, action: &str, parameters: &[(&str, &str)]) -> Reply {
    let reply = call(ec2, action, parameters).await;
    assert_eq!(reply.status, 200, "{action} {parameters:?}: {}", reply.body);
    reply
}

/// Parameters of RunInstances for this number of instances, with additional ones.
pub fn run<'a>(
    least: &'a str,
    most: &'a str,
    more: &[(&'a str, &'a str)],
) -> Vec<(&'a str, &'a str)> {
    let mut all = vec![
        ("ImageId", DEBIAN),
        ("InstanceType", "t3.micro"),
        ("MinCount", least),
        ("MaxCount", most),
    ];
    all.retain(|(key, _)| !more.iter().any(|(other, _)| other == key));
    all.extend_from_slice(more);
    all
}

/// Ids and states of the listed instances.
pub async fn listed(ec2: &Ec2, parameters: &[(&str, &str)]) -> Vec<(String, String)> {
    let reply = done(ec2, "DescribeInstances", parameters).await;
    reply
        .all("instanceId")
        .into_iter()
        .zip(
            reply
                .all("instanceState")
                .iter()
                .map(|state| name_of(state)),
        )
        .collect()
}

pub fn name_of(state: &str) -> String {
    let name = state
        .split("<name>")
        .nth(1)
        .and_then(|rest| rest.split('<').next());
    name.unwrap_or_default().to_owned()
}
