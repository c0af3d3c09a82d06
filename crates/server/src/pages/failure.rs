//! Page for a request that has no other one.

use esker_repository::RepositoryError;
use maud::{Markup, html};

use super::layout::{self, Part};
use super::numbers::shown;

/// Returns the status for an error.
pub(crate) fn status(error: &RepositoryError) -> u16 {
    match error {
        RepositoryError::NoRepository(_)
        | RepositoryError::NoSuchPath(_)
        | RepositoryError::NoRevision { .. }
        | RepositoryError::Missing { .. } => 404,
        RepositoryError::Interrupted => 503,
        _ => 500,
    }
}

/// Returns the page for an error.
pub(crate) fn page(part: Part<'_>, error: &RepositoryError) -> Markup {
    let text = match error {
        RepositoryError::Interrupted => "reading it took too long; try it again".to_owned(),
        RepositoryError::NoSuchPath(path) => format!("the revision has no {path}"),
        error => causes(error),
    };
    // Errors name what a publisher or a request chose.
    let text = shown(text.as_bytes());
    layout::page("Not shown", part, &html! { h1 { "This can’t be shown" } p { (text) "." } })
}

/// Returns the page for an address without a page.
pub(crate) fn unknown() -> Markup {
    let body = html! { h1 { "Not found" } p { "There is no such page. " a href="/" { "All repositories" } } };
    layout::page("Not found", Part::None, &body)
}

/// Returns an error and its causes in one line.
pub(crate) fn causes(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(cause) = next {
        text.push_str(": ");
        text.push_str(&cause.to_string());
        next = cause.source();
    }
    text
}
