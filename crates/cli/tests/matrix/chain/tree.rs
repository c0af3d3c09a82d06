//! Trees whose revision can be told from their content.

use std::fs;
use std::path::{Path, PathBuf};

use esker_testkit::object;
use esker_testkit::soak::Random;

/// Files whose contents belong together.
const FILES: usize = 5;
/// Largest of these, in bytes.
const LARGEST: usize = 40 << 10;

/// The tree of a publisher: in `now`, files that change together, and their digest in `now/sum`; in `kept`, one file of
/// each revision.
pub(super) struct PublishedTree {
    pub(super) folder: PathBuf,
    pub(super) number: u64,
}

impl PublishedTree {
    pub(super) fn new(folder: PathBuf) -> Self {
        for nested in ["now", "kept"] {
            fs::create_dir_all(folder.join(nested)).expect("a folder");
            fs::write(folder.join(nested).join(".cvmfscatalog"), "").expect("a marker");
        }
        Self { folder, number: 0 }
    }

    /// Writes the content of the next revision.
    pub(super) fn change(&mut self, random: &mut Random) {
        self.number += 1;
        let mut all = Vec::new();
        for file in 0..FILES {
            let len = 1 + random.below(LARGEST);
            let content: Vec<u8> =
                std::iter::repeat_with(|| random.draw().to_le_bytes()).flatten().take(len).collect();
            fs::write(self.folder.join(format!("now/{file}")), &content).expect("a file");
            all.extend(content);
        }
        let sum = format!("{} {}\n", self.number, object::sha256(&all));
        fs::write(self.folder.join("now/sum"), sum).expect("a file");
        fs::write(self.folder.join(format!("kept/{}", self.number)), kept(self.number)).expect("a file");
    }
}

fn kept(number: u64) -> String {
    format!("kept since revision {number}\n")
}

/// Reads the tree at a mount. Returns the number of the revision; none if it changed meanwhile. A failed read and content
/// of different revisions are errors.
pub(super) fn look(mount: &Path, random: &mut Random) -> Result<Option<u64>, String> {
    let read = |name: &str| fs::read(mount.join(name)).map_err(|error| format!("{name}: {error}"));
    let before = read("now/sum")?;
    let mut all = Vec::new();
    for file in 0..FILES {
        all.extend(read(&format!("now/{file}"))?);
    }
    let text = String::from_utf8_lossy(&before).into_owned();
    let (number, digest) = text.trim().split_once(' ').ok_or_else(|| format!("now/sum has `{text}`"))?;
    let number: u64 = number.parse().map_err(|_| format!("now/sum has `{text}`"))?;
    let old = 1 + random.below(number as usize) as u64;
    if read(&format!("kept/{old}"))? != kept(old).as_bytes() {
        return Err(format!("kept/{old} has wrong content"));
    }
    if read("now/sum")? != before {
        return Ok(None);
    }
    if object::sha256(&all) != digest {
        return Err(format!("the files of revision {number} have contents of another one"));
    }
    Ok(Some(number))
}
