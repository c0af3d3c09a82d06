//! Images in registries: how they are named, and how a registry is asked.
//!
//! What is asked over the network is somebody else's business ([`Registry`]); here is what to ask, and what the answers have to
//! be. A manifest is believed because of who sent it, or because a digest names it; everything else because of its digest.

use std::io::{self, Read};

use serde::Deserialize;

use crate::OciError;
use crate::digest::Digest;

/// The longest name or tag of an image.
const NAME_MAX: usize = 255;
/// No token is longer.
const TOKEN_MAX: usize = 64 << 10;

/// Asks a registry for what one image consists of.
pub trait Registry: Send + Sync {
    /// The manifest or index with this tag or digest, of at most so many bytes.
    fn manifest(&self, reference: &str, limit: u64) -> io::Result<Vec<u8>>;

    /// The content of a blob, of at most so many bytes.
    fn blob(&self, digest: &str, limit: u64) -> io::Result<Box<dyn Read + Send>>;
}

/// An image in a registry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reference {
    /// The registry, perhaps with a port.
    pub host: String,
    /// The image.
    pub name: String,
    /// A tag, or a digest of the manifest.
    pub reference: String,
}

impl Reference {
    /// Reads `HOST[:PORT]/NAME[:TAG]` or `…@DIGEST`. The tag is `latest` where none is named.
    pub fn parse(text: &str) -> Result<Self, OciError> {
        let refused = |reason: &str| OciError::refused(format!("docker://{text}"), reason);
        let (host, rest) =
            text.split_once('/').ok_or_else(|| refused("write it as docker://HOST/NAME:TAG"))?;
        if !(host.contains(['.', ':']) || host == "localhost") {
            return Err(refused("name the registry, as in docker://HOST/NAME:TAG"));
        }
        let host_byte = |byte: u8| byte.is_ascii_alphanumeric() || b".-:[]".contains(&byte);
        let (name, reference) = match rest.split_once('@') {
            Some((name, digest)) => {
                Digest::parse(digest)?;
                // A tag beside a digest says nothing more.
                (name.split(':').next().unwrap_or(name), digest)
            }
            None => rest.split_once(':').unwrap_or((rest, "latest")),
        };
        let name_byte =
            |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"._-/".contains(&byte);
        let tag_byte = |byte: u8| byte.is_ascii_alphanumeric() || b"._-:".contains(&byte);
        let is_name = !name.is_empty()
            && name.len() <= NAME_MAX
            && name.bytes().all(name_byte)
            && name.split('/').all(|part| part.starts_with(|letter: char| letter.is_ascii_alphanumeric()));
        let is_tag = !reference.is_empty() && reference.len() <= NAME_MAX && reference.bytes().all(tag_byte);
        if !host.bytes().all(host_byte) || !is_name || !is_tag || reference.starts_with(['.', '-']) {
            return Err(refused("it is no name of an image"));
        }
        Ok(Self { host: host.to_owned(), name: name.to_owned(), reference: reference.to_owned() })
    }
}

/// Where a registry sends whoever has no token, as its header `WWW-Authenticate` says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Challenge {
    /// The URL that has tokens.
    pub realm: String,
    /// What is to be asked of it.
    parameters: Vec<(String, String)>,
}

impl Challenge {
    /// Reads the header; `None` if it asks for something else than a token.
    pub fn parse(header: &str) -> Option<Self> {
        let (scheme, mut rest) = header.trim().split_once(' ')?;
        if !scheme.eq_ignore_ascii_case("bearer") {
            return None;
        }
        let mut realm = None;
        let mut parameters = Vec::new();
        while let Some((key, after)) = rest.split_once('=') {
            let key = key.trim_matches([' ', ',']).to_ascii_lowercase();
            let (value, after) = match after.strip_prefix('"') {
                Some(quoted) => quoted.split_once('"')?,
                None => after.split_once(',').unwrap_or((after, "")),
            };
            match key.as_str() {
                "realm" => realm = Some(value.to_owned()),
                "service" | "scope" => parameters.push((key, value.to_owned())),
                _ => {}
            }
            rest = after;
        }
        Some(Self { realm: realm?, parameters })
    }

    /// The query that asks for a token that anybody may have.
    pub fn query(&self) -> String {
        let escaped = |text: &str| {
            let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~:/,".contains(&byte);
            let one =
                |byte: u8| if plain(byte) { char::from(byte).to_string() } else { format!("%{byte:02X}") };
            text.bytes().map(one).collect::<String>()
        };
        let pairs = self.parameters.iter().map(|(key, value)| format!("{key}={}", escaped(value)));
        pairs.collect::<Vec<_>>().join("&")
    }
}

/// Reads what has tokens answers.
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
    fn names_of_images_are_read() {
        let read = |text: &str| Reference::parse(text).map(|it| (it.host, it.name, it.reference));
        let of = |host: &str, name: &str, tag: &str| (host.to_owned(), name.to_owned(), tag.to_owned());
        assert_eq!(read("h.example/a/b:1.0").expect("it"), of("h.example", "a/b", "1.0"));
        assert_eq!(read("h:5000/a").expect("it"), of("h:5000", "a", "latest"));
        let digest = format!("sha256:{}", "a".repeat(64));
        assert_eq!(read(&format!("localhost/a:1@{digest}")).expect("it"), of("localhost", "a", &digest));
        for wrong in [
            "a",
            "a/b",
            "h.example/",
            "h.example/A",
            "h.example/a:",
            "h.example/../a",
            "h.example/a//b",
            "h.example/a@x",
            "h.example/a:..",
            "h.example/a b",
            "u@h.example/a",
            "h.example/a?x",
        ] {
            assert!(read(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_challenge_says_where_tokens_are() {
        let header = r#"Bearer realm="https://h.example/token",service="a, b",scope="repository:x/y:pull""#;
        let challenge = Challenge::parse(header).expect("a challenge");
        assert_eq!(challenge.realm, "https://h.example/token");
        assert_eq!(challenge.query(), "service=a,%20b&scope=repository:x/y:pull");
        for other in ["Basic realm=\"x\"", "Bearer", "Bearer service=\"x\"", "Bearer realm=\"x", ""] {
            assert_eq!(Challenge::parse(other), None, "{other}");
        }
    }

    #[test]
    fn an_answer_has_a_token_or_is_refused() {
        assert_eq!(token(br#"{"token":"abc"}"#).expect("one"), "abc");
        assert_eq!(token(br#"{"access_token":"x.y"}"#).expect("one"), "x.y");
        for wrong in ["", "{}", r#"{"token":""}"#, "{\"token\":\"a\\r\\nb\"}", "[]"] {
            assert!(token(wrong.as_bytes()).is_err(), "{wrong}");
        }
    }
}
