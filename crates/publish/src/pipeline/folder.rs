//! Feeds the files of a folder.

use std::ffi::OsStr;
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::sync::atomic::{AtomicUsize, Ordering};

use esker_repository::path;
use parking_lot::Mutex;
use rustix::fs::{AtFlags, statat};

use crate::build_folder::{HEAD_MAX, Relocation, interpreter};
use crate::error::PublishError;
use crate::plan::{Plan, ReadFile};
use crate::source::{Facts, Source};

use super::{Feed, Feeder};

/// Files of one directory that a feeder takes together.
struct Batch<'p> {
    relative: &'p [u8],
    files: Vec<&'p ReadFile>,
    size: u64,
}

/// Small files of a directory stay together up to this number.
const BATCH_FILES: usize = 64;

/// The files of a plan, for several threads to read.
pub(crate) struct FolderFiles<'p> {
    source: &'p Source,
    batches: Vec<Batch<'p>>,
    next: AtomicUsize,
    /// Path of the source at clients.
    home: Vec<u8>,
    relocation: Option<&'p Relocation>,
    /// Scripts that start an interpreter elsewhere, with its folder.
    scripts: Mutex<Vec<(Vec<u8>, Vec<u8>)>>,
}

impl<'p> FolderFiles<'p> {
    /// Splits the work: each file larger than `small` is a batch of its own and comes first.
    pub(crate) fn new(source: &'p Source, plan: &'p Plan, (small, home): (u64, Vec<u8>)) -> Self {
        let mut large = Vec::new();
        let mut batches = Vec::new();
        for directory in &plan.reads {
            let (big, rest): (Vec<_>, Vec<_>) =
                directory.files.iter().partition(|file| file.facts.size > small);
            let relative = directory.relative.as_slice();
            let alone = |file: &'p ReadFile| Batch { relative, size: file.facts.size, files: vec![file] };
            large.extend(big.into_iter().map(alone));
            let together = |files: &[&'p ReadFile]| Batch { relative, size: 0, files: files.to_vec() };
            batches.extend(rest.chunks(BATCH_FILES).map(together));
        }
        large.sort_by_key(|batch| std::cmp::Reverse(batch.size));
        large.extend(batches);
        let (relocation, scripts) = (plan.relocation.as_ref(), Mutex::default());
        Self { source, batches: large, next: AtomicUsize::new(0), home, relocation, scripts }
    }

    /// Returns the scripts of `bin` folders that start an interpreter that was built beside them, by a path of another folder.
    pub(crate) fn into_scripts(self) -> Vec<(Vec<u8>, Vec<u8>)> {
        self.scripts.into_inner()
    }

    /// Returns the feeders that share the work.
    pub(crate) fn feeders(&self, count: usize) -> Vec<Feeder<'_>> {
        let feeder = |_| -> Feeder<'_> { Box::new(|feed| self.feed(feed)) };
        (0..count).map(feeder).collect()
    }

    fn feed(&self, feed: &Feed<'_>) -> Result<(), PublishError> {
        while !feed.is_over() {
            let Some(batch) = self.batches.get(self.next.fetch_add(1, Ordering::Relaxed)) else { break };
            let directory = self.source.open_directory(batch.relative)?;
            for file in &batch.files {
                self.feed_file(feed, &directory, batch.relative, file)?;
            }
        }
        Ok(())
    }

    fn feed_file(
        &self,
        feed: &Feed<'_>,
        directory: &OwnedFd,
        relative: &[u8],
        file: &ReadFile,
    ) -> Result<(), PublishError> {
        let path = path::join(relative, &file.name);
        let changed = || PublishError::Changed(self.source.shown(&path));
        let opened = self.source.open_file(directory, relative, &file.name)?;
        let check = || match Facts::of_file(opened.as_fd()) {
            Ok(facts) if facts == file.facts => Ok(()),
            Ok(_) => Err(changed()),
            Err(error) => Err(self.source.failed("looking at", &path)(error)),
        };
        // Checked before the read against the plan, and after it for changes meanwhile.
        check()?;
        let relocated = self.relocation.map(|it| it.content(self.source, (&opened, file.facts.size), &path));
        if let Some(content) = relocated.transpose()?.flatten() {
            feed.store_instead(file.job, &file.name, &content)?;
            return check();
        }
        let mut is_first = relative.ends_with(b"/bin");
        let fill = &mut |room: &mut [u8]| {
            let len = self.fill(&opened, &path, room)?;
            if std::mem::take(&mut is_first) {
                self.note_script(directory, relative, &path, &room[..len.min(HEAD_MAX)]);
            }
            Ok(len)
        };
        let sample =
            |offset, room: &mut [u8]| rustix::io::pread(&opened, &mut *room, offset) == Ok(room.len());
        if !feed.store(file.job, &file.name, file.facts.size, fill, Some(&sample))? {
            return Err(changed());
        }
        check()
    }

    /// Notes a file if it is a script that starts an interpreter which is beside it, but not by its path.
    fn note_script(&self, directory: &OwnedFd, relative: &[u8], path: &[u8], head: &[u8]) {
        let Some((folder, name)) = interpreter(head) else { return };
        // The paths of an image of a system are right where it is run.
        let is_right = folder == relative || folder == [&self.home, relative].concat();
        if !is_right && statat(directory, OsStr::from_bytes(name), AtFlags::SYMLINK_NOFOLLOW).is_ok() {
            self.scripts.lock().push((path.to_vec(), folder.to_vec()));
        }
    }

    fn fill(&self, file: &OwnedFd, path: &[u8], mut room: &mut [u8]) -> Result<usize, PublishError> {
        let wanted = room.len();
        while !room.is_empty() {
            match rustix::io::read(file, &mut *room) {
                Ok(0) => break,
                Ok(len) => room = &mut room[len..],
                Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(self.source.failed("reading", path)(error)),
            }
        }
        Ok(wanted - room.len())
    }
}
