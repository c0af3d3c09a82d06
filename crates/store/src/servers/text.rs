//! The text form of [`Servers`]: a line `name value` for each setting that differs from its default. Processes that
//! share a cache send it to each other, and it is the key for sharing a source. It contains the passwords of proxies,
//! so it is never shown.

use std::fmt::{self, Display};
use std::str::FromStr;
use std::time::Duration;

use super::{Authorities, Dns, Family, InfoHeaders, Proxies, ProxyError, Servers, Timings};

/// Error in the text form of [`Servers`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ServersError {
    /// A line with an unknown name.
    #[error("a line `{0}` says nothing about servers")]
    Line(String),
    /// The proxies are invalid.
    #[error(transparent)]
    Proxies(#[from] ProxyError),
    /// The text names no server.
    #[error("no server is named")]
    Nothing,
    /// The text has too many servers.
    #[error("more than {SERVERS_MAX} servers are named")]
    TooMany,
}

/// Maximum number of servers; repositories have about a dozen.
const SERVERS_MAX: usize = 256;
/// Maximum length of a line's name.
const NAME_MAX: usize = 20;

impl Display for Servers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let plain = Servers::direct(self.url());
        if *self == plain && !self.url().contains(['\n', ' ']) {
            return f.write_str(self.url());
        }
        self.urls.iter().try_for_each(|url| writeln!(f, "server {url}"))?;
        self.full.iter().try_for_each(|url| writeln!(f, "full {url}"))?;
        if let Some(kept) = self.metalink {
            writeln!(f, "metalink {}", kept.as_millis())?;
        }
        line(f, "proxies", &self.proxies.revealed(), &plain.proxies.revealed())?;
        line(f, "fallback", &self.fallback.revealed(), &plain.fallback.revealed())?;
        line(f, "sharding", &self.sharding, &plain.sharding)?;
        line(f, "redirects", &self.redirects, &plain.redirects)?;
        line(f, "order", &self.order, &plain.order)?;
        if let Some(name) = &self.geo_name {
            writeln!(f, "geo-name {name}")?;
        }
        line(f, "most", &self.most, &plain.most)?;
        line(f, "tell-what", &self.info_headers.what, &false)?;
        if let Some(template) = &self.info_headers.template {
            writeln!(f, "tell-template {template}")?;
        }
        self.info_headers.fields.iter().try_for_each(|(name, value)| writeln!(f, "tell {name}:{value}"))?;
        self.timings.write(f)?;
        self.dns.write(f)?;
        self.authorities.write(f)?;
        line(f, "http2", &self.http2, &true)?;
        let external = self.external.as_ref().map(|external| external.lines()).unwrap_or_default();
        external.lines().try_for_each(|line| writeln!(f, "external {line}"))
    }
}

fn line<T: Display + PartialEq>(f: &mut fmt::Formatter<'_>, name: &str, value: &T, usual: &T) -> fmt::Result {
    if value == usual { Ok(()) } else { writeln!(f, "{name} {value}") }
}

/// Formats milliseconds, or `-` for none.
fn time(
    f: &mut fmt::Formatter<'_>,
    name: &str,
    value: Option<Duration>,
    usual: Option<Duration>,
) -> fmt::Result {
    match value {
        _ if value == usual => Ok(()),
        Some(value) => writeln!(f, "{name} {}", value.as_millis()),
        None => writeln!(f, "{name} -"),
    }
}

impl Timings {
    fn write(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let usual = Self::default();
        time(f, "time-proxy", Some(self.proxy), Some(usual.proxy))?;
        time(f, "time-direct", self.direct, usual.direct)?;
        if let Some(low_speed) = self.low_speed {
            writeln!(f, "low-speed {low_speed}")?;
        }
        line(f, "indefinitely", &self.indefinitely, &false)?;
        line(f, "retries", &self.retries, &usual.retries)?;
        time(f, "first-pause", self.first_pause, usual.first_pause)?;
        time(f, "longest-pause", self.longest_pause, usual.longest_pause)?;
        time(f, "proxy-reset", self.proxy_reset, usual.proxy_reset)?;
        time(f, "server-reset", self.server_reset, usual.server_reset)
    }
}

impl Dns {
    fn write(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let usual = Self::default();
        time(f, "dns-time", Some(self.timeout), Some(usual.timeout))?;
        line(f, "dns-retries", &self.retries, &usual.retries)?;
        time(f, "dns-least", Some(self.least_ttl), Some(usual.least_ttl))?;
        time(f, "dns-longest", Some(self.longest_ttl), Some(usual.longest_ttl))?;
        if let Some(server) = self.server {
            writeln!(f, "dns-server {server}")?;
        }
        match self.family {
            Family::PreferV4 => {}
            Family::PreferV6 => f.write_str("family prefer-6\n")?,
            Family::OnlyV4 => f.write_str("family only-4\n")?,
        }
        line(f, "addresses", &self.addresses_max, &usual.addresses_max)
    }
}

impl Authorities {
    fn write(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        line(f, "system-authorities", &self.system, &true)?;
        self.paths.iter().try_for_each(|path| writeln!(f, "authorities {path}"))
    }
}

impl FromStr for Servers {
    type Err = ServersError;

    fn from_str(text: &str) -> Result<Self, ServersError> {
        if !text.is_empty() && !text.contains(['\n', ' ']) {
            return Ok(Servers::direct(text));
        }
        let mut servers = Servers { urls: Vec::new(), ..Servers::direct("") };
        let mut external = String::new();
        for line in text.lines() {
            if let Some(line) = line.strip_prefix("external ") {
                // External data has no external data of its own.
                external.push_str(line.strip_prefix("external ").map_or(line, |_| "nonsense"));
                external.push('\n');
                continue;
            }
            // The value could be a password.
            let unknown = |name: &str| ServersError::Line(name.chars().take(NAME_MAX).collect());
            let (name, value) = line.split_once(' ').ok_or_else(|| unknown(line))?;
            servers.read(name, value)?.ok_or_else(|| unknown(name))?;
        }
        if !external.is_empty() {
            servers.external = Some(Box::new(external.parse()?));
        }
        match servers.urls.len() {
            0 => Err(ServersError::Nothing),
            1..=SERVERS_MAX => Ok(servers),
            _ => Err(ServersError::TooMany),
        }
    }
}

impl Servers {
    /// Returns the text as lines, even if the URL alone is enough.
    fn lines(&self) -> String {
        let text = self.to_string();
        if text.contains('\n') { text } else { format!("server {text}\n") }
    }

    /// Parses a line; `None` if it is invalid.
    fn read(&mut self, name: &str, value: &str) -> Result<Option<()>, ServersError> {
        match name {
            "server" => self.urls.push(value.to_owned()),
            "full" => self.full.push(value.to_owned()),
            "proxies" => self.proxies = Proxies::parse(value, None)?,
            "fallback" if value.is_empty() => self.fallback = Proxies::none(),
            "fallback" => self.fallback = Proxies::parse(value, None)?,
            _ => return Ok(self.read_plain(name, value)),
        }
        Ok(Some(()))
    }

    fn read_plain(&mut self, name: &str, value: &str) -> Option<()> {
        let (timings, dns) = (&mut self.timings, &mut self.dns);
        match name {
            "metalink" => self.metalink = read_time(value)?,
            "sharding" => self.sharding = value.parse().ok()?,
            "redirects" => self.redirects = value.parse().ok()?,
            "order" => self.order = value.parse().ok()?,
            "geo-name" => self.geo_name = Some(value.to_owned()),
            "most" => self.most = value.parse().ok()?,
            "tell-what" => self.info_headers.what = value.parse().ok()?,
            "tell-template" => self.info_headers.template = Some(value.to_owned()),
            "tell" => self.info_headers.fields.extend(InfoHeaders::parse_fields(value)?),
            "indefinitely" => timings.indefinitely = value.parse().ok()?,
            "time-proxy" => timings.proxy = read_time(value)??,
            "time-direct" => timings.direct = read_time(value)?,
            "low-speed" => timings.low_speed = Some(value.parse().ok()?),
            "retries" => timings.retries = value.parse().ok()?,
            "first-pause" => timings.first_pause = read_time(value)?,
            "longest-pause" => timings.longest_pause = read_time(value)?,
            "proxy-reset" => timings.proxy_reset = read_time(value)?,
            "server-reset" => timings.server_reset = read_time(value)?,
            "dns-time" => dns.timeout = read_time(value)??,
            "dns-retries" => dns.retries = value.parse().ok()?,
            "dns-least" => dns.least_ttl = read_time(value)??,
            "dns-longest" => dns.longest_ttl = read_time(value)??,
            "dns-server" => dns.server = Some(value.parse().ok()?),
            "family" if value == "prefer-6" => dns.family = Family::PreferV6,
            "family" if value == "only-4" => dns.family = Family::OnlyV4,
            "system-authorities" => self.authorities.system = value.parse().ok()?,
            "http2" => self.http2 = value.parse().ok()?,
            "authorities" => self.authorities.paths.push(value.to_owned()),
            "addresses" => dns.addresses_max = value.parse().ok()?,
            _ => return None,
        }
        Some(())
    }
}

fn read_time(value: &str) -> Option<Option<Duration>> {
    if value == "-" {
        return Some(None);
    }
    value.parse().ok().map(Duration::from_millis).map(Some)
}

#[cfg(test)]
mod tests {
    use super::super::Order;
    use super::*;

    fn unusual() -> Servers {
        Servers {
            urls: vec!["http://a/cvmfs/x".into(), "http://b/cvmfs/x".into()],
            full: vec!["http://c/cvmfs/x".into()],
            metalink: Some(Duration::from_secs(300)),
            proxies: Proxies::parse("p:3128|http://me:a%3Bb@q:3128;DIRECT", None).unwrap(),
            fallback: Proxies::parse("http://f:80", None).unwrap(),
            sharding: true,
            redirects: true,
            order: Order::RoundTrip,
            geo_name: Some("here.example".into()),
            most: 7,
            info_headers: InfoHeaders {
                what: true,
                template: Some("job %{path}".into()),
                fields: vec![("a".into(), "b c:d".into()), ("e".into(), String::new())],
            },
            timings: Timings {
                proxy: Duration::from_millis(1500),
                direct: Some(Duration::from_secs(10)),
                low_speed: Some(1024),
                indefinitely: true,
                retries: 3,
                first_pause: Some(Duration::from_secs(2)),
                longest_pause: Some(Duration::from_secs(10)),
                proxy_reset: None,
                server_reset: Some(Duration::from_secs(1)),
            },
            dns: Dns {
                timeout: Duration::from_secs(1),
                retries: 2,
                least_ttl: Duration::from_secs(1),
                longest_ttl: Duration::from_secs(2),
                server: Some(([127, 0, 0, 1], 53).into()),
                family: Family::PreferV6,
                addresses_max: 2,
            },
            authorities: Authorities { system: false, paths: vec!["/a b/c.pem".into(), "/d".into()] },
            http2: false,
            external: Some(Box::new(Servers { redirects: true, ..Servers::direct("http://e/x") })),
        }
    }

    #[test]
    fn the_text_form_is_complete() {
        for servers in [Servers::direct("http://a/cvmfs/x"), unusual()] {
            assert_eq!(servers.to_string().parse(), Ok(servers));
        }
        assert_eq!(Servers::direct("http://a/x").to_string(), "http://a/x");
        assert_eq!(
            unusual().to_string().lines().count(),
            37,
            "each unusual thing has a line:\n{}",
            unusual()
        );
    }

    #[test]
    fn invalid_text_is_refused() {
        for text in [
            "",
            "\n",
            "server \nwhat ever",
            "proxies a:1",
            "server http://a/x\nretries many",
            "a b",
            "server http://a/x\nexternal external server http://b",
        ] {
            assert!(text.parse::<Servers>().is_err(), "{text:?}");
        }
        let many = "server http://a/x\n".repeat(300);
        assert_eq!(many.parse::<Servers>(), Err(ServersError::TooMany));
    }

    #[test]
    fn fallback_proxies_take_the_place_of_asking_directly() {
        let groups = unusual().groups();
        let shown: Vec<String> =
            groups.iter().map(|group| group.iter().map(|p| format!("{p} ")).collect()).collect();
        assert_eq!(shown, ["http://p:3128 http://me:***@q:3128 ", "http://f:80 "]);
    }
}
