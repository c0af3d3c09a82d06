//! Administrative tasks on a cache, and their execution by its writer.

use std::os::fd::AsFd;
use std::path::PathBuf;

use esker_store::{
    Cache, CacheKey, CacheStatus, CachedObject, Cause, CheckProgress, Freed, Goal, PinSet, StoreError,
};
use serde::{Deserialize, Serialize};

use super::wire::{CacheTask, Receiver, ToWriter, VERSION, send};

/// Maximum number of objects in one message.
pub(crate) const PART: usize = 256;

/// Reply to a task: any number of these, the last of them [`CacheReply::Done`] or [`CacheReply::Failed`].
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum CacheReply {
    Report(Box<CacheReport>),
    Objects(Vec<ObjectRow>),
    Pins(Vec<PinSet>),
    Freed(Freed),
    Checked { progress: CheckProgress, damaged: Option<DamagedRow> },
    Unpinned(bool),
    Failed(String),
    Done,
}

/// The state of a cache. Field names are an interface.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CacheReport {
    /// Folder of the cache.
    #[serde(with = "crate::shown_path")]
    pub directory: PathBuf,
    /// Process id of the writer; `None` if no other process writes the cache.
    pub writer: Option<u32>,
    /// Counters of the cache.
    #[serde(flatten)]
    pub state: CacheStatus,
}

/// An object of a cache. Field names are an interface.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ObjectRow {
    /// Hash of the stored bytes, with their compression: `.z` zlib, `.s` zstd, `.p` none.
    pub object: String,
    /// Plain bytes.
    pub size: u64,
    /// Bytes of the quota.
    pub takes: u64,
    /// True if the object is in a pinned set.
    pub pinned: bool,
    /// True if the writer has it open or mapped.
    pub in_use: bool,
    /// True if the object is checked before its next use.
    pub unchecked: bool,
}

/// A damaged object. Field names are an interface.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DamagedRow {
    /// Object, as in [`ObjectRow`].
    pub object: String,
    /// Description of the damage.
    pub problem: String,
    /// True if the object was removed.
    pub removed: bool,
}

/// Serves one administrator until the connection closes, beginning with a task that was read already.
pub(crate) fn serve(receiver: &mut Receiver, cache: &Cache, first: CacheTask) -> std::io::Result<()> {
    let socket = receiver.socket().try_clone_to_owned()?;
    let mut pinning = Vec::new();
    let mut task = first;
    loop {
        let mut outcome = Ok(());
        perform(cache, task, &mut pinning, &mut |told| {
            outcome = send(socket.as_fd(), &told, None);
            outcome.is_ok()
        });
        outcome?;
        send(socket.as_fd(), &CacheReply::Done, None)?;
        task = match receiver.next()?.0 {
            ToWriter::Care { version: VERSION, task } => task,
            _ => return Err(std::io::ErrorKind::InvalidData.into()),
        };
    }
}

/// Performs a task; parts of a set to pin are collected in `pinning`. Ends early if `tell` returns `false`.
pub(crate) fn perform(
    cache: &Cache,
    task: CacheTask,
    pinning: &mut Vec<(CacheKey, u64)>,
    tell: &mut dyn FnMut(CacheReply) -> bool,
) {
    let outcome = match task {
        CacheTask::Report => {
            tell(CacheReply::Report(Box::new(report(cache))));
            Ok(())
        }
        CacheTask::List => {
            let rows: Vec<ObjectRow> = cache.objects().iter().map(ObjectRow::of).collect();
            let _ = rows.chunks(PART).all(|rows| tell(CacheReply::Objects(rows.to_vec())));
            Ok(())
        }
        CacheTask::Pins => {
            let _ = cache.pins().into_iter().all(|set| tell(CacheReply::Pins(vec![set])));
            Ok(())
        }
        CacheTask::Pin { label, part, last } => pin(cache, &label, part, last, pinning),
        CacheTask::Unpin { label } => cache.unpin(&label).map(|known| {
            tell(CacheReply::Unpinned(known));
        }),
        CacheTask::EvictTo { bytes } => cache.evict(Goal::Bytes(bytes)).map(|freed| {
            tell(CacheReply::Freed(freed));
        }),
        CacheTask::Evict { keys } => {
            tell(CacheReply::Freed(cache.evict_objects(&keys)));
            Ok(())
        }
        CacheTask::Wipe { even_pinned, heads } => cache
            .evict(Goal::Everything { even_pinned })
            .and_then(|freed| if heads { cache.forget_heads().map(|()| freed) } else { Ok(freed) })
            .map(|freed| {
                tell(CacheReply::Freed(freed));
            }),
        CacheTask::Check { remove } => {
            check(cache, remove, tell);
            Ok(())
        }
    };
    if let Err(error) = outcome {
        tell(CacheReply::Failed(error.full_text()));
    }
}

/// Maximum number of objects in one set: more than the largest repositories have files.
const PINNING_MAX: usize = 1 << 22;

fn pin(
    cache: &Cache,
    label: &str,
    part: Vec<(CacheKey, u64)>,
    last: bool,
    pinning: &mut Vec<(CacheKey, u64)>,
) -> Result<(), StoreError> {
    pinning.extend(part);
    if pinning.len() > PINNING_MAX {
        pinning.clear();
        let why = "it has too many objects".to_owned();
        return Err(StoreError::new(label, Cause::BadPin { why }));
    }
    if last { cache.pin(label, std::mem::take(pinning)).map(drop) } else { Ok(()) }
}

/// Number of objects per progress message. A message for each would take longer than checking a small object.
const CHECK_WORD_EVERY: u64 = 64;

fn check(cache: &Cache, remove: bool, tell: &mut dyn FnMut(CacheReply) -> bool) {
    cache.check(remove, |progress, damaged| {
        let is_end = progress.objects == progress.objects_total;
        if damaged.is_none() && !is_end && !progress.objects.is_multiple_of(CHECK_WORD_EVERY) {
            return true;
        }
        let damaged = damaged.map(|damaged| DamagedRow {
            object: damaged.key.to_string(),
            problem: damaged.problem.to_owned(),
            removed: damaged.removed,
        });
        tell(CacheReply::Checked { progress: *progress, damaged })
    });
}

fn report(cache: &Cache) -> CacheReport {
    let writer = Some(std::process::id());
    CacheReport { directory: cache.folder().to_owned(), writer, state: cache.status() }
}

impl ObjectRow {
    fn of(object: &CachedObject) -> Self {
        let CachedObject { key, plain_len, charge, pinned, in_use, unchecked } = *object;
        Self { object: key.to_string(), size: plain_len, takes: charge, pinned, in_use, unchecked }
    }
}
