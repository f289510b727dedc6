//! Logs of containers, in pieces as they come. What is read is neither stored nor logged.

use std::{ops::ControlFlow, pin::Pin};

use drover_core::{Error, Reason, Result};
use drover_proto::{
    common::v1::Chunk,
    kubernetes::v1::{self as api, stream_logs_request::Since},
};
use drover_resources::parts::Answers;
use futures::{AsyncBufRead, AsyncBufReadExt as _, StreamExt as _, stream};
use k8s_openapi::api::core::v1::{ContainerStatus, Pod};
use kube::api::LogParams;

use crate::{
    client::{ApiClient, Call, escape},
    convert, errors, exec,
    place::Place,
    wait::{self, Change, watch},
};

/// Largest piece in bytes.
const MAX_PIECE: usize = 64 * 1024;

/// The log of a container. With `follow` that of a container which is started again goes on in the next one.
pub(crate) async fn logs(
    client: &ApiClient,
    request: api::StreamLogsRequest,
) -> Result<Answers<Chunk>> {
    let (place, pod) =
        Place::find(client, &request.namespace, &request.pod, &request.container).await?;
    let parameters = parameters(&place, &request)?;
    let mut log = Log {
        client: client.clone(),
        call: place.call("get", "pods/log"),
        place,
        parameters,
        run: None,
        body: None,
        partial: Vec::new(),
    };
    if request.follow && !request.previous && !has_started(log.place.status(&pod)) {
        // Opened as soon as it has started, with the first piece.
        return Ok(log.stream());
    }
    if !request.follow && !has_started(log.place.status(&pod)) {
        // Of a pod without a node the API server answers an empty log.
        return Err(log.place.not_running("has not started"));
    }
    log.run = log
        .place
        .status(&pod)
        .and_then(|it| it.container_id.clone());
    let body = log.open().await;
    log.body = Some(body.map_err(|error| refused(&log.place, &pod, request.previous, error))?);
    Ok(log.stream())
}

fn parameters(place: &Place, request: &api::StreamLogsRequest) -> Result<LogParams> {
    let mut parameters = LogParams {
        container: Some(place.container.clone()),
        follow: request.follow && !request.previous,
        previous: request.previous,
        tail_lines: request.tail_lines.map(i64::from),
        timestamps: request.timestamps,
        ..LogParams::default()
    };
    match &request.since {
        Some(Since::SinceTime(time)) => {
            // Whole seconds: kube rounds up, which would leave lines out.
            let at = k8s_openapi::jiff::Timestamp::from_second(time.seconds);
            let at = at.map_err(|_| Error::invalid("since_time", "is no valid time"))?;
            parameters.since_time = Some(at);
        }
        Some(Since::SinceDuration(span)) => {
            // `sinceSeconds` takes whole seconds and must be at least 1.
            let seconds = convert::seconds("since_duration", span)?;
            parameters.since_seconds = Some(i64::from(seconds.max(1)));
        }
        None => {}
    }
    Ok(parameters)
}

type Failure = (Call, kube::Error);

/// The API server answers BadRequest for a log that does not exist.
fn refused(place: &Place, pod: &Pod, previous: bool, (call, error): Failure) -> Error {
    let missing = match &error {
        kube::Error::Api(status) => previous && status.message.contains("previous terminated"),
        _ => false,
    };
    if missing {
        return place.not_running("was never started again");
    }
    place.refused(&call, pod, error)
}

fn has_started(status: Option<&ContainerStatus>) -> bool {
    let state = status.and_then(|it| it.state.as_ref());
    let runs = state.is_some_and(|it| it.running.is_some() || it.terminated.is_some());
    runs || status.is_some_and(|it| it.restart_count > 0)
}

struct Log {
    client: ApiClient,
    call: Call,
    place: Place,
    parameters: LogParams,
    /// Id of the container whose log is read.
    run: Option<String>,
    /// `None`: to be opened, when the container that comes next has started.
    body: Option<Pin<Box<dyn AsyncBufRead + Send>>>,
    /// A line whose end has not come.
    partial: Vec<u8>,
}

impl Log {
    fn stream(self) -> Answers<Chunk> {
        stream::unfold(Some(self), |log| async {
            let mut log = log?;
            match log.next().await {
                Ok(Some(piece)) => Some((Ok(exec::chunk(&piece)), Some(log))),
                Ok(None) => None,
                Err(error) => Some((Err(error), None)),
            }
        })
        .boxed()
    }

    async fn open(&mut self) -> std::result::Result<Pin<Box<dyn AsyncBufRead + Send>>, Failure> {
        let pods = self.place.api(&self.client);
        let name = escape(&self.place.pod);
        match pods.log_stream(&name, &self.parameters).await {
            Ok(body) => Ok(Box::pin(body)),
            Err(error) => Err((self.call.clone(), error)),
        }
    }

    /// The next piece. `None` at the end.
    async fn next(&mut self) -> Result<Option<Vec<u8>>> {
        loop {
            let Some(body) = &mut self.body else {
                if !self.next_run().await? {
                    return Ok(None);
                }
                continue;
            };
            let read = body.fill_buf().await.map(<[u8]>::to_vec);
            let data = read.map_err(|error| {
                let why = errors::chain(&error);
                Error::unavailable(format!("{}: the log was cut off: {why}", self.call))
            })?;
            body.consume_unpin(data.len());
            if data.is_empty() {
                let rest = std::mem::take(&mut self.partial);
                self.body = None;
                if !rest.is_empty() {
                    return Ok(Some(rest));
                }
                if !self.parameters.follow {
                    return Ok(None);
                }
                continue;
            }
            if let Some(piece) = self.lines(&data) {
                return Ok(Some(piece));
            }
        }
    }

    /// Whole lines of what has come, as far as they fit.
    fn lines(&mut self, data: &[u8]) -> Option<Vec<u8>> {
        self.partial.extend_from_slice(data);
        let end = match self.partial.iter().rposition(|byte| *byte == b'\n') {
            Some(at) => at + 1,
            None if self.partial.len() < MAX_PIECE => return None,
            None => self.partial.len(),
        };
        let rest = self.partial.split_off(end);
        Some(std::mem::replace(&mut self.partial, rest))
    }

    /// Opens the log of the container that comes next. `false` if none comes.
    async fn next_run(&mut self) -> Result<bool> {
        if !self.parameters.follow {
            return Ok(false);
        }
        if self.run.is_some() {
            // The beginning of the next log is wanted, too.
            self.parameters.tail_lines = None;
            self.parameters.since_seconds = None;
            self.parameters.since_time = None;
        }
        let Some((pod, run)) = self.until_started().await? else {
            return Ok(false);
        };
        self.run = run;
        match self.open().await {
            Ok(body) => self.body = Some(body),
            Err((call, error)) => {
                let error = self.place.refused(&call, &pod, error);
                // It has ended again; the next one is waited for.
                if error.reason() != Reason::ContainerNotRunning {
                    return Err(error);
                }
            }
        }
        Ok(true)
    }

    /// The pod once another container runs than the last one. `None` if there will be none.
    async fn until_started(&mut self) -> Result<Option<(Pod, Option<String>)>> {
        let names = [self.place.pod.clone()];
        let pods = wait::pod_api(&self.client, &self.place.namespace);
        let config = wait::config("", &names);
        let call = self.place.call("watch", "pods");
        let mut changes = watch::follow::<Pod, _>(pods, config, call);
        let mut listed = None;
        while let Some(change) = changes.next().await {
            let pod = match change? {
                Change::Listing => {
                    listed = None;
                    continue;
                }
                Change::Listed(pod) => {
                    listed = Some(pod);
                    continue;
                }
                Change::Complete => listed.take(),
                Change::Changed(pod) => Some(pod),
                Change::Gone(_) => None,
            };
            let Some(pod) = pod else {
                return Ok(None);
            };
            if let ControlFlow::Break(next) = self.decide(&pod) {
                return Ok(next.map(|run| (pod, run)));
            }
        }
        Ok(None)
    }

    /// Whether another container has started, or none will.
    fn decide(&self, pod: &Pod) -> ControlFlow<Option<Option<String>>> {
        let status = self.place.status(pod);
        let state = status.and_then(|it| it.state.as_ref());
        let id = status.and_then(|it| it.container_id.clone());
        let started = state.is_some_and(|it| it.running.is_some() || it.terminated.is_some());
        if started && (self.run.is_none() || id != self.run) {
            return ControlFlow::Break(Some(id));
        }
        let phase = pod.status.as_ref().and_then(|it| it.phase.as_deref());
        let over = matches!(
            convert::phase(phase),
            api::PodPhase::Succeeded | api::PodPhase::Failed
        );
        let policy = pod
            .spec
            .as_ref()
            .and_then(|it| it.restart_policy.as_deref());
        let ended = state.and_then(|it| it.terminated.as_ref());
        let stays = ended.is_some_and(|ended| match policy {
            Some("Never") => true,
            Some("OnFailure") => ended.exit_code == 0,
            _ => false,
        });
        if over || stays || pod.metadata.deletion_timestamp.is_some() {
            return ControlFlow::Break(None);
        }
        ControlFlow::Continue(())
    }
}
