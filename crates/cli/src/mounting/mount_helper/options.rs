//! Options as mount(8) and fstab write them, made into those of `esker mount`.

use clap::{Arg, Command};
use esker_kernel_mount::Label;

use crate::error::Failure;

/// Options for mount(8), systemd or the kernel, or properties of every mount of Esker.
const NOTHING_TO_DO: &[&str] = &[
    "defaults",
    "_netdev",
    "auto",
    "noauto",
    "user",
    "nouser",
    "users",
    "nousers",
    "owner",
    "group",
    "nofail",
    "comment",
    "uhelper",
    "helper",
    "ro",
    // mount(8) adds it unless `ro` is given.
    "rw",
    "exec",
    "nosuid",
    "nodev",
    "noatime",
    "nodiratime",
    "relatime",
    "norelatime",
    "nostrictatime",
    "iversion",
    "noiversion",
    "symfollow",
    "noowner",
    "nogroup",
    "pri",
    "async",
    "sync",
    "dirsync",
    "lazytime",
    "nolazytime",
    "mand",
    "nomand",
    "silent",
    "loud",
    "default_permissions",
    "fsname",
    "subtype",
    "nonempty",
    // For libfuse, whose work we do in our own way.
    "large_read",
    "big_writes",
    "max_read",
    "max_write",
    "max_background",
    "max_readahead",
    "congestion_threshold",
    "async_read",
    "sync_read",
    "async_dio",
    "atomic_o_trunc",
    "blksize",
    "splice_read",
    "splice_write",
    "splice_move",
    "no_splice_read",
    "no_splice_write",
    "no_splice_move",
    "kernel_cache",
    "auto_cache",
    "noauto_cache",
    "entry_timeout",
    "negative_timeout",
    "attr_timeout",
    "ac_attr_timeout",
    "noforget",
    "remember",
    "intr",
    "intr_signal",
    "hard_remove",
    "use_ino",
    "readdir_ino",
    "clone_fd",
    "max_idle_threads",
    "max_threads",
    // For the client of CernVM-FS: how it starts, in which of its parts.
    "system_mount",
    "grab_mountpoint",
    "disable_watchdog",
    "simple_options_parsing",
    "libfuse",
    "debug",
    "uid",
    "gid",
];

/// Options without effect that are harmless to ignore.
const WITHOUT_EFFECT: &[(&str, &str)] = &[
    ("suid", "nothing in a mount of Esker gains rights"),
    ("cvmfs_suid", "nothing in a mount of Esker gains rights"),
    ("dev", "device files in a mount of Esker open nothing"),
    ("atime", "a mount of Esker keeps no times of reading"),
    ("strictatime", "a mount of Esker keeps no times of reading"),
    ("diratime", "a mount of Esker keeps no times of reading"),
    ("allow_root", "use allow_other, or mount as root"),
    ("auto_unmount", "a mount whose daemon was killed is unmounted by the next `esker mount` there"),
    ("umask", "files have the permissions that they were published with"),
    ("direct_io", "a mount of Esker is read through the kernel's cache"),
];

/// Options that can't be ignored, because that would mount something else.
const REFUSED: &[(&str, &str)] = &[
    (
        "config",
        "the files of a configuration are not named one by one; put them where `esker config show` finds them, or set \
         ESKER_CONFIG_ROOT to a folder with etc/cvmfs in it",
    ),
    ("foreground", "a helper returns once it is mounted; call `esker mount --foreground`"),
    ("parse", "it shows a configuration instead of mounting; call `esker config show`"),
    ("bind", "a mount helper mounts no folder a second time; call `mount --bind`"),
    ("rbind", "a mount helper mounts no folder a second time; call `mount --rbind`"),
    ("move", "a mount helper moves no mount; call `mount --move`"),
    ("nosymfollow", "the links of a repository have to be followed"),
    ("setuid", "it would mount as another user; mount as that user"),
    ("drop_privileges", "the daemon of a mount keeps the rights of its user"),
    ("fd", "a mount helper opens /dev/fuse itself"),
    ("rootmode", "a mount helper sets it itself"),
    ("user_id", "a mount helper sets it itself"),
    ("group_id", "a mount helper sets it itself"),
    ("blkdev", "there is no block device behind a mount of Esker"),
];

/// Options of `esker mount` that are its own business.
const PRIVATE: [&str; 4] = ["daemon", "foreground", "source", "help"];

/// Options of mount(8), translated to those of Esker.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Translated {
    /// Arguments of `esker mount`.
    pub(super) arguments: Vec<String>,
    /// Warnings for the user.
    pub(super) warnings: Vec<String>,
    /// True if the mount may exist already.
    pub(super) remount: bool,
}

/// Translates the lists given with `-o`; every long option of `command` can be named, with `_` or `-`. Unknown options
/// are refused, and with `sloppy` skipped.
///
/// As mount(8) does for other types of file systems, labels are left out where SELinux is not `labelled`.
pub(super) fn translate(
    command: &Command,
    lists: &[String],
    sloppy: bool,
    labelled: bool,
) -> Result<Translated, Failure> {
    let mut done = Translated::default();
    let mut noexec = false;
    for option in lists.iter().flat_map(|list| split(list)) {
        if option.matches('"').count() % 2 == 1 {
            return Err(Failure::usage(format!("the mount option {option}: a closing quote is missing")));
        }
        let (name, value) = match option.split_once('=') {
            Some((name, value)) => (name, Some(unquoted(value))),
            None => (option, None),
        };
        let reason = |table: &[(&str, &'static str)]| {
            table.iter().find(|(known, _)| *known == name).map(|(_, reason)| *reason)
        };
        if name == "remount" {
            done.remount = true;
        } else if matches!((name, value), ("noexec" | "exec", None)) {
            // The last one counts.
            noexec = name == "noexec";
        } else if Label::KINDS.contains(&name) && !labelled {
            done.warnings.push(format!("the mount option {name} has no effect: SELinux is not enabled here"));
        } else if let Some(reason) = reason(REFUSED) {
            return Err(Failure::usage(format!("the mount option {name} can't be used: {reason}")));
        } else if let Some(reason) = reason(WITHOUT_EFFECT) {
            done.warnings.push(format!("the mount option {name} has no effect: {reason}"));
        } else if let Some(argument) = argument(command, name) {
            done.arguments.push(with_value(argument, name, value)?);
        } else if NOTHING_TO_DO.contains(&name) || name.starts_with("x-") || name.starts_with("X-") {
            // mount(8) or another program handles it.
        } else if sloppy {
            done.warnings.push(format!("the mount option {name} is unknown and passed over"));
        } else {
            return Err(Failure::usage(format!("the mount option {name:?} is unknown")).hint(
                "options are those of `esker mount --help` without their dashes, as in -o fixed,quota=5G",
            ));
        }
    }
    if noexec {
        done.arguments.push("--noexec".to_owned());
    }
    Ok(done)
}

/// True if the kernel labels files with SELinux.
pub(super) fn has_selinux() -> bool {
    let types = std::fs::read_to_string("/proc/filesystems").unwrap_or_default();
    types.lines().any(|line| line.ends_with("\tselinuxfs"))
}

/// Returns the parts of a list: commas separate, except between double quotes.
fn split(list: &str) -> Vec<&str> {
    let mut quoted = false;
    let parts = list.split(move |letter| {
        quoted ^= letter == '"';
        letter == ',' && !quoted
    });
    parts.filter(|part| !part.is_empty()).collect()
}

fn unquoted(value: &str) -> &str {
    value.strip_prefix('"').and_then(|value| value.strip_suffix('"')).unwrap_or(value)
}

fn argument<'c>(command: &'c Command, name: &str) -> Option<&'c Arg> {
    let long = name.replace('_', "-");
    let found = command.get_arguments().find(|argument| argument.get_long() == Some(&long));
    found.filter(|_| !PRIVATE.contains(&long.as_str()))
}

fn with_value(argument: &Arg, name: &str, value: Option<&str>) -> Result<String, Failure> {
    let long = argument.get_long().unwrap_or_default();
    match (argument.get_action().takes_values(), value) {
        (true, Some(value)) => Ok(format!("--{long}={value}")),
        (false, None) => Ok(format!("--{long}")),
        (true, None) => Err(Failure::usage(format!("the mount option {name} needs a value: {name}=…"))),
        (false, Some(_)) => Err(Failure::usage(format!("the mount option {name} takes no value"))),
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;
    use crate::Esker;

    fn translated(list: &str, sloppy: bool) -> Result<Translated, Failure> {
        let command = Esker::command();
        translate(command.find_subcommand("mount").expect("mount"), &[list.to_owned()], sloppy, true)
    }

    #[test]
    fn options_of_esker_mount_are_options_in_fstab() {
        let list =
            "rw,_netdev,nodev,x-systemd.automount,fixed,no_prefetch,quota=5G,public_key=\"/etc/a,b.pub\"";
        let done = translated(list, false).expect("options");
        let expected = ["--fixed", "--no-prefetch", "--quota=5G", "--public-key=/etc/a,b.pub"];
        assert_eq!(done.arguments, expected);
        assert!(done.warnings.is_empty() && !done.remount, "{done:?}");
        assert!(translated("remount,ro", false).expect("options").remount);
    }

    #[test]
    fn noexec_and_allow_other_are_kept() {
        let done = translated("noexec,nosuid,nodev,user=bob,allow_other", false).expect("options");
        assert_eq!(done.arguments, ["--allow-other", "--noexec"]);
        // As with mount(8), the last one counts.
        assert!(translated("noexec,exec", false).expect("options").arguments.is_empty());
        assert_eq!(translated("user,exec,noexec", false).expect("options").arguments, ["--noexec"]);
    }

    #[test]
    fn labels_of_selinux_are_passed_on_where_it_is_enabled() {
        let list = "ro,context=\"system_u:object_r:usr_t:s0:c1,c2\",rootcontext=a:b:c:s0,nodev";
        let done = translated(list, false).expect("options");
        let expected = ["--context=system_u:object_r:usr_t:s0:c1,c2", "--rootcontext=a:b:c:s0"];
        assert_eq!((done.arguments.as_slice(), done.warnings.len()), (&expected.map(String::from)[..], 0));
        let command = Esker::command();
        let mount = command.find_subcommand("mount").expect("mount");
        let done = translate(mount, &[list.to_owned()], false, false).expect("options");
        assert!(done.arguments.is_empty(), "{done:?}");
        assert_eq!(done.warnings.len(), 2, "{done:?}");
        assert!(done.warnings[0].contains("SELinux is not enabled"), "{done:?}");
    }

    #[test]
    fn options_of_fstab_systemd_and_automounters_are_accepted() {
        let list = "defaults,_netdev,nofail,noauto,auto,user,users,owner,group,user=bob,comment=x,ro,rw,nodev,nosuid,exec,\
                    relatime,lazytime,x-systemd.requires=network-online.target,x-gvfs-hide,X-mount.mkdir=0755,\
                    x-initrd.mount,uhelper=udisks2,helper=esker,fsname=a,subtype=b,max_read=131072,nonempty";
        let done = translated(list, false).expect("options");
        assert_eq!(done, Translated::default());
        for (refused, word) in
            [("bind", "mount --bind"), ("setuid=bob", "another user"), ("context=\"a,b", "closing quote")]
        {
            let failure = translated(refused, false).expect_err(refused);
            assert!(failure.message.contains(word), "{failure:?}");
        }
    }

    #[test]
    fn unknown_options_are_reported_by_name() {
        let failure = translated("ro,fixxed", false).expect_err("unknown");
        assert!(failure.message.contains("\"fixxed\""), "{failure:?}");
        let done = translated("ro,fixxed", true).expect("sloppy");
        assert!(done.arguments.is_empty() && done.warnings[0].contains("fixxed"), "{done:?}");
        for (wrong, word) in [
            ("quota", "needs a value"),
            ("fixed=1", "no value"),
            ("daemon=3", "unknown"),
            ("parse", "instead"),
            ("config=/a:/b", "ESKER_CONFIG_ROOT"),
        ] {
            let failure = translated(wrong, false).expect_err(wrong);
            assert!(failure.message.contains(word), "{failure:?}");
        }
    }

    #[test]
    fn lines_without_effect_are_reported() {
        let done = translated("suid,system_mount,libfuse=3", false).expect("options");
        assert_eq!(done.warnings.len(), 1, "{done:?}");
        assert!(done.warnings[0].contains("suid"), "{done:?}");
    }
}
