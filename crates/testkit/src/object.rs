//! Hashes and object paths as the fixtures write them, computed independently of the product.

use std::io::Read;

use sha1::Digest;
use sha3::digest::{ExtendableOutput, Update, XofReader};

/// The hash algorithm of a repository.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Algorithm {
    /// SHA-1, whose text form has no tag.
    Sha1,
    /// RIPEMD-160.
    Rmd160,
    /// SHAKE-128 squeezed to 160 bits.
    Shake128,
}

impl Algorithm {
    /// Returns the algorithm a textual hash is tagged with.
    pub fn of_text(hash: &str) -> Algorithm {
        match hash.get(40..) {
            Some("") => Algorithm::Sha1,
            Some("-rmd160") => Algorithm::Rmd160,
            Some("-shake128") => Algorithm::Shake128,
            _ => panic!("{hash:?} is not the text of a hash"),
        }
    }

    /// Returns the textual hash of `bytes`.
    pub fn hash(self, bytes: &[u8]) -> String {
        let (digest, tag) = match self {
            Algorithm::Sha1 => (<[u8; 20]>::from(sha1::Sha1::digest(bytes)), ""),
            Algorithm::Rmd160 => (<[u8; 20]>::from(ripemd::Ripemd160::digest(bytes)), "-rmd160"),
            Algorithm::Shake128 => {
                let mut shake = sha3::Shake128::default();
                shake.update(bytes);
                let mut digest = [0; 20];
                XofReader::read(&mut shake.finalize_xof(), &mut digest);
                (digest, "-shake128")
            }
        };
        format!("{}{tag}", hex(&digest))
    }
}

/// Returns the path of the object with this textual hash and suffix letter (`""` for a file).
pub fn path(hash: &str, suffix: &str) -> String {
    let (folder, rest) = hash.split_at(2);
    format!("data/{folder}/{rest}{suffix}")
}

/// Returns `bytes` in lower-case hex.
pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Decodes hexadecimal digits.
pub fn unhex(text: &str) -> Vec<u8> {
    assert!(text.len().is_multiple_of(2) && text.is_ascii(), "{text:?} is not hex");
    (0..text.len())
        .step_by(2)
        .map(|at| u8::from_str_radix(&text[at..at + 2], 16).expect("hex digits"))
        .collect()
}

/// Returns the SHA-256 of `bytes` in hex, as the listings of the fixtures give it.
pub fn sha256(bytes: &[u8]) -> String {
    hex(&sha2::Sha256::digest(bytes))
}

/// Returns the content of the zlib stream `stored`.
pub fn inflate(stored: &[u8]) -> Vec<u8> {
    let mut plain = Vec::new();
    flate2::read::ZlibDecoder::new(stored).read_to_end(&mut plain).expect("a whole zlib stream");
    plain
}

/// Returns `plain` as a zlib stream.
pub fn deflate(plain: &[u8]) -> Vec<u8> {
    let mut stored = Vec::new();
    flate2::read::ZlibEncoder::new(plain, flate2::Compression::default())
        .read_to_end(&mut stored)
        .expect("deflating memory cannot fail");
    stored
}

/// Returns a zlib stream of so many units of [`BOMB_UNIT`] zero bytes, a thousandth of their length.
pub fn bomb(units: u64) -> Vec<u8> {
    let mut deflater = flate2::Compress::new(flate2::Compression::best(), false);
    let mut unit = Vec::with_capacity(1 << 20);
    let zeros = vec![0; usize::try_from(BOMB_UNIT).expect("it fits")];
    // After a full flush the next unit is the same bytes again.
    deflater.compress_vec(&zeros, &mut unit, flate2::FlushCompress::Full).expect("deflating zeros");
    assert!(deflater.total_in() == BOMB_UNIT && unit.ends_with(&[0, 0, 0xff, 0xff]), "a whole unit");
    let last_block = [1, 0, 0, 0xff, 0xff];
    let sum_of_sums = u16::try_from(units * BOMB_UNIT % 65_521).expect("a remainder");
    let mut stored = vec![0x78, 0xda];
    (0..units).for_each(|_| stored.extend_from_slice(&unit));
    stored.extend_from_slice(&last_block);
    stored.extend_from_slice(&sum_of_sums.to_be_bytes());
    stored.extend_from_slice(&[0, 1]);
    stored
}

/// Unit of the length of a [`bomb`] in bytes.
pub const BOMB_UNIT: u64 = 4 << 20;
