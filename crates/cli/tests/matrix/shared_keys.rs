//! Keys of a repository that tests share, because making RSA keys takes a processor half a second.

use std::fs;
use std::io::Write as _;
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::path::Path;
use std::process::Command;
use std::sync::OnceLock;

use crate::publishing::NAME;
use crate::test_env::{esker_binary, words};
use crate::test_user::TestUser;

/// A file in a folder of keys.
struct KeyFile {
    name: String,
    mode: u32,
    content: Vec<u8>,
}

/// Puts the keys of `NAME` into a folder of a user, where `repo create` finds them.
pub(crate) fn put(person: TestUser, folder: &Path) {
    let keys = made();
    person.does(|| {
        fs::DirBuilder::new().recursive(true).mode(0o700).create(folder).expect("a folder");
        for key in keys {
            let mut options = fs::OpenOptions::new();
            let file = options.write(true).create_new(true).mode(key.mode).open(folder.join(&key.name));
            file.expect("a new file").write_all(&key.content).expect("writing a key");
        }
    });
}

/// Returns the keys, which the first call makes.
fn made() -> &'static [KeyFile] {
    static KEYS: OnceLock<Vec<KeyFile>> = OnceLock::new();
    KEYS.get_or_init(|| {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let keys = folder.path().join("keys");
        let mut create = Command::new(esker_binary());
        create.args(["repo", "create", NAME, "--storage"]).arg(folder.path()).arg("--keys").arg(&keys);
        let output = create.env_clear().env("HOME", folder.path()).output().expect("running esker");
        assert!(output.status.success(), "{}", words(&output));
        let files = fs::read_dir(&keys).expect("a folder").map(|file| {
            let file = file.expect("an entry");
            let mode = file.metadata().expect("metadata").permissions().mode();
            let content = fs::read(file.path()).expect("a key");
            KeyFile { name: file.file_name().into_string().expect("a name"), mode, content }
        });
        files.collect()
    })
}
