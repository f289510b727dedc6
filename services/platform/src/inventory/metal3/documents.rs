//! Hosts as documents describe them, without an API server.

use std::collections::BTreeMap;

use base64::{Engine as _, engine::general_purpose::STANDARD};
use drover_core::sip;
use drover_proto::common::v1::Address;
use serde::Deserialize;
use serde_json::Value;

use super::{CREDENTIALS, NETWORK_DATA, NO_CREDENTIALS, RACK, addresses, domain, labels, topology};

/// A host.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Described {
    /// `NAMESPACE/NAME`.
    pub id: String,
    /// Labels by which it is selected and spread.
    pub labels: BTreeMap<String, String>,
    /// Its rack. Empty if no label says so.
    pub rack: String,
    /// Its addresses, each with the id of its network as interface.
    pub addresses: Vec<Address>,
    /// Cluster that SIP has labelled it for. Empty if it has not.
    pub claimed_by: String,
    /// Why it cannot be claimed, for people. Empty if it can.
    pub unusable: String,
    /// Why its management controller has no user name and password, for people. Empty if it has.
    pub without_credentials: String,
}

/// The part of a Kubernetes object that is read. Values in it are secret.
#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Object {
    kind: String,
    metadata: Metadata,
    spec: Spec,
    data: BTreeMap<String, Value>,
    string_data: BTreeMap<String, Value>,
    items: Vec<Object>,
}

#[derive(Clone, Default, Deserialize)]
#[serde(default)]
struct Metadata {
    name: String,
    namespace: Option<String>,
    labels: BTreeMap<String, String>,
    annotations: BTreeMap<String, String>,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Spec {
    bmc: Bmc,
    network_data: Option<Reference>,
    consumer_ref: Option<Value>,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Bmc {
    credentials_name: String,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Reference {
    name: String,
    namespace: Option<String>,
}

/// Most documents in a text: three for each of 10,000 hosts.
const MAX_DOCUMENTS: usize = 30_000;
/// Most values in a text.
const MAX_VALUES: usize = 5_000_000;

/// Namespace and name.
type Key = (String, String);

/// Reads BareMetalHosts and the Secrets that they name. Other documents are passed over.
///
/// # Errors
/// What is wrong, for people. It repeats nothing of the documents.
pub fn describe(text: &str) -> Result<Vec<Described>, String> {
    let options = serde_saphyr::options! {
        budget: serde_saphyr::budget! {
            max_documents: MAX_DOCUMENTS,
            max_nodes: MAX_VALUES,
            max_events: MAX_VALUES,
        },
    };
    let documents = serde_saphyr::from_multiple_with_options(text, options);
    let documents: Vec<Option<Object>> = documents.map_err(|error| {
        let at = error.location();
        let line = at.map_or_else(String::new, |at| format!(" in line {}", at.line()));
        format!("is not readable as documents of Kubernetes in YAML{line}")
    })?;
    let mut objects = Vec::new();
    for document in documents.into_iter().flatten() {
        unfold(document, &mut objects);
    }
    let secrets: BTreeMap<Key, &Object> = objects
        .iter()
        .filter(|object| object.kind == "Secret")
        .map(|object| (key(&object.metadata), object))
        .collect();
    let mut hosts: Vec<Described> = Vec::new();
    for object in objects.iter().filter(|it| it.kind == "BareMetalHost") {
        let host = host(object, &secrets)?;
        if hosts.iter().any(|other| other.id == host.id) {
            return Err(format!("has two hosts {}", host.id));
        }
        hosts.push(host);
    }
    if hosts.is_empty() {
        return Err("has no BareMetalHost in it".to_owned());
    }
    Ok(hosts)
}

fn unfold(mut object: Object, all: &mut Vec<Object>) {
    for item in std::mem::take(&mut object.items) {
        unfold(item, all);
    }
    all.push(object);
}

fn key(metadata: &Metadata) -> Key {
    let namespace = metadata.namespace.clone();
    let namespace = namespace.unwrap_or_else(|| "default".to_owned());
    (namespace, metadata.name.clone())
}

fn host(object: &Object, secrets: &BTreeMap<Key, &Object>) -> Result<Described, String> {
    let (namespace, name) = key(&object.metadata);
    if name.is_empty() {
        return Err("has a BareMetalHost without metadata.name".to_owned());
    }
    let Metadata {
        labels: own,
        annotations,
        ..
    } = &object.metadata;
    let (addresses, mut unusable) = match network_data(&object.spec, &namespace, secrets) {
        Ok(addresses) => (addresses, String::new()),
        Err(why) => (Vec::new(), why),
    };
    if object.spec.consumer_ref.is_some() {
        "it has a consumerRef".clone_into(&mut unusable);
    }
    let topology = topology();
    let claimed = sip::claimed(own);
    Ok(Described {
        id: format!("{namespace}/{name}"),
        labels: labels(&topology, own, annotations, &addresses),
        rack: domain(&topology, RACK, own).cloned().unwrap_or_default(),
        addresses,
        claimed_by: claimed.map_or_else(String::new, |claimed| claimed.cluster),
        unusable,
        without_credentials: credentials(&object.spec, &namespace, secrets)
            .err()
            .unwrap_or_default(),
    })
}

/// Checks that the management controller of a host has user name and password.
fn credentials(
    spec: &Spec,
    namespace: &str,
    secrets: &BTreeMap<Key, &Object>,
) -> Result<(), String> {
    let name = &spec.bmc.credentials_name;
    if name.is_empty() {
        return Err(NO_CREDENTIALS.to_owned());
    }
    let secret = secrets
        .get(&(namespace.to_owned(), name.clone()))
        .ok_or_else(|| format!("Secret {name} is missing"))?;
    let has = |key: &str| {
        let found = secret.string_data.get(key).or(secret.data.get(key));
        let text = found.and_then(Value::as_str);
        text.is_some_and(|text| !text.is_empty())
    };
    match CREDENTIALS.iter().find(|key| !has(key)) {
        None => Ok(()),
        Some(missing) => Err(format!("Secret {name} has no key {missing}")),
    }
}

/// The addresses in the network data that a host names.
fn network_data(
    spec: &Spec,
    namespace: &str,
    secrets: &BTreeMap<Key, &Object>,
) -> Result<Vec<Address>, String> {
    let Some(named) = spec.network_data.as_ref().filter(|it| !it.name.is_empty()) else {
        return Ok(Vec::new());
    };
    let namespace = named.namespace.as_deref().unwrap_or(namespace);
    let name = &named.name;
    let secret = secrets
        .get(&(namespace.to_owned(), name.clone()))
        .ok_or_else(|| format!("Secret {name} is missing"))?;
    let wrong = |why: &str| format!("key {NETWORK_DATA} of Secret {name} {why}");
    if let Some(Value::String(text)) = secret.string_data.get(NETWORK_DATA) {
        return addresses(text.as_bytes()).map_err(|why| wrong(&why));
    }
    let Some(Value::String(text)) = secret.data.get(NETWORK_DATA) else {
        return Err(format!("Secret {name} has no key {NETWORK_DATA}"));
    };
    let data = STANDARD
        .decode(text.split_whitespace().collect::<String>())
        .map_err(|_| wrong("is not base64"))?;
    addresses(&data).map_err(|why| wrong(&why))
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOST: &str = "apiVersion: metal3.io/v1alpha1\nkind: BareMetalHost\nmetadata:\n  name: h1\n  namespace: hosts\n  labels: {vino.airshipit.org/rack: r1, flavor: big}\nspec:\n  online: true\n  networkData: {name: h1-data}\n";
    const PLAIN: &str = "kind: Secret\nmetadata: {name: h1-data, namespace: hosts}\nstringData:\n  networkData: 'networks: [{id: oam, ip_address: 192.0.2.7}]'\n";

    fn one(documents: &[&str]) -> Described {
        let mut hosts = describe(&documents.join("---\n")).unwrap();
        assert_eq!(hosts.len(), 1);
        hosts.remove(0)
    }

    #[test]
    fn a_host_is_where_its_labels_and_its_network_data_say() {
        let host = one(&[HOST, PLAIN]);
        assert_eq!((host.id.as_str(), host.rack.as_str()), ("hosts/h1", "r1"));
        let address = &host.addresses[0];
        assert_eq!(
            (address.interface.as_str(), address.value.as_str()),
            ("oam", "192.0.2.7")
        );
        for (key, value) in [
            ("rack", "r1"),
            ("flavor", "big"),
            ("network.drover.dev/oam", "true"),
        ] {
            assert_eq!(host.labels[key], value);
        }
        assert_eq!(host.unusable, "");

        let encoded = STANDARD.encode("networks: [{id: oam, ip_address: 192.0.2.7}]");
        let data = format!(
            "kind: Secret\nmetadata: {{name: h1-data, namespace: hosts}}\ndata: {{networkData: {encoded}}}\n"
        );
        assert_eq!(one(&[&data, HOST]), host);
        let listed = format!(
            "kind: List\nitems:\n- {}",
            HOST.trim_end().replace('\n', "\n  ")
        );
        assert_eq!(one(&[PLAIN, &listed]), host);
    }

    #[test]
    fn a_host_whose_network_data_is_missing_is_there_and_cannot_be_claimed() {
        assert_eq!(one(&[HOST]).unusable, "Secret h1-data is missing");
        let other = PLAIN.replace("networkData:", "other:");
        assert_eq!(
            one(&[HOST, &other]).unusable,
            "Secret h1-data has no key networkData"
        );
        let wrong = PLAIN.replace("192.0.2.7", "hunter2");
        let why = one(&[HOST, &wrong]).unusable;
        assert!(
            why.contains("ip_address is not an IP address") && !why.contains("hunter2"),
            "{why}"
        );
    }

    #[test]
    fn a_host_whose_management_controller_has_no_credentials_says_what_is_missing() {
        let host = HOST.replace(
            "networkData:",
            "bmc: {credentialsName: h1-bmc}\n  networkData:",
        );
        let secret = |data: &str| {
            format!(
                "kind: Secret\nmetadata: {{name: h1-bmc, namespace: hosts}}\nstringData: {data}\n"
            )
        };
        let whole = secret("{username: admin, password: hunter2}");
        for (documents, why) in [
            (vec![HOST, PLAIN], "it has no spec.bmc.credentialsName"),
            (vec![&host, PLAIN], "Secret h1-bmc is missing"),
            (
                vec![&host, PLAIN, &secret("{username: admin, password: ''}")],
                "Secret h1-bmc has no key password",
            ),
            (vec![&host, PLAIN, &whole], ""),
        ] {
            assert_eq!(one(&documents).without_credentials, why);
        }
    }

    #[test]
    fn a_host_that_is_taken_says_by_whom() {
        let sip = HOST.replace(
            "flavor: big",
            "sip.airshipit.org/cluster-name: blue, sip.airshipit.org/cluster-namespace: t",
        );
        assert_eq!(one(&[&sip, PLAIN]).claimed_by, "t.blue");
        let used = format!("{HOST}  consumerRef: {{name: x}}\n");
        assert_eq!(one(&[&used, PLAIN]).unusable, "it has a consumerRef");
    }

    #[test]
    fn what_is_wrong_with_documents_is_said_without_repeating_them() {
        let broken = format!("{PLAIN}hunter2: [");
        for (text, part) in [
            (broken.as_str(), "is not readable"),
            ("hunter2", "is not readable"),
            (PLAIN, "has no BareMetalHost"),
            ("", "has no BareMetalHost"),
            ("kind: BareMetalHost\n", "without metadata.name"),
            (&format!("{HOST}---\n{HOST}"), "has two hosts hosts/h1"),
        ] {
            let why = describe(text).unwrap_err();
            assert!(why.contains(part) && !why.contains("hunter2"), "{why}");
        }
    }
}
