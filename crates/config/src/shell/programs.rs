//! Emulates programs that look at local files and at the machine, without executing them.

mod grep;
mod machine;
mod printf;
mod sed;
mod text;

use super::Shell;
use super::expand::{Expanded, Obstacle};
use super::run::Input;

/// Output and status of a program.
pub(super) struct Outcome {
    pub(super) output: String,
    pub(super) code: u8,
}

impl Outcome {
    fn printed(output: impl Into<String>) -> Self {
        Self { output: output.into(), code: 0 }
    }

    fn line(output: impl Into<String>) -> Self {
        let mut output = output.into();
        output.push('\n');
        Self { output, code: 0 }
    }
}

type Done = Expanded<Outcome>;

/// Emulates a program. An obstacle names the unsupported part.
pub(super) fn run(shell: &mut Shell<'_>, name: &str, arguments: &[&str]) -> Done {
    let plain = name.strip_prefix("/usr/bin/").or_else(|| name.strip_prefix("/bin/")).unwrap_or(name);
    match plain {
        "grep" => grep::grep(shell, arguments),
        "sed" => sed::sed(shell, arguments),
        "echo" => printf::echo(arguments),
        "printf" => printf::printf(arguments),
        "cat" => text::cat(shell, arguments),
        "cut" => text::cut(shell, arguments),
        "tr" => text::tr(shell, arguments),
        "head" | "tail" => text::head(shell, plain, arguments),
        "wc" => text::wc(shell, arguments),
        "sort" => text::sort(shell, arguments),
        "awk" => text::awk(shell, arguments),
        "basename" => text::basename(arguments),
        "dirname" => text::dirname(arguments),
        "uname" => machine::uname(shell, arguments),
        "hostname" => machine::hostname(shell, arguments),
        "id" => machine::id(shell, arguments),
        _ => Err(Obstacle::new(format!("the command `{name}`"))),
    }
}

/// Returns the obstacle of a program with unsupported arguments.
fn unsupported(name: &str, arguments: &[&str]) -> Obstacle {
    Obstacle::new(format!("`{name} {}`", arguments.join(" ")))
}

/// Options and operands of a program.
struct Options<'a> {
    letters: Vec<(char, Option<&'a str>)>,
    operands: Vec<&'a str>,
}

impl<'a> Options<'a> {
    /// Parses arguments. `flags` are the known letters; those in `valued` have a value.
    fn parse(name: &str, arguments: &[&'a str], flags: &str, valued: &str) -> Expanded<Self> {
        let mut parsed = Self { letters: Vec::new(), operands: Vec::new() };
        let mut rest = arguments.iter();
        while let Some(argument) = rest.next() {
            if *argument == "--" {
                parsed.operands.extend(rest);
                break;
            }
            let Some(letters) = argument.strip_prefix('-').filter(|letters| !letters.is_empty()) else {
                parsed.operands.push(argument);
                continue;
            };
            for (at, letter) in letters.char_indices() {
                if valued.contains(letter) {
                    let here = &letters[at + letter.len_utf8()..];
                    let value = if here.is_empty() { rest.next().copied() } else { Some(here) };
                    let value = value.ok_or_else(|| unsupported(name, &[argument]))?;
                    parsed.letters.push((letter, Some(value)));
                    break;
                }
                if !flags.contains(letter) {
                    return Err(unsupported(name, &[argument]));
                }
                parsed.letters.push((letter, None));
            }
        }
        Ok(parsed)
    }

    /// Returns the expressions of `grep` or `sed`, and the remaining operands. `None` if there is no
    /// expression.
    fn expressions(&self) -> Option<(Vec<&'a str>, &[&'a str])> {
        let given = self.letters.iter().filter(|(letter, _)| *letter == 'e');
        let given: Vec<&str> = given.filter_map(|(_, value)| *value).collect();
        if !given.is_empty() {
            return Some((given, &self.operands));
        }
        let (first, rest) = self.operands.split_first()?;
        Some((vec![first], rest))
    }

    fn has(&self, letter: char) -> bool {
        self.letters.iter().any(|(known, _)| *known == letter)
    }

    fn value(&self, letter: char) -> Option<&'a str> {
        self.letters.iter().rev().find(|(known, _)| *known == letter).and_then(|(_, value)| *value)
    }
}

/// Returns the text of a program's operands, or of its input if there are none; the second value is false if a
/// file is missing. Except for `cat`, a file begins a line of its own.
fn content(shell: &mut Shell<'_>, operands: &[&str]) -> Expanded<(String, bool)> {
    joined(shell, operands, |text| !text.is_empty() && !text.ends_with('\n'))
}

fn joined(
    shell: &mut Shell<'_>,
    operands: &[&str],
    lacks_end: impl Fn(&str) -> bool,
) -> Expanded<(String, bool)> {
    let (mut all, mut complete) = (String::new(), true);
    for operand in if operands.is_empty() { &["-"] } else { operands } {
        let text = if *operand == "-" {
            let text = shell.input.as_mut().map(Input::rest).unwrap_or_default();
            shell.charge(text.len())?;
            Some(text)
        } else {
            shell.content(operand)?
        };
        complete &= text.is_some();
        let text = text.unwrap_or_default();
        if !text.is_empty() && lacks_end(&all) {
            all.push('\n');
        }
        all.push_str(&text);
    }
    Ok((all, complete))
}
