//! Reads the order within a group, and hooks, from specs and from template defaults.

use drover_core::{
    Error, Result,
    error::Violation,
    spec::{DEFAULT_HOOK_TIMEOUT, Hook, Lifecycle, Management, SoleWriter},
};
use drover_proto::platform::v1 as platform;

use crate::value;

/// Converts the order within a group. `None` if not specified.
///
/// # Errors
///
/// `Invalid` for an unknown number.
pub fn management(field: &str, from: i32) -> Result<Option<Management>> {
    use platform::ManagementPolicy as Wire;
    match Wire::try_from(from) {
        Ok(Wire::Unspecified) => Ok(None),
        Ok(Wire::OrderedReady) => Ok(Some(Management::OrderedReady)),
        Ok(Wire::Parallel) => Ok(Some(Management::Parallel)),
        Err(_) => Err(Error::invalid(
            field,
            format!("{from} is not a management policy"),
        )),
    }
}

/// Converts hooks.
///
/// # Errors
///
/// `Invalid` with all invalid fields, such as an empty command or a timeout of zero.
pub fn lifecycle(field: &str, from: &platform::Lifecycle) -> Result<Lifecycle> {
    let mut wrong = Vec::new();
    let mut take = |name: &str, from: &Option<platform::LifecycleHook>| {
        let result = from
            .as_ref()
            .map(|from| hook(&format!("{field}.{name}"), from, name == "post_promote"))
            .transpose();
        result.unwrap_or_else(|error| {
            wrong.extend(error.fields().iter().cloned());
            None
        })
    };
    let pre_stop = take("pre_stop", &from.pre_stop);
    let post_promote = take("post_promote", &from.post_promote);
    let sole_writer = from.sole_writer.as_ref().map(|from| {
        let allow = take("sole_writer.allow", &from.allow);
        let revoke = take("sole_writer.revoke", &from.revoke);
        (allow, revoke, from)
    });
    let sole_writer = sole_writer.and_then(|(allow, revoke, from)| {
        if from.revoke.is_none() {
            wrong.push(Violation {
                field: format!("{field}.sole_writer.revoke"),
                description: "is missing; without it no permission would ever end".to_owned(),
            });
        }
        Some(SoleWriter {
            allow,
            revoke: revoke?,
            standbys_attribute: from.standbys_attribute.clone(),
        })
    });
    let lifecycle = Lifecycle {
        pre_stop,
        post_promote,
        sole_writer,
    };
    if wrong.is_empty() {
        Ok(lifecycle)
    } else {
        Err(Error::violations(wrong))
    }
}

fn hook(field: &str, from: &platform::LifecycleHook, promotes: bool) -> Result<Hook> {
    let mut wrong = Vec::new();
    let mut refuse = |name: &str, why: &str| {
        wrong.push(Violation {
            field: format!("{field}.{name}"),
            description: why.to_owned(),
        });
    };
    if from.exec.first().is_none_or(String::is_empty) {
        refuse("exec", "is empty; expected a command and its arguments");
    }
    let timeout = match &from.timeout {
        None => DEFAULT_HOOK_TIMEOUT,
        Some(span) => value::duration(&format!("{field}.timeout"), span)?,
    };
    if timeout.is_zero() {
        refuse("timeout", "must be above 0");
    }
    if from.fences && !promotes {
        refuse(
            "fences",
            "is for postPromote; no other hook keeps the former active node out",
        );
    }
    if wrong.is_empty() {
        Ok(Hook {
            exec: from.exec.clone(),
            timeout,
            fences: from.fences,
        })
    } else {
        Err(Error::violations(wrong))
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn hooks_have_a_command_and_a_time() {
        let wire = |exec: &[&str], seconds| platform::Lifecycle {
            pre_stop: Some(platform::LifecycleHook {
                exec: exec.iter().map(|word| (*word).to_owned()).collect(),
                timeout: seconds,
                fences: false,
            }),
            post_promote: None,
            sole_writer: None,
        };
        let span = |seconds| Some(prost_types::Duration { seconds, nanos: 0 });
        let read = lifecycle("l", &wire(&["leave", "now"], None)).unwrap();
        assert_eq!(read.pre_stop.unwrap().timeout, DEFAULT_HOOK_TIMEOUT);
        let read = lifecycle("l", &wire(&["leave"], span(7))).unwrap();
        assert_eq!(read.pre_stop.unwrap().timeout, Duration::from_secs(7));
        let error = lifecycle("l", &wire(&[], span(0))).unwrap_err();
        let fields: Vec<&str> = error.fields().iter().map(|v| v.field.as_str()).collect();
        assert_eq!(fields, ["l.pre_stop.exec", "l.pre_stop.timeout"]);
        assert!(lifecycle("l", &wire(&["leave"], span(-1))).is_err());
    }
}
