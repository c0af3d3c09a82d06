//! Emulates `sed`: addresses and the commands `s`, `p`, `d`, `q` and `=`. It neither jumps nor writes files.

use super::super::expand::{Expanded, Obstacle};
use super::super::regexp::{Search, Syntax};
use super::super::{INPUT_MAX, Shell};
use super::{Done, Options, Outcome, contents};

enum Address {
    Line(usize),
    Last,
    Search(Search),
}

enum Action {
    Substitute { search: Search, replacement: Vec<Part>, global: bool, print: bool, nth: usize },
    Print,
    Delete,
    Quit,
}

enum Part {
    Text(String),
    Group(usize),
}

struct Command {
    from: Option<Address>,
    to: Option<Address>,
    not: bool,
    action: Action,
    /// True within a range of lines.
    inside: bool,
}

/// Output of a program. A line without an end gets one once more output follows.
#[derive(Default)]
struct Output {
    text: String,
    lacks_end: bool,
}

impl Output {
    fn line(&mut self, line: &str, ends: bool) {
        self.end_line();
        self.text.push_str(line);
        self.lacks_end = true;
        if ends {
            self.end_line();
        }
    }

    fn end_line(&mut self) {
        if std::mem::take(&mut self.lacks_end) {
            self.text.push('\n');
        }
    }
}

pub(super) fn sed(shell: &mut Shell<'_>, arguments: &[&str]) -> Done {
    let long = [("quiet", 'n'), ("silent", 'n'), ("expression", 'e'), ("regexp-extended", 'E')];
    let options = Options::parse("sed", arguments, ("nErsu", "e"), &long)?;
    let Some((scripts, operands)) = options.expressions() else {
        return Ok(Outcome { output: String::new(), code: 1 });
    };
    let script = scripts.join("\n");
    let extended = options.has('E') || options.has('r');
    let mut reader = Reader { chars: script.chars().collect(), at: 0, extended };
    let mut commands = reader.commands().map_err(|obstacle| match obstacle {
        Some(obstacle) => obstacle,
        None => Obstacle::new(format!("`sed {script}`")),
    })?;
    let (texts, all) = contents(shell, operands)?;
    let mut output = Output::default();
    let mut lines = texts.iter().flat_map(|(_, text)| text.split_inclusive('\n')).enumerate().peekable();
    while let Some((at, whole)) = lines.next() {
        let line = whole.strip_suffix('\n');
        let ends = line.is_some();
        let mut space = line.unwrap_or(whole).to_owned();
        let (mut deleted, mut quit) = (false, false);
        for command in &mut commands {
            if !command.selects(shell, &space, at + 1, lines.peek().is_none())? {
                continue;
            }
            match &command.action {
                Action::Print => output.line(&space, ends),
                Action::Delete => deleted = true,
                Action::Quit => quit = true,
                Action::Substitute { search, replacement, global, print, nth } => {
                    shell.charge(search.cost(space.len()))?;
                    if let Some(replaced) = substitute(&space, search, replacement, *global, *nth) {
                        space = replaced;
                        if *print {
                            output.line(&space, ends);
                        }
                    }
                }
            }
            if deleted || quit {
                break;
            }
        }
        if !deleted && !options.has('n') {
            output.line(&space, ends);
        }
        if output.text.len() > INPUT_MAX || space.len() > INPUT_MAX {
            return Err(Obstacle::new(format!("`sed {script}` with so much output")));
        }
        if quit {
            output.end_line();
            break;
        }
    }
    Ok(Outcome { output: output.text, code: if all { 0 } else { 2 } })
}

fn substitute(text: &str, search: &Search, replacement: &[Part], global: bool, nth: usize) -> Option<String> {
    let mut replaced = String::new();
    let mut behind = 0;
    let mut any = false;
    for (at, found) in search.regex().captures_iter(text).enumerate() {
        let Some(whole) = found.get(0) else { continue };
        if at + 1 < nth {
            continue;
        }
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

impl Command {
    fn selects(&mut self, shell: &mut Shell<'_>, line: &str, number: usize, last: bool) -> Expanded<bool> {
        let mut fits = |address: &Address| {
            Ok(match address {
                Address::Line(wanted) => *wanted == number,
                Address::Last => last,
                Address::Search(search) => {
                    shell.charge(search.cost(line.len()))?;
                    search.finds(line)
                }
            })
        };
        let selected = match (&self.from, &self.to) {
            (None, _) => true,
            (Some(from), None) => fits(from)?,
            (Some(from), Some(to)) => {
                if self.inside {
                    self.inside = match to {
                        Address::Line(end) => *end > number,
                        to => !fits(to)?,
                    };
                    // A range whose end is passed already was this line only.
                    !matches!(to, Address::Line(end) if *end < number)
                } else if fits(from)? {
                    self.inside = !matches!(to, Address::Line(end) if *end <= number);
                    true
                } else {
                    false
                }
            }
        };
        Ok(selected != self.not)
    }
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

    fn pass(&mut self, what: &[char]) {
        while self.peek().is_some_and(|c| what.contains(&c)) {
            self.at += 1;
        }
    }

    fn commands(&mut self) -> Read<Vec<Command>> {
        let mut commands = Vec::new();
        loop {
            self.pass(&[' ', '\t', '\n', ';']);
            if self.peek().is_none() {
                return Ok(commands);
            }
            let from = self.address()?;
            let mut to = None;
            if from.is_some() && self.peek() == Some(',') {
                self.at += 1;
                to = Some(self.address()?.ok_or(None)?);
            }
            self.pass(&[' ']);
            let not = self.peek() == Some('!');
            if not {
                self.at += 1;
                self.pass(&[' ']);
            }
            let action = match self.take() {
                Some('s') => self.substitution()?,
                Some('p') => Action::Print,
                Some('d') => Action::Delete,
                Some('q') => Action::Quit,
                _ => return Err(None),
            };
            self.pass(&[' ', '\t']);
            if !matches!(self.peek(), None | Some(';' | '\n')) {
                return Err(None);
            }
            commands.push(Command { from, to, not, action, inside: false });
        }
    }

    fn address(&mut self) -> Read<Option<Address>> {
        Ok(match self.peek() {
            Some('$') => {
                self.at += 1;
                Some(Address::Last)
            }
            Some('/') => {
                self.at += 1;
                let expression = self.until('/')?;
                let any_case = self.peek() == Some('I');
                self.at += usize::from(any_case);
                Some(Address::Search(self.search(&expression, any_case)?))
            }
            Some(c) if c.is_ascii_digit() => {
                let mut text = String::new();
                while let Some(c) = self.peek().filter(char::is_ascii_digit) {
                    text.push(c);
                    self.at += 1;
                }
                Some(Address::Line(text.parse().map_err(|_| None)?))
            }
            _ => None,
        })
    }

    fn search(&self, expression: &str, any_case: bool) -> Read<Search> {
        // An empty one would be the one before.
        if expression.is_empty() {
            return Err(None);
        }
        let syntax = Syntax { extended: self.extended, any_case, ..Syntax::default() };
        Search::new(&[expression], &syntax).map_err(Some)
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

    fn substitution(&mut self) -> Read<Action> {
        let delimiter = self.take().filter(|c| *c != '\n' && *c != '\\').ok_or(None)?;
        let expression = self.until(delimiter)?;
        let replacement = self.replacement(delimiter)?;
        let (mut global, mut print, mut any_case, mut nth) = (false, false, false, 1);
        while let Some(c) = self.peek() {
            match c {
                'g' => global = true,
                'p' => print = true,
                'i' | 'I' => any_case = true,
                '1'..='9' => nth = c.to_digit(10).unwrap_or(1) as usize,
                _ => break,
            }
            self.at += 1;
        }
        let search = self.search(&expression, any_case)?;
        Ok(Action::Substitute { search, replacement, global, print, nth })
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
