//! Splits characters into words: quotes, escapes, `$…`, continued lines, comments.

use super::syntax::{Change, Piece, Statement, Word};

/// Maximum nesting of quotes, expansions and blocks. A site's file needs three or four; each level costs some
/// hundred bytes of stack.
const DEPTH_MAX: u32 = 40;

/// Syntax error and its line.
#[derive(Debug)]
pub(super) struct SyntaxError {
    pub(super) line: u32,
    pub(super) what: String,
}

/// Reads a file character by character.
pub(super) struct Reader {
    chars: Vec<char>,
    pub(super) at: usize,
    pub(super) line: u32,
    depth: u32,
    /// Last lines of the here-documents that follow the current line, and whether tabs may be before them.
    pub(super) documents: Vec<(String, bool)>,
}

/// End of a run of pieces.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum End {
    /// At a blank or an operator: an ordinary word.
    Word,
    /// At `}`.
    Brace,
    /// At `"`.
    Quote,
    /// At `))`.
    Arithmetic,
}

pub(super) fn is_operator(c: char) -> bool {
    matches!(c, ' ' | '\t' | '\n' | ';' | '&' | '|' | '<' | '>' | '(' | ')')
}

pub(super) fn is_name_start(c: char) -> bool {
    c.is_ascii_alphabetic() || c == '_'
}

pub(super) fn is_name(c: char) -> bool {
    c.is_ascii_alphanumeric() || c == '_'
}

impl Reader {
    pub(super) fn new(text: &str, line: u32, depth: u32) -> Self {
        Self { chars: text.chars().collect(), at: 0, line, depth, documents: Vec::new() }
    }

    /// Creates a reader for text found within this one.
    pub(super) fn inner(&self, text: &str, line: u32) -> Self {
        Self::new(text, line, self.depth)
    }

    pub(super) fn error<T>(&self, what: impl Into<String>) -> Result<T, SyntaxError> {
        Err(SyntaxError { line: self.line, what: what.into() })
    }

    /// Runs a function one level deeper.
    pub(super) fn deeper<T>(
        &mut self,
        what: impl FnOnce(&mut Self) -> Result<T, SyntaxError>,
    ) -> Result<T, SyntaxError> {
        if self.depth >= DEPTH_MAX {
            return self.error("it is nested too deeply");
        }
        self.depth += 1;
        let done = what(self);
        self.depth -= 1;
        done
    }

    pub(super) fn raw(&self) -> Option<char> {
        self.chars.get(self.at).copied()
    }

    pub(super) fn take_raw(&mut self) -> Option<char> {
        let c = self.raw()?;
        self.at += 1;
        self.line += u32::from(c == '\n');
        Some(c)
    }

    /// Returns the next character, across continued lines.
    pub(super) fn peek(&mut self) -> Option<char> {
        while self.raw() == Some('\\') && self.chars.get(self.at + 1) == Some(&'\n') {
            self.at += 2;
            self.line += 1;
        }
        self.raw()
    }

    pub(super) fn take(&mut self) -> Option<char> {
        self.peek();
        self.take_raw()
    }

    /// Consumes `text` if it is next.
    pub(super) fn take_text(&mut self, text: &str) -> bool {
        let (at, line) = (self.at, self.line);
        for wanted in text.chars() {
            if self.take() != Some(wanted) {
                (self.at, self.line) = (at, line);
                return false;
            }
        }
        true
    }

    /// True if `text` is next.
    pub(super) fn sees(&mut self, text: &str) -> bool {
        let (at, line) = (self.at, self.line);
        let seen = self.take_text(text);
        (self.at, self.line) = (at, line);
        seen
    }

    /// Skips blanks and a comment, up to the end of the line.
    pub(super) fn pass_blanks(&mut self) {
        while matches!(self.peek(), Some(' ' | '\t')) {
            self.take();
        }
        if self.peek() == Some('#') {
            while self.raw().is_some_and(|c| c != '\n') {
                self.take_raw();
            }
        }
    }

    /// Consumes a name; empty if none is next.
    pub(super) fn name(&mut self) -> String {
        let mut name = String::new();
        while let Some(c) = self.peek() {
            if !(is_name(c) && (!name.is_empty() || is_name_start(c))) {
                break;
            }
            name.push(c);
            self.take();
        }
        name
    }

    /// Parses the word that begins here.
    pub(super) fn word(&mut self) -> Result<Word, SyntaxError> {
        self.pieces(End::Word, false)
    }

    /// Parses pieces up to the end, which is not consumed.
    pub(super) fn pieces(&mut self, end: End, quoted: bool) -> Result<Word, SyntaxError> {
        self.deeper(|reader| reader.pieces_here(end, quoted))
    }

    fn pieces_here(&mut self, end: End, quoted: bool) -> Result<Word, SyntaxError> {
        let mut pieces = Word::new();
        let mut parentheses = 0u32;
        loop {
            let Some(c) = self.peek() else {
                return match end {
                    End::Word => Ok(pieces),
                    End::Brace => self.error("a `}` is missing"),
                    End::Quote => self.error("a closing quote is missing"),
                    End::Arithmetic => self.error("a `))` is missing"),
                };
            };
            match (end, c) {
                (End::Word, c) if is_operator(c) => return Ok(pieces),
                (End::Brace, '}') | (End::Quote, '"') => return Ok(pieces),
                (End::Arithmetic, ')') if parentheses == 0 => return Ok(pieces),
                (End::Arithmetic, '(') => parentheses += 1,
                (End::Arithmetic, ')') => parentheses -= 1,
                _ => {}
            }
            match c {
                '\\' => self.escape(end, quoted, &mut pieces),
                '\'' if !quoted => {
                    self.take();
                    let text = self.single_quoted()?;
                    pieces.push(Piece::Text { text, quoted: true });
                }
                '"' => {
                    self.take();
                    // An empty quoted word is a word.
                    pieces.push(Piece::Text { text: String::new(), quoted: true });
                    pieces.append(&mut self.pieces(End::Quote, true)?);
                    self.take();
                }
                '$' => {
                    let piece = self.deeper(|reader| reader.dollar(quoted))?;
                    pieces.push(piece);
                }
                '`' => {
                    let body = self.deeper(Self::backquoted)?;
                    pieces.push(Piece::Command { body, quoted });
                }
                _ => {
                    self.take();
                    add_text(&mut pieces, c, quoted);
                }
            }
        }
    }

    fn escape(&mut self, end: End, quoted: bool, pieces: &mut Word) {
        self.take();
        match self.raw() {
            None => add_text(pieces, '\\', true),
            Some(c) if !quoted || matches!(c, '$' | '`' | '"' | '\\') || (end == End::Brace && c == '}') => {
                self.take_raw();
                add_text(pieces, c, true);
            }
            Some(_) => add_text(pieces, '\\', true),
        }
    }

    fn single_quoted(&mut self) -> Result<String, SyntaxError> {
        let began = self.line;
        let mut text = String::new();
        loop {
            match self.take_raw() {
                Some('\'') => return Ok(text),
                Some(c) => text.push(c),
                None => {
                    return Err(SyntaxError { line: began, what: "a closing quote is missing".into() });
                }
            }
        }
    }

    fn dollar(&mut self, quoted: bool) -> Result<Piece, SyntaxError> {
        self.take();
        match self.peek() {
            Some('{') => {
                self.take();
                self.braces(quoted)
            }
            Some('(') if self.take_text("((") => {
                let term = self.pieces(End::Arithmetic, true)?;
                if !self.take_text("))") {
                    return self.error("a `))` is missing");
                }
                Ok(Piece::Arithmetic { term })
            }
            Some('(') => {
                self.take();
                let body = self.list_until_parenthesis()?;
                Ok(Piece::Command { body, quoted })
            }
            Some(c) if is_name_start(c) => {
                Ok(Piece::Parameter { name: self.name(), change: Change::None, quoted })
            }
            Some(c @ ('0'..='9' | '@' | '*' | '#' | '?' | '$')) => {
                self.take();
                Ok(Piece::Parameter { name: c.into(), change: Change::None, quoted })
            }
            Some(c @ ('-' | '!')) => {
                self.take();
                Ok(Piece::Beyond(format!("`${c}`")))
            }
            Some('\'') if !quoted => {
                self.take();
                self.single_quoted()?;
                Ok(Piece::Beyond("`$'…'`".into()))
            }
            _ => Ok(Piece::Text { text: "$".into(), quoted: true }),
        }
    }

    /// Parses an expansion behind `${`.
    fn braces(&mut self, quoted: bool) -> Result<Piece, SyntaxError> {
        let length = self.peek() == Some('#') && !self.sees("#}");
        if length {
            self.take();
        }
        let mut name = self.name();
        if name.is_empty() {
            name = self.special();
        }
        let plain = self.take_text("}");
        if plain && !name.is_empty() {
            let change = if length { Change::Length } else { Change::None };
            return Ok(Piece::Parameter { name, change, quoted });
        }
        let colon = !plain && self.take_text(":");
        let operator = if plain { None } else { self.peek() };
        let change = match operator {
            Some(operator @ ('-' | '=' | '+' | '?')) if !length && !name.is_empty() => {
                self.take();
                Change::Otherwise { operator, colon, word: self.pieces(End::Brace, quoted)? }
            }
            Some(operator @ ('%' | '#')) if !length && !colon && !name.is_empty() => {
                self.take();
                let longest = self.peek() == Some(operator);
                if longest {
                    self.take();
                }
                // Quotes around the whole do not quote the pattern.
                Change::Cut { operator, longest, word: self.pieces(End::Brace, false)? }
            }
            _ => {
                if !plain {
                    self.pieces(End::Brace, quoted)?;
                    self.take();
                }
                return Ok(Piece::Beyond(format!("`${{{name}…}}`")));
            }
        };
        self.take();
        Ok(Piece::Parameter { name, change, quoted })
    }

    /// Consumes the name of a positional or special parameter; empty if none is next.
    fn special(&mut self) -> String {
        let mut name = String::new();
        while let Some(c) = self.peek().filter(char::is_ascii_digit) {
            name.push(c);
            self.take();
        }
        if name.is_empty()
            && let Some(c) = self.peek().filter(|c| matches!(c, '@' | '*' | '?' | '$' | '#'))
        {
            name.push(c);
            self.take();
        }
        name
    }

    fn backquoted(&mut self) -> Result<Vec<Statement>, SyntaxError> {
        self.take();
        let line = self.line;
        let mut text = String::new();
        loop {
            match self.take_raw() {
                Some('`') => break,
                Some('\\') => match self.take_raw() {
                    Some(c @ ('`' | '\\' | '$')) => text.push(c),
                    Some(c) => text.extend(['\\', c]),
                    None => text.push('\\'),
                },
                Some(c) => text.push(c),
                None => return Err(SyntaxError { line, what: "a closing backquote is missing".into() }),
            }
        }
        let mut inner = self.inner(&text, line);
        let statements = inner.list(&[])?;
        if inner.peek().is_some() {
            return inner.error("nothing is open that could end here");
        }
        Ok(statements)
    }
}

fn add_text(pieces: &mut Word, c: char, quoted: bool) {
    match pieces.last_mut() {
        Some(Piece::Text { text, quoted: before }) if *before == quoted => text.push(c),
        _ => pieces.push(Piece::Text { text: c.into(), quoted }),
    }
}
