//! Page with all repositories: those with problems first.

mod order;

use esker_format::time::UnixTime;
use maud::{Markup, html};

use super::address;
use super::badge::{Level, badge, by_age};
use super::chart;
use super::layout::{self, Part, column, table};
use super::numbers::{ago, counted, duration, grouped, shown, size};
use crate::dashboard::{Head, Known, Point, RepositoryState, TagSummary};
pub(crate) use order::Order;
use order::problem;

const HOUR: i64 = 3600;
const DAY: i64 = 24 * HOUR;
/// Number of repositories on the page.
const LISTED: usize = 1000;

/// Returns the page. Only repositories whose name contains `filter` are listed.
pub(crate) fn page(states: &[RepositoryState], filter: &str, order: Order, now: UnixTime) -> Markup {
    let wanted = filter.to_ascii_lowercase();
    let mut shown: Vec<&RepositoryState> =
        states.iter().filter(|state| state.folder.to_ascii_lowercase().contains(&wanted)).collect();
    order.sort(&mut shown, now);
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
            (problems(states, now))
            (repositories(&shown, states.len(), (filter, order), now))
        }
    };
    layout::page("Repositories", Part::Repositories, &body)
}

/// Returns how many repositories need a look.
fn problems(states: &[RepositoryState], now: UnixTime) -> Markup {
    let count = |level| states.iter().filter(|state| problem(state, now) == level).count() as u64;
    let (bad, late) = (count(Level::Bad), count(Level::Warning));
    html! {
        p role="status" {
            @if bad > 0 { (badge(Level::Bad, &counted(bad, "problem", "problems"))) " " }
            @if late > 0 { (badge(Level::Warning, &counted(late, "warning", "warnings"))) " " }
            @if bad + late == 0 { (badge(Level::Good, "no problems")) }
        }
    }
}

fn repositories(
    shown: &[&RepositoryState],
    all: usize,
    (filter, order): (&str, Order),
    now: UnixTime,
) -> Markup {
    let count = counted(all as u64, "repository", "repositories");
    let listed = shown.len().min(LISTED);
    let caption = if listed < all { format!("{listed} of {count}") } else { count };
    let by = |text, column: Order| {
        let address = address::with("/", "sort", column.name().as_bytes());
        let address =
            if filter.is_empty() { address } else { address::with(&address, "q", filter.as_bytes()) };
        layout::sorting_column(text, &address, column == order)
    };
    let head = html! {
        (by("Repository", Order::Name))
        (by("Revision", Order::Revision))
        (by("Last publish", Order::Published))
        (by("Size", Order::Size))
        (column("Tags"))
        (by("Replication", Order::Replication))
        (column("Check"))
        (column("Collect"))
        (by("Whitelist", Order::Whitelist))
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
            th.wrap scope="row" {
                a href=(address::of(&state.folder, "")) { (state.folder) }
                @if let Some(name) = other_name(state) { small { "named " (name) } }
            }
            @match &state.head {
                Err(reason) => { td.wrap colspan="4" { (badge(Level::Bad, "unreadable")) " " (reason) } }
                Ok(head) => {
                    td data-live=(format!("{} revision", state.folder)) { (grouped(head.revision)) }
                    td data-live=(format!("{} published", state.folder)) { (ago(head.published, now)) }
                    (sizes(&state.sizes))
                    td.narrow { (tags(&state.tags)) }
                }
            }
            td.narrow { (replication(state, now)) }
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
        Known::Pending => html! { td { "being read" } },
        Known::Failed(reason) => {
            html! { td.wrap { (badge(Level::Bad, "unreadable")) " " (reason) } }
        }
        Known::Value(points) => {
            let (bytes, entries) = points.last().map_or((0, 0), |point| (point.bytes, point.entries));
            html! {
                td {
                    (size(bytes)) (size_line(points, false))
                    small { (counted(entries, "entry", "entries")) }
                }
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
    let most = values.iter().copied().max().unwrap_or_default();
    let axes = chart::Axes {
        top: size(most),
        begin: format!("revision {}", grouped(first.revision)),
        end: format!("revision {}", grouped(last.revision)),
    };
    if is_large { chart::large(&values, &label, &axes, None) } else { chart::small(&values, &label) }
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
    let source = html! {
        @if let Some(source) = &state.status.source { small { "from " (shown(source.as_bytes())) } }
    };
    let Some(last) = state.status.last_snapshot else {
        return html! { (badge(Level::Plain, "replica")) (source) };
    };
    let level = replication_level(state, now);
    let words = if level == Level::Good { "replica" } else { "replica is late" };
    html! { (badge(level, words)) small { "updated " (ago(last, now)) } (source) }
}

/// Returns the level of a replica's age.
fn replication_level(state: &RepositoryState, now: UnixTime) -> Level {
    let lag = state.status.last_snapshot.map(|last| now.0.saturating_sub(last.0));
    lag.filter(|_| state.replica).map_or(Level::Plain, |lag| by_age(lag, 8 * HOUR, DAY))
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
            let level = collect_level(last, now);
            let words = if level == Level::Good { "done" } else { "late" };
            html! { (badge(level, words)) small { (ago(last, now)) } }
        }
        None if is_collectable => html! { (badge(Level::Plain, "never")) },
        None => html! { (badge(Level::Plain, "off")) },
    }
}

fn collect_level(last: UnixTime, now: UnixTime) -> Level {
    by_age(now.0.saturating_sub(last.0), 10 * DAY, 20 * DAY)
}

/// Returns the level of a whitelist that is valid for so many seconds.
fn whitelist_level(left: i64) -> Level {
    by_age(-left, -7 * DAY + 1, 0)
}

/// Returns how long the whitelist is valid: clients refuse the repository afterwards.
pub(crate) fn whitelist(state: &RepositoryState, now: UnixTime) -> Markup {
    match &state.whitelist {
        Err(reason) => html! { (badge(Level::Bad, "unreadable")) small { (reason) } },
        Ok(expires) => {
            let left = expires.0.saturating_sub(now.0);
            match left {
                ..=0 => html! { (badge(Level::Bad, "expired")) small { (ago(*expires, now)) } },
                _ => html! { (badge(whitelist_level(left), &format!("{} left", duration(left)))) },
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
        let from = words(&|state| state.status.source = Some("http://a/<b>".to_owned()), replication);
        assert!(from.contains("from http://a/&lt;b&gt;"), "{from}");
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
    fn problems_come_first_and_are_counted() {
        let good = |name: &str| RepositoryState {
            folder: name.to_owned(),
            replica: false,
            head: head(1),
            ..state()
        };
        let late = RepositoryState { whitelist: Ok(UnixTime(NOW.0 + DAY)), ..good("m.test") };
        let bad = RepositoryState { whitelist: Ok(UnixTime(NOW.0 - 1)), head: head(7), ..good("z.test") };
        let states = [good("b.test"), good("a.test"), late, bad];
        let order = |sort: &str| {
            let page = page(&states, "test", Order::named(sort), NOW).into_string();
            let begins = page.match_indices("/dashboard/repo/").map(|(at, _)| &page[at + 16..at + 17]);
            (begins.collect::<String>(), page)
        };
        let (names, shown) = order("");
        assert_eq!(names, "zmab");
        assert!(shown.contains(">1 problem<") && shown.contains(">1 warning<"), "{shown}");
        assert_eq!((order("name").0, order("revision").0), ("abmz".to_owned(), "zabm".to_owned()));
        assert!(
            order("name").1.contains("aria-sort=\"other\"><a href=\"/?sort=name&amp;q=test\">"),
            "{}",
            order("name").1
        );
        assert_eq!(order("whitelist").0, "zmab");
        assert!(page(&[good("a.test")], "", Order::default(), NOW).into_string().contains("no problems"));
    }

    fn head(revision: u64) -> Result<Head, String> {
        let root = esker_format::hash::ContentHash::of(esker_format::hash::HashAlgorithm::Sha1, b"");
        let (published, collectable) = (UnixTime(NOW.0 - DAY), true);
        Ok(Head { name: String::new(), revision, published, root, history: None, collectable, ttl: 60 })
    }

    #[test]
    fn repositories_are_filtered_by_name_and_names_are_escaped() {
        let states = [state(), RepositoryState { folder: "other.test".to_owned(), ..state() }];
        let shown = page(&states, "OTHER", Order::default(), NOW).into_string();
        assert!(shown.contains("1 of 2 repositories") && !shown.contains("a.test<"), "{shown}");
        let evil = page(&states, "\"><script>", Order::default(), NOW).into_string();
        assert!(!evil.contains("<script>") && evil.contains("0 of 2 repositories"), "{evil}");
        assert!(page(&[], "", Order::default(), NOW).into_string().contains("No repository"));
    }
}
