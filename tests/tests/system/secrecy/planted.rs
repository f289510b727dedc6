//! Secrets for every purpose and for every place that accepts one, and the files that contain them.

use std::{fmt::Write as _, fs, net::SocketAddr, path::Path};

use base64::{Engine, prelude::BASE64_STANDARD};
use drover_testing::needles::Needles;
use serde_json::json;
use sha2::{Digest, Sha256};

/// Characters that are escaped in JSON, YAML, URLs, shells, HTML or base64, and some that are not.
const ALL: &str = "\"\\/+=&%<>'?#:;!*@~^|,()[]}$é€ kMxQ7vTz0Wb3Rj9Yp5";
/// The subset that is valid in a token.
const OF_TOKENS: &str = "\"\\/+=&%<>'?#:;!*@~^|,()[]}$kMxQ7vTz0Wb3Rj9Yp5";
const LENGTH: usize = 48;

/// Secrets that must not leak.
pub(crate) struct Planted {
    /// Used in templates.
    pub(crate) password: String,
    /// The value of `password` after its rotation.
    rotated: String,
    /// User data in a secret.
    init: String,
    /// Binary user data in a secret.
    blob: Vec<u8>,
    /// User data in a manifest.
    inline: String,
    /// User data in a manifest, within a template.
    rendered: String,
    /// Token for calls to a platform.
    pub(crate) door: String,
    /// Token for calls to the orchestrator.
    pub(crate) robot: String,
    /// Encryption key of the store.
    key: Vec<u8>,
}

fn text(random: &mut fastrand::Rng, alphabet: &str) -> String {
    let all: Vec<char> = alphabet.chars().collect();
    let one = |_| all[random.usize(..all.len())];
    let text: String = (0..LENGTH).map(one).collect();
    // Parsers of lines may trim both ends.
    format!("Q{text}9")
}

/// A text as YAML, of which JSON is a subset.
fn quoted(text: &str) -> String {
    json!(text).to_string()
}

fn digest(text: &str) -> String {
    let digest = Sha256::digest(text.as_bytes());
    digest.iter().fold(String::new(), |mut all, byte| {
        write!(all, "{byte:02x}").unwrap();
        all
    })
}

impl Planted {
    pub(crate) fn new(random: &mut fastrand::Rng) -> Self {
        let mut any = || text(random, ALL);
        let (password, rotated, init, inline, rendered) = (any(), any(), any(), any(), any());
        let mut bytes = |count| (0..count).map(|_| random.u8(..)).collect::<Vec<u8>>();
        let (mut blob, key) = (bytes(64), bytes(32));
        blob[0] = 0xff;
        Self {
            password,
            rotated,
            init,
            blob,
            inline,
            rendered,
            door: text(random, OF_TOKENS),
            robot: text(random, OF_TOKENS),
            key,
        }
    }

    /// Everything to search for: these secrets, and the private keys of the certificates.
    pub(crate) fn needles(&self, here: &Path) -> Needles {
        let mut needles = Needles::default();
        for (name, content) in [
            ("password", &self.password),
            ("rotated password", &self.rotated),
            ("user data of a secret", &self.init),
            ("inline user data", &self.inline),
            ("rendered user data", &self.rendered),
            ("token of a platform", &self.door),
            ("token of a caller", &self.robot),
        ] {
            needles.add(name, content.as_bytes());
        }
        needles.add("binary user data", &self.blob);
        needles.add("key of the store", &self.key);
        for entry in fs::read_dir(here.join("certs")).unwrap().flatten() {
            let path = entry.path();
            if path.extension().is_some_and(|it| it == "key") {
                let pem = fs::read_to_string(&path).unwrap();
                let body: String = pem.lines().filter(|line| !line.starts_with("--")).collect();
                // The first bytes identify the kind of key and are the same in all keys.
                let der = BASE64_STANDARD.decode(body).unwrap();
                needles.add(&path.display().to_string(), &der[36..68]);
            }
        }
        needles
    }

    /// Every file with secrets, by name.
    pub(crate) fn files(
        &self,
        here: &Path,
        platforms: [SocketAddr; 2],
    ) -> Vec<(&'static str, String)> {
        let access = |role: &str, name: &str, token: &str| {
            format!(
                "bindings:\n  - {{role: admin, subjects: [\"spiffe://drover/admin/*\"]}}\n\
                 \x20 - {{role: {role}, subjects: [\"token:{name}\"]}}\n\
                 tokens:\n  - {{name: {name}, sha256: \"{}\"}}\n",
                digest(token)
            )
        };
        vec![
            ("keys", format!("{}\n", BASE64_STANDARD.encode(&self.key))),
            ("robot.token", self.robot.clone()),
            (
                "wrong.token",
                self.password.replace(|c: char| !c.is_ascii_graphic(), "_"),
            ),
            ("platform.access", access("platform", "door", &self.door)),
            ("orchestrator.access", access("admin", "robot", &self.robot)),
            ("platforms.yaml", self.platforms(here, platforms)),
            ("secrets.yaml", self.secrets(&self.password)),
            ("rotated.yaml", self.secrets(&self.rotated)),
            ("clusters.yaml", self.clusters()),
        ]
    }

    fn platforms(&self, here: &Path, [local, simulated]: [SocketAddr; 2]) -> String {
        let pem = |name: &str| quoted(&fs::read_to_string(here.join("certs").join(name)).unwrap());
        format!(
            "apiVersion: drover.dev/v1\nkind: Secret\nmetadata: {{name: door}}\npurpose: platform\n\
             stringData: {{token: {token}, tls.crt: {cert}, tls.key: {key}}}\n---\n\
             apiVersion: drover.dev/v1\nkind: Secret\nmetadata: {{name: probe}}\npurpose: probe\n\
             stringData: {{ca.crt: {ca}, tls.crt: {cert}, tls.key: {key}}}\n---\n\
             apiVersion: drover.dev/v1\nkind: Platform\nmetadata: {{name: local}}\nspec: {{endpoint: \"https://{local}\"}}\n---\n\
             apiVersion: drover.dev/v1\nkind: Platform\nmetadata: {{name: far}}\n\
             spec: {{endpoint: \"https://{simulated}\", tokenSecret: door, tls: {{clientCertificateSecret: door}}}}\n",
            token = quoted(&self.door),
            cert = pem("orchestrator.pem"),
            key = pem("orchestrator.key"),
            ca = pem("ca.pem"),
        )
    }

    fn secrets(&self, password: &str) -> String {
        format!(
            "apiVersion: drover.dev/v1\nkind: Secret\nmetadata: {{name: orders}}\n\
             stringData: {{password: {}, init: {}}}\ndata: {{blob: {}}}\n",
            quoted(password),
            quoted(&format!("#!/bin/sh\nexport TOKEN='{}'\n", self.init)),
            BASE64_STANDARD.encode(&self.blob),
        )
    }

    fn clusters(&self) -> String {
        let inline = quoted(&format!("#!/bin/sh\necho {}\n", self.inline));
        let rendered = quoted(&format!(
            "{{{{ node.id }}}} {{{{ secrets.password }}}} {}\n",
            self.rendered
        ));
        [
            cluster(
                "kept",
                "local",
                &format!("bootstrap: {{userData: {inline}}}"),
            ),
            cluster(
                "rendered",
                "local",
                &format!("bootstrap: {{userData: {rendered}, render: true}}"),
            ),
            cluster(
                "binary",
                "far",
                "bootstrap: {secretKeyRef: {name: orders, key: blob}}",
            ),
            cluster(
                "distant",
                "far",
                "bootstrap: {secretKeyRef: {name: orders, key: init}}",
            ),
        ]
        .join("---\n")
    }
}

/// A cluster whose template has access to the password and whose hook prints it, with further settings.
pub(crate) fn cluster(name: &str, platform: &str, more: &str) -> String {
    format!(
        "apiVersion: drover.dev/v1\nkind: Cluster\nmetadata: {{name: {name}}}\nspec:\n  store: {{software: keeper, version: \"1\"}}\n\
         \x20 terminationGracePeriod: 1s\n  platform: {platform}\n  groups:\n    web: {{size: 1}}\n\
         \x20 secrets: [{{name: password, secretKeyRef: {{name: orders, key: password}}}}]\n\
         \x20 lifecycle: {{preStop: {{exec: [sh, -c, \"cat password; cat password >&2; exit 7\"], timeout: 5s}}}}\n\
         \x20 {more}\n"
    )
}

/// Manifests with typical mistakes and a secret in them.
pub(crate) fn slips(secret: &str) -> Vec<(String, String)> {
    let secret = quoted(secret);
    let part: String = secret.chars().skip(1).take(19).collect();
    let base = |kind: &str, rest: &str| {
        format!("apiVersion: drover.dev/v1\nkind: {kind}\nmetadata: {{name: slip}}\n{rest}\n")
    };
    let cluster = |rest: &str| {
        base(
            "Cluster",
            &format!("spec:\n  platform: local\n  groups:\n    web: {{size: 1}}\n{rest}"),
        )
    };
    let platform = |rest: &str| base("Platform", &format!("spec:\n  endpoint: https://x\n{rest}"));
    let all = [
        platform(&format!("  token: {secret}")),
        platform(&format!("  Password: {secret}")),
        platform(&format!("  tls: {{clientKey: {secret}}}")),
        platform(&format!("  tokenSecret: {{token: {secret}}}")),
        base("Secret", &format!("stringdata:\n  password: {secret}")),
        base("Secret", &format!("string_data: {{password: {secret}}}")),
        base("Secret", &format!("stringData:\n  bad key: {secret}")),
        base("Secret", &format!("stringData:\n  password: [{secret}]")),
        base(
            "Secret",
            &format!("stringData:\n  password: {secret}\n  password: {secret}"),
        ),
        base("Secret", &format!("stringData: {secret}")),
        base("Secret", &format!("data:\n  password: {secret}")),
        base("Secret", &format!("purpose: {secret}")),
        base("Secret", &format!("sha256: {{password: {secret}}}")),
        base(
            "Secret",
            &format!("stringData:\n  password: {secret}\n\tx: 1"),
        ),
        base("Secret", &format!("stringData:\n  password: {secret} x")),
        base("Secret", &format!("stringData: {{password: {secret}")),
        base(
            "Secret",
            &format!("stringData:\n  password: |\n   {part}\n x"),
        ),
        base("Secrets", &format!("stringData: {{password: {secret}}}")),
        base("secret", &format!("stringData:\n  password: {secret}")),
        format!("kind: Secret\nstringData: {{password: {secret}}}\n"),
        cluster(&format!("  bootstrap: {{userdata: {secret}}}")),
        cluster(&format!("  bootstrap:\n    user_data: {secret}")),
        cluster(&format!("  bootstrap:\n    userData: [{secret}]")),
        cluster(&format!("  bootstrap: {{userDataBase64: {secret}}}")),
        cluster(&format!(
            "  bootstrap: {{userData: {secret}, userDataBase64: {secret}}}"
        )),
        cluster(&format!("  bootstrap: {secret}")),
        cluster(&format!("  bootstrap: {{userData: {secret}, render: 7}}")),
        cluster(&format!("  bootstrap: {{userDataSha256: {secret}}}")),
    ];
    let named = all.into_iter().enumerate();
    named
        .map(|(at, text)| (format!("given/slip-{at}.yaml"), text))
        .collect()
}
