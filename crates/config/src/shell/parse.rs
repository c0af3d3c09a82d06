//! Parses words into statements.

use super::syntax::{Assignment, Piece, Redirection, Simple, Statement, What, Word};
use super::words::{Reader, SyntaxError, is_name, is_name_start, is_operator};

type Parsed<T> = Result<T, SyntaxError>;

/// Commands that declare variables: their arguments may be assignments.
const DECLARING: [&str; 2] = ["export", "readonly"];

/// Parses a whole file. As in a shell, the statements before a mistake count.
pub(super) fn parse(text: &str) -> (Vec<Statement>, Option<SyntaxError>) {
    let mut reader = Reader::new(text, 1, 0);
    let mut statements = Vec::new();
    loop {
        match reader.next_statement(&[]) {
            Ok(Some(statement)) => statements.push(statement),
            Ok(None) if reader.peek().is_none() => return (statements, None),
            Ok(None) => {
                let error =
                    SyntaxError { line: reader.line, what: "nothing is open that could end here".into() };
                return (statements, Some(error));
            }
            Err(error) => return (statements, Some(error)),
        }
    }
}

impl Reader {
    /// Parses statements up to one of these words, which is not consumed, or to the end of the text.
    pub(super) fn list(&mut self, ends: &[&str]) -> Parsed<Vec<Statement>> {
        let mut statements = Vec::new();
        while let Some(statement) = self.next_statement(ends)? {
            statements.push(statement);
        }
        if self.peek().is_none() && !ends.is_empty() {
            return self.error(format!("`{}` is missing", ends[0]));
        }
        Ok(statements)
    }

    pub(super) fn list_until_parenthesis(&mut self) -> Parsed<Vec<Statement>> {
        let statements = self.list(&[")"])?;
        if !self.take_text(")") {
            return self.error("`)` is missing");
        }
        Ok(statements)
    }

    fn next_statement(&mut self, ends: &[&str]) -> Parsed<Option<Statement>> {
        self.pass_lines()?;
        match self.peek() {
            None => return Ok(None),
            Some(')') => return Ok(None),
            Some(';') if self.sees(";;") => return Ok(None),
            Some(';' | '&' | '|') => return self.error("a command is missing"),
            Some(_) => {}
        }
        if self.keyword().is_some_and(|word| ends.contains(&word.as_str())) {
            return Ok(None);
        }
        let statement = self.deeper(Self::chain)?;
        self.pass_blanks();
        match self.peek() {
            Some(';') if !self.sees(";;") => {
                self.take();
            }
            Some('&') => {
                self.take();
                let line = statement.line;
                let what = What::Beyond { what: "a command in the background", inner: vec![statement] };
                return Ok(Some(Statement { line, what }));
            }
            None | Some('\n' | ')' | ';') => {}
            Some(c) => return self.error(format!("`{c}` does not belong here")),
        }
        Ok(Some(statement))
    }

    /// Skips empty lines, comments, and here-documents.
    fn pass_lines(&mut self) -> Parsed<()> {
        loop {
            self.pass_blanks();
            if self.peek() != Some('\n') {
                return Ok(());
            }
            self.take();
            for (end, strip) in std::mem::take(&mut self.documents) {
                self.pass_document(&end, strip)?;
            }
        }
    }

    /// Skips the lines of a here-document.
    fn pass_document(&mut self, end: &str, strip: bool) -> Parsed<()> {
        loop {
            let mut line = String::new();
            while let Some(c) = self.take_raw().filter(|c| *c != '\n') {
                line.push(c);
            }
            let line = if strip { line.trim_start_matches('\t') } else { line.as_str() };
            if line == end {
                return Ok(());
            }
            if self.raw().is_none() {
                return self.error(format!("`{end}` is missing"));
            }
        }
    }

    /// Returns the next plain word without consuming it.
    fn keyword(&mut self) -> Option<String> {
        let (at, line) = (self.at, self.line);
        let mut word = String::new();
        while let Some(c) = self.peek().filter(|c| !is_operator(*c)) {
            word.push(c);
            self.take();
        }
        (self.at, self.line) = (at, line);
        (!word.is_empty()).then_some(word)
    }

    fn take_keyword(&mut self, wanted: &str) -> Parsed<()> {
        self.pass_lines()?;
        if self.keyword().as_deref() == Some(wanted) {
            self.take_text(wanted);
            return Ok(());
        }
        self.error(format!("`{wanted}` is missing"))
    }

    fn chain(&mut self) -> Parsed<Statement> {
        let first = self.pipeline()?;
        let mut rest = Vec::new();
        loop {
            self.pass_blanks();
            let and = self.take_text("&&");
            if !and && !self.take_text("||") {
                break;
            }
            self.pass_lines()?;
            rest.push((and, self.pipeline()?));
        }
        if rest.is_empty() {
            return Ok(first);
        }
        Ok(Statement { line: first.line, what: What::Chain(Box::new(first), rest) })
    }

    fn pipeline(&mut self) -> Parsed<Statement> {
        let line = self.line;
        if self.keyword().as_deref() == Some("!") {
            self.take();
            self.pass_blanks();
            let inner = self.deeper(Self::pipeline)?;
            return Ok(Statement { line, what: What::Not(Box::new(inner)) });
        }
        let mut all = vec![self.command()?];
        self.pass_blanks();
        while self.peek() == Some('|') && !self.sees("||") {
            self.take();
            self.pass_lines()?;
            all.push(self.command()?);
            self.pass_blanks();
        }
        match all.len() {
            1 => Ok(all.remove(0)),
            // Its stages run in subshells, which set nothing here.
            _ => Ok(Statement { line, what: What::Beyond { what: "a pipeline", inner: Vec::new() } }),
        }
    }

    fn command(&mut self) -> Parsed<Statement> {
        self.pass_blanks();
        let line = self.line;
        let keyword = self.keyword().unwrap_or_default();
        let what = match keyword.as_str() {
            "if" => self.if_block()?,
            "case" => self.case_block()?,
            "for" => self.for_block()?,
            "while" | "until" => {
                self.take_keyword(&keyword)?;
                let mut inner = self.list(&["do"])?;
                inner.append(&mut self.body()?);
                What::Beyond { what: "a loop", inner }
            }
            "{" => {
                self.take_keyword("{")?;
                let inner = self.list(&["}"])?;
                self.take_keyword("}")?;
                What::Group(inner)
            }
            "then" | "else" | "elif" | "fi" | "do" | "done" | "esac" | "}" => {
                return self.error(format!("`{keyword}` does not belong here"));
            }
            _ if self.peek() == Some('(') => {
                self.take();
                What::Subshell(self.list_until_parenthesis()?)
            }
            _ => return self.simple(line),
        };
        self.after_block(Statement { line, what })
    }

    /// Parses the redirections behind a block.
    fn after_block(&mut self, statement: Statement) -> Parsed<Statement> {
        let mut redirections = Vec::new();
        self.pass_blanks();
        while let Some(redirection) = self.redirection()? {
            redirections.push(redirection);
            self.pass_blanks();
        }
        let line = statement.line;
        Ok(match redirections.is_empty() {
            true => statement,
            false => Statement { line, what: What::Redirected(Box::new(statement), redirections) },
        })
    }

    fn if_block(&mut self) -> Parsed<What> {
        let mut branches = Vec::new();
        let mut otherwise = Vec::new();
        self.take_keyword("if")?;
        loop {
            let condition = self.list(&["then"])?;
            self.take_keyword("then")?;
            let body = self.list(&["fi", "elif", "else"])?;
            branches.push((condition, body));
            match self.keyword().as_deref() {
                Some("elif") => self.take_keyword("elif")?,
                Some("else") => {
                    self.take_keyword("else")?;
                    otherwise = self.list(&["fi"])?;
                    break;
                }
                _ => break,
            }
        }
        self.take_keyword("fi")?;
        Ok(What::If { branches, otherwise })
    }

    fn case_block(&mut self) -> Parsed<What> {
        self.take_keyword("case")?;
        self.pass_blanks();
        let word = self.word()?;
        self.take_keyword("in")?;
        let mut arms = Vec::new();
        loop {
            self.pass_lines()?;
            if self.keyword().as_deref() == Some("esac") {
                break;
            }
            self.take_text("(");
            let mut patterns = Vec::new();
            loop {
                self.pass_blanks();
                patterns.push(self.word()?);
                self.pass_blanks();
                match self.take() {
                    Some('|') => {}
                    Some(')') => break,
                    _ => return self.error("a `)` behind the pattern of a `case` is missing"),
                }
            }
            let body = self.list(&["esac"])?;
            arms.push((patterns, body));
            self.take_text(";;");
        }
        self.take_keyword("esac")?;
        Ok(What::Case { word, arms })
    }

    fn for_block(&mut self) -> Parsed<What> {
        self.take_keyword("for")?;
        self.pass_blanks();
        let name = self.name();
        if name.is_empty() {
            return self.error("the name behind `for` is missing");
        }
        self.pass_lines()?;
        if self.keyword().as_deref() != Some("in") {
            self.take_text(";");
        } else {
            self.take_keyword("in")?;
            self.pass_blanks();
            while self.peek().is_some_and(|c| !is_operator(c)) {
                self.word()?;
                self.pass_blanks();
            }
            self.take_text(";");
        }
        let assignments = vec![Assignment { line: self.line, name, append: false, value: Word::new() }];
        let variable = What::Simple(Simple { assignments, ..Simple::default() });
        let mut inner = vec![Statement { line: self.line, what: variable }];
        inner.append(&mut self.body()?);
        Ok(What::Beyond { what: "a loop", inner })
    }

    /// Parses `do … done`.
    fn body(&mut self) -> Parsed<Vec<Statement>> {
        self.take_keyword("do")?;
        let body = self.list(&["done"])?;
        self.take_keyword("done")?;
        Ok(body)
    }

    /// Parses a function behind its name.
    fn function(&mut self) -> Parsed<What> {
        self.take();
        self.pass_blanks();
        if !self.take_text(")") {
            return self.error("`(` does not belong here");
        }
        self.pass_lines()?;
        Ok(What::Beyond { what: "a function", inner: vec![self.deeper(Self::command)?] })
    }

    fn simple(&mut self, line: u32) -> Parsed<Statement> {
        let mut simple = Simple::default();
        let mut declaring = false;
        loop {
            self.pass_blanks();
            if let Some(redirection) = self.redirection()? {
                simple.redirections.push(redirection);
                continue;
            }
            match self.peek() {
                Some('(') if simple.words.len() == 1 && simple.assignments.is_empty() => {
                    return Ok(Statement { line, what: self.function()? });
                }
                Some(c) if !is_operator(c) => {}
                _ => break,
            }
            if simple.words.is_empty() {
                if let Some(assignment) = self.assignment()? {
                    simple.assignments.push(assignment);
                    continue;
                }
            } else if declaring && let Some(assignment) = self.assignment()? {
                simple.declared.push(assignment);
                continue;
            }
            let word = self.word()?;
            if simple.words.is_empty() {
                declaring = literal(&word).is_some_and(|name| DECLARING.contains(&name));
            }
            simple.words.push(word);
        }
        if simple.words.is_empty() && simple.assignments.is_empty() && simple.redirections.is_empty() {
            return self.error("a command is missing");
        }
        Ok(Statement { line, what: What::Simple(simple) })
    }

    /// Parses `NAME=value` or `NAME+=value`, if it is next.
    fn assignment(&mut self) -> Parsed<Option<Assignment>> {
        let (at, line) = (self.at, self.line);
        let name = self.name();
        let append = self.take_text("+=");
        if name.is_empty() || !(append || self.take_text("=")) {
            (self.at, self.line) = (at, line);
            return Ok(None);
        }
        let value = if self.take_text("(") {
            // A list, which only some shells have.
            while !self.take_text(")") {
                self.pass_lines()?;
                if self.peek().is_none() || self.word()?.is_empty() && self.peek() != Some(')') {
                    return self.error("a `)` is missing");
                }
            }
            vec![Piece::Beyond("a list in parentheses".into())]
        } else {
            self.word()?
        };
        Ok(Some(Assignment { line, name, append, value }))
    }

    /// Parses a redirection, if it is next.
    fn redirection(&mut self) -> Parsed<Option<Redirection>> {
        let (at, line) = (self.at, self.line);
        let both = self.take_text("&>");
        let mut number = String::new();
        if both {
            // The `>` belongs to the next token.
            self.at -= 1;
        } else {
            while let Some(c) = self.peek().filter(char::is_ascii_digit) {
                number.push(c);
                self.take();
            }
            if !matches!(self.peek(), Some('<' | '>')) {
                (self.at, self.line) = (at, line);
                return Ok(None);
            }
        }
        let operator = ["<<<", "<<-", "<<", "<&", ">&", ">>", ">|", "<>", "<", ">"]
            .into_iter()
            .find(|text| self.take_text(text))
            .unwrap_or_default();
        self.pass_blanks();
        let target = self.word()?;
        if target.is_empty() {
            return self.error("the target of a redirection is missing");
        }
        let text = plain_text(&target);
        Ok(Some(match operator {
            "<<" | "<<-" => {
                self.documents.push((text, operator == "<<-"));
                Redirection::Beyond
            }
            ">" | ">>" | ">|" => match (text.as_str(), number.as_str()) {
                ("/dev/null", "2") => Redirection::Harmless,
                ("/dev/null", "" | "1") => Redirection::Discard,
                _ => Redirection::Beyond,
            },
            ">&" => match (text.as_str(), number.as_str()) {
                ("2" | "-", "" | "1") => Redirection::Discard,
                ("1" | "2" | "-", "2") | ("1", "" | "1") => Redirection::Harmless,
                _ => Redirection::Beyond,
            },
            _ => Redirection::Beyond,
        }))
    }
}

/// Returns the text of a word without any quotes or expansions.
pub(super) fn literal(word: &Word) -> Option<&str> {
    match word.as_slice() {
        [Piece::Text { text, quoted: false }] => Some(text),
        _ => None,
    }
}

/// Returns the text of a word without expansions; for a word with expansions, a text that is no special target.
fn plain_text(word: &Word) -> String {
    let text = word.iter().map(|piece| match piece {
        Piece::Text { text, .. } => text.as_str(),
        _ => "?",
    });
    text.collect()
}

/// Returns true if the text is a valid variable name.
pub(super) fn is_variable(name: &str) -> bool {
    name.starts_with(is_name_start) && name.chars().all(is_name)
}
