//! The command `host` of a jump host, with the files that the platform writes for it, against management controllers.

use std::{path::Path, time::Duration};

use base64::{Engine as _, engine::general_purpose::STANDARD as BASE64};
use drover_client::PlatformClient;
use drover_platform_k8s::{PlatformServer, Settings, addons::AddonsSettings};
use drover_proto::platform::v1::{
    AddonSpec, AddonState, AddonTarget, BmcAccess, EnsureAddonRequest, JumpHost, Node, NodePhase,
    ProvisionRequest, addon_spec::Kind,
};
use drover_test_emulators::redfish::Controller;
use drover_testing::{
    kubernetes::{FaultProxy, Options, Rig, until},
    wait::PATIENCE,
};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::process::Command;
use uuid::Uuid;

use super::{
    Place, host,
    place::{HOSTS, settings},
};

/// Seconds after which the command gives up in these tests, in place of those of the jump host.
const LIMIT: (&str, &str) = ("--max-time 30", "--max-time 3");

/// A host whose management controller is here.
fn controlled(name: &str, address: &str) -> Value {
    let mut host = host(name, &[]);
    host["spec"]["bmc"]["address"] = json!(address);
    host
}

/// A node as jump hosts are told of it.
fn target(node: &Node) -> AddonTarget {
    AddonTarget {
        node_id: node.node_id.clone(),
        name: node.host_id.as_deref().unwrap().replace('/', "."),
        addresses: node.addresses.clone(),
        ..AddonTarget::default()
    }
}

/// Makes a jump host for the cluster of a request, or tells it of these targets.
async fn ensure(
    place: &Place,
    of: &ProvisionRequest,
    sequence: u64,
    targets: impl Iterator<Item = AddonTarget>,
) -> AddonState {
    let jump = JumpHost {
        authorized_keys: vec![crate::addons::KEY.to_owned()],
        bmc: Some(BmcAccess::default()),
        ..JumpHost::default()
    };
    let request = EnsureAddonRequest {
        expected_platform_uid: place.uid.clone(),
        fence: of.fence.clone(),
        cluster_id: "blue".to_owned(),
        owner: of.owner.clone(),
        sequence,
        spec: Some(AddonSpec {
            name: "jump".to_owned(),
            kind: Some(Kind::JumpHost(jump)),
            ..AddonSpec::default()
        }),
        targets: targets.collect(),
        ..EnsureAddonRequest::default()
    };
    let client = PlatformClient::new(drover_client::in_process(place.server.routes()));
    let ensured = client.ensure_addon(request, PATIENCE).await.unwrap();
    ensured.state.unwrap()
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
        ensure(place, &request, 2, nodes.iter().map(target)).await;
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
    with(hosts, Rig::shared(Options::default()).kubeconfig()).await
}

/// A platform that makes jump hosts, with these credentials.
async fn with(hosts: &[Value], kubeconfig: &Path) -> Place {
    let place = Place::with(hosts).await;
    let settings = Settings {
        kubeconfig: Some(kubeconfig.to_path_buf()),
        addons: AddonsSettings {
            namespace: Some(place.namespace.name.clone()),
            ..AddonsSettings::default()
        },
        ..settings(Rig::shared(Options::default()), &place.namespace.name)
    };
    let server = PlatformServer::open(settings).await.unwrap();
    place.served_by(server).await
}

/// The files by which a jump host reaches management controllers.
async fn files(place: &Place) -> Vec<String> {
    let secrets = place.namespace.list("secrets").await;
    let is_bmc = |it: &&Value| {
        let name = it["metadata"]["name"].as_str().unwrap();
        name.ends_with("-bmc") && it["metadata"]["labels"]["drover.dev/addon"] == "jump"
    };
    let bmc = secrets.iter().find(is_bmc).unwrap();
    let files = bmc["data"].as_object();
    files.map_or_else(Vec::new, |files| files.keys().cloned().collect())
}

/// Gives a host to another cluster, as another platform does.
async fn give_away(place: &Place, name: &str) {
    let object = place.object(name).await;
    let identity = object["metadata"]["annotations"]["drover.dev/identity"].as_str();
    let mut identity: Value = serde_json::from_str(identity.unwrap()).unwrap();
    identity["cluster_id"] = json!("red");
    identity["owner"] = json!(Uuid::new_v4());
    let claim = json!({
        "labels": {"drover.dev/cluster": "red", "drover.dev/owner": identity["owner"]},
        "annotations": {"drover.dev/identity": identity.to_string()},
    });
    place.merge(name, json!({"metadata": claim})).await;
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

#[tokio::test(flavor = "multi_thread")]
async fn a_host_that_has_another_cluster_by_now_gives_its_controller_to_no_jump_host_of_the_former()
{
    let proxy = FaultProxy::start(Rig::shared(Options::default())).await;
    let hosts = [host("kept", &[]), host("given", &[])];
    let place = with(&hosts, &proxy.kubeconfig()).await;
    let request = place.request(("blue", Uuid::new_v4()), 0..2, &[]);
    let nodes = place.provision(&request).await.unwrap();
    ensure(&place, &request, 2, nodes.iter().map(target)).await;
    assert_eq!(files(&place).await.len(), 4, "both hosts");

    // Nobody tells the platform.
    proxy.watches().until_running(HOSTS).await;
    proxy.watches().silence(HOSTS);
    give_away(&place, "given").await;
    let state = ensure(&place, &request, 3, nodes.iter().map(target)).await;
    let named = |name: &str| format!("{}.{name}", place.namespace.name);
    let kept = named("kept");
    let only = [format!("{kept}.curl"), format!("{kept}.url")];
    assert_eq!(files(&place).await, only);
    let words = format!("{} has no power control", named("given"));
    assert!(state.message.contains(&words), "{}", state.message);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_host_whose_request_lacks_others_gives_its_controller_to_no_jump_host() {
    let place = place(&[host("first", &[])]).await;
    let request = place.request(("blue", Uuid::new_v4()), 0..1, &[]);
    let nodes = place.provision(&request).await.unwrap();
    let mark = format!("2 {}", jiff::Timestamp::now());
    let open = json!({"annotations": {"drover.dev/unfinished-request": mark}});
    place.merge("first", json!({"metadata": open})).await;
    until("its request is not whole", || async {
        let node = place.nodes().await.remove(0);
        (node.phase() == NodePhase::Pending).then_some(())
    })
    .await;
    let state = ensure(&place, &request, 2, nodes.iter().map(target)).await;
    assert_eq!(files(&place).await, Vec::<String>::new());
    let words = "other hosts of its request are not claimed yet";
    assert!(state.message.contains(words), "{}", state.message);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_of_another_platform_with_the_same_id_is_powered_by_no_host_of_this_one() {
    let place = place(&[host("h1", &[])]).await;
    let request = place.request(("blue", Uuid::new_v4()), 0..1, &[]);
    let nodes = place.provision(&request).await.unwrap();
    let mut other = target(&nodes[0]);
    other.platform = "elsewhere".to_owned();
    other.addresses[0].value = "203.0.113.9".to_owned();
    let state = ensure(&place, &request, 2, std::iter::once(other)).await;
    assert_eq!(files(&place).await, Vec::<String>::new());
    assert!(state.message.contains("addresses"), "{}", state.message);
}
