//! Regular expressions as POSIX and GNU write them.
//!
//! They are translated for the `regex` crate, whose searches take time that is linear in the text. Back-references have
//! no such search and are not supported.

use regex::{Regex, RegexBuilder};

use super::expand::{Expanded, Obstacle};

/// Bytes of a compiled expression, and of the tables of its search.
const SIZE_MAX: usize = 256 * 1024;
/// Maximum length of an expression.
const LENGTH_MAX: usize = 4096;

/// Syntax of a regular expression.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Syntax {
    /// `-E`: extended syntax.
    pub(super) extended: bool,
    /// `-F`: fixed strings.
    pub(super) fixed: bool,
    /// `-i`: ignore case.
    pub(super) any_case: bool,
    /// `-w`: whole words.
    pub(super) words: bool,
    /// `-x`: whole lines.
    pub(super) lines: bool,
}

/// A compiled search.
pub(super) struct Search {
    regex: Regex,
    /// Maximum cost of a byte of text, relative to reading it.
    weight: usize,
}

impl Search {
    /// Makes a search for any of these expressions.
    pub(super) fn new(expressions: &[&str], syntax: &Syntax) -> Expanded<Self> {
        let what = || format!("the regular expression `{}`", expressions.join(" "));
        let mut parts = Vec::new();
        let mut weight = 8;
        for expression in expressions.iter().flat_map(|expressions| expressions.split('\n')) {
            if expression.len() > LENGTH_MAX {
                return Err(Obstacle::new("a regular expression that is so long"));
            }
            let part = if syntax.fixed {
                regex::escape(expression)
            } else {
                let mut translation = Translation::new(expression, syntax.extended);
                let part = translation.all().ok_or_else(|| Obstacle::new(what()))?;
                weight = translation.repeats.saturating_mul(weight);
                part
            };
            weight = weight.saturating_add(part.len());
            parts.push(format!("(?:{part})"));
        }
        let mut whole = if parts.len() == 1 { parts.remove(0) } else { format!("(?:{})", parts.join("|")) };
        if syntax.words && !syntax.lines {
            whole = format!(r"(?:^|[^\w]){whole}(?:$|[^\w])");
        }
        if syntax.lines {
            whole = format!("^{whole}$");
        }
        let regex = RegexBuilder::new(&whole)
            .case_insensitive(syntax.any_case)
            .size_limit(SIZE_MAX)
            .dfa_size_limit(SIZE_MAX)
            .build()
            .map_err(|_| Obstacle::new(what()))?;
        Ok(Self { regex, weight: weight / 8 })
    }

    /// Returns the cost of searching this many bytes.
    pub(super) fn cost(&self, bytes: usize) -> usize {
        // Compiling it costs as well.
        bytes.saturating_add(512).saturating_mul(self.weight)
    }

    pub(super) fn finds(&self, text: &str) -> bool {
        self.regex.is_match(text)
    }

    pub(super) fn regex(&self) -> &Regex {
        &self.regex
    }
}

/// Translation from POSIX syntax to that of the regex library.
struct Translation {
    chars: Vec<char>,
    at: usize,
    extended: bool,
    out: String,
    /// Number of open groups.
    open: u32,
    /// The product of all repetitions: how much longer the expression is than it looks.
    repeats: usize,
    /// Repetition of the last part.
    repeated: Option<char>,
}

impl Translation {
    fn new(expression: &str, extended: bool) -> Self {
        Self {
            chars: expression.chars().collect(),
            at: 0,
            extended,
            out: String::new(),
            open: 0,
            repeats: 1,
            repeated: None,
        }
    }

    /// Returns the translated expression; `None` if it is wrong or can't be translated.
    fn all(&mut self) -> Option<String> {
        // Whether an anchor or a repetition would stand at the beginning of an alternative.
        let mut begins = true;
        while let Some(c) = self.take() {
            let (c, escaped) = if c == '\\' { (self.take()?, true) } else { (c, false) };
            let special = |c: char| match c {
                '(' | ')' | '|' | '{' | '+' | '?' => self.extended != escaped,
                '*' | '^' | '$' | '.' | '[' => !escaped,
                _ => false,
            };
            let is_special = special(c);
            match c {
                '(' if is_special => {
                    self.out.push('(');
                    self.open += 1;
                    begins = true;
                    continue;
                }
                ')' if is_special && self.open > 0 => {
                    self.out.push(')');
                    self.open -= 1;
                }
                ')' if is_special && !self.extended => return None,
                '|' if is_special => {
                    self.out.push('|');
                    begins = true;
                    continue;
                }
                '*' | '+' | '?' if is_special && !begins => {
                    self.repeat(&c.to_string())?;
                    continue;
                }
                '{' if is_special && !begins => {
                    let interval = self.interval()?;
                    self.repeat(&interval)?;
                    continue;
                }
                // At the beginning they stand for themselves in the basic syntax, and for nothing in the other.
                '*' | '+' | '?' | '{' if is_special && self.extended => continue,
                '^' if is_special && (begins || self.extended) => {
                    self.out.push('^');
                    continue;
                }
                '$' if is_special && (self.extended || self.ends()) => self.out.push('$'),
                '.' if is_special => self.out.push('.'),
                '[' if is_special => self.bracket()?,
                'w' | 'W' | 's' | 'S' | 'b' | 'B' if escaped => self.out.extend(['\\', c]),
                '<' if escaped => self.out.push_str(r"\b{start}"),
                '>' if escaped => self.out.push_str(r"\b{end}"),
                'n' if escaped => self.out.push('\n'),
                't' if escaped => self.out.push('\t'),
                '`' | '\'' if escaped => return None,
                '1'..='9' if escaped => return None,
                c => self.out.push_str(&regex::escape(c.encode_utf8(&mut [0; 4]))),
            }
            begins = false;
            self.repeated = None;
        }
        (self.open == 0).then(|| self.out.clone())
    }

    fn take(&mut self) -> Option<char> {
        let c = self.chars.get(self.at).copied()?;
        self.at += 1;
        Some(c)
    }

    /// True if an alternative ends here, in the basic syntax.
    fn ends(&self) -> bool {
        matches!(self.chars[self.at..], [] | ['\\', ')' | '|', ..])
    }

    /// Adds a repetition. Nested repetitions are merged into one.
    fn repeat(&mut self, how: &str) -> Option<()> {
        match (self.repeated.take(), how.chars().next()?) {
            (None, first) => {
                self.out.push_str(how);
                self.repeated = Some(first);
            }
            (Some('{'), _) | (_, '{') => return None,
            (Some(before), first) => {
                let both = if before == first { first } else { '*' };
                self.out.pop();
                self.out.push(both);
                self.repeated = Some(both);
            }
        }
        Some(())
    }

    /// Parses `m,n}` behind `{`.
    fn interval(&mut self) -> Option<String> {
        let mut text = String::from("{");
        loop {
            match self.take()? {
                '\\' if !self.extended && self.chars.get(self.at) == Some(&'}') => {}
                '}' => break,
                c if c.is_ascii_digit() || c == ',' => text.push(c),
                _ => return None,
            }
        }
        let numbers = text[1..].split(',').filter_map(|number| number.parse::<usize>().ok());
        let most = numbers.max().unwrap_or(1);
        if most > 1000 || text[1..].starts_with(',') && text.len() == 2 {
            return None;
        }
        self.repeats = self.repeats.saturating_mul(most.max(1));
        // No lower bound is 0.
        Some(format!("{}}}", text.replace("{,", "{0,")))
    }

    /// Parses a set of characters behind `[`.
    fn bracket(&mut self) -> Option<()> {
        self.out.push('[');
        if self.chars.get(self.at) == Some(&'^') {
            self.at += 1;
            self.out.push('^');
        }
        let mut first = true;
        loop {
            let c = self.take()?;
            match c {
                ']' if !first => break,
                '[' if matches!(self.chars.get(self.at), Some(':' | '.' | '=')) => {
                    let rest: String = self.chars[self.at..].iter().collect();
                    let end = rest.find(":]")?;
                    let name = rest.strip_prefix(':')?.get(..end.checked_sub(1)?)?;
                    let known = [
                        "alnum", "alpha", "blank", "cntrl", "digit", "graph", "lower", "print", "punct",
                        "space", "upper", "xdigit",
                    ];
                    if !known.contains(&name) {
                        return None;
                    }
                    self.out.push_str(&format!("[:{name}:]"));
                    self.at += name.chars().count() + 3;
                }
                '-' if first || self.chars.get(self.at) == Some(&']') => self.out.push_str(r"\-"),
                '-' => self.out.push('-'),
                c if c.is_alphanumeric() => self.out.push(c),
                c => {
                    if c.is_ascii_punctuation() && !matches!(c, '<' | '>') {
                        self.out.push('\\');
                    }
                    self.out.push(c);
                }
            }
            first = false;
        }
        self.out.push(']');
        Some(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn finds(expression: &str, extended: bool, text: &str) -> Option<bool> {
        let syntax = Syntax { extended, ..Syntax::default() };
        Search::new(&[expression], &syntax).ok().map(|search| search.finds(text))
    }

    #[test]
    fn basic_and_extended_expressions_differ_as_in_grep() {
        for (expression, extended, text, found) in [
            (r"wheezy\|jessie", false, "jessie/sid", true),
            (r"wheezy|jessie", false, "jessie/sid", false),
            ("wheezy|jessie", true, "jessie/sid", true),
            ("a+", false, "aa", false),
            (r"a\+$", false, "baa", true),
            ("*a", false, "*a", true),
            (r"^\(ab\)\{2\}c", false, "ababc", true),
            ("^(ab){2}c", true, "ababc", true),
            ("a{2}", false, "aa", false),
            ("a^b", false, "a^b", true),
            ("a$b", false, "a$b", true),
            ("a.c", false, "abc", true),
            (r"a\.c", true, "abc", false),
            ("[]a]", false, "]", true),
            ("[^]a]", false, "]", false),
            (r"[\.]", false, r"\", true),
            ("[[:digit:]x-]$", true, "a-", true),
            ("[a&&b~[]", true, "&", true),
            (r"\<run\>", false, "to run it", true),
            (r"\<run\>", false, "trunk", false),
            (r"^ID=\(debian\|ubuntu\)$", false, "ID=ubuntu", true),
            ("^$", false, "", true),
            ("()x", true, "x", true),
            ("^a+?b*+$", true, "bb", true),
            ("[<>]", true, ">", true),
        ] {
            assert_eq!(finds(expression, extended, text), Some(found), "{expression} {text}");
        }
        for wrong in [r"\(a\)\1", r"\(a", "[a", "[[:]", "[[.a.]]", r"a\{2000\}", r"a\{1\}*", r"a\"] {
            assert_eq!(finds(wrong, false, "a"), None, "{wrong}");
        }
        // It would take hundreds of megabytes.
        assert_eq!(finds(r"((a{1,1000}){1,1000}){1,1000}", true, "a"), None);
    }
}
