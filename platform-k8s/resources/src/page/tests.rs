use drover_proto::kubernetes::v1::ListPodsRequest;

use super::*;

fn query(node: &str) -> Query {
    let request = ListPodsRequest {
        node: node.into(),
        ..Default::default()
    };
    Query::of(&request, "ListPods")
}

#[test]
fn a_token_leads_back_to_its_place_and_only_for_its_query() {
    let place = Place {
        scope: "shop".into(),
        token: "behind web-7".into(),
    };
    let token = query("a").token(&place);
    assert_eq!(query("a").place(&token).unwrap(), Some(place));
    assert_eq!(query("a").place("").unwrap(), None);
    for (query, token) in [(query("b"), &*token), (query("a"), "x"), (query("a"), "€")] {
        let error = query.place(token).unwrap_err();
        assert_eq!(error.fields()[0].field, "page_token");
    }
}

#[test]
fn a_token_that_was_cut_or_changed_is_refused_and_never_a_panic() {
    let place = Place {
        scope: "shop".into(),
        token: "behind web-7".into(),
    };
    let token = query("a").token(&place);
    for at in 0..token.len() {
        // A cut token may still name a place, but never another namespace of the list than one of its beginning.
        if let Ok(Some(found)) = query("a").place(&token[..at]) {
            assert_eq!(found.scope, "shop");
        }
        let mut changed = token.clone().into_bytes();
        changed[at] = b'!';
        let changed = String::from_utf8(changed).unwrap();
        assert!(query("a").place(&changed).is_err());
    }
}

#[test]
fn sizes_of_pages_are_bounded() {
    assert_eq!(size(0).unwrap(), 500);
    assert_eq!(size(7).unwrap(), 7);
    assert_eq!(size(i32::MAX).unwrap(), 1000);
    assert_eq!(size(-1).unwrap_err().fields()[0].field, "page_size");
}
