//! Tests that options of one name mean the same with every command.

use std::collections::{BTreeMap, BTreeSet};

use clap::{Arg, ArgAction, Command, CommandFactory as _};

use crate::Esker;

/// Options that are a switch of one command and have a value with another: `transaction --keep` and `collect --keep 30d`.
const BOTH: [&str; 1] = ["keep"];
/// Options without a heading that a command may have.
const WITHOUT_HEADING_MAX: usize = 20;

/// Returns all visible commands, with their names.
fn commands() -> Vec<(String, Command)> {
    let mut esker = Esker::command();
    esker.build();
    let mut all = vec![("esker".to_owned(), esker)];
    let mut at = 0;
    while let Some((name, command)) = all.get(at).cloned() {
        let visible = command.get_subcommands().filter(|below| !below.is_hide_set());
        all.extend(visible.map(|below| (format!("{name} {}", below.get_name()), below.clone())));
        at += 1;
    }
    all
}

/// Returns the visible options of a command that have long names.
fn options(command: &Command) -> impl Iterator<Item = (&str, &Arg)> {
    let visible = command.get_arguments().filter(|option| !option.is_hide_set());
    visible.filter_map(|option| Some((option.get_long()?, option)))
}

#[test]
fn an_option_takes_a_value_everywhere_or_nowhere() {
    let mut kinds: BTreeMap<String, BTreeSet<(bool, String)>> = BTreeMap::new();
    for (name, command) in commands() {
        for (long, option) in options(&command) {
            let has_value = matches!(option.get_action(), ArgAction::Set | ArgAction::Append);
            kinds.entry(long.to_owned()).or_default().insert((has_value, name.clone()));
        }
    }
    kinds.retain(|long, uses| {
        let with = uses.iter().filter(|(has_value, _)| *has_value).count();
        with > 0 && with < uses.len() && !BOTH.contains(&long.as_str())
    });
    assert!(kinds.is_empty(), "{kinds:?}");
}

#[test]
fn all_times_are_durations() {
    for (name, command) in commands() {
        for (long, option) in options(&command) {
            let values = option.get_value_names().unwrap_or_default();
            let other =
                values.iter().find(|value| ["SECONDS", "MINUTES", "TIME", "COUNT"].contains(&value.as_str()));
            // The time of an image's entries is a point in time.
            assert!(other.is_none() || long == "mtime", "{name} --{long} {values:?}");
        }
    }
}

#[test]
fn quiet_is_short_and_means_the_same_everywhere() {
    let mut found = BTreeSet::new();
    for (_, command) in commands() {
        for (_, option) in options(&command).filter(|(long, _)| *long == "quiet") {
            found.insert((option.get_short(), option.get_help().map(ToString::to_string)));
        }
    }
    assert_eq!(found.len(), 1, "{found:?}");
    assert!(found.iter().all(|(short, _)| *short == Some('q')), "{found:?}");
}

#[test]
fn long_lists_of_options_have_headings() {
    for (name, command) in commands() {
        let bare = options(&command).filter(|(_, option)| option.get_help_heading().is_none()).count();
        assert!(bare <= WITHOUT_HEADING_MAX, "{name} has {bare} options without a heading");
    }
}
