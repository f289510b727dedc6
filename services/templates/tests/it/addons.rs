//! The context of addons.

use std::collections::BTreeMap;

use drover_templates::{AddonScope, Context, Scope, render_text};
use serde_json::json;

fn rendered(text: &str) -> String {
    let secret = [("key".to_owned(), "aHVudGVyMg==".to_owned())];
    let scope = Scope::from(Context::default()).of_addon(&AddonScope {
        addon: json!({"name": "api"}),
        targets: vec![json!({"name": "w-0"}), json!({"name": "w-1"})],
        secrets: BTreeMap::from([("keys".to_owned(), BTreeMap::from(secret))]),
        ..AddonScope::default()
    });
    render_text("test", text, &scope).unwrap().into_text()
}

#[test]
fn a_template_of_an_addon_reads_the_addon_its_targets_and_its_secrets() {
    let text =
        "{{ addon.name }} {{ targets | map(attribute='name') | join(',') }} {{ secrets.keys.key }}";
    assert_eq!(rendered(text), "api w-0,w-1 aHVudGVyMg==");
    assert_eq!(rendered("{{ secrets.keys.key | b64decode }}"), "hunter2");
    assert_eq!(rendered("{{ 'hunter2' | b64encode }}"), "aHVudGVyMg==");
}

#[test]
fn a_template_of_a_node_has_no_addon_and_no_targets() {
    for name in ["addon", "targets"] {
        let text = format!("{{{{ {name} }}}}");
        let error = render_text("test", &text, &Context::default().into()).unwrap_err();
        assert!(error.message().contains("undefined"), "{error}");
    }
    let bad = render_text(
        "test",
        "{{ 'hunter2!' | b64decode }}",
        &Context::default().into(),
    );
    let error = bad.unwrap_err();
    assert!(!error.message().contains("hunter2"), "{error}");
}
