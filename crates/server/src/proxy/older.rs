//! Finds a head that clients can read whole while the servers of the newest one are away.
//!
//! Objects of the newest revision that the cache lacks are nowhere then. A client without a revision of its own gets the one
//! before, which the living servers have; a client that has the newest one refuses it and keeps what it has
//! (docs/decisions/0185-older-heads-of-a-proxy.md).

use std::sync::Arc;
use std::time::Duration;

use esker_format::manifest;
use esker_format::trust::{AcceptedHead, ClaimedHead};

use super::agreement::offered_heads;
use super::files::{ConfirmedFile, head_of};
use super::heads::Heads;
use super::objects::Object;
use super::place::Place;

impl Heads {
    /// Returns the newest head of the servers that answer, if it is verified and older than the kept one, and others are away.
    pub(super) async fn older_head(self: &Arc<Self>, place: &Arc<Place>) -> Option<ConfirmedFile> {
        let name = place.name.as_ref()?;
        let keys = (self.options.keys)(name)?;
        let newest = head_of(place.files.get(manifest::PATH)?.bytes()?)?;
        let offered = offered_heads(&self.objects.upstream, place).await?;
        // A server that took all of them back has its reason, or is an attacker.
        if offered.len() == place.urls.len() {
            return None;
        }
        let (head, bytes) = offered.into_iter().max_by_key(|(head, _)| head.revision)?;
        if head.revision >= newest.revision || !is_recent(&head, &newest, self.options.stale_age) {
            return None;
        }
        let claimed = ClaimedHead::parse(&bytes).ok()?;
        self.verify(place, (name, &keys), (&bytes, &claimed), None, false).await.ok()?;
        Some(ConfirmedFile::new(Some(Object::Bytes(bytes)), true))
    }
}

/// Returns true if the newest head replaced this one, or was signed so short a time after it.
fn is_recent(head: &AcceptedHead, newest: &AcceptedHead, time: Duration) -> bool {
    let seconds = newest.timestamp.0.saturating_sub(head.timestamp.0);
    head.revision + 1 == newest.revision
        || u64::try_from(seconds).is_ok_and(|seconds| seconds <= time.as_secs())
}

#[cfg(test)]
mod tests {
    use esker_format::hash::{ContentHash, HashAlgorithm};
    use esker_format::time::UnixTime;

    use super::*;

    #[test]
    fn only_recent_heads_take_the_place_of_the_newest() {
        let head = |revision, seconds| {
            let root = ContentHash::of(HashAlgorithm::Sha1, b"");
            AcceptedHead { revision, timestamp: UnixTime(seconds), root, whitelist: None }
        };
        let newest = head(10, 1000);
        for (revision, seconds, is_expected) in
            [(9, 0, true), (8, 900, true), (8, 899, false), (8, 1001, false)]
        {
            let found = is_recent(&head(revision, seconds), &newest, Duration::from_secs(100));
            assert_eq!(found, is_expected, "{revision} {seconds}");
        }
    }
}
