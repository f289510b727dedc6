//! What the built-in templates render, judged by the programs that read it.

use std::{
    fs,
    path::Path,
    process::{Command, Output},
};

use drover_platform::addons::Owner;
use drover_proto::{
    common::v1::{Address as NodeAddress, AddressType},
    platform::v1::{
        AddonSpec, AddonTarget, BmcAccess, JumpHost, LoadBalancer, NodeRole, OidcProvider,
        PortMapping, PortRef, port_ref::Port,
    },
};
use serde_json::Value;
use tempfile::TempDir;

use super::*;

fn target(name: &str, address: &str) -> AddonTarget {
    AddonTarget {
        node_id: format!("{name}-x7k2p"),
        name: name.to_owned(),
        group: "workers/hot".to_owned(),
        addresses: vec![NodeAddress {
            r#type: AddressType::InternalIp.into(),
            value: address.to_owned(),
            interface: String::new(),
        }],
        ..AddonTarget::default()
    }
}

fn mapping(target: Port, count: u32) -> PortMapping {
    PortMapping {
        target: Some(PortRef { port: Some(target) }),
        count,
        ..PortMapping::default()
    }
}

/// The objects of an addon, by kind and end of the name.
fn rendered(kind: Spec, targets: Vec<AddonTarget>, controllers: ControllerFiles) -> Vec<Object> {
    documents(kind, targets, controllers, b"salt").unwrap()
}

fn documents(
    kind: Spec,
    targets: Vec<AddonTarget>,
    controllers: ControllerFiles,
    salt: &[u8],
) -> Result<Vec<Object>> {
    let owner = Owner {
        cluster_id: "blue".to_owned(),
        owner: "00000000-0000-4000-8000-000000000001".to_owned(),
    };
    let wanted = AddonWanted {
        spec: AddonSpec {
            name: "one".to_owned(),
            kind: Some(kind),
            ..AddonSpec::default()
        },
        targets,
        ..AddonWanted::default()
    };
    let beside = Beside {
        namespace: "addons",
        address: Address::Cluster,
        node_ports: [30_000, 32_767],
        bmc: controllers,
        proxies: "https_proxy=http://proxy.example\n",
        salt,
        certificate: None,
    };
    let prepared = prepare(&owner, &wanted, &beside)?;
    let catalogue = Catalogue::embedded(catalogue::CATALOGUE).unwrap();
    let selected = catalogue.select_addon(&prepared.template).unwrap();
    objects::documents(&selected.render(&prepared.scope).unwrap(), "addons")
}

fn text(objects: &[Object], kind: &str, end: &str, pointer: &str) -> String {
    let named = |it: &&Object| it.kind == kind && it.name.ends_with(end);
    let object = objects.iter().find(named).unwrap();
    let body = Value::Object(object.body.clone());
    body.pointer(pointer).unwrap().as_str().unwrap().to_owned()
}

fn written(folder: &TempDir, name: &str, content: &str) -> std::path::PathBuf {
    let path = folder.path().join(name);
    fs::write(&path, content).unwrap();
    path
}

fn run(command: &mut Command) -> Output {
    let program = command.get_program().to_owned();
    let output = command.output();
    output.unwrap_or_else(|error| panic!("{}: {error}; tests/install", program.display()))
}

fn haproxy(config: &Path) -> String {
    let output = run(Command::new("/usr/sbin/haproxy")
        .arg("-c")
        .arg("-f")
        .arg(config));
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{said}");
    said
}

#[test]
fn haproxy_takes_what_a_load_balancer_is_told() {
    let mut targets = vec![
        target("w-0", "192.0.2.10"),
        target("w-1", "2001:db8::1"),
        target("w-2", "host.example"),
        target("w-3", "192.0.2.13"),
        target("w-4", "nobody.invalid"),
    ];
    for target in &mut targets[..3] {
        target
            .endpoints
            .insert("web".to_owned(), "192.0.2.10:8080".to_owned());
    }
    targets[2].role = NodeRole::Standby.into();
    let ports = vec![
        mapping(Port::Number(80), 2),
        mapping(Port::Name("web".to_owned()), 0),
    ];
    let objects = rendered(
        Spec::LoadBalancer(LoadBalancer { ports }),
        targets,
        ControllerFiles::default(),
    );
    let config = text(&objects, "ConfigMap", "", "/data/live");
    let servers: Vec<&str> = config
        .lines()
        .filter(|it| it.starts_with("  server "))
        .collect();
    assert_eq!(
        servers,
        [
            "  server w-0-x7k2p 192.0.2.10:80",
            "  server w-1-x7k2p [2001:db8::1]:80",
            "  server w-3-x7k2p 192.0.2.13:80",
            "  server w-4-x7k2p nobody.invalid:80 resolvers pod",
            "  server w-0-x7k2p 192.0.2.10:81",
            "  server w-1-x7k2p [2001:db8::1]:81",
            "  server w-3-x7k2p 192.0.2.13:81",
            "  server w-4-x7k2p nobody.invalid:81 resolvers pod",
            "  server w-0-x7k2p 192.0.2.10:8080",
            "  server w-1-x7k2p 192.0.2.10:8080",
        ]
    );
    let folder = tempfile::tempdir().unwrap();
    haproxy(&written(&folder, "haproxy.cfg", &config));

    let twins = ["east", "west"].map(|platform| AddonTarget {
        platform: platform.to_owned(),
        ..target("w-0", "192.0.2.10")
    });
    let both = rendered(
        Spec::LoadBalancer(LoadBalancer {
            ports: vec![mapping(Port::Number(80), 1)],
        }),
        twins.into(),
        ControllerFiles::default(),
    );
    let config = text(&both, "ConfigMap", "", "/data/live");
    assert!(
        !config.contains("resolvers"),
        "nothing has a name: {config}"
    );
    for name in ["east-w-0-x7k2p", "west-w-0-x7k2p"] {
        let server = format!("  server {name} 192.0.2.10:80");
        assert!(config.contains(&server), "{config}");
    }
    haproxy(&written(&folder, "twins.cfg", &config));

    let none = rendered(
        Spec::LoadBalancer(LoadBalancer {
            ports: vec![mapping(Port::Number(80), 1)],
        }),
        Vec::new(),
        ControllerFiles::default(),
    );
    let config = text(&none, "ConfigMap", "", "/data/live");
    haproxy(&written(&folder, "none.cfg", &config));
}

#[test]
fn ssh_and_sshd_take_what_a_jump_host_has() {
    let jump = JumpHost {
        bmc: Some(BmcAccess { proxy: true }),
        ..JumpHost::default()
    };
    let mut controllers = ControllerFiles::default();
    controllers
        .files
        .insert("w-0.url".to_owned(), "aHR0cHM=".to_owned());
    let targets = vec![target("w-0", "192.0.2.10"), target("w-1", "2001:db8::1")];
    let objects = rendered(Spec::JumpHost(jump), targets, controllers);
    let folder = tempfile::tempdir().unwrap();
    let config = text(&objects, "ConfigMap", "", "/data/live");
    let config = written(&folder, "config", &config);
    for (name, host) in [("w-0", "192.0.2.10"), ("w-1", "2001:db8::1")] {
        let output = run(Command::new("ssh")
            .arg("-G")
            .arg("-F")
            .arg(&config)
            .arg(name));
        let said = String::from_utf8_lossy(&output.stdout);
        assert!(said.contains(&format!("hostname {host}\n")), "{said}");
        assert!(said.contains("user root\n"), "{said}");
    }

    let key = text(&objects, "Secret", "-host-key", "/data/ssh_host_key");
    let key = base64::Engine::decode(&base64::engine::general_purpose::STANDARD, key).unwrap();
    let key = written(&folder, "key", &String::from_utf8(key).unwrap());
    fs::set_permissions(&key, std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
    let config = text(&objects, "ConfigMap", "-files", "/data/sshd_config");
    let config = config.replace("/drover/host-key/ssh_host_key", key.to_str().unwrap());
    let config = written(&folder, "sshd_config", &config);
    // As the superuser it wants a folder that only its service makes.
    let output = run(Command::new("/usr/sbin/sshd")
        .arg("-t")
        .arg("-f")
        .arg(&config));
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(
        output.status.success() || said.contains("Missing privilege separation"),
        "{said}"
    );
}

#[test]
fn scripts_are_understood_by_a_shell() {
    let jump = rendered(
        Spec::JumpHost(JumpHost::default()),
        Vec::new(),
        ControllerFiles::default(),
    );
    let balancer = rendered(
        Spec::LoadBalancer(LoadBalancer {
            ports: vec![mapping(Port::Number(80), 1)],
        }),
        Vec::new(),
        ControllerFiles::default(),
    );
    let command = "/spec/template/spec/containers/0/command/2";
    for script in [
        text(&jump, "Deployment", "", command),
        text(&balancer, "Deployment", "", command),
        text(&jump, "ConfigMap", "-files", "/data/host"),
    ] {
        let output = run(Command::new("sh").args(["-n", "-c", &script]));
        assert!(
            output.status.success(),
            "{}",
            String::from_utf8_lossy(&output.stderr)
        );
    }
}

fn ports(objects: &[Object]) -> Vec<u64> {
    let service = objects.iter().find(|it| it.kind == "Service").unwrap();
    let ports = service.body["spec"]["ports"].as_array().unwrap();
    ports
        .iter()
        .map(|it| it["port"].as_u64().unwrap())
        .collect()
}

#[test]
fn ports_that_are_asked_for_come_before_those_that_are_chosen() {
    let listening = |listen: u32, target: u32| PortMapping {
        listen: Some(listen),
        ..mapping(Port::Number(target), 1)
    };
    let made = |ports: Vec<PortMapping>| {
        let kind = Spec::LoadBalancer(LoadBalancer { ports });
        documents(kind, Vec::new(), ControllerFiles::default(), b"")
    };
    let first = mapping(Port::Number(30_443), 1);
    let objects = made(vec![first.clone(), first, listening(30_443, 443)]).unwrap();
    assert_eq!(ports(&objects), [10_000, 10_001, 30_443]);
    let error = made(vec![listening(30_443, 1), listening(30_443, 2)]).unwrap_err();
    assert_eq!(
        error.fields()[0].field,
        "spec.load_balancer.ports[1].listen"
    );
}

#[test]
fn members_of_a_jump_host_with_power_control_make_no_new_pod() {
    let made = |hosts: &[&str], salt: &[u8]| {
        let files = hosts
            .iter()
            .map(|host| (format!("{host}.url"), "aHR0cHM=".to_owned()));
        let controllers = ControllerFiles {
            files: files.collect(),
            lacking: Vec::new(),
        };
        let kind = Spec::JumpHost(JumpHost {
            bmc: Some(BmcAccess::default()),
            ..JumpHost::default()
        });
        let objects = documents(kind, Vec::new(), controllers, salt).unwrap();
        let deployment = objects
            .into_iter()
            .find(|it| it.kind == "Deployment")
            .unwrap();
        Value::Object(deployment.body)
    };
    let one = made(&["w-0"], b"salt");
    assert_eq!(one, made(&["w-0", "w-1"], b"salt"));
    assert_ne!(
        one,
        made(&["w-0"], b"other"),
        "nobody guesses secrets from the digest"
    );
    assert_eq!(
        one["spec"]["strategy"]["type"], "Recreate",
        "who may not log in is out"
    );
}

#[test]
fn a_proxy_is_given_with_the_controllers_and_refused_where_there_is_none() {
    let kind = Spec::JumpHost(JumpHost {
        bmc: Some(BmcAccess { proxy: true }),
        ..JumpHost::default()
    });
    let objects = rendered(kind.clone(), Vec::new(), ControllerFiles::default());
    let lines = text(&objects, "Secret", "-bmc", "/data/.proxies");
    let lines = base64::Engine::decode(&base64::engine::general_purpose::STANDARD, lines);
    assert_eq!(lines.unwrap(), b"https_proxy=http://proxy.example\n");

    let wanted = AddonWanted {
        spec: AddonSpec {
            name: "one".to_owned(),
            kind: Some(kind),
            ..AddonSpec::default()
        },
        ..AddonWanted::default()
    };
    let beside = Beside {
        namespace: "addons",
        address: Address::Cluster,
        node_ports: [30_000, 32_767],
        bmc: ControllerFiles::default(),
        proxies: "",
        salt: b"",
        certificate: None,
    };
    let owner = Owner {
        cluster_id: "blue".to_owned(),
        owner: String::new(),
    };
    let error = prepare(&owner, &wanted, &beside).err().unwrap();
    assert_eq!(error.fields()[0].field, "spec.jump_host.bmc.proxy");
}

#[test]
fn dex_takes_secrets_as_they_are() {
    let provider = Spec::OidcProvider(OidcProvider::default());
    let objects = rendered(provider, Vec::new(), ControllerFiles::default());
    let deployment = objects.iter().find(|it| it.kind == "Deployment").unwrap();
    let body = Value::Object(deployment.body.clone());
    let env = body
        .pointer("/spec/template/spec/containers/0/env")
        .unwrap();
    let expand = serde_json::json!({"name": "DEX_EXPAND_ENV", "value": "false"});
    assert!(env.as_array().unwrap().contains(&expand), "{env}");
}

/// Begins the script of a load balancer over a program in place of HAProxy, with this number of looks between two that
/// nothing has given cause for. Returns its output and its folder.
fn balancing(haproxy: &str, looks: &str) -> (std::process::Child, TempDir, String) {
    let ports = vec![mapping(Port::Number(80), 1)];
    let kind = Spec::LoadBalancer(LoadBalancer { ports });
    let objects = rendered(kind, Vec::new(), ControllerFiles::default());
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path().to_str().unwrap();
    let script = text(
        &objects,
        "Deployment",
        "",
        "/spec/template/spec/containers/0/command/2",
    );
    let script = script
        .replace("/run/drover", root)
        .replace("/drover/live", root)
        .replace("-gt 100", "-gt 3")
        .replace("% 50", looks);
    let config = text(&objects, "ConfigMap", "", "/data/live");
    put(folder.path(), "..first", &config);
    std::os::unix::fs::symlink("..data/live", folder.path().join("live")).unwrap();
    let program = written(&folder, "haproxy", &format!("#!/bin/sh\n{haproxy}\n"));
    fs::set_permissions(
        &program,
        std::os::unix::fs::PermissionsExt::from_mode(0o755),
    )
    .unwrap();
    let digest = digest_of(&config);
    // A worker of a former run, of which nothing is left but its socket.
    drop(std::os::unix::net::UnixListener::bind(
        folder.path().join(format!("{digest}.sock")),
    ));
    drop(std::os::unix::net::UnixListener::bind(
        folder.path().join("worker"),
    ));
    let path = std::env::var("PATH").unwrap();
    let child = Command::new("sh")
        .args(["-c", &script])
        .env("PATH", format!("{root}:{path}"))
        .stdout(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    (child, folder, digest)
}

#[test]
fn versions_that_follow_each_other_within_a_second_are_loaded_at_once() {
    // A worker listens at the socket that its configuration names.
    let working = r#"[ "$1" = -c ] && exit 0
begin() { ln -f worker "$(sed -n 's/.*socket \(.*\) mode.*/\1/p' own.cfg)"; }
trap begin USR2
begin
while :; do sleep 0.05; done"#;
    let (mut child, folder, first) = balancing(working, "% 1000000");
    let mut lines = std::io::BufRead::lines(std::io::BufReader::new(child.stdout.take().unwrap()));
    let mut until_loaded = |digest: &str| {
        let loaded = format!("drover: loaded {digest}");
        assert!(lines.any(|line| line.unwrap() == loaded), "{loaded}");
    };
    until_loaded(&first);
    let config = fs::read_to_string(folder.path().join("live")).unwrap();
    for version in 0..5 {
        let config = format!("{config}\n# {version}\n");
        put(folder.path(), &format!("..{version}"), &config);
        until_loaded(&digest_of(&config));
    }
    end(child);
}

fn digest_of(config: &str) -> String {
    drover_platform::identity::hex(&<sha2::Sha256 as sha2::Digest>::digest(config.as_bytes()))
}

/// Puts a version where the kubelet does: into a folder of its own, which a link leads to.
fn put(folder: &Path, version: &str, config: &str) {
    fs::create_dir(folder.join(version)).unwrap();
    fs::write(folder.join(version).join("live"), config).unwrap();
    let (link, data) = (folder.join("..data_tmp"), folder.join("..data"));
    std::os::unix::fs::symlink(version, &link).unwrap();
    fs::rename(link, data).unwrap();
}

/// Ends the script as the kubelet does.
fn end(mut child: std::process::Child) {
    let id = child.id().to_string();
    run(Command::new("kill").args(["-TERM", &id]));
    child.wait().unwrap();
}

#[test]
fn a_worker_that_begins_late_is_loaded_then_and_one_of_a_former_run_never() {
    let slow = "[ \"$1\" = -c ] && exit 0\ntrap : USR2\nwhile :; do sleep 0.05; done";
    let (mut child, folder, digest) = balancing(slow, "% 5");
    let mut lines = std::io::BufRead::lines(std::io::BufReader::new(child.stdout.take().unwrap()));
    let said = lines.next().unwrap().unwrap();
    assert_eq!(
        said,
        format!("drover: refused {digest}: HAProxy did not begin with it")
    );
    let socket = folder.path().join(format!("{digest}.sock"));
    let _worker = std::os::unix::net::UnixListener::bind(socket).unwrap();
    let loaded = format!("drover: loaded {digest}");
    assert!(lines.any(|line| line.unwrap() == loaded));
    end(child);
}

#[test]
fn a_refusal_has_the_words_of_haproxy() {
    let (mut child, _folder, digest) =
        balancing("echo '[ALERT] (7) : out of memory' >&2; exit 1", "% 5");
    let mut lines = std::io::BufRead::lines(std::io::BufReader::new(child.stdout.take().unwrap()));
    let said = lines.next().unwrap().unwrap();
    let words = "[ALERT] (7) : out of memory";
    assert!(
        said.starts_with(&format!("drover: refused {digest}: {words}")),
        "{said}"
    );
    end(child);
}
