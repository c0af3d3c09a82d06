//! The tables of SECURITY.md, made from the lists in the code.

use std::fmt::Write as _;

use crate::calls::plain_name;
use crate::paths::READ_BY_ALL;
use crate::role::{ALL_GROUPS, Network, Reading, Role};

/// Returns the two tables in Markdown: what each process may do, and the system calls of each group.
pub fn table() -> String {
    let mut text =
        String::from("| Process | Groups of system calls | Reads | Network |\n|---|---|---|---|\n");
    for role in Role::ALL {
        let groups: Vec<&str> = role.groups().iter().map(|group| group.name).collect();
        let reads = match (role, role.reading()) {
            (Role::Replayer, _) => "the mount",
            (_, Reading::Everywhere) => "all paths that its user may read",
            (_, Reading::Named) => "its own paths and those of all",
        };
        let network = match role.network() {
            Network::None => "none",
            Network::Internet => "connects; listens at the sockets that it has",
        };
        let device = if role.has_device() { ", `/dev/fuse`" } else { "" };
        // A string takes every write.
        let _ = writeln!(text, "| {} | {}{device} | {reads} | {network} |", role.name(), groups.join(", "));
    }
    let all: Vec<String> = READ_BY_ALL.iter().map(|path| format!("`{path}`")).collect();
    let _ = writeln!(
        text,
        "\nPaths of all: {}.\n\n| Group | For | System calls |\n|---|---|---|",
        all.join(", ")
    );
    for group in ALL_GROUPS {
        let mut names: Vec<&str> = group.calls.iter().map(|(name, _)| plain_name(name)).collect();
        names.sort_unstable();
        let _ = writeln!(text, "| {} | {} | {} |", group.name, group.purpose, names.join(" "));
    }
    text
}
