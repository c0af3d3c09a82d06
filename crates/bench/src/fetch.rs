//! Objects through the store, without a mount: throughput of prefetches, and how they delay demanded objects.

use std::path::Path;
use std::sync::mpsc::{Sender, channel};
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use esker_format::compress::{Compression, decompress};
use esker_format::hash::ContentHash;
use esker_format::manifest;
use esker_format::object::{ObjectKind, ObjectName};
use esker_store::{
    Cache, CacheOptions, Callback, CancelToken, Engine, EngineOptions, Fetch, ObjectRequest, ObjectStore,
    Objects, StoreStatus, connect,
};
use serde::Serialize;

use crate::conditions::Conditions;
use crate::statistics::{Estimate, median, median_of};
use crate::sys::Used;
use crate::table;
use esker_testkit::soak::Random;

/// Maximum plain size of a measured object in bytes.
const PLAIN_MAX: u64 = 1 << 30;
/// Maximum size of a manifest in bytes.
const MANIFEST_MAX: u64 = 64 << 10;

/// Options of the measurement.
#[derive(Clone, Debug)]
pub struct Plan {
    /// URL of the repository.
    pub url: String,
    /// The repository as a folder, to choose objects from.
    pub folder: std::path::PathBuf,
    /// Number of objects.
    pub count: usize,
    /// Maximum stored size of an object in bytes.
    pub largest: u64,
    /// Number of objects that are demanded one after the other, both alone and during prefetches.
    pub probes: usize,
    /// Maximum number of objects in a batch request, if the server offers batches.
    pub batch: usize,
    /// Number of rounds.
    pub repetitions: usize,
}

/// Results of one variant.
#[derive(Clone, Debug, Serialize)]
pub struct Measured {
    /// Name of the variant.
    pub way: &'static str,
    /// Seconds until all objects had arrived.
    pub seconds: Estimate,
    /// Processor time of this process for each object, in milliseconds.
    pub cpu_ms: Estimate,
    /// Median latency of the probes in milliseconds.
    pub probe_ms: Estimate,
    /// 95th percentile in milliseconds.
    pub probe_p95_ms: Estimate,
    /// Requests sent, in the last round.
    pub requests: u64,
    /// Connections opened.
    pub connections: u64,
    /// 99th percentile of a job's wait in microseconds while a thread of the pool was idle.
    pub idle_wait_p99_us: u64,
}

/// Results of the measurement.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// Machine and programs of the measurement.
    pub conditions: Conditions,
    /// Objects of a round.
    pub objects: usize,
    /// Stored size of all objects in bytes.
    pub stored_bytes: u64,
    /// Results, one row for each variant.
    pub rows: Vec<Measured>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    /// All objects are demanded at once.
    Demand,
    /// All objects are prefetched.
    Ahead,
    /// Only the probes are requested.
    Alone,
    /// The probes are requested while all others are prefetched.
    Beside,
}

const WAYS: [(Way, &str); 4] =
    [(Way::Demand, "demanded"), (Way::Ahead, "ahead"), (Way::Alone, "alone"), (Way::Beside, "beside")];

#[derive(Default)]
struct Sample {
    seconds: Vec<f64>,
    cpu_ms: Vec<f64>,
    probe_ms: Vec<f64>,
    probe_p95_ms: Vec<f64>,
    last: StoreStatus,
}

/// Runs the measurement; the variants are interleaved, and each round starts with an empty cache and without
/// connections.
pub fn run(plan: &Plan, mut progress: impl FnMut(&str)) -> Result<Report> {
    progress("choosing objects");
    let chosen = choose(plan)?;
    let stored_bytes = chosen.iter().map(|(_, stored)| stored).sum();
    let wanted: Vec<ObjectRequest> = chosen.into_iter().map(|(wanted, _)| wanted).collect();
    let mut samples: Vec<Sample> = WAYS.iter().map(|_| Sample::default()).collect();
    for round in 0..plan.repetitions {
        for ((way, name), sample) in WAYS.iter().zip(&mut samples) {
            progress(&format!("round {} of {}, {name}", round + 1, plan.repetitions));
            once(plan, &wanted, *way, sample)?;
        }
    }
    let rows = WAYS.iter().zip(samples).map(|((_, way), sample)| Measured {
        way,
        seconds: median_of(&sample.seconds),
        cpu_ms: median_of(&sample.cpu_ms),
        probe_ms: median_of(&sample.probe_ms),
        probe_p95_ms: median_of(&sample.probe_p95_ms),
        requests: sample.last.network.requests,
        connections: sample.last.network.connections,
        idle_wait_p99_us: sample.last.work.idle.p99_us,
    });
    Ok(Report { conditions: Conditions::now(&[]), objects: plan.count, stored_bytes, rows: rows.collect() })
}

fn once(plan: &Plan, wanted: &[ObjectRequest], way: Way, sample: &mut Sample) -> Result<()> {
    let folder = tempfile::tempdir().context("no folder for the cache")?;
    let mut options = EngineOptions::default();
    options.http.batch = plan.batch;
    let engine = Engine::start(options)?;
    let cache = Cache::open(&engine, folder.path(), CacheOptions::with_quota(1 << 40))?;
    let source = connect(&engine, &plan.url)?;
    // Every mount starts with this request; its reply has the server's capabilities.
    Callback::wait(|done| source.fetch(Fetch::new(manifest::PATH, "the manifest", MANIFEST_MAX), done))?;
    let store = Objects::new(&cache, source);
    let (probes, others) = wanted.split_at(plan.probes);
    let token = CancelToken::new();
    let (told, outcomes) = channel();
    let (began, before) = (Instant::now(), Used::now().context("getrusage")?);
    match way {
        Way::Demand => others.iter().for_each(|object| store.get(object.clone(), count(&told))),
        Way::Ahead | Way::Beside => {
            others.iter().for_each(|object| store.warm(object.clone(), &token, count(&told)));
        }
        Way::Alone => {}
    }
    drop(told);
    let mut took = Vec::new();
    if matches!(way, Way::Alone | Way::Beside) {
        for probe in probes {
            let asked = Instant::now();
            Callback::wait(|done| store.get(probe.clone(), done))?;
            took.push(asked.elapsed().as_secs_f64() * 1e3);
        }
    }
    let mut came = 0;
    for outcome in outcomes {
        outcome?;
        came += 1;
    }
    ensure!(way == Way::Alone || came == others.len(), "{came} of {} objects came", others.len());
    let objects = came + took.len();
    sample.seconds.push(began.elapsed().as_secs_f64());
    let used = Used::now().context("getrusage")?.processor - before.processor;
    sample.cpu_ms.push(used.as_secs_f64() * 1e3 / objects as f64);
    took.sort_by(f64::total_cmp);
    sample.probe_ms.push(median(&took));
    sample.probe_p95_ms.push(took.get(took.len() * 19 / 20).copied().unwrap_or(f64::NAN));
    sample.last = store.status();
    Ok(())
}

fn count<T: Send + 'static>(told: &Sender<Result<(), esker_store::StoreError>>) -> Callback<T> {
    let told = told.clone();
    Callback::new(move |outcome: Result<T, _>| {
        // The receiver waits for all of them.
        let _ = told.send(outcome.map(drop));
    })
}

/// Draws objects of the repository with a fixed seed; a catalog supplies their plain sizes.
fn choose(plan: &Plan) -> Result<Vec<(ObjectRequest, u64)>> {
    let mut names = Vec::new();
    let data = plan.folder.join("data");
    for folder in list(&data)? {
        let Some(first) = folder.file_name().map(|name| name.to_string_lossy().into_owned()) else {
            continue;
        };
        for file in if first.len() == 2 { list(&folder)? } else { Vec::new() } {
            let rest = file.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
            let (hash, len) =
                (ContentHash::parse(&format!("{first}{rest}")), std::fs::metadata(&file)?.len());
            names.extend(hash.ok().filter(|_| len <= plan.largest).map(|hash| (hash, file, len)));
        }
    }
    names.sort_by_key(|(hash, ..)| *hash.digest());
    let mut random = Random(7);
    let mut chosen = Vec::new();
    while chosen.len() < plan.count + plan.probes {
        ensure!(!names.is_empty(), "{} has too few objects", plan.folder.display());
        let (hash, file, len) = names.swap_remove(random.below(names.len()));
        let stored = std::fs::read(&file)?;
        let plain = decompress(&stored, Compression::Zlib, None, PLAIN_MAX);
        let Ok(plain) = plain else { continue };
        let name = ObjectName::new(hash, ObjectKind::File);
        chosen.push((ObjectRequest::new(name, Compression::Zlib, "an object").size(plain.len() as u64), len));
    }
    Ok(chosen)
}

fn list(folder: &Path) -> Result<Vec<std::path::PathBuf>> {
    let entries = std::fs::read_dir(folder).with_context(|| format!("can't list {}", folder.display()))?;
    Ok(entries.map(|entry| entry.map(|entry| entry.path())).collect::<Result<_, _>>()?)
}

impl Report {
    /// Returns the results as a table for terminals.
    pub fn table(&self) -> String {
        let rows: Vec<Vec<String>> = self
            .rows
            .iter()
            .map(|row| {
                let range = |value: Estimate| format!("{:.2}–{:.2}", value.low, value.high);
                vec![
                    row.way.to_owned(),
                    format!("{:.2}", row.seconds.point),
                    range(row.seconds),
                    format!("{:.3}", row.cpu_ms.point),
                    format!("{:.1}", row.probe_ms.point),
                    format!("{:.1}", row.probe_p95_ms.point),
                    row.requests.to_string(),
                    row.connections.to_string(),
                    row.idle_wait_p99_us.to_string(),
                ]
            })
            .collect();
        let header =
            ["way", "s", "95 %", "CPU ms", "probe ms", "its p95", "requests", "connections", "idle p99 µs"];
        format!(
            "{}\n{} objects, {} stored bytes\n\n{}",
            self.conditions.line(),
            self.objects,
            self.stored_bytes,
            table::layout(&header, &rows)
        )
    }
}
