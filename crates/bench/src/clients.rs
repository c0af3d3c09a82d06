//! Many clients behind one proxy: their total time, beside that of a plain fetcher for the same bytes.
//!
//! An emulated client is Esker's own network code with its own limits and connections, without hashing, inflation and
//! cache, which clients do on nodes of their own. It requests everything at once and leaves the number of concurrent
//! requests to that code.

pub mod plain;

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::mpsc;

use anyhow::{Context, Result, ensure};
use esker_store::{Callback, Engine, EngineOptions, Fetch, Priority, StoreError, Stored, Urgency, connect};
use rustix::process::{Pid, Resource, Rlimit, getrlimit, setrlimit};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

use crate::conditions::Conditions;
use crate::proxied::{self, Plan, Report, Turns};
use crate::serve::{self, Served};
use esker_testkit::soak::Random;

/// Maximum size of an object in bytes, above that of any chunk, compressed or not.
const OBJECT_MAX: u64 = 64 << 20;

/// Measures all methods in turns, after a run that fills the proxy's cache.
///
/// `requests` is the maximum number of concurrent requests of a client; `None` for as many as a mount makes.
pub fn run(plan: &Plan, requests: Option<usize>, mut say: impl FnMut(&str)) -> Result<Report> {
    raise_descriptor_limit()?;
    let conditions = Conditions::now(&[&plan.esker, "squid"]);
    let objects = choose(&plan.repository, plan.bytes)?;
    let bytes: u64 = objects.iter().map(|object| object.bytes).sum();
    let served = Served::start(&plan.esker, &plan.repository)?;
    // With room to spare: evicted objects would be fetched again.
    let (squid, address) = proxied::squid(serve::address(&served.url)?, 2 * bytes + (64 << 20));
    set_apart(squid.pid())?;
    let url = serve::at(&served.url, address)?;
    say(&format!("{} objects, {} MB, into the proxy", objects.len(), bytes / 1_000_000));
    plain::fetch(address, &url, &objects, 1, 4)?;
    let names = [format!("{} clients", plan.clients), format!("{} plain connections", plan.connections)];
    let mut turns = Turns::default();
    for repetition in 0..plan.repetitions {
        say(&format!("{} of {}", repetition + 1, plan.repetitions));
        for way in Turns::order(repetition) {
            turns.run(way, squid.pid(), || match way {
                0 => emulate(&url, &objects, plan.clients, requests),
                _ => plain::fetch(address, &url, &objects, plan.clients, plan.connections),
            })?;
        }
    }
    let ways = turns.ways(names);
    Ok(Report { conditions, clients: plan.clients, objects: objects.len(), bytes, ways })
}

/// Pins a process to the first processor, and this thread and its children to the others; does nothing on a
/// single processor.
fn set_apart(pid: u32) -> Result<()> {
    let mut others = sched_getaffinity(None)?;
    let first = (0..CpuSet::MAX_CPU).find(|cpu| others.is_set(*cpu));
    let (Some(first), Some(pid)) = (first, Pid::from_raw(pid.cast_signed())) else { return Ok(()) };
    if others.count() < 2 {
        return Ok(());
    }
    let mut its = CpuSet::new();
    its.set(first);
    others.unset(first);
    sched_setaffinity(Some(pid), &its).context("can't give the proxy a processor of its own")?;
    sched_setaffinity(None, &others).context("can't leave a processor to the proxy")
}

/// An object of the repository.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Object {
    /// Path below the repository.
    pub path: String,
    /// Stored size in bytes.
    pub bytes: u64,
}

/// Selects objects of a repository in a fixed random order, up to this many bytes.
pub(crate) fn choose(repository: &Path, bytes: u64) -> Result<Vec<Object>> {
    let repository = folder_of(repository)?;
    let data = repository.join("data");
    let mut all = Vec::new();
    for folder in fs::read_dir(&data).with_context(|| format!("can't read {}", data.display()))? {
        let folder = folder?;
        let prefix = folder.file_name().into_string().unwrap_or_default();
        // Objects are in folders named after the first byte of their hash; other folders hold unfinished files.
        if prefix.len() != 2 {
            continue;
        }
        for entry in fs::read_dir(folder.path())? {
            let entry = entry?;
            let name = entry.file_name().into_string().unwrap_or_default();
            all.push(Object { path: format!("data/{prefix}/{name}"), bytes: entry.metadata()?.len() });
        }
    }
    // Folders list in any order.
    all.sort_by(|a, b| a.path.cmp(&b.path));
    let mut random = Random(0);
    let (mut chosen, mut sum) = (Vec::new(), 0);
    while sum < bytes && !all.is_empty() {
        let object = all.swap_remove(random.below(all.len()));
        sum += object.bytes;
        chosen.push(object);
    }
    ensure!(!chosen.is_empty(), "{} has no objects", data.display());
    Ok(chosen)
}

/// Returns the folder of the repository: `folder` itself or the only repository in it.
fn folder_of(folder: &Path) -> Result<PathBuf> {
    if folder.join("data").is_dir() {
        return Ok(folder.to_owned());
    }
    let entries = fs::read_dir(folder).with_context(|| format!("can't read {}", folder.display()))?;
    let mut found = entries.flatten().map(|entry| entry.path()).filter(|path| path.join("data").is_dir());
    found.next().with_context(|| format!("{} holds no repository", folder.display()))
}

/// Starts this many clients that fetch all objects concurrently, each for itself.
fn emulate(url: &str, objects: &[Object], clients: usize, requests: Option<usize>) -> Result<()> {
    let mut options = EngineOptions::default();
    options.http.connections_near = requests.unwrap_or(options.http.connections_near);
    let (answers, answered) = mpsc::channel();
    let mut engines = Vec::new();
    for _ in 0..clients {
        let engine = Engine::start(options.clone())?;
        let source = connect(&engine, url)?;
        for object in objects {
            let (answers, expected) = (answers.clone(), object.bytes);
            let mut fetch = Fetch::new(object.path.clone(), object.path.clone(), OBJECT_MAX);
            fetch.priority = Priority::new(Urgency::Prefetch);
            source.fetch(
                fetch,
                Callback::new(move |outcome: Result<Stored, StoreError>| {
                    // After a failure the receiver is gone.
                    let _ = answers.send(outcome.map(|stored| stored.len() == expected));
                }),
            );
        }
        engines.push((engine, source));
    }
    drop(answers);
    let mut left = clients * objects.len();
    for outcome in &answered {
        ensure!(outcome?, "an object has another size than in the repository");
        left -= 1;
        if left == 0 {
            return Ok(());
        }
    }
    anyhow::bail!("{left} answers are missing")
}

/// Raises the limit of open files: fifty clients need more connections than the usual limit.
pub(crate) fn raise_descriptor_limit() -> Result<()> {
    let Rlimit { maximum, .. } = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum })
        .context("can't raise the limit of open files")
}

#[cfg(test)]
mod tests;
