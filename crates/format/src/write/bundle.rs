//! Writes bundle specifications.

use std::collections::HashMap;
use std::fmt::Write as _;
use std::ops::Range;

use crate::bundle::{
    BYTES_MAX, Bundle, BundleRead, ENCODING, FILES_MAX, NAME, READS, READS_MAX, VERSION, absolute,
};

/// Builder of a bundle.
#[derive(Clone, Debug, Default)]
pub struct BundleDraft {
    files: Vec<String>,
    numbers: HashMap<String, usize>,
    reads: Vec<BundleRead>,
    /// For each file, true if a step reads it whole.
    whole: Vec<bool>,
    bytes: usize,
}

/// Bytes of a specification apart from paths and steps, at most.
const FRAME: usize = 512;
/// Maximum length of a step in bytes: a number of 5 digits, two of 20, and delimiters.
const STEP: usize = 56;

impl BundleDraft {
    /// Creates a bundle without files.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a read step of a file, whose path is absolute from the root of the repository.
    ///
    /// Returns false if the specification can't represent it: paths are UTF-8, and sizes are limited.
    pub fn push(&mut self, path: &[u8], range: Option<Range<u64>>) -> bool {
        let sound = absolute(path, b"").is_some_and(|same| same == path);
        let Some(path) = std::str::from_utf8(path).ok().filter(|_| sound) else { return false };
        if range.as_ref().is_some_and(Range::is_empty) {
            return false;
        }
        let known = self.numbers.get(path).copied();
        if known.and_then(|file| self.whole.get(file)) == Some(&true) {
            return true;
        }
        let cost = STEP + if known.is_some() { 0 } else { quoted(path).len() + 4 };
        let full = self.reads.len() == READS_MAX || known.is_none() && self.files.len() == FILES_MAX;
        if full || FRAME + self.bytes + cost > BYTES_MAX {
            return false;
        }
        self.bytes += cost;
        let file = known.unwrap_or_else(|| self.add(path));
        if let Some(whole) = self.whole.get_mut(file) {
            *whole = range.is_none();
        }
        self.reads.push(BundleRead { file, range });
        true
    }

    fn add(&mut self, path: &str) -> usize {
        self.files.push(path.to_owned());
        self.whole.push(false);
        self.numbers.insert(path.to_owned(), self.files.len() - 1);
        self.files.len() - 1
    }

    /// Returns the number of files so far.
    pub fn len(&self) -> usize {
        self.files.len()
    }

    /// Returns true if there are no files.
    pub fn is_empty(&self) -> bool {
        self.files.is_empty()
    }

    /// Returns the specification. The same steps always produce the same bytes.
    pub fn finish(&self) -> Vec<u8> {
        let mut text = String::with_capacity(FRAME + self.bytes);
        let head = format!(
            "{{\n\"name\": {},\n\"version\": {},\n\"encoding\": {},\n\"dependencies\": [\n",
            quoted(NAME),
            quoted(VERSION),
            quoted(ENCODING)
        );
        text.push_str(&head);
        push_list(&mut text, self.files.iter().map(|path| quoted(path)), "\n");
        if self.reads.iter().any(|read| read.range.is_some()) {
            // Writing to a string can't fail.
            let _ = write!(text, "],\n{}: [\n", quoted(READS));
            push_list(&mut text, self.reads.iter().map(|read| quoted(&step(read))), " ");
        }
        text.push_str("]\n}\n");
        text.into_bytes()
    }

    /// Returns the bundle as readers will parse it.
    pub fn bundle(&self) -> Bundle {
        let files = self.files.iter().map(|path| path.clone().into_bytes()).collect();
        Bundle { files, reads: self.reads.clone(), left_out: 0 }
    }
}

fn push_list(text: &mut String, items: impl Iterator<Item = String>, between: &str) {
    for (number, item) in items.enumerate() {
        if number > 0 {
            text.push(',');
            text.push_str(between);
        }
        text.push_str(&item);
    }
    text.push('\n');
}

fn step(read: &BundleRead) -> String {
    match &read.range {
        None => read.file.to_string(),
        Some(range) => format!("{}:{}-{}", read.file, range.start, range.end),
    }
}

fn quoted(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}
