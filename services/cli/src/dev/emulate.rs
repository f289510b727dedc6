//! Clouds without an account: `drover dev --emulate aws,gcp` runs the real drivers against emulators of their APIs.

use std::collections::BTreeSet;

use crate::failure::{Failure, Outcome};

/// A cloud that can be emulated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Cloud {
    Aws,
    Gcp,
    DigitalOcean,
    Metal,
}

/// Names of clouds, including aliases. A platform gets the name that was given.
const CLOUDS: [(&str, Cloud); 6] = [
    ("aws", Cloud::Aws),
    ("gcp", Cloud::Gcp),
    ("gcd", Cloud::Gcp),
    ("digitalocean", Cloud::DigitalOcean),
    ("digitalOcean", Cloud::DigitalOcean),
    ("metal", Cloud::Metal),
];

/// A platform on an emulated cloud.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Emulated {
    pub(super) name: String,
    pub(super) cloud: Cloud,
}

/// Parses `CLOUD` and `NAME=CLOUD`. `taken` are the names of other platforms.
pub(super) fn parse(words: &[String], taken: &[String]) -> Outcome<Vec<Emulated>> {
    let mut names: BTreeSet<&str> = taken.iter().map(String::as_str).collect();
    let mut emulated = Vec::new();
    for word in words.iter().map(|word| word.trim()) {
        let (name, cloud) = word.split_once('=').unwrap_or((word, word));
        let Some((_, cloud)) = CLOUDS.iter().find(|(known, _)| *known == cloud) else {
            return Err(Failure::usage(format!(
                "`{cloud}` is not a cloud that can be emulated; expected aws, gcp, digitalocean or metal, or NAME=CLOUD"
            )));
        };
        if name.is_empty() || !names.insert(name) {
            return Err(Failure::usage(format!(
                "there is another platform `{name}` here; choose another name: --emulate NAME={}",
                word.rsplit('=').next().unwrap_or_default()
            )));
        }
        emulated.push(Emulated {
            name: name.to_owned(),
            cloud: *cloud,
        });
    }
    if cfg!(not(feature = "emulate")) && !emulated.is_empty() {
        return Err(Failure::usage(format!(
            "this drover was built without emulators; with them: cargo run -p drover --features emulate -- dev --emulate {}",
            words.join(",")
        )));
    }
    Ok(emulated)
}

#[cfg(not(feature = "emulate"))]
pub(super) use absent::Emulators;
#[cfg(feature = "emulate")]
pub(super) use present::Emulators;

/// Without the feature there is nothing to start: [`parse`] accepts no cloud.
#[cfg(not(feature = "emulate"))]
mod absent {
    use super::{super::data::DataDir, Emulated};

    pub(in crate::dev) struct Emulators;

    impl Emulators {
        #[expect(
            clippy::unused_async,
            reason = "with the feature it waits for the emulators"
        )]
        pub(in crate::dev) async fn start(
            _: &[Emulated],
            _: &DataDir,
        ) -> anyhow::Result<(Self, Vec<(String, drover_platform_cloud::Settings)>)> {
            Ok((Self, Vec::new()))
        }

        #[expect(clippy::unused_self, reason = "with the feature it has some")]
        pub(in crate::dev) fn urls(&self) -> &[(String, String)] {
            &[]
        }

        #[expect(
            clippy::unused_async,
            reason = "with the feature it waits for the emulators"
        )]
        pub(in crate::dev) async fn shutdown(self) {}
    }
}

#[cfg(feature = "emulate")]
mod present;

#[cfg(test)]
mod tests {
    use super::*;

    fn words(words: &[&str]) -> Vec<String> {
        words.iter().map(|word| (*word).to_owned()).collect()
    }

    fn refusal(given: &[&str], taken: &[&str]) -> String {
        parse(&words(given), &words(taken)).unwrap_err().to_string()
    }

    #[test]
    fn what_cannot_be_emulated_is_named() {
        assert!(refusal(&["azure"], &[]).contains("`azure` is not a cloud that can be emulated"));
        assert!(refusal(&["x=aws", "x=gcp"], &[]).contains("--emulate NAME=gcp"));
        assert!(refusal(&["aws"], &["aws"]).contains("another platform `aws`"));
        assert!(refusal(&["=aws"], &[]).contains("choose another name"));
        assert_eq!(parse(&[], &words(&["local"])).unwrap(), []);
    }

    #[cfg(not(feature = "emulate"))]
    #[test]
    fn without_emulators_the_error_says_how_to_get_them() {
        assert!(
            refusal(&["aws", "gcp"], &[])
                .contains("cargo run -p drover --features emulate -- dev --emulate aws,gcp")
        );
    }

    #[cfg(feature = "emulate")]
    #[test]
    fn clouds_have_several_names() {
        let parsed = parse(&words(&["aws", "gcd", "digitalOcean", "fra=metal"]), &[]).unwrap();
        let found: Vec<(&str, Cloud)> = parsed
            .iter()
            .map(|emulated| (emulated.name.as_str(), emulated.cloud))
            .collect();
        assert_eq!(
            found,
            [
                ("aws", Cloud::Aws),
                ("gcd", Cloud::Gcp),
                ("digitalOcean", Cloud::DigitalOcean),
                ("fra", Cloud::Metal)
            ]
        );
    }
}
