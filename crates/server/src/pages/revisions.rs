//! Page with the revisions of a repository and what each changed.

use maud::{Markup, html};

use super::address;
use super::layout::{self, Part, column, number_column, table};
use super::numbers::{date, grouped, hash, shown, size};
use crate::dashboard::{Comparison, RevisionList, RevisionRow};

/// Returns the page.
pub(crate) fn page(name: &str, list: &RevisionList) -> Markup {
    let head = html! {
        (number_column("Revision"))
        (column("Published"))
        (column("Tags"))
        (column("Changes"))
        (number_column("Size"))
        (number_column("Entries"))
        (column("Root catalog"))
    };
    let rows = html! { @for row in &list.rows { (revision(name, row)) } };
    let body = html! {
        h1 { "Revisions of " (name) }
        (table("Revisions, newest first", &head, &rows))
        @if let Some(older) = list.older {
            @let address = address::with(&address::of(name, "revisions"), "from", older.to_string().as_bytes());
            p { a href=(address) rel="next" { "Older revisions" } }
        }
        @if let Some(missing) = list.missing {
            p { "Earlier revisions are not there any more: root catalog " (hash(&missing)) " is missing." }
        }
        @if list.is_cut { p { "The list ends here because reading it took too long; the next page goes on." } }
    };
    layout::page(&format!("Revisions of {name}"), Part::Repository(name, "revisions"), &body)
}

fn revision(name: &str, row: &RevisionRow) -> Markup {
    let point = &row.point;
    html! {
        tr {
            th.n scope="row" {
                a href=(address::tree(name, b"", Some(point.root))) { (grouped(point.revision)) }
            }
            td { @if let Some(published) = point.published { (date(published)) } }
            td.wrap {
                @for (at, tag) in row.tags.iter().enumerate() {
                    @if at > 0 { ", " }
                    (shown(tag.as_bytes()))
                }
            }
            td {
                @match (point.previous, &row.changes) {
                    (None, _) => { "first revision" }
                    (Some(previous), changes) => {
                        a href=(address::compare(name, previous, point.root)) {
                            @match changes {
                                Some(changes) => { (summary(changes)) }
                                None => { "compare" }
                            }
                        }
                    }
                }
            }
            td.n { (size(point.bytes)) }
            td.n { (grouped(point.entries)) }
            td { (hash(&point.root)) }
        }
    }
}

/// Returns the numbers of changed paths in one line.
pub(crate) fn summary(changes: &Comparison) -> String {
    let counts = &changes.counts;
    let parts = [(counts.added, "added"), (counts.changed, "changed"), (counts.removed, "removed")];
    let parts: Vec<String> = parts
        .iter()
        .filter(|(count, _)| *count > 0)
        .map(|(count, word)| format!("{} {word}", grouped(*count)))
        .collect();
    match (parts.is_empty(), changes.is_whole()) {
        (true, true) => "no path differs".to_owned(),
        (true, false) => "compare".to_owned(),
        (false, true) => parts.join(", "),
        (false, false) => format!("at least {}", parts.join(", ")),
    }
}
