//! Administration of a cache folder: through the socket of its writer, or as its writer where there is none.

use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use esker_store::{Cache, CacheKey, CachedObject, Cause, CheckProgress, Engine, Freed, Goal, StoreError};
use serde::{Deserialize, Serialize};

use crate::cache_share::{Broker, Receiver, ToWriter, VERSION, Writer, keys_from_text, keys_to_text, send};
use crate::cache_share::{dial, limit_receives};
use crate::repository::{open_writer, room};
use crate::status::Lower;

/// Objects in one message.
const PART: usize = 256;

/// How long a writer may take for one step: a check reads an object of gigabytes, an eviction asks every mount.
const STEP_PATIENCE: std::time::Duration = std::time::Duration::from_secs(120);

/// Administrative task on a cache.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum CacheTask {
    Report,
    List,
    Pins,
    /// Objects with their plain lengths; the set is complete with the last part.
    Pin {
        label: String,
        part: Vec<(String, u64)>,
        last: bool,
    },
    Unpin {
        label: String,
    },
    EvictTo {
        bytes: u64,
    },
    Evict {
        keys: Vec<String>,
    },
    Wipe {
        even_pinned: bool,
        heads: bool,
    },
    Check {
        remove: bool,
    },
}

/// Reply to a task: any number of these, the last of them [`CacheReply::Done`] or [`CacheReply::Failed`].
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum CacheReply {
    Report(Box<CacheReport>),
    Objects(Vec<ObjectRow>),
    Pins(Vec<PinRow>),
    Freed(FreedRow),
    Checked { progress: CheckRow, damaged: Option<DamagedRow> },
    Unpinned(bool),
    Failed(String),
    Done,
}

/// The state of a cache. Field names are an interface.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CacheReport {
    /// Its folder.
    #[serde(with = "crate::path_json::shown")]
    pub directory: PathBuf,
    /// The process that writes it; none if it is only looked at now.
    pub writer: Option<u32>,
    /// Bytes that objects take.
    pub bytes: u64,
    /// Bytes they may take.
    pub quota: u64,
    /// Up to where objects in use may exceed that.
    pub hard_limit: u64,
    /// Objects in it.
    pub objects: u64,
    /// Bytes of pinned objects that are in it.
    pub pinned_bytes: u64,
    /// Pinned objects that are in it.
    pub pinned_objects: u64,
    /// Objects that are checked before their first use, because the last writer was killed.
    pub unchecked: u64,
    /// Objects evicted since the writer opened it.
    pub evicted: u64,
    /// How often all that was left was in use, above the quota.
    pub over_quota: u64,
    /// Objects that were served without being kept: no room, or the disk failed.
    pub unkept: u64,
    /// Operations on the disk that failed.
    pub disk_errors: u64,
    /// Objects found damaged.
    pub damaged: u64,
    /// Objects from lower cache folders.
    pub lower: Lower,
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
    /// Whether it is in a pinned set.
    pub pinned: bool,
    /// Whether the writer has it open or mapped.
    pub in_use: bool,
    /// Whether it is checked before its next use.
    pub unchecked: bool,
}

/// A pinned set. Field names are an interface.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PinRow {
    /// Label of the pinned set.
    pub name: String,
    /// Objects in it.
    pub objects: u64,
    /// Their plain bytes.
    pub bytes: u64,
}

/// Result of an eviction. Field names are an interface.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FreedRow {
    /// Objects removed.
    pub objects: u64,
    /// Bytes they took.
    pub bytes: u64,
    /// Objects that stayed because they are in use.
    pub in_use: u64,
    /// Objects that stayed because they are pinned.
    pub pinned: u64,
}

/// How far a check is. Field names are an interface.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CheckRow {
    /// Objects compared with their digests.
    pub objects: u64,
    /// Of so many.
    pub objects_total: u64,
    /// Bytes read.
    pub bytes: u64,
    /// Of so many.
    pub bytes_total: u64,
}

/// A damaged object. Field names are an interface.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DamagedRow {
    /// Which one, as in [`ObjectRow`].
    pub object: String,
    /// Description of the damage.
    pub problem: String,
    /// Whether it was removed.
    pub removed: bool,
}

/// A cache folder that is looked after.
pub struct CacheFolder {
    folder: PathBuf,
    way: CacheAccess,
}

enum CacheAccess {
    /// We are the writer; mounts that begin meanwhile are served.
    Own {
        writer: Arc<dyn Writer>,
        cache: Cache,
        broker: Option<Broker>,
    },
    Writer {
        receiver: Receiver,
    },
}

impl CacheFolder {
    /// Connects to the writer of a cache, or becomes it. `quota` counts in the second case only, as limit for pins.
    pub fn open(folder: &Path, quota: u64) -> Result<Self, StoreError> {
        let failed = |doing, source| {
            StoreError::new("the cache", Cause::Disk { doing, path: folder.to_owned(), source })
        };
        std::fs::metadata(folder).map_err(|source| failed("looking at", source))?;
        let writer = match open_writer(&Engine::start(Default::default())?, folder, room(quota, Vec::new())) {
            Ok(writer) => writer,
            Err(busy) if matches!(busy.cause(), Cause::Busy { .. }) => {
                let Ok(socket) = dial(folder) else { return Err(busy) };
                let connected = limit_receives(&socket, Some(STEP_PATIENCE)).map(|()| Receiver::new(socket));
                let receiver = connected.map_err(|source| failed("connecting to the writer of", source))?;
                return Ok(Self { folder: folder.to_owned(), way: CacheAccess::Writer { receiver } });
            }
            Err(error) => return Err(error),
        };
        let cache = writer.cache().ok_or_else(|| StoreError::new("the cache", Cause::Closed))?;
        // A file system without sockets: mounts wait until we are done.
        let broker = Broker::start(folder, writer.clone()).ok();
        Ok(Self { folder: folder.to_owned(), way: CacheAccess::Own { writer, cache, broker } })
    }

    /// Returns the state of the cache.
    pub fn report(&mut self) -> Result<CacheReport, StoreError> {
        let mut report = CacheReport::default();
        self.run(CacheTask::Report, |told| {
            if let CacheReply::Report(told) = told {
                report = *told;
            }
            true
        })?;
        if matches!(self.way, CacheAccess::Own { .. }) {
            report.writer = None;
        }
        Ok(report)
    }

    /// Tells `each` of every object, the longest unread first, until it says `false`.
    pub fn list(&mut self, mut each: impl FnMut(ObjectRow) -> bool) -> Result<(), StoreError> {
        self.run(CacheTask::List, |told| match told {
            CacheReply::Objects(rows) => rows.into_iter().all(&mut each),
            _ => true,
        })
    }

    /// Returns the pinned sets.
    pub fn pins(&mut self) -> Result<Vec<PinRow>, StoreError> {
        let mut pins = Vec::new();
        self.run(CacheTask::Pins, |told| {
            if let CacheReply::Pins(mut rows) = told {
                pins.append(&mut rows);
            }
            true
        })?;
        Ok(pins)
    }

    /// Pins objects, given with their plain lengths, under a name.
    pub fn pin(&mut self, label: &str, objects: &[(CacheKey, u64)]) -> Result<(), StoreError> {
        let mut parts = objects.chunks(PART).peekable();
        loop {
            let part = parts.next().unwrap_or_default();
            let keys: Vec<CacheKey> = part.iter().map(|(key, _)| *key).collect();
            let part = keys_to_text(&keys).into_iter().zip(part.iter().map(|(_, len)| *len)).collect();
            let last = parts.peek().is_none();
            self.run(CacheTask::Pin { label: label.to_owned(), part, last }, |_| true)?;
            if last {
                return Ok(());
            }
        }
    }

    /// Gives a pinned set up; tells whether there was one.
    pub fn unpin(&mut self, label: &str) -> Result<bool, StoreError> {
        let mut known = false;
        self.run(CacheTask::Unpin { label: label.to_owned() }, |told| {
            known |= matches!(told, CacheReply::Unpinned(true));
            true
        })?;
        Ok(known)
    }

    /// Evicts until no more than `bytes` are used, the longest unread first.
    pub fn evict_to(&mut self, bytes: u64) -> Result<FreedRow, StoreError> {
        self.free(CacheTask::EvictTo { bytes })
    }

    /// Evicts these objects, unless they are in use or pinned.
    pub fn evict(&mut self, keys: &[CacheKey]) -> Result<FreedRow, StoreError> {
        let mut all = FreedRow::default();
        for part in keys.chunks(PART) {
            let FreedRow { objects, bytes, in_use, pinned } =
                self.free(CacheTask::Evict { keys: keys_to_text(part) })?;
            all.objects += objects;
            all.bytes += bytes;
            all.in_use += in_use;
            all.pinned += pinned;
        }
        Ok(all)
    }

    /// Evicts everything that is not in use; pinned objects and saved heads only if told to.
    pub fn wipe(&mut self, even_pinned: bool, heads: bool) -> Result<FreedRow, StoreError> {
        self.free(CacheTask::Wipe { even_pinned, heads })
    }

    /// Compares every object with its digest, until `each` says `false`.
    pub fn check(
        &mut self,
        remove: bool,
        mut each: impl FnMut(CheckRow, Option<DamagedRow>) -> bool,
    ) -> Result<(), StoreError> {
        self.run(CacheTask::Check { remove }, |told| match told {
            CacheReply::Checked { progress, damaged } => each(progress, damaged),
            _ => true,
        })
    }

    fn free(&mut self, task: CacheTask) -> Result<FreedRow, StoreError> {
        let mut freed = FreedRow::default();
        self.run(task, |told| {
            if let CacheReply::Freed(told) = told {
                freed = told;
            }
            true
        })?;
        Ok(freed)
    }

    /// Runs a task and passes its replies to `hear`; ends early if `hear` returns `false`.
    fn run(&mut self, task: CacheTask, mut hear: impl FnMut(CacheReply) -> bool) -> Result<(), StoreError> {
        let mut failed = None;
        let mut heard = |told: CacheReply| match told {
            CacheReply::Failed(text) => {
                failed = Some(text);
                false
            }
            told => hear(told),
        };
        match &mut self.way {
            CacheAccess::Own { cache, .. } => perform(cache, task, &mut Vec::new(), &mut heard),
            CacheAccess::Writer { receiver } => {
                let cut = |source| {
                    let doing = "talking to the writer of";
                    StoreError::new("the cache", Cause::Disk { doing, path: self.folder.clone(), source })
                };
                send(receiver.socket(), &ToWriter::Care { version: VERSION, task }, None).map_err(cut)?;
                loop {
                    match receiver.next::<CacheReply>().map_err(cut)?.0 {
                        CacheReply::Done => break,
                        told => {
                            if !heard(told) {
                                // The rest of the replies is ignored, so the connection is of no further use.
                                break;
                            }
                        }
                    }
                }
            }
        }
        match failed {
            None => Ok(()),
            Some(text) => {
                let (blame, may_pass) = (esker_store::Blame::Caller, false);
                Err(StoreError::new("the cache", Cause::Remote { blame, may_pass, text }))
            }
        }
    }
}

impl Drop for CacheFolder {
    fn drop(&mut self) {
        if let CacheAccess::Own { writer, broker, .. } = &mut self.way {
            // Processes that wait for the cache find it free afterwards.
            drop(broker.take());
            writer.close();
        }
    }
}

/// Serves one administrator until they hang up, beginning with a task that was read already.
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

/// Does a task; parts of a set to be pinned collect in `pinning`. Ends early if `tell` says `false`.
fn perform(
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
            let row =
                |set: esker_store::PinSet| PinRow { name: set.label, objects: set.objects, bytes: set.bytes };
            let _ = cache.pins().into_iter().map(row).all(|row| tell(CacheReply::Pins(vec![row])));
            Ok(())
        }
        CacheTask::Pin { label, part, last } => pin(cache, &label, part, last, pinning),
        CacheTask::Unpin { label } => cache.unpin(&label).map(|known| {
            tell(CacheReply::Unpinned(known));
        }),
        CacheTask::EvictTo { bytes } => cache.evict(Goal::Bytes(bytes)).map(|freed| {
            tell(CacheReply::Freed(freed.into()));
        }),
        CacheTask::Evict { keys } => {
            let keys = keys_from_text(&keys).unwrap_or_default();
            tell(CacheReply::Freed(cache.evict_objects(&keys).into()));
            Ok(())
        }
        CacheTask::Wipe { even_pinned, heads } => cache
            .evict(Goal::Everything { even_pinned })
            .and_then(|freed| if heads { cache.forget_heads().map(|()| freed) } else { Ok(freed) })
            .map(|freed| {
                tell(CacheReply::Freed(freed.into()));
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

/// Most objects that one set may have: more than the largest repositories have files.
const PINNING_MAX: usize = 1 << 22;

fn pin(
    cache: &Cache,
    label: &str,
    part: Vec<(String, u64)>,
    last: bool,
    pinning: &mut Vec<(CacheKey, u64)>,
) -> Result<(), StoreError> {
    let refused = |why: &str| StoreError::new(label, Cause::BadPin { why: why.to_owned() });
    let (keys, lens): (Vec<_>, Vec<_>) = part.into_iter().unzip();
    let keys = keys_from_text(&keys).ok_or_else(|| refused("one of its objects has no proper name"))?;
    pinning.extend(keys.into_iter().zip(lens));
    if pinning.len() > PINNING_MAX {
        pinning.clear();
        return Err(refused("it has too many objects"));
    }
    if last { cache.pin(label, std::mem::take(pinning)).map(drop) } else { Ok(()) }
}

/// How many objects may pass without a word: a message for each would take longer than a small object.
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
        let CheckProgress { objects, objects_total, bytes, bytes_total } = *progress;
        tell(CacheReply::Checked {
            progress: CheckRow { objects, objects_total, bytes, bytes_total },
            damaged,
        })
    });
}

fn report(cache: &Cache) -> CacheReport {
    let status = cache.status();
    CacheReport {
        directory: cache.folder().to_owned(),
        writer: Some(std::process::id()),
        bytes: status.used,
        quota: status.quota,
        hard_limit: status.hard_limit,
        objects: status.objects,
        pinned_bytes: status.pinned,
        pinned_objects: status.pinned_objects,
        unchecked: status.unchecked,
        evicted: status.evicted,
        over_quota: status.over_quota,
        unkept: status.unkept,
        disk_errors: status.disk_errors,
        damaged: status.damaged,
        lower: status.lower.into(),
    }
}

impl ObjectRow {
    fn of(object: &CachedObject) -> Self {
        let CachedObject { key, plain_len, charge, pinned, in_use, unchecked } = *object;
        Self { object: key.to_string(), size: plain_len, takes: charge, pinned, in_use, unchecked }
    }
}

impl From<Freed> for FreedRow {
    fn from(freed: Freed) -> Self {
        let Freed { objects, bytes, in_use, pinned } = freed;
        Self { objects, bytes, in_use, pinned }
    }
}
