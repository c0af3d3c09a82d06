//! Parses server-sent events: lines, of which those that begin with `data:` matter here; an empty one ends an
//! event.

/// Maximum number of bytes in a line, and in an event.
const EVENT_MAX: usize = 64 << 10;

/// Bytes of an incomplete event.
#[derive(Debug, Default)]
pub(super) struct Events {
    line: Vec<u8>,
    data: Vec<u8>,
    /// True if the event has data; an empty line is data too.
    any: bool,
}

impl Events {
    /// Adds bytes, and calls `hear` with the data of every completed event.
    pub(super) fn take(&mut self, bytes: &[u8], mut hear: impl FnMut(&[u8])) -> Result<(), &'static str> {
        for byte in bytes {
            if *byte != b'\n' {
                if self.line.len() == EVENT_MAX {
                    return Err("it sends a line without an end");
                }
                self.line.push(*byte);
                continue;
            }
            let line = std::mem::take(&mut self.line);
            let line = line.strip_suffix(b"\r").unwrap_or(&line);
            match line.strip_prefix(b"data:") {
                Some(data) => self.add(data.strip_prefix(b" ").unwrap_or(data))?,
                None if line.is_empty() && std::mem::take(&mut self.any) => {
                    hear(&std::mem::take(&mut self.data));
                }
                // Names and ids of events, comments, and unknown fields.
                None => {}
            }
        }
        Ok(())
    }

    fn add(&mut self, data: &[u8]) -> Result<(), &'static str> {
        if self.data.len() + data.len() > EVENT_MAX {
            return Err("it sends an event without an end");
        }
        if std::mem::replace(&mut self.any, true) {
            self.data.push(b'\n');
        }
        self.data.extend_from_slice(data);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn heard(stream: &[u8], piece: usize) -> (Vec<String>, Result<(), &'static str>) {
        let (mut events, mut all) = (Events::default(), Vec::new());
        let outcome = stream.chunks(piece).try_for_each(|bytes| {
            events.take(bytes, |data| all.push(String::from_utf8_lossy(data).into_owned()))
        });
        (all, outcome)
    }

    #[test]
    fn events_are_complete_for_any_division_of_the_bytes() {
        let stream = b":\n\nevent: revision\nid: 1\ndata: {\"a\":1}\n\ndata:x\r\ndata: y\r\n\r\ndata\n\n:\n\ndata: cut";
        for piece in 1..stream.len() {
            let expected = vec!["{\"a\":1}".to_owned(), "x\ny".to_owned()];
            assert_eq!(heard(stream, piece), (expected, Ok(())), "in pieces of {piece}");
        }
    }

    #[test]
    fn an_endless_event_is_refused() {
        let line = vec![b'x'; EVENT_MAX + 1];
        assert!(heard(&line, 1000).1.is_err());
        let event = b"data: 0123456789\n".repeat(EVENT_MAX / 10);
        assert!(heard(&event, 1000).1.is_err());
    }
}
