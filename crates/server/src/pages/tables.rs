//! Page of a server whose handlers are of another crate: tables of text.

use maud::html;

use super::Page;
use super::layout::{column, document, table};

/// Seconds after which a browser asks for the page again.
const REFRESH: u32 = 10;

/// A table of a page.
#[derive(Clone, Debug, Default)]
pub struct PageTable {
    /// Name of the table.
    pub caption: String,
    /// Names of the columns.
    pub columns: Vec<&'static str>,
    /// Rows, the first cell of which is their name.
    pub rows: Vec<Vec<String>>,
}

/// Returns a page of tables, which leads nowhere else.
pub(crate) fn page(title: &str, tables: &[PageTable]) -> Page {
    let body = html! {
        main #main {
            h1 { (title) }
            @for one in tables {
                section { (of(one)) }
            }
        }
        footer { p { "Served by Esker." } }
    };
    let refresh = html! { meta http-equiv="refresh" content=(REFRESH); };
    Page::html(200, document(title, &refresh, &body))
}

fn of(one: &PageTable) -> maud::Markup {
    let head = html! { @for name in &one.columns { (column(name)) } };
    let rows = html! {
        @for row in &one.rows {
            tr {
                @for (number, cell) in row.iter().enumerate() {
                    @if number == 0 { th scope="row" { (cell) } } @else { td { (cell) } }
                }
            }
        }
    };
    table(&one.caption, &head, &rows)
}
