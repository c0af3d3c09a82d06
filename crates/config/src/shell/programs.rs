//! Emulates programs that inspect files and the machine, without executing them.

use regex::RegexBuilder;

use super::Shell;
use super::expand::{Expanded, NoValue};

/// Bytes of a compiled expression, and of the tables of its search.
const EXPRESSION_SIZE_MAX: usize = 256 * 1024;

/// Output and status of a program.
pub(super) struct Outcome {
    pub(super) output: String,
    pub(super) code: u8,
}

impl Outcome {
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
        "grep" => grep(shell, arguments),
        "echo" => echo(arguments),
        "cat" => cat(shell, arguments),
        "uname" => uname(shell, arguments),
        "hostname" => hostname(shell, arguments),
        "id" => id(shell, arguments),
        _ => Err(NoValue::new(format!("the command `{name}`"))),
    }
}

/// Returns the obstacle of a program with unsupported arguments.
fn unsupported(name: &str, arguments: &[&str]) -> NoValue {
    NoValue::new(format!("`{name} {}`", arguments.join(" ")))
}

/// Returns the letters of the options, and the operands.
fn options<'a, 'w>(name: &str, arguments: &'a [&'w str], known: &str) -> Expanded<(String, &'a [&'w str])> {
    let is_option = |argument: &&str| argument.len() > 1 && argument.starts_with('-');
    let end = arguments.iter().position(|argument| !is_option(argument)).unwrap_or(arguments.len());
    let (given, operands) = arguments.split_at(end);
    let letters: String = given.iter().map(|argument| &argument[1..]).collect();
    // An option behind an operand counts as well.
    if letters.contains(|letter| !known.contains(letter)) || operands.iter().any(is_option) {
        return Err(unsupported(name, arguments));
    }
    Ok((letters, operands))
}

/// Evaluates `grep [-q] [-E] [-i] EXPRESSION FILE`.
fn grep(shell: &mut Shell<'_>, arguments: &[&str]) -> Done {
    let (letters, operands) = options("grep", arguments, "qEi")?;
    let &[expression, path] = operands else { return Err(unsupported("grep", arguments)) };
    let what = || NoValue::new(format!("the regular expression `{expression}`"));
    let translated = translated(expression, letters.contains('E')).ok_or_else(what)?;
    let regex = RegexBuilder::new(&translated)
        .case_insensitive(letters.contains('i'))
        .size_limit(EXPRESSION_SIZE_MAX)
        .dfa_size_limit(EXPRESSION_SIZE_MAX)
        .build()
        .map_err(|_| what())?;
    let Some(text) = shell.content(path)? else { return Ok(Outcome { output: String::new(), code: 2 }) };
    shell.charge((text.len() + 512).saturating_mul(1 + translated.len() / 8))?;
    let found: Vec<&str> = text.lines().filter(|line| regex.is_match(line)).collect();
    let code = u8::from(found.is_empty());
    let output = match letters.contains('q') {
        true => String::new(),
        false => found.iter().map(|line| format!("{line}\n")).collect(),
    };
    Ok(Outcome { output, code })
}

/// Translates a POSIX expression to the syntax of the regex library.
///
/// Returns `None` for what the two read differently or POSIX leaves open: intervals, classes, back-references, escaped
/// letters, repeated repetitions, and anchors or repetitions in odd places.
fn translated(expression: &str, extended: bool) -> Option<String> {
    let mut out = String::new();
    let mut rest = expression.chars();
    // Whether an alternative begins, and whether the last part may be repeated.
    let (mut begins, mut repeatable) = (true, false);
    while let Some(c) = rest.next() {
        let (c, escaped) = if c == '\\' { (rest.next()?, true) } else { (c, false) };
        let special = match c {
            '(' | ')' | '|' | '{' | '}' | '+' | '?' => extended != escaped,
            '*' | '^' | '$' | '.' | '[' | ']' => !escaped,
            _ => false,
        };
        match c {
            '(' | '|' if special => (begins, repeatable) = (true, false),
            ')' if special && !begins => repeatable = true,
            '*' | '+' | '?' if special && repeatable => repeatable = false,
            '^' if special && begins && !out.ends_with('^') => {
                out.push('^');
                continue;
            }
            '$' if special && matches!(rest.as_str().get(..1), None | Some("|")) => repeatable = false,
            '$' if special && rest.as_str().starts_with("\\|") && !extended => repeatable = false,
            '[' if special => {
                let (set, behind) = rest.as_str().split_once(']')?;
                let plain = set.strip_prefix('^').unwrap_or(set);
                let is_plain =
                    |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.' | '/' | ' ');
                if plain.is_empty() || !plain.chars().all(is_plain) {
                    return None;
                }
                out.push_str(&format!("[{set}]"));
                rest = behind.chars();
                (begins, repeatable) = (false, true);
                continue;
            }
            '.' if special => (begins, repeatable) = (false, true),
            c if special || escaped && c.is_alphanumeric() => return None,
            c => {
                out.push_str(&regex::escape(c.encode_utf8(&mut [0; 4])));
                (begins, repeatable) = (false, true);
                continue;
            }
        }
        out.push(c);
    }
    Some(out)
}

fn cat(shell: &mut Shell<'_>, arguments: &[&str]) -> Done {
    let (_, operands) = options("cat", arguments, "")?;
    if operands.is_empty() || operands.contains(&"-") {
        return Err(unsupported("cat", arguments));
    }
    let mut outcome = Outcome { output: String::new(), code: 0 };
    for path in operands {
        match shell.content(path)? {
            Some(text) => outcome.output.push_str(&text),
            None => outcome.code = 1,
        }
    }
    Ok(outcome)
}

fn echo(arguments: &[&str]) -> Done {
    let text = arguments.join(" ");
    if text.contains('\\') {
        return Err(NoValue::new("`echo` with a backslash, which shells understand differently,"));
    }
    match arguments.first() {
        Some(option) if option.starts_with('-') => Err(unsupported("echo", arguments)),
        _ => Ok(Outcome::line(text)),
    }
}

fn uname(shell: &Shell<'_>, arguments: &[&str]) -> Done {
    let machine = shell.machine;
    let (letters, operands) = options("uname", arguments, "snrvmo")?;
    if !operands.is_empty() {
        return Ok(Outcome { output: String::new(), code: 1 });
    }
    let parts = [
        ('s', "Linux"),
        ('n', &machine.host),
        ('r', &machine.release),
        ('v', &machine.version),
        ('m', &machine.architecture),
        ('o', "GNU/Linux"),
    ];
    let wanted = |letter: char| letters.contains(letter) || letters.is_empty() && letter == 's';
    let parts = parts.iter().filter(|(letter, _)| wanted(*letter));
    Ok(Outcome::line(parts.map(|(_, part)| *part).collect::<Vec<_>>().join(" ")))
}

fn hostname(shell: &mut Shell<'_>, arguments: &[&str]) -> Done {
    let host = &shell.machine.host;
    Ok(Outcome::line(match arguments {
        [] => host.clone(),
        ["-s"] => host.split('.').next().unwrap_or_default().to_owned(),
        ["-f"] => full_name(shell)?,
        ["-d"] => full_name(shell)?.split_once('.').map(|(_, domain)| domain.to_owned()).unwrap_or_default(),
        _ => return Err(unsupported("hostname", arguments)),
    }))
}

/// Evaluates `hostname -f`: the first name of the host in `/etc/hosts`, else that of the resolver.
fn full_name(shell: &mut Shell<'_>) -> Expanded<String> {
    let text = shell.content("/etc/hosts")?.unwrap_or_default();
    let host = &shell.machine.host;
    for line in text.lines() {
        let names: Vec<&str> =
            line.split('#').next().unwrap_or_default().split_whitespace().skip(1).collect();
        if names.iter().any(|name| name.eq_ignore_ascii_case(host)) {
            return Ok(names[0].to_owned());
        }
    }
    if host.contains('.') {
        return Ok(host.clone());
    }
    let found = shell.machine.full_name.and_then(|ask| ask(host));
    found
        .ok_or_else(|| NoValue::new("`hostname -f`, since the full name of this machine can't be found out,"))
}

fn id(shell: &Shell<'_>, arguments: &[&str]) -> Done {
    match arguments {
        ["-u"] => Ok(Outcome::line(shell.machine.user.to_string())),
        ["-g"] => Ok(Outcome::line(shell.machine.group.to_string())),
        _ => Err(unsupported("id", arguments)),
    }
}

#[cfg(test)]
mod tests {
    use super::translated;

    /// Regular expressions are translated where POSIX and the library agree, and refused elsewhere.
    #[test]
    fn basic_and_extended_expressions_differ_as_in_grep() {
        for (expression, extended, text, found) in [
            (r"wheezy\|jessie", false, "jessie/sid", true),
            (r"wheezy|jessie", false, "jessie/sid", false),
            ("wheezy|jessie", true, "jessie/sid", true),
            ("a+", false, "aa", false),
            (r"a\+$", false, "baa", true),
            (r"^\(ab\)\+c", false, "ababc", true),
            ("^(ab)+c$", true, "ababc", true),
            ("a{2}", false, "aa", false),
            ("a.c", false, "abc", true),
            (r"a\.c", true, "abc", false),
            ("^ID=[a-z]*$", false, "ID=ubuntu", true),
            ("[^0-9.]", false, "9.4", false),
            (r"^ID=\(debian\|ubuntu\)$", false, "ID=ubuntu", true),
            ("^$", false, "", true),
            ("^x$|^y", true, "y z", true),
            ("a&&b~", true, "a&&b~", true),
        ] {
            let regex = regex::Regex::new(&translated(expression, extended).expect(expression));
            assert_eq!(regex.expect(expression).is_match(text), found, "{expression} {text}");
        }
        for (refused, extended) in [
            (r"\(a\)\1", false),
            (r"a\{2\}", false),
            ("a{2}", true),
            ("[[:digit:]]", false),
            ("[]a]", false),
            ("[a", false),
            ("a**", false),
            ("a+?", true),
            ("*a", false),
            ("a^b", false),
            ("a$b", false),
            (r"\w", false),
            ("()", true),
            ("a\\", false),
        ] {
            assert_eq!(translated(refused, extended), None, "{refused}");
        }
    }
}
