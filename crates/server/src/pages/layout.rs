//! Frame of all pages: head, navigation, main part, foot; and their tables.

use maud::{DOCTYPE, Markup, html};

use super::address;

/// Part of the dashboard that a page belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Part<'a> {
    Repositories,
    Site,
    /// A page about a repository: its name, and the page.
    Repository(&'a str, &'a str),
    /// A page about no part.
    None,
}

/// Pages about a repository, with their titles.
const PAGES: [(&str, &str); 5] = [
    ("", "Overview"),
    ("revisions", "Revisions"),
    ("tree", "Files"),
    ("catalogs", "Catalogs"),
    ("compare", "Compare"),
];

/// Returns a document with the head that all pages have, and `more` in it.
pub(crate) fn document(title: &str, more: &Markup, body: &Markup) -> Markup {
    html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                title { (title) " – Esker" }
                meta name="viewport" content="width=device-width,initial-scale=1";
                meta name="color-scheme" content="light dark";
                link rel="stylesheet" href=(address::STYLE);
                link rel="icon" type="image/svg+xml" href=(address::ICON);
                (more)
            }
            body { (body) }
        }
    }
}

/// Returns a whole page.
pub(crate) fn page(title: &str, part: Part<'_>, body: &Markup) -> Markup {
    let link = |is_here: bool, address: &str, text: &str| {
        html! { li { a href=(address) aria-current=[is_here.then_some("page")] { (text) } } }
    };
    let body = html! {
        a.skip href="#main" { "Skip to the content" }
        header {
            nav aria-label="Dashboard" {
                ul {
                    (link(part == Part::Repositories, "/", "Repositories"))
                    (link(part == Part::Site, address::SITE, "Server"))
                }
            }
            @if let Part::Repository(name, here) = part {
                nav.local aria-label=(name) {
                    ul {
                        @for (page, text) in PAGES {
                            (link(page == here, &address::of(name, page), text))
                        }
                    }
                }
            }
        }
        main #main tabindex="-1" { (body) }
        footer {
            p {
                "Served by Esker. Mountable with Esker and CernVM-FS. "
                a href="/cvmfs/info/v1/repositories.json" { "JSON" }
            }
        }
    };
    document(title, &html! { script src=(address::SCRIPT) defer {} }, &body)
}

/// Returns a table that scrolls within the page. The caption is its name for screen readers, too.
pub(crate) fn table(caption: &str, head: &Markup, rows: &Markup) -> Markup {
    html! {
        div.wide role="region" aria-label=(caption) tabindex="0" {
            table {
                caption { (caption) }
                thead { tr { (head) } }
                tbody { (rows) }
            }
        }
    }
}

/// Returns the head of a column.
pub(crate) fn column(text: &str) -> Markup {
    html! { th scope="col" { (text) } }
}

/// Returns the head of a column by which a link sorts the table.
pub(crate) fn sorting_column(text: &str, address: &str, is_sorted: bool) -> Markup {
    html! {
        th scope="col" aria-sort=[is_sorted.then_some("other")] { a href=(address) { (text) } }
    }
}

/// Returns the head of a column of numbers.
pub(crate) fn number_column(text: &str) -> Markup {
    html! { th.n scope="col" { (text) } }
}
