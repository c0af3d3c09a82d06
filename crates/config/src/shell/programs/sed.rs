//! Emulates `sed` with the command `s`.

use super::super::expand::Obstacle;
use super::super::regexp::{Search, Syntax};
use super::super::{INPUT_MAX, Shell};
use super::{Done, Options, Outcome, content};

/// A command `s`.
struct Substitution {
    search: Search,
    replacement: Vec<Part>,
    global: bool,
    print: bool,
}

enum Part {
    Text(String),
    Group(usize),
}

pub(super) fn sed(shell: &mut Shell<'_>, arguments: &[&str]) -> Done {
    let options = Options::parse("sed", arguments, "nEr", "e")?;
    let Some((scripts, operands)) = options.expressions() else {
        return Ok(Outcome { output: String::new(), code: 1 });
    };
    let script = scripts.join("\n");
    let wrong = || Obstacle::new(format!("`sed {script}`"));
    let extended = options.has('E') || options.has('r');
    let mut reader = Reader { chars: script.chars().collect(), at: 0, extended };
    let commands = reader.commands().map_err(|obstacle| obstacle.unwrap_or_else(wrong))?;
    let (text, all) = content(shell, operands)?;
    let mut output = String::new();
    for whole in text.split_inclusive('\n') {
        // The last line may have no end, which it gets once more output follows.
        let (line, end) = whole.strip_suffix('\n').map_or((whole, ""), |line| (line, "\n"));
        let mut line = line.to_owned();
        let mut print = |line: &str| {
            if !output.is_empty() && !output.ends_with('\n') {
                output.push('\n');
            }
            output.push_str(line);
            output.push_str(end);
        };
        for Substitution { search, replacement, global, print: prints } in &commands {
            shell.charge(search.cost(line.len()))?;
            if let Some(replaced) = substitute(&line, search, replacement, *global) {
                line = replaced;
                if *prints {
                    print(&line);
                }
            }
        }
        if !options.has('n') {
            print(&line);
        }
        if output.len() > INPUT_MAX || line.len() > INPUT_MAX {
            return Err(Obstacle::new(format!("`sed {script}` with so much output")));
        }
    }
    Ok(Outcome { output, code: if all { 0 } else { 2 } })
}

fn substitute(text: &str, search: &Search, replacement: &[Part], global: bool) -> Option<String> {
    let mut replaced = String::new();
    let mut behind = 0;
    let mut any = false;
    for found in search.regex().captures_iter(text) {
        let Some(whole) = found.get(0) else { continue };
        any = true;
        replaced.push_str(&text[behind..whole.start()]);
        for part in replacement {
            match part {
                Part::Text(text) => replaced.push_str(text),
                Part::Group(number) => {
                    replaced.push_str(found.get(*number).map_or("", |group| group.as_str()))
                }
            }
        }
        behind = whole.end();
        if !global || replaced.len() > INPUT_MAX {
            break;
        }
    }
    replaced.push_str(&text[behind..]);
    any.then_some(replaced)
}

/// Parses a script. An error without an obstacle means that the script has unsupported parts.
struct Reader {
    chars: Vec<char>,
    at: usize,
    extended: bool,
}

type Read<T> = Result<T, Option<Obstacle>>;

impl Reader {
    fn peek(&self) -> Option<char> {
        self.chars.get(self.at).copied()
    }

    fn take(&mut self) -> Option<char> {
        let c = self.peek()?;
        self.at += 1;
        Some(c)
    }

    fn commands(&mut self) -> Read<Vec<Substitution>> {
        let mut commands = Vec::new();
        loop {
            match self.take() {
                None => return Ok(commands),
                Some(' ' | '\n' | ';') => {}
                Some('s') => commands.push(self.substitution()?),
                Some(_) => return Err(None),
            }
        }
    }

    /// Consumes text up to and including a delimiter. An escaped delimiter loses its backslash.
    fn until(&mut self, delimiter: char) -> Read<String> {
        let mut text = String::new();
        let mut bracket = false;
        loop {
            let c = self.take().ok_or(None)?;
            match c {
                '\\' => {
                    let next = self.take().ok_or(None)?;
                    if next != delimiter {
                        text.push('\\');
                    }
                    text.push(next);
                }
                '[' if !bracket => {
                    bracket = true;
                    text.push(c);
                }
                ']' if bracket && !text.ends_with('[') && !text.ends_with("[^") => {
                    bracket = false;
                    text.push(c);
                }
                c if c == delimiter && !bracket => return Ok(text),
                c => text.push(c),
            }
        }
    }

    fn substitution(&mut self) -> Read<Substitution> {
        let delimiter = self.take().filter(|c| *c != '\n' && *c != '\\').ok_or(None)?;
        let expression = self.until(delimiter)?;
        let replacement = self.replacement(delimiter)?;
        let (mut global, mut print, mut any_case) = (false, false, false);
        loop {
            match self.peek() {
                Some('g') => global = true,
                Some('p') => print = true,
                Some('i' | 'I') => any_case = true,
                None | Some(' ' | ';' | '\n') => break,
                Some(_) => return Err(None),
            }
            self.at += 1;
        }
        // An empty expression would be the one before.
        if expression.is_empty() {
            return Err(None);
        }
        let syntax = Syntax { extended: self.extended, any_case, ..Syntax::default() };
        let search = Search::new(&[&expression], &syntax).map_err(Some)?;
        Ok(Substitution { search, replacement, global, print })
    }

    fn replacement(&mut self, delimiter: char) -> Read<Vec<Part>> {
        let mut parts = Vec::new();
        let mut text = String::new();
        loop {
            let part = match self.take().ok_or(None)? {
                c if c == delimiter => break,
                '&' => Part::Group(0),
                '\\' => match self.take().ok_or(None)? {
                    'n' => Part::Text("\n".into()),
                    't' => Part::Text("\t".into()),
                    c if c.is_ascii_digit() => Part::Group(c.to_digit(10).unwrap_or(0) as usize),
                    // Letters change the case of the following text.
                    c if c.is_ascii_alphabetic() => return Err(None),
                    c => Part::Text(c.into()),
                },
                c => Part::Text(c.into()),
            };
            match part {
                Part::Text(more) => text.push_str(&more),
                group => {
                    parts.push(Part::Text(std::mem::take(&mut text)));
                    parts.push(group);
                }
            }
        }
        parts.push(Part::Text(text));
        Ok(parts)
    }
}
