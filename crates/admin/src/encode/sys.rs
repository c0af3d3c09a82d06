//! zlib itself, whose output at the default level is what the reference implementation stores.
#![allow(unsafe_code)]

use std::fmt;
use std::io;
use std::mem::MaybeUninit;

use libz_sys::{
    Z_BUF_ERROR, Z_DEFAULT_COMPRESSION, Z_FINISH, Z_OK, Z_STREAM_END, deflate, deflateBound, deflateEnd,
    deflateInit_, deflateReset, uInt, uLong, z_stream, zlibVersion,
};

use crate::error::AdminError;

/// Makes zlib streams of the default level.
pub(super) struct StockZlib {
    // In a box because zlib keeps the address of the structure and refuses a moved one.
    stream: Box<z_stream>,
}

// SAFETY: the structure and what it points to belong to this value alone, and zlib has no state per thread.
unsafe impl Send for StockZlib {}

impl fmt::Debug for StockZlib {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("StockZlib")
    }
}

/// The most bytes handed to zlib at once, whose counters may have 32 bits.
const PIECE: usize = 1 << 30;

fn failed(what: &str, code: i32) -> AdminError {
    AdminError::Encoder(io::Error::other(format!("zlib failed to {what} (code {code})")))
}

impl StockZlib {
    pub(super) fn new() -> Result<Self, AdminError> {
        let mut stream = Box::new(MaybeUninit::<z_stream>::zeroed());
        // SAFETY: the structure is zeroed, which leaves the choice of allocator to zlib; version and size are
        // those of the library that these bindings were built with.
        let code = unsafe {
            deflateInit_(
                stream.as_mut_ptr(),
                Z_DEFAULT_COMPRESSION,
                zlibVersion(),
                i32::try_from(size_of::<z_stream>()).unwrap_or(0),
            )
        };
        if code != Z_OK {
            return Err(failed("start", code));
        }
        // SAFETY: zlib has set every field that it reads, and the others were zeroed before.
        Ok(Self { stream: unsafe { stream.assume_init() } })
    }

    pub(super) fn encode(&mut self, plain: &[u8], stored: &mut Vec<u8>) -> Result<(), AdminError> {
        let stream = &mut *self.stream;
        // SAFETY: the stream was initialised by `new`.
        let code = unsafe { deflateReset(stream) };
        if code != Z_OK {
            return Err(failed("restart", code));
        }
        // SAFETY: the stream was initialised by `new`.
        let bound = unsafe { deflateBound(stream, plain.len() as uLong) };
        stored.clear();
        stored.resize(usize::try_from(bound).unwrap_or(usize::MAX), 0);
        let (mut read, mut written) = (0, 0);
        loop {
            let input = &plain[read..plain.len().min(read + PIECE)];
            let last = read + input.len() == plain.len();
            let room_end = stored.len().min(written + PIECE);
            let output = &mut stored[written..room_end];
            stream.next_in = input.as_ptr().cast_mut();
            stream.avail_in = input.len() as uInt;
            stream.next_out = output.as_mut_ptr();
            stream.avail_out = output.len() as uInt;
            let (given, room) = (input.len(), output.len());
            // SAFETY: both buffers live through the call and have the lengths stated, which fit 32 bits; zlib
            // only reads from the first.
            let code = unsafe { deflate(stream, if last { Z_FINISH } else { 0 }) };
            read += given - stream.avail_in as usize;
            written += room - stream.avail_out as usize;
            match code {
                Z_STREAM_END => break,
                Z_OK | Z_BUF_ERROR if written < stored.len() => {}
                code => return Err(failed("encode", code)),
            }
        }
        stored.truncate(written);
        Ok(())
    }
}

impl Drop for StockZlib {
    fn drop(&mut self) {
        // SAFETY: the stream was initialised by `new` and is not used again. The result only tells whether
        // bytes were left over.
        unsafe { deflateEnd(&mut *self.stream) };
    }
}
