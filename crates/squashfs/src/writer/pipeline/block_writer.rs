//! Block writer: writes compressed blocks to the image in order.

use std::sync::atomic::Ordering;

use crossbeam_channel::Receiver;

use super::super::image::Image;
use super::sequencer::Ticket;
use super::worker::PackedBlock;
use super::{FileNumber, Fragment, Located, PipelineContext, Stored, WriteError};
use crate::layout::BlockWord;

struct Writer<'r, 't> {
    shared: PipelineContext<'r>,
    image: &'r mut Image<'t>,
    files: Vec<Located>,
}

/// Writes until there are no more tickets.
pub(super) fn store(
    shared: PipelineContext<'_>,
    tickets: &Receiver<Ticket>,
    image: &mut Image<'_>,
) -> Result<Stored, WriteError> {
    let mut begun_at = image.end();
    let mut writer = Writer { shared, image, files: Vec::new() };
    let mut fragments = Vec::new();
    let (mut file, mut current) = (0, Located::default());
    for ticket in tickets {
        match ticket {
            Ticket::Begin { file: number } => {
                (file, current, begun_at) = (number, Located::default(), writer.image.end());
            }
            Ticket::Block { packed, len, _share } => {
                let word = writer.put(&packed)?;
                current.add(word, len);
            }
            Ticket::Hole { len } => {
                shared.counters.blocks.fetch_add(1, Ordering::Relaxed);
                shared.counters.blocks_hole.fetch_add(1, Ordering::Relaxed);
                current.add(BlockWord::HOLE, len);
            }
            Ticket::End { size, tail } => {
                (current.size, current.tail) = (size, tail);
                if !current.words.is_empty() {
                    current.start = begun_at;
                }
                writer.place(file, std::mem::take(&mut current));
            }
            Ticket::Same { file, of } => writer.repeat(file, of),
            Ticket::Undo { of } => {
                writer.image.go_back(begun_at);
                writer.repeat(file, of);
            }
            Ticket::Fragment { packed, _shares } => {
                let start = writer.image.end();
                let word = writer.put(&packed)?;
                fragments.push(Fragment { start, word });
            }
        }
    }
    Ok(Stored { files: writer.files, fragments })
}

impl Located {
    fn add(&mut self, word: BlockWord, len: u64) {
        self.words.push(word.encode());
        if word.is_hole() {
            self.sparse += len;
        }
    }
}

impl Writer<'_, '_> {
    /// Writes a block once it is compressed.
    fn put(&mut self, packed: &Receiver<PackedBlock>) -> Result<BlockWord, WriteError> {
        // A worker ends without an answer only after an error, which is reported.
        let packed = packed.recv().map_err(|_| WriteError::Interrupted)?;
        let counters = self.shared.counters;
        counters.blocks.fetch_add(1, Ordering::Relaxed);
        let (bytes, compressed) = match &packed {
            PackedBlock::Hole => {
                counters.blocks_hole.fetch_add(1, Ordering::Relaxed);
                return Ok(BlockWord::HOLE);
            }
            PackedBlock::Plain(bytes, range) => {
                counters.blocks_plain.fetch_add(1, Ordering::Relaxed);
                (bytes.get(range.clone()).unwrap_or_default(), false)
            }
            PackedBlock::Compressed(bytes) => (bytes.as_slice(), true),
        };
        self.image.append(bytes)?;
        let len = u32::try_from(bytes.len()).expect("a block has at most a megabyte");
        Ok(BlockWord { len, compressed })
    }

    fn place(&mut self, file: FileNumber, located: Located) {
        if self.files.len() <= file {
            self.files.resize_with(file + 1, Located::default);
        }
        if let Some(slot) = self.files.get_mut(file) {
            *slot = located;
        }
    }

    fn repeat(&mut self, file: FileNumber, of: FileNumber) {
        let located = self.files.get(of).cloned();
        self.place(file, located.expect("the first of two equal files is placed because it came before"));
    }
}
