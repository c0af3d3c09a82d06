//! A batch that comes apart is, put together again, the same bytes; so are the names of one.

use esker_format::batch::{Writer, names, path, split};

use super::within;

/// Checks any bytes; the first says how many objects were asked for.
pub fn check(bytes: &[u8]) {
    let Some((count, frame)) = bytes.split_first() else { return };
    if let Some(parts) = within(frame, 4, || split(frame, usize::from(*count))) {
        let mut writer = Writer::new();
        for part in &parts {
            match part {
                Some(stored) => writer.put(stored),
                None => writer.leave_out(),
            }
        }
        assert_eq!((parts.len(), writer.finish().as_slice()), (usize::from(*count), frame));
    }
    let Ok(last) = std::str::from_utf8(frame) else { return };
    if let Some(names) = within(frame, 16, || names(last)) {
        assert_eq!(path(&names), format!(".esker/batch/{last}"));
    }
}
