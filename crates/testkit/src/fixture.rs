//! Lists the repositories under `fixtures/`.

use std::path::{Path, PathBuf};

use crate::contents::{Contents, Tag};
use crate::listing::{self, Entry};
use crate::object;
use crate::signing::{Keys, ManifestDraft};

/// A repository that the reference implementation published, with keys and listings.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Fixture {
    name: &'static str,
}

/// SHA-1, zlib, small chunks, nested catalogs, extended attributes.
pub const FULL: Fixture = Fixture { name: "full.test" };
/// RIPEMD-160, zlib, no chunks, no extended attributes.
pub const RMD: Fixture = Fixture { name: "rmd.test" };
/// SHAKE-128, stored plain, nanosecond times, extended attributes.
pub const SHAKE: Fixture = Fixture { name: "shake.test" };
/// All fixtures.
pub const ALL: [Fixture; 3] = [FULL, RMD, SHAKE];

/// The tags of the revisions that every fixture has, oldest first; the published head is the last.
pub const TAGS: [&str; 3] = ["v1", "v2", "v3"];

impl Fixture {
    /// Returns the fixture with this repository name.
    pub fn named(name: &str) -> Fixture {
        *ALL.iter().find(|fixture| fixture.name == name).unwrap_or_else(|| panic!("no fixture {name:?}"))
    }

    /// Returns the fully qualified name of the repository.
    pub fn name(&self) -> &'static str {
        self.name
    }

    /// Returns the folder that holds the fixture's files.
    pub fn folder(&self) -> PathBuf {
        Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../fixtures")).join(self.name)
    }

    /// Returns the file of the master public key.
    pub fn public_key(&self) -> PathBuf {
        self.key_file("pub")
    }

    /// Reads the expected listing of the revision with this tag, in path order.
    pub fn listing(&self, tag: &str) -> Vec<Entry> {
        listing::read(&self.folder().join(format!("tree.{tag}.jsonl.zst")))
    }

    /// Returns the private keys and the certificate.
    pub fn keys(&self) -> Keys {
        Keys::read(&self.key_file("masterkey"), &self.key_file("key"), &self.key_file("crt"))
    }

    /// Unpacks the repository into a temporary folder.
    pub fn unpack(&self) -> Repository {
        let folder = tempfile::Builder::new().prefix("esker-fixture-").tempdir().expect("a temporary folder");
        let archive = self.folder().join("repository.tar.zst");
        let packed = std::fs::File::open(&archive).unwrap_or_else(|e| panic!("{}: {e}", archive.display()));
        let unpacked = zstd::Decoder::new(packed).expect("a zstd stream");
        tar::Archive::new(unpacked).unpack(folder.path()).expect("unpacking a fixture");
        Repository { fixture: *self, folder }
    }

    fn key_file(&self, extension: &str) -> PathBuf {
        self.folder().join(format!("{}.{extension}", self.name))
    }
}

/// A fixture unpacked into a folder of its own, where a test may damage it; removed on drop.
#[derive(Debug)]
pub struct Repository {
    fixture: Fixture,
    folder: tempfile::TempDir,
}

impl Repository {
    /// Returns the fixture that this repository is a copy of.
    pub fn fixture(&self) -> Fixture {
        self.fixture
    }

    /// Returns the folder a web server would serve; the repository is a folder in it.
    pub fn document_root(&self) -> &Path {
        self.folder.path()
    }

    /// Returns the folder of the repository itself.
    pub fn path(&self) -> PathBuf {
        self.folder.path().join(self.fixture.name)
    }

    /// Returns the repository's address as a local source.
    pub fn file_url(&self) -> String {
        format!("file://{}", self.path().display())
    }

    /// Reads a file of the repository by its path in the repository, like `.cvmfspublished`.
    pub fn read(&self, path: &str) -> Vec<u8> {
        let file = self.path().join(path);
        std::fs::read(&file).unwrap_or_else(|e| panic!("reading {}: {e}", file.display()))
    }

    /// Writes a file of the repository by its path in the repository.
    pub fn write(&self, path: &str, bytes: &[u8]) {
        let file = self.path().join(path);
        std::fs::create_dir_all(file.parent().expect("a folder")).expect("making a folder");
        std::fs::write(&file, bytes).unwrap_or_else(|e| panic!("writing {}: {e}", file.display()));
    }

    /// Stores `plain` as a compressed object and returns its textual hash.
    pub fn store(&self, plain: &[u8], suffix: &str) -> String {
        let stored = object::deflate(plain);
        let hash = self.manifest().algorithm().hash(&stored);
        self.write(&object::path(&hash, suffix), &stored);
        hash
    }

    /// Returns the published manifest as a draft to change and sign again.
    pub fn manifest(&self) -> ManifestDraft {
        ManifestDraft::parse(&self.read(".cvmfspublished"))
    }

    /// Returns the tag with this name from the history database.
    pub fn tag(&self, name: &str) -> Tag {
        let history = self.manifest().get('H').expect("fixtures have a history");
        let database = object::inflate(&self.read(&object::path(&history, "H")));
        Tag::find(&database, name)
    }

    /// Returns the objects of the revision with this tag.
    pub fn contents(&self, tag: &str) -> Contents {
        Contents::read(self, &self.tag(tag).root)
    }

    /// Returns a signed manifest whose root, revision and time are those of a tag.
    pub fn head_at(&self, tag: &str) -> Vec<u8> {
        self.draft_at(tag).sign(&self.fixture.keys())
    }

    /// Returns the manifest of a tag, not signed yet, so that a test can change more of it.
    pub fn draft_at(&self, tag: &str) -> ManifestDraft {
        let tag = self.tag(tag);
        let mut draft = self.manifest();
        draft.set('C', &tag.root).set('B', tag.size).set('S', tag.revision).set('T', tag.timestamp);
        draft
    }

    /// Makes `head` the published manifest atomically, as a publisher would.
    pub fn publish(&self, head: &[u8]) {
        self.write(".cvmfspublished.new", head);
        std::fs::rename(self.path().join(".cvmfspublished.new"), self.path().join(".cvmfspublished"))
            .expect("renaming the manifest into place");
    }
}
