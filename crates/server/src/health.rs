//! The state of repositories for monitoring: metrics, the interface of servermon, health and readiness.

use esker_format::manifest::Manifest;
use esker_format::metainfo::ServerStatus;
use esker_format::time::UnixTime;
use esker_format::whitelist::{self, Whitelist};

use crate::file::Folder;
use crate::listing;
use crate::repositories::{Repositories, manifest_of};

/// Maximum size of a whitelist or status in bytes.
const FILE_MAX: u64 = 64 * 1024;

/// What monitoring knows of a repository. Times are seconds since 1970.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct RepositoryHealth {
    /// Name in the URL.
    pub(crate) name: String,
    /// Revision; `None` if there is no readable manifest.
    pub(crate) revision: Option<u64>,
    pub(crate) published: Option<i64>,
    /// Lifetime of the manifest in seconds.
    pub(crate) lifetime: Option<i64>,
    pub(crate) whitelist_expiry: Option<i64>,
    pub(crate) last_snapshot: Option<i64>,
    /// Begin of the first replication, while it is in progress.
    pub(crate) snapshotting_since: Option<i64>,
    pub(crate) last_gc: Option<i64>,
}

/// Reads the state of all repositories, from the disk.
pub(crate) fn of(repositories: &Repositories) -> Vec<RepositoryHealth> {
    repositories.all().into_iter().map(|(name, folder)| of_one(name.as_str(), &folder)).collect()
}

fn of_one(name: &str, folder: &Folder) -> RepositoryHealth {
    let manifest = manifest_of(folder).ok();
    let number = |read: fn(&Manifest) -> i64| manifest.as_ref().map(read);
    let bytes = |path: &str| listing::bytes(folder, path, FILE_MAX).ok();
    let whitelist = bytes(whitelist::PATH).and_then(|bytes| Whitelist::parse(&bytes).ok());
    let written = bytes(ServerStatus::PATH);
    let status = written.as_deref().and_then(|bytes| ServerStatus::parse(bytes).ok()).unwrap_or_default();
    let since = written.and_then(|bytes| serde_json::from_slice::<serde_json::Value>(&bytes).ok());
    let since = since.and_then(|status| date_of(status.get("snapshotting_since")?.as_str()?));
    RepositoryHealth {
        name: name.to_owned(),
        revision: manifest.as_ref().map(|manifest| manifest.revision),
        published: number(|manifest| manifest.timestamp.0),
        lifetime: number(|manifest| manifest.ttl.into()),
        whitelist_expiry: whitelist.map(|whitelist| whitelist.expires.0),
        last_snapshot: status.last_snapshot.as_deref().and_then(date_of),
        snapshotting_since: since,
        last_gc: status.last_gc.as_deref().and_then(date_of),
    }
}

/// Reads the output of `date --utc`, such as `Fri Oct 18 08:01:07 UTC 2024` or `Fri 18 Oct 2024 08:01:07 AM UTC`.
fn date_of(text: &str) -> Option<i64> {
    const MONTHS: [&str; 12] =
        ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];
    let (mut day, mut month, mut year, mut clock, mut afternoon) = (None, None, None, None, None);
    for word in text.split_ascii_whitespace() {
        if let Some(at) = MONTHS.iter().position(|known| *known == word) {
            month = Some(at + 1);
        } else if word.contains(':') {
            clock = Some(word);
        } else if word.len() == 4 && word.bytes().all(|byte| byte.is_ascii_digit()) {
            year = Some(word);
        } else if word.len() <= 2 && word.bytes().all(|byte| byte.is_ascii_digit()) {
            day = word.parse::<u32>().ok();
        } else if word == "AM" || word == "PM" {
            afternoon = Some(word == "PM");
        }
    }
    let mut parts = clock?.split(':').map(|part| part.parse::<u32>().ok());
    let (hour, minute, second) = (parts.next()??, parts.next()??, parts.next()??);
    let hour = match afternoon {
        None => hour,
        Some(is_afternoon) => hour % 12 + if is_afternoon { 12 } else { 0 },
    };
    let compact = format!("{}{:02}{:02}{hour:02}{minute:02}{second:02}", year?, month?, day?);
    UnixTime::parse_compact(compact.as_bytes()).map(|time| time.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_of_the_reference_are_read() {
        for text in [
            "Fri Oct 18 08:01:07 UTC 2024",
            "Fri 18 Oct 2024 08:01:07 AM UTC",
            "Fri Oct 18 08:01:07 AM UTC 2024",
        ] {
            assert_eq!(date_of(text), Some(1_729_238_467), "{text}");
        }
        assert_eq!(date_of("Fri Oct 18 08:01:07 PM UTC 2024"), Some(1_729_238_467 + 12 * 3600));
        assert_eq!(date_of("Fri Oct 18 12:01:07 AM UTC 2024"), Some(1_729_238_467 - 8 * 3600));
        for text in
            ["", "today", "Fri Oct 18 UTC 2024", "Fri Oct 18 8:1 UTC 2024", "Fri Oct 99 08:01:07 UTC 2024"]
        {
            assert_eq!(date_of(text), None, "{text}");
        }
    }
}
