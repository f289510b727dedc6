//! Logs of containers, in pieces as they come. What is read is neither stored nor logged.

mod runs;

use std::pin::Pin;

use drover_core::{Error, Reason, Result};
use drover_proto::{
    common::v1::Chunk,
    kubernetes::v1::{self as api, stream_logs_request::Since},
};
use drover_resources::parts::Answers;
use futures::{AsyncBufRead, AsyncBufReadExt as _, StreamExt as _, stream};
use k8s_openapi::api::core::v1::Pod;
use kube::api::LogParams;

use self::runs::{Run, Runs};
use crate::{
    client::{ApiClient, Call, escape},
    convert, errors, exec,
    place::Place,
    wait::{self, watch},
};

/// Largest piece in bytes.
const MAX_PIECE: usize = 64 * 1024;
/// How often the log of a container that is started again and again is opened, until it is the wanted one.
const ATTEMPTS: u32 = 5;

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
        runs: Runs::new(place, &pod),
        parameters,
        body: None,
        partial: Vec::new(),
    };
    let status = log.runs.place.status(&pod);
    let started = status.is_some_and(|it| runs::has_started(it) || it.restart_count > 0);
    if request.follow && !request.previous && !started {
        // Opened as soon as it has started, with the first piece.
        return Ok(log.stream());
    }
    if !request.follow && !started {
        // Of a pod without a node the API server answers an empty log.
        return Err(log.runs.place.not_running("has not started"));
    }
    log.runs.last = log.runs.place.status(&pod).map(Run::of);
    let body = log.open_run().await;
    let place = &log.runs.place;
    log.body = Some(body.map_err(|error| refused(place, &pod, request.previous, error))?);
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
type Body = Pin<Box<dyn AsyncBufRead + Send>>;

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

struct Log {
    client: ApiClient,
    call: Call,
    runs: Runs,
    parameters: LogParams,
    /// `None`: to be opened, when the container that comes next has started.
    body: Option<Body>,
    /// A line whose end has not come.
    partial: Vec<u8>,
}

impl Log {
    fn stream(self) -> Answers<Chunk> {
        stream::unfold(Some(self), |log| async {
            let mut log = log?;
            match log.next().await {
                Ok(Some(piece)) => Some((Ok(exec::chunk(piece)), Some(log))),
                Ok(None) => None,
                Err(error) => Some((Err(error), None)),
            }
        })
        .boxed()
    }

    /// Opens the log of the last run. The API server has that of the container which runs when it is asked: one that has
    /// begun meanwhile leaves the wanted log as the previous one.
    async fn open_run(&mut self) -> std::result::Result<Body, Failure> {
        for _ in 0..ATTEMPTS {
            let body = self.open(self.parameters.clone()).await?;
            let Some(next) = self.begun_since().await else {
                return Ok(body);
            };
            if !self.runs.is_passed_over(&next) {
                let previous = LogParams {
                    previous: true,
                    follow: false,
                    ..self.parameters.clone()
                };
                if let Ok(body) = self.open(previous).await
                    && self.begun_since().await.as_ref() == Some(&next)
                {
                    return Ok(body);
                }
            }
            // The kubelet keeps the logs of two runs only.
            self.runs.last = Some(next);
        }
        self.open(self.parameters.clone()).await
    }

    /// The run that has begun since the last one, if the log is followed.
    async fn begun_since(&mut self) -> Option<Run> {
        if !self.parameters.follow {
            return None;
        }
        let pods = self.runs.place.api(&self.client);
        let pod = pods.get(&escape(&self.runs.place.pod)).await.ok()?;
        self.runs.after_last(&pod)
    }

    async fn open(&mut self, parameters: LogParams) -> std::result::Result<Body, Failure> {
        let pods = self.runs.place.api(&self.client);
        let name = escape(&self.runs.place.pod);
        match pods.log_stream(&name, &parameters).await {
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
                if self
                    .runs
                    .last
                    .as_ref()
                    .is_some_and(|run| run.is_lost(&rest))
                {
                    let why = "the kubelet cannot read it any more";
                    let call = &self.call;
                    return Err(Error::unavailable(format!(
                        "{call}: the log was cut off: {why}"
                    )));
                }
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
        if self.runs.last.is_some() {
            // The beginning of the next log is wanted, too.
            self.parameters.tail_lines = None;
            self.parameters.since_seconds = None;
            self.parameters.since_time = None;
        }
        let place = &self.runs.place;
        let pods = wait::pod_api(&self.client, &place.namespace);
        let config = wait::config("", std::slice::from_ref(&place.pod));
        let call = place.call("watch", "pods");
        let changes = watch::follow::<Pod, _>(pods, config, call);
        let Some(pod) = self.runs.until_started(changes).await? else {
            return Ok(false);
        };
        match self.open_run().await {
            Ok(body) => self.body = Some(body),
            Err((call, error)) => {
                let error = self.runs.place.refused(&call, &pod, error);
                // It has ended again; the next one is waited for.
                if error.reason() != Reason::ContainerNotRunning {
                    return Err(error);
                }
            }
        }
        Ok(true)
    }
}
