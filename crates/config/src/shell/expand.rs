//! Expands words to text: variables, substitutions, fields.

use esker_format::glob::Glob;

use super::syntax::{Change, Piece, Word};
use super::{Shell, VALUE_MAX, arithmetic};

/// Reason why an expression has no value here.
pub(super) struct NoValue {
    pub(super) what: String,
    /// Problem that was already reported for this cause.
    pub(super) cause: Option<usize>,
}

impl NoValue {
    pub(super) fn new(what: impl Into<String>) -> Self {
        Self { what: what.into(), cause: None }
    }
}

pub(super) type Expanded<T> = Result<T, NoValue>;

/// A part of an expanded word.
pub(super) struct Fragment {
    text: String,
    quoted: bool,
}

/// Positions in which `~` stands for a home.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Tilde {
    Nowhere,
    /// At the beginning of a word.
    Word,
    /// At the beginning of a value and after colons.
    Value,
}

impl Shell<'_> {
    /// Returns the value of an assignment: never split.
    pub(super) fn value_of(&mut self, word: &Word) -> Expanded<String> {
        let fragments = self.fragments(word, Tilde::Value)?;
        Ok(fragments.into_iter().map(|fragment| fragment.text).collect())
    }

    /// Converts a word to a pattern.
    pub(super) fn pattern_of(&mut self, word: &Word) -> Expanded<Glob<char>> {
        let fragments = self.fragments(word, Tilde::Nowhere)?;
        Ok(glob(fragments.iter().map(|it| (it.text.as_str(), it.quoted))))
    }

    /// Returns the fields of a command's arguments.
    pub(super) fn fields_of(&mut self, words: &[Word]) -> Expanded<Vec<String>> {
        let mut fields = Vec::new();
        for word in words {
            let fragments = self.fragments(word, Tilde::Word)?;
            if is_pattern(&fragments) {
                let text: String = fragments.into_iter().map(|fragment| fragment.text).collect();
                return Err(NoValue::new(format!("the file name pattern `{text}`")));
            }
            fields.append(&mut split(&fragments));
        }
        Ok(fields)
    }

    fn fragments(&mut self, word: &Word, tilde: Tilde) -> Expanded<Vec<Fragment>> {
        let mut fragments = Vec::new();
        let mut len = 0;
        for (at, piece) in word.iter().enumerate() {
            let before = fragments.len();
            match piece {
                Piece::Text { text, quoted: false } if tilde != Tilde::Nowhere => {
                    let text = self.with_homes(text, at == 0, tilde)?;
                    fragments.push(Fragment { text, quoted: false });
                }
                Piece::Text { text, quoted } => {
                    fragments.push(Fragment { text: text.clone(), quoted: *quoted });
                }
                Piece::Parameter { name, change, quoted: false }
                    if let Some(word) = self.alternative(name, change)? =>
                {
                    // Quoted parts in it are not split.
                    fragments.append(&mut self.fragments(word, Tilde::Word)?);
                }
                Piece::Parameter { name, change, quoted } => {
                    let text = self.parameter(name, change)?;
                    fragments.push(Fragment { text, quoted: *quoted });
                }
                Piece::Command { body, quoted } => {
                    let text = self.output_of(body)?.trim_end_matches('\n').to_owned();
                    fragments.push(Fragment { text, quoted: *quoted });
                }
                Piece::Arithmetic { term } => {
                    let text = self.value_of(term)?;
                    let value = self.arithmetic(&text)?.to_string();
                    fragments.push(Fragment { text: value, quoted: true });
                }
                Piece::Beyond(what) => return Err(NoValue::new(what.clone())),
            }
            len += fragments[before..].iter().map(|it| it.text.len()).sum::<usize>();
            if len > VALUE_MAX {
                return Err(NoValue::new(format!("a value of more than {VALUE_MAX} bytes")));
            }
        }
        self.charge(len)?;
        Ok(fragments)
    }

    /// Returns the word that replaces a parameter, if it applies: `-` for one without a value, `+` for one with
    /// a value.
    fn alternative<'w>(&self, name: &str, change: &'w Change) -> Expanded<Option<&'w Word>> {
        let Change::Otherwise { operator: operator @ ('-' | '+'), colon, word } = change else {
            return Ok(None);
        };
        let there = self.get(name)?.is_some_and(|value| !(*colon && value.is_empty()));
        Ok(Some(word).filter(|_| there == (*operator == '+')))
    }

    /// Replaces `~` at the beginning and, in a value, after colons.
    fn with_homes(&self, text: &str, first: bool, tilde: Tilde) -> Expanded<String> {
        if !text.contains('~') {
            return Ok(text.to_owned());
        }
        let parts: Vec<&str> = if tilde == Tilde::Value { text.split(':').collect() } else { vec![text] };
        let mut replaced = Vec::new();
        for (at, part) in parts.into_iter().enumerate() {
            let may = part.starts_with('~') && (at > 0 || first);
            replaced.push(match part.strip_prefix('~') {
                Some(rest) if may && (rest.is_empty() || rest.starts_with('/')) => {
                    format!("{}{rest}", self.get("HOME")?.unwrap_or_default())
                }
                Some(_) if may => return Err(NoValue::new(format!("`{part}`"))),
                _ => part.to_owned(),
            });
        }
        Ok(replaced.join(":"))
    }

    /// Returns the value of a term of `$((…))`.
    pub(super) fn arithmetic(&self, text: &str) -> Expanded<i64> {
        // A name without a value counts as 0.
        let variable = |name: &str| self.get(name).ok().map(Option::unwrap_or_default);
        arithmetic::evaluate(text, &variable).ok_or_else(|| NoValue::new(format!("`$(({text}))`")))
    }

    fn parameter(&mut self, name: &str, change: &Change) -> Expanded<String> {
        let value = self.get(name)?;
        Ok(match change {
            Change::None => value.unwrap_or_default(),
            Change::Length => value.unwrap_or_default().chars().count().to_string(),
            Change::Cut { operator, longest, word } => {
                let value = value.unwrap_or_default();
                let pattern = self.pattern_of(word)?;
                self.charge(value.len().saturating_mul(value.len().max(pattern.part_count())) / 16)?;
                cut(&pattern, &value, *operator, *longest)
            }
            Change::Otherwise { operator, colon, word } => {
                let there = value.filter(|value| !(*colon && value.is_empty()));
                match (operator, there) {
                    ('+', Some(_)) => self.value_of(word)?,
                    ('+', None) => String::new(),
                    (_, Some(value)) => value,
                    ('=', None) => {
                        let value = self.value_of(word)?;
                        self.set(name, value.clone(), self.line);
                        value
                    }
                    ('?', None) => {
                        let words = self.value_of(word)?;
                        return Err(NoValue::new(format!("{name}, which is not set ({words})")));
                    }
                    _ => self.value_of(word)?,
                }
            }
        })
    }

    /// Returns the value of a variable or special parameter, if it has one.
    pub(super) fn get(&self, name: &str) -> Expanded<Option<String>> {
        match name {
            // There are no positional parameters.
            "#" => return Ok(Some("0".to_owned())),
            "@" | "*" => return Ok(None),
            "?" => return Ok(Some(self.last.to_string())),
            "$" => return Ok(Some(self.machine.process.to_string())),
            "0" => return Ok(Some("sh".to_owned())),
            _ => {}
        }
        match self.variables.get(name) {
            None => Ok(None),
            Some(variable) => match &variable.value {
                Some(value) => Ok(Some(value.clone())),
                None => Err(NoValue {
                    what: format!("{name}, which has no value since {}", variable.place()),
                    cause: variable.cause,
                }),
            },
        }
    }
}

/// Parses fragments of text as a pattern; quoted ones are literal.
fn glob<'t>(fragments: impl Iterator<Item = (&'t str, bool)>) -> Glob<char> {
    let elements = fragments.flat_map(|(text, quoted)| text.chars().map(move |c| (c, quoted)));
    Glob::new(&elements.collect::<Vec<_>>())
}

/// Returns `text` without the matching end (`%`) or beginning (`#`).
fn cut(pattern: &Glob<char>, text: &str, operator: char, longest: bool) -> String {
    let chars: Vec<char> = text.chars().collect();
    let fits = |at: &usize| pattern.fits(if operator == '%' { &chars[*at..] } else { &chars[..*at] });
    // The longest end begins first; the longest beginning ends last.
    let forward = (operator == '%') == longest;
    let found = if forward { (0..=chars.len()).find(fits) } else { (0..=chars.len()).rev().find(fits) };
    match found {
        Some(at) if operator == '%' => chars[..at].iter().collect(),
        Some(at) => chars[at..].iter().collect(),
        None => text.to_owned(),
    }
}

/// Returns true if an unquoted part has a character of file name patterns.
fn is_pattern(fragments: &[Fragment]) -> bool {
    let unquoted = fragments.iter().filter(|fragment| !fragment.quoted);
    let text: String = unquoted.map(|fragment| fragment.text.as_str()).collect();
    text.contains(['*', '?']) || text.find('[').is_some_and(|at| text[at..].contains(']'))
}

/// Splits unquoted text at blanks.
fn split(fragments: &[Fragment]) -> Vec<String> {
    let mut fields = Vec::new();
    let mut open: Option<String> = None;
    for fragment in fragments {
        if fragment.quoted {
            open.get_or_insert_default().push_str(&fragment.text);
            continue;
        }
        for c in fragment.text.chars() {
            match c {
                ' ' | '\t' | '\n' => fields.extend(open.take()),
                c => open.get_or_insert_default().push(c),
            }
        }
    }
    fields.extend(open);
    fields
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cutting_removes_the_shortest_or_longest_match() {
        let cut = |pattern: &str, operator, longest| {
            cut(&glob([(pattern, false)].into_iter()), "wn12.cluster.example.org", operator, longest)
        };
        assert_eq!(cut(".*", '%', false), "wn12.cluster.example");
        assert_eq!(cut(".*", '%', true), "wn12");
        assert_eq!(cut("*.", '#', false), "cluster.example.org");
        assert_eq!(cut("*.", '#', true), "org");
        assert_eq!(cut("x", '#', true), "wn12.cluster.example.org");
    }
}
