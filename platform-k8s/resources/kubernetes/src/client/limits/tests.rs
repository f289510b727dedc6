use std::{
    convert::Infallible,
    sync::atomic::{AtomicUsize, Ordering},
};

use serde_json::json;

use super::*;

/// An API server that answers what it is told, and counts calls.
fn server(
    calls: &Arc<AtomicUsize>,
    answer: impl Fn(usize) -> Response<Full<Bytes>> + Clone + Send + 'static,
) -> impl Service<Request<Body>, Response = Response<Full<Bytes>>, Error = BoxError, Future: Send>
+ Clone
+ Send
+ 'static {
    let calls = Arc::clone(calls);
    tower::service_fn(move |_: Request<Body>| {
        let number = calls.fetch_add(1, Ordering::SeqCst);
        let answer = answer(number);
        async move { Ok::<_, BoxError>(answer) }
    })
}

fn answer(code: u16, body: &str) -> Response<Full<Bytes>> {
    let mut answer = Response::new(Full::new(Bytes::from(body.to_owned())));
    *answer.status_mut() = StatusCode::from_u16(code).unwrap();
    answer
}

fn throttled(number: usize) -> Response<Full<Bytes>> {
    let mut answer = answer(if number == 0 { 429 } else { 200 }, "{}");
    let after = http::HeaderValue::from_static("7");
    answer.headers_mut().insert(header::RETRY_AFTER, after);
    answer
}

fn request(method: Method, path: &str) -> Request<Body> {
    let mut request = Request::new(Body::empty());
    *request.method_mut() = method;
    *request.uri_mut() = path.parse().unwrap();
    request
}

const PODS: &str = "/api/v1/namespaces/n/pods";

fn limits(timeout: u64) -> LimitLayer {
    LimitLayer::new(1, Duration::from_secs(timeout))
}

async fn body(answer: Response<Answer>) -> String {
    let body = answer.into_body().collect().await.unwrap().to_bytes();
    String::from_utf8(body.to_vec()).unwrap()
}

#[tokio::test(start_paused = true)]
async fn a_read_is_sent_again_after_the_pause_that_the_server_asked_for_and_a_write_is_not() {
    for (method, sent, code) in [(Method::GET, 2, 200), (Method::POST, 1, 429)] {
        let calls = Arc::default();
        let layer = limits(30);
        let client = layer.layer(server(&calls, throttled));
        let begin = Instant::now();
        let got = client.clone().oneshot(request(method, PODS)).await.unwrap();
        assert_eq!(got.status().as_u16(), code);
        assert_eq!(calls.load(Ordering::SeqCst), sent);
        let next = client.oneshot(request(Method::GET, PODS)).await.unwrap();
        assert_eq!(next.status().as_u16(), 200);
        assert!(begin.elapsed() >= Duration::from_secs(7));
    }
}

#[tokio::test(start_paused = true)]
async fn the_word_of_a_disruption_budget_pauses_nobody() {
    let calls = Arc::default();
    let client = limits(30).layer(server(&calls, throttled));
    let evict = format!("{PODS}/p/eviction");
    let begin = Instant::now();
    let got = client.clone().oneshot(request(Method::POST, &evict)).await;
    assert_eq!(got.unwrap().status().as_u16(), 429);
    client.oneshot(request(Method::GET, PODS)).await.unwrap();
    assert_eq!(begin.elapsed(), Duration::ZERO);
}

#[tokio::test(start_paused = true)]
async fn a_call_without_an_answer_ends_and_a_log_waits() {
    let silent = tower::service_fn(|_: Request<Body>| async {
        std::future::pending::<Infallible>().await;
        Ok::<_, BoxError>(answer(200, ""))
    });
    let client = limits(3).layer(silent);
    for path in [PODS, "/api/v1/pods?watch=true"] {
        let error = client.clone().oneshot(request(Method::GET, path)).await;
        let error = error.unwrap_err().downcast::<LimitError>().unwrap();
        assert!(matches!(*error, LimitError::Timeout(_)), "{error}");
    }
    let log = client.oneshot(request(Method::GET, &format!("{PODS}/p/log?follow=true")));
    let waited = tokio::time::timeout(Duration::from_secs(3600), log).await;
    assert!(waited.is_err());
}

#[tokio::test]
async fn a_config_map_of_the_name_log_is_read_within_the_limits() {
    let path = "/api/v1/namespaces/pods/configmaps/log";
    assert_eq!(Span::of(&request(Method::GET, path)), Span::Whole);
}

#[tokio::test]
async fn a_failure_repeats_no_value_and_a_proxy_is_quoted() {
    let status = json!({
        "message": "spec.x: Invalid value: \"hunter2\": must be short",
        "details": {"causes": [{"field": "spec.x", "message": "Invalid value: \"hunter2\": no"}]},
    })
    .to_string();
    for (code, said, expected) in [
        (422, status.as_str(), "must be short"),
        (502, "no route\nx", "no route"),
    ] {
        let (calls, said) = (Arc::default(), said.to_owned());
        let client = limits(3).layer(server(&calls, move |_| answer(code, &said)));
        let got = client.oneshot(request(Method::POST, PODS)).await.unwrap();
        let body = body(got).await;
        assert!(
            body.contains(expected) && !body.contains("hunter2"),
            "{body}"
        );
    }
}

#[tokio::test]
async fn an_answer_that_is_cut_in_half_reaches_nobody() {
    let calls = Arc::default();
    let client = limits(3).layer(server(&calls, |_| answer(200, r#"{"data":{"a":"hun"#)));
    let error = client
        .oneshot(request(Method::GET, PODS))
        .await
        .unwrap_err();
    assert!(!error.to_string().contains("hun"), "{error}");
}

#[tokio::test]
async fn an_answer_without_end_is_not_collected() {
    let endless = tower::service_fn(|_: Request<Body>| async {
        let piece = Bytes::from(vec![b' '; 1024 * 1024]);
        let pieces = futures::stream::repeat_with(move || {
            Ok::<_, Infallible>(http_body::Frame::data(piece.clone()))
        });
        let body = http_body_util::StreamBody::new(pieces);
        Ok::<_, BoxError>(Response::new(body))
    });
    let client = limits(30).layer(endless);
    let error = client
        .oneshot(request(Method::GET, PODS))
        .await
        .unwrap_err();
    let error = error.downcast::<LimitError>().unwrap();
    assert!(matches!(*error, LimitError::TooLarge), "{error}");
    assert!(is_too_large(&kube::Error::Service(error)));
}

#[tokio::test]
async fn a_request_with_a_permit_of_its_own_takes_no_other() {
    let calls = Arc::default();
    let layer = limits(3);
    let client = layer.layer(server(&calls, |_| answer(200, "{}")));
    let mut permitted = request(Method::POST, PODS);
    permitted.extensions_mut().insert(layer.permit().await);
    client.clone().oneshot(permitted).await.unwrap();
    client.oneshot(request(Method::POST, PODS)).await.unwrap();
    assert_eq!(calls.load(Ordering::SeqCst), 2);
}

#[tokio::test]
async fn a_failure_in_protobuf_is_read_as_one_in_json() {
    // `meta/v1` Status: message, code; within `runtime.Unknown`.
    let status = b"\x1a\x07no room\x30\xf7\x03";
    let mut told = b"k8s\0\x12".to_vec();
    told.push(u8::try_from(status.len()).unwrap());
    told.extend(status);
    let calls = Arc::default();
    let client = limits(3).layer(server(&calls, move |_| {
        let mut answer = answer(503, "");
        *answer.body_mut() = Full::new(Bytes::from(told.clone()));
        answer
    }));
    let got = client.oneshot(request(Method::GET, PODS)).await.unwrap();
    assert_eq!(got.status().as_u16(), 503);
    let body = body(got).await;
    assert!(body.contains("no room"), "{body}");
}
