//! Administration of a cache folder: through the socket of its writer, or as its writer where there is none.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use esker_store::{Cache, CacheKey, Cause, CheckProgress, Engine, Freed, PinSet, StoreError};

use crate::opener::{open_writer, room};
use crate::shared_cache::admin::{CacheReply, PART, perform};
pub use crate::shared_cache::admin::{CacheReport, DamagedRow, ObjectRow};
use crate::shared_cache::{Broker, CacheTask, Receiver, ToWriter, VERSION, Writer, send};
use crate::shared_cache::{dial, limit_receives};

/// Timeout for one step of the writer: a check reads an object of gigabytes, an eviction asks every mount.
const STEP_TIMEOUT: std::time::Duration = std::time::Duration::from_secs(120);

/// A cache folder under administration.
pub struct CacheFolder {
    folder: PathBuf,
    way: CacheAccess,
}

enum CacheAccess {
    /// This process is the writer; it serves mounts that start in the meantime.
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
                let connected = limit_receives(&socket, Some(STEP_TIMEOUT)).map(|()| Receiver::new(socket));
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

    /// Calls `each` with every object, the longest unread first, until it returns `false`.
    pub fn list(&mut self, mut each: impl FnMut(ObjectRow) -> bool) -> Result<(), StoreError> {
        self.run(CacheTask::List, |told| match told {
            CacheReply::Objects(rows) => rows.into_iter().all(&mut each),
            _ => true,
        })
    }

    /// Returns the pinned sets.
    pub fn pins(&mut self) -> Result<Vec<PinSet>, StoreError> {
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
            let last = parts.peek().is_none();
            self.run(CacheTask::Pin { label: label.to_owned(), part: part.to_vec(), last }, |_| true)?;
            if last {
                return Ok(());
            }
        }
    }

    /// Removes a pinned set; returns whether it existed.
    pub fn unpin(&mut self, label: &str) -> Result<bool, StoreError> {
        let mut known = false;
        self.run(CacheTask::Unpin { label: label.to_owned() }, |told| {
            known |= matches!(told, CacheReply::Unpinned(true));
            true
        })?;
        Ok(known)
    }

    /// Evicts until no more than `bytes` are used, the longest unread first.
    pub fn evict_to(&mut self, bytes: u64) -> Result<Freed, StoreError> {
        self.free(CacheTask::EvictTo { bytes })
    }

    /// Evicts these objects, unless they are in use or pinned.
    pub fn evict(&mut self, keys: &[CacheKey]) -> Result<Freed, StoreError> {
        let mut all = Freed::default();
        for part in keys.chunks(PART) {
            let Freed { objects, bytes, in_use, pinned } =
                self.free(CacheTask::Evict { keys: part.to_vec() })?;
            all.objects += objects;
            all.bytes += bytes;
            all.in_use += in_use;
            all.pinned += pinned;
        }
        Ok(all)
    }

    /// Evicts everything that is not in use; pinned objects and saved heads only on request.
    pub fn wipe(&mut self, even_pinned: bool, heads: bool) -> Result<Freed, StoreError> {
        self.free(CacheTask::Wipe { even_pinned, heads })
    }

    /// Compares every object with its digest, until `each` returns `false`.
    pub fn check(
        &mut self,
        remove: bool,
        mut each: impl FnMut(CheckProgress, Option<DamagedRow>) -> bool,
    ) -> Result<(), StoreError> {
        self.run(CacheTask::Check { remove }, |told| match told {
            CacheReply::Checked { progress, damaged } => each(progress, damaged),
            _ => true,
        })
    }

    fn free(&mut self, task: CacheTask) -> Result<Freed, StoreError> {
        let mut freed = Freed::default();
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
