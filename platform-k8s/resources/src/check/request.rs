//! Requests about objects that exist, and lists of them.

use std::{
    collections::BTreeSet,
    time::{Duration, SystemTime},
};

use drover_core::Result;
use drover_proto::kubernetes::v1::{self as api, stream_logs_request};

use super::{Check, syntax};
pub(crate) use super::{
    configuration::{create_configuration, update_configuration},
    ingress::{create_ingress, remove_paths, upsert_paths},
    network_policy::{create_network_policy, delete_network_policies},
    pod::create_pod,
    service::create_service,
};
use crate::served::Served;

/// Most names that are waited for at once.
const MAX_NAMES: usize = 10_000;
/// Longest uid in bytes. Kubernetes makes UUIDs, but promises no form.
const MAX_UID: usize = 128;
/// Largest side of a terminal: what the protocol of exec can say.
const MAX_SIDE: u32 = 65_535;

/// What every request about one object has.
pub(crate) trait Named {
    /// How its names are written.
    const SYNTAX: fn(&str) -> Result<(), String>;

    /// Namespace and name.
    fn named(&mut self) -> (&mut String, &str);

    /// Checks what else it has.
    fn more(&self, _check: &mut Check) {}
}

/// Checks a request about one object.
pub(crate) fn named<R: Named>(mut request: R, served: &Served) -> Result<R> {
    let mut check = Check::default();
    let (namespace, name) = request.named();
    check.required("name", name, R::SYNTAX);
    check.namespace("namespace", namespace, served);
    request.more(&mut check);
    check.finish()?;
    Ok(request)
}

macro_rules! named {
    ($($request:ident: $syntax:ident $(, $more:expr)?;)*) => {
        $(impl Named for api::$request {
            const SYNTAX: fn(&str) -> Result<(), String> = syntax::$syntax;

            fn named(&mut self) -> (&mut String, &str) {
                (&mut self.namespace, &self.name)
            }

            $(fn more(&self, check: &mut Check) {
                let more: fn(&Self, &mut Check) = $more;
                more(self, check);
            })?
        })*
    };
}

named! {
    GetPodRequest: subdomain;
    DeletePodRequest: subdomain, |request, check| {
        check.seconds("grace_period", request.grace_period.as_ref(), 0);
    };
    GetServiceRequest: label;
    DeleteServiceRequest: label;
    GetNetworkPolicyRequest: subdomain;
    DeleteNetworkPolicyRequest: subdomain;
    GetConfigurationRequest: subdomain;
    DeleteConfigurationRequest: subdomain;
    GetIngressRequest: subdomain, |request, check| {
        check.known::<api::IngressBackend>("backend", request.backend);
    };
    DeleteIngressRequest: subdomain, |request, check| {
        check.known::<api::IngressBackend>("backend", request.backend);
    };
}

/// A request for the rule of a host.
pub(crate) fn get_rule(
    mut request: api::GetRuleRequest,
    served: &Served,
) -> Result<api::GetRuleRequest> {
    let mut check = Check::default();
    check.namespace("namespace", &mut request.namespace, served);
    check.required("ingress", &request.ingress, syntax::subdomain);
    check.optional("host", &request.host, syntax::host);
    check.known::<api::IngressBackend>("backend", request.backend);
    check.finish()?;
    Ok(request)
}

/// The name of a node.
pub(crate) fn node_name(name: &str) -> Result<()> {
    let mut check = Check::default();
    check.required("name", name, syntax::subdomain);
    check.finish()
}

/// A drain.
pub(crate) fn drain(request: &api::DrainNodeRequest) -> Result<()> {
    let mut check = Check::default();
    check.required("name", &request.name, syntax::subdomain);
    check.seconds("grace_period", request.grace_period.as_ref(), 0);
    check.finish()
}

/// A wait for nodes.
pub(crate) fn wait_nodes(mut request: api::WaitNodesRequest) -> Result<api::WaitNodesRequest> {
    let mut check = Check::default();
    check.selector("selector", request.selector.as_mut());
    check.names(&mut request.names);
    if request.condition.is_empty() {
        "Ready".clone_into(&mut request.condition);
    }
    check.said("condition", syntax::qualified(&request.condition));
    request.status.get_or_insert(true);
    request.min_count = request.min_count.max(1);
    check.finish()?;
    Ok(request)
}

/// A wait for pods.
pub(crate) fn wait_pods(
    mut request: api::WaitPodsRequest,
    served: &Served,
) -> Result<api::WaitPodsRequest> {
    let gone = api::PodWaitCondition::Gone as i32;
    let mut check = Check::default();
    check.namespace("namespace", &mut request.namespace, served);
    check.selector("selector", request.selector.as_mut());
    check.names(&mut request.names);
    check.uids(&mut request.uids);
    for (at, condition) in request.conditions.iter().enumerate() {
        check.set::<api::PodWaitCondition>(format!("conditions[{at}]"), *condition);
    }
    if request.conditions.is_empty() {
        request.conditions = vec![api::PodWaitCondition::Ready as i32];
    }
    request.conditions.sort_unstable();
    request.conditions.dedup();
    if request.conditions.contains(&gone) {
        if request.min_count > 0 {
            check.wrong("min_count", "does not go with GONE");
        }
    } else {
        if !request.uids.is_empty() {
            check.wrong("uids", "go with GONE only");
        }
        request.min_count = request.min_count.max(1);
    }
    check.finish()?;
    Ok(request)
}

/// The start of a command.
pub(crate) fn exec(mut start: api::ExecStart, served: &Served) -> Result<api::ExecStart> {
    let mut check = Check::default();
    check.inside(
        "start.",
        (&mut start.namespace, &start.pod, &start.container),
        served,
    );
    if start.command.first().is_none_or(String::is_empty) {
        check.wrong("start.command", "is required");
    }
    check.no_nul("start.command", &start.command);
    if let Some(size) = &start.terminal_size {
        if !start.tty {
            check.wrong("start.terminal_size", "needs tty");
        }
        if let Some(why) = wrong_size(size) {
            check.wrong("start.terminal_size", why);
        }
    }
    check.finish()?;
    Ok(start)
}

/// What is wrong with the size of a terminal.
pub(crate) fn wrong_size(size: &drover_proto::common::v1::TerminalSize) -> Option<String> {
    let good = |side: u32| (1..=MAX_SIDE).contains(&side);
    let wrong = !good(size.columns) || !good(size.rows);
    wrong.then(|| format!("expected 1 to {MAX_SIDE} columns and rows"))
}

/// A script, as the command that reads it, and its text.
pub(crate) fn script(
    mut request: api::RunScriptRequest,
    served: &Served,
) -> Result<(api::ExecStart, Vec<u8>)> {
    const SHELL: [&str; 3] = ["sh", "-s", "--"];
    let mut check = Check::default();
    check.inside(
        "",
        (&mut request.namespace, &request.pod, &request.container),
        served,
    );
    if request.script.is_empty() {
        check.wrong("script", "is required");
    }
    if request.interpreter.first().is_some_and(String::is_empty) {
        check.wrong("interpreter", "begins with an empty text");
    }
    check.no_nul("interpreter", &request.interpreter);
    check.no_nul("args", &request.args);
    check.finish()?;
    let mut command = request.interpreter;
    if command.is_empty() {
        command = SHELL.map(str::to_owned).to_vec();
    }
    command.extend(request.args);
    let start = api::ExecStart {
        namespace: request.namespace,
        pod: request.pod,
        container: request.container,
        command,
        stdin: true,
        tty: false,
        terminal_size: None,
        as_text: request.as_text,
    };
    Ok((start, request.script.into_bytes()))
}

/// A file to read.
pub(crate) fn read_file(
    mut request: api::ReadFileRequest,
    served: &Served,
) -> Result<api::ReadFileRequest> {
    let mut check = Check::default();
    check.inside(
        "",
        (&mut request.namespace, &request.pod, &request.container),
        served,
    );
    if request.path.is_empty() {
        check.wrong("path", "is required");
    } else if !request.path.starts_with('/') {
        check.wrong("path", "must begin with a slash");
    } else if request.path.contains('\0') {
        check.wrong("path", "must not contain a NUL character");
    }
    check.finish()?;
    Ok(request)
}

/// A log to read.
pub(crate) fn logs(
    mut request: api::StreamLogsRequest,
    served: &Served,
) -> Result<api::StreamLogsRequest> {
    let mut check = Check::default();
    check.inside(
        "",
        (&mut request.namespace, &request.pod, &request.container),
        served,
    );
    if request
        .tail_lines
        .is_some_and(|lines| i32::try_from(lines).is_err())
    {
        check.wrong("tail_lines", format!("must be at most {}", i32::MAX));
    }
    let (field, good) = match &request.since {
        None => ("", true),
        Some(stream_logs_request::Since::SinceTime(time)) => {
            ("since_time", SystemTime::try_from(*time).is_ok())
        }
        Some(stream_logs_request::Since::SinceDuration(span)) => {
            ("since_duration", Duration::try_from(*span).is_ok())
        }
    };
    if !good {
        check.wrong(field, "is negative or not valid");
    }
    check.finish()?;
    Ok(request)
}

impl Check {
    /// A container: namespace, pod and name.
    fn inside(
        &mut self,
        prefix: &str,
        (namespace, pod, container): (&mut String, &str, &str),
        served: &Served,
    ) {
        self.namespace(&format!("{prefix}namespace"), namespace, served);
        self.required(format!("{prefix}pod"), pod, syntax::subdomain);
        self.optional(format!("{prefix}container"), container, syntax::label);
    }

    /// Arguments are C strings. Their text is not repeated.
    fn no_nul(&mut self, field: &str, arguments: &[String]) {
        for (at, argument) in arguments.iter().enumerate() {
            if argument.contains('\0') {
                self.wrong(format!("{field}[{at}]"), "must not contain a NUL character");
            }
        }
    }

    /// Names to wait for, in order.
    fn names(&mut self, names: &mut Vec<String>) {
        if names.len() > MAX_NAMES {
            let why = format!("has {}; at most {MAX_NAMES} are allowed", names.len());
            return self.wrong("names", why);
        }
        for (at, name) in names.iter().enumerate() {
            self.required(format!("names[{at}]"), name, syntax::subdomain);
        }
        let all: BTreeSet<String> = names.drain(..).collect();
        names.extend(all);
    }

    /// Uids to wait for, in order.
    fn uids(&mut self, uids: &mut Vec<String>) {
        if uids.len() > MAX_NAMES {
            let why = format!("has {}; at most {MAX_NAMES} are allowed", uids.len());
            return self.wrong("uids", why);
        }
        for (at, uid) in uids.iter().enumerate() {
            if uid.is_empty() || uid.len() > MAX_UID {
                self.wrong(
                    format!("uids[{at}]"),
                    format!("expected 1 to {MAX_UID} bytes"),
                );
            }
        }
        uids.sort_unstable();
        uids.dedup();
    }
}
