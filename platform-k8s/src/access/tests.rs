use super::*;

fn place() -> Place {
    Place {
        namespace: "ns".into(),
        pod: "db-1".into(),
        container: "redis".into(),
    }
}

/// The query of a request for a log.
fn query(request: &StreamLogsRequest) -> String {
    let requests = kube::core::Request::new("/pods");
    let request = requests.logs("db-1", &parameters(&place(), request));
    let query = request.unwrap().uri().query().unwrap().to_owned();
    query.trim_start_matches('&').to_owned()
}

#[test]
fn what_is_asked_of_logs_is_passed_on() {
    let plain = query(&StreamLogsRequest::default());
    assert_eq!(plain, "container=redis");
    let all = StreamLogsRequest {
        follow: true,
        previous: true,
        tail_lines: Some(0),
        since: Some(Since::SinceTime(prost_types::Timestamp {
            seconds: 1_700_000_000,
            nanos: 999_999_999,
        })),
        ..StreamLogsRequest::default()
    };
    assert_eq!(
        query(&all),
        "container=redis&follow=true&previous=true&sinceTime=2023-11-14T22%3A13%3A20Z&tailLines=0"
    );
    for (seconds, nanos, expected) in [(0, 0, 1), (0, 1, 1), (5, 0, 5), (5, 1, 6)] {
        let request = StreamLogsRequest {
            since: Some(Since::SinceDuration(prost_types::Duration {
                seconds,
                nanos,
            })),
            ..StreamLogsRequest::default()
        };
        assert_eq!(
            query(&request),
            format!("container=redis&sinceSeconds={expected}")
        );
    }
}
