//! Addresses of pages, and the parts of a requested address.

use esker_format::hash::ContentHash;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_decode, percent_encode};

/// Bytes that are encoded in a query; any others are shown as they are.
const ENCODED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'/').remove(b'-').remove(b'_').remove(b'.').remove(b'~');

/// Address of the style sheet.
pub(crate) const STYLE: &str = "/dashboard/style.css";
/// Address of the script.
pub(crate) const SCRIPT: &str = "/dashboard/script.js";
/// Address of the icon.
pub(crate) const ICON: &str = "/dashboard/icon.svg";
/// Address of the page about the server.
pub(crate) const SITE: &str = "/dashboard/site";

/// Returns the address of a page about a repository.
pub(crate) fn of(repository: &str, page: &str) -> String {
    match page {
        "" => format!("/dashboard/repo/{repository}"),
        page => format!("/dashboard/repo/{repository}/{page}"),
    }
}

/// Returns an address with a parameter.
pub(crate) fn with(address: &str, name: &str, value: &[u8]) -> String {
    let separator = if address.contains('?') { '&' } else { '?' };
    format!("{address}{separator}{name}={}", percent_encode(value, ENCODED))
}

/// Returns the address of a path in a revision; none takes the newest one.
pub(crate) fn tree(repository: &str, path: &[u8], revision: Option<ContentHash>) -> String {
    let mut address = of(repository, "tree");
    if !path.is_empty() {
        address = with(&address, "path", path);
    }
    match revision {
        Some(root) => with(&address, "revision", root.to_string().as_bytes()),
        None => address,
    }
}

/// Returns the address of a comparison.
pub(crate) fn compare(repository: &str, old: ContentHash, new: ContentHash) -> String {
    let address = with(&of(repository, "compare"), "from", old.to_string().as_bytes());
    with(&address, "to", new.to_string().as_bytes())
}

/// Parameters of a requested address.
#[derive(Clone, Debug, Default)]
pub(crate) struct Query(Vec<(String, Vec<u8>)>);

/// Number of parameters that are read.
const PARAMETERS: usize = 16;

impl Query {
    /// Reads what follows the question mark.
    pub(crate) fn parse(text: &str) -> Self {
        let pairs = text.split('&').filter(|pair| !pair.is_empty()).take(PARAMETERS).map(|pair| {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            // Forms encode a space as a plus sign.
            let value = value.replace('+', " ");
            (name.to_owned(), percent_decode(value.as_bytes()).collect())
        });
        Self(pairs.collect())
    }

    /// Returns the bytes of a parameter; empty if there is none.
    pub(crate) fn bytes(&self, name: &str) -> &[u8] {
        let found = self.0.iter().find(|(known, _)| known == name);
        found.map_or(&[], |(_, value)| value.as_slice())
    }

    /// Returns the text of a parameter without spaces around it; empty if there is none or it is no text.
    pub(crate) fn text(&self, name: &str) -> &str {
        std::str::from_utf8(self.bytes(name)).unwrap_or_default().trim()
    }

    /// Returns the number in a parameter; 0 if there is none.
    pub(crate) fn number(&self, name: &str) -> usize {
        self.text(name).parse().unwrap_or(0)
    }

    /// Returns a path in the form of a repository: empty for the root, else with a slash in front and none at the end.
    pub(crate) fn path(&self, name: &str) -> Vec<u8> {
        let names = self.bytes(name).split(|byte| *byte == b'/');
        names.filter(|name| !name.is_empty() && *name != b".").fold(Vec::new(), |mut path, name| {
            path.push(b'/');
            path.extend_from_slice(name);
            path
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_path_survives_its_address() {
        let all: Vec<u8> = (1..=255).filter(|byte| *byte != b'/').collect();
        let path = [b"/a dir/+/".as_slice(), &all].concat();
        let address = tree("a.test", &path, None);
        assert!(
            address.bytes().all(|byte| byte.is_ascii_graphic() && !b"\"'<>".contains(&byte)),
            "{address}"
        );
        let (_, query) = address.split_once('?').expect("a query");
        assert_eq!(Query::parse(query).path("path"), path);
    }

    #[test]
    fn parameters_are_read_as_forms_write_them() {
        let query = Query::parse("q=two+words%21&first=200&x&path=//a/./b/");
        assert_eq!((query.text("q"), query.number("first"), query.bytes("x")), ("two words!", 200, &b""[..]));
        assert_eq!(query.path("path"), b"/a/b");
        assert_eq!(query.path("absent"), b"");
        assert_eq!(Query::parse("q=%ff").text("q"), "");
        assert_eq!(Query::parse(&"a=b&".repeat(100)).0.len(), PARAMETERS);
    }
}
