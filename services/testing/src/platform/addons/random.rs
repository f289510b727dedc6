//! Random requests for addons.

use drover_proto::{
    common::v1::{LabelRequirement, LabelSelector},
    platform::v1::{
        AddonKind, EnsureAddonRequest, OidcConnector, PortMapping, PortRef, addon_spec::Kind,
        port_ref::Port,
    },
};

use super::{
    super::{
        Subject,
        fuzz::{documented, object, random, text},
    },
    any, spec,
    targets::target,
    usable,
};

/// Most rounds, since each may make something.
const ROUNDS: usize = 60;

fn port(random: &mut fastrand::Rng) -> u32 {
    match random.u8(0..4) {
        0 => 0,
        1 => random.u32(..),
        2 => 65_535,
        _ => random.u32(1..65_536),
    }
}

fn mapping(random: &mut fastrand::Rng) -> PortMapping {
    let target = if random.bool() {
        Port::Number(port(random))
    } else {
        Port::Name(text(random))
    };
    PortMapping {
        listen: random.bool().then(|| port(random)),
        target: random.bool().then_some(PortRef { port: Some(target) }),
        count: if random.bool() { 0 } else { port(random) },
    }
}

fn selector(random: &mut fastrand::Rng) -> LabelSelector {
    LabelSelector {
        match_labels: [(text(random), text(random))].into(),
        match_expressions: vec![LabelRequirement {
            key: text(random),
            operator: random.i32(-1..9),
            values: (0..random.u8(0..3)).map(|_| text(random)).collect(),
        }],
    }
}

/// Randomizes some fields of a valid request.
fn spoil(request: &mut EnsureAddonRequest, random: &mut fastrand::Rng) {
    for _ in 0..random.u8(1..4) {
        match random.u8(0..14) {
            0 => spec(request).name = text(random),
            1 => spec(request).image = text(random),
            2 => spec(request).interface = text(random),
            3 => spec(request).cluster_ip = text(random),
            4 => spec(request).node_selector = Some(selector(random)),
            5 => spec(request).properties = Some(object(random, 4)),
            6 => request.owner = text(random),
            7 => request.cluster_id = text(random),
            8 => request.secrets.clear(),
            9 => request.sequence = random.u64(0..2),
            10 | 11 => {
                let mut one = target(random.usize(0..3));
                match random.u8(0..5) {
                    0 => one.name = text(random),
                    1 => one.role = random.i32(-1..4),
                    2 => one.addresses[0].value = text(random),
                    3 => drop(one.endpoints.insert(text(random), text(random))),
                    _ => one.node_id = text(random),
                }
                request.targets.push(one);
            }
            _ => match spec(request).kind.as_mut() {
                Some(Kind::LoadBalancer(it)) => it.ports.push(mapping(random)),
                Some(Kind::JumpHost(it)) => {
                    it.port = Some(port(random));
                    it.authorized_keys.push(text(random));
                }
                Some(Kind::OidcProvider(it)) => {
                    it.issuer = text(random);
                    it.connectors.push(OidcConnector {
                        r#type: text(random),
                        id: text(random),
                        config: Some(object(random, 4)),
                        secret: text(random),
                    });
                }
                Some(Kind::Template(it)) => it.template = text(random),
                None => {}
            },
        }
    }
}

pub(in super::super) async fn random_addons_get_documented_answers(subject: &Subject) {
    let Some((fixture, _)) = any(subject).await else {
        return;
    };
    let kinds: Vec<AddonKind> = usable(&fixture);
    let mut random = random();
    for _ in 0..subject.fuzz_rounds.min(ROUNDS) {
        let kind = kinds[random.usize(..kinds.len())];
        let mut request = fixture.addon(kind, "one");
        request.validate_only = random.bool();
        spoil(&mut request, &mut random);
        // What is made must be of the cluster that is cleaned afterwards.
        let elsewhere =
            request.cluster_id != fixture.cluster || request.owner != fixture.owner.to_string();
        request.validate_only |= elsewhere;
        match fixture.ensure_addon(&request).await {
            Ok(answer) => assert_eq!(answer.state.is_none(), request.validate_only),
            Err(error) => documented(&error, &format!("{request:?}")),
        }
    }
    fixture.clean_addons().await;
}
