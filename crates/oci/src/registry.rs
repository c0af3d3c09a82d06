//! Names of images in registries, and the registry protocol without its transport.
//!
//! The caller does the network requests ([`Registry`]); this module defines requests and validates answers. A
//! manifest is trusted because of the server, or because a digest names it; all other content because of its
//! digest.

use std::io::{self, Read};

use serde::Deserialize;

use crate::OciError;
use crate::digest::Digest;

/// Maximum length of an image name in bytes.
const NAME_MAX: usize = 255;
/// Maximum length of a tag in bytes.
const TAG_MAX: usize = 128;
/// Maximum length of a token in bytes.
const TOKEN_MAX: usize = 64 << 10;

/// Access to the parts of one image in a registry.
pub trait Registry: Send + Sync {
    /// Returns the manifest or index with this tag or digest, of at most `limit` bytes.
    fn manifest(&self, reference: &str, limit: u64) -> io::Result<Vec<u8>>;

    /// Returns the content of a blob, of at most `limit` bytes.
    fn blob(&self, digest: &str, limit: u64) -> io::Result<Box<dyn Read + Send>>;
}

/// Name of Docker Hub in image names and in credential files.
pub const HUB: &str = "docker.io";
/// Server of Docker Hub's images.
const HUB_SERVER: &str = "registry-1.docker.io";
/// Other names of Docker Hub.
const HUB_NAMES: [&str; 2] = ["index.docker.io", HUB_SERVER];
/// Namespace of Docker Hub for images whose name has one part.
const HUB_OFFICIAL: &str = "library";

/// Name of an image in a registry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reference {
    /// Registry as users write it, with an optional port; `docker.io` for Docker Hub.
    pub registry: String,
    /// Name of the image.
    pub name: String,
    /// Tag, or digest of the manifest.
    pub reference: String,
}

impl Reference {
    /// Parses `[REGISTRY/]NAME[:TAG][@DIGEST]`, as Docker and podman do.
    ///
    /// The part before the first slash is a registry if it has a dot or a port or is `localhost`; otherwise
    /// the image is in Docker Hub. The default tag is `latest`.
    pub fn parse(text: &str) -> Result<Self, OciError> {
        let refused = |reason: &str| OciError::refused(format!("docker://{text}"), reason);
        let is_registry = |part: &str| {
            part.contains(['.', ':'])
                || part == "localhost"
                || part.chars().any(|letter| letter.is_ascii_uppercase())
        };
        let (registry, rest) = match text.split_once('/') {
            Some((first, rest)) if is_registry(first) => (first, rest),
            _ => (HUB, text),
        };
        let (named, digest) = match rest.split_once('@') {
            Some((named, digest)) => (named, Some(digest)),
            None => (rest, None),
        };
        let (name, tag) = match named.split_once(':') {
            Some((name, tag)) => (name, Some(tag)),
            None => (named, None),
        };
        if !is_host(registry) {
            return Err(refused(&format!("{registry} is no name of a registry")));
        }
        if !is_name(name) {
            let reason = if name.bytes().any(|byte| byte.is_ascii_uppercase()) {
                "names of images have no capital letters"
            } else {
                "it is no name of an image; write it as docker://NAME:TAG or docker://REGISTRY/NAME:TAG"
            };
            return Err(refused(reason));
        }
        if let Some(tag) = tag.filter(|tag| !is_tag(tag)) {
            return Err(refused(&format!("{tag:?} is no name of a tag, so it is no name of an image")));
        }
        if let Some(digest) = digest {
            Digest::parse(digest)?;
        }
        let is_hub = registry == HUB || HUB_NAMES.contains(&registry);
        let registry = if is_hub { HUB } else { registry };
        let name =
            if is_hub && !name.contains('/') { format!("{HUB_OFFICIAL}/{name}") } else { name.to_owned() };
        // A digest takes precedence over a tag.
        let reference = digest.or(tag).unwrap_or("latest").to_owned();
        Ok(Self { registry: registry.to_owned(), name, reference })
    }

    /// Returns the server of the registry, with an optional port.
    pub fn server(&self) -> &str {
        if self.registry == HUB { HUB_SERVER } else { &self.registry }
    }
}

/// Returns the registry of a key in a credential file, as in [`Reference::registry`]. Keys may be URLs, or
/// other names of Docker Hub.
pub fn registry_of_key(key: &str) -> &str {
    let plain = key.strip_prefix("https://").or_else(|| key.strip_prefix("http://"));
    // URLs end in the version of the protocol.
    let path = plain.unwrap_or(key).trim_end_matches('/');
    let path = path.strip_suffix("/v1").or_else(|| path.strip_suffix("/v2")).unwrap_or(path);
    if HUB_NAMES.contains(&path) { HUB } else { path }
}

fn is_host(host: &str) -> bool {
    let (name, port) = match host.strip_prefix('[') {
        // An IPv6 address.
        Some(rest) => match rest.split_once(']') {
            Some((address, port)) if address.parse::<std::net::Ipv6Addr>().is_ok() => {
                ("ipv6", port.strip_prefix(':').or(if port.is_empty() { None } else { Some("") }))
            }
            _ => return false,
        },
        None => match host.split_once(':') {
            Some((name, port)) => (name, Some(port)),
            None => (host, None),
        },
    };
    let is_part = |part: &str| {
        let inner = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-';
        !part.is_empty() && part.bytes().all(inner) && !part.starts_with('-') && !part.ends_with('-')
    };
    name.split('.').all(is_part) && port.is_none_or(|port| port.parse::<u16>().is_ok())
}

fn is_name(name: &str) -> bool {
    let is_part = |part: &str| {
        let inner = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"._-".contains(&byte);
        let edge = |letter: char| letter.is_ascii_alphanumeric();
        !part.is_empty() && part.bytes().all(inner) && part.starts_with(edge) && part.ends_with(edge)
    };
    name.len() <= NAME_MAX && name.split('/').all(is_part)
}

fn is_tag(tag: &str) -> bool {
    let inner = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
    !tag.is_empty() && tag.len() <= TAG_MAX && tag.bytes().all(inner) && !tag.starts_with(['.', '-'])
}

/// Authentication that a registry requires by its header `WWW-Authenticate`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Challenge {
    /// A token from another server.
    Bearer(TokenServer),
    /// Name and password of a user.
    Basic,
}

/// A server that issues tokens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TokenServer {
    /// URL of the server.
    pub realm: String,
    /// Service that the token is for.
    pub service: Option<String>,
    /// Permissions of the token.
    pub scope: Option<String>,
}

impl Challenge {
    /// Parses the header, which may offer several schemes: a token is preferred. `None` if no scheme is
    /// supported.
    pub fn parse(header: &str) -> Option<Self> {
        let mut has_basic = false;
        let mut bearer: Option<Vec<(String, String)>> = None;
        let mut is_bearer = false;
        let mut rest = header.trim_start();
        while !rest.is_empty() {
            rest = rest.trim_start_matches([',', ' ', '\t']);
            let end = rest.find([' ', '=', ',', '\t']).unwrap_or(rest.len());
            let (word, after) = rest.split_at(end);
            match after.trim_start_matches([' ', '\t']).strip_prefix('=') {
                Some(value) => {
                    let value = value.trim_start_matches([' ', '\t']);
                    let (value, after) = parameter(value)?;
                    if let Some(parameters) = bearer.as_mut().filter(|_| is_bearer) {
                        parameters.push((word.to_ascii_lowercase(), value));
                    }
                    rest = after;
                }
                None if word.is_empty() => break,
                None => {
                    is_bearer = bearer.is_none() && word.eq_ignore_ascii_case("bearer");
                    has_basic |= word.eq_ignore_ascii_case("basic");
                    if is_bearer {
                        bearer = Some(Vec::new());
                    }
                    rest = after;
                }
            }
        }
        let parameters = bearer.unwrap_or_default();
        let find =
            |name: &str| parameters.iter().find(|(key, _)| key == name).map(|(_, value)| value.clone());
        match find("realm") {
            Some(realm) => {
                Some(Self::Bearer(TokenServer { realm, service: find("service"), scope: find("scope") }))
            }
            None => has_basic.then_some(Self::Basic),
        }
    }
}

/// Parses the value of a parameter, quoted or not; returns the remaining text, too.
fn parameter(text: &str) -> Option<(String, &str)> {
    let Some(quoted) = text.strip_prefix('"') else {
        let end = text.find([',', ' ', '\t']).unwrap_or(text.len());
        let (value, rest) = text.split_at(end);
        return Some((value.to_owned(), rest));
    };
    let mut value = String::new();
    let mut letters = quoted.char_indices();
    while let Some((at, letter)) = letters.next() {
        match letter {
            '"' => return Some((value, quoted.get(at + 1..)?)),
            '\\' => value.push(letters.next()?.1),
            letter => value.push(letter),
        }
    }
    None
}

impl TokenServer {
    /// Returns the query for a token; it asks to read `name` if the registry named no scope.
    pub fn query(&self, name: &str) -> String {
        let scope = self.scope.clone().unwrap_or_else(|| format!("repository:{name}:pull"));
        let service = self.service.iter().map(|service| format!("service={}", escaped(service)));
        service.chain([format!("scope={}", escaped(&scope))]).collect::<Vec<_>>().join("&")
    }
}

/// Escapes a value for a query or a form.
pub fn escaped(text: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~:/,".contains(&byte);
    let one = |byte: u8| if plain(byte) { char::from(byte).to_string() } else { format!("%{byte:02X}") };
    text.bytes().map(one).collect()
}

/// Parses the answer of a token server.
pub fn token(json: &[u8]) -> Result<String, OciError> {
    #[derive(Deserialize)]
    struct Answer {
        token: Option<String>,
        access_token: Option<String>,
    }
    let refused =
        |reason: String| OciError::refused("the answer of the registry's server for tokens", reason);
    let answer: Answer = serde_json::from_slice(json).map_err(|error| refused(error.to_string()))?;
    let token = answer.token.or(answer.access_token).unwrap_or_default();
    if token.is_empty() || token.len() > TOKEN_MAX || !token.bytes().all(|byte| byte.is_ascii_graphic()) {
        return Err(refused("it has no token".to_owned()));
    }
    Ok(token)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn image_names_are_parsed_as_by_docker() {
        let digest = format!("sha256:{}", "a".repeat(64));
        let d = digest.as_str();
        let hub = |name| (HUB, "registry-1.docker.io", name);
        let other = |server, name| (server, server, name);
        for (text, (registry, server, name), reference) in [
            ("alpine", hub("library/alpine"), "latest"),
            ("ubuntu:24.04", hub("library/ubuntu"), "24.04"),
            ("ada/tool", hub("ada/tool"), "latest"),
            ("ada/tool:v1_x-2.0", hub("ada/tool"), "v1_x-2.0"),
            ("library/x", hub("library/x"), "latest"),
            ("a/b/c:1", hub("a/b/c"), "1"),
            ("docker.io/alpine", hub("library/alpine"), "latest"),
            ("docker.io/library/alpine:3", hub("library/alpine"), "3"),
            ("docker.io/ada/tool", hub("ada/tool"), "latest"),
            ("index.docker.io/alpine", hub("library/alpine"), "latest"),
            ("registry-1.docker.io/library/alpine", hub("library/alpine"), "latest"),
            (&format!("alpine@{d}"), hub("library/alpine"), d),
            (&format!("alpine:3@{d}"), hub("library/alpine"), d),
            ("h:5000", hub("library/h"), "5000"),
            ("localhost/a", other("localhost", "a"), "latest"),
            ("localhost:5000/a/b:1", other("localhost:5000", "a/b"), "1"),
            ("h:5000/a", other("h:5000", "a"), "latest"),
            ("h.example/a/b:1.0", other("h.example", "a/b"), "1.0"),
            ("H/a", other("H", "a"), "latest"),
            ("127.0.0.1:5000/a", other("127.0.0.1:5000", "a"), "latest"),
            ("[::1]:5000/a", other("[::1]:5000", "a"), "latest"),
            ("h.example/a__b/c-d.e", other("h.example", "a__b/c-d.e"), "latest"),
            (&format!("localhost/a:1@{d}"), other("localhost", "a"), d),
        ] {
            let read = Reference::parse(text).expect(text);
            assert_eq!((&*read.registry, read.server(), &*read.name), (registry, server, name), "{text}");
            assert_eq!(read.reference, reference, "{text}");
        }
        for wrong in [
            "",
            ":1",
            "@",
            "/a",
            "Alpine",
            "alpine:",
            "alpine:a/b",
            "alpine:-1",
            "alpine:a:b",
            &format!("alpine:{}", "a".repeat(129)),
            "alpine@",
            "alpine@sha256:12",
            "alpine@x",
            "h.example/",
            "h.example/A",
            "h.example/a:",
            "h.example/../a",
            "h.example/a//b",
            "h.example/a/",
            "h.example/a:..",
            "h.example/a b",
            "h.example/-a",
            "h.example/a-",
            "u@h.example/a",
            "u:p@h.example/a",
            "h.example:port/a",
            "h.example:/a",
            "h..example/a",
            "[::1/a",
            "[x]:1/a",
            "h.example/a?x",
            "h.example/a#x",
            "h.example/a\r\nb",
            "https://h.example/a",
        ] {
            assert!(Reference::parse(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn keys_of_credential_files_name_registries() {
        for (key, registry) in [
            ("https://index.docker.io/v1/", HUB),
            ("index.docker.io", HUB),
            ("docker.io", HUB),
            ("https://registry-1.docker.io/v2/", HUB),
            ("h.example:5000", "h.example:5000"),
            ("https://h.example/v1/", "h.example"),
            ("http://h.example", "h.example"),
            ("h.example/a/b", "h.example/a/b"),
        ] {
            assert_eq!(registry_of_key(key), registry, "{key}");
        }
    }

    #[test]
    fn a_challenge_is_parsed() {
        let bearer = |realm: &str, service: Option<&str>, scope: Option<&str>| {
            let (realm, service) = (realm.to_owned(), service.map(str::to_owned));
            Some(Challenge::Bearer(TokenServer { realm, service, scope: scope.map(str::to_owned) }))
        };
        let url = "https://h.example/token";
        for (header, expected) in [
            (
                r#"Bearer realm="https://h.example/token",service="a, b",scope="repository:x/y:pull""#,
                bearer(url, Some("a, b"), Some("repository:x/y:pull")),
            ),
            (
                r#"bearer service=s , realm="https://h.example/token", error="x\"y""#,
                bearer(url, Some("s"), None),
            ),
            (r#"Basic realm="r", Bearer realm="https://h.example/token""#, bearer(url, None, None)),
            (r#"Bearer realm="https://h.example/token", Basic realm="r""#, bearer(url, None, None)),
            (r#"Negotiate, Basic realm="r""#, Some(Challenge::Basic)),
            ("Basic", Some(Challenge::Basic)),
            ("Bearer", None),
            (r#"Bearer service="x""#, None),
            (r#"Bearer realm="x"#, None),
            ("Negotiate", None),
            ("", None),
        ] {
            assert_eq!(Challenge::parse(header), expected, "{header}");
        }
        let Some(Challenge::Bearer(server)) = Challenge::parse(r#"Bearer realm="x",service="a b&c""#) else {
            panic!("a token is wanted")
        };
        assert_eq!(server.query("x/y"), "service=a%20b%26c&scope=repository:x/y:pull");
    }

    #[test]
    fn an_answer_has_a_token_or_is_rejected() {
        assert_eq!(token(br#"{"token":"abc"}"#).expect("one"), "abc");
        assert_eq!(token(br#"{"access_token":"x.y"}"#).expect("one"), "x.y");
        for wrong in ["", "{}", r#"{"token":""}"#, "{\"token\":\"a\\r\\nb\"}", "[]"] {
            assert!(token(wrong.as_bytes()).is_err(), "{wrong}");
        }
    }
}
