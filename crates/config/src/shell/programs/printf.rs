//! Emulates `echo` and `printf`.

use super::super::INPUT_MAX;
use super::super::expand::Obstacle;
use super::{Done, Outcome};

pub(super) fn echo(arguments: &[&str]) -> Done {
    let (newline, words) = match arguments {
        ["-n", rest @ ..] => ("", rest),
        _ => ("\n", arguments),
    };
    if words.first().is_some_and(|word| matches!(*word, "-e" | "-E" | "-en" | "-ne")) {
        return Err(Obstacle::new("`echo -e`, which shells understand differently,"));
    }
    if words.iter().any(|word| word.contains('\\')) {
        return Err(Obstacle::new("`echo` with a backslash, which shells understand differently,"));
    }
    Ok(Outcome::printed(format!("{}{newline}", words.join(" "))))
}

pub(super) fn printf(arguments: &[&str]) -> Done {
    let arguments = if arguments.first() == Some(&"--") { &arguments[1..] } else { arguments };
    let Some((format, mut values)) = arguments.split_first() else {
        return Ok(Outcome { output: String::new(), code: 2 });
    };
    let unknown = || Obstacle::new(format!("`printf {format}`"));
    let mut output = String::new();
    let mut code = 0;
    loop {
        let before = values.len();
        let mut rest = format.chars();
        while let Some(c) = rest.next() {
            match c {
                '\\' => escape(&mut rest, &mut output).ok_or_else(unknown)?,
                '%' => conversion(&mut rest, &mut values, &mut output, &mut code).ok_or_else(unknown)?,
                c => output.push(c),
            }
            if output.len() > INPUT_MAX {
                return Err(unknown());
            }
        }
        // The format is used again as long as it takes some of the values.
        if values.is_empty() || values.len() == before {
            return Ok(Outcome { output, code });
        }
    }
}

/// Parses an escape behind a backslash.
fn escape(rest: &mut std::str::Chars<'_>, output: &mut String) -> Option<()> {
    output.push(match rest.next() {
        Some('n') => '\n',
        Some('t') => '\t',
        Some('\\') | None => '\\',
        Some('"') => '"',
        Some(_) => return None,
    });
    Some(())
}

/// Parses a conversion behind a percent sign.
fn conversion(
    rest: &mut std::str::Chars<'_>,
    values: &mut &[&str],
    output: &mut String,
    code: &mut u8,
) -> Option<()> {
    let mut c = rest.next()?;
    let zero = c == '0';
    let width = number(rest, &mut c)?.unwrap_or(0);
    if c == '%' {
        output.push('%');
        return Some(());
    }
    let value = match values.split_first() {
        Some((first, others)) => {
            *values = others;
            *first
        }
        None => "",
    };
    output.push_str(&match c {
        's' => format!("{value:>width$}"),
        'd' => {
            let parsed = if value.is_empty() { Ok(0) } else { value.trim().parse::<i64>() };
            let value = parsed.unwrap_or_else(|_| {
                *code = 1;
                0
            });
            if zero { format!("{value:0width$}") } else { format!("{value:width$}") }
        }
        _ => return None,
    });
    Some(())
}

/// Parses a width that begins at `c`, and sets `c` to the character after it.
fn number(rest: &mut std::str::Chars<'_>, c: &mut char) -> Option<Option<usize>> {
    const WIDTH_MAX: usize = 1000;
    let mut value = None;
    while let Some(digit) = c.to_digit(10) {
        value = Some(value.unwrap_or(0) * 10 + digit as usize);
        if value > Some(WIDTH_MAX) {
            return None;
        }
        *c = rest.next()?;
    }
    Some(value)
}
