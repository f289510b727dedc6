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
        AddonSpec, AddonTarget, BmcAccess, JumpHost, LoadBalancer, NodeRole, PortMapping, PortRef,
        port_ref::Port,
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
        certificate: None,
    };
    let prepared = prepare(&owner, &wanted, &beside).unwrap();
    let catalogue = Catalogue::embedded(catalogue::CATALOGUE).unwrap();
    let selected = catalogue.select_addon(&prepared.template).unwrap();
    objects::documents(&selected.render(&prepared.scope).unwrap(), "addons").unwrap()
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
            "  server w-0-x7k2p 192.0.2.10:81",
            "  server w-1-x7k2p [2001:db8::1]:81",
            "  server w-0-x7k2p 192.0.2.10:8080",
            "  server w-1-x7k2p 192.0.2.10:8080",
        ]
    );
    let folder = tempfile::tempdir().unwrap();
    haproxy(&written(&folder, "haproxy.cfg", &config));

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
