//! Archives of the corpus, and the expected result of each.

use std::collections::BTreeMap;

use esker_testkit::listing::Entry;

/// A tree: entries by their path, which begins with a slash.
pub(crate) type Tree = BTreeMap<Vec<u8>, Entry>;

/// An archive.
#[derive(Clone, Debug)]
pub(crate) struct Case {
    pub(crate) name: String,
    /// Without its compression.
    pub(crate) plain: Vec<u8>,
    /// With its compression, if it has one.
    pub(crate) packed: Option<Vec<u8>>,
    /// Compression program that GNU tar must be given to read it.
    pub(crate) program: Option<&'static str>,
    pub(crate) expected: Expected,
    /// True if only root can extract it.
    pub(crate) needs_root: bool,
    /// Reason why a layer reads it although the others refuse it.
    pub(crate) layer: Option<&'static str>,
    /// True if Python has to read the same as GNU tar.
    pub(crate) python_agrees: bool,
}

/// Expected result.
#[derive(Clone, Debug)]
pub(crate) enum Expected {
    /// The tree that GNU tar extracts, or a refusal if it fails.
    AsGnuTar,
    /// A refusal although GNU tar reads it, for this reason.
    Refused(&'static str),
    /// This tree although GNU tar fails, for this reason. Attributes of directories are not compared.
    Read(Tree, &'static str),
}

impl Case {
    pub(crate) fn new(name: impl Into<String>, plain: Vec<u8>) -> Self {
        Self {
            name: name.into(),
            plain,
            packed: None,
            program: None,
            expected: Expected::AsGnuTar,
            needs_root: false,
            layer: None,
            python_agrees: false,
        }
    }

    pub(crate) fn packed(mut self, packed: Vec<u8>, program: Option<&'static str>) -> Self {
        (self.packed, self.program) = (Some(packed), program);
        self
    }

    pub(crate) fn refused(mut self, why: &'static str) -> Self {
        self.expected = Expected::Refused(why);
        self
    }

    pub(crate) fn read_as_a_layer(mut self, why: &'static str) -> Self {
        self.layer = Some(why);
        self
    }

    pub(crate) fn root(mut self) -> Self {
        self.needs_root = true;
        self
    }

    pub(crate) fn python_agrees(mut self) -> Self {
        self.python_agrees = true;
        self
    }

    /// Returns the archive as it is stored.
    pub(crate) fn bytes(&self) -> &[u8] {
        self.packed.as_deref().unwrap_or(&self.plain)
    }
}
