//! From words to statements.

use super::syntax::{Assignment, Piece, Simple, Statement, Token, What, Word};
use super::words::{Reader, SyntaxError, is_name, is_name_start, is_operator};

type Parsed<T> = Result<T, SyntaxError>;

/// What declares variables: its arguments may be assignments.
const DECLARING: [&str; 5] = ["export", "readonly", "local", "declare", "typeset"];

/// Reads a whole file. As in a shell, what stands before a mistake counts.
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
    /// Statements up to one of these words, which is not taken; up to the end of the text if there are none.
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

    /// Passes empty lines, comments, and here-documents.
    fn pass_lines(&mut self) -> Parsed<()> {
        loop {
            self.pass_blanks();
            if self.peek() != Some('\n') {
                return Ok(());
            }
            self.take();
            for end in std::mem::take(&mut self.documents) {
                loop {
                    let mut line = String::new();
                    while let Some(c) = self.take_raw().filter(|c| *c != '\n') {
                        line.push(c);
                    }
                    if line.trim_start_matches('\t') == end {
                        break;
                    }
                    if self.raw().is_none() {
                        return self.error(format!("`{end}` is missing"));
                    }
                }
            }
        }
    }

    /// The plain word that follows, which is not taken.
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
        match all.pop() {
            Some(only) if all.is_empty() => Ok(only),
            last => {
                all.extend(last);
                Ok(Statement { line, what: What::Beyond { what: "a pipeline", inner: all } })
            }
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
            "[[" => self.condition()?,
            "function" => {
                self.take_keyword(&keyword)?;
                self.pass_blanks();
                self.word()?;
                self.pass_blanks();
                self.function()?
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

    /// A block whose output goes elsewhere is evaluated only if that is nowhere.
    fn after_block(&mut self, statement: Statement) -> Parsed<Statement> {
        let mut redirected = false;
        self.pass_blanks();
        while let Some(effect) = self.redirection()? {
            redirected |= effect;
            self.pass_blanks();
        }
        let line = statement.line;
        Ok(match redirected {
            false => statement,
            true => {
                let what = What::Beyond { what: "a redirection", inner: vec![statement] };
                Statement { line, what }
            }
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
        self.pass_lines()?;
        if name.is_empty() || self.keyword().as_deref() != Some("in") {
            return self.error("only `for NAME in WORDS` is known");
        }
        self.take_keyword("in")?;
        let mut words = Vec::new();
        loop {
            self.pass_blanks();
            match self.peek() {
                Some(c) if !is_operator(c) => words.push(self.word()?),
                _ => break,
            }
        }
        self.take_text(";");
        Ok(What::For { name, words, body: self.body()? })
    }

    /// `do … done`.
    fn body(&mut self) -> Parsed<Vec<Statement>> {
        self.take_keyword("do")?;
        let body = self.list(&["done"])?;
        self.take_keyword("done")?;
        Ok(body)
    }

    /// What follows the name of a function.
    fn function(&mut self) -> Parsed<What> {
        if self.take_text("(") {
            self.pass_blanks();
            if !self.take_text(")") {
                return self.error("`(` does not belong here");
            }
        }
        self.pass_lines()?;
        let inner = vec![self.deeper(Self::command)?];
        Ok(What::Beyond { what: "a function", inner })
    }

    fn condition(&mut self) -> Parsed<What> {
        self.take_text("[[");
        let mut tokens = Vec::new();
        loop {
            self.pass_lines()?;
            if self.take_text("&&") {
                tokens.push(Token::And);
            } else if self.take_text("||") {
                tokens.push(Token::Or);
            } else if self.take_text("(") {
                tokens.push(Token::Open);
            } else if self.take_text(")") {
                tokens.push(Token::Close);
            } else if self.keyword().as_deref() == Some("]]") {
                self.take_text("]]");
                return Ok(What::Condition(tokens));
            } else {
                let word = self.word()?;
                if word.is_empty() {
                    return self.error("`]]` is missing");
                }
                tokens.push(Token::Word(word));
            }
        }
    }

    fn simple(&mut self, line: u32) -> Parsed<Statement> {
        let mut simple = Simple::default();
        let mut declaring = false;
        loop {
            self.pass_blanks();
            if let Some(effect) = self.redirection()? {
                simple.redirected |= effect;
                continue;
            }
            match self.peek() {
                Some('(') if simple.words.len() == 1 && simple.assignments.is_empty() => {
                    let what = self.function()?;
                    return Ok(Statement { line, what });
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
        if simple.words.is_empty() && simple.assignments.is_empty() && !simple.redirected {
            return self.error("a command is missing");
        }
        Ok(Statement { line, what: What::Simple(simple) })
    }

    /// `NAME=value` or `NAME+=value`, if that is what follows.
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

    /// A redirection, if that is what follows; whether it has an effect.
    fn redirection(&mut self) -> Parsed<Option<bool>> {
        let (at, line) = (self.at, self.line);
        if !self.take_text("&>") {
            while self.peek().is_some_and(|c| c.is_ascii_digit()) {
                self.take();
            }
            if !matches!(self.peek(), Some('<' | '>')) {
                (self.at, self.line) = (at, line);
                return Ok(None);
            }
        } else {
            // The `>` belongs to what follows.
            self.at -= 1;
        }
        let operator = ["<<-", "<<", "<&", ">&", ">>", ">|", "<>", "<", ">"]
            .into_iter()
            .find(|text| self.take_text(text));
        self.pass_blanks();
        let target = self.word()?;
        let target = plain_text(&target);
        if matches!(operator, Some("<<" | "<<-")) {
            self.documents.push(target.unwrap_or_default());
            return Ok(Some(true));
        }
        let harmless = match (operator, target.as_deref()) {
            (_, None | Some("")) => return self.error("the target of a redirection is missing"),
            (Some("<&" | ">&"), Some(target)) => target.chars().all(|c| c.is_ascii_digit() || c == '-'),
            (_, Some(target)) => target == "/dev/null",
        };
        Ok(Some(!harmless))
    }
}

/// A word without any quotes or expansions.
pub(super) fn literal(word: &Word) -> Option<&str> {
    match word.as_slice() {
        [Piece::Text { text, quoted: false }] => Some(text),
        _ => None,
    }
}

/// The text of a word without expansions; with some, anything that is no special target.
fn plain_text(word: &Word) -> Option<String> {
    if word.is_empty() {
        return None;
    }
    let text = word.iter().map(|piece| match piece {
        Piece::Text { text, .. } => text.as_str(),
        _ => "?",
    });
    Some(text.collect())
}

/// Whether this can be the name of a variable.
pub(super) fn is_variable(name: &str) -> bool {
    name.starts_with(is_name_start) && name.chars().all(is_name)
}
