use drover_proto::kubernetes::v1::ListPodsRequest;

use super::*;

fn query(node: &str) -> Query {
    let request = ListPodsRequest {
        node: node.into(),
        ..Default::default()
    };
    Query::of(&request, "ListPods")
}

fn place() -> Place {
    Place {
        scope: "shop".into(),
        token: "behind web-7".into(),
    }
}

#[test]
fn a_token_leads_back_to_its_place_and_only_for_its_query() {
    let tokens = Tokens::new().unwrap();
    let token = tokens.token(query("a"), &place()).unwrap();
    assert_eq!(tokens.place(query("a"), &token).unwrap(), Some(place()));
    assert_eq!(tokens.place(query("a"), "").unwrap(), None);
    for (query, token) in [(query("b"), &*token), (query("a"), "x"), (query("a"), "€")] {
        let error = tokens.place(query, token).unwrap_err();
        assert_eq!(error.fields()[0].field, "page_token");
    }
}

#[test]
fn a_token_shows_neither_namespace_nor_object() {
    let tokens = Tokens::new().unwrap();
    let token = tokens.token(query("a"), &place()).unwrap();
    let bytes = URL_SAFE_NO_PAD.decode(&token).unwrap();
    for name in ["shop", "web-7"] {
        let shown = bytes.windows(name.len()).any(|it| it == name.as_bytes());
        assert!(!shown, "{name}");
    }
}

#[test]
fn a_token_that_was_cut_changed_or_made_by_another_is_refused_and_never_a_panic() {
    let tokens = Tokens::new().unwrap();
    let token = tokens.token(query("a"), &place()).unwrap();
    for at in 0..token.len() {
        let cut = &token[..at];
        assert!(
            cut.is_empty() || tokens.place(query("a"), cut).is_err(),
            "{at}"
        );
        let mut changed = token.clone().into_bytes();
        changed[at] = if changed[at] == b'A' { b'B' } else { b'A' };
        let changed = String::from_utf8(changed).unwrap();
        // The last character has bits that stand for nothing; a strict decoder refuses them.
        assert!(tokens.place(query("a"), &changed).is_err(), "{at}");
    }
    let after_restart = Tokens::new().unwrap();
    let error = after_restart.place(query("a"), &token).unwrap_err();
    assert_eq!(error.reason(), Reason::PageTokenExpired);
}

#[test]
fn sizes_of_pages_are_bounded() {
    assert_eq!(size(0).unwrap(), 500);
    assert_eq!(size(7).unwrap(), 7);
    assert_eq!(size(i32::MAX).unwrap(), 1000);
    assert_eq!(size(-1).unwrap_err().fields()[0].field, "page_size");
}
