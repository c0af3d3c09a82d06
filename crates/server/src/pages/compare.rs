//! Page that compares two revisions.

use esker_format::hash::ContentHash;
use esker_repository::ChangeKind;
use maud::{Markup, html};

use super::address;
use super::badge::{Level, badge};
use super::layout::{self, Part, column, number_column, table};
use super::numbers::{grouped, hash, shown, size};
use super::revisions::summary;
use super::tree::kind;
use crate::dashboard::{ChangedPath, Comparison, Ended};

/// Number of paths on a page.
pub(crate) const LISTED: usize = 200;

/// Revisions of a comparison as the request names them, with their root catalogs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Asked<'a> {
    pub(crate) from: &'a str,
    pub(crate) to: &'a str,
    /// Root catalogs of both revisions.
    pub(crate) roots: Option<(ContentHash, ContentHash)>,
    /// Number of the first path of the page.
    pub(crate) first: usize,
}

/// Returns the page; without a comparison only its form.
pub(crate) fn page(name: &str, asked: Asked<'_>, compared: Option<&Comparison>) -> Markup {
    let body = html! {
        h1 { "Compare revisions of " (name) }
        form.filter action=(address::of(name, "compare")) method="get" {
            label for="from" { "Old revision" }
            input #from name="from" value=(asked.from) maxlength="100" placeholder="tag, number or hash";
            label for="to" { "New revision" }
            input #to name="to" value=(asked.to) maxlength="100" placeholder="newest if empty";
            button { "Compare" }
        }
        @if let (Some(compared), Some(roots)) = (compared, asked.roots) {
            (result(name, asked, roots, compared))
        }
    };
    layout::page(&format!("Compare revisions of {name}"), Part::Repository(name, "compare"), &body)
}

fn result(name: &str, asked: Asked<'_>, roots: (ContentHash, ContentHash), compared: &Comparison) -> Markup {
    let (old, new) = roots;
    let counts = &compared.counts;
    let head = html! {
        (column("Path"))
        (column("Change"))
        (column("Kind"))
        (column("What differs"))
        (number_column("Size before"))
        (number_column("Size after"))
    };
    let first = asked.first.min(compared.paths.len());
    let shown = compared.paths.iter().skip(first).take(LISTED);
    let last = (first + LISTED).min(compared.paths.len());
    let rows = html! { @for changed in shown { (row(name, roots, changed)) } };
    let caption = format!("Differing paths {} to {last}", first + 1);
    let more = address::with(&address::compare(name, old, new), "first", last.to_string().as_bytes());
    html! {
        p {
            "From " (hash(&old)) " to " (hash(&new)) ": " strong { (summary(compared)) } ". "
            (size(counts.bytes_added)) " of new content, " (size(counts.bytes_removed)) " replaced or removed."
        }
        @match &compared.end {
            Ended::Whole => {}
            Ended::Count => { p { "There are more differences than are counted here." } }
            Ended::Budget => {
                p { "The comparison took too long and is incomplete. " code { "esker diff" } " makes a whole one." }
            }
            Ended::Missing(object) => {
                p { "Object " code { (object) } " is not there any more, so the comparison is incomplete." }
            }
        }
        @if !compared.paths.is_empty() {
            (table(&caption, &head, &rows))
            @if last < compared.paths.len() { p { a href=(more) rel="next" { "More paths" } } }
            @if last == compared.paths.len() && counts.paths() > last as u64 {
                p { (grouped(counts.paths() - last as u64)) " more paths are counted and not listed." }
            }
        }
    }
}

fn row(name: &str, (old, new): (ContentHash, ContentHash), changed: &ChangedPath) -> Markup {
    let (level, word, root) = match changed.change {
        ChangeKind::Added => (Level::Good, "added", new),
        ChangeKind::Changed => (Level::Warning, "changed", new),
        ChangeKind::Removed => (Level::Bad, "removed", old),
    };
    let path = if changed.path.is_empty() { "/".to_owned() } else { shown(&changed.path) };
    html! {
        tr {
            th.wrap scope="row" { a href=(address::tree(name, &changed.path, Some(root))) { (path) } }
            td { (badge(level, word)) }
            td { (kind(changed.kind)) }
            td.wrap { (changed.attributes.join(", ")) }
            td.n { @if let Some(bytes) = changed.old_size { (size(bytes)) } }
            td.n { @if let Some(bytes) = changed.new_size { (size(bytes)) } }
        }
    }
}
