//! Addresses of repositories on the command line: URLs, names, tags and paths.

use esker_format::name::RepositoryName;
use esker_object_storage::is_bucket;

use crate::error::Failure;

/// A repository by its address: normalised URL and name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Address {
    pub(crate) url: String,
    pub(crate) name: String,
}

impl Address {
    /// Reads `http://host[:port]/…/NAME`, `file:///…/NAME` or `/…/NAME`.
    pub(crate) fn parse(text: &str, name: Option<&str>) -> Result<Self, Failure> {
        let bad = |why: &str| {
            Failure::usage(format!("{text:?} is not the address of a repository: {why}"))
                .hint("write it like http://server/cvmfs/software.example.org or file:///srv/cvmfs/software.example.org")
        };
        let url = if text.starts_with('/') { format!("file://{text}") } else { text.to_owned() };
        let url = url.trim_end_matches('/').to_owned();
        let Some((scheme, rest)) = url.split_once("://") else {
            return Err(match std::path::absolute(text) {
                _ if !text.contains('/') => bad("it has no scheme"),
                Ok(whole) if whole.exists() => bad("a folder is named by its whole path")
                    .hint(format!("write {} if it is a repository", whole.display())),
                _ => bad("it has no scheme, and there is no such file or directory"),
            });
        };
        match scheme {
            "http" | "https" if rest.split('/').next().is_some_and(|host| !host.is_empty()) => {}
            "http" | "https" => return Err(bad("it has no host")),
            "file" if rest.starts_with('/') => {}
            "file" => return Err(bad("a file URL has three slashes")),
            // The publisher's own address of a bucket, which has settings behind it.
            _ if is_bucket(&url) && name.is_some() => {}
            _ => return Err(bad("only http, https and file are known")),
        }
        let last = rest.rsplit_once('/').map(|(_, last)| last).filter(|last| !last.is_empty());
        match name.or(last) {
            Some(name) => Ok(Self { name: name.to_owned(), url }),
            None => Err(bad("it ends without the repository's name")),
        }
    }
}

/// Returns true if the argument is a name, and not a URL or a path.
pub(crate) fn is_name(text: &str) -> bool {
    !text.contains('/') && RepositoryName::parse(text).is_ok()
}

/// Splits `NAME@TAG` and `URL/NAME@TAG`; names of repositories have no `@` in them.
pub(crate) fn split_tag(text: &str) -> Result<(&str, Option<&str>), Failure> {
    let of_name = text.split_once('@').filter(|(name, _)| is_name(name));
    let of_url = || {
        let (server, last) = text.rsplit_once('/')?;
        // A host may follow a user's name and an `@`.
        let has_path = server
            .split_once("://")
            .map_or(server.starts_with('/') || server.is_empty(), |(_, rest)| !rest.is_empty());
        let (name, tag) = last.split_once('@').filter(|(name, _)| has_path && is_name(name))?;
        Some((&text[..server.len() + 1 + name.len()], tag))
    };
    match of_name.or_else(of_url) {
        None => Ok((text, None)),
        Some((_, "")) => Err(Failure::usage(format!("{text} has no tag after the @"))),
        Some((repository, tag)) => Ok((repository, Some(tag))),
    }
}

/// Returns the failure for a tag in the name of a repository beside an option.
pub(crate) fn two_revisions(place: &str) -> Failure {
    Failure::usage(format!("two revisions are named: {place} names one, and an option another"))
}

/// Splits `URL:/path`; the path is `None` where there is only a URL.
pub(crate) fn split_path(text: &str) -> (&str, Option<&str>) {
    match path_at(text.as_bytes()) {
        Some(at) => (&text[..at], Some(&text[at + 1..])),
        None => (text, None),
    }
}

/// Returns the position of the colon in `URL:/path`; paths need not be text.
pub(super) fn path_at(text: &[u8]) -> Option<usize> {
    let find = |from: usize, what: &[u8]| {
        let found = text.get(from..)?.windows(what.len()).position(|here| here == what);
        found.map(|at| from + at)
    };
    let scheme = find(0, b"://").map_or(0, |at| at + 3);
    find(scheme, b":/")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Kind;

    #[test]
    fn addresses_are_parsed_as_urls_and_paths() {
        let parse = |text| Address::parse(text, None).map(|address| (address.url, address.name));
        let pair = |url: &str, name: &str| Some((url.to_owned(), name.to_owned()));
        assert_eq!(parse("http://h:8000/cvmfs/a.test/").ok(), pair("http://h:8000/cvmfs/a.test", "a.test"));
        assert_eq!(parse("file:///srv/a.test").ok(), pair("file:///srv/a.test", "a.test"));
        assert_eq!(parse("/srv/a.test").ok(), pair("file:///srv/a.test", "a.test"));
        assert_eq!(parse("https://h/a.test").ok(), pair("https://h/a.test", "a.test"));
        for bad in ["a.test", "ftp://h/a", "http:///a", "http://h", "file://srv/a", "", "https://"] {
            let failure = parse(bad).expect_err(bad);
            assert_eq!(failure.kind, Kind::Usage);
        }
        assert_eq!(Address::parse("http://h/x", Some("b.test")).expect("named").name, "b.test");
        let bucket = "s3://b/cvmfs/b.test?endpoint=http://h:9000";
        assert_eq!(Address::parse(bucket, Some("b.test")).expect("a bucket").url, bucket);
        assert!(Address::parse(bucket, None).is_err());
    }

    #[test]
    fn a_path_follows_the_url_after_a_colon() {
        assert_eq!(
            split_path("http://h:80/cvmfs/a.test:/dir/f"),
            ("http://h:80/cvmfs/a.test", Some("/dir/f"))
        );
        assert_eq!(split_path("http://h:80/cvmfs/a.test"), ("http://h:80/cvmfs/a.test", None));
        assert_eq!(split_path("/srv/a.test:/d:/e"), ("/srv/a.test", Some("/d:/e")));
    }
}
