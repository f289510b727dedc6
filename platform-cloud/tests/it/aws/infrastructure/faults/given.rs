//! A network and an address that were there before: they are used, and given back as they came.

use aws_sdk_ec2::types::DomainType;
use drover_emulators::Fault;
use drover_proto::platform::v1::{EndpointSpec, InfrastructureSpec, NetworkSpec};
use serde_json::json;

use super::{BORROWING, bench, cases, ensure, the_fault_was_met};
use crate::aws::{
    bench::{Bench, names},
    faults::all,
};

/// An address of the account, as id and IP address.
async fn address(bench: &Bench) -> (String, String) {
    let sdk = bench.sdk().await;
    let address = sdk.allocate_address().domain(DomainType::Vpc).send().await;
    let address = address.unwrap();
    let ip = address.public_ip().unwrap().to_owned();
    (address.allocation_id().unwrap().to_owned(), ip)
}

/// The default network of the account, of which these zones are used, and its address.
async fn spec(bench: &Bench, host: &str, zones: &[&str]) -> InfrastructureSpec {
    let vpcs = bench.sdk().await.describe_vpcs().send().await.unwrap();
    let properties = json!({ "zones": zones });
    InfrastructureSpec {
        network: Some(NetworkSpec {
            id: vpcs.vpcs()[0].vpc_id().unwrap().to_owned(),
            ..NetworkSpec::default()
        }),
        endpoint: Some(EndpointSpec {
            host: host.to_owned(),
            ..EndpointSpec::default()
        }),
        properties: properties.as_object().map(drover_convert::value::to_struct),
        ..InfrastructureSpec::default()
    }
}

async fn borrowed((call, what, fault, dies): (&str, String, Fault, bool)) {
    let bench = bench().await;
    let (id, ip) = address(&bench).await;
    let first = spec(&bench, &ip, &["eu-central-1a"]).await;
    let second = spec(&bench, &ip, &["eu-central-1a", "eu-central-1b"]).await;
    let [borrow, extend, give_back] = BORROWING;
    if call != borrow {
        ensure(&bench, &first).await;
    }
    bench.ec2().control().fail_next(call, fault);
    let _ = match call {
        _ if call == borrow => bench.ensure(&first).await.map(drop),
        _ if call == extend => bench.ensure(&second).await.map(drop),
        _ => bench.release().await.map(drop),
    };
    the_fault_was_met(&bench, &what);
    if dies {
        bench.restart().await;
    }
    if call != give_back {
        ensure(&bench, &second).await;
        let state = bench.get().await;
        assert_eq!(
            names(&state.resources),
            ["endpoint/control-plane", "firewall/cluster"],
            "{what}"
        );
        let outputs = state.outputs.unwrap();
        let subnets = &super::super::object(&outputs)["subnets"];
        assert_eq!(subnets.as_object().unwrap().len(), 2, "{what}: {subnets}");
        assert_eq!(outputs.endpoint.unwrap().host, ip, "{what}");
    }
    bench.release_whole().await;
    let left = [("elastic-ip".to_owned(), id)];
    assert_eq!(bench.left(), left, "{what}: theirs is left alone");
    let sdk = bench.sdk().await;
    let there = sdk.describe_addresses().public_ips(&ip).send().await;
    let there = there.unwrap();
    assert!(there.addresses()[0].tags().is_empty(), "{what}: {there:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn whatever_befalls_what_is_borrowed_it_is_used_and_given_back_as_it_came() {
    all(cases(&BORROWING).into_iter().map(borrowed)).await;
}
