//! Parses the address of a repository.

use std::fmt;

use crate::error::{Cause, StoreError};

const HTTP_PORT: u16 = 80;
const HTTPS_PORT: u16 = 443;

/// A parsed `http://` or `https://` URL.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct BaseUrl {
    /// Name or address, without brackets.
    pub(crate) host: String,
    pub(crate) port: u16,
    /// True for `https://`.
    pub(crate) tls: bool,
    /// The path without a slash at its end.
    path: String,
}

impl BaseUrl {
    pub(crate) fn parse(url: &str) -> Result<Self, StoreError> {
        let bad = |reason| StoreError::new("the repository", Cause::BadUrl { url: url.to_owned(), reason });
        let (tls, rest) = match (url.strip_prefix("http://"), url.strip_prefix("https://")) {
            (Some(rest), _) => (false, rest),
            (_, Some(rest)) => (true, rest),
            _ => return Err(bad("it starts neither with http:// nor https:// nor file://")),
        };
        let usual = if tls { HTTPS_PORT } else { HTTP_PORT };
        let (authority, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
        if authority.contains('@') {
            return Err(bad("user names in it are not supported"));
        }
        let plain = |byte: u8| byte.is_ascii_graphic() && !matches!(byte, b'?' | b'#' | b'"' | b'<' | b'>');
        if !rest.bytes().all(plain) {
            return Err(bad("it has characters that must be written as %XX, or a query"));
        }
        let (host, port) = match authority.strip_prefix('[') {
            Some(literal) => {
                let (host, rest) = literal.split_once(']').ok_or_else(|| bad("a bracket is not closed"))?;
                host.parse::<std::net::Ipv6Addr>().map_err(|_| bad("what is in brackets is no address"))?;
                (host, rest.strip_prefix(':').map(Some).or(rest.is_empty().then_some(None)))
            }
            None => match authority.split_once(':') {
                Some((host, port)) => (host, Some(Some(port))),
                None => (authority, Some(None)),
            },
        };
        let number = |text: &str| text.parse().ok().filter(|port| *port != 0);
        let port = port.and_then(|port| port.map_or(Some(usual), number));
        let port = port.ok_or_else(|| bad("the port is not a number from 1 to 65535"))?;
        if host.is_empty() {
            return Err(bad("it names no server"));
        }
        Ok(Self { host: host.to_owned(), port, tls, path: path.trim_end_matches('/').to_owned() })
    }

    /// Returns the server without the path.
    pub(crate) fn server(&self) -> Self {
        Self { path: String::new(), ..self.clone() }
    }

    /// Returns the request path of a file below the base.
    pub(crate) fn path_of(&self, path: &str) -> String {
        format!("{}/{path}", self.path)
    }

    /// Returns scheme and server.
    pub(crate) fn origin(&self) -> String {
        format!("{}://{}", if self.tls { "https" } else { "http" }, self.authority())
    }

    /// Returns the value of `Host`.
    pub(crate) fn authority(&self) -> String {
        let host = if self.host.contains(':') { format!("[{}]", self.host) } else { self.host.clone() };
        let usual = if self.tls { HTTPS_PORT } else { HTTP_PORT };
        if self.port == usual { host } else { format!("{host}:{}", self.port) }
    }
}

/// Returns the name or address of the server in an `http://` or `https://` URL, as it is connected to.
pub fn host_of(url: &str) -> Result<String, StoreError> {
    BaseUrl::parse(url).map(|base| base.host)
}

impl fmt::Display for BaseUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", self.origin(), self.path)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn valid_addresses_are_parsed() {
        for (url, shown, host, port) in [
            ("http://a.example/cvmfs/x.example/", "http://a.example/cvmfs/x.example", "a.example", 80),
            ("http://127.0.0.1:8000/x", "http://127.0.0.1:8000/x", "127.0.0.1", 8000),
            ("http://[::1]:8000", "http://[::1]:8000", "::1", 8000),
            ("http://[::1]/x", "http://[::1]/x", "::1", 80),
            ("https://a.example/x", "https://a.example/x", "a.example", 443),
            ("https://a.example:80", "https://a.example:80", "a.example", 80),
            ("https://[::1]:443/x", "https://[::1]/x", "::1", 443),
        ] {
            let base = BaseUrl::parse(url).unwrap();
            assert_eq!((base.to_string().as_str(), base.host.as_str(), base.port), (shown, host, port));
            assert!(base.path_of("data/ab").ends_with("/data/ab"));
        }
    }

    proptest::proptest! {
        #[test]
        fn any_text_is_parsed_or_refused(rest in "\\PC*") {
            for url in [rest.clone(), format!("https://{rest}"), format!("http://[{rest}")] {
                if let Ok(base) = BaseUrl::parse(&url) {
                    let again = BaseUrl::parse(&base.to_string()).unwrap();
                    proptest::prop_assert_eq!(again, base);
                }
            }
        }
    }

    #[test]
    fn invalid_addresses_are_refused() {
        for url in [
            "",
            "ftp://x",
            "https:///y",
            "http://",
            "http://:80/",
            "http://x:0/",
            "http://x:99999/",
            "http://u@x/",
            "http://x/?q",
            "http://x/a b",
            "http://[::1/x",
            "http://[x]/",
            "http://[::1]80/",
            "http://x/\r\nInjected: yes",
        ] {
            assert!(BaseUrl::parse(url).is_err(), "{url}");
        }
    }
}
