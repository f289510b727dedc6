use bytes::BytesMut;
use drover_resources_kubernetes::client::protobuf::{is_protobuf, status as status_of};
use tokio_util::codec::Decoder as _;

use super::*;
use crate::{client::Meta as _, pod::Pod};

const MOST: usize = 1024;

fn put(into: &mut Vec<u8>, field: u8, bytes: &[u8]) {
    into.extend([field << 3 | 2, u8::try_from(bytes.len()).unwrap()]);
    into.extend_from_slice(bytes);
}

fn wrapped(object: &[u8]) -> Bytes {
    let mut bytes = b"k8s\0".to_vec();
    put(&mut bytes, 1, b"\x0a\x02v1\x12\x03Pod");
    put(&mut bytes, 2, object);
    bytes.into()
}

fn pod(name: &str) -> Vec<u8> {
    let (mut meta, mut pod) = (Vec::new(), Vec::new());
    put(&mut meta, 1, name.as_bytes());
    put(&mut meta, 11, b"\x0a\x01k\x12\x01v");
    // A field that is not decoded.
    put(&mut meta, 15, b"x");
    put(&mut pod, 1, &meta);
    pod
}

#[test]
fn objects_are_read_with_what_is_unknown_left_out() {
    let body = wrapped(&pod("db-1"));
    assert!(is_protobuf(&body));
    let read: Pod = object::<<Pod as Readable>::Wire>(body.clone())
        .unwrap()
        .into();
    assert_eq!(read.metadata.name(), "db-1");
    assert_eq!(read.metadata.labels()["k"], "v");
    let read: Object = object::<Partial>(body).unwrap().into();
    assert_eq!(read.metadata.name(), "db-1");
    assert!(!is_protobuf(b"{\"kind\":\"Pod\"}"));
}

#[test]
fn a_list_has_its_items_its_version_and_where_it_goes_on() {
    let mut pods = Vec::new();
    put(&mut pods, 1, b"\x12\x017\x1a\x04more");
    put(&mut pods, 2, &pod("db-1"));
    put(&mut pods, 2, &pod("db-2"));
    let list = list::<Object>(wrapped(&pods)).unwrap();
    let names: Vec<_> = list.iter().map(|item| item.metadata.name()).collect();
    assert_eq!(names, ["db-1", "db-2"]);
    assert_eq!(list.metadata.resource_version.as_deref(), Some("7"));
    assert_eq!(list.metadata.continue_.as_deref(), Some("more"));
}

#[test]
fn frames_come_whole_however_they_were_cut() {
    let sent: Vec<u8> = [b"\0\0\0\x03one".as_slice(), b"\0\0\0\0", b"\0\0\0\x05three"].concat();
    for cut in 0..=sent.len() {
        let (mut buffer, mut got) = (BytesMut::new(), Vec::new());
        let mut codec = framing(MOST);
        for part in [&sent[..cut], &sent[cut..]] {
            buffer.extend_from_slice(part);
            while let Some(whole) = codec.decode(&mut buffer).unwrap() {
                got.push(whole);
            }
        }
        assert_eq!(got, ["one", "", "three"], "cut at {cut}");
        assert!(buffer.is_empty());
    }
    let mut buffer = BytesMut::from(b"\0\0\x04\x01".as_slice());
    assert!(framing(MOST).decode(&mut buffer).is_err());
}

#[test]
fn an_error_says_what_the_api_server_said() {
    let mut status = Vec::new();
    put(&mut status, 3, b"too old");
    put(&mut status, 4, b"Expired");
    put(&mut status, 5, b"\x0a\x04db-1\x1a\x04pods\x28\x05");
    // Field `code`: 410.
    status.extend([6 << 3, 0x9a, 0x03]);
    let status = status_of(wrapped(&status));
    assert_eq!((status.code, &*status.reason), (410, "Expired"));
    assert_eq!(status.message, "too old");
    let details = status.details.unwrap();
    assert_eq!((&*details.name, details.retry_after_seconds), ("db-1", 5));
}

#[test]
fn bytes_that_are_no_objects_are_errors() {
    let seed = fastrand::u64(..);
    println!("seed {seed}");
    let mut random = fastrand::Rng::with_seed(seed);
    let body = wrapped(&pod("db-1"));
    for _ in 0..10_000 {
        let mut body = body.to_vec();
        for _ in 0..random.usize(1..4) {
            let at = random.usize(..body.len());
            body[at] = random.u8(..);
        }
        body.truncate(random.usize(..=body.len()));
        let body = Bytes::from(body);
        // Any result is fine, as long as nothing panics.
        let _ = object::<<Pod as Readable>::Wire>(body.clone()).map(Pod::from);
        let _ = list::<Object>(body.clone());
        let _ = event::<Pod>(body);
    }
    assert!(object::<Partial>(body.slice(..body.len() - 1)).is_err());
}
