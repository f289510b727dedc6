use clap::Parser as _;

use super::*;
use crate::cli::Cli;

#[test]
fn a_url_with_a_password_is_refused_and_not_repeated() {
    for flag in ["--server", "--otlp-endpoint"] {
        let line = ["drover", "status", flag, "http://me:hush@h:1"];
        let mut global = Cli::try_parse_from(line).unwrap().global;
        global.server_is_flag = true;
        let failure = refuse_users(&global).unwrap_err();
        assert_eq!(failure.exit, Exit::Usage);
        let why = format!("error: `{flag}` must not contain a user or a password\n");
        assert!(failure.message.starts_with(&why), "{failure}");
        assert!(!failure.message.contains("hush"), "{failure}");
    }
    for text in ["me@h", "http://a:1,http://me:hush@b:1", "http://me:a,b@h"] {
        assert!(has_user(text), "{text}");
    }
    for text in ["http://a:1", "a:1,b:1", "unix:/run/me@here"] {
        assert!(!has_user(text), "{text}");
    }
}

fn lead(text: &str, secure: &Security) -> Result<String, String> {
    address(text, secure)
        .map(|target| target.to_string())
        .map_err(|failure| failure.message)
}

#[test]
fn an_address_without_a_scheme_is_plaintext_on_this_machine_only() {
    let none = Security::default();
    for (text, url) in [
        ("127.0.0.1:7411", "http://127.0.0.1:7411"),
        (" localhost:1 ", "http://localhost:1"),
        ("localhost", "http://localhost:7400"),
        ("[::1]:7400", "http://[::1]:7400"),
        ("[::1]", "http://[::1]:7400"),
        ("https://example.com:1", "https://example.com:1"),
    ] {
        assert_eq!(lead(text, &none).unwrap(), url, "{text}");
    }
    let why = lead("example.com", &none).unwrap_err();
    assert!(
        why.contains("write https://example.com:7400, or http://example.com:7400 for"),
        "{why}"
    );
    for text in [
        "",
        ":1",
        "localhost:",
        "localhost:99999",
        "a b",
        "x/y",
        "ftp://x",
    ] {
        assert!(lead(text, &none).is_err(), "{text}");
    }
}

#[test]
fn several_addresses_have_commas_between() {
    let secure = Security {
        ca: Some("ca.pem".into()),
        ..Security::default()
    };
    let none = Security::default();
    let lead = |text: &str, secure: &Security| -> Result<String, String> {
        let targets = addresses(text, secure).map_err(|failure| failure.message)?;
        let texts: Vec<String> = targets.iter().map(Target::to_string).collect();
        Ok(texts.join(" "))
    };
    for (text, secure, urls) in [
        ("localhost", &none, "http://localhost:7400"),
        (
            "127.0.0.1:1, [::1]:2,localhost",
            &none,
            "http://127.0.0.1:1 http://[::1]:2 http://localhost:7400",
        ),
        ("a,b:1", &secure, "https://a:7400 https://b:1"),
        ("https://a:1,https://b:1", &none, "https://a:1 https://b:1"),
        (
            "http://a:1,localhost:2",
            &none,
            "http://a:1 http://localhost:2",
        ),
        ("unix:/run/a,b", &none, "unix:/run/a,b"),
    ] {
        assert_eq!(lead(text, secure).unwrap(), urls, "{text}");
    }
    for (text, secure, why) in [
        ("a:1,,c:1", &secure, "address 2 is empty"),
        (",a:1", &secure, "address 1 is empty"),
        ("a:1, ", &secure, "address 2 is empty"),
        ("a:1,b:1,a:1", &secure, "\"a:1\" is there twice"),
        (
            "a:1,https://A:1/",
            &secure,
            "\"https://A:1/\" is there twice",
        ),
        (
            "https://a:1,http://b:1",
            &none,
            "\"http://b:1\" is for plaintext and the first address for TLS",
        ),
        (
            "localhost:1,https://b:1",
            &none,
            "\"https://b:1\" is for TLS and the first address for plaintext",
        ),
        ("localhost:1,unix:/a", &none, "\"unix:/a\" is a socket"),
        ("localhost:1,b:1", &none, "\"b:1\" does not say whether TLS"),
        ("localhost:1,a b", &none, "\"a b\" is not an address"),
    ] {
        let found = lead(text, secure).unwrap_err();
        assert!(found.contains(why), "{text}: {found}");
    }
}

#[test]
fn a_socket_is_a_path() {
    let none = Security::default();
    let here = std::env::current_dir().unwrap();
    for (text, url) in [
        ("unix:/run/drover.sock", "unix:/run/drover.sock".to_owned()),
        (
            "unix:///run/drover.sock",
            "unix:/run/drover.sock".to_owned(),
        ),
        ("unix:api", format!("unix:{}", here.join("api").display())),
    ] {
        assert_eq!(lead(text, &none).unwrap(), url, "{text}");
    }
    for text in ["unix:", "unix://", "unix://run/x"] {
        let why = lead(text, &none).unwrap_err();
        assert!(why.contains("unix:PATH"), "{text}: {why}");
    }
}

#[test]
fn an_address_without_a_scheme_is_tls_where_there_are_certificates() {
    let secure = Security {
        ca: Some("ca.pem".into()),
        ..Security::default()
    };
    assert_eq!(lead("127.0.0.1:1", &secure).unwrap(), "https://127.0.0.1:1");
}
