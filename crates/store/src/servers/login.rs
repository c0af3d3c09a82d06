//! User names and passwords for proxies.

use std::fmt;

use base64ct::{Base64, Encoding};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_decode_str, utf8_percent_encode};

/// Replacement for a password in texts.
const MASK: &str = "***";
/// Characters to escape in a user name or password.
const ESCAPED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'_').remove(b'.').remove(b'~');

/// A user name and a password. `Debug` and `Display` mask the password.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Login {
    user: String,
    password: String,
}

impl Login {
    /// Reads `USER:PASSWORD` from a URL, with escapes like `%40`.
    pub(super) fn parse(text: &str) -> Result<Self, &'static str> {
        let (user, password) = text.split_once(':').unwrap_or((text, ""));
        let decoded = |text: &str| {
            let decoded = percent_decode_str(text).decode_utf8();
            decoded.map_err(|_| "its user name or password is not UTF-8").map(String::from)
        };
        let (user, password) = (decoded(user)?, decoded(password)?);
        if user.is_empty() {
            return Err("there is a password without a user name");
        }
        if user.contains(':') {
            return Err("a user name can't have a colon in it");
        }
        if [&user, &password].iter().any(|text| text.contains(char::is_control)) {
            return Err("its user name or password has control characters");
        }
        Ok(Self { user, password })
    }

    /// Returns the user name.
    pub fn user(&self) -> &str {
        &self.user
    }

    /// Returns the text form that [`Login::parse`] reads, including the password.
    pub(super) fn revealed(&self) -> String {
        let escaped = |text| utf8_percent_encode(text, ESCAPED).to_string();
        match self.password.is_empty() {
            true => escaped(&self.user),
            false => format!("{}:{}", escaped(&self.user), escaped(&self.password)),
        }
    }

    /// Returns the value of the field `Proxy-Authorization` (RFC 7617), password included.
    pub(crate) fn basic(&self) -> String {
        let both = format!("{}:{}", self.user, self.password);
        format!("Basic {}", Base64::encode_string(both.as_bytes()))
    }
}

impl fmt::Display for Login {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", utf8_percent_encode(&self.user, ESCAPED))?;
        if self.password.is_empty() { Ok(()) } else { write!(f, ":{MASK}") }
    }
}

impl fmt::Debug for Login {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Login({self})")
    }
}

/// Returns a list of proxies with the passwords masked. The list may be malformed: anything that could be a part of a
/// password is masked.
pub fn without_passwords(text: &str) -> String {
    if !text.contains('@') {
        return text.to_owned();
    }
    let mut shown = String::with_capacity(text.len());
    for part in text.split_inclusive([';', '|']) {
        let (member, end) = match part.strip_suffix([';', '|']) {
            Some(member) => (member, &part[member.len()..]),
            None => (part, ""),
        };
        shown.push_str(&masked(member));
        shown.push_str(end);
    }
    shown
}

fn masked(member: &str) -> String {
    let (scheme, rest) = match member.find("://") {
        Some(at) => member.split_at(at + 3),
        None => ("", member),
    };
    match rest.rsplit_once('@') {
        Some((login, host)) => match login.split_once(':') {
            Some((user, _)) => format!("{scheme}{user}:{MASK}@{host}"),
            None if scheme.is_empty() => format!("{MASK}@{host}"),
            None => format!("{scheme}{login}@{host}"),
        },
        // A password with a separator in it that is not escaped ends up here.
        None => match rest.split_once(':') {
            Some((host, port)) if !rest.starts_with('[') && !is_port(port) => {
                format!("{scheme}{host}:{MASK}")
            }
            _ => member.to_owned(),
        },
    }
}

fn is_port(text: &str) -> bool {
    text.trim().trim_end_matches('/').bytes().all(|byte| byte.is_ascii_digit())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_login_is_read_as_it_stands_in_a_url() {
        for (text, user, password, shown) in [
            ("me:secret", "me", "secret", "me:***"),
            ("me", "me", "", "me"),
            ("me:", "me", "", "me"),
            ("me%40site:a%3Ab%7Cc%3B%25", "me@site", "a:b|c;%", "me%40site:***"),
            ("me:a:b@c", "me", "a:b@c", "me:***"),
            ("m%C3%A9:%E2%82%AC", "mé", "€", "m%C3%A9:***"),
        ] {
            let login = Login::parse(text).expect(text);
            assert_eq!((login.user(), login.password.as_str()), (user, password), "{text}");
            assert_eq!(login.to_string(), shown);
            assert!(!format!("{login:?}").contains("secret"));
            assert_eq!(Login::parse(&login.revealed()), Ok(login));
        }
        for wrong in ["", ":secret", "a%3Ab:c", "a:%0A", "%00:b", "a:%FF"] {
            assert!(Login::parse(wrong).is_err(), "{wrong}");
        }
        // The example of RFC 7617.
        assert_eq!(
            Login::parse("Aladdin:open%20sesame").unwrap().basic(),
            "Basic QWxhZGRpbjpvcGVuIHNlc2FtZQ=="
        );
    }

    #[test]
    fn passwords_are_masked_in_lists_of_any_form() {
        for (text, shown) in [
            ("http://p:3128;DIRECT", "http://p:3128;DIRECT"),
            ("http://me:secret@p:3128|http://q:3128;DIRECT", "http://me:***@p:3128|http://q:3128;DIRECT"),
            ("me:secret@p:3128", "me:***@p:3128"),
            ("http://me@p:3128", "http://me@p:3128"),
            ("http://me:se@cret@p:3128", "http://me:***@p:3128"),
            ("http://me:sec;ret@p:3128", "http://me:***;***@p:3128"),
            ("http://me:sec|r:et@p:3128", "http://me:***|r:***@p:3128"),
            ("ftp://me:secret@p", "ftp://me:***@p"),
            ("http://me:secret@p:x;http://[::1]:3128", "http://me:***@p:x;http://[::1]:3128"),
        ] {
            assert_eq!(without_passwords(text), shown);
        }
    }
}
