//! The list of commands in `esker --help`, by the role of who uses them.

use std::fmt::Write as _;

use clap::Subcommand as _;
use clap::builder::{StyledStr, Styles};

use crate::Command;

/// Roles with their commands, in the order of the help.
const ROLES: [(&str, &[&str]); 8] = [
    ("Mount and run", &["run", "mount", "umount", "upgrade", "reload", "setup"]),
    ("Read without a mount", &["ls", "cat", "stat", "find", "compare", "revision"]),
    ("Find out why", &["status", "doctor", "top", "trace", "logs", "metrics", "config"]),
    ("Cache", &["cache", "broker"]),
    (
        "Publish",
        &[
            "repo",
            "publish",
            "ingest",
            "transaction",
            "diff",
            "log",
            "tag",
            "rollback",
            "undo",
            "key",
            "graft",
            "profile",
        ],
    ),
    ("Serve and replicate", &["serve", "proxy", "replicate", "collect", "check"]),
    ("Images", &["image"]),
    ("Shell", &["completions", "manual", "help"]),
];

/// Returns true for the commands of a build with all features.
pub(crate) fn has_in_full_build(name: &str) -> bool {
    ROLES.iter().any(|(_, names)| names.contains(&name))
}

/// Returns the template of the help of `esker`, in which the list of commands has a heading for each role.
pub(crate) fn template() -> StyledStr {
    let esker = Command::augment_subcommands(clap::Command::new("esker"));
    let about = |name: &str| match esker.find_subcommand(name) {
        Some(command) => command.get_about().map(ToString::to_string).unwrap_or_default(),
        None => "Prints this message or the help of a command".to_owned(),
    };
    let styles = Styles::styled();
    let (header, literal) = (styles.get_header(), styles.get_literal());
    let mut text = "{about-with-newline}\n{usage-heading} {usage}\n".to_owned();
    for (role, names) in ROLES {
        let _ = write!(text, "\n{header}{role}:{header:#}\n");
        for name in names.iter().filter(|name| **name == "help" || esker.find_subcommand(name).is_some()) {
            let _ = writeln!(text, "  {literal}{name:<11}{literal:#}  {}", about(name));
        }
    }
    let _ = write!(text, "\n{header}Options:{header:#}\n{{options}}{{after-help}}");
    text.into()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn each_visible_command_has_one_role() {
        let esker = Command::augment_subcommands(clap::Command::new("esker"));
        let visible = esker.get_subcommands().filter(|command| !command.is_hide_set());
        let visible: BTreeSet<&str> = visible.map(clap::Command::get_name).chain(["help"]).collect();
        let listed: Vec<&str> = ROLES.iter().flat_map(|(_, names)| *names).copied().collect();
        assert_eq!(listed.len(), visible.len());
        assert_eq!(listed.into_iter().collect::<BTreeSet<_>>(), visible);
    }
}
