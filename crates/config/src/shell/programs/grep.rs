//! Emulates `grep`.

use super::super::Shell;
use super::super::expand::Obstacle;
use super::super::regexp::{Search, Syntax};
use super::{Done, Options, Outcome, contents};

const LONG: [(&str, char); 17] = [
    ("quiet", 'q'),
    ("silent", 'q'),
    ("extended-regexp", 'E'),
    ("basic-regexp", 'G'),
    ("fixed-strings", 'F'),
    ("ignore-case", 'i'),
    ("invert-match", 'v'),
    ("word-regexp", 'w'),
    ("line-regexp", 'x'),
    ("no-messages", 's'),
    ("count", 'c'),
    ("files-with-matches", 'l'),
    ("only-matching", 'o'),
    ("no-filename", 'h'),
    ("with-filename", 'H'),
    ("line-number", 'n'),
    ("max-count", 'm'),
];

pub(super) fn grep(shell: &mut Shell<'_>, name: &str, arguments: &[&str]) -> Done {
    let options = Options::parse(name, arguments, ("qEGFivwxsyclohHnaI", "em"), &LONG)?;
    let Some((patterns, operands)) = options.expressions() else {
        return Ok(Outcome { output: String::new(), code: 2 });
    };
    let syntax = Syntax {
        extended: options.has('E') || name == "egrep",
        fixed: options.has('F') || name == "fgrep",
        any_case: options.has('i') || options.has('y'),
        words: options.has('w'),
        lines: options.has('x'),
    };
    if options.has('o') && (syntax.words || syntax.lines || options.has('v')) {
        return Err(Obstacle::new(format!("`{name} -o` with -w, -x or -v")));
    }
    let search = Search::new(&patterns, &syntax)?;
    let most = match options.value('m').map(str::parse) {
        None => usize::MAX,
        Some(Ok(most)) => most,
        Some(Err(_)) => return Ok(Outcome { output: String::new(), code: 2 }),
    };
    let (texts, all) = contents(shell, operands)?;
    let names = !options.has('h') && (options.has('H') || operands.len() > 1);
    let mut output = String::new();
    let mut any = false;
    for (file, text) in &texts {
        shell.charge(search.cost(text.len()))?;
        let prefix = if names { format!("{file}:") } else { String::new() };
        let mut count = 0usize;
        for (at, line) in text.lines().enumerate() {
            if count >= most {
                break;
            }
            if search.finds(line) == options.has('v') {
                continue;
            }
            count += 1;
            if options.has('q') {
                return Ok(Outcome { output: String::new(), code: 0 });
            }
            if options.has('c') || options.has('l') {
                continue;
            }
            let number = if options.has('n') { format!("{}:", at + 1) } else { String::new() };
            if options.has('o') {
                for found in search.regex().find_iter(line).filter(|found| !found.is_empty()) {
                    output.push_str(&format!("{prefix}{number}{}\n", found.as_str()));
                }
            } else {
                output.push_str(&format!("{prefix}{number}{line}\n"));
            }
        }
        any |= count > 0;
        if options.has('c') && !options.has('q') {
            output.push_str(&format!("{prefix}{count}\n"));
        } else if options.has('l') && count > 0 {
            output.push_str(&format!("{file}\n"));
        }
    }
    let code = match (all, any) {
        (false, _) => 2,
        (true, true) => 0,
        (true, false) => 1,
    };
    Ok(Outcome { output, code })
}
