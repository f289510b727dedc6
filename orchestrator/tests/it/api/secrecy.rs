//! Secrets in templates are never revealed, however the templates print them.

mod nodes;
mod plans;

use std::{collections::BTreeMap, fmt::Write as _};

use drover_core::{Error, Reason, secrecy::HIDDEN};
use drover_platform_cloud::drivers::simulated::{Fault, Operation};
use drover_proto::orchestrator::v1::{self as pb, bootstrap_source::Source, secret_value::Value};

use crate::api::{
    access::Door,
    support::{Clusters, Log, World, changed, document, refused, until},
};

/// The secret.
const CONTENT: &str = "Tr0ub4dor-Zebra-77-Quux!Vortex_42";
/// Length of the substrings of the secret that must not be revealed.
const PART: usize = 8;

fn base64(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::new();
    for three in bytes.chunks(3) {
        let mut padded = [0; 4];
        padded[1..=three.len()].copy_from_slice(three);
        let bits = u32::from_be_bytes(padded);
        for at in 0..=three.len() {
            text.push(DIGITS[(bits >> (18 - 6 * at)) as usize & 63] as char);
        }
    }
    text
}

fn hexadecimal(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

/// A template that prints the secret through a lookup table, `width` characters at a time.
fn by_table(width: usize, say: impl Fn(&[u8]) -> String) -> String {
    let mut table = String::new();
    for part in CONTENT.as_bytes().chunks(width) {
        let part = std::str::from_utf8(part).unwrap();
        let _ = write!(table, "'{part}': '{}', ", say(part.as_bytes()));
    }
    format!(
        "{{% set t = {{{table}}} %}}{{% set said %}}{{% for i in range(0, {}, {width}) %}}\
         {{{{ t[secrets.p[i:i + {width}]] }}}}{{% endfor %}}{{% endset %}}{{{{ refuse(said) }}}}",
        CONTENT.len()
    )
}

/// Templates that would reveal a secret, and the encodings to look for in addition to its substrings.
fn tellers() -> Vec<(&'static str, String, Vec<String>)> {
    let loud = |text: &str| text.to_owned();
    let separated: String = CONTENT.chars().flat_map(|c| [c, '-']).collect();
    let reversed: String = CONTENT.chars().rev().collect();
    vec![
        ("plain", loud("{{ refuse(secrets.p) }}"), vec![]),
        ("a slice", loud("{{ refuse(secrets.p[3:15]) }}"), vec![]),
        (
            "base64",
            by_table(3, base64),
            vec![base64(CONTENT.as_bytes())[..24].to_owned()],
        ),
        (
            "hexadecimal",
            by_table(1, hexadecimal),
            vec![hexadecimal(CONTENT.as_bytes())[..24].to_owned()],
        ),
        (
            "urlencoded",
            loud("{{ refuse(secrets.p | tojson) }}"),
            vec![],
        ),
        (
            "one character after the other",
            loud(
                "{% for c in secrets.p %}{% if loop.index0 == 0 %}{{ refuse(secrets.p | list | join('')) }}{% endif %}{% endfor %}",
            ),
            vec![],
        ),
        (
            "joined",
            loud("{{ refuse(secrets.p | list | join('-')) }}"),
            vec![separated[..24].to_owned()],
        ),
        (
            "backwards",
            loud("{{ refuse(secrets.p | reverse) }}"),
            vec![reversed[..12].to_owned()],
        ),
        (
            "capitals",
            loud("{{ refuse(secrets.p | upper) }}"),
            vec![CONTENT.to_uppercase()[..12].to_owned()],
        ),
        ("undefined", loud("{{ cluster[secrets.p].b }}"), vec![]),
        (
            "a filter of that name",
            loud("{{ ['a'] | map(secrets.p) | list }}"),
            vec![],
        ),
        (
            "a test of that name",
            loud("{{ ['a'] | select(secrets.p) | list }}"),
            vec![],
        ),
        (
            "a template of that name",
            loud("{% include secrets.p %}"),
            vec![],
        ),
    ]
}

#[track_caller]
fn silent(shown: &str, more: &[String], what: &str) {
    let parts = CONTENT.as_bytes().windows(PART);
    let parts = parts.map(|part| std::str::from_utf8(part).unwrap());
    for hidden in parts.chain(more.iter().map(String::as_str)) {
        let at = shown.find(hidden);
        let from = at.map(|at| at.saturating_sub(200));
        let around = from.map(|from| {
            String::from_utf8_lossy(&shown.as_bytes()[from..][..200.min(shown.len() - from)])
                .into_owned()
        });
        assert_eq!(around, None, "{what}: {hidden}");
    }
}

async fn put(world: &World, name: &str, content: &str) {
    let value = pb::SecretValue {
        value: Some(Value::Text(content.to_owned())),
    };
    let request = pb::ApplySecretRequest {
        name: name.to_owned(),
        data: BTreeMap::from([("k".to_owned(), value)])
            .into_iter()
            .collect(),
        ..Default::default()
    };
    world.secrets().apply_secret(request).await.unwrap();
}

/// A cluster whose user data is rendered from a secret.
fn telling(secret: &str, template: &str) -> pb::Cluster {
    changed(document("orders", &[("web", 1)]), |spec| {
        spec.groups[0].secrets = vec![pb::TemplateSecret {
            name: "p".to_owned(),
            secret_key_ref: Some(pb::SecretKeyRef {
                name: secret.to_owned(),
                key: "k".to_owned(),
            }),
        }];
        spec.groups[0].bootstrap = Some(pb::BootstrapSource {
            source: Some(Source::Text(template.to_owned())),
            render: true,
        });
    })
}

async fn apply(
    of: &mut Clusters,
    cluster: pb::Cluster,
) -> Result<pb::ApplyClusterResponse, tonic::Status> {
    let request = pb::ApplyClusterRequest {
        cluster: Some(cluster),
        ..Default::default()
    };
    of.apply_cluster(request)
        .await
        .map(tonic::Response::into_inner)
}

fn logged() -> (Log, tracing::subscriber::DefaultGuard) {
    let log = Log::default();
    let subscriber = tracing_subscriber::fmt()
        .with_max_level(tracing::Level::TRACE)
        .with_writer(log.clone())
        .finish();
    (log, tracing::subscriber::set_default(subscriber))
}

/// Everything about the cluster that is visible to readers, and the logs.
async fn visible(world: &World, log: &Log) -> String {
    let logged = String::from_utf8_lossy(&log.0.lock()).into_owned();
    format!(
        "{:?} {:?} {:?} {:?} {logged}",
        world.get("orders").await,
        world.nodes("orders").await,
        world.events("orders").await,
        world.orchestrator,
    )
}

#[tokio::test]
async fn what_templates_say_of_secrets_reaches_no_answer_condition_event_or_log() {
    let (log, _logged) = logged();
    let door = Door::new().await;
    put(&door.world, "orders-p", CONTENT).await;
    let mut operator = door.of("operator");
    for (what, template, more) in tellers() {
        let answer = apply(&mut operator, telling("orders-p", &template)).await;
        let shown = format!("{:?}", answer.expect_err(what));
        silent(&shown, &more, what);
    }
    // Templates that are accepted now and fail when a node is created are reported in conditions and events.
    let template = "{% if group.size > 1 %}{{ refuse(secrets.p) }}{% endif %}.";
    apply(&mut operator, telling("orders-p", template))
        .await
        .unwrap();
    door.world.ready("orders").await;
    put(&door.world, "orders-p", &format!("{CONTENT}{CONTENT}")).await;
    let scale = pb::ScaleGroupRequest {
        cluster: "orders".into(),
        group: "web".into(),
        size: Some(2),
        ..Default::default()
    };
    operator.scale_group(scale).await.unwrap();
    until("the failure is told", async || {
        let told = format!("{:?}", door.world.events("orders").await);
        told.contains("template").then_some(())
    })
    .await;
    let shown = visible(&door.world, &log).await;
    assert!(shown.contains("template"), "something was said of it");
    silent(&shown, &[], "afterwards");
    door.stop().await;
}

#[tokio::test]
async fn a_template_says_why_it_refuses_where_that_is_not_of_a_secret() {
    let door = Door::new().await;
    put(&door.world, "orders-p", CONTENT).await;
    let mut operator = door.of("operator");
    let template = "ok\n{{ cluster.nope.more }}";
    let answer = apply(&mut operator, telling("orders-p", template)).await;
    let status = refused(answer, Reason::Invalid);
    assert!(
        status.message().contains("line 2") && status.message().contains("undefined value"),
        "{status:?}"
    );
    door.stop().await;
}

#[tokio::test]
async fn what_a_platform_repeats_is_hidden_whichever_call_it_answers() {
    let (log, _logged) = logged();
    let world = World::new().await;
    put(&world, "orders-p", CONTENT).await;
    let backend = world.site.backend().clone();
    let repeats = || {
        let said = format!(
            "the backend got {CONTENT} and {}",
            base64(CONTENT.as_bytes())
        );
        Fault::Refuse(Error::new(Reason::Precondition, said))
    };
    backend.fail_next(Operation::Create, repeats());
    world
        .apply(telling("orders-p", "{{ secrets.p }}"))
        .await
        .unwrap();
    until("the failure is told", async || {
        let told = format!("{:?}", world.events("orders").await);
        told.contains(HIDDEN).then_some(())
    })
    .await;
    // Permanent failures are not retried until the spec changes.
    world
        .apply(telling("orders-p", "{{ secrets.p }}."))
        .await
        .unwrap();
    world.ready("orders").await;
    // This call does not carry the content, so only the orchestrator knows what to redact.
    backend.fail_next(Operation::Delete, repeats());
    let shown = visible(&world, &Log::default()).await;
    world.delete("orders").await.unwrap();
    world.gone("orders").await;
    let logged = String::from_utf8_lossy(&log.0.lock()).into_owned();
    // The backend's own server was not told what to redact, and logs it as instructed.
    let ours = logged.lines().filter(|line| !line.contains("Deprovision"));
    let ours: Vec<&str> = ours.collect();
    let failed = ours.iter().find(|line| line.contains("removal failed"));
    assert!(
        failed.is_some_and(|line| line.contains(HIDDEN)),
        "{failed:?}"
    );
    let encoded = base64(CONTENT.as_bytes())[..24].to_owned();
    silent(
        &format!("{shown} {}", ours.join("\n")),
        &[encoded],
        "afterwards",
    );
    world.stop().await;
}
