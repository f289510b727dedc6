//! All faults, as seen by a client and in the resulting state of the emulator.

use crate::common;

use std::time::Duration;

use common::ec2::{call, done, listed, run, start, try_call};
use common::send;
use drover_emulators::ec2::{Ec2, Ec2Settings};
use drover_emulators::{ANY, Fault, Settings};

/// What the client observes: status and code of the response, or how it failed to arrive.
async fn met(ec2: &Ec2) -> String {
    match try_call(ec2, "RunInstances", &run("1", "1", &[("ClientToken", "t")])).await {
        Ok(reply) => reply.code(),
        Err(_) => "closed".to_owned(),
    }
}

#[tokio::test]
async fn each_fault_is_met_as_it_says_and_leaves_the_state_that_it_says() {
    let table = [
        (
            Fault::refuse(500, "InternalError", "x"),
            "500 InternalError",
            0,
            Some(500),
        ),
        (
            Fault::refuse_after(500, "InternalError", "x"),
            "500 InternalError",
            1,
            Some(500),
        ),
        (
            Fault::Throttle { retry_after: None },
            "503 RequestLimitExceeded",
            0,
            Some(503),
        ),
        (Fault::LoseAnswer, "closed", 1, None),
        (Fault::CutAnswer, "closed", 1, Some(200)),
        (Fault::Refused, "closed", 0, None),
        (Fault::Stall(Duration::from_millis(1)), "200", 1, Some(200)),
        (
            Fault::NoCapacity,
            "500 InsufficientInstanceCapacity",
            0,
            Some(500),
        ),
        (Fault::Quota, "400 VcpuLimitExceeded", 0, Some(400)),
        (
            Fault::later("InternalError", "x"),
            "500 InternalError",
            0,
            Some(500),
        ),
    ];
    for (fault, seen, made, status) in table {
        let ec2 = start(Ec2Settings::default()).await;
        ec2.control().fail_next("RunInstances", fault.clone());
        assert_eq!(met(&ec2).await, seen, "{fault:?}");
        assert_eq!(ec2.machines().len(), made, "{fault:?}");
        assert_eq!(
            ec2.ledger()
                .iter()
                .filter(|made| made.kind == "instance")
                .count(),
            made,
            "{fault:?}"
        );
        let log = ec2.control().requests();
        let [request] = log.as_slice() else {
            panic!("{fault:?}: {log:?}")
        };
        assert_eq!(
            (request.status, request.fault.as_ref()),
            (status, Some(&fault))
        );
        // The fault applies to one request only: the repeated call is executed, or returns the earlier result.
        assert_eq!(met(&ec2).await, "200", "{fault:?}");
        assert_eq!(ec2.machines().len(), 1, "{fault:?}");
        ec2.shutdown().await;
    }
}

#[tokio::test]
async fn a_cut_answer_has_begun() {
    let ec2 = start(Ec2Settings::default()).await;
    ec2.control()
        .fail_next("DescribeInstances", Fault::CutAnswer);
    // Reads the socket directly, to see the part that did arrive.
    let stream = tokio::net::TcpStream::connect(ec2.url().trim_start_matches("http://"))
        .await
        .unwrap();
    let request = format!(
        "POST /?Action=DescribeInstances&Version=2016-11-15 HTTP/1.1\r\nhost: x\r\nauthorization: {}\r\ncontent-length: 0\r\n\r\n",
        common::ec2::authorization("AKIDEXAMPLE", common::ec2::SCOPE)
    );
    let (mut text, mut sent) = (Vec::new(), 0);
    loop {
        stream.writable().await.unwrap();
        match stream.try_write(&request.as_bytes()[sent..]) {
            Ok(n) => sent += n,
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => continue,
            Err(error) => panic!("{error}"),
        }
        if sent == request.len() {
            break;
        }
    }
    loop {
        stream.readable().await.unwrap();
        match stream.try_read_buf(&mut text) {
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => continue,
            Ok(0) | Err(_) => break,
            Ok(_) => {}
        }
    }
    let text = String::from_utf8(text).unwrap();
    assert!(text.starts_with("HTTP/1.1 200 OK"), "{text}");
    assert!(text.contains("<DescribeInstancesResponse"), "{text}");
    assert!(!text.contains("</DescribeInstancesResponse>"), "{text}");
}

#[tokio::test]
async fn a_stalled_request_goes_on_when_its_client_has_gone() {
    let ec2 = start(Ec2Settings::default()).await;
    ec2.control()
        .fail_next("RunInstances", Fault::Stall(Duration::from_millis(200)));
    let wanted = run("1", "1", &[]);
    tokio::select! {
        reply = try_call(&ec2, "RunInstances", &wanted) => panic!("answered: {reply:?}"),
        () = ec2.control().wait_for("RunInstances", 1) => {}
    }
    while ec2.machines().is_empty() {
        tokio::task::yield_now().await;
    }
    assert_eq!(ec2.control().requests()[0].status, None);
}

#[tokio::test]
async fn faults_of_one_operation_come_before_those_of_any_and_before_those_for_good() {
    let ec2 = start(Ec2Settings::default()).await;
    let refuse = |code: &str| Fault::refuse(400, code, "");
    ec2.control()
        .fail_always("DescribeInstances", Some(refuse("Always")));
    ec2.control().fail_next(ANY, refuse("Any"));
    ec2.control()
        .fail_next("DescribeInstances", refuse("First"));
    ec2.control()
        .fail_next("DescribeInstances", refuse("Second"));
    assert_eq!(ec2.control().faults_left(), 3);
    let mut codes = Vec::new();
    for _ in 0..5 {
        codes.push(call(&ec2, "DescribeInstances", &[]).await.text("Code"));
    }
    assert_eq!(codes, ["First", "Second", "Any", "Always", "Always"]);
    done(&ec2, "DescribeVpcs", &[]).await;
    ec2.control().fail_always("DescribeInstances", None);
    done(&ec2, "DescribeInstances", &[]).await;
    ec2.control().fail_next(ANY, refuse("Any"));
    ec2.control().clear_faults();
    done(&ec2, "DescribeInstances", &[]).await;
    assert_eq!(ec2.control().count("DescribeInstances"), 7);
    assert_eq!(ec2.control().count(ANY), 8);
    ec2.control().clear_requests();
    assert_eq!(ec2.control().count(ANY), 0);
    assert!(ec2.control().requests().is_empty());
}

#[tokio::test]
async fn the_log_has_no_user_data() {
    let ec2 = start(Ec2Settings::default()).await;
    done(
        &ec2,
        "RunInstances",
        &run(
            "1",
            "1",
            &[("UserData", "c2VjcmV0"), ("ClientToken", "mine")],
        ),
    )
    .await;
    let log = ec2.control().requests_of("RunInstances");
    assert_eq!(log[0].parameter("ClientToken"), Some("mine"));
    assert!(!format!("{log:?}").contains("c2VjcmV0"));
    assert!(!format!("{ec2:?}").contains("c2VjcmV0"));
    let id = ec2.machines().remove(0).id;
    assert_eq!(ec2.user_data(&id).as_deref(), Some(b"secret".as_slice()));
}

#[tokio::test]
async fn more_calls_than_the_rate_are_throttled_until_there_is_time() {
    let common = Settings {
        rate: Some(2.0),
        burst: Some(3.0),
        ..Settings::default()
    };
    let ec2 = start(Ec2Settings {
        common,
        ..Ec2Settings::default()
    })
    .await;
    tokio::time::pause();
    let mut codes = Vec::new();
    for _ in 0..5 {
        codes.push(call(&ec2, "DescribeInstances", &[]).await.code());
    }
    let throttled = "503 RequestLimitExceeded";
    assert_eq!(codes, ["200", "200", "200", throttled, throttled]);
    tokio::time::advance(Duration::from_millis(500)).await;
    assert_eq!(call(&ec2, "DescribeInstances", &[]).await.code(), "200");
    assert_eq!(call(&ec2, "DescribeInstances", &[]).await.code(), throttled);
}

#[tokio::test]
async fn people_see_and_change_it_over_http() {
    let ec2 = start(Ec2Settings::default()).await;
    done(&ec2, "RunInstances", &run("1", "1", &[])).await;
    let url = ec2.url();
    let id = ec2.machines().remove(0).id;
    let machines = send(&url, "GET", "/_emulator/machines", &[], String::new())
        .await
        .unwrap();
    assert!(machines.body.contains(&id), "{machines:?}");
    let body = r#"{"operation": "DescribeInstances", "fault": "refuse", "status": 418, "code": "Teapot", "times": 2}"#;
    let added = send(&url, "POST", "/_emulator/faults", &[], body.to_owned())
        .await
        .unwrap();
    assert_eq!(added.status, 204);
    for code in ["418 Teapot", "418 Teapot", "200"] {
        assert_eq!(call(&ec2, "DescribeInstances", &[]).await.code(), code);
    }
    let unknown = send(
        &url,
        "POST",
        "/_emulator/faults",
        &[],
        r#"{"fault": "fire"}"#.to_owned(),
    )
    .await
    .unwrap();
    assert_eq!(unknown.status, 400);
    assert!(unknown.body.contains("lose-answer"), "{unknown:?}");
    let stop = format!("/_emulator/machines/{id}/stop");
    assert_eq!(
        send(&url, "POST", &stop, &[], String::new())
            .await
            .unwrap()
            .status,
        204
    );
    assert_eq!(listed(&ec2, &[]).await, vec![(id, "stopped".to_owned())]);
    assert_eq!(
        send(&url, "POST", &stop, &[], String::new())
            .await
            .unwrap()
            .status,
        404
    );
    let requests = send(&url, "GET", "/_emulator/requests", &[], String::new())
        .await
        .unwrap();
    assert!(
        requests.body.contains("RunInstances") && !requests.body.contains("_emulator"),
        "{requests:?}"
    );
}

#[tokio::test]
async fn it_ends_with_its_last_handle() {
    let ec2 = start(Ec2Settings::default()).await;
    let clone = ec2.clone();
    let url = ec2.url();
    drop(ec2);
    done(&clone, "DescribeInstances", &[]).await;
    drop(clone);
    let gone = || send(&url, "GET", "/_emulator/machines", &[], String::new());
    while gone().await.is_ok() {
        tokio::task::yield_now().await;
    }
}
