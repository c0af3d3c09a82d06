//! Probes whether the conditional puts of a server are atomic.
//!
//! Several writers race for one file, and exactly one may win. Then several writers add to one file, each to what it read:
//! no addition may be lost. This also notices servers that keep the version of a file apart from its content, and tell
//! the new version with the old content for a moment.

use std::cell::RefCell;
use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::path::Path;
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use esker_store::{RealDisk, StorageProblem, make_dirs, persist};
use futures_util::future::join_all;

use super::failure::Failure;
use super::requests::{Condition, FileKind, ReadFailure, Requests, Version};

/// Number of writers in a race.
const WRITERS: usize = 12;
/// Number of races for creating a file, and again for updating it.
const RACES: usize = 3;
/// Number of times that a race is repeated in which no request was answered.
const AGAIN_MAX: usize = 3;
/// Number of writers that add to one file.
const ADDERS: usize = 8;
/// Number of additions of each of them.
const ADDITIONS: usize = 8;
/// Number of attempts of each of them; another one succeeds in nearly every attempt that fails.
const ATTEMPTS: u32 = 500;
/// Maximum size of the file that is raced for.
const FILE_MAX: u64 = 1 << 10;
/// Name of the file that remembers a verdict.
const REMEMBERED: &str = "conditional-puts";
/// Time for which a verdict is believed: the server's software changes.
const BELIEVED: Duration = Duration::from_secs(30 * 86_400);

/// Result of a race.
enum Race {
    /// Exactly one writer won; the version of its file.
    Won(Version),
    /// The server is not atomic, for this reason.
    Unfair(String),
    /// No writer won.
    Void,
}

/// Fails with [`StorageProblem::NotAtomic`] unless exactly one of several racing writers wins, in each of several races.
pub(crate) async fn probe(requests: &Requests) -> Result<(), StorageProblem> {
    let name = format!(".esker/probe-{:016x}", random());
    let files: Vec<String> = (0..RACES).map(|race| format!("{name}-{race}")).collect();
    let mut verdict = Ok(());
    for file in &files {
        verdict = race_for(requests, file).await;
        if verdict.is_err() {
            break;
        }
    }
    if verdict.is_ok() {
        verdict = add_at_once(requests, &files[0]).await;
    }
    let removed = requests.delete(&files).await;
    verdict.and(removed)
}

/// Returns a number that others don't choose at the same time.
pub(crate) fn random() -> u64 {
    RandomState::new().hash_one(std::process::id())
}

async fn race_for(requests: &Requests, file: &str) -> Result<(), StorageProblem> {
    let created = settle(requests, file, &Condition::Missing, "creating").await?;
    settle(requests, file, &Condition::Is(created), "replacing").await?;
    Ok(())
}

async fn settle(
    requests: &Requests,
    file: &str,
    condition: &Condition,
    doing: &'static str,
) -> Result<Version, StorageProblem> {
    for _ in 0..AGAIN_MAX {
        match race(requests, file, condition, doing).await? {
            Race::Won(version) if version.e_tag.is_none() && version.version.is_none() => {
                return Err(StorageProblem::NotAtomic("the server gives files no version (ETag)".to_owned()));
            }
            Race::Won(version) => return Ok(version),
            Race::Unfair(reason) => return Err(StorageProblem::NotAtomic(reason)),
            Race::Void => {}
        }
    }
    Err(StorageProblem::NotAtomic(format!(
        "when {doing} a file, none of {WRITERS} writers won, {AGAIN_MAX} times"
    )))
}

async fn race(
    requests: &Requests,
    file: &str,
    condition: &Condition,
    doing: &'static str,
) -> Result<Race, StorageProblem> {
    let content = |writer: usize| Bytes::from(format!("{doing}, writer {writer}"));
    let writers = (0..WRITERS).map(|writer| {
        let bytes = content(writer);
        async move { requests.put_if(file, &bytes, condition.clone()).await }
    });
    let outcomes = join_all(writers).await;
    let winners: Vec<usize> = (0..WRITERS).filter(|writer| outcomes[*writer].is_ok()).collect();
    let mut problem = None;
    for outcome in outcomes {
        match outcome {
            Err(Failure::Unsupported(said)) => {
                return Ok(Race::Unfair(format!("the server doesn't know conditional puts: {said}")));
            }
            Err(Failure::Problem(found)) => problem = Some(found),
            Ok(()) | Err(Failure::Condition | Failure::Missing) => {}
        }
    }
    let found = match requests.get(file, FILE_MAX).await {
        Ok(found) => found,
        Err(ReadFailure::TooLarge) => None,
        Err(ReadFailure::Problem(problem)) => return Err(problem),
    };
    let stored = found.as_ref().and_then(|(bytes, _)| (0..WRITERS).find(|writer| content(*writer) == *bytes));
    Ok(match (winners.as_slice(), stored, found) {
        ([winner], Some(writer), Some((_, version))) if *winner == writer => Race::Won(version),
        // The answer to the winner was lost.
        ([], Some(_), Some((_, version))) => Race::Won(version),
        ([], ..) => match problem {
            Some(problem) => return Err(problem),
            None => Race::Void,
        },
        (all, ..) if all.len() == WRITERS => {
            Race::Unfair("the server ignores the conditions of puts".to_owned())
        }
        ([_], ..) => {
            Race::Unfair(format!("when {doing} a file, its content is not that of the writer that won"))
        }
        (several, ..) => {
            let number = several.len();
            Race::Unfair(format!("when {doing} a file, {number} of {WRITERS} writers won that wrote at once"))
        }
    })
}

/// Lets writers add to one file at once.
async fn add_at_once(requests: &Requests, file: &str) -> Result<(), StorageProblem> {
    requests.put(file, Bytes::new(), FileKind::Root).await?;
    let seen = RefCell::default();
    let adders = (0..ADDERS).map(|adder| add(requests, file, b'a' + adder as u8, &seen));
    join_all(adders).await.into_iter().collect::<Result<(), _>>()?;
    let (all, _) = read(requests, file).await?;
    let wanted = ADDERS * ADDITIONS;
    match all.len() == wanted {
        true => Ok(()),
        false => Err(StorageProblem::NotAtomic(format!(
            "of {wanted} changes of {ADDERS} writers that wrote at once, the file has {}",
            all.len()
        ))),
    }
}

/// Contents of a file by version.
type Seen = RefCell<HashMap<(Option<String>, Option<String>), Bytes>>;

/// Adds a letter to a file several times, each time to what it has.
async fn add(requests: &Requests, file: &str, letter: u8, seen: &Seen) -> Result<(), StorageProblem> {
    let mut left = ADDITIONS;
    let mut tried: Option<Bytes> = None;
    let mut last = None;
    for _ in 0..ATTEMPTS {
        let (content, version) = read(requests, file).await?;
        let key = (version.e_tag.clone(), version.version.clone());
        if *seen.borrow_mut().entry(key).or_insert_with(|| content.clone()) != content {
            return Err(StorageProblem::NotAtomic(
                "the server tells one version (ETag) of two contents".to_owned(),
            ));
        }
        // The answer to the attempt before was lost.
        if tried.take().is_some_and(|tried| content.starts_with(&tried)) {
            left -= 1;
        }
        if left == 0 {
            return Ok(());
        }
        let added = Bytes::from([&content[..], &[letter]].concat());
        match requests.put_if(file, &added, Condition::Is(version)).await {
            Ok(()) => left -= 1,
            Err(Failure::Unsupported(said)) => return Err(StorageProblem::NotAtomic(said)),
            Err(Failure::Problem(problem)) if !problem.may_pass() => return Err(problem),
            Err(failure) => {
                tried = Some(added);
                last = Some(failure);
            }
        }
        if left == 0 {
            return Ok(());
        }
    }
    Err(last.map_or_else(|| StorageProblem::Unavailable("no attempt was made".to_owned()), Failure::problem))
}

async fn read(requests: &Requests, file: &str) -> Result<(Bytes, Version), StorageProblem> {
    match requests.get(file, FILE_MAX).await {
        Ok(Some(found)) => Ok(found),
        Ok(None) => Err(StorageProblem::NotAtomic("a file that was written is missing".to_owned())),
        Err(ReadFailure::TooLarge) => {
            Err(StorageProblem::NotAtomic("the file has what was not written".to_owned()))
        }
        Err(ReadFailure::Problem(problem)) => Err(problem),
    }
}

/// Returns whether a probe of this place succeeded lately, according to the state of the publisher.
pub(crate) fn is_remembered(state: &Path, place: &str) -> bool {
    let path = state.join(REMEMBERED);
    let modified = std::fs::metadata(&path).and_then(|facts| facts.modified());
    let age = modified.ok().and_then(|modified| SystemTime::now().duration_since(modified).ok());
    let text = esker_store::read_file(&RealDisk::PRIVATE, &path, FILE_MAX);
    age.is_some_and(|age| age < BELIEVED)
        && text.ok().flatten().is_some_and(|text| text == remembered(place).as_bytes())
}

/// Remembers that a probe of this place succeeded. A failure costs another probe.
pub(crate) fn remember(state: &Path, place: &str) {
    let disk = RealDisk::PRIVATE;
    let written = make_dirs(&disk, state)
        .and_then(|()| persist(&disk, &state.join(REMEMBERED), remembered(place).as_bytes()));
    if let Err(error) = written {
        tracing::debug!("can't remember the probe of {place}: {error}");
    }
}

fn remembered(place: &str) -> String {
    format!("1 atomic {place}\n")
}
