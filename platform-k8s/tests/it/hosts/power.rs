//! The command `host` of a jump host, with the files that the platform writes for it, against management controllers.

use std::{path::Path, time::Duration};

use base64::{Engine as _, engine::general_purpose::STANDARD as BASE64};
use drover_client::PlatformClient;
use drover_platform_k8s::{PlatformServer, Settings, addons::AddonsSettings};
use drover_proto::platform::v1::{
    AddonSpec, AddonTarget, BmcAccess, EnsureAddonRequest, JumpHost, addon_spec::Kind,
};
use drover_test_emulators::redfish::Controller;
use drover_testing::{
    kubernetes::{Options, Rig},
    wait::PATIENCE,
};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::process::Command;
use uuid::Uuid;

use super::{Place, host, place::settings};

/// Seconds after which the command gives up in these tests, in place of those of the jump host.
const LIMIT: (&str, &str) = ("--max-time 30", "--max-time 3");

/// A host whose management controller is here.
fn controlled(name: &str, address: &str) -> Value {
    let mut host = host(name, &[]);
    host["spec"]["bmc"]["address"] = json!(address);
    host
}

/// What a jump host has in its pod.
struct Jump {
    folder: TempDir,
}

impl Jump {
    /// Makes a jump host for all of these hosts, which become nodes of the same names.
    async fn over(place: &Place, hosts: &[&str]) -> Self {
        let owner = Uuid::new_v4();
        let mut request = place.request(("blue", owner), 0..hosts.len() as u32, &[]);
        for (slot, name) in request.slots.iter_mut().zip(hosts) {
            slot.host_id = Some(format!("{}/{name}", place.namespace.name));
        }
        let nodes = place.provision(&request).await.unwrap();
        let target = |node: &drover_proto::platform::v1::Node| AddonTarget {
            node_id: node.node_id.clone(),
            name: node.host_id.as_deref().unwrap().replace('/', "."),
            addresses: node.addresses.clone(),
            ..AddonTarget::default()
        };
        let jump = JumpHost {
            authorized_keys: vec![crate::addons::KEY.to_owned()],
            bmc: Some(BmcAccess::default()),
            ..JumpHost::default()
        };
        let request = EnsureAddonRequest {
            expected_platform_uid: place.uid.clone(),
            fence: request.fence.clone(),
            cluster_id: "blue".to_owned(),
            owner: owner.to_string(),
            sequence: 2,
            spec: Some(AddonSpec {
                name: "jump".to_owned(),
                kind: Some(Kind::JumpHost(jump)),
                ..AddonSpec::default()
            }),
            targets: nodes.iter().map(target).collect(),
            ..EnsureAddonRequest::default()
        };
        let client = PlatformClient::new(drover_client::in_process(place.server.routes()));
        client.ensure_addon(request, PATIENCE).await.unwrap();
        Self::mounted(place).await
    }

    /// The files of its Secret and its ConfigMap, as a kubelet would mount them.
    async fn mounted(place: &Place) -> Self {
        let ends = |object: &Value, end: &str| {
            let name = object["metadata"]["name"].as_str();
            name.is_some_and(|name| name.ends_with(end))
        };
        let folder = tempfile::tempdir().unwrap();
        let secrets = place.namespace.list("secrets").await;
        let bmc = secrets
            .iter()
            .find(|it| ends(it, "-bmc") && it["metadata"]["labels"]["drover.dev/addon"] == "jump");
        let files = bmc.unwrap()["data"].as_object().cloned();
        for (name, content) in files.unwrap_or_default() {
            let content = BASE64.decode(content.as_str().unwrap()).unwrap();
            std::fs::write(folder.path().join(name), content).unwrap();
        }
        let maps = place.namespace.list("configmaps").await;
        let files = maps.iter().find(|it| ends(it, "-files")).unwrap();
        let script = files["data"]["host"].as_str().unwrap();
        assert!(script.contains("/drover/bmc") && script.contains(LIMIT.0));
        let here = folder.path().to_str().unwrap();
        let script = script
            .replace("/drover/bmc", here)
            .replace(LIMIT.0, LIMIT.1);
        std::fs::write(folder.path().join("host"), script).unwrap();
        Self { folder }
    }

    /// Runs the command. Answers its exit code, and all that it says.
    async fn host(&self, arguments: &[&str]) -> (i32, String) {
        let script: &Path = &self.folder.path().join("host");
        let mut command = Command::new("sh");
        command.arg(script).args(arguments).kill_on_drop(true);
        let output = command.output().await.unwrap();
        let said = [output.stdout, output.stderr].concat();
        let said = String::from_utf8(said).unwrap();
        assert!(!said.contains("hunter2"), "{said}");
        (output.status.code().unwrap(), said)
    }
}

async fn place(hosts: &[Value]) -> Place {
    let place = Place::with(hosts).await;
    let settings = Settings {
        addons: AddonsSettings {
            namespace: Some(place.namespace.name.clone()),
            ..AddonsSettings::default()
        },
        ..settings(Rig::shared(Options::default()), &place.namespace.name)
    };
    let server = PlatformServer::open(settings).await.unwrap();
    place.served_by(server).await
}

#[tokio::test(flavor = "multi_thread")]
async fn hosts_are_powered_by_their_names_and_each_failure_of_a_controller_is_told() {
    let well = Controller::start("admin", "hunter2").await.unwrap();
    let strict = Controller::start("admin", "another password")
        .await
        .unwrap();
    let slow = Controller::start("admin", "hunter2").await.unwrap();
    slow.set_delay(Duration::from_secs(3600));
    let away = Controller::start("admin", "hunter2").await.unwrap();
    let place = place(&[
        controlled("well", &well.address()),
        controlled("strict", &strict.address()),
        controlled("slow", &slow.address()),
        controlled("away", &away.address()),
        controlled("old", "ipmi://192.0.2.1"),
    ])
    .await;
    drop(away);
    let hosts = ["well", "strict", "slow", "away", "old"];
    let jump = Jump::over(&place, &hosts).await;
    let named = |name: &str| format!("{}.{name}", place.namespace.name);

    let (code, listed) = jump.host(&["list"]).await;
    let mut listed: Vec<&str> = listed.lines().collect();
    listed.sort_unstable();
    let with_controllers = ["away", "slow", "strict", "well"].map(named);
    assert_eq!(
        (code, listed),
        (0, with_controllers.iter().map(String::as_str).collect())
    );

    let well_named = named("well");
    let power = async |verb: &str| jump.host(&[verb, &well_named]).await;
    assert_eq!(power("status").await, (0, format!("{well_named}: On\n")));
    assert_eq!(
        power("off").await,
        (0, format!("{well_named}: ForceOff is requested\n"))
    );
    assert!(!well.is_on());
    assert_eq!(power("status").await, (0, format!("{well_named}: Off\n")));
    assert_eq!(power("on").await.0, 0);
    assert!(well.is_on());
    assert_eq!(power("cycle").await.0, 0);
    assert_eq!(well.resets(), ["ForceOff", "On", "ForceRestart"]);

    for (name, words) in [
        ("strict", "401"),
        ("slow", "timed out"),
        ("away", "connect"),
    ] {
        for verb in ["status", "cycle"] {
            let (code, said) = jump.host(&[verb, &named(name)]).await;
            assert_ne!(code, 0, "{verb} {name}: {said}");
            assert!(said.contains(words), "{verb} {name}: {said}");
            assert!(!said.contains("is requested"), "{verb} {name}: {said}");
        }
    }
    assert_eq!(strict.refused(), 2);
    assert!(strict.resets().is_empty() && slow.resets().is_empty());
    let (code, said) = jump.host(&["on", &named("old")]).await;
    assert_eq!(code, 1);
    assert!(
        said.contains("its management controller is not known"),
        "{said}"
    );
    for wrong in [&["on"][..], &["on", "../x"], &["melt", &well_named], &[]] {
        let (code, said) = jump.host(wrong).await;
        assert_eq!(code, 64, "{wrong:?}: {said}");
    }
    assert_eq!(well.resets().len(), 3, "nothing else has reached it");
}
