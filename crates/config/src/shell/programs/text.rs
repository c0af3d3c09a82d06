//! Emulates `cat`, `cut`, `tr`, `head` and similar programs.

use super::super::expand::{Expanded, Obstacle};
use super::super::regexp::{Search, Syntax};
use super::super::{INPUT_MAX, Shell};
use super::{Done, Options, Outcome, content};

pub(super) fn cat(shell: &mut Shell<'_>, arguments: &[&str]) -> Done {
    let options = Options::parse("cat", arguments, ("u", ""), &[])?;
    let (output, code) = content(shell, &options.operands)?;
    Ok(Outcome { output, code })
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
    let long =
        [("delimiter", 'd'), ("fields", 'f'), ("characters", 'c'), ("bytes", 'b'), ("only-delimited", 's')];
    let options = Options::parse("cut", arguments, ("s", "dfcb"), &long)?;
    let wrong = || Obstacle::new(format!("`cut {}`", arguments.join(" ")));
    let characters = options.value('c').or(options.value('b'));
    let wanted = options.value('f').or(characters).and_then(list).ok_or_else(wrong)?;
    let is_wanted = |number: usize| wanted.iter().any(|(from, to)| (*from..=*to).contains(&number));
    let delimiter = options.value('d').unwrap_or("\t");
    if delimiter.chars().count() != 1 || options.has('f') == characters.is_some() {
        return Err(wrong());
    }
    let (text, code) = content(shell, &options.operands)?;
    shell.charge(text.len().saturating_mul(wanted.len()))?;
    let mut output = String::new();
    for line in text.lines() {
        if characters.is_some() {
            output.extend(line.chars().enumerate().filter(|(at, _)| is_wanted(at + 1)).map(|(_, c)| c));
        } else if line.contains(delimiter) {
            let fields = line.split(delimiter).enumerate().filter(|(at, _)| is_wanted(at + 1));
            output.push_str(&fields.map(|(_, field)| field).collect::<Vec<_>>().join(delimiter));
        } else if options.has('s') {
            continue;
        } else {
            output.push_str(line);
        }
        output.push('\n');
    }
    Ok(Outcome { output, code })
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
    let long = [("delete", 'd'), ("squeeze-repeats", 's'), ("complement", 'c')];
    let options = Options::parse("tr", arguments, ("dscC", ""), &long)?;
    let wrong = || Obstacle::new(format!("`tr {}`", arguments.join(" ")));
    let sets = options.operands.iter().map(|text| set(text)).collect::<Option<Vec<_>>>().ok_or_else(wrong)?;
    let (delete, squeeze, others) =
        (options.has('d'), options.has('s'), options.has('c') || options.has('C'));
    let (from, to) = match sets.as_slice() {
        [from] if delete != squeeze => (from, None),
        [from, to] if !delete && !to.is_empty() => (from, Some(to)),
        _ => return Err(wrong()),
    };
    let (text, _) = content(shell, &[])?;
    shell.charge(text.len().saturating_mul(from.len()) / 16)?;
    let mut output = String::new();
    let squeezes = to.unwrap_or(from);
    for c in text.chars() {
        let at = from.iter().rposition(|known| *known == c);
        let chosen = at.is_some() != others;
        if chosen && delete {
            continue;
        }
        let new = match (to, at) {
            // The last one stands for all that have none of their own.
            (Some(to), at) if chosen => {
                let last = to[to.len() - 1];
                if others { last } else { at.and_then(|at| to.get(at)).copied().unwrap_or(last) }
            }
            _ => c,
        };
        let again = squeeze && output.ends_with(new);
        let of_set = if to.is_none() { chosen } else { squeezes.contains(&new) };
        if !(again && of_set) {
            output.push(new);
        }
    }
    Ok(Outcome::printed(output))
}

pub(super) fn head(shell: &mut Shell<'_>, name: &str, arguments: &[&str]) -> Done {
    let wrong = || Obstacle::new(format!("`{name} {}`", arguments.join(" ")));
    // `-5` is `-n 5`.
    let short = arguments
        .first()
        .and_then(|first| first.strip_prefix('-'))
        .filter(|count| count.parse::<u32>().is_ok());
    let options = Options::parse(
        name,
        &arguments[usize::from(short.is_some())..],
        ("q", "nc"),
        &[("lines", 'n'), ("bytes", 'c')],
    )?;
    if options.operands.len() > 1 {
        return Err(wrong());
    }
    let bytes = options.value('c');
    let count = bytes.or(options.value('n')).or(short).unwrap_or("10");
    let (from_start, from_end) = (count.strip_prefix('+'), count.strip_prefix('-'));
    let number: usize = from_start.or(from_end).unwrap_or(count).parse().map_err(|_| wrong())?;
    let (text, code) = content(shell, &options.operands)?;
    let units: Vec<&str> = match bytes {
        Some(_) if !text.is_ascii() => return Err(wrong()),
        Some(_) => text.split_inclusive(|_| true).collect(),
        None => text.split_inclusive('\n').collect(),
    };
    let all = units.len();
    let range = match (name, from_start.is_some(), from_end.is_some()) {
        ("head", false, true) => 0..all.saturating_sub(number),
        ("head", ..) => 0..number.min(all),
        (_, true, _) => number.saturating_sub(1).min(all)..all,
        _ => all.saturating_sub(number)..all,
    };
    Ok(Outcome { output: units[range].concat(), code })
}

pub(super) fn wc(shell: &mut Shell<'_>, arguments: &[&str]) -> Done {
    let long = [("lines", 'l'), ("words", 'w'), ("bytes", 'c'), ("chars", 'm')];
    let options = Options::parse("wc", arguments, ("lwcm", ""), &long)?;
    let (text, code) = content(shell, &options.operands)?;
    let count = match options.letters.as_slice() {
        [('l', _)] => text.matches('\n').count(),
        [('w', _)] => text.split_ascii_whitespace().count(),
        [('c', _)] => text.len(),
        [('m', _)] => text.chars().count(),
        _ => return Err(Obstacle::new(format!("`wc {}`", arguments.join(" ")))),
    };
    let name = options.operands.first().map(|name| format!(" {name}")).unwrap_or_default();
    Ok(Outcome { output: format!("{count}{name}\n"), code })
}

pub(super) fn sort(shell: &mut Shell<'_>, arguments: &[&str]) -> Done {
    let options = Options::parse("sort", arguments, ("nru", ""), &[])?;
    let (text, code) = content(shell, &options.operands)?;
    let mut lines: Vec<&str> = text.lines().collect();
    let number = |line: &str| {
        let line = line.trim_start();
        let end = line.char_indices().find(|(at, c)| !(c.is_ascii_digit() || *c == '-' && *at == 0));
        line[..end.map_or(line.len(), |(at, _)| at)].parse::<i64>().unwrap_or(0)
    };
    if options.has('n') {
        lines.sort_by(|a, b| number(a).cmp(&number(b)).then(a.cmp(b)));
        if options.has('u') {
            lines.dedup_by_key(|line| number(line));
        }
    } else {
        lines.sort_unstable();
        if options.has('u') {
            lines.dedup();
        }
    }
    if options.has('r') {
        lines.reverse();
    }
    Ok(Outcome { output: lines.iter().map(|line| format!("{line}\n")).collect(), code })
}

pub(super) fn uniq(shell: &mut Shell<'_>, arguments: &[&str]) -> Done {
    let options = Options::parse("uniq", arguments, ("", ""), &[])?;
    let (text, code) = content(shell, &options.operands)?;
    let mut lines: Vec<&str> = text.lines().collect();
    lines.dedup();
    Ok(Outcome { output: lines.iter().map(|line| format!("{line}\n")).collect(), code })
}

/// Evaluates `awk '[/RE/ | NR==N] { print $N, … }'`: fields of lines.
pub(super) fn awk(shell: &mut Shell<'_>, arguments: &[&str]) -> Done {
    let wrong = || Obstacle::new(format!("`awk {}`", arguments.join(" ")));
    let options = Options::parse("awk", arguments, ("", "F"), &[])?;
    let Some((program, operands)) = options.operands.split_first() else { return Err(wrong()) };
    let separator = options.value('F').unwrap_or(" ");
    let separator = if separator == "\\t" { "\t" } else { separator };
    if separator.chars().count() != 1 || separator == "|" {
        return Err(wrong());
    }
    let (condition, action) = program.trim().split_once('{').ok_or_else(wrong)?;
    let action = action.trim_end().strip_suffix('}').ok_or_else(wrong)?.trim().trim_end_matches(';');
    let (action, ends) = match action.split_once(';') {
        Some((action, more)) if more.trim() == "exit" => (action.trim(), true),
        Some(_) => return Err(wrong()),
        None => (action, false),
    };
    let condition = condition.trim();
    let search = match condition.strip_prefix('/').and_then(|text| text.strip_suffix('/')) {
        Some(expression) => {
            Some(Search::new(&[expression], &Syntax { extended: true, ..Syntax::default() })?)
        }
        None => None,
    };
    let line_number =
        condition.strip_prefix("NR").map(|rest| rest.trim_start_matches([' ', '=']).trim().parse::<usize>());
    let line_number = line_number.transpose().map_err(|_| wrong())?;
    if search.is_none() && line_number.is_none() && !condition.is_empty() {
        return Err(wrong());
    }
    let terms = action.strip_prefix("print").ok_or_else(wrong)?.trim();
    let terms = if terms.is_empty() { "$0" } else { terms };
    let terms = terms.split(',').map(Field::parse).collect::<Option<Vec<_>>>().ok_or_else(wrong)?;
    let (text, code) = content(shell, operands)?;
    let mut output = String::new();
    for (at, line) in text.lines().enumerate() {
        if let Some(search) = &search {
            shell.charge(search.cost(line.len()))?;
        }
        let chosen = search.as_ref().is_none_or(|search| search.finds(line))
            && line_number.is_none_or(|wanted| wanted == at + 1);
        if !chosen {
            continue;
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
        if ends {
            break;
        }
    }
    Ok(Outcome { output, code: if code == 0 { 0 } else { 2 } })
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
        _ => return Err(Obstacle::new(format!("`basename {}`", arguments.join(" ")))),
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
    let [path] = arguments else { return Err(Obstacle::new(format!("`dirname {}`", arguments.join(" ")))) };
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

pub(super) fn seq(arguments: &[&str]) -> Done {
    /// Maximum count, more than any loop could use.
    const COUNT_MAX: i64 = 10_000;
    let numbers: Expanded<Vec<i64>> = arguments
        .iter()
        .map(|text| text.parse().map_err(|_| Obstacle::new(format!("`seq {}`", arguments.join(" ")))))
        .collect();
    let (first, step, last) = match numbers?.as_slice() {
        [last] => (1, 1, *last),
        [first, last] => (*first, 1, *last),
        [first, step, last] if *step != 0 => (*first, *step, *last),
        _ => return Err(Obstacle::new(format!("`seq {}`", arguments.join(" ")))),
    };
    let mut output = String::new();
    let mut at = first;
    for count in 0.. {
        if (step > 0 && at > last) || (step < 0 && at < last) {
            break;
        }
        if count >= COUNT_MAX {
            return Err(Obstacle::new(format!("`seq {}`", arguments.join(" "))));
        }
        output.push_str(&format!("{at}\n"));
        at = match at.checked_add(step) {
            Some(next) => next,
            None => break,
        };
    }
    Ok(Outcome::printed(output))
}
