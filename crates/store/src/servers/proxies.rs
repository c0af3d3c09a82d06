//! Parses groups of proxies: `http://a:3128|http://b:3128;http://backup:3128;DIRECT`.

use std::fmt;
use std::net::Ipv6Addr;

use super::login::{Login, without_passwords};

/// Groups of proxies. One group is used after the other, the members of a group alike.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Proxies(Vec<Vec<Proxy>>);

/// A member of a group.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Proxy {
    /// Direct connections without a proxy.
    Direct,
    /// An HTTP proxy.
    At {
        /// Name or address, without brackets.
        host: String,
        /// Port of the proxy.
        port: u16,
        /// True if the proxy is used over https.
        tls: bool,
        /// User name and password for the proxy.
        login: Option<Login>,
    },
}

/// Error in a list of proxies.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ProxyError {
    /// A member of the list is invalid.
    #[error("`{proxy}` can't be used as a proxy: {reason}")]
    Bad {
        /// Invalid member, without its password.
        proxy: String,
        /// The reason.
        reason: &'static str,
    },
    /// The list is empty.
    #[error("the list names no proxy, nor DIRECT")]
    Nothing,
    /// `auto` without a value for it.
    #[error("`auto` stands for the proxy of the environment variable http_proxy, which is not set")]
    NoAuto,
    /// The list has too many members.
    #[error("the list has more than {MEMBERS_MAX} proxies")]
    TooMany,
}

/// Default port of a proxy; libcurl's choice, and so that of the reference client.
const PORT: u16 = 1080;
/// Maximum number of members; sites have a handful.
const MEMBERS_MAX: usize = 256;

impl Proxies {
    /// Returns one group with only [`Proxy::Direct`].
    pub fn direct() -> Self {
        Self(vec![vec![Proxy::Direct]])
    }

    /// Makes an empty list, as for no fallback.
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

    /// Returns a list of this proxy alone.
    pub fn only(proxy: Proxy) -> Self {
        Self(vec![vec![proxy]])
    }

    /// Returns the text form that [`Proxies::parse`] reads, including passwords: for other processes of Esker,
    /// and never to be shown.
    pub(super) fn revealed(&self) -> String {
        self.text(Proxy::revealed)
    }

    fn text(&self, member: impl Fn(&Proxy) -> String) -> String {
        let group = |group: &Vec<Proxy>| group.iter().map(&member).collect::<Vec<_>>().join("|");
        self.0.iter().map(group).collect::<Vec<_>>().join(";")
    }

    /// Returns all groups.
    pub fn groups(&self) -> &[Vec<Proxy>] {
        &self.0
    }

    /// Makes the next group the first one, and the first one the last of `fallback`, or of these if there is none there.
    pub fn switch_group(&mut self, fallback: &mut Self) {
        if !fallback.is_empty() {
            // Beside other groups a fallback replaces direct connections.
            self.0.retain(|group| group.iter().any(|proxy| *proxy != Proxy::Direct));
        }
        let len = self.0.len();
        self.0.append(&mut fallback.0);
        let has_others = self.0.len() > 1;
        self.0.rotate_left(usize::from(has_others));
        fallback.0 = self.0.split_off(len);
    }

    /// Returns true if there is no group.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

fn member(text: &str) -> Result<Proxy, ProxyError> {
    let text = text.trim();
    let bad = |reason| ProxyError::Bad { proxy: without_passwords(text), reason };
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
    let (login, authority) = match authority.rsplit_once('@') {
        Some((login, authority)) => (Some(Login::parse(login).map_err(&bad)?), authority),
        None => (None, authority),
    };
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
    Ok(Proxy::At { host: host.to_owned(), port, tls, login })
}

impl Proxy {
    /// Returns the same proxy without user name and password.
    pub(crate) fn without_login(&self) -> Self {
        match self.clone() {
            Proxy::At { host, port, tls, .. } => Proxy::At { host, port, tls, login: None },
            Proxy::Direct => Proxy::Direct,
        }
    }

    fn revealed(&self) -> String {
        self.text(Login::revealed)
    }

    fn text(&self, shown: impl Fn(&Login) -> String) -> String {
        match self {
            Proxy::Direct => "DIRECT".to_owned(),
            Proxy::At { host, port, tls, login } => {
                let scheme = if *tls { "https" } else { "http" };
                let (open, close) = if host.contains(':') { ("[", "]") } else { ("", "") };
                let login = login.as_ref().map(|login| shown(login) + "@").unwrap_or_default();
                format!("{scheme}://{login}{open}{host}{close}:{port}")
            }
        }
    }
}

/// Masks passwords.
impl fmt::Display for Proxy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text(Login::to_string))
    }
}

/// Masks passwords.
impl fmt::Display for Proxies {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text(Proxy::to_string))
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
    fn errors_name_the_invalid_proxy() {
        let error = |text: &str| Proxies::parse(text, None).expect_err(text);
        assert_eq!((error(""), error("  ")), (ProxyError::Nothing, ProxyError::Nothing));
        assert_eq!(error("auto"), ProxyError::NoAuto);
        assert_eq!(error(&"a:1|".repeat(300)), ProxyError::TooMany);
        for text in [
            "http://good:3128|ftp://x:1",
            "socks5://x:1",
            "http://:p@x:1",
            "http://u:p@",
            "http://u%3Ax:p@x:1",
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
            let wrong = without_passwords(wrong);
            assert!(error(text).to_string().contains(&wrong), "{text}: {}", error(text));
        }
        for text in ["http://me:secret@x:0", "http://me:secret@", "ftp://me:secret@x", "me:secret@x y:1"] {
            assert!(!format!("{0} {0:?}", error(text)).contains("secret"), "{}", error(text));
        }
    }

    #[test]
    fn passwords_are_sent_and_not_shown() {
        let list = "http://me:a%40b@p:3128|me2:c@q;https://user@[::1]:3129;DIRECT";
        let proxies = Proxies::parse(list, None).unwrap();
        let shown = "http://me:***@p:3128|http://me2:***@q:1080;https://user@[::1]:3129;DIRECT";
        assert_eq!(proxies.to_string(), shown);
        assert!(!format!("{proxies:?}").contains("a@b"));
        assert_eq!(Proxies::parse(&proxies.revealed(), None), Ok(proxies));
        let auto = Proxies::parse("auto;DIRECT", Some("http://me:c@env.example:3128")).unwrap();
        assert_eq!(auto.revealed(), "http://me:c@env.example:3128;DIRECT");
    }

    proptest::proptest! {
        #[test]
        fn any_text_is_parsed_or_refused(text in "\\PC*") {
            if let Ok(proxies) = Proxies::parse(&text, None) {
                let again = Proxies::parse(&proxies.revealed(), None);
                proptest::prop_assert_eq!(again, Ok(proxies));
            }
        }
    }
}
