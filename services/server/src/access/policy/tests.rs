use super::*;

fn read(text: &str) -> Result<Policy, String> {
    Policy::read(Path::new("x.yaml"), text, None).map_err(|e| e.to_string())
}

#[test]
fn what_cannot_be_meant_is_refused_with_its_place() {
    for (text, words) in [
        ("bindings: [{role: root, subjects: [a]}]", "line 1"),
        ("binding: []", "binding"),
        (
            "bindings: [{role: admin, subjects: []}]",
            "bindings[0]: subjects is empty",
        ),
        (
            "bindings: [{role: admin, subjects: [bob]}]",
            "\"bob\" is not a subject",
        ),
        (
            "bindings: [{role: admin, subjects: ['*'], clusters: [a]}]",
            "for viewer and operator, not for admin",
        ),
        (
            "bindings: [{role: admin, subjects: ['*'], platforms: [a]}]",
            "for viewer and operator, not for admin",
        ),
        (
            "bindings: [{role: resource-viewer, subjects: ['*'], clusters: [a]}]",
            "for viewer and operator, not for resource-viewer",
        ),
        (
            "bindings: [{role: resource-operator, subjects: ['*'], platforms: [a], namespaces: [b]}]",
            "for viewer and operator, not for resource-operator",
        ),
        (
            "bindings: [{role: platform, subjects: ['*'], namespaces: [a]}]",
            "for viewer and operator, not for platform",
        ),
        (
            "bindings: [{role: operator, subjects: ['*'], namespaces: ['']}]",
            "bindings[0]: namespaces: a pattern is empty",
        ),
        (
            "bindings: [{role: operator, subjects: ['*'], properties: {image: [[a]]}}]",
            "bindings[0]: properties.image: expected texts",
        ),
        (
            "bindings: [{role: operator, subjects: ['*']}, {role: operator, subjects: ['*'], platforms: []}]",
            "bindings[1]: platforms is empty; leave it out to allow all, or take the binding out to allow nothing",
        ),
        ("tokens: [{name: a, sha256: zz}]", "tokens[0]: sha256"),
        ("tokens: [{name: a, token: short}]", "at least 16"),
        ("tokens: [{name: a}]", "expected sha256 or token"),
        (
            "tokens: [{name: a, token: 0123456789abcdef}, {name: a, token: 0123456789abcdeg}]",
            "two tokens named a",
        ),
    ] {
        let why = read(text).unwrap_err();
        assert!(why.contains(words), "{why}");
        assert!(!why.contains("0123456789"), "{why}");
    }
}

#[test]
fn what_is_there_and_empty_could_mean_all_or_nothing_and_is_refused() {
    for (field, empty) in [
        ("clusters", "[]"),
        ("labels", "{}"),
        ("platforms", "[]"),
        ("namespaces", "[]"),
        ("node_classes", "[]"),
        ("nodeClasses", "[]"),
        ("properties", "{}"),
    ] {
        // A template that expands to nothing leaves a field like one of these.
        for empty in [empty, "~", "null"] {
            let binding = format!("{{role: operator, subjects: ['*'], {field}: {empty}}}");
            let why = read(&format!("bindings: [{binding}]")).unwrap_err();
            let field = field.replace("nodeClasses", "node_classes");
            let words = format!("bindings[0]: {field} is empty; leave it out");
            assert!(why.contains(&words), "{binding}: {why}");
        }
    }
    // Unambiguous for a single property, which has to be named to be limited.
    read("bindings: [{role: operator, subjects: ['*'], properties: {image: []}}]").unwrap();
}

#[test]
fn a_scope_is_names_and_labels() {
    let policy = read(
        "bindings: [{role: viewer, subjects: ['token:a'], clusters: ['orders-*'], labels: {team: shop}}]",
    )
    .unwrap();
    let identity = Identity::token("token:a".into());
    let grants = policy.grants(&identity);
    let labels = BTreeMap::from([("team".to_owned(), "shop".to_owned())]);
    assert!(grants[0].covers("orders-eu", Some(&labels)));
    assert!(!grants[0].covers("orders-eu", None));
    assert!(!grants[0].covers("orders-eu", Some(&BTreeMap::new())));
    assert!(!grants[0].covers("carts", Some(&labels)));
    assert!(policy.grants(&Identity::token("token:b".into())).is_empty());
}

#[test]
fn namespaces_limit_what_a_resource_role_reaches() {
    let policy = read(
        "bindings: [{role: resource-viewer, subjects: ['*']}, {role: resource-operator, subjects: ['*'], namespaces: \
         ['shop-*']}, {role: operator, subjects: ['*']}]",
    )
    .unwrap();
    let caller = super::super::Caller::new(policy.grants(&Identity::token("token:a".into())));
    use super::super::Permission as P;
    for (permission, namespace, reached) in [
        (P::ResourceRead, Some("bank"), true),
        (P::ResourceRead, None, true),
        (P::ResourceChange, Some("shop-eu"), true),
        (P::ResourceChange, Some("bank"), false),
        (P::PodAccess, Some("shop-eu"), true),
        (P::PodAccess, Some("bank"), false),
        (P::ResourceChange, None, false),
    ] {
        let found = caller.reaches(permission, namespace);
        assert_eq!(found, reached, "{permission:?} {namespace:?}");
    }
}

#[test]
fn the_rules_that_are_shipped_as_an_example_can_be_read() {
    read(include_str!("../../../../../deploy/access.yaml")).unwrap();
}

#[test]
fn a_token_is_known_by_its_digest() {
    let hex: String = digest("0123456789abcdef")
        .iter()
        .map(|b| format!("{b:02x}"))
        .collect();
    let policy = read(&format!("tokens: [{{name: a, sha256: \"{hex}\"}}]")).unwrap();
    let known = policy.token(&digest("0123456789abcdef"));
    assert_eq!(known.map(|token| &*token.subject), Some("token:a"));
    assert_eq!(known.and_then(StaticToken::left), Some(Left::Forever));
    assert_eq!(policy.token(&digest("0123456789abcdeg")), None);
}

#[test]
fn two_tokens_of_a_name_are_a_rotation_if_one_of_them_ends() {
    let tokens = |of: &[(&str, &str)]| {
        let of: Vec<String> = of
            .iter()
            .map(|(token, expires)| {
                let expires = match *expires {
                    "" => String::new(),
                    time => format!(", expires: {time}"),
                };
                format!("{{name: a, token: {token}-0123456789abcdef{expires}}}")
            })
            .collect();
        read(&format!("tokens: [{}]", of.join(", ")))
    };
    let policy = tokens(&[("old", "2020-01-31T12:00:00Z"), ("new", "")]).unwrap();
    let left = |token: &str| {
        let token = policy.token(&digest(&format!("{token}-0123456789abcdef")));
        token.unwrap().left()
    };
    assert_eq!((left("old"), left("new")), (None, Some(Left::Forever)));
    let policy = tokens(&[("a", "\"9999-01-01T00:00:00+01:00\""), ("b", "2020-01-31")]).unwrap();
    let left = |token: &str| {
        let token = policy.token(&digest(&format!("{token}-0123456789abcdef")));
        token.unwrap().left()
    };
    assert!(matches!(left("a"), Some(Left::For(_))));
    assert_eq!(left("b"), None);
    for (of, words) in [
        (
            &[("old", "2020-01-31T12:00:00Z"), ("new", ""), ("third", "")][..],
            "more than two tokens named a",
        ),
        (
            &[("old", ""), ("new", "")],
            "tokens[1]: there are two tokens named a",
        ),
        (&[("old", "soon")], "tokens[0]: expires: expected a time"),
        (
            &[("old", "2020-01-31T25:00:00Z")],
            "expires: expected a time",
        ),
        (&[("old", "''")], "expires: expected a time"),
    ] {
        let why = tokens(of).unwrap_err();
        assert!(why.contains(words), "{why}");
        assert!(!why.contains("0123456789"), "{why}");
    }
}
