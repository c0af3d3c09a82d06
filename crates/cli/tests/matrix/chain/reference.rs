//! The client of CernVM-FS, where it is to be had.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use esker_testkit::skip_optional;
use esker_testkit::waiting::until;

use crate::publishing::NAME;
use crate::reference::{VARIABLE, folder_with};
use crate::test_env::{PATIENCE, TestEnv, words};

/// A mount by `cvmfs2`, which ends with this value.
pub(super) struct ReferenceClient {
    mountpoint: PathBuf,
}

impl ReferenceClient {
    /// Returns true if the client is there, and the tests may mount with it.
    pub(super) fn is_wanted() -> bool {
        program().is_some()
    }

    /// Mounts the repository through a proxy, or directly from the servers while the proxy is away; none, with a report,
    /// where the client isn't there.
    pub(super) fn mount(world: &TestEnv, proxy: &str, servers: &[String]) -> Option<Self> {
        let Some(program) = program() else {
            skip_optional!("{VARIABLE} names no folder with `cvmfs2`, or the tests don't run as root");
            return None;
        };
        let folder = world.path("reference");
        let mountpoint = folder.join("mnt");
        for nested in ["mnt", "cache"] {
            fs::create_dir_all(folder.join(nested)).expect("a folder");
        }
        let (cache, key) = (folder.join("cache").display().to_string(), world.path("key.pub"));
        let settings = [
            ("SERVER_URL", servers.join(";")),
            ("HTTP_PROXY", format!("{proxy};DIRECT")),
            ("PUBLIC_KEY", key.display().to_string()),
            ("CACHE_BASE", cache.clone()),
            ("RELOAD_SOCKETS", cache),
            ("SHARED_CACHE", "no".to_owned()),
            ("USE_GEOAPI", "no".to_owned()),
            ("MAGIC_XATTRS_VISIBILITY", "never".to_owned()),
            // The kernel's copies of old answers delay a new revision for this number of seconds.
            ("KCACHE_TIMEOUT", "1".to_owned()),
        ];
        let lines = settings.iter().map(|(name, value)| format!("CVMFS_{name}={value}\n"));
        let config = folder.join("client.conf");
        fs::write(&config, lines.collect::<String>()).expect("the configuration");
        let libraries = program.parent().expect("its folder");
        let mut command = Command::new(&program);
        command.env("LD_LIBRARY_PATH", libraries).env("CVMFS_LIBRARY_PATH", libraries).env("LC_ALL", "C");
        command.arg("-o").arg(format!("config={},allow_other", config.display())).arg(NAME).arg(&mountpoint);
        let output = command.output().expect("running cvmfs2");
        assert!(output.status.success(), "cvmfs2: {}", words(&output));
        Some(Self { mountpoint })
    }

    pub(super) fn mountpoint(&self) -> &Path {
        &self.mountpoint
    }
}

impl Drop for ReferenceClient {
    fn drop(&mut self) {
        // A reader that a panic ends may use it for a moment.
        let ended = until(PATIENCE, || {
            let output = Command::new("umount").arg(&self.mountpoint).output().expect("running umount");
            output.status.success()
        });
        assert!(ended || std::thread::panicking(), "cvmfs2 stays mounted at {}", self.mountpoint.display());
    }
}

/// Returns the client's program, if the tests run as root.
fn program() -> Option<PathBuf> {
    Some(folder_with(&["cvmfs2"])?.join("cvmfs2"))
}
