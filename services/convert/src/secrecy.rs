//! Redaction of the secret content of a request from its response.

use drover_core::secrecy::Hidden;
use drover_proto::platform::v1::{ProvisionRequest, ProvisionResponse, bootstrap::UserData};
use tonic::{Code, Status, codegen::http::HeaderMap};

use crate::error::{from_rpc_status, from_status, to_rpc_status, to_status};

/// Collects the secrets and the user data of a request.
#[must_use]
pub fn hidden(request: &ProvisionRequest) -> Hidden {
    let secrets = request.secrets.values();
    let hidden = secrets.fold(Hidden::default(), |hidden, secret| {
        hidden.secret(secret.text.as_bytes())
    });
    let bootstrap = request.bootstrap.as_ref();
    match bootstrap.and_then(|bootstrap| bootstrap.user_data.as_ref()) {
        Some(UserData::Text(text)) => hidden.script(text.as_bytes()),
        Some(UserData::Binary(data)) => hidden.script(data),
        None => hidden,
    }
}

/// Redacts the error messages of a response.
#[must_use]
pub fn clean(hidden: &Hidden, mut answer: ProvisionResponse) -> ProvisionResponse {
    let failures = answer.failures.iter_mut().chain(&mut answer.unknown);
    for status in failures.filter_map(|one| one.error.as_mut()) {
        *status = to_rpc_status(&hidden.error(from_rpc_status(status)));
    }
    for node in &mut answer.nodes {
        if !node.message.is_empty() {
            node.message = hidden.text(&node.message).into_owned();
        }
    }
    answer
}

/// Redacts the gRPC status in headers or trailers.
pub fn clean_status(hidden: &Hidden, headers: &mut HeaderMap) {
    let failed = Status::from_header_map(headers).filter(|status| status.code() != Code::Ok);
    let Some(said) = failed.map(|status| from_status(&status)) else {
        return;
    };
    let clean = hidden.error(said.clone());
    if clean == said {
        return;
    }
    for header in [Status::GRPC_MESSAGE, Status::GRPC_STATUS_DETAILS] {
        headers.remove(header);
    }
    // Without the new status the response reveals too little rather than too much.
    let _ = to_status(&clean).add_header(headers);
}

#[cfg(test)]
mod tests {
    use drover_core::{Error, Reason, secrecy::HIDDEN};
    use drover_proto::platform::v1::{Bootstrap, IndexError, Node, TemplateSecret};

    use super::*;

    #[test]
    fn an_answer_repeats_neither_secrets_nor_user_data_of_its_request() {
        let request = ProvisionRequest {
            secrets: [(
                "p".to_owned(),
                TemplateSecret {
                    text: "hush-hush-1".to_owned(),
                },
            )]
            .into(),
            bootstrap: Some(Bootstrap {
                user_data: Some(UserData::Text("export A=whisper-2\n".to_owned())),
                ..Bootstrap::default()
            }),
            ..ProvisionRequest::default()
        };
        let said = "it says hush-hush-1, and whisper-2";
        let failed = |index| IndexError {
            index,
            error: Some(to_rpc_status(&Error::new(Reason::Precondition, said))),
        };
        let answer = ProvisionResponse {
            nodes: vec![Node {
                message: said.to_owned(),
                ..Node::default()
            }],
            failures: vec![failed(1)],
            unknown: vec![failed(2)],
            ..ProvisionResponse::default()
        };
        let answer = clean(&hidden(&request), answer);
        let wanted = format!("it says {HIDDEN}, and {HIDDEN}");
        assert_eq!(answer.nodes[0].message, wanted);
        for one in answer.failures.iter().chain(&answer.unknown) {
            let error = from_rpc_status(one.error.as_ref().unwrap());
            assert_eq!(
                (error.reason(), error.message()),
                (Reason::Precondition, &*wanted)
            );
        }
    }
    #[test]
    fn how_a_call_ended_is_said_without_the_token_and_what_does_not_repeat_it_stays_as_it_was() {
        let token = Hidden::default().secret(b"hush-hush-1");
        let ended = |message: &str| {
            let error = Error::new(Reason::Unauthenticated, message).with_metadata("who", message);
            let mut headers = HeaderMap::new();
            to_status(&error).add_header(&mut headers).unwrap();
            headers
        };
        let mut headers = ended("no token hush-hush-1 here");
        clean_status(&token, &mut headers);
        let error = from_status(&Status::from_header_map(&headers).unwrap());
        assert_eq!(error.reason(), Reason::Unauthenticated);
        assert_eq!(error.message(), format!("no token {HIDDEN} here"));
        assert!(!format!("{error:?}").contains("hush-1"), "{error:?}");
        for mut other in [ended("nothing of it"), HeaderMap::new()] {
            let before = other.clone();
            clean_status(&token, &mut other);
            assert_eq!(other, before);
        }
    }
}
