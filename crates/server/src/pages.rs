//! Pages of the dashboard: markup made of the data of [`crate::dashboard`], readable without a script.
//!
//! Pages load nothing from elsewhere: one style sheet, one script and one icon, all of this server. Names from
//! repositories are escaped by the markup, and bytes that are no text are shown by their numbers.

mod address;
mod badge;
mod catalogs;
mod chart;
mod compare;
mod failure;
mod layout;
mod live;
mod numbers;
mod overview;
mod repository;
mod revisions;
mod route;
mod search;
mod site;
mod tables;
mod tree;

use maud::Markup;

pub(crate) use numbers::{duration, size};
pub(crate) use route::{file, respond};
pub use tables::PageTable;
pub(crate) use tables::page as page_of_tables;

/// Policy of all pages: nothing from elsewhere, no script or style inside of the page, no frame around it.
pub(crate) const POLICY: &str = "default-src 'none'; style-src 'self'; script-src 'self'; img-src 'self'; \
     connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'";

/// A page, or a file that pages load.
#[derive(Debug)]
pub(crate) struct Page {
    pub(crate) status: u16,
    /// Media type.
    pub(crate) kind: &'static str,
    /// Seconds for which it may be cached.
    pub(crate) lifetime: u32,
    pub(crate) body: String,
}

impl Page {
    fn html(status: u16, markup: Markup) -> Self {
        Self { status, kind: "text/html; charset=utf-8", lifetime: 0, body: markup.into_string() }
    }

    fn file(kind: &'static str, body: &str) -> Self {
        Self { status: 200, kind, lifetime: 300, body: body.to_owned() }
    }
}
