//! Page about the server: requests, hit rate, bytes, slowest answers.

use maud::{Markup, html};

use super::badge::{Level, badge};
use super::chart;
use super::layout::{self, Part, column, number_column, table};
use super::numbers::{duration, grouped, shown, size};
use crate::dashboard::{DiskSpace, SECONDS, Sample, SlowAnswer, TrafficReport};

/// Returns the page.
pub(crate) fn page(report: &TrafficReport, disks: &[DiskSpace]) -> Markup {
    let (last, total) = (report.last(), report.total());
    let minutes = report.samples.len() as u64 * SECONDS / 60;
    let rows = [
        ("Requests a second", "requests", rate(last.requests), rate_of(total.requests, report)),
        ("Hit rate", "hits", percent(&last), percent(&total)),
        ("Bytes a second", "bytes", size(last.bytes / SECONDS), size(per_second(total.bytes, report))),
        ("Failures", "failures", grouped(last.failures), grouped(total.failures)),
    ];
    let head = html! {
        (column("What"))
        (number_column(&format!("Last {SECONDS} seconds")))
        (number_column(&format!("Last {minutes} minutes")))
    };
    let body_rows = html! {
        @for (what, key, now, all) in rows {
            tr { th scope="row" { (what) } td.n data-live=(format!("site {key}")) { (now) } td.n { (all) } }
        }
    };
    let body = html! {
        h1 { "Server" }
        p { "Running for " (duration(i64::try_from(report.uptime).unwrap_or(i64::MAX))) "." }
        (table("Answers of this server", &head, &body_rows))
        p {
            "A hit is an answer with content, or the confirmation that the client has it. "
            "A failure is an answer with status 500 or above."
        }
        (graph("Requests a second", "requests", report, (|sample| sample.requests, rate)))
        (graph("Bytes a second", "bytes", report, (|sample| sample.bytes / SECONDS, size)))
        (space(disks))
        (slowest(&report.slowest, minutes))
    };
    layout::page("Server", Part::Site, &body)
}

/// Returns the free space of the served folders' file systems.
fn space(disks: &[DiskSpace]) -> Markup {
    let head = html! { (column("Folder")) (number_column("Free")) (number_column("Size")) (column("")) };
    let rows = html! {
        @for disk in disks {
            tr {
                th.wrap scope="row" { code { (shown(disk.folder.as_bytes())) } }
                td.n { (size(disk.free)) }
                td.n { (size(disk.size)) }
                td {
                    // A replica stops when less than that is free.
                    @if disk.free < disk.size / 20 { (badge(Level::Bad, "nearly full")) }
                }
            }
        }
    };
    html! { @if !disks.is_empty() { section { h2 { "Disk space" } (table("Folders of this server", &head, &rows)) } } }
}

/// Values of a chart, and their form.
type Shown = (fn(&Sample) -> u64, fn(u64) -> String);

fn graph(title: &str, key: &str, report: &TrafficReport, (value, form): Shown) -> Markup {
    let values: Vec<u64> = report.samples.iter().map(value).collect();
    html! {
        section {
            h2 { (title) }
            @if values.len() < 2 {
                p { "There is a chart once the server has run for half a minute." }
            } @else {
                (chart::large(&values, &format!("{title} in intervals of {SECONDS} seconds"), &axes(&values, form), Some(key)))
            }
        }
    }
}

fn axes(values: &[u64], form: fn(u64) -> String) -> chart::Axes {
    let seconds = i64::try_from(values.len() as u64 * SECONDS).unwrap_or(i64::MAX);
    let most = values.iter().copied().max().unwrap_or_default();
    chart::Axes { top: form(most), begin: format!("{} ago", duration(seconds)), end: "now".to_owned() }
}

fn slowest(answers: &[SlowAnswer], minutes: u64) -> Markup {
    let head = html! {
        (column("Path"))
        (number_column("Time"))
        (number_column("Bytes"))
        (number_column("Status"))
        (column("When"))
    };
    let rows = html! {
        @for answer in answers {
            tr {
                th.wrap scope="row" { code { (shown(answer.path.as_bytes())) } }
                td.n { (millis(answer.took)) }
                td.n { (size(answer.bytes)) }
                td.n { (answer.status) }
                td { (duration(i64::try_from(answer.age).unwrap_or(i64::MAX))) " ago" }
            }
        }
    };
    html! {
        section {
            h2 { "Slowest answers" }
            @if answers.is_empty() {
                p { "There was no request in the last " (minutes) " minutes." }
            } @else {
                (table("The slowest answers, slowest first", &head, &rows))
                p { "The time includes that of a slow client." }
            }
        }
    }
}

fn millis(time: std::time::Duration) -> String {
    format!("{:.1} ms", time.as_secs_f64() * 1000.0)
}

/// Returns the rate of an interval with one decimal.
pub(crate) fn rate(requests: u64) -> String {
    format!("{:.1}", requests as f64 / SECONDS as f64)
}

fn rate_of(requests: u64, report: &TrafficReport) -> String {
    let seconds = (report.samples.len() as u64 * SECONDS).max(1);
    format!("{:.1}", requests as f64 / seconds as f64)
}

fn per_second(count: u64, report: &TrafficReport) -> u64 {
    count / (report.samples.len() as u64 * SECONDS).max(1)
}

/// Returns the hit rate; a dash without a request.
pub(crate) fn percent(sample: &Sample) -> String {
    sample.hit_percent().map_or_else(|| "–".to_owned(), |percent| format!("{percent} %"))
}
