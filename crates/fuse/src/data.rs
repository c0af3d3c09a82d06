//! Implements the reply to READ.

use std::cell::RefCell;
use std::io::{self, IoSlice};
use std::os::fd::AsFd;

use esker_threads::waits::{self, WaitCause};
use esker_vfs::{Data, Segment};

use crate::channel::Channel;

static ZEROS: [u8; 64 << 10] = [0; 64 << 10];

/// Maximum number of parts of a reply that are sent uncopied: writev(2) takes 1024.
const PARTS_MAX: usize = 512;

thread_local! {
    /// Buffer for bytes of files. Grows to the largest read once, then nothing is allocated.
    static PASSAGE: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// Failure of a reply to READ.
#[derive(Debug)]
pub(crate) enum Failure {
    /// The tree's bytes could not be read.
    Source(io::Error),
    /// The kernel did not accept the reply.
    Kernel(io::Error),
    /// The request was answered already.
    Late,
}

/// Replies with at most `limit` bytes of `data`, the size that the kernel requested. `claim` is called for the
/// right to reply once all bytes are read, because a disk may be slow.
pub(crate) fn send(
    channel: &Channel,
    unique: u64,
    data: &Data,
    limit: usize,
    claim: impl FnOnce() -> bool,
) -> Result<(), Failure> {
    if let [Segment::Bytes { bytes, start, len }] = data.0.as_slice()
        && let Some(bytes) = bytes.get(*start..).and_then(|b| b.get(..(*len).min(limit)))
    {
        if !claim() {
            return Err(Failure::Late);
        }
        return channel.bytes(unique, bytes).map_err(Failure::Kernel);
    }
    PASSAGE.with_borrow_mut(|passage| send_through(passage, channel, unique, data, limit, claim))
}

fn send_through(
    passage: &mut Vec<u8>,
    channel: &Channel,
    unique: u64,
    data: &Data,
    limit: usize,
    claim: impl FnOnce() -> bool,
) -> Result<(), Failure> {
    let joined = data.0.len() > PARTS_MAX;
    let used =
        waits::timed(WaitCause::Disk, || fill(passage, data, limit, joined)).map_err(Failure::Source)?;
    if !claim() {
        return Err(Failure::Late);
    }
    if joined {
        return channel.bytes(unique, &passage[..used]).map_err(Failure::Kernel);
    }
    let mut parts = Vec::with_capacity(data.0.len());
    let mut left = limit;
    let mut passed = 0;
    for segment in &data.0 {
        let len = segment.len().min(left);
        left -= len;
        match segment {
            Segment::File { .. } => {
                parts.push(IoSlice::new(&passage[passed..passed + len]));
                passed += len;
            }
            Segment::Bytes { bytes, start, .. } => parts.push(IoSlice::new(&bytes[*start..*start + len])),
            Segment::Zeros(_) => {
                let pages = std::iter::repeat_n(ZEROS.len(), len / ZEROS.len()).chain([len % ZEROS.len()]);
                parts.extend(pages.filter(|&n| n > 0).map(|n| IoSlice::new(&ZEROS[..n])));
            }
        }
    }
    channel.send(unique, 0, &parts).map_err(Failure::Kernel)
}

/// Reads the bytes from files into `passage`, or all bytes if `all`, and returns their number. Checks the bounds of
/// bytes in memory.
fn fill(passage: &mut Vec<u8>, data: &Data, limit: usize, all: bool) -> io::Result<usize> {
    let mut left = limit;
    let mut used = 0;
    for segment in &data.0 {
        let len = segment.len().min(left);
        left -= len;
        let passes = all || matches!(segment, Segment::File { .. });
        // Only ever longer, so that no byte is cleared just to be overwritten.
        if passes && passage.len() < used + len {
            passage.resize(used + len, 0);
        }
        match segment {
            Segment::File { file, offset, .. } => {
                read_exact_at(&**file, &mut passage[used..used + len], *offset)?
            }
            Segment::Bytes { bytes, start, .. } => {
                let end = start.checked_add(len);
                let bytes = end.and_then(|end| bytes.get(*start..end)).ok_or(io::ErrorKind::UnexpectedEof)?;
                if all {
                    passage[used..used + len].copy_from_slice(bytes);
                }
            }
            Segment::Zeros(_) if all => passage[used..used + len].fill(0),
            Segment::Zeros(_) => {}
        }
        if passes {
            used += len;
        }
    }
    Ok(used)
}

fn read_exact_at(file: impl AsFd, mut to: &mut [u8], mut offset: u64) -> io::Result<()> {
    while !to.is_empty() {
        match rustix::io::pread(&file, &mut *to, offset) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(n) => {
                to = &mut to[n..];
                offset += n as u64;
            }
            Err(rustix::io::Errno::INTR) => {}
            Err(e) => return Err(e.into()),
        }
    }
    Ok(())
}
