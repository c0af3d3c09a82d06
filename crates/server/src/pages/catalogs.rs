//! Page with the catalogs of a revision by size.

use maud::{Markup, html};

use super::layout::{self, Part, column, number_column, table};
use super::numbers::{counted, grouped, hash, shown, size};
use super::tree::{Place, revision};
use crate::dashboard::{CatalogList, CatalogRow};

/// Number of catalogs on the page.
const LISTED: usize = 500;

/// Returns the page.
pub(crate) fn page(place: Place<'_>, list: &CatalogList) -> Markup {
    let total: u64 = list.rows.iter().filter_map(|row| row.size).fold(0, u64::saturating_add);
    let largest = list.rows.first().and_then(|row| row.size).unwrap_or(0);
    let head = html! {
        (column("Directory"))
        (number_column("Size"))
        (column("Share of the largest"))
        (number_column("Stored"))
        (number_column("Entries"))
        (number_column("Entries below"))
        (number_column("Catalogs below"))
        (column("Hash"))
    };
    let rows = html! { @for row in list.rows.iter().take(LISTED) { (catalog(place, row, largest)) } };
    let count = counted(list.rows.len() as u64, "catalog", "catalogs");
    let caption = if list.rows.len() > LISTED {
        format!("The largest {LISTED} of {count}")
    } else {
        format!("{count}, the largest first")
    };
    let body = html! {
        h1 { "Catalogs of " (place.name) }
        (revision(place))
        p { (count) ", " (size(total)) " in all." }
        @if list.unread > 0 {
            p { (grouped(list.unread as u64)) " of them were not read, and those below them are not listed." }
        }
        @if list.is_cut { p { "There are more catalogs than are listed here." } }
        (table(&caption, &head, &rows))
    };
    layout::page(&format!("Catalogs of {}", place.name), Part::Repository(place.name, "catalogs"), &body)
}

fn catalog(place: Place<'_>, row: &CatalogRow, largest: u64) -> Markup {
    let path = if row.path.is_empty() { "/".to_owned() } else { shown(&row.path) };
    let number = |number: Option<u64>| html! { @if let Some(number) = number { (grouped(number)) } };
    html! {
        tr {
            th.wrap scope="row" { a href=(place.to(&row.path)) { (path) } }
            td.n { @if let Some(bytes) = row.size { (size(bytes)) } }
            td {
                @if let Some(bytes) = row.size {
                    meter min="0" max=(largest.max(1)) value=(bytes) aria-label=(format!("Size of {path}")) {}
                }
            }
            td.n { @if let Some(bytes) = row.stored { (size(bytes)) } }
            td.n { (number(row.entries)) }
            td.n { (number(row.below)) }
            td.n { (number(row.nested.map(|count| count as u64))) }
            td { (hash(&row.hash)) }
        }
    }
}
