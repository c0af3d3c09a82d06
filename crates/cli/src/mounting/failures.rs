//! Reports why reads failed while a command ran: the mount and its status are gone with the command.

use esker_node::status::MountStatus;
use esker_view::FailureCause;

/// Name of the cache among a status's errors.
const CACHE: &str = "the cache";

/// Returns one line for each cause of failures since `started`, in seconds of Unix time.
pub(crate) fn lines(causes: &[FailureCause], status: &MountStatus, started: u64) -> Vec<String> {
    let name = &status.repository;
    let last = status.network.route.last_error.as_ref();
    let last = last.filter(|(time, _)| *time >= started).map(|(_, text)| text);
    let line = |FailureCause { first, count }: &FailureCause| {
        let place = match first.object.strip_prefix('/') {
            Some(path) => format!("{name}:/{path}"),
            None => format!("{name}: {}", first.object),
        };
        // A request that timed out lacks the server's error.
        let network = last.filter(|_| first.cause == "timed out");
        let network =
            network.map(|text| format!("; the last request that failed: {text}")).unwrap_or_default();
        let more = match count {
            1 => String::new(),
            2 => " (and 1 more failure for this reason)".to_owned(),
            _ => format!(" (and {} more failures for this reason)", count - 1),
        };
        format!("{place}: {}{network}{more}", first.cause)
    };
    // The process that writes the cache logs it, which for a writer here is stderr.
    let is_told = |error: &&esker_node::status::Failure| {
        error.object == CACHE && error.time >= started && !status.cache.writer
    };
    let disk = status.errors.iter().filter(is_told).map(|error| format!("{CACHE}: {}", error.cause));
    causes.iter().map(line).chain(disk).collect()
}

#[cfg(test)]
mod tests {
    use std::time::SystemTime;

    use esker_node::status::{Cache, Failure};
    use esker_store::{NetworkStatus, RouteStatus};

    use super::*;

    fn cause(object: &str, cause: &str, count: u64) -> FailureCause {
        let (object, cause) = (object.to_owned(), cause.to_owned());
        FailureCause {
            first: esker_view::Failure { time: SystemTime::now(), object, cause, caller: None },
            count,
        }
    }

    #[test]
    fn each_cause_has_a_line() {
        let status = MountStatus { repository: "a.test".into(), ..MountStatus::default() };
        assert!(lines(&[], &status, 0).is_empty());
        let causes = [
            cause("/f", "is damaged: file 9b from http://h: other bytes", 1),
            cause("/g", "can't be fetched now", 2),
            cause("the repository's head", "is damaged: the signature is wrong", 3),
        ];
        assert_eq!(
            lines(&causes, &status, 0),
            [
                "a.test:/f: is damaged: file 9b from http://h: other bytes",
                "a.test:/g: can't be fetched now (and 1 more failure for this reason)",
                "a.test: the repository's head: is damaged: the signature is wrong (and 2 more failures for this reason)",
            ]
        );
    }

    #[test]
    fn a_timeout_reports_the_network_failure() {
        let last_error = Some((10, "http://h: the server can't be reached".to_owned()));
        let route = RouteStatus { last_error, ..RouteStatus::default() };
        let network = NetworkStatus { route, ..NetworkStatus::default() };
        let status = MountStatus { repository: "a.test".into(), network, ..MountStatus::default() };
        let causes = [cause("/f", "timed out", 1), cause("/g", "is damaged", 1)];
        assert_eq!(
            lines(&causes, &status, 10),
            [
                "a.test:/f: timed out; the last request that failed: http://h: the server can't be reached",
                "a.test:/g: is damaged",
            ]
        );
        assert_eq!(lines(&causes, &status, 11)[0], "a.test:/f: timed out", "that was before");
    }

    #[test]
    fn a_full_disk_of_the_cache_writer_is_reported() {
        let full = |time| Failure { time, object: CACHE.into(), cause: "no space".into(), caller: None };
        let status = |time, writer| MountStatus {
            errors: vec![full(time)],
            cache: Cache { writer, ..Cache::default() },
            ..MountStatus::default()
        };
        assert_eq!(lines(&[], &status(10, false), 10), ["the cache: no space"]);
        assert!(lines(&[], &status(9, false), 10).is_empty(), "before the command");
        assert!(lines(&[], &status(10, true), 10).is_empty(), "told at once");
    }
}
