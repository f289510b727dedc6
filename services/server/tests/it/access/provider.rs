//! Authentication by tokens of an OIDC provider.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};
use drover_core::Reason;
use drover_server::{ServerSettings, listen};
use parking_lot::Mutex;
use ring::{
    rand::SystemRandom,
    rsa::PublicKeyComponents,
    signature::{
        ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, KeyPair, RSA_PKCS1_SHA256, RsaKeyPair,
    },
};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::net::TcpListener;

use drover_testing::certs::replace;

use crate::access::{at, call, common::eventually, with_rules};

/// An OIDC provider.
struct Issuer {
    key: EcdsaKeyPair,
    id: String,
}

fn now() -> u64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap()
        .as_secs()
}

fn part(value: &Value) -> String {
    URL_SAFE_NO_PAD.encode(value.to_string())
}

fn claims() -> Value {
    json!({"iss": "https://id.example.com", "aud": ["drover", "other"], "sub": "alice", "exp": now() + 600,
        "groups": ["sre"]})
}

impl Issuer {
    fn new(id: &str) -> Self {
        let random = SystemRandom::new();
        let algorithm = &ECDSA_P256_SHA256_FIXED_SIGNING;
        let document = EcdsaKeyPair::generate_pkcs8(algorithm, &random).unwrap();
        Self {
            key: EcdsaKeyPair::from_pkcs8(algorithm, document.as_ref(), &random).unwrap(),
            id: id.to_owned(),
        }
    }

    fn jwk(&self) -> Value {
        let point = self.key.public_key().as_ref();
        json!({"kty": "EC", "crv": "P-256", "use": "sig", "kid": self.id,
            "x": URL_SAFE_NO_PAD.encode(&point[1..33]), "y": URL_SAFE_NO_PAD.encode(&point[33..])})
    }

    fn sign_with(&self, header: &Value, claims: &Value) -> String {
        let signed = format!("{}.{}", part(header), part(claims));
        let signature = self
            .key
            .sign(&SystemRandom::new(), signed.as_bytes())
            .unwrap();
        format!("{signed}.{}", URL_SAFE_NO_PAD.encode(signature.as_ref()))
    }

    fn sign(&self, claims: &Value) -> String {
        self.sign_with(
            &json!({"alg": "ES256", "kid": self.id, "typ": "JWT"}),
            claims,
        )
    }
}

fn rules_of(jwks: &str) -> String {
    format!(
        "oidc: {{issuer: 'https://id.example.com', audience: drover, jwks: '{jwks}'}}
bindings:
  - {{role: platform, subjects: ['oidc:alice', 'group:robots']}}
"
    )
}

/// Returns an RSA key as PKCS #1 DER, which `ring` cannot generate.
fn rsa_key() -> Vec<u8> {
    let made = std::process::Command::new("openssl")
        .args(["genpkey", "-quiet", "-algorithm", "RSA", "-outform", "DER"])
        .args(["-pkeyopt", "rsa_keygen_bits:2048"])
        .output()
        .expect("openssl runs");
    assert!(made.status.success(), "{made:?}");
    made.stdout
}

#[tokio::test]
async fn a_providers_token_is_believed_if_all_of_it_holds() {
    let directory = TempDir::new().unwrap();
    let (issuer, stranger) = (Issuer::new("one"), Issuer::new("one"));
    let rsa = RsaKeyPair::from_der(&rsa_key()).unwrap();
    let public: PublicKeyComponents<Vec<u8>> = rsa.public().into();
    let jwks = directory.path().join("jwks.json");
    let rsa_jwk = json!({"kty": "RSA", "kid": "rsa", "alg": "RS256",
        "n": URL_SAFE_NO_PAD.encode(&public.n), "e": URL_SAFE_NO_PAD.encode(&public.e)});
    let unknown = json!({"kty": "OKP", "crv": "Ed25519", "kid": "ed", "x": "AA"});
    replace(
        &jwks,
        &json!({"keys": [issuer.jwk(), rsa_jwk, unknown]}).to_string(),
    );
    let running = with_rules(&directory, &rules_of(jwks.to_str().unwrap())).await;
    let address = running.address();

    call(&at(address, &issuer.sign(&claims()))).await.unwrap();
    let signed = format!(
        "{}.{}",
        part(&json!({"alg": "RS256", "kid": "rsa"})),
        part(&claims())
    );
    let mut signature = vec![0; rsa.public().modulus_len()];
    rsa.sign(
        &RSA_PKCS1_SHA256,
        &SystemRandom::new(),
        signed.as_bytes(),
        &mut signature,
    )
    .unwrap();
    let by_rsa = format!("{signed}.{}", URL_SAFE_NO_PAD.encode(&signature));
    call(&at(address, &by_rsa)).await.unwrap();
    // A member of a group with a binding.
    let mut robot = claims();
    robot["sub"] = json!("r2");
    robot["groups"] = json!(["robots"]);
    call(&at(address, &issuer.sign(&robot))).await.unwrap();
    // Authenticated, but without any role.
    robot["groups"] = json!([]);
    let error = call(&at(address, &issuer.sign(&robot))).await.unwrap_err();
    assert_eq!(error.reason(), Reason::PermissionDenied);
    assert!(error.message().contains("oidc:r2 has no role"), "{error}");

    let changed = |key: &str, value: Value| {
        let mut claims = claims();
        claims[key] = value;
        issuer.sign(&claims)
    };
    let good = issuer.sign(&claims());
    let pieces: Vec<&str> = good.split('.').collect();
    let mut other = claims();
    other["sub"] = json!("admin");
    let wrong = [
        ("issuer", changed("iss", json!("https://evil.example.com"))),
        ("audience", changed("aud", json!("other"))),
        ("audience", changed("aud", Value::Null)),
        ("expired", changed("exp", json!(now() - 60))),
        ("never expires", changed("exp", Value::Null)),
        ("not valid yet", changed("nbf", json!(now() + 600))),
        ("claim \"sub\"", changed("sub", json!(""))),
        ("claim \"sub\"", changed("sub", json!(7))),
        ("signature is wrong", stranger.sign(&claims())),
        (
            "signature is wrong",
            format!("{}.{}.{}", pieces[0], part(&other), pieces[2]),
        ),
        (
            "neither with RS256",
            format!("{}.{}.", part(&json!({"alg": "none"})), part(&claims())),
        ),
        (
            "neither with RS256",
            issuer.sign_with(&json!({"alg": "HS256", "kid": "one"}), &claims()),
        ),
        (
            "none of the provider's",
            issuer.sign_with(&json!({"alg": "RS256", "kid": "one"}), &claims()),
        ),
        (
            "demands",
            issuer.sign_with(
                &json!({"alg": "ES256", "kid": "one", "crit": ["b64"]}),
                &claims(),
            ),
        ),
        ("nor a JWT", "neither-0123456789".to_owned()),
        ("header", "a.b.c".to_owned()),
    ];
    for (words, token) in wrong {
        let error = call(&at(address, &token)).await.unwrap_err();
        assert_eq!(error.reason(), Reason::Unauthenticated, "{words}: {error}");
        assert!(error.message().contains(words), "{words}: {error}");
    }
}

#[tokio::test]
async fn an_email_address_is_a_name_only_if_it_is_verified() {
    let directory = TempDir::new().unwrap();
    let issuer = Issuer::new("one");
    let jwks = directory.path().join("jwks.json");
    replace(&jwks, &json!({"keys": [issuer.jwk()]}).to_string());
    let rules = |more: &str| {
        format!(
            "oidc: {{issuer: 'https://id.example.com', audience: drover, jwks: '{}', username_claim: email{more}}}
bindings:
  - {{role: platform, subjects: ['oidc:alice@example.com']}}
",
            jwks.display()
        )
    };
    let strict = with_rules(&directory, &rules("")).await;
    let other = TempDir::new().unwrap();
    let lenient = with_rules(&other, &rules(", require_email_verified: false")).await;
    for (verified, by_default, if_not_required) in [
        (Some(json!(true)), true, true),
        (None, false, true),
        (Some(json!(false)), false, false),
        (Some(json!("false")), false, false),
        (Some(json!("true")), false, false),
        (Some(json!(1)), false, false),
        (Some(json!([])), false, false),
        (Some(Value::Null), false, false),
    ] {
        let mut claims = claims();
        claims["email"] = json!("alice@example.com");
        if let Some(verified) = &verified {
            claims["email_verified"] = verified.clone();
        }
        let token = issuer.sign(&claims);
        for (running, allowed) in [(&strict, by_default), (&lenient, if_not_required)] {
            match call(&at(running.address(), &token)).await {
                Ok(()) => assert!(allowed, "{verified:?}"),
                Err(error) => {
                    assert!(!allowed, "{verified:?}: {error}");
                    assert_eq!(error.reason(), Reason::Unauthenticated, "{verified:?}");
                    assert!(error.message().contains("email address"), "{error}");
                }
            }
        }
    }
    // If the name is another claim, the address need not be verified.
    let plain = TempDir::new().unwrap();
    let running = with_rules(&plain, &rules_of(jwks.to_str().unwrap())).await;
    let mut claims = claims();
    claims["email_verified"] = json!(false);
    call(&at(running.address(), &issuer.sign(&claims)))
        .await
        .unwrap();
}

#[tokio::test]
async fn who_is_denied_by_a_group_is_so_however_its_token_writes_groups_and_by_none_that_cannot_be_read()
 {
    let directory = TempDir::new().unwrap();
    let issuer = Issuer::new("one");
    let jwks = directory.path().join("jwks.json");
    replace(&jwks, &json!({"keys": [issuer.jwk()]}).to_string());
    let mut rules = rules_of(jwks.to_str().unwrap());
    rules.push_str("deny:\n  - {subjects: ['group:suspended']}\n");
    let running = with_rules(&directory, &rules).await;
    // The denied group is the last one.
    let many = |count: usize| -> Vec<String> {
        let others = (1..count).map(|at| format!("g{at}"));
        others.chain(["suspended".to_owned()]).collect()
    };
    let denied = Some((Reason::PermissionDenied, "is denied by the access rules"));
    let unreadable = Some((
        Reason::Unauthenticated,
        "its groups cannot be read in full: claim \"groups\"",
    ));
    for (groups, outcome) in [
        (json!(["sre"]), None),
        (json!("sre"), None),
        (json!([]), None),
        (json!(""), None),
        (Value::Null, None),
        (json!(["sre", "suspended"]), denied),
        (json!("suspended"), denied),
        (json!(many(256)), denied),
        (json!(many(257)), unreadable),
        (json!(["sre", 7]), unreadable),
        (json!([["suspended"]]), unreadable),
        (json!({"suspended": true}), unreadable),
        (json!(7), unreadable),
        (json!(true), unreadable),
    ] {
        let mut claims = claims();
        claims["groups"] = groups.clone();
        let answer = call(&at(running.address(), &issuer.sign(&claims))).await;
        match outcome {
            None => answer.unwrap_or_else(|error| panic!("{groups}: {error}")),
            Some((reason, words)) => {
                let error = answer.expect_err(words);
                assert_eq!(error.reason(), reason, "{groups}: {error}");
                assert!(error.message().contains(words), "{groups}: {error}");
                assert!(!error.message().contains("suspended"), "{error}");
            }
        }
    }
}

#[tokio::test]
async fn a_token_that_leaves_groups_out_is_refused_where_a_group_is_denied_and_nowhere_else() {
    let directory = TempDir::new().unwrap();
    let issuer = Issuer::new("one");
    let jwks = directory.path().join("jwks.json");
    replace(&jwks, &json!({"keys": [issuer.jwk()]}).to_string());
    let rules = rules_of(jwks.to_str().unwrap());
    let deny = |who: &str| format!("{rules}deny:\n  - {{subjects: ['{who}']}}\n");
    let by_group = with_rules(&directory, &deny("group:suspended")).await;
    let other = TempDir::new().unwrap();
    let by_name = with_rules(&other, &deny("oidc:bob")).await;
    for (said, withheld) in [
        // As emitted by Entra ID for users in too many groups, in both token versions.
        (json!({"_claim_names": {"groups": "src1"}}), true),
        (json!({"hasgroups": true}), true),
        (json!({"_claim_names": "groups"}), true),
        (
            json!({"_claim_names": {"groups": "src1"}, "groups": ["sre"]}),
            true,
        ),
        (json!({"_claim_names": {"address": "src1"}}), false),
        (json!({"hasgroups": false}), false),
        (json!({}), false),
    ] {
        let mut claims = claims();
        claims["groups"] = Value::Null;
        for (name, value) in said.as_object().unwrap() {
            claims[name.as_str()] = value.clone();
        }
        let token = issuer.sign(&claims);
        call(&at(by_name.address(), &token))
            .await
            .unwrap_or_else(|error| panic!("{said}: {error}"));
        match call(&at(by_group.address(), &token)).await {
            Ok(()) => assert!(!withheld, "{said}"),
            Err(error) => {
                assert!(withheld, "{said}: {error}");
                assert_eq!(error.reason(), Reason::Unauthenticated, "{error}");
                let words = "its groups cannot be read in full: the provider has left them out";
                assert!(error.message().contains(words), "{error}");
            }
        }
    }
}

#[tokio::test]
async fn keys_are_fetched_once_and_again_when_they_are_rotated() {
    let (old, new) = (Issuer::new("old"), Issuer::new("new"));
    let served = Arc::new(Mutex::new((json!({"keys": [old.jwk()]}), 0)));
    let answers = served.clone();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let provider = listener.local_addr().unwrap();
    let router = axum::Router::new().route(
        "/keys",
        axum::routing::get(async move || {
            let mut answers = answers.lock();
            answers.1 += 1;
            answers.0.to_string()
        }),
    );
    let task = tokio::spawn(async move { axum::serve(listener, router).await });
    let directory = TempDir::new().unwrap();
    let running = with_rules(&directory, &rules_of(&format!("http://{provider}/keys"))).await;
    let address = running.address();
    for _ in 0..10 {
        call(&at(address, &old.sign(&claims()))).await.unwrap();
    }
    assert_eq!(served.lock().1, 1);

    // Forged keys must not flood the provider.
    for _ in 0..10 {
        assert!(call(&at(address, &new.sign(&claims()))).await.is_err());
    }
    assert_eq!(served.lock().1, 1);
    served.lock().0 = json!({"keys": [new.jwk()]});
    pass(Duration::from_secs(11)).await;
    call(&at(address, &new.sign(&claims()))).await.unwrap();
    assert_eq!(served.lock().1, 2);
    let error = call(&at(address, &old.sign(&claims()))).await.unwrap_err();
    assert_eq!(error.reason(), Reason::Unauthenticated);

    // Without the provider, the last keys remain valid.
    task.abort();
    let _ = task.await;
    pass(Duration::from_secs(11 * 60)).await;
    call(&at(address, &new.sign(&claims()))).await.unwrap();
}

#[tokio::test]
async fn keys_hold_no_longer_than_their_age_while_the_provider_is_away() {
    let issuer = Issuer::new("one");
    let keys = json!({"keys": [issuer.jwk()]}).to_string();
    let serve = async |at: &str| {
        let listener = TcpListener::bind(at).await.unwrap();
        let (provider, keys) = (listener.local_addr().unwrap(), keys.clone());
        let router = axum::Router::new().route("/keys", axum::routing::get(async move || keys));
        let task = tokio::spawn(async move { axum::serve(listener, router).await });
        (provider, task)
    };
    for (age, minutes) in [("", 60), (", keys_max_age: 6h", 360)] {
        let (provider, task) = serve("127.0.0.1:0").await;
        let rules =
            rules_of(&format!("http://{provider}/keys")).replace("'}", &format!("'{age}}}"));
        let directory = TempDir::new().unwrap();
        let running = with_rules(&directory, &rules).await;
        let target = at(running.address(), &issuer.sign(&claims()));
        call(&target).await.unwrap();
        task.abort();
        let _ = task.await;
        pass(Duration::from_secs((minutes - 1) * 60)).await;
        call(&target).await.unwrap();
        pass(Duration::from_secs(2 * 60)).await;
        let error = call(&target).await.unwrap_err();
        assert_eq!(error.reason(), Reason::Unavailable, "{error}");
        let words = "the last ones are too old (keys_max_age)";
        assert!(error.message().contains(words), "{error}");
        let (_, task) = serve(&provider.to_string()).await;
        pass(Duration::from_secs(11)).await;
        call(&target).await.unwrap();
        task.abort();
    }
}

/// Advances the clock.
async fn pass(time: Duration) {
    tokio::time::pause();
    tokio::time::advance(time).await;
    tokio::time::resume();
}

#[tokio::test]
async fn who_has_a_known_key_does_not_wait_for_a_provider_that_does_not_answer() {
    let issuer = Issuer::new("one");
    let keys = json!({"keys": [issuer.jwk()]}).to_string();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let provider = listener.local_addr().unwrap();
    let asked = Arc::new(AtomicUsize::new(0));
    let count = asked.clone();
    let router = axum::Router::new().route(
        "/keys",
        axum::routing::get(async move || {
            if count.fetch_add(1, Ordering::SeqCst) > 0 {
                std::future::pending::<()>().await;
            }
            keys
        }),
    );
    let task = tokio::spawn(async move { axum::serve(listener, router).await });
    let directory = TempDir::new().unwrap();
    let running = with_rules(&directory, &rules_of(&format!("http://{provider}/keys"))).await;
    let target = at(running.address(), &issuer.sign(&claims()));
    call(&target).await.unwrap();
    pass(Duration::from_secs(11 * 60)).await;
    // Well before the fetch times out.
    let answer = async || tokio::time::timeout(Duration::from_secs(2), call(&target)).await;
    answer().await.expect("held up").unwrap();
    eventually("old keys are fetched anew", async || {
        asked.load(Ordering::SeqCst) == 2
    })
    .await;
    answer().await.expect("held up").unwrap();
    assert_eq!(asked.load(Ordering::SeqCst), 2);
    task.abort();
}

#[tokio::test]
async fn a_key_that_the_provider_takes_back_is_forgotten_without_a_call() {
    let (old, new) = (Issuer::new("old"), Issuer::new("new"));
    let directory = TempDir::new().unwrap();
    let jwks = directory.path().join("jwks.json");
    replace(&jwks, &json!({"keys": [old.jwk()]}).to_string());
    let running = with_rules(&directory, &rules_of(jwks.to_str().unwrap())).await;
    let address = running.address();
    call(&at(address, &old.sign(&claims()))).await.unwrap();
    replace(&jwks, &json!({"keys": [new.jwk()]}).to_string());
    call(&at(address, &old.sign(&claims()))).await.unwrap();
    pass(Duration::from_secs(11 * 60)).await;
    eventually("the old key is forgotten", async || {
        call(&at(address, &old.sign(&claims()))).await.is_err()
    })
    .await;
    call(&at(address, &new.sign(&claims()))).await.unwrap();
}

#[tokio::test]
async fn a_provider_that_cannot_be_reached_is_no_reason_to_let_anybody_in() {
    let directory = TempDir::new().unwrap();
    let running = with_rules(&directory, &rules_of("http://127.0.0.1:1/keys")).await;
    let error = call(&at(running.address(), &Issuer::new("a").sign(&claims())))
        .await
        .unwrap_err();
    assert_eq!(error.reason(), Reason::Unavailable);
    for jwks in ["http://id.example.com/keys", "ftp://127.0.0.1/keys"] {
        replace(&directory.path().join("wrong.yaml"), &rules_of(jwks));
        let settings = ServerSettings {
            access: Some(directory.path().join("wrong.yaml")),
            ..ServerSettings::default()
        };
        let error = listen(&settings).await.unwrap_err();
        assert!(
            error.to_string().contains("expected a file or https"),
            "{error}"
        );
    }
}
