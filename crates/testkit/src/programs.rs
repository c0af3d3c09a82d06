//! Makes programs that a test starts.
//!
//! Linux refuses to execute a file that a process has open for writing, and a process that another thread of the tests
//! starts at that moment has a copy of the descriptor until it executes its own program. So a child writes the file.

use std::ffi::OsStr;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Copies a program to a path from where every user may execute it.
#[track_caller]
pub fn copy(from: &Path, to: &Path) {
    let install = Command::new("install").args(["-m", "755"]).args([from, to]).status();
    assert!(install.expect("install").success(), "{} can't be copied to {}", from.display(), to.display());
}

/// Writes a program to a path by means of `shell`, a command that starts `sh` as the user who owns the file afterwards.
#[track_caller]
pub fn write(mut shell: Command, path: &Path, content: &str) {
    assert_eq!(shell.get_program(), OsStr::new("sh"), "the shell");
    shell.args(["-c", r#"cat >"$1" && chmod 755 "$1""#, "write"]).arg(path).stdin(Stdio::piped());
    let mut child = shell.spawn().expect("sh");
    child.stdin.take().expect("its input").write_all(content.as_bytes()).expect("its input");
    assert!(child.wait().expect("its end").success(), "{} can't be written", path.display());
}

/// Environment variable with the `esker` that tests start from outside, as `make test` gives it: the release binary.
const GIVEN: &str = "ESKER_BINARY";

/// Returns the `esker` to test: the one of `ESKER_BINARY`, otherwise the one that cargo built with the tests.
///
/// The release binary is static and has no debug assertions, so it can fail where a debug build passes.
#[track_caller]
pub fn esker(built: &str) -> PathBuf {
    let Some(given) = std::env::var_os(GIVEN).map(PathBuf::from) else { return built.into() };
    // Tests run in the folders of their crates.
    assert!(
        given.is_absolute() && given.is_file(),
        "{GIVEN}={} is no absolute path of a file",
        given.display()
    );
    given
}
