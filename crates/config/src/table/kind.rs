//! Kinds of parameter values.

use esker_store::without_passwords;

/// Kind of a parameter's value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Any text.
    Text,
    /// `yes`, `on`, `1` or `true`, or one of their opposites.
    Switch,
    /// Whole seconds.
    Seconds,
    /// Whole minutes.
    Minutes,
    /// A whole number.
    Count,
    /// An integer that may be negative.
    Number,
    /// Megabytes; negative for no limit.
    Megabytes,
    /// Bytes in a second.
    BytesPerSecond,
    /// An absolute path.
    Path,
    /// Absolute paths separated by colons.
    Paths,
    /// A domain or repository.
    Name,
    /// Names separated by commas.
    Names,
    /// Addresses separated by semicolons.
    Urls,
    /// Proxies: groups separated by semicolons, members by `|`.
    Proxies,
    /// A content hash.
    Hash,
    /// A time like 2026-01-31T12:00:00Z.
    Date,
    /// One of these words.
    OneOf(&'static [&'static str]),
}

/// Returns the value of a switch.
pub fn switch(text: &str) -> Option<bool> {
    let is = |words: [&str; 4]| words.iter().any(|word| word.eq_ignore_ascii_case(text));
    match text {
        _ if is(["yes", "on", "1", "true"]) => Some(true),
        _ if is(["no", "off", "0", "false"]) => Some(false),
        _ => None,
    }
}

impl Kind {
    /// Returns the separator of a list's parts.
    pub fn separator(self) -> char {
        match self {
            Kind::Paths => ':',
            Kind::Names => ',',
            _ => ';',
        }
    }

    /// Returns a description of the valid values, for a table and for messages.
    pub fn words(self) -> String {
        match self {
            Kind::Text => "text".into(),
            Kind::Switch => "`yes` or `no`".into(),
            Kind::Seconds => "seconds".into(),
            Kind::Minutes => "minutes".into(),
            Kind::Count => "a number".into(),
            Kind::Number => "a number, also below 0".into(),
            Kind::Megabytes => "MB, or -1 for no limit".into(),
            Kind::BytesPerSecond => "bytes a second".into(),
            Kind::Path => "an absolute path".into(),
            Kind::Paths => "absolute paths with `:` between them".into(),
            Kind::Name => "a name".into(),
            Kind::Names => "names with `,` between them".into(),
            Kind::Urls => "URLs with `;` between them".into(),
            Kind::Proxies => "proxies with `|`, groups with `;` between them".into(),
            Kind::Hash => "a content hash".into(),
            Kind::Date => "a time like `2026-01-31T12:00:00Z`".into(),
            Kind::OneOf(words) => words.iter().map(|word| format!("`{word}`")).collect::<Vec<_>>().join(", "),
        }
    }

    /// Returns an error unless `value` is valid.
    pub fn check(self, value: &str) -> Result<(), String> {
        let digits =
            |text: &str| !text.is_empty() && text.len() < 19 && text.bytes().all(|b| b.is_ascii_digit());
        let all = |separator: char, good: &dyn Fn(&str) -> bool| {
            value.split(separator).all(|part| good(part.trim()))
        };
        let good = match self {
            Kind::Text => true,
            Kind::Switch => switch(value).is_some(),
            Kind::Seconds | Kind::Minutes | Kind::Count | Kind::BytesPerSecond => digits(value),
            Kind::Number | Kind::Megabytes => digits(value.strip_prefix('-').unwrap_or(value)),
            Kind::Path => value.starts_with('/'),
            Kind::Paths => all(':', &|part| part.starts_with('/')),
            Kind::Name => is_name(value),
            Kind::Names => all(',', &is_name),
            Kind::Urls => all(';', &|part| part == "auto" || is_url(part)),
            Kind::Proxies => return proxies(value),
            Kind::Hash => is_hash(value),
            Kind::Date => is_date(value),
            Kind::OneOf(words) => words.iter().any(|word| word.eq_ignore_ascii_case(value)),
        };
        if good { Ok(()) } else { Err(format!("it takes {}", self.words())) }
    }
}

fn is_name(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|b| b.is_ascii_alphanumeric() || b"-_.".contains(&b))
}

fn is_url(text: &str) -> bool {
    let rest = ["http://", "https://", "file://"].iter().find_map(|scheme| text.strip_prefix(scheme));
    rest.is_some_and(|rest| !rest.is_empty() && !rest.contains(|c: char| c.is_whitespace() || c == '|'))
}

fn is_hash(text: &str) -> bool {
    let (digits, kind) = text.split_once('-').unwrap_or((text, "rmd160"));
    digits.len() == 40
        && digits.bytes().all(|b| b.is_ascii_hexdigit())
        && matches!(kind, "rmd160" | "shake128")
}

fn is_date(text: &str) -> bool {
    let shape = "0000-00-00T00:00:00Z";
    let fits = |(c, form): (u8, u8)| if form == b'0' { c.is_ascii_digit() } else { c == form };
    text.len() == shape.len() && text.bytes().zip(shape.bytes()).all(fits)
}

fn proxies(value: &str) -> Result<(), String> {
    for member in value.split([';', '|']).map(str::trim) {
        if member.is_empty() {
            return Err("there is nothing between two separators".into());
        }
        if member == "DIRECT" || member == "auto" {
            continue;
        }
        let named = without_passwords(member);
        let rest =
            member.strip_prefix("http://").or_else(|| member.strip_prefix("https://")).unwrap_or(member);
        if rest.contains("://") {
            return Err(format!("{named}: a proxy is reached by http:// or https://"));
        }
        let rest = rest.trim_end_matches('/');
        let rest = rest.rsplit_once('@').map_or(rest, |(_, host)| host);
        let (host, port) = match rest.rsplit_once(':') {
            Some((host, port)) if !port.contains(']') => (host, Some(port)),
            _ => (rest, None),
        };
        if host.is_empty() || host.contains(|c: char| c.is_whitespace() || c == '/' || c == ',') {
            return Err(format!("{named:?} is not a proxy like http://proxy:3128"));
        }
        if port.is_some_and(|port| !port.parse::<u16>().is_ok_and(|port| port > 0)) {
            return Err(format!("{named}: its port is not a number from 1 to 65535"));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn valid_values_are_distinguished_from_mistakes() {
        let all: [(Kind, &[&str], &[&str]); 9] = [
            (Kind::Switch, &["yes", "Off", "1", "TRUE"], &["", "y", "2"]),
            (Kind::Seconds, &["0", "5"], &["", "5s", "-1", "99999999999999999999"]),
            (Kind::Megabytes, &["-1", "4000"], &["4G", "-", "4.5"]),
            (Kind::Paths, &["/a", "/a:/b"], &["a", "/a:", "/a,b:c"]),
            (Kind::Urls, &["http://h/x;https://h:1/y", "auto"], &["h/x", "http://", "http://a b"]),
            (Kind::Hash, &["0123456789012345678901234567890123456789-shake128"], &["12", "x", ""]),
            (Kind::Date, &["2026-01-31T12:00:00Z"], &["2026-01-31", "2026-01-31 12:00:00Z"]),
            (
                Kind::Proxies,
                &["DIRECT", "http://a:3128|b:3128;http://[fd00::1]:3128;auto", "http://u:p@h:1"],
                &["http://a:x", ";", "http://a:3128,http://b:3128", "socks://a:1", "http://:3128", "a:0"],
            ),
            (Kind::OneOf(&["4", "6"]), &["4", "6"], &["5", ""]),
        ];
        for (kind, good, bad) in all {
            good.iter().for_each(|value| assert_eq!(kind.check(value), Ok(()), "{kind:?} {value}"));
            bad.iter().for_each(|value| assert!(kind.check(value).is_err(), "{kind:?} {value}"));
        }
    }
}
