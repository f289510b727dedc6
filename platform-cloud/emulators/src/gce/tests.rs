//! Tests of the emulator with plain HTTP, independent of any client library.

use std::collections::BTreeSet;
use std::time::Duration;

use serde_json::{Value, json};

use super::{Gce, GceSettings};
use crate::server::{Api as _, Call, pairs};
use crate::world::Settings;

struct Client {
    gce: Gce,
}

impl Client {
    async fn new(settings: GceSettings) -> Client {
        Client {
            gce: Gce::start(settings).await.unwrap(),
        }
    }

    fn call(&self, method: &str, path: &str, body: Option<Value>) -> (u16, Value) {
        let (path, query) = path.split_once('?').unwrap_or((path, ""));
        let call = Call {
            method: method.parse().unwrap(),
            path: format!("/compute/v1/projects/drover-emulated/{path}"),
            query: pairs(query),
            headers: http::HeaderMap::new(),
            body: body.map(|body| body.to_string()).unwrap_or_default().into(),
        };
        let world = self.gce.api();
        let operation = world.name(&call).0;
        let answer = world.handle(&operation, &call);
        (answer.status, serde_json::from_slice(&answer.body).unwrap())
    }

    fn insert(&self, name: &str, request_id: &str) -> (u16, Value) {
        let path = format!("zones/europe-west3-a/instances?requestId={request_id}");
        self.call("POST", &path, Some(body(name)))
    }

    fn operation(&self, operation: &Value) -> Value {
        let name = operation["name"].as_str().unwrap();
        let path = format!("zones/europe-west3-a/operations/{name}/wait");
        self.call("POST", &path, None).1
    }
}

fn body(name: &str) -> Value {
    json!({
        "name": name,
        "machineType": "zones/europe-west3-a/machineTypes/e2-small",
        "labels": { "team": "a" },
        "disks": [{ "boot": true, "initializeParams": {
            "sourceImage": "projects/debian-cloud/global/images/family/debian-12",
        } }],
        "networkInterfaces": [{ "network": "global/networks/default" }],
    })
}

#[tokio::test]
async fn the_same_request_id_answers_the_same_operation_and_a_used_name_is_refused() {
    let client = Client::new(GceSettings::default()).await;
    let (_, first) = client.insert("one", "r1");
    let (_, again) = client.insert("one", "r1");
    assert_eq!(first["name"], again["name"]);
    assert_eq!(first["targetId"], again["targetId"]);
    let (status, refused) = client.insert("one", "r2");
    assert_eq!(
        (status, &refused["error"]["errors"][0]["reason"]),
        (409, &json!("alreadyExists"))
    );
    assert_eq!(client.gce.machines().len(), 1);
    assert_eq!(client.gce.ledger()[0].key.as_deref(), Some("r1"));
}

#[tokio::test]
async fn a_request_id_is_forgotten_after_its_window() {
    let client = Client::new(GceSettings {
        request_window: Duration::ZERO,
        ..GceSettings::default()
    })
    .await;
    client.insert("one", "r1");
    assert_eq!(client.insert("one", "r1").0, 409);
}

#[tokio::test]
async fn a_full_zone_is_said_by_the_operation_and_repeated_with_its_request_id() {
    let client = Client::new(GceSettings {
        common: Settings {
            capacity: [("europe-west3-a".to_owned(), 0)].into(),
            ..Settings::default()
        },
        ..GceSettings::default()
    })
    .await;
    let (status, running) = client.insert("one", "r1");
    assert_eq!((status, &running["status"]), (200, &json!("RUNNING")));
    let done = client.operation(&running);
    assert_eq!(
        done["error"]["errors"][0]["code"],
        "ZONE_RESOURCE_POOL_EXHAUSTED"
    );
    let (_, again) = client.insert("one", "r1");
    assert_eq!(
        (&again["name"], &again["status"]),
        (&running["name"], &json!("DONE"))
    );
    assert_eq!(client.gce.ledger(), vec![]);
}

#[tokio::test]
async fn labels_are_set_with_their_fingerprint_only() {
    let client = Client::new(GceSettings::default()).await;
    client.insert("one", "r1");
    let path = "zones/europe-west3-a/instances/one";
    let (_, shown) = client.call("GET", path, None);
    let labels =
        json!({ "labels": { "team": "b" }, "labelFingerprint": shown["labelFingerprint"] });
    let path = format!("{path}/setLabels");
    assert_eq!(client.call("POST", &path, Some(labels.clone())).0, 200);
    assert_eq!(client.call("POST", &path, Some(labels)).0, 412);
    let wrong = json!({ "labels": { "Team": "b" } });
    assert_eq!(client.call("POST", &path, Some(wrong)).0, 400);
}

#[tokio::test]
async fn a_mask_selects_the_fields_of_an_answer_and_must_name_some_that_exist() {
    let client = Client::new(GceSettings::default()).await;
    client.insert("one", "r1");
    let path = "zones/europe-west3-a/instances/one?fields=name,networkInterfaces.networkIP";
    let (_, shown) = client.call("GET", path, None);
    let address = &shown["networkInterfaces"][0]["networkIP"];
    assert!(address.is_string());
    assert_eq!(
        shown,
        json!({ "name": "one", "networkInterfaces": [{ "networkIP": address }] })
    );
    let path = "zones/europe-west3-a/instances?fields=items.name,nextPageToken";
    let (_, page) = client.call("GET", path, None);
    assert_eq!(page, json!({ "items": [{ "name": "one" }] }));
    let path = "zones/europe-west3-a/instances?fields=items.nam";
    let (status, refused) = client.call("GET", path, None);
    assert_eq!(
        (status, &refused["error"]["message"]),
        (400, &json!("Invalid field selection nam"))
    );
}

#[tokio::test]
async fn pages_hold_every_machine_once_though_some_go_meanwhile() {
    let client = Client::new(GceSettings::default()).await;
    client.gce.add_foreign(60);
    let mut seen = BTreeSet::new();
    let mut token = String::new();
    loop {
        let path = format!("aggregated/instances?maxResults=7&pageToken={token}");
        let (_, page) = client.call("GET", &path, None);
        for scope in page["items"].as_object().unwrap().values() {
            for instance in scope["instances"].as_array().into_iter().flatten() {
                let id = instance["id"].as_str().unwrap().to_owned();
                client.gce.terminate_behind(&id);
                assert!(seen.insert(id));
            }
        }
        match page["nextPageToken"].as_str() {
            Some(next) => token = next.to_owned(),
            None => break,
        }
    }
    assert_eq!(seen.len(), 60);
}

#[tokio::test(start_paused = true)]
async fn states_follow_the_clock() {
    let second = Duration::from_secs(1);
    let client = Client::new(GceSettings {
        common: Settings {
            pending_delay: 10 * second,
            stopping_delay: 10 * second,
            ..Settings::default()
        },
        ..GceSettings::default()
    })
    .await;
    client.insert("one", "r1");
    let gce = &client.gce;
    let state = || gce.machines().first().map(|machine| machine.state.clone());
    let id = gce.machines()[0].id.clone();
    assert_eq!(state().as_deref(), Some("PROVISIONING"));
    tokio::time::advance(6 * second).await;
    assert_eq!(state().as_deref(), Some("STAGING"));
    tokio::time::advance(6 * second).await;
    assert_eq!(state().as_deref(), Some("RUNNING"));
    assert!(gce.stop_by_hand(&id));
    assert_eq!(state().as_deref(), Some("STOPPING"));
    tokio::time::advance(11 * second).await;
    assert_eq!(state().as_deref(), Some("TERMINATED"));
    assert!(gce.terminate_behind(&id));
    assert_eq!(state().as_deref(), Some("STOPPING"));
    tokio::time::advance(11 * second).await;
    assert_eq!(state(), None);
    assert!(gce.ledger()[0].gone);
}
