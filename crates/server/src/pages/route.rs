//! Addresses of the dashboard.

use esker_format::name::RepositoryName;
use esker_format::time::UnixTime;
use esker_repository::RepositoryError;
use maud::Markup;

use super::address::{self, Query};
use super::compare::Asked;
use super::layout::Part;
use super::tree::Place;
use super::{Page, catalogs, compare, failure, live, overview, repository, revisions, search, site, tree};
use crate::dashboard::{Dashboard, OpenRepository};

const STYLE: &str = include_str!("style.css");
const SCRIPT: &str = include_str!("script.js");
const ICON: &str = include_str!("icon.svg");

/// Returns the page at an address. It reads the storage, for up to a second or so.
pub(crate) fn respond(dashboard: &Dashboard, path: &str, query: &str, now: UnixTime) -> Page {
    let query = Query::parse(query);
    match path {
        "/" | "/cvmfs" | "/cvmfs/" | "/dashboard" | "/dashboard/" => Page::html(200, {
            let order = overview::Order::named(query.text("sort"));
            overview::page(&dashboard.overview(), query.text("q"), order, now)
        }),
        address::STYLE | address::SCRIPT | address::ICON => file(path),
        address::SITE => Page::html(200, site::page(&dashboard.traffic(), &dashboard.disks())),
        "/dashboard/live.json" => {
            let numbers = live::json(&dashboard.overview(), &dashboard.traffic(), now);
            Page { status: 200, kind: "application/json", lifetime: 0, body: numbers.to_string() }
        }
        _ => of_repository(dashboard, path, &query, now),
    }
}

/// Returns a file that pages load.
pub(crate) fn file(path: &str) -> Page {
    match path {
        address::STYLE => Page::file("text/css; charset=utf-8", STYLE),
        address::SCRIPT => Page::file("text/javascript; charset=utf-8", SCRIPT),
        _ => Page::file("image/svg+xml", ICON),
    }
}

fn of_repository(dashboard: &Dashboard, path: &str, query: &Query, now: UnixTime) -> Page {
    let unknown = || Page::html(404, failure::unknown());
    let Some(rest) = path.strip_prefix("/dashboard/repo/") else { return unknown() };
    let (name, here) = rest.split_once('/').unwrap_or((rest, ""));
    let Ok(name) = RepositoryName::parse(name) else { return unknown() };
    let make = match here {
        "" if !rest.ends_with('/') => about,
        "revisions" => about_revisions,
        "tree" => about_tree,
        "search" => about_search,
        "catalogs" => about_catalogs,
        "compare" => about_comparison,
        _ => return unknown(),
    };
    let made = dashboard.repository(&name).and_then(|opened| make(&opened, query, now));
    match made {
        Ok(markup) => Page::html(200, markup),
        // A repository that is not there has no pages to lead to.
        Err(error @ RepositoryError::NoRepository(_)) => Page::html(404, failure::page(Part::None, &error)),
        Err(error) => {
            let here = if here == "search" { "tree" } else { here };
            let part = Part::Repository(name.as_str(), here);
            Page::html(failure::status(&error), failure::page(part, &error))
        }
    }
}

type Made = Result<Markup, RepositoryError>;

fn about(opened: &OpenRepository<'_>, _: &Query, now: UnixTime) -> Made {
    let tags = opened.tags().map_err(|error| failure::causes(&error));
    Ok(repository::page(&opened.state(), &tags, now))
}

fn about_revisions(opened: &OpenRepository<'_>, query: &Query, _: UnixTime) -> Made {
    let from = opened.resolve(query.text("from"))?;
    Ok(revisions::page(opened.name(), &opened.revisions(from)?))
}

fn about_tree(opened: &OpenRepository<'_>, query: &Query, _: UnixTime) -> Made {
    let path = query.path("path");
    let root = opened.resolve(query.text("revision"))?;
    let found = opened.find(root, &path, query.number("first"))?;
    Ok(tree::page(place(opened, query, &path)?, &found))
}

fn about_search(opened: &OpenRepository<'_>, query: &Query, _: UnixTime) -> Made {
    let path = query.path("path");
    let root = opened.resolve(query.text("revision"))?;
    let text = query.text("q");
    Ok(search::page(place(opened, query, &path)?, text, &opened.search(root, &path, text)?))
}

fn about_catalogs(opened: &OpenRepository<'_>, query: &Query, _: UnixTime) -> Made {
    let root = opened.resolve(query.text("revision"))?;
    Ok(catalogs::page(place(opened, query, b"")?, &*opened.catalogs(root)?))
}

fn about_comparison(opened: &OpenRepository<'_>, query: &Query, _: UnixTime) -> Made {
    let asked =
        Asked { from: query.text("from"), to: query.text("to"), roots: None, first: query.number("first") };
    if asked.from.is_empty() {
        return Ok(compare::page(opened.name(), asked, None));
    }
    let (old, new) = (opened.resolve(asked.from)?, opened.resolve(asked.to)?);
    let compared = opened.compare(old, new)?;
    Ok(compare::page(opened.name(), Asked { roots: Some((old, new)), ..asked }, Some(&compared)))
}

fn place<'a>(
    opened: &'a OpenRepository<'_>,
    query: &Query,
    path: &'a [u8],
) -> Result<Place<'a>, RepositoryError> {
    let asked = query.text("revision");
    let revision = if asked.is_empty() { None } else { Some(opened.resolve(asked)?) };
    Ok(Place { name: opened.name(), path, revision })
}
