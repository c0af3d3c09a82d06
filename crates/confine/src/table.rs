//! The tables of SECURITY.md, made from the lists in the code.

use std::fmt::Write as _;

use crate::calls::plain_name;
use crate::role::{ALL_GROUPS, Network, READ_BY_OPENERS, READ_BY_SERVERS, ReadAccess, Role};

/// Returns the two tables in Markdown: what each process may do, and the system calls of each group.
pub fn table() -> String {
    let mut text =
        String::from("| Process | Groups of system calls | Reads | Network |\n|---|---|---|---|\n");
    for role in Role::ALL {
        let groups: Vec<&str> = role.groups().iter().map(|group| group.name).collect();
        let reads = match (role, role.reading()) {
            (Role::Replayer, _) => "the mount",
            (Role::Opener, _) => "the paths of openers",
            (_, ReadAccess::Everywhere) => "all paths that its user may read",
            (_, ReadAccess::Named) => "its own paths and those of servers",
        };
        let network = match role.network() {
            Network::None => "none",
            Network::Internet => "connects to IP addresses; listens at the sockets that it has",
            Network::Local => "connects to Unix sockets",
        };
        let network =
            if role.mounts() { "makes the Unix sockets of the mount and its cache" } else { network };
        let device = if role.has_device() { ", `/dev/fuse`" } else { "" };
        // A string takes every write.
        let _ = writeln!(text, "| {} | {}{device} | {reads} | {network} |", role.name(), groups.join(", "));
    }
    let listed = |paths: &[&str]| paths.iter().map(|path| format!("`{path}`")).collect::<Vec<_>>().join(", ");
    let _ = writeln!(
        text,
        "\nPaths of servers: {}. Paths of openers: {}.\n\n| Group | For | System calls |\n|---|---|---|",
        listed(&READ_BY_SERVERS),
        listed(&READ_BY_OPENERS)
    );
    for group in ALL_GROUPS {
        let mut names: Vec<&str> = group.calls.iter().map(|(name, _)| plain_name(name)).collect();
        names.sort_unstable();
        let _ = writeln!(text, "| {} | {} | {} |", group.name, group.purpose, names.join(" "));
    }
    text
}
