//! Page with a directory or an entry of a revision.

use esker_format::catalog::{EntryKind, Flags};
use esker_format::hash::ContentHash;
use esker_format::time::UnixTime;
use esker_format::write::catalog::Entry;
use maud::{Markup, html};

use super::address;
use super::layout::{self, Part, column, number_column, table};
use super::numbers::{counted, date, grouped, permissions, shown, size};
use crate::dashboard::{Directory, Found};

/// Place in a repository.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Place<'a> {
    /// Name of the repository.
    pub(crate) name: &'a str,
    pub(crate) path: &'a [u8],
    /// Root catalog, if it is not the newest one.
    pub(crate) revision: Option<ContentHash>,
}

impl Place<'_> {
    /// Returns the address of a path in the same revision.
    pub(crate) fn to(&self, path: &[u8]) -> String {
        address::tree(self.name, path, self.revision)
    }
}

/// Returns the page.
pub(crate) fn page(place: Place<'_>, found: &Found) -> Markup {
    let body = html! {
        h1 { "Files of " (place.name) }
        (revision(place))
        (trail(place))
        @match found {
            Found::Directory(directory) => { (search_form(place, "")) (listing(place, directory)) }
            Found::Entry(entry) => { (details(entry)) }
        }
    };
    let title = if place.path.is_empty() { place.name.to_owned() } else { shown(place.path) };
    layout::page(&format!("Files: {title}"), Part::Repository(place.name, "tree"), &body)
}

/// Returns which revision is shown.
pub(crate) fn revision(place: Place<'_>) -> Markup {
    html! {
        @match place.revision {
            None => { p { "Newest revision." } }
            Some(root) => {
                p {
                    "Revision with root catalog " (super::numbers::hash(&root)) ". "
                    a href=(address::tree(place.name, place.path, None)) { "Show the newest one" }
                }
            }
        }
    }
}

/// Returns links to the directories above.
pub(crate) fn trail(place: Place<'_>) -> Markup {
    let ends = place.path.iter().enumerate().skip(1).filter(|(_, byte)| **byte == b'/').map(|(end, _)| end);
    let ends: Vec<usize> = ends.chain([place.path.len()]).filter(|end| *end > 0).collect();
    html! {
        nav.trail aria-label="Directories above" {
            ol {
                li { a href=(place.to(b"")) { (place.name) } }
                @for end in ends {
                    @let path = place.path.get(..end).unwrap_or_default();
                    li {
                        a href=(place.to(path)) aria-current=[(end == place.path.len()).then_some("page")] {
                            (shown(name_of(path)))
                        }
                    }
                }
            }
        }
    }
}

fn name_of(path: &[u8]) -> &[u8] {
    path.rsplit(|byte| *byte == b'/').next().unwrap_or_default()
}

/// Returns the form of a search below a directory.
pub(crate) fn search_form(place: Place<'_>, text: &str) -> Markup {
    html! {
        form.filter role="search" action=(address::of(place.name, "search")) method="get" {
            label for="q" { "Search names below this directory" }
            input #q type="search" name="q" value=(text) maxlength="200" required;
            // A form writes bytes that are no text in another way, so such a directory is searched from the root.
            @if let Ok(path) = std::str::from_utf8(place.path) { input type="hidden" name="path" value=(path); }
            @if let Some(root) = place.revision { input type="hidden" name="revision" value=(root.to_string()); }
            button { "Search" }
        }
    }
}

fn listing(place: Place<'_>, directory: &Directory) -> Markup {
    let last = directory.first + directory.entries.len();
    let all = counted(directory.total as u64, "entry", "entries");
    let is_whole = directory.entries.len() == directory.total;
    let caption = if is_whole { all } else { format!("Entries {} to {last} of {all}", directory.first + 1) };
    let rows = html! {
        @for entry in &directory.entries {
            (row(place, &[place.path, b"/", &entry.name].concat(), &shown(&entry.name), entry))
        }
    };
    let from = |first: usize| address::with(&place.to(place.path), "first", first.to_string().as_bytes());
    html! {
        @if directory.total == 0 { p { "The directory is empty." } } @else { (table(&caption, &head(), &rows)) }
        @if directory.is_cut { p { "The directory has more entries than are read here." } }
        @if !is_whole {
            nav.pages aria-label="Parts of the directory" {
                ul {
                    @if directory.first > 0 {
                        @let before = directory.first.saturating_sub(crate::dashboard::TREE_PAGE);
                        li { a href=(from(before)) rel="prev" { "Previous entries" } }
                    }
                    @if last < directory.total { li { a href=(from(last)) rel="next" { "Next entries" } } }
                }
            }
        }
    }
}

/// Returns the heads of the columns of [`row`].
pub(crate) fn head() -> Markup {
    html! {
        (column("Name"))
        (column("Kind"))
        (number_column("Size"))
        (column("Modified"))
        (column("Mode"))
        (column("Notes"))
    }
}

/// Returns the row of an entry.
pub(crate) fn row(place: Place<'_>, path: &[u8], name: &str, entry: &Entry) -> Markup {
    html! {
        tr {
            th.wrap scope="row" { a href=(place.to(path)) { (name) } }
            td { (kind(kind_of(entry))) }
            td.n { @if kind_of(entry) == EntryKind::File { (size(entry.size)) } }
            td { (date(UnixTime(entry.mtime))) }
            td { code { (permissions(entry.mode)) } }
            td.wrap {
                @if kind_of(entry) == EntryKind::Symlink { "to " (shown(&entry.symlink)) }
                @if entry.flags.has(Flags::NESTED_MOUNTPOINT) { "own catalog" }
                @if entry.flags.has(Flags::CHUNKED) { "in chunks" }
                @if entry.flags.has(Flags::EXTERNAL) { " external data" }
            }
        }
    }
}

fn details(entry: &Entry) -> Markup {
    html! {
        dl.facts {
            div { dt { "Kind" } dd { (kind(kind_of(entry))) } }
            @if kind_of(entry) == EntryKind::File {
                div { dt { "Size" } dd { (size(entry.size)) small { (grouped(entry.size)) " bytes" } } }
            }
            @if kind_of(entry) == EntryKind::Symlink { div { dt { "Target" } dd { (shown(&entry.symlink)) } } }
            div { dt { "Modified" } dd { (date(UnixTime(entry.mtime))) } }
            div { dt { "Mode" } dd { code { (permissions(entry.mode)) } } }
            div { dt { "Owner" } dd { "user " (entry.uid) ", group " (entry.gid) } }
            @if let Some(hash) = entry.hash { div { dt { "Content" } dd { code.wrap { (hash) } } } }
            @if entry.flags.has(Flags::CHUNKED) { div { dt { "Storage" } dd { "in chunks" } } }
            @if entry.flags.has(Flags::EXTERNAL) { div { dt { "Storage" } dd { "external data" } } }
        }
    }
}

fn kind_of(entry: &Entry) -> EntryKind {
    entry.kind().unwrap_or(EntryKind::File)
}

/// Returns the name of a kind of entry.
pub(crate) fn kind(kind: EntryKind) -> &'static str {
    match kind {
        EntryKind::Directory => "directory",
        EntryKind::File => "file",
        EntryKind::Symlink => "symlink",
        EntryKind::Fifo => "pipe",
        EntryKind::Socket => "socket",
        EntryKind::CharDevice => "character device",
        EntryKind::BlockDevice => "block device",
    }
}

#[cfg(test)]
mod tests {

    use super::*;

    fn entry(name: &[u8], mode: u32, target: &[u8]) -> Entry {
        Entry { name: name.to_vec(), symlink: target.to_vec(), ..Entry::of_mode(mode) }
    }

    /// Names come from the publishers of other repositories, and are no markup of this server.
    #[test]
    fn names_and_targets_are_shown_and_never_obeyed() {
        let evil = b"<img src=x onerror=alert(1)>\"'&\xff\x1b[31m";
        let entries = vec![entry(evil, 0o100_644, b""), entry(b"link", 0o120_777, evil)];
        let directory = Directory { entries, first: 0, total: 2, is_cut: false };
        let path = [b"/", evil.as_slice()].concat();
        let place = Place { name: "a.test", path: &path, revision: None };
        for found in [Found::Directory(directory), Found::Entry(entry(evil, 0o120_777, evil))] {
            let page = page(place, &found).into_string();
            assert!(
                !page.contains("<img") && !page.contains('\u{1b}') && !page.contains('\u{fffd}'),
                "{page}"
            );
            assert!(
                page.contains("&lt;img src=x onerror=alert(1)&gt;&quot;'&amp;\\xff\\u{1b}[31m"),
                "{page}"
            );
        }
    }

    #[test]
    fn long_directories_are_shown_in_parts() {
        let place = Place { name: "a.test", path: b"/many", revision: None };
        let part = |first: usize, count: usize| {
            let entries = (0..count).map(|_| entry(b"f", 0o100_644, b"")).collect();
            page(place, &Found::Directory(Directory { entries, first, total: 500, is_cut: false }))
                .into_string()
        };
        let (begin, middle, end) = (part(0, 200), part(200, 200), part(400, 100));
        assert!(begin.contains("Entries 1 to 200 of 500 entries") && !begin.contains("Previous entries"));
        assert!(begin.contains("path=/many&amp;first=200\" rel=\"next\""), "{begin}");
        assert!(middle.contains("first=0\" rel=\"prev\"") && middle.contains("first=400\" rel=\"next\""));
        assert!(end.contains("Previous entries") && !end.contains("Next entries"), "{end}");
    }
}
