//! Chooses a head when several servers have different ones and no key is known.
//!
//! A server that forges a head with a high revision must not displace what the others have. So a new head is compared with
//! what each server says now, and nothing of the decision is kept beyond the time for which manifests are fresh
//! (docs/decisions/0169-heads-without-keys.md).

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use esker_format::manifest;
use esker_format::name::RepositoryName;
use esker_format::trust::{self, AcceptedHead};
use esker_store::{Cause, Check, Expected, Fetch, Stored};
use tokio::time::timeout;

use super::files::head_of;
use super::heads::SIGNED_MAX;
use super::place::Place;
use super::upstream::Upstream;

/// Longest wait for the answers of all servers.
const ANSWER_MAX: Duration = Duration::from_secs(2);
/// Maximum number of revisions that one of two servers may be ahead of the other.
const AHEAD_MAX: u64 = 1000;

/// Asks each server for its manifest, and returns the one to hand on; `None` if no server answers.
pub(crate) async fn agreed_manifest(upstream: &Arc<Upstream>, place: &Arc<Place>) -> Option<Bytes> {
    choose(&offered_heads(upstream, place).await?).cloned()
}

/// Asks each server for its manifest, and returns those that answer with one of this repository.
pub(crate) async fn offered_heads(
    upstream: &Arc<Upstream>,
    place: &Arc<Place>,
) -> Option<Vec<(AcceptedHead, Bytes)>> {
    let check = check(place.name.clone()?);
    let ask = |source| {
        let mut fetch = Fetch::new(manifest::PATH, place.title(), SIGNED_MAX);
        fetch.expected = Expected::Checked(check.clone());
        let upstream = upstream.clone();
        tokio::spawn(async move {
            let stored = timeout(ANSWER_MAX, upstream.file_at(&source, fetch)).await.ok()?.ok()?;
            let bytes = Stored::into_bytes(stored).ok()?;
            Some((head_of(&bytes)?, Bytes::from(bytes)))
        })
    };
    let asking: Vec<_> = upstream.each(place).ok()?.into_iter().map(ask).collect();
    let mut answers = Vec::new();
    for answer in asking {
        answers.extend(answer.await.ok().flatten());
    }
    Some(answers)
}

fn check(name: RepositoryName) -> Check {
    Arc::new(move |bytes: &[u8]| {
        trust::check_offered_manifest(bytes, &name, None).map_err(Cause::Untrusted)?;
        head_of(bytes).map(drop).ok_or_else(|| Cause::Broken("the manifest is malformed".to_owned()))
    })
}

/// Returns the newest head that at least half of the servers have, or a newer one. One of two servers may be ahead of the other,
/// but not by any number of revisions.
fn choose<T>(answers: &[(AcceptedHead, T)]) -> Option<&T> {
    let mut newest_first: Vec<_> = answers.iter().collect();
    newest_first.sort_by_key(|(head, _)| std::cmp::Reverse(head.revision));
    let has = |known: &AcceptedHead, head: &AcceptedHead| {
        known.revision > head.revision || (known.revision == head.revision && known.root == head.root)
    };
    let chosen = newest_first.iter().enumerate().find(|(at, (head, _))| {
        let supporters = answers.iter().filter(|(known, _)| has(known, head)).count();
        let next = newest_first.get(at + 1).map(|(next, _)| next.revision);
        let is_plausible =
            supporters > 1 || next.is_none_or(|next| head.revision.saturating_sub(next) <= AHEAD_MAX);
        supporters * 2 >= answers.len() && is_plausible
    });
    // Servers that agree on nothing: the oldest head displaces the least.
    let chosen = chosen.map(|(_, answer)| answer).or(newest_first.last());
    chosen.copied().map(|(_, bytes)| bytes)
}

#[cfg(test)]
mod tests {
    use esker_format::hash::{ContentHash, HashAlgorithm};
    use esker_format::time::UnixTime;

    use super::*;

    /// Heads of these revisions, whose roots differ by the letter after the number.
    fn chosen(heads: &str) -> Option<String> {
        let head = |text: &str| {
            let revision = text.trim_end_matches(char::is_alphabetic).parse().expect("a number");
            let root = ContentHash::of(HashAlgorithm::Sha1, text.as_bytes());
            (AcceptedHead { revision, timestamp: UnixTime(0), root, whitelist: None }, text.to_owned())
        };
        choose(&heads.split_whitespace().map(head).collect::<Vec<_>>()).cloned()
    }

    #[test]
    fn one_server_displaces_nothing_that_the_others_have() {
        for (heads, expected) in [
            ("", None),
            ("7", Some("7")),
            ("10 11", Some("11")),
            ("11 10", Some("11")),
            ("999999 10", Some("10")),
            ("10 10 999999", Some("10")),
            ("11 10 10", Some("10")),
            ("11 11 10", Some("11")),
            ("999999 11 10", Some("11")),
            ("10 10 10 999999", Some("10")),
            ("10a 10b 10b", Some("10b")),
            ("10a 10b", Some("10a")),
        ] {
            assert_eq!(chosen(heads).as_deref(), expected, "{heads}");
        }
    }
}
