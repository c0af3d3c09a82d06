//! Passes a body on while it arrives: that of an object for which there is no room.
//!
//! What was passed on can't be taken back. So the last bytes are held back until the hash of all is known, and are passed on
//! only if it is right. An attempt that fails is followed by another one from the first byte on, whose beginning is left out:
//! the hash tells whether both fit together.

use bytes::Bytes;
use esker_format::canary;
use esker_format::hash::{ContentHash, Hasher};
use parking_lot::Mutex;
use tokio::sync::mpsc;

use crate::error::Cause;

/// Number of bytes that are held back until the hash is known.
const HELD_BACK: usize = 16 << 10;
/// Maximum number of parts that wait for the reader.
const WAITING_MAX: usize = 2;
/// Largest part.
const PART_MAX: usize = 64 << 10;

/// A part of a relayed response.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RelayPart {
    /// The response begins; its length, if the server announced one.
    Begin(Option<u64>),
    /// The next bytes.
    Bytes(Bytes),
    /// All bytes were passed on, and their hash is right.
    End,
}

/// The writing side of a relayed body.
pub struct Relay {
    parts: mpsc::Sender<RelayPart>,
    state: Mutex<State>,
}

struct State {
    expected: ContentHash,
    /// Hash of the body so far, over all attempts; `None` after the last byte.
    hasher: Option<Hasher>,
    /// Number of these bytes.
    known: u64,
    /// Number of bytes that came in this attempt.
    came: u64,
    /// The last of the known bytes, which are not passed on yet.
    held_back: Vec<u8>,
    /// Length that the first attempt announced; none before it.
    announced: Option<Option<u64>>,
}

impl Relay {
    /// Creates a relay for a body with this hash, and the receiver of its parts.
    pub fn new(expected: ContentHash) -> (Self, mpsc::Receiver<RelayPart>) {
        let (parts, receiver) = mpsc::channel(WAITING_MAX);
        let state = State {
            expected,
            hasher: Some(Hasher::new(expected.algorithm())),
            known: 0,
            came: 0,
            held_back: Vec::new(),
            announced: None,
        };
        (Self { parts, state: Mutex::new(state) }, receiver)
    }

    /// Returns the number of bytes that came so far.
    pub fn known(&self) -> u64 {
        self.state.lock().known
    }

    /// Returns true if all bytes came and their hash is wrong.
    pub fn is_wrong(&self) -> bool {
        let state = self.state.lock();
        state.hasher.is_none() && !state.held_back.is_empty()
    }

    /// Begins an attempt.
    pub(super) async fn begin(&self, announced: Option<u64>) -> Result<(), Cause> {
        if self.state.lock().begin(announced)? {
            self.pass(RelayPart::Begin(announced)).await?;
        }
        Ok(())
    }

    /// Takes the next bytes of an attempt; returns true if the reader was waited for.
    pub(super) async fn take(&self, bytes: &[u8]) -> Result<bool, Cause> {
        let ready = self.state.lock().ready(bytes);
        let mut has_waited = false;
        for part in ready.chunks(PART_MAX) {
            has_waited |= self.pass(RelayPart::Bytes(Bytes::copy_from_slice(part))).await?;
        }
        Ok(has_waited)
    }

    /// Ends the body: passes the last bytes on if the hash of all is right.
    pub(super) async fn finish(&self) -> Result<(), Cause> {
        let last = self.state.lock().last()?;
        self.pass(RelayPart::Bytes(last.into())).await?;
        self.pass(RelayPart::End).await.map(drop)
    }

    /// Passes a part on; returns true if that took waiting.
    async fn pass(&self, part: RelayPart) -> Result<bool, Cause> {
        match self.parts.try_send(part) {
            Ok(()) => Ok(false),
            Err(mpsc::error::TrySendError::Full(part)) => {
                self.parts.send(part).await.map_err(|_| Cause::Closed).map(|()| true)
            }
            // The reader is gone.
            Err(mpsc::error::TrySendError::Closed(_)) => Err(Cause::Closed),
        }
    }
}

impl State {
    /// Begins an attempt; returns true if it is the first.
    fn begin(&mut self, announced: Option<u64>) -> Result<bool, Cause> {
        if self.hasher.is_none() {
            // The last bytes were wrong: no other server can mend what was passed on.
            return Err(Cause::Closed);
        }
        self.came = 0;
        match self.announced.replace(announced) {
            None => Ok(true),
            // The reader was told the length.
            Some(Some(len)) if announced.is_some_and(|now| now != len) => {
                self.announced = Some(Some(len));
                Err(Cause::Changed)
            }
            Some(before) => {
                self.announced = Some(before);
                Ok(false)
            }
        }
    }

    /// Takes bytes of an attempt; returns those that may be passed on now.
    fn ready(&mut self, bytes: &[u8]) -> Vec<u8> {
        let old = usize::try_from(self.known - self.came.min(self.known)).unwrap_or(usize::MAX);
        self.came += bytes.len() as u64;
        let new = bytes.get(old.min(bytes.len())..).unwrap_or_default();
        self.known += new.len() as u64;
        if let Some(hasher) = &mut self.hasher {
            hasher.update(new);
        }
        self.held_back.extend_from_slice(new);
        let ready = self.held_back.len().saturating_sub(HELD_BACK);
        let held_back = self.held_back.split_off(ready);
        std::mem::replace(&mut self.held_back, held_back)
    }

    /// Returns the last bytes if the hash of all is right.
    fn last(&mut self) -> Result<Vec<u8>, Cause> {
        if self.came < self.known {
            return Err(Cause::Broken("it ended before the bytes that came earlier".to_owned()));
        }
        let actual = self.hasher.take().map(Hasher::finish).ok_or(Cause::Closed)?;
        if actual != self.expected && !canary::skipped("relayed-hash") {
            return Err(Cause::Corrupt { expected: self.expected, actual, len: self.known, html: false });
        }
        Ok(std::mem::take(&mut self.held_back))
    }
}

#[cfg(test)]
mod tests {
    use esker_format::hash::HashAlgorithm;

    use super::*;

    fn relay(content: &[u8]) -> (Relay, mpsc::Receiver<RelayPart>) {
        Relay::new(ContentHash::of(HashAlgorithm::Sha1, content))
    }

    async fn all(mut parts: mpsc::Receiver<RelayPart>) -> (Vec<u8>, bool) {
        let (mut bytes, mut is_whole) = (Vec::new(), false);
        while let Some(part) = parts.recv().await {
            match part {
                RelayPart::Begin(_) => {}
                RelayPart::Bytes(part) => bytes.extend_from_slice(&part),
                RelayPart::End => is_whole = true,
            }
        }
        (bytes, is_whole)
    }

    fn content() -> Vec<u8> {
        (0..300_000u32).map(|number| (number * 7 % 251) as u8).collect()
    }

    #[tokio::test]
    async fn a_second_attempt_continues_the_first() {
        let content = content();
        let (relay, parts) = relay(&content);
        let sending = async {
            relay.begin(Some(content.len() as u64)).await.unwrap();
            relay.take(&content[..100_000]).await.unwrap();
            assert!(relay.begin(Some(5)).await.is_err(), "another length");
            relay.begin(Some(content.len() as u64)).await.unwrap();
            for piece in content.chunks(30_001) {
                relay.take(piece).await.unwrap();
            }
            relay.finish().await.unwrap();
            drop(relay);
        };
        let (_, (bytes, is_whole)) = tokio::join!(sending, all(parts));
        assert!(bytes == content && is_whole);
    }

    #[tokio::test]
    async fn the_last_bytes_of_wrong_ones_are_not_passed_on() {
        let content = content();
        let (relay, parts) = relay(b"other");
        let sending = async {
            relay.begin(None).await.unwrap();
            relay.take(&content).await.unwrap();
            assert!(matches!(relay.finish().await, Err(Cause::Corrupt { .. })));
            assert!(relay.begin(None).await.is_err(), "nothing mends what was passed on");
            drop(relay);
        };
        let (_, (bytes, is_whole)) = tokio::join!(sending, all(parts));
        assert!(bytes.len() < content.len() && !is_whole);
    }

    #[tokio::test]
    async fn an_attempt_that_ends_early_is_no_end() {
        let content = content();
        let (relay, parts) = relay(&content[..50]);
        relay.begin(None).await.unwrap();
        relay.take(&content[..60]).await.unwrap();
        relay.begin(None).await.unwrap();
        relay.take(&content[..50]).await.unwrap();
        assert!(matches!(relay.finish().await, Err(Cause::Broken(_))));
        drop(parts);
    }
}
