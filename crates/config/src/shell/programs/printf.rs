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
        Some('r') => '\r',
        Some('\\') | None => '\\',
        Some('"') => '"',
        Some('\'') => '\'',
        Some(c @ '0'..='7') => {
            let mut code = c.to_digit(8)?;
            for _ in 0..2 {
                let mut ahead = rest.clone();
                let Some(digit) = ahead.next().and_then(|c| c.to_digit(8)) else { break };
                code = code * 8 + digit;
                *rest = ahead;
            }
            // Bytes that are no characters can't stand in a value.
            char::from_u32(code).filter(char::is_ascii)?
        }
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
    let (mut left, mut zero) = (false, false);
    while matches!(c, '-' | '0') {
        (left, zero) = (left || c == '-', zero || c == '0');
        c = rest.next()?;
    }
    let width = number(rest, &mut c)?.unwrap_or(0);
    let precision = if c == '.' {
        c = rest.next()?;
        Some(number(rest, &mut c)?.unwrap_or(0))
    } else {
        None
    };
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
    let text = match c {
        's' => value.chars().take(precision.unwrap_or(usize::MAX)).collect(),
        'c' => value.chars().take(1).collect(),
        'd' | 'i' | 'u' | 'x' | 'X' | 'o' if precision.is_none() => {
            let parsed = if value.is_empty() { Ok(0) } else { value.trim().parse::<i64>() };
            let value = parsed.unwrap_or_else(|_| {
                *code = 1;
                0
            });
            match c {
                'x' => format!("{value:x}"),
                'X' => format!("{value:X}"),
                'o' => format!("{value:o}"),
                _ => value.to_string(),
            }
        }
        _ => return None,
    };
    let fill = width.saturating_sub(text.chars().count());
    let zero = zero && !left && !matches!(c, 's' | 'c');
    if zero {
        let (sign, digits) = text.strip_prefix('-').map_or(("", text.as_str()), |digits| ("-", digits));
        output.push_str(&format!("{sign}{}{digits}", "0".repeat(fill)));
    } else if left {
        output.push_str(&format!("{text}{}", " ".repeat(fill)));
    } else {
        output.push_str(&format!("{}{text}", " ".repeat(fill)));
    }
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
