//! What of a request no word about it may repeat.

use drover_core::secrecy::Hidden;
use drover_proto::platform::v1::{ProvisionRequest, ProvisionResponse, bootstrap::UserData};

use crate::error::{from_rpc_status, to_rpc_status};

/// The secrets and the user data that a request brings.
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

/// An answer without what its words repeat.
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
}
