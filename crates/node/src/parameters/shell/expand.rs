//! From words to text: variables, substitutions, fields.

use super::pattern::Pattern;
use super::syntax::{Change, Piece, Statement, What, Word};
use super::{Shell, VALUE_MAX, arithmetic};

/// Why a word has no value here.
pub(super) struct Obstacle(pub(super) String);

type Expanded<T> = Result<T, Obstacle>;

/// Text, and whether it is quoted.
type Fragments = Vec<(String, bool)>;

impl Shell<'_> {
    /// The value of an assignment: never split.
    pub(super) fn value_of(&mut self, word: &Word) -> Expanded<String> {
        let fragments = self.with_homes(word, true)?;
        Ok(fragments.into_iter().map(|(text, _)| text).collect())
    }

    /// A word as a pattern.
    pub(super) fn pattern_of(&mut self, word: &Word) -> Expanded<Pattern> {
        Ok(Pattern::new(&self.fragments(word)?))
    }

    /// The fields of the arguments of a command.
    pub(super) fn fields_of(&mut self, words: &[Word]) -> Expanded<Vec<String>> {
        let mut fields = Vec::new();
        for word in words {
            let fragments = self.with_homes(word, false)?;
            if let Some((text, _)) = fragments
                .iter()
                .find(|(text, quoted)| !quoted && text.contains(['*', '?', '[']) && text != "[")
            {
                return Err(Obstacle(format!("the file name pattern `{text}`")));
            }
            split(fragments, &mut fields);
        }
        Ok(fields)
    }

    /// Fragments with `~` replaced, at the beginning and, in a value, behind colons.
    fn with_homes(&mut self, word: &Word, value: bool) -> Expanded<Fragments> {
        let mut fragments = self.fragments(word)?;
        for (at, piece) in word.iter().enumerate() {
            let Piece::Text { text, quoted: false } = piece else { continue };
            let home = |text: &str| text == "~" || text.starts_with("~/");
            let begins = at == 0 && text.starts_with('~');
            let inside = value && text.contains(":~");
            if !begins && !inside {
                continue;
            }
            let parts: Vec<&str> = if value { text.split(':').collect() } else { vec![text] };
            let mut replaced = Vec::new();
            for (part_at, part) in parts.into_iter().enumerate() {
                let may = part.starts_with('~') && (part_at > 0 || at == 0);
                replaced.push(match part.strip_prefix('~') {
                    Some(rest) if may && home(part) => {
                        format!("{}{rest}", self.get("HOME")?.unwrap_or_default())
                    }
                    Some(_) if may => return Err(Obstacle(format!("`{part}`"))),
                    _ => part.to_owned(),
                });
            }
            // Pieces and fragments go together one by one.
            if let Some((text, _)) = fragments.get_mut(at) {
                *text = replaced.join(":");
            }
        }
        Ok(fragments)
    }

    /// One fragment for each piece.
    fn fragments(&mut self, word: &Word) -> Expanded<Fragments> {
        let mut fragments = Fragments::new();
        let mut len = 0;
        for piece in word {
            let fragment = match piece {
                Piece::Text { text, quoted } => (text.clone(), *quoted),
                Piece::Parameter { name, change, quoted } => self.parameter(name, change, *quoted)?,
                Piece::Command { body, quoted } => {
                    (self.output_of(body)?.trim_end_matches('\n').to_owned(), *quoted)
                }
                Piece::Arithmetic { term } => {
                    let text = self.value_of(term)?;
                    let variable = |name: &str| self.get(name).ok().flatten();
                    let value = arithmetic::evaluate(&text, &variable)
                        .ok_or_else(|| Obstacle(format!("`$(({text}))`")))?;
                    (value.to_string(), true)
                }
                Piece::Beyond(what) => return Err(Obstacle(what.clone())),
            };
            len += fragment.0.len();
            if len > VALUE_MAX {
                return Err(Obstacle(format!("a value of more than {VALUE_MAX} bytes")));
            }
            fragments.push(fragment);
        }
        Ok(fragments)
    }

    fn parameter(&mut self, name: &str, change: &Change, quoted: bool) -> Expanded<(String, bool)> {
        let value = self.get(name)?;
        let text = match change {
            Change::None => value.unwrap_or_default(),
            Change::Length => value.unwrap_or_default().chars().count().to_string(),
            Change::Cut { operator, longest, word } => {
                let value = value.unwrap_or_default();
                self.pattern_of(word)?.cut(&value, *operator, *longest)
            }
            Change::Otherwise { operator, colon, word } => {
                let there = value.filter(|value| !(*colon && value.is_empty()));
                match (operator, there) {
                    ('+', Some(_)) => self.value_of(word)?,
                    ('+', None) => String::new(),
                    (_, Some(value)) => value,
                    ('=', None) => {
                        let value = self.value_of(word)?;
                        self.set(name, Some(value.clone()), self.line);
                        value
                    }
                    ('?', None) => {
                        let words = self.value_of(word)?;
                        return Err(Obstacle(format!("{name}, which is not set ({words})")));
                    }
                    _ => self.value_of(word)?,
                }
            }
        };
        Ok((text, quoted))
    }

    /// The value of a variable, if it has one.
    pub(super) fn get(&self, name: &str) -> Expanded<Option<String>> {
        match self.variables.get(name) {
            None => Ok(None),
            Some(variable) => match &variable.value {
                Some(value) => Ok(Some(value.clone())),
                None => Err(Obstacle(format!("{name}, which has no value since {}", variable.place()))),
            },
        }
    }

    /// What a command would print, for the few that need no process.
    fn output_of(&mut self, body: &[Statement]) -> Expanded<String> {
        let simple = match body {
            [Statement { what: What::Simple(simple), .. }] if !simple.redirected => simple,
            _ => return Err(Obstacle("the output of commands".into())),
        };
        let words = self.fields_of(&simple.words)?;
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        let machine = self.machine;
        let text = match words.as_slice() {
            ["echo", rest @ ..] if !rest.iter().any(|word| word.starts_with('-') || word.contains('\\')) => {
                rest.join(" ")
            }
            ["printf", "%s", text] => (*text).to_owned(),
            ["cat", path] => self.content_of(path)?,
            ["uname"] | ["uname", "-s"] => "Linux".to_owned(),
            ["uname", "-m"] => machine.architecture.clone(),
            ["uname", "-r"] => machine.release.clone(),
            ["uname", "-n"] | ["hostname"] => machine.host.clone(),
            ["hostname", "-s"] => machine.host.split('.').next().unwrap_or_default().to_owned(),
            _ => return Err(Obstacle(format!("the output of `{}`", words.join(" ")))),
        };
        Ok(text)
    }

    fn content_of(&self, path: &str) -> Expanded<String> {
        let full = self.folder.join(path);
        let bytes = self
            .files
            .read(&full, VALUE_MAX as u64)
            .map_err(|error| Obstacle(format!("{}, which can't be read ({error})", full.display())))?;
        String::from_utf8(bytes).map_err(|_| Obstacle(format!("{}, which is no text", full.display())))
    }
}

/// Splits what is not quoted at blanks.
fn split(fragments: Fragments, fields: &mut Vec<String>) {
    let mut field: Option<String> = None;
    for (text, quoted) in fragments {
        if quoted {
            field.get_or_insert_default().push_str(&text);
            continue;
        }
        for c in text.chars() {
            if matches!(c, ' ' | '\t' | '\n') {
                fields.extend(field.take());
            } else {
                field.get_or_insert_default().push(c);
            }
        }
    }
    fields.extend(field);
}
