//! Implements `esker help cvmfs`: the table of CernVM-FS commands and their equivalents.

use std::ffi::OsString;

use crate::error::Failure;
use crate::output::Output;

/// Hint that names this command.
pub(crate) const HINT: &str = "`esker help cvmfs` lists the counterparts of CernVM-FS's commands";

/// Commands of CernVM-FS with their equivalents in Esker; where there is none, advice.
const COUNTERPARTS: &[(&str, &str)] = &[
    ("mount -t cvmfs NAME DIR", "esker mount NAME DIR"),
    ("umount DIR, cvmfs_config umount", "esker umount DIR"),
    ("cvmfsexec NAME -- COMMAND", "esker run NAME -- COMMAND"),
    ("cvmfs_config setup", "esker setup"),
    ("cvmfs_config chksetup", "esker config check"),
    ("cvmfs_config showconfig NAME", "esker config show NAME --origin"),
    ("cvmfs_config probe", "esker doctor"),
    ("cvmfs_config stat, status", "esker status"),
    ("cvmfs_config wipecache", "esker cache wipe"),
    ("cvmfs_config bugreport", "esker status --json"),
    ("cvmfs_config reload, killall", "not needed: unmount and mount again"),
    ("cvmfs_talk remount sync", "esker revision DIR --update"),
    ("cvmfs_talk revision", "esker revision DIR"),
    ("cvmfs_talk cache size, cache list", "esker cache status"),
    ("cvmfs_talk cleanup MB", "esker cache evict --to SIZE"),
    ("cvmfs_talk pin PATH", "esker cache pin NAME:/PATH"),
    ("cvmfs_talk host info, proxy info", "esker status DIR"),
    ("cvmfs_fsck", "esker cache check"),
    ("cvmfs_preload", "esker cache preload NAME"),
    ("cvmfs_server mkfs NAME", "esker repo create NAME"),
    ("cvmfs_server transaction, publish", "esker transaction NAME -- COMMAND, esker publish NAME DIR"),
    ("cvmfs_server abort", "esker transaction abort NAME"),
    ("cvmfs_server enter", "esker transaction NAME"),
    ("cvmfs_server ingest", "esker ingest NAME FILE --to PATH"),
    ("cvmfs_server tag -l, tag -i", "esker tag list NAME, tag show NAME TAG"),
    ("cvmfs_server tag -a, tag -r", "esker tag add NAME TAG, tag remove NAME TAG"),
    ("cvmfs_server publish -a TAG", "esker publish NAME DIR --tag TAG"),
    ("cvmfs_server diff", "esker diff NAME OLD NEW"),
    ("cvmfs_server rollback -t TAG", "esker rollback NAME --to TAG"),
    ("cvmfs_server rollback", "esker undo NAME"),
    ("cvmfs_server list-tags, lstags", "esker log NAME"),
    ("cvmfs_server resign", "esker repo resign NAME"),
    ("cvmfs_server gc", "esker collect NAME"),
    ("cvmfs_server check, check -i", "esker check NAME, esker check NAME --data"),
    ("cvmfs_server add-replica, snapshot", "none yet"),
    ("Apache on a server", "esker serve DIR"),
];

/// True if the arguments after the program's name ask for it.
pub(crate) fn requested(arguments: &[OsString]) -> bool {
    matches!(arguments, [help, topic] if help == "help" && topic == "cvmfs")
}

pub(crate) fn print() -> Result<(), Failure> {
    let mut out = Output::new();
    let width = COUNTERPARTS.iter().map(|(theirs, _)| theirs.len()).max().unwrap_or_default();
    for (theirs, ours) in COUNTERPARTS {
        out.line(format!("{theirs:width$}  {ours}"))?;
    }
    out.finish()
}
