//! Table of client parameters: names, valid values, default, and their effect in Esker.
//!
//! `docs/parameters.md` is made from it.

mod kind;
mod page;
mod rows;

pub use kind::{Kind, switch};
pub use page::page;

use std::borrow::Cow;

use esker_store::without_passwords;

/// A parameter and its properties.
#[derive(Debug)]
pub struct Row {
    /// Name of the parameter.
    pub name: &'static str,
    /// Other names, which take precedence.
    pub aliases: &'static [&'static str],
    /// Kind of value.
    pub kind: Kind,
    /// Default; empty for none.
    pub default: &'static str,
    /// Effect in Esker.
    pub state: State,
    /// Files that may set it.
    pub setter: Setter,
}

/// Files that may set a parameter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Setter {
    /// Files of this machine and of the configuration repository.
    Any,
    /// Files of this machine only: it names what the client writes to, listens at, sends its counters to or keeps back.
    Local,
}

/// Effect of a parameter in Esker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// The parameter has its effect; the name of the test that proves it.
    Honoured(&'static str),
    /// Accepted in silence, because it has no meaning here; why.
    Meaningless(&'static str),
    /// The parameter has no effect, which is reported; the reason.
    Not(&'static str),
}

/// Returns the parts of the table, in the order of the page.
pub fn parts() -> impl Iterator<Item = (&'static str, &'static [Row])> {
    rows::PARTS.iter().copied()
}

/// Returns all parameters.
pub fn all() -> impl Iterator<Item = &'static Row> {
    parts().flat_map(|(_, rows)| rows)
}

/// Placeholder for a cache's name in names of parameters.
const INSTANCE: &str = "<name>";

/// Returns the row of a parameter, by any of its names.
pub fn row(name: &str) -> Option<&'static Row> {
    let exact = all().find(|row| row.name == name || row.aliases.contains(&name));
    exact.or_else(|| all().find(|row| fits_instance(row.name, name)))
}

/// Returns a value as it may be shown: without the passwords of proxies.
pub fn shown<'a>(name: &str, value: &'a str) -> Cow<'a, str> {
    let is_list = name == "http_proxy" || row(name).is_some_and(|row| row.kind == Kind::Proxies);
    if is_list { without_passwords(value).into() } else { value.into() }
}

/// True if a name matches `CVMFS_CACHE_<name>_TYPE` and its like.
fn fits_instance(pattern: &str, name: &str) -> bool {
    let Some((before, after)) = pattern.split_once(INSTANCE) else { return false };
    let instance = name.strip_prefix(before).and_then(|rest| rest.strip_suffix(after));
    instance.is_some_and(|instance| {
        (1..=24).contains(&instance.len()) && instance.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_')
    })
}

/// Returns the known name closest to this one, if any is close.
pub fn nearest(name: &str) -> Option<&'static str> {
    let names = all().flat_map(|row| [row.name].into_iter().chain(row.aliases.iter().copied()));
    let near = names.map(|known| (distance(name, known), known)).min();
    // A third of other letters is another word.
    near.filter(|(distance, _)| *distance * 3 <= name.len().saturating_sub("CVMFS_".len()))
        .map(|(_, known)| known)
}

/// Returns the edit distance: letters inserted, removed or changed.
fn distance(a: &str, b: &str) -> usize {
    let b: Vec<u8> = b.bytes().collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (at, from) in a.bytes().enumerate() {
        let mut corner = row[0];
        row[0] = at + 1;
        for (to_at, to) in b.iter().enumerate() {
            let changed = corner + usize::from(from != *to);
            corner = row[to_at + 1];
            row[to_at + 1] = changed.min(row[to_at] + 1).min(corner + 1);
        }
    }
    row[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_found_by_every_name() {
        let name = |text| row(text).map(|row| row.name);
        assert_eq!(name("CVMFS_HTTP_PROXY"), Some("CVMFS_HTTP_PROXY"));
        assert_eq!(name("CVMFS_CACHE_SHARED"), Some("CVMFS_SHARED_CACHE"));
        assert_eq!(name("CVMFS_CACHE_hpc_TYPE"), Some("CVMFS_CACHE_<name>_TYPE"));
        assert_eq!(name("CVMFS_CACHE__TYPE"), None);
        assert_eq!(name("CVMFS_HTTP_PROXYS"), None);
        let names: Vec<_> =
            all().flat_map(|row| [row.name].into_iter().chain(row.aliases.iter().copied())).collect();
        for (at, name) in names.iter().enumerate() {
            assert!(!names[at + 1..].contains(name), "{name} stands twice");
        }
        assert!(names.len() > 140, "{}", names.len());
    }

    #[test]
    fn a_misspelt_parameter_is_recognised() {
        assert_eq!(nearest("CVMFS_HTTP_PROXYS"), Some("CVMFS_HTTP_PROXY"));
        assert_eq!(nearest("CVMFS_QOUTA_LIMIT"), Some("CVMFS_QUOTA_LIMIT"));
        assert_eq!(nearest("CVMFS_SERVER_URLS"), Some("CVMFS_SERVER_URL"));
        assert_eq!(nearest("CVMFS_SOMETHING_ELSE"), None);
    }

    #[test]
    fn defaults_are_valid_values() {
        for row in all().filter(|row| !row.default.is_empty()) {
            assert_eq!(row.kind.check(row.default), Ok(()), "{}", row.name);
        }
    }
}
