//! Servers that clients may reach through the proxy.

use std::fmt;

use hyper::Uri;

/// Ports that a host without a port in `--allow` may be asked at: those of CernVM-FS servers.
const PORTS: [u16; 2] = [80, 8000];

/// Error in a URL or host of the command line.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} is no {wanted}: {reason}")]
pub struct DestinationError {
    /// Text of the argument.
    pub text: String,
    /// Expected kind of value.
    pub wanted: &'static str,
    /// Reason of the rejection.
    pub reason: &'static str,
}

/// Host and port of a server.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Origin {
    pub(crate) is_tls: bool,
    host: String,
    port: u16,
}

impl Origin {
    /// Returns scheme, host and port of a URL; `None` if it is no URL of a web server.
    pub(crate) fn of(uri: &Uri) -> Option<Self> {
        let is_tls = match uri.scheme_str()? {
            "http" => false,
            "https" => true,
            _ => return None,
        };
        let authority = uri.authority()?;
        if authority.as_str().contains('@') || authority.host().is_empty() {
            return None;
        }
        let port = match authority.port() {
            Some(port) => port.as_str().parse().ok().filter(|port| *port != 0)?,
            // A colon without a number.
            None if authority.as_str().ends_with(':') => return None,
            None if is_tls => 443,
            None => 80,
        };
        let host = authority.host().trim_end_matches('.').to_ascii_lowercase();
        Some(Self { is_tls, host, port })
    }
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (scheme, usual) = if self.is_tls { ("https", 443) } else { ("http", 80) };
        write!(f, "{scheme}://{}", self.host)?;
        if self.port == usual { Ok(()) } else { write!(f, ":{}", self.port) }
    }
}

/// Configured server of repositories.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Upstream {
    pub(crate) origin: Origin,
    /// Path of the repositories, `/cvmfs` unless the URL has another one.
    pub(crate) base: String,
}

impl Upstream {
    /// Parses `http://HOST[:PORT][/PATH]`; without a path the repositories are below `/cvmfs`.
    pub fn parse(text: &str) -> Result<Self, DestinationError> {
        let refuse = |reason| DestinationError { text: text.to_owned(), wanted: "server's URL", reason };
        let uri: Uri = text.parse().map_err(|_| refuse("it is malformed"))?;
        let origin = Origin::of(&uri)
            .ok_or_else(|| refuse("it starts neither with http:// nor https://, or has a user name"))?;
        if uri.query().is_some() {
            return Err(refuse("it has a query"));
        }
        let base = match uri.path().trim_end_matches('/') {
            "" => "/cvmfs".to_owned(),
            path => path.to_owned(),
        };
        Ok(Self { origin, base })
    }

    /// Returns the URL of a file or folder below the repositories.
    pub(crate) fn url(&self, path: &str) -> String {
        format!("{}{}/{path}", self.origin, self.base)
    }
}

/// Host that clients may name, beside the configured servers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AllowedHost {
    /// The name, or the end of the name with its dot if it began with `*`.
    host: String,
    is_suffix: bool,
    port: Option<u16>,
}

impl AllowedHost {
    /// Parses `HOST`, `HOST:PORT`, `*.DOMAIN` or `*.DOMAIN:PORT`.
    pub fn parse(text: &str) -> Result<Self, DestinationError> {
        let refuse = |reason| DestinationError { text: text.to_owned(), wanted: "host", reason };
        let (pattern, port) = match text.rsplit_once(':') {
            // The end of an IPv6 address has no port after it.
            Some((_, after)) if after.ends_with(']') => (text, None),
            Some((host, port)) => {
                let port = port.parse().ok().filter(|port| *port != 0);
                (host, Some(port.ok_or_else(|| refuse("the port is not a number from 1 to 65535"))?))
            }
            None => (text, None),
        };
        let (host, is_suffix) = match pattern.strip_prefix('*') {
            Some(rest) if rest.starts_with('.') && rest.len() > 1 => (rest, true),
            Some(_) => return Err(refuse("a pattern is written as *.DOMAIN")),
            None => (pattern, false),
        };
        let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b".-_[]:".contains(&byte);
        if host.is_empty() || !host.bytes().all(is_plain) {
            return Err(refuse("it has characters that no host name has"));
        }
        Ok(Self { host: host.to_ascii_lowercase(), is_suffix, port })
    }

    fn allows(&self, origin: &Origin) -> bool {
        let is_host = match self.is_suffix {
            true => origin.host.ends_with(&self.host),
            false => origin.host == self.host,
        };
        is_host && self.port.map_or(PORTS.contains(&origin.port), |port| port == origin.port)
    }
}

/// Servers whose repositories are the same: all configured ones, or one host that a client named; or object storage.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Group {
    Upstreams,
    Host(Origin),
    Storage,
}

/// The configured servers and allowed hosts.
#[derive(Clone, Debug, Default)]
pub(crate) struct Destinations {
    pub(crate) upstreams: Vec<Upstream>,
    pub(crate) allowed: Vec<AllowedHost>,
}

impl Destinations {
    /// Returns the servers to ask for a URL and its path below the repositories; `None` if it is not allowed.
    pub(crate) fn find<'u>(&self, uri: &'u Uri) -> Option<(Group, &'u str)> {
        let below = |base: &str| {
            let rest = uri.path().strip_prefix(base)?;
            rest.starts_with('/').then_some(rest)
        };
        if uri.scheme().is_none() {
            let path = below("/cvmfs")?;
            return (!self.upstreams.is_empty()).then_some((Group::Upstreams, path));
        }
        let origin = Origin::of(uri)?;
        let mut own = self.upstreams.iter().filter(|upstream| upstream.origin == origin);
        if let Some(path) = own.find_map(|upstream| below(&upstream.base)) {
            return Some((Group::Upstreams, path));
        }
        // A client that wants TLS speaks it with the server itself.
        let is_allowed = !origin.is_tls && self.allowed.iter().any(|host| host.allows(&origin));
        let path = below("/cvmfs").filter(|_| is_allowed)?;
        Some((Group::Host(origin), path))
    }

    /// Returns the URLs of a folder below the repositories, in the order of use.
    pub(crate) fn urls(&self, group: &Group, folder: &str) -> Vec<String> {
        match group {
            Group::Upstreams => self.upstreams.iter().map(|upstream| upstream.url(folder)).collect(),
            Group::Host(origin) => vec![format!("{origin}/cvmfs/{folder}")],
            Group::Storage => Vec::new(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn destinations() -> Destinations {
        let upstream = |url| Upstream::parse(url).expect("a URL");
        let host = |text| AllowedHost::parse(text).expect("a host");
        Destinations {
            upstreams: vec![upstream("http://s1.test:8000"), upstream("https://S2.test/mirror/cvmfs/")],
            allowed: vec![host("one.test"), host("*.many.test:81"), host("[::1]:9")],
        }
    }

    #[test]
    fn urls_of_allowed_servers_are_found() {
        let destinations = destinations();
        let found = |url: &str| {
            let uri: Uri = url.parse().expect("a URL");
            destinations.find(&uri).map(|(group, path)| match group {
                Group::Upstreams => format!("upstreams {path}"),
                Group::Host(origin) => format!("{origin} {path}"),
                Group::Storage => path.to_owned(),
            })
        };
        for (url, expected) in [
            ("/cvmfs/a.test/x", "upstreams /a.test/x"),
            ("http://s1.test:8000/cvmfs/a.test/x", "upstreams /a.test/x"),
            ("http://S1.TEST.:8000/cvmfs/a.test/x", "upstreams /a.test/x"),
            ("https://s2.test/mirror/cvmfs/a.test/x", "upstreams /a.test/x"),
            ("http://one.test/cvmfs/a.test/x", "http://one.test /a.test/x"),
            ("http://one.test:8000/cvmfs/a.test/x", "http://one.test:8000 /a.test/x"),
            ("http://b.many.test:81/cvmfs/a.test/x", "http://b.many.test:81 /a.test/x"),
            ("http://[::1]:9/cvmfs/a.test/x", "http://[::1]:9 /a.test/x"),
        ] {
            assert_eq!(found(url).as_deref(), Some(expected), "{url}");
        }
        for url in [
            "/other/a.test/x",
            "/cvmfsx/a.test/x",
            "http://s1.test/cvmfs/a.test/x",
            "https://s2.test/cvmfs/a.test/x",
            "http://one.test:22/cvmfs/a.test/x",
            "http://one.test/other",
            "https://one.test/cvmfs/a.test/x",
            "http://xone.test/cvmfs/a.test/x",
            "http://many.test:81/cvmfs/a.test/x",
            "http://user@one.test/cvmfs/a.test/x",
            "ftp://one.test/cvmfs/a.test/x",
        ] {
            assert_eq!(found(url), None, "{url}");
        }
    }

    #[test]
    fn malformed_arguments_are_refused() {
        for url in ["", "s1.test", "ftp://s1.test", "http://", "http://u@s1.test", "http://s1.test/?x"] {
            assert!(Upstream::parse(url).is_err(), "{url}");
        }
        for host in ["", "*", "*.", "*x.test", "a b", "a:0", "a:x", "http://a"] {
            assert!(AllowedHost::parse(host).is_err(), "{host}");
        }
    }

    proptest::proptest! {
        #[test]
        fn any_argument_is_parsed_or_refused(text in "\\PC{0,40}") {
            let _ = (Upstream::parse(&text), AllowedHost::parse(&text));
        }
    }
}
