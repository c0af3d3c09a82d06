//! A whitelist that is signed on another machine: the request and the answer are text files.
//!
//! ```text
//! esker-sign-request 1               esker-sign-answer 1
//! # comments for the reader          repository NAME
//! repository NAME                    …
//! algorithm sha1                     signature HEX
//! begin whitelist
//! …                                  the text that is signed, line by line
//! end whitelist
//! ```
//!
//! A machine that signs trusts no comment: it shows what the whitelist itself says, and accepts only a whitelist that
//! is written exactly as this program writes it.

use std::fmt::Write as _;
use std::path::Path;

use esker_format::hash::{ContentHash, HashAlgorithm};
use esker_format::name::RepositoryName;
use esker_format::time::UnixTime;
use esker_format::whitelist::{self, Whitelist};
use esker_format::write::head::{signed_whitelist, whitelist_text};
use esker_format::write::signer::Purpose;
use esker_repository::{KeyFolder, RepositoryError, signed::SignedFiles};
use esker_store::Swap;

use super::error::KeysError;
use crate::resign::{Draft, Resign, Resigned, explain, open};

const REQUEST: &str = "esker-sign-request 1";
const ANSWER: &str = "esker-sign-answer 1";
const BEGIN: &str = "begin whitelist";
const END: &str = "end whitelist";
/// Far more than a whitelist takes.
const LENGTH_MAX: usize = 1 << 18;

/// A whitelist to sign with the master key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SignRequest {
    name: RepositoryName,
    algorithm: HashAlgorithm,
    whitelist: Whitelist,
}

/// A whitelist with the signature of the master key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SignAnswer {
    request: SignRequest,
    signature: Vec<u8>,
}

impl SignRequest {
    /// Makes a request for the repository in a folder, and describes it.
    pub fn new(
        resign: &Resign,
        root: &Path,
        name: &RepositoryName,
        keys: &KeyFolder,
        now: UnixTime,
    ) -> Result<(Self, Resigned), KeysError> {
        let storage = open(root)?;
        let Draft { whitelist, algorithm, told, .. } = resign.draft(&**storage.sink(), name, keys, now)?;
        Ok((Self { name: name.clone(), algorithm, whitelist }, told))
    }

    /// Returns the name of the repository.
    pub fn name(&self) -> &RepositoryName {
        &self.name
    }

    /// Returns the whitelist.
    pub fn whitelist(&self) -> &Whitelist {
        &self.whitelist
    }

    /// Returns the hash that is signed.
    pub fn hash(&self) -> ContentHash {
        ContentHash::of(self.algorithm, whitelist_text(&self.whitelist).as_bytes())
    }

    /// Writes the request; the description becomes comments.
    pub fn to_text(&self, told: &Resigned) -> String {
        let mut comments = format!(
            "# Whitelist of {}, to be signed with its master key: esker key sign FILE > ANSWER\n# valid until {}; before: {}\n",
            self.name,
            UnixTime(told.expires),
            UnixTime(told.expired)
        );
        let lines = |what: &str, list: &[String]| -> String {
            list.iter().map(|fingerprint| format!("# {what} {fingerprint}\n")).collect()
        };
        comments += &lines("stays  ", &told.kept);
        let new: Vec<String> = told.added.iter().chain(&told.added_next).cloned().collect();
        comments += &lines("new    ", &new);
        comments += &lines("dropped", &told.dropped);
        format!("{REQUEST}\n{comments}{}", self.body())
    }

    fn body(&self) -> String {
        let text = whitelist_text(&self.whitelist);
        format!("repository {}\nalgorithm {}\n{BEGIN}\n{text}{END}\n", self.name, self.algorithm)
    }

    /// Reads a request.
    pub fn parse(text: &str) -> Result<Self, KeysError> {
        let (request, rest) = Self::parse_body(text, REQUEST)?;
        if rest.is_empty() { Ok(request) } else { Err(refused("there is more after the whitelist")) }
    }

    /// Reads a request or the part of an answer that equals it, and returns the lines after it.
    fn parse_body<'t>(text: &'t str, first: &str) -> Result<(Self, Vec<&'t str>), KeysError> {
        if text.len() > LENGTH_MAX {
            return Err(refused("it is too long"));
        }
        if text.contains(|letter: char| letter.is_control() && letter != '\n') {
            return Err(refused("it has control characters"));
        }
        let mut lines = text.lines();
        if lines.next() != Some(first) {
            return Err(refused(&format!("its first line is not `{first}`")));
        }
        let mut lines = lines.filter(|line| !line.starts_with("# "));
        let mut field = |name: &str| {
            let line = lines.next().and_then(|line| line.strip_prefix(name)?.strip_prefix(' '));
            line.ok_or_else(|| refused(&format!("there is no `{name}` where it belongs")))
        };
        let name =
            RepositoryName::parse(field("repository")?).map_err(|error| refused(&error.to_string()))?;
        let algorithm = match field("algorithm")? {
            "sha1" => HashAlgorithm::Sha1,
            "rmd160" => HashAlgorithm::Rmd160,
            "shake128" => HashAlgorithm::Shake128,
            other => return Err(refused(&format!("there is no hash algorithm {other:?}"))),
        };
        if lines.next() != Some(BEGIN) {
            return Err(refused("the whitelist does not begin where it should"));
        }
        let mut signed = String::new();
        loop {
            match lines.next() {
                Some(END) => break,
                Some(line) => {
                    signed.push_str(line);
                    signed.push('\n');
                }
                None => return Err(refused("the whitelist has no end")),
            }
        }
        let whitelist = Whitelist::parse(signed.as_bytes()).map_err(|error| refused(&error.to_string()))?;
        if whitelist_text(&whitelist) != signed {
            return Err(refused("the whitelist has lines that are not understood"));
        }
        if whitelist.name != name.as_str() {
            return Err(refused("the whitelist is of another repository"));
        }
        Ok((Self { name, algorithm, whitelist }, lines.collect()))
    }

    /// Signs with the master key in a file, or that of the folder.
    pub fn sign(&self, keys: &KeyFolder, master: Option<&Path>) -> Result<SignAnswer, KeysError> {
        let signer = keys.master(master)?;
        let signature = signer.sign(Purpose::Whitelist, &self.hash()).map_err(RepositoryError::Signing)?;
        Ok(SignAnswer { request: self.clone(), signature })
    }
}

impl SignAnswer {
    /// Writes the answer.
    pub fn to_text(&self) -> String {
        let mut text = format!("{ANSWER}\n{}signature ", self.request.body());
        for byte in &self.signature {
            write!(text, "{byte:02x}").expect("writing to memory succeeds because a string takes every text");
        }
        text.push('\n');
        text
    }

    /// Reads an answer.
    pub fn parse(text: &str) -> Result<Self, KeysError> {
        let (request, rest) = SignRequest::parse_body(text, ANSWER)?;
        let [line] = rest[..] else { return Err(refused("there is not one signature after the whitelist")) };
        let signature = line.strip_prefix("signature ").and_then(bytes);
        let signature = signature.ok_or_else(|| refused("the signature is not one of hexadecimal digits"))?;
        Ok(Self { request, signature })
    }

    /// Returns the name of the repository.
    pub fn name(&self) -> &RepositoryName {
        &self.request.name
    }

    /// Returns the whitelist.
    pub fn whitelist(&self) -> &Whitelist {
        &self.request.whitelist
    }

    /// Publishes the signed whitelist of the repository in a folder, if clients accept it.
    pub fn apply(
        &self,
        root: &Path,
        name: &RepositoryName,
        keys: &KeyFolder,
        now: UnixTime,
    ) -> Result<(), KeysError> {
        let storage = open(root)?;
        let sink = &**storage.sink();
        let _lock = storage.lock()?;
        let (request, public) = (&self.request, keys.public()?);
        let before = SignedFiles::read(sink, name)?;
        let old = before.whitelist(name)?;
        if request.whitelist.created < old.created {
            return Err(refused("a newer whitelist is published already, and clients refuse an older one"));
        }
        let text = whitelist_text(&request.whitelist);
        let whitelist = signed_whitelist(&text, request.algorithm, &self.signature);
        let (published, after) = (before.whitelist.clone(), SignedFiles { whitelist, ..before });
        after.verify(name, &public, now).map_err(|error| explain(error, &keys.master_key_file(), keys))?;
        match sink.replace_root(whitelist::PATH, &after.whitelist, Some(&published))? {
            Swap::Replaced => Ok(()),
            Swap::Moved => Err(RepositoryError::Moving.into()),
        }
    }
}

fn refused(reason: &str) -> KeysError {
    KeysError::SignRequest(reason.to_owned())
}

/// Reads hexadecimal digits.
fn bytes(text: &str) -> Option<Vec<u8>> {
    let digits = text.as_bytes();
    if digits.is_empty() || !digits.len().is_multiple_of(2) || !digits.iter().all(u8::is_ascii_hexdigit) {
        return None;
    }
    (0..digits.len()).step_by(2).map(|at| u8::from_str_radix(text.get(at..at + 2)?, 16).ok()).collect()
}
