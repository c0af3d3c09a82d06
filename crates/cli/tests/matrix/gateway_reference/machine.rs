//! A machine with the programs of the reference: namespaces in which its scripts may change `/etc`, `/var` and `/cvmfs`.

use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};

use crate::test_env::words;

/// Makes the root directory of a machine: that of this one with the programs added, and changes kept in memory.
///
/// An overlay can't be the upper directory of another one, so the folder of transactions is on the disk.
const BOOT: &str = r#"set -e
shared=$1 machine=$2 programs=$3
mount -t tmpfs none "$machine/memory"
mkdir "$machine"/memory/{changed,work,root}
root=$machine/memory/root
mount -t overlay -o "lowerdir=/,upperdir=$machine/memory/changed,workdir=$machine/memory/work" none "$root"
mkdir -p "$root"/{cvmfs,var/spool/cvmfs,var/log/cvmfs,etc/cvmfs/keys,etc/cvmfs/repositories.d}
rm -f "$root/usr/bin/systemctl"
: >"$root/etc/fstab"
for folder in dev sys; do mount --rbind "/$folder" "$root/$folder"; done
mkdir -p "$root/$shared"
mount --rbind "$shared" "$root/$shared"
mount --bind "$machine/spool" "$root/var/spool/cvmfs"
for file in "$programs"/*; do
    [ -f "$file" ] || continue
    case $file in *.so*) place=usr/lib ;; *) place=usr/bin ;; esac
    touch "$root/$place/${file##*/}"
    mount --bind "$file" "$root/$place/${file##*/}"
done
read -r pid _ </proc/self/stat
mount -t proc none "$root/proc"
exec chroot "$root" sh -c 'echo "$1"; exec cat' hold "$pid"
"#;

/// A machine that ends, with all its processes and mounts, with this value.
pub(super) struct Machine {
    holder: Child,
    pid: String,
}

impl Machine {
    /// Starts a machine. It sees the folder `shared`, and keeps its own things in a new folder there.
    pub(super) fn start(shared: &Path, name: &str, programs: &Path) -> Self {
        let own = shared.join(name);
        for folder in ["memory", "spool"] {
            std::fs::create_dir_all(own.join(folder)).expect("a folder");
        }
        let mut command = Command::new("unshare");
        command.args(["--mount", "--pid", "--fork", "--kill-child", "--propagation", "private"]);
        command.args(["bash", "-c", BOOT, "boot"]).args([shared, &own, programs]);
        let mut holder = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("unshare");
        let mut pid = String::new();
        let output = holder.stdout.as_mut().expect("its output");
        BufReader::new(output).read_line(&mut pid).expect("the machine's first process");
        assert!(!pid.is_empty(), "the machine {name} does not start");
        Self { holder, pid: pid.trim().to_owned() }
    }

    /// Runs a script on the machine.
    pub(super) fn call(&self, script: &str) -> Output {
        let mut command = Command::new("nsenter");
        command.args(["--target", &self.pid, "--mount", "--pid", "--root", "--wd", "bash", "-c", script]);
        command.env_clear().env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin").env("HOME", "/root");
        command.env("LC_ALL", "C").stdin(Stdio::null()).output().expect("running nsenter")
    }

    /// Returns what a script prints that must succeed.
    #[track_caller]
    pub(super) fn does(&self, script: &str) -> String {
        let output = self.call(script);
        assert!(output.status.success(), "{script}: {}", words(&output));
        String::from_utf8_lossy(&output.stdout).into_owned()
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        // The end of the first process ends all others, and with them the namespace and its mounts.
        let _ = self.holder.kill();
        let _ = self.holder.wait();
    }
}
