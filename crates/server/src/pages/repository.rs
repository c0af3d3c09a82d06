//! Page about one repository.

use esker_format::time::UnixTime;
use maud::{Markup, html};

use super::address;
use super::badge::{Level, badge};
use super::layout::{self, Part, column, number_column, table};
use super::numbers::{ago, counted, date, duration, grouped, hash, shown, size};
use super::overview::{check, collect, replication, size_line, whitelist};
use crate::dashboard::{Head, Known, Point, RepositoryState, TagList};

/// Number of tags on the page.
const TAGS: usize = 100;

/// Returns the page.
pub(crate) fn page(state: &RepositoryState, tags: &Result<TagList, String>, now: UnixTime) -> Markup {
    let name = state.folder.as_str();
    let body = html! {
        h1 { (name) }
        @match &state.head {
            Err(reason) => { p { (badge(Level::Bad, "unreadable")) " " (reason) } }
            Ok(head) => { (facts(state, head, now)) }
        }
        section aria-labelledby="maintenance" {
            h2 #maintenance { "Maintenance" }
            dl.facts {
                div { dt { "Replication" } dd { (replication(state, now)) } }
                div { dt { "Check" } dd { (check(state, now)) } }
                div { dt { "Garbage collection" } dd { (collect(state, now)) } }
                div {
                    dt { "Whitelist" }
                    dd {
                        (whitelist(state, now))
                        @if let Ok(expires) = &state.whitelist { small { "until " (date(*expires)) } }
                    }
                }
            }
        }
        @if let Known::Value(points) = &state.sizes { (sizes(points)) }
        (tag_table(name, tags))
    };
    layout::page(name, Part::Repository(name, ""), &body)
}

fn facts(state: &RepositoryState, head: &Head, now: UnixTime) -> Markup {
    let newest = match &state.sizes {
        Known::Value(points) => points.last(),
        Known::Pending | Known::Failed(_) => None,
    };
    html! {
        dl.facts {
            div {
                dt { "Revision" }
                dd data-live=(format!("{} revision", state.folder)) { (grouped(head.revision)) }
            }
            div {
                dt { "Last publish" }
                dd data-live=(format!("{} published", state.folder)) { (ago(head.published, now)) }
            }
            @if let Some(point) = newest {
                div { dt { "Size" } dd { (size(point.bytes)) } }
                div { dt { "Entries" } dd { (grouped(point.entries)) } }
            }
            @if let Known::Failed(reason) = &state.sizes {
                div { dt { "Size" } dd { (badge(Level::Bad, "unreadable")) " " (reason) } }
            }
            div { dt { "Time to live" } dd { (duration(i64::from(head.ttl))) } }
            div { dt { "Root catalog" } dd { (hash(&head.root)) } }
        }
        p { "Address: " code { "/cvmfs/" (state.folder) } }
    }
}

fn sizes(points: &[Point]) -> Markup {
    let head = html! {
        (number_column("Revision"))
        (column("Published"))
        (number_column("Size"))
        (number_column("Entries"))
    };
    let rows = html! {
        @for point in points.iter().rev() {
            tr {
                th.n scope="row" { (grouped(point.revision)) }
                td { @if let Some(published) = point.published { (date(published)) } }
                td.n { (size(point.bytes)) }
                td.n { (grouped(point.entries)) }
            }
        }
    };
    html! {
        section aria-labelledby="sizes" {
            h2 #sizes { "Size over time" }
            (size_line(points, true))
            details {
                summary { "Numbers of the newest revisions" }
                (table("Size of each revision", &head, &rows))
            }
        }
    }
}

fn tag_table(name: &str, tags: &Result<TagList, String>) -> Markup {
    let tags = match tags {
        Ok(list) => &list.tags,
        Err(reason) => {
            return html! { section { h2 { "Tags" } p { (badge(Level::Bad, "unreadable")) " " (reason) } } };
        }
    };
    let head = html! {
        (column("Tag"))
        (number_column("Revision"))
        (column("Published"))
        (column("Description"))
        (column("Root catalog"))
    };
    let rows = html! {
        @for tag in tags.iter().take(TAGS) {
            tr {
                th scope="row" {
                    a href=(address::tree(name, b"", Some(tag.root_catalog))) { (shown(tag.name.as_bytes())) }
                    @if !tag.branch.is_empty() { small { "branch " (shown(tag.branch.as_bytes())) } }
                }
                td.n { (grouped(tag.revision)) }
                td { (date(tag.timestamp)) }
                td.wrap { (shown(tag.description.as_bytes())) }
                td { (hash(&tag.root_catalog)) }
            }
        }
    };
    let count = counted(tags.len() as u64, "tag", "tags");
    let caption = if tags.len() > TAGS { format!("The newest {TAGS} of {count}") } else { count };
    html! {
        section aria-labelledby="tags" {
            h2 #tags { "Tags" }
            @if tags.is_empty() { p { "The repository has no tags." } } @else { (table(&caption, &head, &rows)) }
        }
    }
}
