//! Parses `CREATE TABLE` and `CREATE INDEX` as far as reading needs it: the order of the columns, the alias
//! of the rowid, defaults of columns added later, and the columns of each index.

use super::record::Value;
use super::tokens::{Token, split};

/// Maximum number of columns, as by default in SQLite.
const COLUMNS_MAX: usize = 2000;

/// Maximum length in bytes of a statement that is parsed. Those of repositories have less than a thousand;
/// the limit bounds memory, and the time to compare constraints with each other.
const SQL_MAX: usize = 1 << 16;

/// Parsed `CREATE TABLE` statement.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Definition {
    pub(super) columns: Vec<Column>,
    /// Column that is an alias of the rowid.
    pub(super) rowid_alias: Option<usize>,
    /// Columns of the index of each constraint, in the order in which SQLite numbers them; none for an index
    /// in another order than that of the values.
    pub(super) unique: Vec<Option<Vec<usize>>>,
}

#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Column {
    pub(super) name: String,
    pub(super) default: ColumnDefault,
    is_integer: bool,
    /// True if texts are compared other than by their bytes.
    collated: bool,
}

/// Value of a column in rows that are older than the column.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) enum ColumnDefault {
    #[default]
    Null,
    Integer(i64),
    Text(String),
}

impl ColumnDefault {
    pub(super) fn value(&self) -> Value<'_> {
        match self {
            Self::Null => Value::Null,
            Self::Integer(value) => Value::Integer(*value),
            Self::Text(text) => Value::Text(text.as_bytes()),
        }
    }
}

/// Parses a `CREATE TABLE` statement.
pub(super) fn parse_table(sql: &str) -> Result<Definition, &'static str> {
    if sql.len() > SQL_MAX {
        return Err("it is too long");
    }
    let tokens = split(sql);
    if !tokens.first().is_some_and(|token| token.is("create")) {
        return Err("it is not a CREATE statement");
    }
    if tokens.iter().take_while(|token| **token != Token::Symbol('(')).any(|token| token.is("virtual")) {
        return Err("it is a virtual table");
    }
    let (body, after) = parenthesised(&tokens).ok_or("it has no list of columns")?;
    if after.iter().any(|token| token.is("without")) {
        return Err("it has no rowids");
    }
    let mut definition = Definition::default();
    let items = split_commas(body);
    for item in &items {
        if !is_table_constraint(item) {
            definition.add_column(item)?;
        }
    }
    // Constraints number their indexes in the order of the text, and columns precede table constraints.
    for item in &items {
        if is_table_constraint(item) {
            definition.add_constraints(item);
        }
    }
    Ok(definition)
}

/// Parses a `CREATE INDEX` statement; none if its order is not that of plain values of all rows, or if
/// parsing would take too long.
pub(super) fn parse_index(sql: &str, definition: &Definition) -> Option<Vec<usize>> {
    if sql.len() > SQL_MAX {
        return None;
    }
    let tokens = split(sql);
    let (body, after) = parenthesised(&tokens)?;
    if !after.is_empty() {
        return None;
    }
    definition.plain_columns(body)
}

impl Definition {
    fn position(&self, name: &str) -> Option<usize> {
        self.columns.iter().position(|column| column.name.eq_ignore_ascii_case(name))
    }

    fn add_column(&mut self, item: &[Token]) -> Result<(), &'static str> {
        let (name, rest) = item.split_first().ok_or("it has an empty column")?;
        let name = name.name().ok_or("it has a column without a name")?;
        if self.columns.len() >= COLUMNS_MAX {
            return Err("it has too many columns");
        }
        let type_len = rest.iter().position(starts_constraint).unwrap_or(rest.len());
        let (type_name, constraints) = rest.split_at_checked(type_len).unwrap_or((rest, &[]));
        let is_integer = matches!(type_name, [word] if word.name().is_some_and(|name| name.eq_ignore_ascii_case("integer")));
        let index = self.columns.len();
        self.columns.push(Column { name: name.to_owned(), is_integer, ..Column::default() });
        self.add_column_constraints(index, constraints)
    }

    fn add_column_constraints(&mut self, index: usize, tokens: &[Token]) -> Result<(), &'static str> {
        let top_level = top_level(tokens);
        // The collation determines the order of the index of a constraint before it.
        let collated = top_level
            .windows(2)
            .any(|pair| matches!(pair, [word, name] if word.is("collate") && !is_binary(name)));
        let mut default = ColumnDefault::Null;
        for (at, token) in top_level.iter().enumerate() {
            let next = |step: usize| top_level.get(at + step).copied();
            if token.is("generated") || (token.is("as") && next(1) == Some(&Token::Symbol('('))) {
                return Err("it has a generated column");
            } else if token.is("primary") {
                let descending = next(2).is_some_and(|token| token.is("desc"));
                let is_integer = self.columns.get(index).is_some_and(|column| column.is_integer);
                if is_integer && !descending {
                    self.rowid_alias = Some(index);
                } else {
                    self.add_unique((!descending && !collated).then(|| vec![index]));
                }
            } else if token.is("unique") {
                self.add_unique((!collated).then(|| vec![index]));
            } else if token.is("default") {
                default = literal(next(1), next(2));
            }
        }
        if let Some(column) = self.columns.get_mut(index) {
            column.default = default;
            column.collated = collated;
        }
        Ok(())
    }

    /// Adds table constraints, which may follow each other without a comma.
    fn add_constraints(&mut self, item: &[Token]) {
        let mut rest = item;
        while let Some((token, after)) = rest.split_first() {
            if token.is("primary") || token.is("unique") {
                let Some((body, after)) = parenthesised(after) else { return };
                self.add_table_unique(body, token.is("primary"));
                rest = after;
            } else if *token == Token::Symbol('(') {
                rest = parenthesised(rest).map_or(&[], |(_, after)| after);
            } else {
                rest = after;
            }
        }
    }

    fn add_table_unique(&mut self, body: &[Token], primary: bool) {
        let single = body.first().and_then(|token| self.position(token.name()?));
        let is_alias = primary
            && split_commas(body).len() == 1
            && single.and_then(|index| self.columns.get(index)).is_some_and(|column| column.is_integer);
        if is_alias {
            self.rowid_alias = single;
        } else {
            let columns = self.plain_columns(body);
            self.add_unique(columns);
        }
    }

    /// Adds a unique index; SQLite makes no second index for the same columns.
    fn add_unique(&mut self, columns: Option<Vec<usize>>) {
        if columns.is_none() || !self.unique.contains(&columns) {
            self.unique.push(columns);
        }
    }

    /// Returns the columns of an index if each is a plain ascending column without collation.
    fn plain_columns(&self, body: &[Token]) -> Option<Vec<usize>> {
        let columns = split_commas(body).into_iter().map(|item| {
            let (name, order) = item.split_first()?;
            let plain = match order {
                [] => true,
                [word] => word.is("asc"),
                _ => false,
            };
            let index = self.position(name.name()?)?;
            (plain && !self.columns.get(index)?.collated).then_some(index)
        });
        columns.collect()
    }
}

fn is_binary(name: &Token) -> bool {
    name.name().is_some_and(|name| name.eq_ignore_ascii_case("binary"))
}

fn literal(first: Option<&Token>, second: Option<&Token>) -> ColumnDefault {
    let integer = |text: &str, sign: i64| {
        text.parse::<i64>()
            .map_or(ColumnDefault::Null, |value| ColumnDefault::Integer(value.saturating_mul(sign)))
    };
    match (first, second) {
        (Some(Token::Number(text)), _) => integer(text, 1),
        (Some(Token::Symbol('-')), Some(Token::Number(text))) => integer(text, -1),
        (Some(Token::Symbol('+')), Some(Token::Number(text))) => integer(text, 1),
        (Some(Token::Quoted(text)), _) => ColumnDefault::Text(text.clone()),
        _ => ColumnDefault::Null,
    }
}

fn is_table_constraint(item: &[Token]) -> bool {
    let words = ["constraint", "primary", "unique", "check", "foreign"];
    item.first().is_some_and(|token| words.iter().any(|word| token.is(word)))
}

fn starts_constraint(token: &Token) -> bool {
    let words = [
        "constraint",
        "primary",
        "not",
        "null",
        "unique",
        "check",
        "default",
        "collate",
        "references",
        "generated",
        "as",
    ];
    words.iter().any(|word| token.is(word))
}

/// Returns the tokens inside the first parentheses, and those after them.
fn parenthesised(tokens: &[Token]) -> Option<(&[Token], &[Token])> {
    let start = tokens.iter().position(|token| *token == Token::Symbol('('))?;
    let inner = tokens.get(start + 1..)?;
    let mut depth = 0usize;
    for (index, token) in inner.iter().enumerate() {
        match token {
            Token::Symbol('(') => depth += 1,
            Token::Symbol(')') if depth == 0 => return Some((inner.get(..index)?, inner.get(index + 1..)?)),
            Token::Symbol(')') => depth -= 1,
            _ => {}
        }
    }
    None
}

/// Splits at commas outside of parentheses.
fn split_commas(tokens: &[Token]) -> Vec<&[Token]> {
    let mut depth = 0i64;
    tokens
        .split(|token| {
            match token {
                Token::Symbol('(') => depth += 1,
                Token::Symbol(')') => depth -= 1,
                _ => {}
            }
            depth == 0 && *token == Token::Symbol(',')
        })
        .collect()
}

/// Returns the tokens outside of parentheses, with the opening parentheses.
fn top_level(tokens: &[Token]) -> Vec<&Token> {
    let mut depth = 0i64;
    let mut kept = Vec::new();
    for token in tokens {
        if *token == Token::Symbol(')') {
            depth -= 1;
        } else if depth == 0 {
            kept.push(token);
        }
        if *token == Token::Symbol('(') {
            depth += 1;
        }
    }
    kept
}
