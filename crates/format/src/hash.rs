//! Content hashes: the three algorithms that a repository may use, and their text forms.
//!
//! A digest has 20 bytes for every algorithm; the text form is 40 lower-case hexadecimal digits and, except
//! for SHA-1, a tag (`-rmd160`, `-shake128`). Readers identify the algorithm by the length of the text.

use std::fmt;
use std::str::FromStr;

use sha3::digest::{ExtendableOutput as _, FixedOutput as _, Update as _, XofReader as _};

/// Length of every digest in bytes.
pub const DIGEST_LEN: usize = 20;
const HEX_LEN: usize = 2 * DIGEST_LEN;

/// Hash algorithm of a repository's content.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum HashAlgorithm {
    /// SHA-1, the default.
    Sha1,
    /// RIPEMD-160.
    Rmd160,
    /// SHAKE128 squeezed to 160 bits.
    Shake128,
}

impl HashAlgorithm {
    /// Returns the tag that follows the digits in the text form.
    pub const fn tag(self) -> &'static str {
        match self {
            Self::Sha1 => "",
            Self::Rmd160 => "-rmd160",
            Self::Shake128 => "-shake128",
        }
    }

    /// Returns the algorithm with this number in the flags of a catalog entry.
    pub const fn from_flag(number: u8) -> Option<Self> {
        match number {
            0 => Some(Self::Sha1),
            1 => Some(Self::Rmd160),
            2 => Some(Self::Shake128),
            _ => None,
        }
    }

    /// Returns the number of this algorithm in the flags of a catalog entry.
    pub const fn to_flag(self) -> u8 {
        match self {
            Self::Sha1 => 0,
            Self::Rmd160 => 1,
            Self::Shake128 => 2,
        }
    }
}

impl fmt::Display for HashAlgorithm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Sha1 => "sha1",
            Self::Rmd160 => "rmd160",
            Self::Shake128 => "shake128",
        })
    }
}

/// Content hash: an algorithm and its digest.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ContentHash {
    algorithm: HashAlgorithm,
    digest: [u8; DIGEST_LEN],
}

/// Error: the text is not a content hash.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "`{text}` is not a content hash (40 lower-case hexadecimal digits, then nothing, `-rmd160` or `-shake128`)"
)]
pub struct HashError {
    /// Text that was rejected, truncated for messages.
    pub text: String,
}

impl ContentHash {
    /// Creates a hash from its parts.
    pub const fn new(algorithm: HashAlgorithm, digest: [u8; DIGEST_LEN]) -> Self {
        Self { algorithm, digest }
    }

    /// Hashes bytes.
    pub fn of(algorithm: HashAlgorithm, bytes: &[u8]) -> Self {
        let mut hasher = Hasher::new(algorithm);
        hasher.update(bytes);
        hasher.finish()
    }

    /// Returns the algorithm of this hash.
    pub const fn algorithm(&self) -> HashAlgorithm {
        self.algorithm
    }

    /// Returns the bytes of the digest.
    pub const fn digest(&self) -> &[u8; DIGEST_LEN] {
        &self.digest
    }

    /// Returns true if all bytes of the digest are zero, which means "none".
    pub fn is_null(&self) -> bool {
        self.digest == [0; DIGEST_LEN]
    }

    /// Reads the text form.
    pub fn parse(text: &str) -> Result<Self, HashError> {
        Self::from_text_bytes(text.as_bytes())
            .ok_or_else(|| HashError { text: text.chars().take(64).collect() })
    }

    /// Reads the text form from bytes that need not be UTF-8.
    pub fn from_text_bytes(text: &[u8]) -> Option<Self> {
        let (digits, tag) = text.split_at_checked(HEX_LEN)?;
        let algorithm = [HashAlgorithm::Sha1, HashAlgorithm::Rmd160, HashAlgorithm::Shake128]
            .into_iter()
            .find(|algorithm| algorithm.tag().as_bytes() == tag)?;
        let mut digest = [0; DIGEST_LEN];
        for (byte, pair) in digest.iter_mut().zip(digits.chunks_exact(2)) {
            if let [high, low] = pair {
                *byte = (hex_digit(*high)? << 4) | hex_digit(*low)?;
            }
        }
        Some(Self { algorithm, digest })
    }

    /// Parses the fingerprint form (`AA:BB:…-RMD160`) at the start of a line of a whitelist or blacklist.
    ///
    /// A space, a tab or `#` ends the fingerprint; colons and letter case are ignored.
    pub fn from_fingerprint(line: &[u8]) -> Option<Self> {
        let mut text = Vec::with_capacity(HEX_LEN);
        for &byte in line.iter().take_while(|byte| !matches!(byte, b' ' | b'\t' | b'#')) {
            if text.len() > HEX_LEN + HashAlgorithm::Shake128.tag().len() {
                return None;
            }
            if byte != b':' {
                text.push(byte.to_ascii_lowercase());
            }
        }
        Self::from_text_bytes(&text)
    }

    /// Returns the fingerprint form: upper-case pairs of digits with colons between them, then the tag.
    pub fn to_fingerprint(&self) -> String {
        let pairs: Vec<String> = self.digest.iter().map(|byte| format!("{byte:02X}")).collect();
        pairs.join(":") + &self.algorithm.tag().to_ascii_uppercase()
    }

    /// Returns the 40 digits without the tag.
    pub fn hex(&self) -> String {
        let nibbles = self.digest.iter().flat_map(|byte| [byte >> 4, byte & 15]);
        nibbles.filter_map(|nibble| char::from_digit(u32::from(nibble), 16)).collect()
    }
}

const fn hex_digit(digit: u8) -> Option<u8> {
    match digit {
        b'0'..=b'9' => Some(digit - b'0'),
        b'a'..=b'f' => Some(digit - b'a' + 10),
        _ => None,
    }
}

impl fmt::Display for ContentHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.hex())?;
        f.write_str(self.algorithm.tag())
    }
}

impl fmt::Debug for ContentHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl FromStr for ContentHash {
    type Err = HashError;

    fn from_str(text: &str) -> Result<Self, HashError> {
        Self::parse(text)
    }
}

/// Hashes content that arrives in pieces.
#[derive(Clone)]
pub struct Hasher(State);

#[derive(Clone)]
enum State {
    Sha1(sha1::Sha1),
    Rmd160(ripemd::Ripemd160),
    Shake128(Box<sha3::Shake128>),
}

impl Hasher {
    /// Starts a hash of empty content.
    pub fn new(algorithm: HashAlgorithm) -> Self {
        Self(match algorithm {
            HashAlgorithm::Sha1 => State::Sha1(sha1::Sha1::default()),
            HashAlgorithm::Rmd160 => State::Rmd160(ripemd::Ripemd160::default()),
            HashAlgorithm::Shake128 => State::Shake128(Box::default()),
        })
    }

    /// Adds the next piece.
    pub fn update(&mut self, bytes: &[u8]) {
        match &mut self.0 {
            State::Sha1(state) => state.update(bytes),
            State::Rmd160(state) => state.update(bytes),
            State::Shake128(state) => state.update(bytes),
        }
    }

    /// Returns the hash of all pieces.
    pub fn finish(self) -> ContentHash {
        match self.0 {
            State::Sha1(state) => ContentHash::new(HashAlgorithm::Sha1, state.finalize_fixed().into()),
            State::Rmd160(state) => ContentHash::new(HashAlgorithm::Rmd160, state.finalize_fixed().into()),
            State::Shake128(state) => {
                let mut digest = [0; DIGEST_LEN];
                state.finalize_xof().read(&mut digest);
                ContentHash::new(HashAlgorithm::Shake128, digest)
            }
        }
    }
}

impl fmt::Debug for Hasher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Hasher")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const EMPTY_STREAM: [u8; 8] = [0x78, 0x9c, 0x03, 0, 0, 0, 0, 1];

    #[test]
    fn digests_equal_known_values() {
        for (algorithm, text) in [
            (HashAlgorithm::Sha1, "e8ec3d88b62ebf526e4e5a4ff6162a3aa48a6b78"),
            (HashAlgorithm::Rmd160, "fcdb20b894f31f1306d56294c049ca7293dde0fc-rmd160"),
            (HashAlgorithm::Shake128, "28d94b83b7229b331fc601362b8e272e02665122-shake128"),
        ] {
            let hash = ContentHash::of(algorithm, &EMPTY_STREAM);
            assert_eq!(hash.to_string(), text);
            assert_eq!(ContentHash::parse(text).unwrap(), hash);
            assert_eq!(ContentHash::from_fingerprint(hash.to_fingerprint().as_bytes()), Some(hash));
            let commented = hash.to_fingerprint() + " # release manager";
            assert_eq!(ContentHash::from_fingerprint(commented.as_bytes()), Some(hash));
        }
    }

    #[test]
    fn hashing_in_pieces_equals_hashing_the_whole() {
        for algorithm in [HashAlgorithm::Sha1, HashAlgorithm::Rmd160, HashAlgorithm::Shake128] {
            let mut hasher = Hasher::new(algorithm);
            hasher.update(b"hel");
            hasher.update(b"");
            hasher.update(b"lo\n");
            assert_eq!(hasher.finish(), ContentHash::of(algorithm, b"hello\n"));
        }
    }

    #[test]
    fn other_texts_are_rejected() {
        for text in [
            "",
            "e8",
            "E8EC3D88B62EBF526E4E5A4FF6162A3AA48A6B78",
            "e8ec3d88b62ebf526e4e5a4ff6162a3aa48a6b7g",
            "e8ec3d88b62ebf526e4e5a4ff6162a3aa48a6b78C",
            "e8ec3d88b62ebf526e4e5a4ff6162a3aa48a6b78-md5000",
            "e8ec3d88b62ebf526e4e5a4ff6162a3aa48a6bé8",
        ] {
            assert!(ContentHash::parse(text).is_err(), "{text}");
        }
    }
}
