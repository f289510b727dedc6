//! The users of an etcd, over its HTTP gateway: the backend has no need of these calls.

use std::{
    io::{Read, Write},
    net::TcpStream,
};

use drover_testing::etcd::Etcd;

/// Of all users, at first.
pub(crate) const PASSWORD: &str = "correct horse battery";
/// `drover/`, and what comes after all keys that begin so, in base64.
const KEYS: (&str, &str) = ("ZHJvdmVyLw==", "ZHJvdmVyMA==");

/// Makes `root`, who may all; `drover`, who may read and write `drover/`; `other`, who may nothing; and `shown`, who has no
/// password.
pub(crate) fn make(etcd: &Etcd) {
    let post = |path: &str, body: String| drop(post(etcd, path, &body, ""));
    for name in ["root", "drover", "other"] {
        post(
            "/v3/auth/user/add",
            format!(r#"{{"name": "{name}", "password": "{PASSWORD}"}}"#),
        );
        post("/v3/auth/role/add", format!(r#"{{"name": "{name}"}}"#));
        post(
            "/v3/auth/user/grant",
            format!(r#"{{"user": "{name}", "role": "{name}"}}"#),
        );
    }
    let shown = r#"{"name": "shown", "options": {"no_password": true}}"#;
    post("/v3/auth/user/add", shown.to_owned());
    let (from, to) = KEYS;
    let all = format!(r#"{{"permType": "READWRITE", "key": "{from}", "range_end": "{to}"}}"#);
    let grant = format!(r#"{{"name": "drover", "perm": {all}}}"#);
    post("/v3/auth/role/grant", grant);
}

/// Has it ask who calls from now on, or no more.
pub(crate) fn ask(etcd: &Etcd, whether: bool) {
    if whether {
        post(etcd, "/v3/auth/enable", "{}", "");
    } else {
        post(etcd, "/v3/auth/disable", "{}", &root(etcd));
    }
}

/// Changes the password of `drover`, which ends whatever that user has logged in for.
pub(crate) fn change_password(etcd: &Etcd, password: &str) {
    let body = format!(r#"{{"name": "drover", "password": "{password}"}}"#);
    post(etcd, "/v3/auth/user/changepw", &body, &root(etcd));
}

/// How often somebody has logged in since it was started.
pub(crate) fn logins(etcd: &Etcd) -> u32 {
    let name = "grpc_server_handled_total{grpc_code=\"OK\",grpc_method=\"Authenticate\"";
    let metrics = call(etcd, "GET /metrics", "", "");
    let mut lines = metrics.lines().filter(|line| line.starts_with(name));
    let line = lines.next().expect("etcd counts calls");
    let (_, count) = line.rsplit_once(' ').unwrap();
    count.parse().unwrap()
}

fn root(etcd: &Etcd) -> String {
    let body = format!(r#"{{"name": "root", "password": "{PASSWORD}"}}"#);
    let answer = post(etcd, "/v3/auth/authenticate", &body, "");
    let (_, token) = answer.split_once(r#""token":""#).expect("it logs in");
    token.split_once('"').unwrap().0.to_owned()
}

fn post(etcd: &Etcd, path: &str, body: &str, token: &str) -> String {
    call(etcd, &format!("POST {path}"), body, token)
}

fn call(etcd: &Etcd, what: &str, body: &str, token: &str) -> String {
    let address = etcd.endpoints()[0].replace("http://", "");
    let mut stream = TcpStream::connect(&address).unwrap();
    let length = body.len();
    let shown = if token.is_empty() {
        String::new()
    } else {
        format!("Authorization: {token}\r\n")
    };
    write!(
        stream,
        "{what} HTTP/1.0\r\nHost: {address}\r\n{shown}Content-Length: {length}\r\n\r\n{body}"
    )
    .unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    assert!(answer.contains(" 200 OK"), "{what}: {answer}");
    answer
}
