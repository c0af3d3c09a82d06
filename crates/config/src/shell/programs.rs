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
        "grep" | "egrep" | "fgrep" => grep::grep(shell, plain, arguments),
        "sed" => sed::sed(shell, arguments),
        "echo" => printf::echo(arguments),
        "printf" => printf::printf(arguments),
        "cat" => text::cat(shell, arguments),
        "cut" => text::cut(shell, arguments),
        "tr" => text::tr(shell, arguments),
        "head" | "tail" => text::head(shell, plain, arguments),
        "wc" => text::wc(shell, arguments),
        "sort" => text::sort(shell, arguments),
        "uniq" => text::uniq(shell, arguments),
        "awk" => text::awk(shell, arguments),
        "basename" => text::basename(arguments),
        "dirname" => text::dirname(arguments),
        "seq" => text::seq(arguments),
        "uname" | "arch" => machine::uname(shell, plain, arguments),
        "hostname" | "domainname" | "dnsdomainname" => machine::hostname(shell, plain, arguments),
        "id" | "whoami" => machine::id(shell, plain, arguments),
        _ => Err(Obstacle::new(format!("the command `{name}`"))),
    }
}

/// Options and operands of a program.
struct Options<'a> {
    letters: Vec<(char, Option<&'a str>)>,
    operands: Vec<&'a str>,
}

impl<'a> Options<'a> {
    /// Parses arguments. `flags` are the known letters; those in `valued` have a value. Long options are given
    /// as pairs of their name and the letter that they stand for.
    fn parse(
        name: &str,
        arguments: &[&'a str],
        (flags, valued): (&str, &str),
        long: &[(&str, char)],
    ) -> Expanded<Self> {
        let unknown = |argument: &str| Err(Obstacle::new(format!("`{name} {argument}`")));
        let mut parsed = Self { letters: Vec::new(), operands: Vec::new() };
        let mut rest = arguments.iter();
        while let Some(argument) = rest.next() {
            if *argument == "--" {
                parsed.operands.extend(rest);
                break;
            }
            if let Some(text) = argument.strip_prefix("--") {
                let (text, value) =
                    text.split_once('=').map_or((text, None), |(text, value)| (text, Some(value)));
                let Some((_, letter)) = long.iter().find(|(name, _)| *name == text) else {
                    return unknown(argument);
                };
                let value = match (valued.contains(*letter), value) {
                    (true, None) => rest.next().copied(),
                    (_, value) => value,
                };
                parsed.letters.push((*letter, value));
                continue;
            }
            let Some(letters) = argument.strip_prefix('-').filter(|letters| !letters.is_empty()) else {
                parsed.operands.push(argument);
                continue;
            };
            for (at, letter) in letters.char_indices() {
                if valued.contains(letter) {
                    let here = &letters[at + letter.len_utf8()..];
                    let value = if here.is_empty() { rest.next().copied() } else { Some(here) };
                    let Some(value) = value else { return unknown(argument) };
                    parsed.letters.push((letter, Some(value)));
                    break;
                }
                if !flags.contains(letter) {
                    return unknown(argument);
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
/// file is missing.
fn contents(shell: &mut Shell<'_>, operands: &[&str]) -> Expanded<(Vec<(String, String)>, bool)> {
    let mut texts = Vec::new();
    let mut all = true;
    let operands = if operands.is_empty() { &["-"] } else { operands };
    for operand in operands {
        if *operand == "-" || *operand == "/dev/stdin" {
            let text = shell.input.as_mut().map(Input::rest).unwrap_or_default();
            shell.charge(text.len())?;
            texts.push(("(standard input)".to_owned(), text));
        } else {
            match shell.content(operand)? {
                Some(text) => texts.push(((*operand).to_owned(), text)),
                None => all = false,
            }
        }
    }
    Ok((texts, all))
}

/// Returns all texts joined.
fn content(shell: &mut Shell<'_>, operands: &[&str]) -> Expanded<(String, u8)> {
    let (texts, all) = contents(shell, operands)?;
    Ok((texts.into_iter().map(|(_, text)| text).collect(), u8::from(!all)))
}
