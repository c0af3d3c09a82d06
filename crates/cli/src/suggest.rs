//! Keeps hidden commands and options out of the command line parser's suggestions.

use std::collections::BTreeSet;
use std::ffi::OsString;

use clap::builder::StyledStr;
use clap::error::{ContextKind, ContextValue, Error};
use clap::{Command, CommandFactory as _};

use crate::Esker;

/// Removes suggestions of hidden commands and options from an error; `line` is the command line with the program's
/// name.
pub(crate) fn without_hidden(mut error: Error, line: &[OsString]) -> Error {
    let whole = Esker::command();
    let command = called(&whole, line);
    let visible = |name: &str| {
        let found = command.find_subcommand(name);
        found.is_some_and(|found| !found.is_hide_set())
    };
    keep(&mut error, ContextKind::SuggestedSubcommand, visible);
    keep(&mut error, ContextKind::SuggestedArg, |text| !hidden_options(command).contains(option_in(text)));
    // "'run --keep' exists", of an option that stands before its command.
    let everywhere = all_hidden_options(&whole);
    if let Some(ContextValue::StyledStrs(tips)) = error.remove(ContextKind::Suggested) {
        let names_hidden = |tip: &StyledStr| {
            let words = tip.to_string();
            words
                .split(|c: char| !c.is_ascii_alphanumeric() && c != '-')
                .any(|word| everywhere.contains(word))
        };
        let tips: Vec<StyledStr> = tips.into_iter().filter(|tip| !names_hidden(tip)).collect();
        if !tips.is_empty() {
            error.insert(ContextKind::Suggested, ContextValue::StyledStrs(tips));
        }
    }
    if let Some(ContextValue::String(name)) = error.get(ContextKind::InvalidSubcommand)
        && crate::has_in_full_build(name)
    {
        let tip =
            format!("this build has the commands of a client only; the full build of esker has `{name}`");
        error.remove(ContextKind::SuggestedSubcommand);
        error.insert(ContextKind::Suggested, ContextValue::StyledStrs(vec![tip.into()]));
    }
    error
}

/// Keeps those suggestions of one kind that `may_be` accepts.
fn keep(error: &mut Error, kind: ContextKind, may_be: impl Fn(&str) -> bool) {
    let kept = match error.remove(kind) {
        Some(ContextValue::String(one)) if may_be(&one) => ContextValue::String(one),
        Some(ContextValue::Strings(all)) => {
            let all: Vec<String> = all.into_iter().filter(|one| may_be(one)).collect();
            if all.is_empty() {
                return;
            }
            ContextValue::Strings(all)
        }
        _ => return,
    };
    error.insert(kind, kept);
}

/// Returns the command that the line names in its first words.
fn called<'c>(whole: &'c Command, line: &[OsString]) -> &'c Command {
    let mut command = whole;
    for word in line.iter().skip(1) {
        match word.to_str().and_then(|word| command.find_subcommand(word)) {
            Some(found) => command = found,
            None => break,
        }
    }
    command
}

/// Returns the option in a suggestion like `--name <VALUE>`.
fn option_in(text: &str) -> &str {
    text.split([' ', '=']).next().unwrap_or_default()
}

fn hidden_options(command: &Command) -> BTreeSet<String> {
    let hidden = command.get_arguments().filter(|argument| argument.is_hide_set());
    hidden.filter_map(|argument| argument.get_long().map(|long| format!("--{long}"))).collect()
}

/// Returns the options of all commands that are hidden wherever they are.
fn all_hidden_options(command: &Command) -> BTreeSet<String> {
    let mut all = hidden_options(command);
    command.get_subcommands().for_each(|command| all.append(&mut all_hidden_options(command)));
    all
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;

    fn said(line: &[&str]) -> String {
        let line: Vec<OsString> =
            std::iter::once("esker").chain(line.iter().copied()).map(Into::into).collect();
        match Esker::try_parse_from(&line) {
            Ok(_) => panic!("{line:?} is no error"),
            Err(error) => without_hidden(error, &line).to_string(),
        }
    }

    fn commands(command: &Command, path: &[String], all: &mut Vec<(Vec<String>, Command)>) {
        all.push((path.to_vec(), command.clone()));
        for below in command.get_subcommands() {
            commands(below, &[path, &[below.get_name().to_owned()]].concat(), all);
        }
    }

    /// Tests every hidden name with one letter missing.
    #[test]
    fn hidden_names_are_not_suggested() {
        let mut all = Vec::new();
        commands(&Esker::command(), &[], &mut all);
        let mut tried = 0;
        for (path, command) in &all {
            let path: Vec<&str> = path.iter().map(String::as_str).collect();
            let hidden = command.get_subcommands().filter(|below| below.is_hide_set());
            let names = hidden.map(|below| below.get_name().to_owned()).chain(hidden_options(command));
            for name in names.filter(|_| !command.is_hide_set()) {
                let wrong = &name[..name.len() - 1];
                for line in [[path.as_slice(), &[wrong]].concat(), [&[wrong], path.as_slice()].concat()] {
                    let text = said(&line);
                    let told = text.split(|c: char| !c.is_ascii_alphanumeric() && c != '-');
                    assert!(!told.into_iter().any(|word| word == name), "{line:?}: {text}");
                    tried += 1;
                }
            }
        }
        assert!(tried >= 20, "only {tried} names were tried");
    }

    #[test]
    fn visible_names_are_suggested() {
        assert!(said(&["statu"]).contains("'status'"));
        assert!(said(&["mount", "a.test", "/mnt", "--quot", "5G"]).contains("'--quota'"));
        assert!(said(&["repo", "create", "a.test", "--tt"]).contains("--ttl"), "hidden elsewhere only");
        assert!(said(&["--quota", "mount"]).contains("--quota"));
    }
}
