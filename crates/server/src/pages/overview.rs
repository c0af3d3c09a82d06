//! Page with all repositories.

use esker_format::time::UnixTime;
use maud::{Markup, html};

use super::address;
use super::badge::{Level, badge, by_age};
use super::chart;
use super::layout::{self, Part, column, number_column, table};
use super::numbers::{ago, counted, duration, grouped, size};
use crate::dashboard::{Head, Known, Point, RepositoryState, TagSummary};

const HOUR: i64 = 3600;
const DAY: i64 = 24 * HOUR;
/// Number of repositories on the page.
const LISTED: usize = 1000;

/// Returns the page. Only repositories whose name contains `filter` are listed.
pub(crate) fn page(states: &[RepositoryState], filter: &str, now: UnixTime) -> Markup {
    let wanted = filter.to_ascii_lowercase();
    let shown: Vec<&RepositoryState> =
        states.iter().filter(|state| state.folder.to_ascii_lowercase().contains(&wanted)).collect();
    let body = html! {
        h1 { "Software repositories" }
        @if states.is_empty() {
            p { "No repository is in the served folders." }
        } @else {
            form.filter role="search" action="/" method="get" {
                label for="q" { "Name contains" }
                input #q type="search" name="q" value=(filter) maxlength="100" autocomplete="off";
                button { "Filter" }
            }
            (repositories(&shown, states.len(), now))
        }
    };
    layout::page("Repositories", Part::Repositories, &body)
}

fn repositories(shown: &[&RepositoryState], all: usize, now: UnixTime) -> Markup {
    let count = counted(all as u64, "repository", "repositories");
    let listed = shown.len().min(LISTED);
    let caption = if listed < all { format!("{listed} of {count}") } else { count };
    let head = html! {
        (column("Repository"))
        (number_column("Revision"))
        (column("Last publish"))
        (number_column("Size"))
        (number_column("Entries"))
        (column("Tags"))
        (column("Replication"))
        (column("Check"))
        (column("Collect"))
        (column("Whitelist"))
    };
    let rows = html! { @for state in shown.iter().take(LISTED) { (row(state, now)) } };
    html! {
        (table(&caption, &head, &rows))
        @if listed < shown.len() { p { "There are more: filter them by name." } }
    }
}

fn row(state: &RepositoryState, now: UnixTime) -> Markup {
    html! {
        tr {
            th scope="row" {
                a href=(address::of(&state.folder, "")) { (state.folder) }
                @if let Some(name) = other_name(state) { small { "named " (name) } }
            }
            @match &state.head {
                Err(reason) => { td.wrap colspan="5" { (badge(Level::Bad, "unreadable")) " " (reason) } }
                Ok(head) => {
                    td.n data-live=(format!("{} revision", state.folder)) { (grouped(head.revision)) }
                    td data-live=(format!("{} published", state.folder)) { (ago(head.published, now)) }
                    (sizes(&state.sizes))
                    td { (tags(&state.tags)) }
                }
            }
            td { (replication(state, now)) }
            td { (check(state, now)) }
            td { (collect(state, now)) }
            td { (whitelist(state, now)) }
        }
    }
}

/// Returns the name in the manifest if the folder has another one.
fn other_name(state: &RepositoryState) -> Option<&str> {
    let Head { name, .. } = state.head.as_ref().ok()?;
    (*name != state.folder).then_some(name.as_str())
}

fn sizes(sizes: &Known<Vec<Point>>) -> Markup {
    match sizes {
        Known::Pending => html! { td.n colspan="2" { "being read" } },
        Known::Failed(reason) => {
            html! { td.wrap colspan="2" { (badge(Level::Bad, "unreadable")) " " (reason) } }
        }
        Known::Value(points) => {
            let (bytes, entries) = points.last().map_or((0, 0), |point| (point.bytes, point.entries));
            html! {
                td.n { (size(bytes)) (size_line(points, false)) }
                td.n { (grouped(entries)) }
            }
        }
    }
}

/// Returns the chart of a repository's size.
pub(crate) fn size_line(points: &[Point], is_large: bool) -> Markup {
    let values: Vec<u64> = points.iter().map(|point| point.bytes).collect();
    let (Some(first), Some(last)) = (points.first(), points.last()) else { return html! {} };
    let label = format!(
        "Size from {} in revision {} to {} in revision {}",
        size(first.bytes),
        first.revision,
        size(last.bytes),
        last.revision
    );
    if is_large { chart::large(&values, &label, None) } else { chart::small(&values, &label) }
}

/// Returns the number of tags and the newest of them.
pub(crate) fn tags(tags: &Known<TagSummary>) -> Markup {
    match tags {
        Known::Pending => html! { "being read" },
        Known::Failed(reason) => html! { (badge(Level::Bad, "unreadable")) " " (reason) },
        Known::Value(tags) if tags.count == 0 => html! { "none" },
        Known::Value(tags) => html! {
            (grouped(tags.count as u64))
            @if !tags.newest.is_empty() { small { (tags.newest.join(", ")) } }
        },
    }
}

/// Returns when a replica was updated. The limits are those of other monitors of CernVM-FS servers.
pub(crate) fn replication(state: &RepositoryState, now: UnixTime) -> Markup {
    if !state.replica {
        return html! { (badge(Level::Plain, "publisher")) };
    }
    let Some(last) = state.status.last_snapshot else { return html! { (badge(Level::Plain, "replica")) } };
    let lag = now.0.saturating_sub(last.0);
    let level = by_age(lag, 8 * HOUR, DAY);
    let words = if level == Level::Good { "replica" } else { "replica is late" };
    html! { (badge(level, words)) small { "updated " (ago(last, now)) } }
}

/// Returns the result of the last check.
pub(crate) fn check(state: &RepositoryState, now: UnixTime) -> Markup {
    let when = html! { @if let Some(last) = state.status.last_check { small { (ago(last, now)) } } };
    match (state.status.check_succeeded, state.status.last_check) {
        (Some(true), _) => html! { (badge(Level::Good, "passed")) (when) },
        (Some(false), _) => html! { (badge(Level::Bad, "failed")) (when) },
        (None, Some(_)) => html! { (badge(Level::Plain, "unknown")) (when) },
        (None, None) => html! { (badge(Level::Plain, "never")) },
    }
}

/// Returns the time of the last garbage collection.
pub(crate) fn collect(state: &RepositoryState, now: UnixTime) -> Markup {
    let is_collectable = state.head.as_ref().is_ok_and(|head| head.collectable);
    match state.status.last_collect {
        Some(last) => {
            let age = now.0.saturating_sub(last.0);
            let level = by_age(age, 10 * DAY, 20 * DAY);
            let words = if level == Level::Good { "done" } else { "late" };
            html! { (badge(level, words)) small { (ago(last, now)) } }
        }
        None if is_collectable => html! { (badge(Level::Plain, "never")) },
        None => html! { (badge(Level::Plain, "off")) },
    }
}

/// Returns how long the whitelist is valid: clients refuse the repository afterwards.
pub(crate) fn whitelist(state: &RepositoryState, now: UnixTime) -> Markup {
    match &state.whitelist {
        Err(reason) => html! { (badge(Level::Bad, "unreadable")) small { (reason) } },
        Ok(expires) => {
            let left = expires.0.saturating_sub(now.0);
            match left {
                ..=0 => html! { (badge(Level::Bad, "expired")) small { (ago(*expires, now)) } },
                _ => {
                    let level = if left < 7 * DAY { Level::Warning } else { Level::Good };
                    html! { (badge(level, &format!("{} left", duration(left)))) }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dashboard::Status;

    const NOW: UnixTime = UnixTime(1_800_000_000);

    fn state() -> RepositoryState {
        RepositoryState {
            folder: "a.test".to_owned(),
            replica: true,
            head: Err("gone".to_owned()),
            status: Status::default(),
            whitelist: Ok(UnixTime(NOW.0 + 30 * DAY)),
            tags: Known::Pending,
            sizes: Known::Pending,
        }
    }

    #[test]
    fn maintenance_is_judged_by_its_age() {
        let words = |change: &dyn Fn(&mut RepositoryState),
                     show: fn(&RepositoryState, UnixTime) -> Markup| {
            let mut state = state();
            change(&mut state);
            show(&state, NOW).into_string()
        };
        let since = |seconds: i64| Some(UnixTime(NOW.0 - seconds));
        let lag = |seconds: i64| words(&|state| state.status.last_snapshot = since(seconds), replication);
        assert!(lag(HOUR).contains("\"badge good\">replica<"), "{}", lag(HOUR));
        assert!(lag(9 * HOUR).contains("\"badge warning\">replica is late<"));
        assert!(lag(25 * HOUR).contains("\"badge bad\">") && lag(25 * HOUR).contains(">25 hours ago<"));
        assert!(words(&|state| state.replica = false, replication).contains("publisher"));
        let collected = |seconds: i64| words(&|state| state.status.last_collect = since(seconds), collect);
        assert!(collected(DAY).contains("good") && collected(11 * DAY).contains("warning"));
        assert!(collected(21 * DAY).contains("bad"));
        let checked = |passed: bool| words(&|state| state.status.check_succeeded = Some(passed), check);
        assert!(checked(true).contains("passed") && checked(false).contains("\"badge bad\">failed"));
        let valid = |seconds: i64| words(&|state| state.whitelist = Ok(UnixTime(NOW.0 + seconds)), whitelist);
        assert!(valid(30 * DAY).contains("\"badge good\">30 days left"));
        assert!(valid(3 * DAY).contains("\"badge warning\">3 days left") && valid(0).contains("expired"));
    }

    #[test]
    fn repositories_are_filtered_by_name_and_names_are_escaped() {
        let states = [state(), RepositoryState { folder: "other.test".to_owned(), ..state() }];
        let shown = page(&states, "OTHER", NOW).into_string();
        assert!(shown.contains("1 of 2 repositories") && !shown.contains("a.test<"), "{shown}");
        let evil = page(&states, "\"><script>", NOW).into_string();
        assert!(!evil.contains("<script>") && evil.contains("0 of 2 repositories"), "{evil}");
        assert!(page(&[], "", NOW).into_string().contains("No repository"));
    }
}
