//! Emulates `grep`.

use super::super::Shell;
use super::super::regexp::{Search, Syntax};
use super::{Done, Options, Outcome, content, unsupported};

pub(super) fn grep(shell: &mut Shell<'_>, arguments: &[&str]) -> Done {
    let options = Options::parse("grep", arguments, "qEFivwxsco", "e")?;
    let Some((patterns, operands)) = options.expressions() else {
        return Ok(Outcome { output: String::new(), code: 2 });
    };
    let syntax = Syntax {
        extended: options.has('E'),
        fixed: options.has('F'),
        any_case: options.has('i'),
        words: options.has('w'),
        lines: options.has('x'),
    };
    // With several files, `grep` prints their names.
    if operands.len() > 1 && !options.has('q')
        || options.has('o') && (syntax.words || syntax.lines || options.has('v'))
    {
        return Err(unsupported("grep", arguments));
    }
    let search = Search::new(&patterns, &syntax)?;
    let (text, all) = content(shell, operands)?;
    shell.charge(search.cost(text.len()))?;
    let found: Vec<&str> = text.lines().filter(|line| search.finds(line) != options.has('v')).collect();
    let mut output = String::new();
    if options.has('q') {
        if !found.is_empty() {
            return Ok(Outcome { output, code: 0 });
        }
    } else if options.has('c') {
        // There is no count of a file that is missing.
        if all {
            output = format!("{}\n", found.len());
        }
    } else if options.has('o') {
        let parts = found.iter().flat_map(|line| search.regex().find_iter(line));
        parts
            .filter(|part| !part.is_empty())
            .for_each(|part| output.push_str(&format!("{}\n", part.as_str())));
    } else {
        output = found.iter().map(|line| format!("{line}\n")).collect();
    }
    let code = if all { u8::from(found.is_empty()) } else { 2 };
    Ok(Outcome { output, code })
}
