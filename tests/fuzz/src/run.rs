//! Executes inputs and checks each result.

use std::{
    collections::BTreeMap,
    fmt,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use drover_manifest::Manifests;
use drover_proto::platform::v1::bootstrap::UserData;
use drover_testing::needles::Needles;
use http::{Method as Verb, Request, StatusCode};
use http_body_util::Full;
use parking_lot::Mutex;
use prost_reflect::prost::Message;
use serde_json::{Value, json};
use tokio::time::Instant;
use tonic::Code;

use crate::{
    http::Client,
    messages::{Random, framed},
    texts,
    watch::{memory, panicked, panics},
    world::{SECRET, World, examples},
};

/// Inputs after which the servers are replaced: memory held for these inputs must be released with them, or is leaked.
const EPOCH: u64 = 20_000;
/// Inputs after which objects needed by the other inputs are restored.
const TEND: u64 = 500;
/// Epochs until memory usage is stable: pools are filled, and the allocator has cached its share.
const WARM: usize = 3;
/// Tolerated growth of memory after that: the allocator's caches vary from epoch to epoch.
const ROOM: u64 = 192 << 20;
const PROVISION: &str = "/drover.platform.v1.PlatformService/Provision";

/// An entry point for inputs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Surface {
    /// Every method of every gRPC service.
    Calls,
    /// The manifest parser.
    Manifests,
    /// User data that is a template, rendered in a worker process.
    Templates,
    /// The HTTP API of Replicante.
    Replicante,
}

impl Surface {
    pub const ALL: [Self; 4] = [
        Self::Calls,
        Self::Manifests,
        Self::Templates,
        Self::Replicante,
    ];

    /// Share of the inputs in percent.
    fn share(self) -> u64 {
        match self {
            Self::Calls => 40,
            Self::Manifests => 25,
            Self::Templates => 10,
            Self::Replicante => 25,
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::Calls => "calls",
            Self::Manifests => "manifests",
            Self::Templates => "templates",
            Self::Replicante => "replicante",
        }
    }
}

impl std::str::FromStr for Surface {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut all = Self::ALL.into_iter();
        let found = all.find(|surface| surface.name() == text);
        found.ok_or_else(|| "expected calls, manifests, templates or replicante".to_owned())
    }
}

impl fmt::Display for Surface {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Parameters of a run.
#[derive(Clone, Debug)]
pub struct Plan {
    pub seed: u64,
    /// Number of the first input.
    pub first: u64,
    /// Number of inputs over all surfaces.
    pub inputs: u64,
    pub surfaces: Vec<Surface>,
    /// Number of concurrent inputs.
    pub jobs: usize,
    /// Maximum time for a response.
    pub longest: Duration,
}

/// Statistics of a run.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// Number of inputs of each surface, and the time they took.
    pub done: BTreeMap<Surface, (u64, Duration)>,
    /// Number of responses of each kind.
    pub answers: BTreeMap<String, u64>,
    /// Resident memory after each epoch, in bytes.
    pub memory: Vec<u64>,
    /// The slowest response: its duration and its input.
    pub slowest: (Duration, String),
}

/// A violated expectation.
#[derive(Clone, Debug)]
pub struct Finding {
    pub surface: Surface,
    pub number: u64,
    pub seed: u64,
    pub what: String,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (surface, number, seed) = (self.surface, self.number, self.seed);
        write!(
            f,
            "{surface}, input {number}: {}\nagain: --seed {seed} --first {number} --inputs 1 --surface {surface}",
            self.what
        )
    }
}

impl std::error::Error for Finding {}

/// Runs the fuzzer. Returns the first finding as the error.
pub async fn run(plan: Plan) -> Result<Report, Finding> {
    panics();
    let mut report = Report::default();
    let weight: u64 = plan.surfaces.iter().map(|it| it.share()).sum();
    let mut done = 0;
    while done < plan.inputs {
        let epoch = EPOCH.min(plan.inputs - done);
        let world = Arc::new(World::start().await);
        for surface in &plan.surfaces {
            // The same in every epoch, and at least one.
            let count = (epoch * surface.share()).div_ceil(weight);
            let from = plan.first + done;
            let began = Instant::now();
            let answered = part(&plan, &world, *surface, from..from + count).await?;
            let (inputs, time) = report.done.entry(*surface).or_default();
            *inputs += count;
            *time += began.elapsed();
            report.slowest = std::mem::take(&mut report.slowest).max(answered.slowest);
            for (answer, count) in answered.answers {
                *report.answers.entry(answer).or_default() += count;
            }
        }
        if let Some(world) = Arc::into_inner(world) {
            world.stop().await;
        }
        done += epoch;
        report.memory.push(memory());
        grown(&plan, &report)?;
    }
    Ok(report)
}

/// Checks that memory stays within bounds after the warm-up.
fn grown(plan: &Plan, report: &Report) -> Result<(), Finding> {
    let (Some(warm), Some(now)) = (
        report.memory[..WARM.min(report.memory.len())].iter().max(),
        report.memory.last(),
    ) else {
        return Ok(());
    };
    let bound = warm + warm / 2 + ROOM;
    if *now <= bound {
        return Ok(());
    }
    Err(Finding {
        surface: plan.surfaces[0],
        number: plan.first,
        seed: plan.seed,
        what: format!("memory was {warm} bytes and is {now}: {:?}", report.memory),
    })
}

#[derive(Default)]
struct Answered {
    answers: BTreeMap<String, u64>,
    slowest: (Duration, String),
}

/// Runs inputs of one surface.
async fn part(
    plan: &Plan,
    world: &Arc<World>,
    surface: Surface,
    numbers: std::ops::Range<u64>,
) -> Result<Answered, Finding> {
    let next = Arc::new(AtomicU64::new(numbers.start));
    let sum = Arc::new(Mutex::new(Answered::default()));
    let mut jobs = tokio::task::JoinSet::new();
    for _ in 0..plan.jobs {
        let (world, next, sum, seed, longest) = (
            world.clone(),
            next.clone(),
            sum.clone(),
            plan.seed,
            plan.longest,
        );
        jobs.spawn(async move {
            let mut worker = Worker::new(world, surface);
            loop {
                let number = next.fetch_add(1, Ordering::Relaxed);
                if number >= numbers.end {
                    return Ok(());
                }
                let found = |what| Finding {
                    surface,
                    number,
                    seed,
                    what,
                };
                let (answer, took) = worker.one(seed, number, longest).await.map_err(found)?;
                if let Some(panic) = panicked() {
                    return Err(found(format!("a panic at about this input: {panic}")));
                }
                let mut sum = sum.lock();
                if took > sum.slowest.0 {
                    sum.slowest = (took, format!("{surface}, input {number}, {answer}"));
                }
                *sum.answers
                    .entry(format!("{surface} {answer}"))
                    .or_default() += 1;
            }
        });
    }
    while let Some(ended) = jobs.join_next().await {
        match ended {
            Ok(outcome) => outcome?,
            Err(error) => {
                return Err(Finding {
                    surface,
                    number: next.load(Ordering::Relaxed),
                    seed: plan.seed,
                    what: format!("{error}: {}", panicked().unwrap_or_default()),
                });
            }
        }
    }
    drop(jobs);
    Ok(std::mem::take(&mut *sum.lock()))
}

/// One of the concurrent workers.
struct Worker {
    world: Arc<World>,
    surface: Surface,
    http: Client,
    manifests: Vec<String>,
    documents: Vec<Value>,
}

impl Worker {
    fn new(world: Arc<World>, surface: Surface) -> Self {
        let mut manifests = examples();
        manifests.extend(secret_manifests());
        Self {
            http: Client::new(world.http),
            documents: documents(),
            manifests,
            world,
            surface,
        }
    }

    /// Sends one input. Returns the kind of response and the time it took. Fails if an expectation is violated.
    async fn one(
        &mut self,
        seed: u64,
        number: u64,
        longest: Duration,
    ) -> Result<(String, Duration), String> {
        // Decorrelates the generators of adjacent numbers.
        let mut mixed = fastrand::Rng::with_seed(seed ^ number.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        let rng = mixed.fork();
        let began = Instant::now();
        let answer = tokio::time::timeout(longest + longest, self.ask(rng, number, longest));
        let answer = answer
            .await
            .map_err(|_| format!("no answer within {longest:?}"))??;
        let took = began.elapsed();
        // The timeout cannot interrupt a future that never yields.
        if took > longest {
            return Err(format!("{answer} took {took:?}"));
        }
        if took > longest {
            return Err(format!("{answer} took {took:?}"));
        }
        Ok((answer, took))
    }

    async fn ask(
        &mut self,
        rng: fastrand::Rng,
        number: u64,
        longest: Duration,
    ) -> Result<String, String> {
        match self.surface {
            Surface::Calls => {
                if number.is_multiple_of(TEND) {
                    self.world.tend().await;
                }
                self.call(rng, longest).await
            }
            Surface::Manifests => self.manifest(rng),
            Surface::Templates => self.template(rng).await,
            Surface::Replicante => self.replicante(rng).await,
        }
    }

    async fn call(&self, rng: fastrand::Rng, longest: Duration) -> Result<String, String> {
        let world = &self.world;
        let mut random = Random::new(rng, &world.words);
        let method = random.pick(&world.methods);
        let name = method
            .input
            .as_ref()
            .map(prost_reflect::MessageDescriptor::full_name)
            .unwrap_or_default();
        let input = random.input(method.input.as_ref(), world.valid(name));
        let what = || {
            format!(
                "{} {}: {}",
                input.what,
                method.path,
                hexadecimal(&input.body)
            )
        };
        let answer = method.call(input.body.clone(), &world.needles);
        let answer = tokio::time::timeout(longest, answer).await;
        let answer = answer.map_err(|_| format!("no answer within {longest:?}: {}", what()))?;
        let answer = answer.map_err(|error| format!("{error}: {}", what()))?;
        if let Some(told) = answer.told {
            return Err(format!("a secret is told: {told}: {}", what()));
        }
        let defect = matches!(answer.code, Code::Unknown | Code::DataLoss)
            || input.valid && answer.code == Code::Internal;
        if defect {
            return Err(format!("{:?}, {}: {}", answer.code, answer.message, what()));
        }
        Ok(format!("{:?}", answer.code))
    }

    fn manifest(&self, mut rng: fastrand::Rng) -> Result<String, String> {
        let at = rng.usize(0..self.manifests.len());
        let mut text = self.manifests[at].clone();
        texts::change(&mut rng, &mut text, &self.manifests);
        let said = objections(&text);
        if keeps_secrets(&text, &self.world.needles)
            && let Some(told) = self.world.needles.find(said.as_bytes())
        {
            return Err(format!("a secret is told: {told}\nof\n{text}"));
        }
        Ok(if said.is_empty() { "fine" } else { "refused" }.to_owned())
    }

    async fn template(&self, mut rng: fastrand::Rng) -> Result<String, String> {
        let world = &self.world;
        let mut request = world.provision.clone();
        request.request_id = uuid::Uuid::from_u128(rng.u128(..)).to_string();
        // Other inputs may have taken over the shard.
        if let Some(fence) = &mut request.fence {
            fence.store_id.clone_from(&request.request_id);
        }
        let text = texts::template(&mut rng);
        if let Some(bootstrap) = &mut request.bootstrap {
            bootstrap.user_data = Some(UserData::Text(text.clone()));
        }
        let mut methods = world.methods.iter();
        let method = methods
            .find(|method| method.path == PROVISION)
            .ok_or("no method")?;
        let answer = method
            .call(framed(&request.encode_to_vec()), &world.needles)
            .await;
        let answer = answer.map_err(|error| format!("{error}: {text}"))?;
        if let Some(told) = answer.told {
            return Err(format!("a secret is told: {told}: {text}"));
        }
        match answer.code {
            Code::Ok | Code::InvalidArgument | Code::FailedPrecondition => {
                Ok(format!("{:?}", answer.code))
            }
            code => Err(format!("{code:?}, {}: {text}", answer.message)),
        }
    }

    async fn replicante(&mut self, mut rng: fastrand::Rng) -> Result<String, String> {
        let mut document = self.documents[rng.usize(0..self.documents.len())].clone();
        for _ in 0..rng.u32(0..4) {
            texts::change_json(&mut rng, &mut document);
        }
        let mut text = document.to_string();
        if rng.u32(0..4) == 0 {
            texts::change(&mut rng, &mut text, &[]);
        }
        let mut one = |of: &[&'static str]| of[rng.usize(0..of.len())];
        let path = one(&["/provision", "/provision", "/deprovision", "/discover"]);
        let verb = match (
            path,
            one(&["usual", "usual", "usual", "PUT", "HEAD", "OPTIONS"]),
        ) {
            ("/discover", "usual") => Verb::GET,
            (_, "usual") => Verb::POST,
            (_, other) => other.parse().unwrap_or_default(),
        };
        let kind = one(&[
            "application/json",
            "application/json",
            "Application/JSON; charset=utf-8",
            "text/plain",
            "application/grpc",
            "",
        ]);
        let key = one(&[
            "",
            "",
            "again",
            "6f9619ff-8b86-d011-b42d-00c04fc964ff",
            "\u{7f}x",
        ]);
        let mut request = Request::builder()
            .method(verb.clone())
            .uri(path)
            .header("host", self.world.http.to_string())
            .header("content-type", kind);
        if let Ok(key) = http::HeaderValue::from_str(key)
            && !key.is_empty()
        {
            request = request.header("idempotency-key", key);
        }
        let request = request.body(Full::from(Bytes::from(text.clone())));
        let request = request.map_err(|error| error.to_string())?;
        let answer = self.http.ask(request).await;
        let answer = answer.map_err(|error| format!("{error}: {verb} {path} {kind}: {text}"))?;
        let status = answer.status();
        let said = String::from_utf8_lossy(answer.body());
        let defect = [
            StatusCode::INTERNAL_SERVER_ERROR,
            StatusCode::NOT_FOUND,
            StatusCode::GATEWAY_TIMEOUT,
        ]
        .contains(&status);
        if defect {
            return Err(format!("{status} {said}: {verb} {path} {kind}: {text}"));
        }
        if let Some(told) = self.world.needles.find(answer.body()) {
            return Err(format!("a secret is told: {told}: {verb} {path}: {text}"));
        }
        Ok(status.as_u16().to_string())
    }
}

/// Diagnostics of a manifest, as `drover validate` prints them. Empty if there are none.
fn objections(text: &str) -> String {
    let mut manifests = Manifests::default();
    manifests.add_text("manifest.yaml", "/nowhere".into(), text.to_owned());
    let diagnostics = manifests.decode(None).diagnostics;
    if diagnostics.is_empty() {
        return String::new();
    }
    diagnostics.render("")
}

/// Whether the parser can recognize the secrets of a text: their keys are present, with nothing inserted between a key
/// and its value.
fn keeps_secrets(text: &str, needles: &Needles) -> bool {
    let mut lines = text
        .lines()
        .filter(|line| needles.find(line.as_bytes()).is_some());
    lines.all(|line| {
        ["stringData: {", "userData: "]
            .iter()
            .any(|key| line.contains(key))
    })
}

fn secret_manifests() -> [String; 2] {
    [
        format!(
            "apiVersion: drover.dev/v1\nkind: Secret\nmetadata:\n  name: orders\nstringData: {{k: {}}}\n",
            json!(SECRET)
        ),
        format!(
            "apiVersion: drover.dev/v1\nkind: Cluster\nmetadata: {{name: orders}}\nspec:\n  platform: sim\n  bootstrap:\n    \
             userData: {}\n  groups:\n    db: {{size: 2}}\n",
            json!(SECRET)
        ),
    ]
}

/// Documents of Replicante, in the formats of the SDK and of the specification.
fn documents() -> Vec<Value> {
    vec![
        json!({
            "cluster": {
                "attributes": {"mode": "replica-set", "tier": {"disk": "ssd", "size": 3}},
                "cluster_id": "replicated",
                "store": "mongodb",
                "store_version": "4.0.5",
                "nodes": {
                    "data": {
                        "attributes": {"tier": {"size": null}},
                        "desired_count": 3,
                        "node_class": "large",
                        "store_version": "4.2.1"
                    },
                    "log": {"attributes": {}, "desired_count": 1, "node_class": "small", "store_version": null}
                }
            },
            "provision": {"count": 2, "node_group_id": "data"}
        }),
        json!({
            "cluster": {
                "attributes": {},
                "cluster_id": "replicated",
                "store": "mongodb",
                "store_version": "4.0.5",
                "nodes": {"data": {"attributes": {}, "desired_count": 3, "node_class": "large", "version": "4.2.1"}}
            },
            "provision": {"node_group_id": "data"}
        }),
        json!({"cluster_id": "replicated", "node_id": "data-0"}),
    ]
}

fn hexadecimal(bytes: &[u8]) -> String {
    let shown = &bytes[..bytes.len().min(2_000)];
    shown.iter().map(|byte| format!("{byte:02x}")).collect()
}
