//! Binding to zlib, whose output at the default level is the stored form of the reference implementation.
#![allow(unsafe_code)]

use std::fmt;
use std::io;
use std::mem::MaybeUninit;

use libz_sys::{
    Z_BUF_ERROR, Z_DEFAULT_COMPRESSION, Z_FINISH, Z_OK, Z_STREAM_END, deflate, deflateEnd, deflateInit_,
    deflateReset, uInt, z_stream, zlibVersion,
};

/// Encoder of zlib streams at the default level, whose output doesn't depend on the size of the input pieces.
pub struct StockZlib {
    // In a box because zlib keeps the address of the structure and refuses a moved one.
    stream: Box<z_stream>,
    room: Vec<u8>,
}

// SAFETY: the structure and what it points to belong to this value alone, and zlib has no state per thread.
unsafe impl Send for StockZlib {}

impl fmt::Debug for StockZlib {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("StockZlib")
    }
}

/// Maximum number of bytes passed to zlib at once, whose counters may have 32 bits.
const PIECE: usize = 1 << 30;
/// Size of the output buffer in bytes.
const ROOM: usize = 64 << 10;

fn failed(what: &str, code: i32) -> io::Error {
    io::Error::other(format!("zlib failed to {what} (code {code})"))
}

impl StockZlib {
    /// Makes an encoder at the beginning of a stream.
    pub fn new() -> io::Result<Self> {
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
        Ok(Self { stream: unsafe { stream.assume_init() }, room: vec![0; ROOM] })
    }

    /// Encodes all of `plain` into `stored`.
    pub fn encode(&mut self, plain: &[u8], stored: &mut Vec<u8>) -> io::Result<()> {
        stored.clear();
        self.restart()?;
        self.feed(plain, true, &mut |bytes| stored.extend_from_slice(bytes))
    }

    /// Starts another stream.
    pub fn restart(&mut self) -> io::Result<()> {
        // SAFETY: the stream was initialised by `new`.
        let code = unsafe { deflateReset(&mut *self.stream) };
        if code == Z_OK { Ok(()) } else { Err(failed("restart", code)) }
    }

    /// Encodes the next piece of a stream and hands out the output.
    pub fn feed(&mut self, plain: &[u8], last: bool, out: &mut dyn FnMut(&[u8])) -> io::Result<()> {
        let stream = &mut *self.stream;
        let mut read = 0;
        loop {
            let input = &plain[read..plain.len().min(read + PIECE)];
            let ends = read + input.len() == plain.len();
            stream.next_in = input.as_ptr().cast_mut();
            stream.avail_in = input.len() as uInt;
            stream.next_out = self.room.as_mut_ptr();
            stream.avail_out = ROOM as uInt;
            let given = input.len();
            // SAFETY: both buffers live through the call and have the lengths stated, which fit 32 bits; zlib
            // only reads from the first.
            let code = unsafe { deflate(stream, if last && ends { Z_FINISH } else { 0 }) };
            read += given - stream.avail_in as usize;
            let left = stream.avail_out as usize;
            out(&self.room[..ROOM - left]);
            match code {
                Z_STREAM_END => return Ok(()),
                Z_OK | Z_BUF_ERROR if left == 0 || read < plain.len() => {}
                Z_OK | Z_BUF_ERROR if !last => return Ok(()),
                code => return Err(failed("encode", code)),
            }
        }
    }
}

impl Drop for StockZlib {
    fn drop(&mut self) {
        // SAFETY: the stream was initialised by `new` and is not used again. The result only tells whether
        // bytes were left over.
        unsafe { deflateEnd(&mut *self.stream) };
    }
}
