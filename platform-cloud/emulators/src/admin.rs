//! Administration of a running emulator over HTTP, under `/_emulator/`: reads the log and the machines, injects faults.

use std::time::Duration;

use http::Method;
use serde_json::{Value, json};

use crate::control::{Control, Fault};
use crate::server::{Answer, Api, Call};
use crate::world::{Clock, Hand};

/// Returns the response if the path is an administrative one. Such requests are not logged and not subject to faults.
pub(crate) fn answer<A: Api>(
    api: &A,
    control: &Control,
    clock: &Clock,
    call: &Call,
) -> Option<Answer> {
    if !call.path.starts_with("/_emulator/") {
        return None;
    }
    let segments = call.segments();
    let parts: Vec<&str> = segments.iter().skip(1).map(String::as_str).collect();
    Some(match (&call.method, parts.as_slice()) {
        (&Method::GET, ["machines"]) => Answer::json(200, &machines(api)),
        (&Method::GET, ["ledger"]) => Answer::json(200, &ledger(api)),
        (&Method::GET, ["requests"]) => Answer::json(200, &requests(control)),
        (&Method::DELETE, ["requests"]) => {
            control.clear_requests();
            Answer::empty(204)
        }
        (&Method::POST, ["faults"]) => add_fault(control, call),
        (&Method::DELETE, ["faults"]) => {
            control.clear_faults();
            Answer::empty(204)
        }
        (&Method::POST, ["machines", id, act @ ("terminate" | "stop")]) => {
            let hand = if *act == "stop" {
                Hand::Stop
            } else {
                Hand::Terminate
            };
            if api.by_hand(id, &hand) {
                Answer::empty(204)
            } else {
                wrong(404, "no such machine, or nothing to do")
            }
        }
        (&Method::POST, ["skew", ms]) => match ms.parse() {
            Ok(ms) => {
                clock.set_skew_ms(ms);
                Answer::empty(204)
            }
            Err(_) => wrong(400, "the skew is a whole number of milliseconds"),
        },
        _ => wrong(
            404,
            "GET machines, ledger, requests; DELETE requests, faults; POST faults, machines/ID/stop, machines/ID/terminate, skew/MS",
        ),
    })
}

fn wrong(status: u16, message: &str) -> Answer {
    Answer::json(status, &json!({ "error": message }))
}

fn machines<A: Api>(api: &A) -> Value {
    let machines = api.machines();
    machines
        .iter()
        .map(|m| json!({ "id": m.id, "state": m.state, "zone": m.zone, "tags": m.tags }))
        .collect()
}

fn ledger<A: Api>(api: &A) -> Value {
    let ledger = api.ledger();
    let entry = |made: &crate::world::Made| {
        json!({
            "kind": made.kind, "id": made.id, "key": made.key, "tags": made.tags,
            "foreign": made.foreign, "gone": made.gone,
        })
    };
    ledger.iter().map(entry).collect()
}

fn requests(control: &Control) -> Value {
    let entry = |request: &crate::control::Request| {
        let parameters: Value = request
            .parameters
            .iter()
            .map(|(key, value)| json!([key, value]))
            .collect();
        json!({
            "operation": request.operation, "method": request.method, "path": request.path,
            "parameters": parameters, "status": request.status,
        })
    };
    control.requests().iter().map(entry).collect()
}

fn add_fault(control: &Control, call: &Call) -> Answer {
    let Ok(body) = call.json() else {
        return wrong(400, "the body is not JSON");
    };
    let operation = body
        .get("operation")
        .and_then(Value::as_str)
        .unwrap_or(crate::control::ANY);
    match fault(&body) {
        Ok(fault) if body.get("always") == Some(&Value::Bool(true)) => {
            control.fail_always(operation, Some(fault));
        }
        Ok(fault) => {
            let times = body
                .get("times")
                .and_then(Value::as_u64)
                .unwrap_or(1)
                .min(10_000);
            for _ in 0..times {
                control.fail_next(operation, fault.clone());
            }
        }
        Err(message) => return wrong(400, message),
    }
    Answer::empty(204)
}

fn fault(body: &Value) -> Result<Fault, &'static str> {
    let text = |name: &str| {
        body.get(name)
            .and_then(Value::as_str)
            .unwrap_or_default()
            .to_owned()
    };
    let status = body
        .get("status")
        .and_then(Value::as_u64)
        .and_then(|status| u16::try_from(status).ok());
    let status = status.unwrap_or(500);
    let time = body
        .get("ms")
        .and_then(Value::as_u64)
        .map(Duration::from_millis);
    Ok(
        match body
            .get("fault")
            .and_then(Value::as_str)
            .unwrap_or_default()
        {
            "refuse" => Fault::Refuse {
                status,
                code: text("code"),
                message: text("message"),
            },
            "refuse-after" => Fault::RefuseAfter {
                status,
                code: text("code"),
                message: text("message"),
            },
            "throttle" => Fault::Throttle { retry_after: time },
            "lose-answer" => Fault::LoseAnswer,
            "cut-answer" => Fault::CutAnswer,
            "refused" => Fault::Refused,
            "stall" => Fault::Stall(time.ok_or("a stall needs its time in `ms`")?),
            "no-capacity" => Fault::NoCapacity,
            "quota" => Fault::Quota,
            "fail-later" => Fault::later(&text("code"), &text("message")),
            _ => {
                return Err(
                    "`fault` is one of refuse, refuse-after, throttle, lose-answer, cut-answer, refused, stall, no-capacity, quota, fail-later",
                );
            }
        },
    )
}
