//! Changes to secrets, by key and digest. Values are never shown.

use drover_proto::orchestrator::v1::{
    ApplyOutcome, ApplySecretResponse, ListSecretsRequest, Secret,
};

use crate::{
    client::{CALL_TIMEOUT, Client},
    failure::Outcome,
    output::rows,
};

/// Digits of a digest that are enough to tell two apart.
const DIGITS: usize = 12;

/// One line for the result of a dry run, and one for each key that differs from the stored value.
pub(crate) async fn changes(client: &Client, answer: &ApplySecretResponse) -> Outcome<String> {
    let Some(wanted) = &answer.secret else {
        return Ok(String::new());
    };
    let word = super::apply::outcome_word(answer.outcome());
    let mut text = format!("secret/{} {word} (dry run)", wanted.name);
    if answer.outcome() == ApplyOutcome::Unchanged {
        return Ok(text);
    }
    let request = ListSecretsRequest {
        name: Some(wanted.name.clone()),
        ..Default::default()
    };
    let stored = client
        .call(client.api.list_secrets(request, CALL_TIMEOUT))
        .await?;
    let stored = stored.secrets.into_iter().next().unwrap_or_default();
    for line in differences(&stored, wanted) {
        text.push_str("\n  ");
        text.push_str(&line);
    }
    Ok(text)
}

fn differences(old: &Secret, new: &Secret) -> Vec<String> {
    let of = |secret: &Secret, name: &str| {
        let key = secret.keys.iter().find(|key| key.name == name);
        key.map(|key| key.sha256.chars().take(DIGITS).collect::<String>())
    };
    let mut names: Vec<&String> = old
        .keys
        .iter()
        .chain(&new.keys)
        .map(|key| &key.name)
        .collect();
    names.sort();
    names.dedup();
    let line = |name: &&String| match (of(old, name), of(new, name)) {
        (None, Some(now)) => Some(format!("+ {name}  sha256 {now}")),
        (Some(was), None) => Some(format!("- {name}  sha256 {was}")),
        (Some(was), Some(now)) if was != now => Some(format!("~ {name}  sha256 {was} -> {now}")),
        _ => None,
    };
    let mut lines: Vec<String> = names.iter().filter_map(line).collect();
    let (was, now) = (old.purpose(), new.purpose());
    if was != now && !old.name.is_empty() {
        let (was, now) = (rows::purpose(was), rows::purpose(now));
        lines.push(format!("~ purpose  {was} -> {now}"));
    }
    lines
}

#[cfg(test)]
mod tests {
    use drover_proto::orchestrator::v1::{SecretKey, SecretPurpose};

    use super::*;

    #[test]
    fn keys_that_come_go_and_change_are_told_by_digest() {
        let secret = |keys: &[(&str, &str)]| Secret {
            keys: keys
                .iter()
                .map(|(name, sha256)| SecretKey {
                    name: (*name).to_owned(),
                    sha256: (*sha256).to_owned(),
                })
                .collect(),
            ..Default::default()
        };
        let old = secret(&[("a", "11"), ("b", "22"), ("c", "33")]);
        let new = secret(&[("a", "11"), ("b", "44"), ("d", "55")]);
        assert_eq!(
            differences(&old, &new),
            ["~ b  sha256 22 -> 44", "- c  sha256 33", "+ d  sha256 55"]
        );
        assert!(differences(&new, &new).is_empty());
        let named = |purpose: SecretPurpose| Secret {
            name: "db".to_owned(),
            purpose: purpose.into(),
            ..Default::default()
        };
        let (old, new) = (SecretPurpose::Workload, SecretPurpose::Probe);
        assert_eq!(
            differences(&named(old), &named(new)),
            ["~ purpose  workload -> probe"]
        );
    }
}
