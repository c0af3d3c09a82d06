//! The interface of `cvmfs-servermon` for this server: `/cvmfsmon/api/v1.0/TESTS&format=FORMAT`.
//!
//! The reference's program runs beside several servers and reads their status files. Here a server answers for itself,
//! so the parameter `server` is accepted and not used.

use std::collections::BTreeMap;

use esker_format::time::UnixTime;
use serde_json::json;

use crate::dashboard::RepositoryState;

const HOUR: i64 = 3600;
/// Age of the last replication for a warning and for a failure.
const UPDATED: (i64, i64) = (8 * HOUR, 24 * HOUR);
/// Age of the last garbage collection for a warning and for a failure.
const COLLECTED: (i64, i64) = (240 * HOUR, 480 * HOUR);
/// Factor of the limits during the first replication.
const FIRST: i64 = 9;

/// Level of a result.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Level {
    Ok,
    Warning,
    Critical,
}

impl Level {
    fn name(self) -> &'static str {
        match self {
            Self::Ok => "OK",
            Self::Warning => "WARNING",
            Self::Critical => "CRITICAL",
        }
    }

    fn of(age: i64, (warning, critical): (i64, i64)) -> Self {
        match age {
            age if age >= critical => Self::Critical,
            age if age >= warning => Self::Warning,
            _ => Self::Ok,
        }
    }
}

/// Form of an answer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Form {
    /// Repositories by level.
    #[default]
    List,
    /// The worst level.
    Status,
    /// Results of all tests as JSON.
    Details,
}

/// A request: which tests, in which form.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Query {
    updated: bool,
    collected: bool,
    form: Form,
}

impl Query {
    /// Reads `TESTS&format=…&server=…`; an error tells what isn't known.
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        let mut parts = text.split(['&', '?']);
        let mut query = Self { updated: false, collected: false, form: Form::default() };
        for test in parts.next().unwrap_or_default().split(',') {
            match test {
                "ok" => {}
                "updated" => query.updated = true,
                "gc" => query.collected = true,
                "all" => (query.updated, query.collected) = (true, true),
                other => return Err(format!("unknown test {other}: use ok, updated, gc or all")),
            }
        }
        for part in parts.filter(|part| !part.is_empty()) {
            query.form = match part.split_once('=') {
                Some(("format", "list")) => Form::List,
                Some(("format", "status")) => Form::Status,
                Some(("format", "details")) => Form::Details,
                Some(("server", _)) => query.form,
                _ => return Err(format!("unknown parameter {part}: use format=list, status or details")),
            };
        }
        Ok(query)
    }

    /// Returns the type and the text of the answer.
    pub(crate) fn answer(&self, repositories: &[RepositoryState], now: i64) -> (&'static str, String) {
        let results: Vec<_> = repositories.iter().flat_map(|one| self.results(one, now)).collect();
        let worst = results.iter().map(|result| result.level).max().unwrap_or(Level::Ok);
        match self.form {
            Form::Status => ("text/plain", format!("{}\n", worst.name())),
            Form::List => ("text/plain", list(repositories, &results)),
            Form::Details => {
                let results: Vec<_> = results
                    .iter()
                    .map(|result| {
                        json!({
                            "repository": result.repository,
                            "test": result.test,
                            "status": result.level.name(),
                            "message": result.message,
                        })
                    })
                    .collect();
                ("application/json", format!("{:#}\n", json!({ "status": worst.name(), "results": results })))
            }
        }
    }

    fn results<'a>(&self, one: &'a RepositoryState, now: i64) -> Vec<TestResult<'a>> {
        let mut results = Vec::new();
        let aged = |test, what: &str, since: UnixTime, limits| {
            let age = now.saturating_sub(since.0).max(0);
            let (level, message) = (Level::of(age, limits), format!("{what} {} hours ago", age / HOUR));
            TestResult { repository: &one.folder, test, level, message }
        };
        if self.updated {
            // A repository that is published here is never replicated.
            match (one.status.last_snapshot, one.status.snapshotting_since) {
                (Some(last), _) => results.push(aged("updated", "last replication", last, UPDATED)),
                (None, Some(since)) => {
                    let limits = (UPDATED.0 * FIRST, UPDATED.1 * FIRST);
                    results.push(aged("updated", "first replication began", since, limits));
                }
                (None, None) => {}
            }
        }
        if let Some(last) = one.status.last_collect.filter(|_| self.collected) {
            results.push(aged("gc", "last garbage collection", last, COLLECTED));
        }
        results
    }
}

/// Result of a test of a repository.
struct TestResult<'a> {
    repository: &'a str,
    test: &'static str,
    level: Level,
    message: String,
}

fn list(repositories: &[RepositoryState], results: &[TestResult<'_>]) -> String {
    let mut levels = BTreeMap::<&str, Level>::new();
    for one in repositories {
        levels.insert(&one.folder, Level::Ok);
    }
    for result in results {
        let level = levels.entry(result.repository).or_insert(Level::Ok);
        *level = (*level).max(result.level);
    }
    let mut text = String::new();
    for level in [Level::Critical, Level::Warning, Level::Ok] {
        let names: Vec<_> = levels.iter().filter(|(_, of)| **of == level).map(|(name, _)| *name).collect();
        if !names.is_empty() {
            text.push_str(&format!("{}:{}\n", level.name(), names.join(",")));
        }
    }
    if text.is_empty() { "OK:\n".to_owned() } else { text }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use esker_store::Links;

    use super::*;
    use crate::dashboard::Status;
    use crate::file::Folder;

    fn repositories() -> [RepositoryState; 4] {
        let folder = tempfile::tempdir().expect("a folder");
        let folder = Folder::named(folder.path(), &Arc::new(Links::Into(Vec::new())));
        let named = |name: &str, status| RepositoryState { status, ..RepositoryState::of(name, &folder) };
        let hours = |hours: i64| Some(UnixTime(hours * HOUR));
        [
            named("published.test", Status::default()),
            named("late.test", Status { last_snapshot: hours(-9), ..Status::default() }),
            named(
                "full.test",
                Status { last_snapshot: hours(0), last_collect: hours(-480), ..Status::default() },
            ),
            named("new.test", Status { snapshotting_since: hours(-70), ..Status::default() }),
        ]
    }

    fn answer(query: &str) -> String {
        Query::parse(query).expect(query).answer(&repositories(), 0).1
    }

    #[test]
    fn each_repository_has_its_worst_level() {
        assert_eq!(answer("all&format=status&server=x"), "CRITICAL\n");
        assert_eq!(answer("all"), "CRITICAL:full.test\nWARNING:late.test\nOK:new.test,published.test\n");
        assert_eq!(
            answer("updated&format=list"),
            "WARNING:late.test\nOK:full.test,new.test,published.test\n"
        );
        assert_eq!(answer("ok&format=status"), "OK\n");
        let details: serde_json::Value = serde_json::from_str(&answer("gc&format=details")).expect("JSON");
        assert_eq!(details["results"][0]["message"], "last garbage collection 480 hours ago");
        assert_eq!(Query::parse("ok").expect("a query").answer(&[], 0).1, "OK:\n");
    }

    #[test]
    fn unknown_tests_and_parameters_are_named() {
        for (query, named) in [("geo", "geo"), ("ok&format=xml", "format=xml"), ("ok&a", "a")] {
            assert!(Query::parse(query).expect_err(query).contains(named), "{query}");
        }
    }
}
