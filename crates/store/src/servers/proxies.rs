//! Groups of proxies: `http://a:3128|http://b:3128;http://backup:3128;DIRECT`.

use std::fmt;
use std::net::Ipv6Addr;

/// Groups of proxies. One group is used after the other, the members of a group alike.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Proxies(Vec<Vec<Proxy>>);

/// A member of a group.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Proxy {
    /// No proxy.
    Direct,
    /// An HTTP proxy.
    At {
        /// Name or address, without brackets.
        host: String,
        /// Its port.
        port: u16,
        /// Whether it is spoken to over https.
        tls: bool,
    },
}

/// What is wrong with a list of proxies.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ProxyError {
    /// A member that makes no sense.
    #[error("`{proxy}` can't be used as a proxy: {reason}")]
    Bad {
        /// The member.
        proxy: String,
        /// Why.
        reason: &'static str,
    },
    /// There is nothing in the list.
    #[error("the list names no proxy, nor DIRECT")]
    Nothing,
    /// `auto`, and nothing says what that is.
    #[error("`auto` stands for the proxy of the environment variable http_proxy, which is not set")]
    NoAuto,
    /// More than anybody has.
    #[error("the list has more than {MEMBERS_MAX} proxies")]
    TooMany,
}

/// The port of a proxy that is named without one; libcurl's choice, and so that of the reference client.
const PORT: u16 = 1080;
/// Sites have a handful.
const MEMBERS_MAX: usize = 256;

impl Proxies {
    /// One group of nothing but [`Proxy::Direct`].
    pub fn direct() -> Self {
        Self(vec![vec![Proxy::Direct]])
    }

    /// No groups, as for a fallback that there is not.
    pub fn none() -> Self {
        Self(Vec::new())
    }

    /// Reads groups: `;` between groups, `|` between members of a group, `DIRECT` or nothing for no proxy. A group
    /// `auto` stands for `auto`, the value of the environment variable `http_proxy`; without one it is left out.
    pub fn parse(text: &str, auto: Option<&str>) -> Result<Self, ProxyError> {
        if text.trim().is_empty() {
            return Err(ProxyError::Nothing);
        }
        let mut groups = Vec::new();
        let mut left_out = false;
        for group in text.trim().split(';') {
            let group = match (group.trim(), auto) {
                ("auto", Some(proxy)) => proxy.trim(),
                ("auto", None) => {
                    left_out = true;
                    continue;
                }
                (group, _) => group,
            };
            groups.push(group.split('|').map(member).collect::<Result<Vec<_>, _>>()?);
        }
        if groups.iter().map(Vec::len).sum::<usize>() > MEMBERS_MAX {
            return Err(ProxyError::TooMany);
        }
        match groups.is_empty() {
            true if left_out => Err(ProxyError::NoAuto),
            true => Err(ProxyError::Nothing),
            false => Ok(Self(groups)),
        }
    }

    /// The groups.
    pub fn groups(&self) -> &[Vec<Proxy>] {
        &self.0
    }

    /// Whether there is no group.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

fn member(text: &str) -> Result<Proxy, ProxyError> {
    let text = text.trim();
    let bad = |reason| ProxyError::Bad { proxy: text.to_owned(), reason };
    if text.is_empty() || text == "DIRECT" {
        return Ok(Proxy::Direct);
    }
    let (tls, authority) = match text.split_once("://") {
        Some(("http", rest)) => (false, rest),
        Some(("https", rest)) => (true, rest),
        Some(_) => return Err(bad("it begins neither with http:// nor https://")),
        None => (false, text),
    };
    let authority = authority.strip_suffix('/').unwrap_or(authority);
    if authority.contains('@') {
        return Err(bad("user names and passwords are not supported"));
    }
    let (host, port) = match authority.strip_prefix('[') {
        Some(literal) => {
            let (host, rest) = literal.split_once(']').ok_or_else(|| bad("a bracket is not closed"))?;
            host.parse::<Ipv6Addr>().map_err(|_| bad("what is in brackets is no address"))?;
            match rest.strip_prefix(':') {
                Some(port) => (host, Some(port)),
                None if rest.is_empty() => (host, None),
                None => return Err(bad("something other than a port follows the bracket")),
            }
        }
        None => match authority.split_once(':') {
            Some((host, port)) => (host, Some(port)),
            None => (authority, None),
        },
    };
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'-' | b'_' | b':');
    if host.is_empty() || !host.bytes().all(plain) {
        return Err(bad("it has no name of a host, or one with characters that no name has"));
    }
    let port = match port {
        None => PORT,
        Some(port) => {
            let number = port.parse().ok().filter(|port| *port != 0);
            number.ok_or_else(|| bad("the port is not a number from 1 to 65535"))?
        }
    };
    Ok(Proxy::At { host: host.to_owned(), port, tls })
}

impl fmt::Display for Proxy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Proxy::Direct => f.write_str("DIRECT"),
            Proxy::At { host, port, tls } => {
                let scheme = if *tls { "https" } else { "http" };
                let (open, close) = if host.contains(':') { ("[", "]") } else { ("", "") };
                write!(f, "{scheme}://{open}{host}{close}:{port}")
            }
        }
    }
}

impl fmt::Display for Proxies {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (number, group) in self.0.iter().enumerate() {
            f.write_str(if number > 0 { ";" } else { "" })?;
            for (number, member) in group.iter().enumerate() {
                write!(f, "{}{member}", if number > 0 { "|" } else { "" })?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_are_read_as_sites_write_them() {
        for (text, read) in [
            (
                "http://a:3128|http://b:3128;http://c:8080;DIRECT",
                "http://a:3128|http://b:3128;http://c:8080;DIRECT",
            ),
            ("a:3128", "http://a:3128"),
            ("http://squid.site.example", "http://squid.site.example:1080"),
            (" http://a:3128/ ; DIRECT ", "http://a:3128;DIRECT"),
            ("http://[::1]:3128|[fe80::1]", "http://[::1]:3128|http://[fe80::1]:1080"),
            ("DIRECT", "DIRECT"),
            ("https://a:3129|https://[::1]", "https://a:3129|https://[::1]:1080"),
            ("http://a:1;", "http://a:1;DIRECT"),
            ("auto;DIRECT", "http://env.example:3128;DIRECT"),
        ] {
            let proxies = Proxies::parse(text, Some("http://env.example:3128/")).expect(text);
            assert_eq!(proxies.to_string(), read);
            assert_eq!(Proxies::parse(read, None).as_ref(), Ok(&proxies));
        }
        assert_eq!(Proxies::parse("auto;DIRECT", None), Ok(Proxies::direct()));
    }

    #[test]
    fn what_is_wrong_is_named() {
        let error = |text: &str| Proxies::parse(text, None).expect_err(text);
        assert_eq!((error(""), error("  ")), (ProxyError::Nothing, ProxyError::Nothing));
        assert_eq!(error("auto"), ProxyError::NoAuto);
        assert_eq!(error(&"a:1|".repeat(300)), ProxyError::TooMany);
        for text in [
            "http://good:3128|ftp://x:1",
            "socks5://x:1",
            "http://u:p@x:1",
            "http://:3128",
            "http://x:0",
            "http://x:99999",
            "http://x:3128/path",
            "http://x y:1",
            "http://[::1",
            "http://[x]:1",
            "http://[::1]3128",
        ] {
            let wrong = text.rsplit('|').next().unwrap_or(text);
            assert!(error(text).to_string().contains(wrong), "{text}: {}", error(text));
        }
    }

    proptest::proptest! {
        #[test]
        fn any_text_is_answered(text in "\\PC*") {
            if let Ok(proxies) = Proxies::parse(&text, None) {
                let again = Proxies::parse(&proxies.to_string(), None);
                proptest::prop_assert_eq!(again, Ok(proxies));
            }
        }
    }
}
