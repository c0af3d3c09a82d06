//! Emulates `cat`, `cut`, `tr`, `head` and similar programs.

use super::super::regexp::{Search, Syntax};
use super::super::{INPUT_MAX, Shell};
use super::{Done, Options, Outcome, content, joined, unsupported};

/// Returns the output of a program that reads files: its status is 1 if one of them is missing.
fn done(output: String, all: bool) -> Done {
    Ok(Outcome { output, code: u8::from(!all) })
}

pub(super) fn cat(shell: &mut Shell<'_>, arguments: &[&str]) -> Done {
    let options = Options::parse("cat", arguments, "", "")?;
    let (output, all) = joined(shell, &options.operands, |_| false)?;
    done(output, all)
}

/// Parses a list like `1,3-5,7-`: the first and last of each part.
fn list(text: &str) -> Option<Vec<(usize, usize)>> {
    let part = |part: &str| {
        let number = |text: &str, default| if text.is_empty() { Some(default) } else { text.parse().ok() };
        match part.split_once('-') {
            Some((from, to)) if part.len() > 1 => Some((number(from, 1)?, number(to, usize::MAX)?)),
            Some(_) => None,
            None => part.parse().ok().map(|at| (at, at)),
        }
    };
    text.split([',', ' '])
        .map(part)
        .collect::<Option<Vec<_>>>()
        .filter(|all| all.iter().all(|(from, _)| *from > 0))
}

pub(super) fn cut(shell: &mut Shell<'_>, arguments: &[&str]) -> Done {
    let options = Options::parse("cut", arguments, "", "dfc")?;
    let wrong = || unsupported("cut", arguments);
    let (fields, characters) = (options.value('f'), options.value('c'));
    let wanted = fields.or(characters).and_then(list).ok_or_else(wrong)?;
    let delimiter = options.value('d').unwrap_or("\t");
    if delimiter.chars().count() != 1 || fields.is_some() == characters.is_some() {
        return Err(wrong());
    }
    let is_wanted = |at: &usize| wanted.iter().any(|(from, to)| (*from..=*to).contains(&(at + 1)));
    let (text, all) = content(shell, &options.operands)?;
    shell.charge(text.len().saturating_mul(wanted.len()))?;
    let mut output = String::new();
    for line in text.lines() {
        if characters.is_some() {
            output.extend(line.chars().enumerate().filter(|(at, _)| is_wanted(at)).map(|(_, c)| c));
        } else if line.contains(delimiter) {
            let fields = line.split(delimiter).enumerate().filter(|(at, _)| is_wanted(at));
            output.push_str(&fields.map(|(_, field)| field).collect::<Vec<_>>().join(delimiter));
        } else {
            output.push_str(line);
        }
        output.push('\n');
    }
    done(output, all)
}

/// Returns the characters of a set of `tr`.
fn set(text: &str) -> Option<Vec<char>> {
    let range = |from: char, to: char| (from..=to).collect::<Vec<_>>();
    let mut all = Vec::new();
    let mut rest = text;
    while let Some(c) = rest.chars().next() {
        if let Some(class) = rest.strip_prefix("[:") {
            let (name, behind) = class.split_once(":]")?;
            match name {
                "lower" => all.extend('a'..='z'),
                "upper" => all.extend('A'..='Z'),
                "digit" => all.extend('0'..='9'),
                "alpha" => all.extend(('A'..='Z').chain('a'..='z')),
                "alnum" => all.extend(('0'..='9').chain('A'..='Z').chain('a'..='z')),
                "space" => all.extend(['\t', '\n', '\x0b', '\x0c', '\r', ' ']),
                "blank" => all.extend(['\t', ' ']),
                "punct" => all.extend((0..128u8).map(char::from).filter(char::is_ascii_punctuation)),
                _ => return None,
            }
            rest = behind;
            continue;
        }
        rest = &rest[c.len_utf8()..];
        let c = if c == '\\' {
            let next = rest.chars().next()?;
            rest = &rest[next.len_utf8()..];
            match next {
                'n' => '\n',
                't' => '\t',
                'r' => '\r',
                '\\' => '\\',
                c if c.is_ascii_alphanumeric() => return None,
                c => c,
            }
        } else {
            c
        };
        let mut behind = rest.chars();
        match (behind.next(), behind.next()) {
            (Some('-'), Some(to)) if to != '\\' => {
                if to < c || u32::from(to) - u32::from(c) > 256 {
                    return None;
                }
                all.extend(range(c, to));
                rest = behind.as_str();
            }
            _ => all.push(c),
        }
    }
    Some(all)
}

pub(super) fn tr(shell: &mut Shell<'_>, arguments: &[&str]) -> Done {
    let options = Options::parse("tr", arguments, "d", "")?;
    let wrong = || unsupported("tr", arguments);
    let sets = options.operands.iter().map(|text| set(text)).collect::<Option<Vec<_>>>().ok_or_else(wrong)?;
    let (from, to) = match sets.as_slice() {
        [from] if options.has('d') => (from, None),
        [from, to] if !options.has('d') => (from, Some(to.last().map(|last| (to, *last)).ok_or_else(wrong)?)),
        _ => return Err(wrong()),
    };
    let (text, all) = content(shell, &[])?;
    shell.charge(text.len().saturating_mul(from.len()) / 16)?;
    let translated = text.chars().filter_map(|c| match (from.iter().rposition(|known| *known == c), to) {
        (None, _) => Some(c),
        (Some(_), None) => None,
        // The last one stands for all that have none of their own.
        (Some(at), Some((to, last))) => Some(to.get(at).copied().unwrap_or(last)),
    });
    done(translated.collect(), all)
}

pub(super) fn head(shell: &mut Shell<'_>, name: &str, arguments: &[&str]) -> Done {
    let wrong = || unsupported(name, arguments);
    // `-5` is `-n 5`.
    let short = arguments.first().and_then(|first| first.strip_prefix('-'));
    let short = short.filter(|count| count.parse::<u32>().is_ok());
    let options = Options::parse(name, &arguments[usize::from(short.is_some())..], "", "n")?;
    let count: usize = options.value('n').or(short).unwrap_or("10").parse().map_err(|_| wrong())?;
    if options.operands.len() > 1 {
        return Err(wrong());
    }
    let (text, all) = content(shell, &options.operands)?;
    let lines: Vec<&str> = text.split_inclusive('\n').collect();
    let count = count.min(lines.len());
    let chosen = if name == "head" { &lines[..count] } else { &lines[lines.len() - count..] };
    done(chosen.concat(), all)
}

pub(super) fn wc(shell: &mut Shell<'_>, arguments: &[&str]) -> Done {
    match arguments {
        ["-l"] => {
            let (text, all) = content(shell, &[])?;
            done(format!("{}\n", text.matches('\n').count()), all)
        }
        _ => Err(unsupported("wc", arguments)),
    }
}

pub(super) fn sort(shell: &mut Shell<'_>, arguments: &[&str]) -> Done {
    let options = Options::parse("sort", arguments, "ru", "")?;
    let (text, all) = content(shell, &options.operands)?;
    let mut lines: Vec<&str> = text.lines().collect();
    lines.sort_unstable();
    if options.has('u') {
        lines.dedup();
    }
    if options.has('r') {
        lines.reverse();
    }
    done(lines.iter().map(|line| format!("{line}\n")).collect(), all)
}

/// Evaluates `awk '[/RE/] { print $N, … }'`: fields of lines.
pub(super) fn awk(shell: &mut Shell<'_>, arguments: &[&str]) -> Done {
    let wrong = || unsupported("awk", arguments);
    let options = Options::parse("awk", arguments, "", "F")?;
    let Some((program, operands)) = options.operands.split_first() else { return Err(wrong()) };
    let separator = options.value('F').unwrap_or(" ");
    if separator.chars().count() != 1 || separator == "|" {
        return Err(wrong());
    }
    let (condition, action) = program.trim().split_once('{').ok_or_else(wrong)?;
    let search = match condition.trim() {
        "" => None,
        condition => {
            let expression = condition.strip_prefix('/').and_then(|text| text.strip_suffix('/'));
            let syntax = Syntax { extended: true, ..Syntax::default() };
            Some(Search::new(&[expression.ok_or_else(wrong)?], &syntax)?)
        }
    };
    let terms = action.strip_suffix('}').and_then(|action| action.trim().strip_prefix("print"));
    let terms = match terms.ok_or_else(wrong)?.trim() {
        "" => "$0",
        terms => terms,
    };
    let terms = terms.split(',').map(Field::parse).collect::<Option<Vec<_>>>().ok_or_else(wrong)?;
    let (text, all) = content(shell, operands)?;
    let mut output = String::new();
    for line in text.lines() {
        if let Some(search) = &search {
            shell.charge(search.cost(line.len()))?;
            if !search.finds(line) {
                continue;
            }
        }
        let fields: Vec<&str> = match separator {
            " " => line.split_ascii_whitespace().collect(),
            separator => line.split(separator).collect(),
        };
        let printed: Vec<&str> = terms.iter().map(|term| term.of(line, &fields)).collect();
        output.push_str(&printed.join(" "));
        output.push('\n');
        if output.len() > INPUT_MAX {
            return Err(wrong());
        }
    }
    Ok(Outcome { output, code: if all { 0 } else { 2 } })
}

enum Field {
    Number(usize),
    Last,
}

impl Field {
    fn parse(text: &str) -> Option<Self> {
        match text.trim().strip_prefix('$')? {
            "NF" => Some(Field::Last),
            number => number.parse().ok().map(Field::Number),
        }
    }

    fn of<'a>(&self, line: &'a str, fields: &[&'a str]) -> &'a str {
        match self {
            Field::Number(0) => line,
            Field::Number(number) => fields.get(number - 1).copied().unwrap_or_default(),
            Field::Last => fields.last().copied().unwrap_or(line),
        }
    }
}

pub(super) fn basename(arguments: &[&str]) -> Done {
    let arguments = if arguments.first() == Some(&"--") { &arguments[1..] } else { arguments };
    let (path, suffix) = match arguments {
        [path] => (path, ""),
        [path, suffix] if !path.starts_with('-') => (path, *suffix),
        _ => return Err(unsupported("basename", arguments)),
    };
    let plain = path.trim_end_matches('/');
    if plain.is_empty() {
        return Ok(Outcome::line(if path.is_empty() { "" } else { "/" }));
    }
    let name = plain.rsplit('/').next().unwrap_or_default();
    let short = name.strip_suffix(suffix).filter(|short| !short.is_empty());
    Ok(Outcome::line(short.unwrap_or(name)))
}

pub(super) fn dirname(arguments: &[&str]) -> Done {
    let [path] = arguments else { return Err(unsupported("dirname", arguments)) };
    let plain = path.trim_end_matches('/');
    let folder = match plain.rsplit_once('/') {
        Some((folder, _)) => match folder.trim_end_matches('/') {
            "" => "/",
            folder => folder,
        },
        None if plain.is_empty() && !path.is_empty() => "/",
        None => ".",
    };
    Ok(Outcome::line(folder))
}
