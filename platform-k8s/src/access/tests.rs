use super::*;
use serde_json::json;

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

#[test]
fn a_command_ends_with_its_own_code_or_that_of_a_shell() {
    let call = Call::path("create", "x");
    let code =
        |status: serde_json::Value| exit_code(&call, &serde_json::from_value(status).unwrap());
    assert_eq!(code(json!({"status": "Success"})), Ok(0));
    let failed = json!({"status": "Failure", "reason": "NonZeroExitCode", "message": "command terminated with exit code 3",
        "details": {"causes": [{"reason": "ExitCode", "message": "3"}]}});
    assert_eq!(code(failed), Ok(3));
    let missing = json!({"status": "Failure", "reason": "InternalError", "code": 500,
        "message": "OCI runtime exec failed: exec: \"frobnicate\": executable file not found in $PATH"});
    assert_eq!(code(missing), Ok(127));
    let forbidden =
        json!({"status": "Failure", "message": "exec: \"/etc/passwd\": permission denied"});
    assert_eq!(code(forbidden), Ok(126));
    let other =
        code(json!({"status": "Failure", "message": "cannot run secret-command"})).unwrap_err();
    assert!(!other.message().contains("secret-command"));
}
