//! Implements `esker manual`: man pages and the reference of all commands, made from the definition of the
//! command line.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use clap::{Arg, Command};
use clap_mangen::Man;

use crate::error::Failure;
use crate::output::Output;

/// Writes the man pages of esker and its commands to a folder.
///
/// Example: esker manual ~/.local/share/man/man1
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Folder for esker.1 and one page for each command; it is created if missing
    #[arg(value_name = "DIR", required_unless_present = "markdown")]
    folder: Option<PathBuf>,

    /// Print the reference of all commands as Markdown instead of writing man pages
    #[arg(long, conflicts_with = "folder")]
    markdown: bool,
}

pub(crate) fn run(args: &Args, mut command: Command) -> Result<(), Failure> {
    command = command.disable_help_subcommand(true);
    command.build();
    let mut out = Output::new();
    match &args.folder {
        None => out.text(reference(&command))?,
        Some(folder) => write_pages(folder, &command, &mut out)?,
    }
    out.finish()
}

fn write_pages(folder: &Path, command: &Command, out: &mut Output) -> Result<(), Failure> {
    let failed = |path: &Path, error: &std::io::Error| {
        Failure::failed(format!("can't write {}: {error}", path.display()))
            .hint("name a folder that this user may write to")
    };
    std::fs::create_dir_all(folder).map_err(|error| failed(folder, &error))?;
    for (name, command) in commands(command) {
        let path = folder.join(format!("{}.1", name.replace(' ', "-")));
        let mut page = Vec::new();
        let source = format!("esker {}", env!("CARGO_PKG_VERSION"));
        Man::new(command.clone().display_name(name.replace(' ', "-"))).source(source).render(&mut page)?;
        std::fs::write(&path, page).map_err(|error| failed(&path, &error))?;
        out.line(path.as_os_str().as_encoded_bytes())?;
    }
    Ok(())
}

/// Returns the name of every command that help shows, such as `esker cache pin`.
fn commands(command: &Command) -> Vec<(String, &Command)> {
    let mut all = vec![("esker".to_owned(), command)];
    let mut at = 0;
    while let Some((name, command)) = all.get(at).cloned() {
        let below = command.get_subcommands().filter(|below| !below.is_hide_set());
        all.extend(below.map(|below| (format!("{name} {}", below.get_name()), below)));
        at += 1;
    }
    all.sort_by(|a, b| a.0.cmp(&b.0));
    all
}

/// Minimum number of commands that share an option in the section on common options.
const COMMON_MIN: usize = 5;

/// Returns the reference of all commands as Markdown.
fn reference(command: &Command) -> String {
    let all = commands(command);
    let mut uses: BTreeMap<(String, String), usize> = BTreeMap::new();
    for (_, command) in &all {
        options(command).for_each(|option| *uses.entry(row(option)).or_default() += 1);
    }
    uses.retain(|_, count| *count >= COMMON_MIN);
    let mut text = String::from(
        "# Command line\n\n<!-- Made by `esker manual --markdown`; a test compares. -->\n\n\
         `esker COMMAND --help` shows the same. Options that many commands share are in the last section.\n",
    );
    for (name, command) in &all[1..] {
        let about = command.get_long_about().or(command.get_about()).map(ToString::to_string);
        let usage = (*command).clone().render_usage().to_string();
        let usage = usage.trim_start_matches("Usage:").trim();
        let _ =
            write!(text, "\n## {name}\n\n{}\n\n```text\n{usage}\n```\n", about.unwrap_or_default().trim());
        let own = command
            .get_positionals()
            .filter(|argument| !argument.is_hide_set())
            .chain(options(command))
            .map(row);
        table(&mut text, own.filter(|row| !uses.contains_key(row)));
    }
    text.push_str("\n## Common options\n");
    table(&mut text, uses.into_keys());
    text
}

/// Returns the options that the help of a command shows, except `--help` and `--version`.
fn options(command: &Command) -> impl Iterator<Item = &Arg> {
    command.get_arguments().filter(|argument| {
        let is_builtin = ["help", "version"].contains(&argument.get_id().as_str());
        !argument.is_positional() && !argument.is_hide_set() && !is_builtin
    })
}

/// Returns the syntax of an argument, and its help.
fn row(argument: &Arg) -> (String, String) {
    let help = argument.get_long_help().or(argument.get_help()).map(ToString::to_string).unwrap_or_default();
    let mut help = help.split_whitespace().collect::<Vec<_>>().join(" ").replace('|', "\\|");
    let defaults: Vec<_> =
        argument.get_default_values().iter().map(|value| value.to_string_lossy()).collect();
    if !defaults.is_empty() && argument.get_action().takes_values() && !argument.is_hide_default_value_set() {
        let _ = write!(help, " [default: {}]", defaults.join(","));
    }
    let short = argument.get_short().map(|short| format!("-{short}, ")).unwrap_or_default();
    (format!("`{short}{argument}`").replace('|', "\\|"), help)
}

fn table(text: &mut String, rows: impl Iterator<Item = (String, String)>) {
    let mut rows = rows.peekable();
    if rows.peek().is_some() {
        text.push_str("\n| Argument | Meaning |\n|---|---|\n");
    }
    for (argument, help) in rows {
        let _ = writeln!(text, "| {argument} | {help} |");
    }
}
