//! A machine for one test: namespaces with a root directory in which everything may be changed, for administrative
//! changes to a whole machine. Nothing of it outlives its script.

use std::fs;
use std::path::PathBuf;
use std::process::{Command, Output};
use std::time::Duration;

use crate::test_env::{TestEnv, words};

/// Longest that a script may take; `timeout` ends it, and the test fails.
const PATIENCE: Duration = Duration::from_secs(120);

/// Makes the root directory in `$1` and runs the script in `$2` there.
///
/// All of this machine is readable but for its CernVM-FS. `/etc` is a copy without site configuration; `/usr/bin` and
/// `/usr/sbin` can be changed; `/run`, `/var/lib`, `/var/spool`, `/srv` and `/cvmfs` are empty.
const PRELUDE: &str = r#"
set -eu
root=$1
# The mounts of other tests came along, and would not end while they are here.
sed -n 's|^[^ ]* \(/[^ ]*\) fuse.esker .*|\1|p' /proc/mounts | while read -r at; do umount -l "$at" || :; done
mount -t tmpfs -o mode=755 none "$root"
for path in /*; do
    if [ -L "$path" ]; then cp -P "$path" "$root/"; continue; fi
    [ -d "$path" ] || continue
    [ -d "$root$path" ] || mkdir "$root$path"
    case $path in
        /proc | /run | /etc | /cvmfs | /srv) ;;
        *) mount --rbind "$path" "$root$path" ;;
    esac
done
mkdir -p "$root/cvmfs" "$root/srv" "$root/.sbin/upper" "$root/.sbin/work" "$root/.bin/upper" "$root/.bin/work"
mount -t proc none "$root/proc"
mount -t tmpfs -o mode=755 none "$root/run"
mount -t tmpfs -o mode=755 none "$root/var/lib"
[ ! -d "$root/var/spool" ] || mount -t tmpfs -o mode=755 none "$root/var/spool"
for name in bin sbin; do
    layers="lowerdir=/usr/$name,upperdir=$root/.$name/upper,workdir=$root/.$name/work"
    mount -t overlay -o "$layers" none "$root/usr/$name"
    rm -f "$root/usr/$name"/cvmfs* "$root/usr/$name"/mount.cvmfs* "$root/usr/$name"/auto_cvmfs* "$root/usr/$name"/*esker*
done
cp -a /etc/. "$root/etc/"
rm -rf "$root/etc/cvmfs" "$root/etc/esker" "$root"/etc/auto.* "$root"/etc/systemd/system/*cvmfs* "$root"/etc/systemd/system/*/*cvmfs*
mkdir -p "$root/run/lock" "$root/etc/auto.master.d"
: >"$root/etc/fstab"
# mount(8) keeps its notes here; a link to the list of mounts is what all distributions have.
ln -sf /proc/self/mounts "$root/etc/mtab"
exec chroot "$root" /bin/bash -euo pipefail -c "$2" script
"#;

/// A world's machine.
pub(crate) struct Machine<'w> {
    world: &'w TestEnv,
    root: PathBuf,
}

impl<'w> Machine<'w> {
    /// Returns the machine on which `world` has its server and its key; for root.
    pub(crate) fn new(world: &'w TestEnv) -> Self {
        assert!(world.person.is_root(), "only root makes such namespaces");
        let root = world.path("machine");
        fs::create_dir_all(&root).expect("a folder");
        Self { world, root }
    }

    /// Returns the call that runs a script; `$ESKER`, `$URL`, `$KEY` and `$NAME` are set in it.
    pub(crate) fn script(&self, text: &str) -> Command {
        let mut command = Command::new("timeout");
        command
            .args(["--kill-after=5", &PATIENCE.as_secs().to_string()])
            .args([
                "unshare",
                "--mount",
                "--pid",
                "--fork",
                "--kill-child",
                "/bin/sh",
                "-c",
                PRELUDE,
                "prelude",
            ])
            .arg(&self.root)
            .arg(text)
            .env_clear()
            .env("PATH", "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin")
            .env("ESKER", self.world.program())
            .env("URL", self.world.url())
            .env("KEY", self.world.path("key.pub"))
            .env("NAME", self.world.fixture().name())
            .current_dir("/");
        command
    }

    /// Runs a script that must succeed; returns its output.
    #[track_caller]
    pub(crate) fn run(&self, text: &str) -> String {
        let output = self.output(text);
        assert!(output.status.success(), "{text}\n{}", words(&output));
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    pub(crate) fn output(&self, text: &str) -> Output {
        self.script(text).output().expect("running unshare")
    }
}
