//! Runs a function in a child process that is confined in a role.

use std::path::{Path, PathBuf};
use std::process::Command;

use esker_confine::{Policy, Role};

const ROLE: &str = "ESKER_TRIAL_ROLE";
const FOLDER: &str = "ESKER_TRIAL_FOLDER";

/// Roles that write nowhere.
pub(crate) const HELPERS: [Role; 2] = [Role::Replayer, Role::Opener];

/// Roles that start no programs, all but one.
pub(crate) fn without_programs() -> impl Iterator<Item = Role> {
    Role::ALL.into_iter().filter(|role| !role.mounts())
}

/// Folders of a trial: one that may be read, one that may be changed, and one for neither.
pub(crate) struct Scene {
    pub(crate) folder: tempfile::TempDir,
}

impl Scene {
    pub(crate) fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        for name in ["read", "write", "list", "other"] {
            std::fs::create_dir(folder.path().join(name)).unwrap();
            std::fs::write(folder.path().join(name).join("file"), name).unwrap();
        }
        Self { folder }
    }

    /// Runs the test `name` of this program in a child that is confined as `role`, and returns what it prints.
    pub(crate) fn confined(&self, role: Role, name: &str) -> String {
        let program = std::env::current_exe().unwrap();
        let output = Command::new(program)
            .args(["--exact", name, "--nocapture", "--test-threads=1"])
            .env(ROLE, role.name())
            .env(FOLDER, self.folder.path())
            .output()
            .unwrap();
        let (text, errors) =
            (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        assert!(output.status.success(), "{role:?}: {text}{errors}");
        text.into_owned()
    }
}

/// Returns the folder of a child of a trial; `None` in the test's own process.
pub(crate) fn folder() -> Option<PathBuf> {
    std::env::var_os(FOLDER).map(PathBuf::from)
}

/// Confines this process if it is a child of a trial; returns its role and folder. `None` in the test's own process.
pub(crate) fn enter() -> Option<(Role, PathBuf)> {
    std::env::var_os(ROLE).map(|_| enter_with(|policy| policy))
}

/// Confines this process, a child of a trial, with a changed policy.
pub(crate) fn enter_with(change: impl FnOnce(Policy) -> Policy) -> (Role, PathBuf) {
    let name = std::env::var(ROLE).unwrap();
    let role = Role::ALL.into_iter().find(|role| role.name() == name).unwrap();
    let folder = folder().unwrap();
    let has_landlock = has_landlock();
    let enforced = change(policy(role, &folder)).prepare().enforce();
    assert!(
        enforced.seccomp && enforced.landlock.is_some() == (has_landlock && !role.mounts()),
        "{enforced}"
    );
    assert_eq!(esker_confine::Confinement::get(), Some(enforced));
    (role, folder)
}

fn policy(role: Role, folder: &Path) -> Policy {
    let policy = Policy::new(role).read(folder.join("read")).list(folder.join("list"));
    let policy = policy.reopen(folder.join("site/store")).reopen(folder.join("live/cert.pem"));
    if HELPERS.contains(&role) { policy } else { policy.write(folder.join("write")) }
}

/// Returns true if this kernel restricts paths.
pub(crate) fn has_landlock() -> bool {
    // The number of landlock_create_ruleset; asks for the version.
    crate::sys::call(444, [0, 0, 1, 0, 0, 0]).is_ok()
}
