//! No diagnostic shows user data.

use super::*;

#[test]
fn no_error_shows_user_data() {
    let secret = "hunter2";
    let worker = "stringData: {value: \"#cloud-config\\nruncmd: [kubeadm join]\\n\"}";
    for data in [
        "stringData: {value: [hunter2]}",
        "stringData: {value: 4711}",
        "data: {value: \"hunter2 is no base64\"}",
        "stringData: {other: hunter2}",
        "stringdata: {value: hunter2}",
        "stringData: {value: hunter2}\nstringData: {value: hunter2}",
    ] {
        let text = sample(worker, data);
        let text = errors(&text);
        assert!(text.contains("error"), "{text}");
        assert!(!text.contains(secret) && !text.contains("4711"), "{text}");
    }
    // Problems that the orchestrator reports afterwards.
    let objects = objects(&sample(worker, "stringData: {value: hunter2}"));
    let mut problems = crate::diagnostic::Diagnostics::default();
    for field in ["spec.groups[1].bootstrap.text", "spec.groups[1].bootstrap"] {
        problems.push(objects.clusters[0].violation(&Violation {
            field: field.into(),
            description: "is too long".into(),
        }));
    }
    let text = problems.render("");
    assert!(
        text.contains("is too long") && !text.contains(secret),
        "{text}"
    );
    let inline = sample(
        "{dataSecretName: metal-stack-worker-bootstrap}",
        "{data: \"hunter2 is no base64\"}",
    );
    let text = errors(&inline);
    assert!(
        text.contains("expected bytes in base64") && !text.contains(secret),
        "{text}"
    );
}

/// With any line missing, repeated or as the last one, the result is an error or a cluster, never a panic, and never
/// user data.
#[test]
fn damaged_documents_never_show_user_data() {
    let blocks = SAMPLE.replace(
        "stringData: {value: \"#cloud-config\\nruncmd: [kubeadm join]\\n\"}",
        "stringData:\n  value: |\n    runcmd: [kubeadm join]\n",
    );
    for sample in [SAMPLE, &blocks] {
        let lines: Vec<&str> = sample.lines().collect();
        let check = |lines: &[&str]| {
            let objects = read(&[("x", &lines.join("\n"))], Some(&["metal"]));
            let rendered = objects.diagnostics.render("");
            assert!(
                !rendered.contains("runcmd"),
                "{rendered}\n{}",
                lines.join("\n")
            );
        };
        for line in 0..lines.len() {
            let mut lost = lines.clone();
            let taken = lost.remove(line);
            check(&lost);
            let mut doubled = lines.clone();
            doubled.insert(line, taken);
            check(&doubled);
            check(&lines[..line]);
            let mut moved = lost;
            moved.insert((line * 7 + 3) % lines.len(), taken);
            check(&moved);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn several_faults_at_once_never_show_user_data(
        lost in proptest::collection::vec(0usize..85, 0..6),
        doubled in 0usize..85,
        cut in 0usize..4000,
    ) {
        let mut lines: Vec<&str> = SAMPLE.lines().collect();
        if let Some(line) = lines.get(doubled).copied() {
            lines.insert(doubled, line);
        }
        for line in lost {
            if line < lines.len() {
                lines.remove(line);
            }
        }
        let text: String = lines.join("\n").chars().take(cut).collect();
        let objects = read(&[("x", &text)], Some(&["metal"]));
        let rendered = objects.diagnostics.render("");
        prop_assert!(!rendered.contains("runcmd"), "{}\n{}", rendered, text);
    }
}
