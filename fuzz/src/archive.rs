//! Whatever an archive holds: reading it ends, with entries that Linux can have or with an error that says what is wrong, and takes no
//! more memory than its bounds, which the options of the fuzzer check.

use std::io::Read as _;

use esker_archive::{Kind, Reader, decompressed, normalised};

/// How much of each file is read, and of what a compression hides.
const READ_MAX: u64 = 1 << 20;
/// Bytes of an archive without its compression.
const PLAIN_MAX: u64 = 8 << 20;

/// Checks any bytes; returns how many entries were found, or why the rest of them can't be read.
pub fn check(bytes: &[u8]) -> Result<usize, String> {
    let plain = read(bytes);
    if let Ok(stream) = decompressed(bytes) {
        let mut reader = Reader::new(stream.take(PLAIN_MAX));
        while let Ok(Some(_)) = reader.next() {}
    }
    plain
}

fn read(bytes: &[u8]) -> Result<usize, String> {
    let mut reader = Reader::new(bytes);
    let mut count = 0;
    let mut last = 0;
    loop {
        let entry = match reader.next() {
            Ok(Some(entry)) => entry,
            Ok(None) => return Ok(count),
            Err(error) => {
                let text = error.to_string();
                assert!(!text.is_empty());
                return Err(text);
            }
        };
        count += 1;
        assert!(count == 1 || entry.offset > last, "entries go on");
        last = entry.offset;
        assert!(reader.position() <= bytes.len() as u64);
        assert_eq!(normalised(&entry.path).as_deref(), Ok(&*entry.path), "a path needs no more care");
        assert!(entry.uid < u32::MAX && entry.gid < u32::MAX && entry.mode <= 0o7777);
        assert!(entry.mtime.nanoseconds < 1_000_000_000);
        assert!(entry.xattrs.is_sorted_by(|a, b| a.0 < b.0), "each attribute once");
        match &entry.kind {
            Kind::Symlink(target) => assert!((1..=4095).contains(&target.len()) && !target.contains(&0)),
            Kind::Hardlink(target) => {
                assert!(!target.is_empty());
                assert_eq!(normalised(target).as_deref(), Ok(&**target));
            }
            Kind::CharDevice(device) | Kind::BlockDevice(device) => {
                assert!(device.major < 1 << 12 && device.minor < 1 << 20);
            }
            Kind::File(data) => {
                let size = data.size;
                let mut content = Vec::new();
                if reader.content().take(READ_MAX).read_to_end(&mut content).is_ok() {
                    assert_eq!(content.len() as u64, size.min(READ_MAX), "content is as long as it says");
                }
            }
            Kind::Directory | Kind::Fifo => {}
        }
    }
}
