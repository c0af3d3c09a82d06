//! Page of a server whose handlers are of another crate: tables of text.

use maud::{DOCTYPE, html};

use super::layout::{column, table};
use super::{Page, address};

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
    Page::html(
        200,
        html! {
            (DOCTYPE)
            html lang="en" {
                head {
                    meta charset="utf-8";
                    title { (title) " – Esker" }
                    meta name="viewport" content="width=device-width,initial-scale=1";
                    meta name="color-scheme" content="light dark";
                    meta http-equiv="refresh" content=(REFRESH);
                    link rel="stylesheet" href=(address::STYLE);
                    link rel="icon" type="image/svg+xml" href=(address::ICON);
                }
                body {
                    main #main {
                        h1 { (title) }
                        @for one in tables {
                            section { (of(one)) }
                        }
                    }
                    footer { p { "Served by Esker." } }
                }
            }
        },
    )
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
