//! Prefetches the chunks of libraries and executables in use.

use std::mem;
use std::sync::Arc;

use esker_format::catalog::Chunk;
use esker_prefetch::elf_files::{EVICTED, ElfFile, ElfFindings};
use esker_prefetch::elf_needed::NeededSearch;
use esker_prefetch::remaining;
use esker_store::{CacheKey, Handle, ObjectRequest};
use esker_vfs::NodeKey;

use crate::core::Core;

use super::scheduler::Scheduler;
use super::{Event, objects};

impl Scheduler {
    /// Handles a miss of a chunk, which was `expected` if it was queued or being fetched.
    pub(super) fn elf_missed(
        &mut self,
        core: &Arc<Core>,
        key: NodeKey,
        elf_file: &ElfFile,
        (missed, expected): (usize, bool),
    ) {
        if !expected && self.is_evicted(&key, missed) {
            self.elf_files.known.remove(&key);
        }
        self.elf_used(core, key, elf_file, missed);
        if !elf_file.is_small()
            && !expected
            && let Some(known) = self.elf_files.known.get_mut(&key)
        {
            let region = known.regions.missed(missed, elf_file.chunks.len());
            self.queue_soon(key, elf_file, &elf_file.chunks[region]);
        }
    }

    /// Records a miss of a chunk that is not being fetched; returns true if the file was probably evicted.
    fn is_evicted(&mut self, key: &NodeKey, missed: usize) -> bool {
        let Some(known) = self.elf_files.known.get_mut(key) else { return false };
        let is_left = |chunk| self.remaining.is_queued(&known.elf_file.wanted(chunk).key());
        if !known.elf_file.chunks.get(missed).is_some_and(is_left) && known.queued.remove(&missed) {
            known.missed_again += 1;
        }
        known.missed_again >= EVICTED
    }

    /// Handles a read of a prefetched chunk.
    pub(super) fn elf_read(&mut self, core: &Arc<Core>, key: NodeKey, at: u64) {
        if let Some(known) = self.elf_files.known.get(&key).filter(|known| !known.in_use) {
            let elf_file = known.elf_file.clone();
            let read = remaining::chunk_at(&elf_file.chunks, at);
            self.elf_used(core, key, &elf_file, read);
        }
    }

    /// Handles the first read of a library or executable, in the chunk `read`.
    pub(super) fn elf_used(&mut self, core: &Arc<Core>, key: NodeKey, elf_file: &ElfFile, read: usize) {
        let known = self.elf_files.track(key, elf_file);
        if mem::replace(&mut known.in_use, true) {
            return;
        }
        let findings = mem::take(&mut known.findings);
        if elf_file.is_small() {
            self.queue_soon(key, elf_file, remaining::around(&elf_file.chunks, read));
        } else {
            self.remaining.hurries(self.far);
            self.queue_findings(key, elf_file, &findings);
        }
        self.await_parts(core, key);
    }

    /// Handles libraries that will probably be used: a module imports them, or another library needs them.
    pub(super) fn elf_expected(&mut self, core: &Arc<Core>, expected: &[(NodeKey, ElfFile)]) {
        for (key, elf_file) in expected.iter().rev() {
            self.elf_files.track(*key, elf_file);
            self.await_parts(core, *key);
        }
    }

    /// Continues with the files that waited for a bundle, after one has arrived.
    pub(super) fn resume_elf_files(&mut self, core: &Arc<Core>) {
        for key in mem::take(&mut self.elf_files.waiting_for_bundle) {
            self.await_parts(core, key);
        }
    }

    /// Requests the chunks that describe a file, unless a bundle names the file.
    fn await_parts(&mut self, core: &Arc<Core>, key: NodeKey) {
        let Some(known) = self.elf_files.known.get_mut(&key) else { return };
        if self.remaining.is_announced(&known.elf_file.path) {
            return;
        }
        if self.remaining.awaits_spec() {
            return self.elf_files.waiting_for_bundle.push(key);
        }
        let (elf_file, in_use) = (known.elf_file.clone(), known.in_use);
        for number in known.chunks_to_request() {
            let Some(chunk) = elf_file.chunks.get(number) else { continue };
            let candidate = elf_file.candidate(chunk);
            if in_use {
                open_part(core, key, number, candidate.wanted);
            } else if self.elf_files.prefetching.insert(candidate.wanted.key(), (key, number)).is_none() {
                self.queue_first(candidate);
            }
        }
    }

    /// Handles the end of a prefetch; requests the object if its chunk describes a file.
    pub(super) fn elf_prefetched(&mut self, core: &Arc<Core>, key: &CacheKey, is_here: bool) {
        if let Some((file, number)) = self.elf_files.prefetching.remove(key)
            && is_here
            && let Some(known) = self.elf_files.known.get(&file)
            && let Some(chunk) = known.elf_file.chunks.get(number)
        {
            open_part(core, file, number, known.elf_file.wanted(chunk));
        }
    }

    /// Handles a chunk that describes a file.
    pub(super) fn part_fetched(
        &mut self,
        core: &Arc<Core>,
        key: NodeKey,
        number: usize,
        handle: Option<&Handle>,
    ) {
        let Some(known) = self.elf_files.known.get_mut(&key) else { return };
        let Some(handle) = handle else { return known.fetch_failed(number) };
        let mut findings = known.arrived(number, handle);
        let elf_file = known.elf_file.clone();
        // A bundle that has arrived meanwhile is more precise.
        if self.remaining.is_announced(&elf_file.path) {
            return;
        }
        let needs = findings.needs.take();
        if known.in_use {
            self.queue_findings(key, &elf_file, &findings);
        } else {
            known.findings.soon.extend(findings.soon);
            known.findings.rest.extend(findings.rest);
        }
        self.await_parts(core, key);
        if let Some(needs) = needs {
            self.find_needed(core, NeededSearch { path: elf_file.path, needs, tries: 0 });
        }
    }

    fn queue_findings(&mut self, key: NodeKey, elf_file: &ElfFile, findings: &ElfFindings) {
        self.queue_soon(key, elf_file, &findings.soon);
        for (chunk, is_code) in &findings.rest {
            if self.remaining.push(&elf_file.path, elf_file.candidate(chunk), *is_code) {
                self.elf_files.queued(&key, chunk);
            }
        }
    }

    /// Queues chunks that will be read soon.
    fn queue_soon<'c>(
        &mut self,
        key: NodeKey,
        elf_file: &ElfFile,
        chunks: impl IntoIterator<Item = &'c Chunk>,
    ) {
        for chunk in chunks {
            let candidate = elf_file.candidate(chunk);
            if self.admit(candidate.wanted.key()) {
                self.remaining.push_soon(&elf_file.path, candidate);
                self.elf_files.queued(&key, chunk);
            }
        }
    }
}

/// Opens a chunk that describes its file.
fn open_part(core: &Arc<Core>, file: NodeKey, number: usize, wanted: ObjectRequest) {
    objects::open(core, wanted, move |handle| Event::Part { file, number, handle });
}
