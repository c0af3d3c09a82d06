//! Page with the results of a search.

use maud::{Markup, html};

use super::layout::{self, Part, table};
use super::numbers::{counted, shown};
use super::tree::{Place, head, revision, row, search_form, trail};
use crate::dashboard::Search;

/// Returns the page with the results of a search.
pub(crate) fn page(place: Place<'_>, text: &str, search: &Search) -> Markup {
    let count = counted(search.results.len() as u64, "name", "names");
    let rows = html! {
        @for (path, entry) in &search.results { (row(place, path, &shown(path), entry)) }
    };
    let body = html! {
        h1 { "Search in " (place.name) }
        (revision(place))
        (trail(place))
        (search_form(place, text))
        @if text.is_empty() {
            p { "Type a part of a name." }
        } @else {
            p role="status" {
                (count) " with “" (text) "” among " (counted(search.entries, "entry", "entries")) " in "
                (counted(search.catalogs as u64, "catalog", "catalogs")) "."
                @if search.is_cut { " There may be more: search below a directory to find them." }
            }
            @if !search.results.is_empty() { (table(&format!("Names with “{text}”"), &head(), &rows)) }
        }
    };
    layout::page(&format!("Search in {}", place.name), Part::Repository(place.name, "tree"), &body)
}
