//! The list of commands in `esker --help`, by the role of who uses them.

use std::fmt::Write as _;

use clap::Subcommand as _;
use clap::builder::{StyledStr, Styles};

use crate::Called;

/// Commands for shells, the last role of the help.
const SHELL: (&str, &[&str]) = ("Shell", &["completions", "manual", "help"]);

/// Returns the template of the help of `esker`, in which the list of commands has a heading for each role.
pub(crate) fn template(roles: &[(&str, &[&str])]) -> StyledStr {
    let esker = Called::augment_subcommands(clap::Command::new("esker"));
    let about = |name: &str| match esker.find_subcommand(name) {
        Some(command) => command.get_about().map(ToString::to_string),
        None => (name == "help").then(|| "Prints this message or the help of a command".to_owned()),
    };
    let styles = Styles::styled();
    let (header, literal) = (styles.get_header(), styles.get_literal());
    let mut text = "{about-with-newline}\n{usage-heading} {usage}\n".to_owned();
    for (role, names) in roles.iter().chain([&SHELL]) {
        let _ = write!(text, "\n{header}{role}:{header:#}\n");
        for name in names.iter().map(|name| name.to_ascii_lowercase()) {
            // Hidden commands have names of more than one word, and a build may leave out others.
            if let Some(about) = about(&name) {
                let _ = writeln!(text, "  {literal}{name:<11}{literal:#}  {about}");
            }
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
        let esker = Called::augment_subcommands(clap::Command::new("esker"));
        let visible = esker.get_subcommands().filter(|command| !command.is_hide_set());
        let visible: BTreeSet<&str> = visible.map(clap::Command::get_name).chain(["help"]).collect();
        let text = template(crate::ROLES).to_string();
        for name in &visible {
            let line = format!("\n  {name:<11}  ");
            assert_eq!(text.matches(&line).count(), 1, "{name}: {text}");
        }
        let listed = text.lines().filter(|line| line.starts_with("  ")).count();
        assert_eq!(listed, visible.len(), "{text}");
    }
}
