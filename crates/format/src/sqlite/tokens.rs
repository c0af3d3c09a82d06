//! Splits SQL definitions into words, names, literals and symbols.

/// A token of SQL.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Token {
    /// A keyword or a name without quotes.
    Word(String),
    /// A name or text in quotes.
    Quoted(String),
    /// A number.
    Number(String),
    /// Any other single character.
    Symbol(char),
}

impl Token {
    /// Returns true if this is the given keyword.
    pub(super) fn is(&self, keyword: &str) -> bool {
        matches!(self, Self::Word(word) if word.eq_ignore_ascii_case(keyword))
    }

    /// Returns the name that this token stands for where a name is expected.
    pub(super) fn name(&self) -> Option<&str> {
        match self {
            Self::Word(name) | Self::Quoted(name) => Some(name),
            Self::Number(_) | Self::Symbol(_) => None,
        }
    }
}

/// Splits SQL; an unclosed quote or comment ends with the text.
pub(super) fn split(sql: &str) -> Vec<Token> {
    let mut tokens = Vec::new();
    let mut rest = sql;
    while let Some(first) = rest.chars().next() {
        let after = rest.get(first.len_utf8()..).unwrap_or_default();
        rest = match first {
            _ if first.is_whitespace() => after,
            '-' if after.starts_with('-') => after.split_once('\n').map_or("", |(_, rest)| rest),
            '/' if after.starts_with('*') => after.split_once("*/").map_or("", |(_, rest)| rest),
            '"' | '`' | '\'' => take_quoted(after, first, &mut tokens),
            '[' => take_quoted(after, ']', &mut tokens),
            _ if is_word(first) => take_word(rest, &mut tokens),
            _ => {
                tokens.push(Token::Symbol(first));
                after
            }
        };
    }
    tokens
}

fn is_word(character: char) -> bool {
    character.is_ascii_alphanumeric() || character == '_' || character == '$' || !character.is_ascii()
}

fn take_word<'a>(text: &'a str, tokens: &mut Vec<Token>) -> &'a str {
    let number = text.starts_with(|first: char| first.is_ascii_digit());
    let inside = |character: char| is_word(character) || (number && character == '.');
    let end = text.find(|character| !inside(character)).unwrap_or(text.len());
    let (word, rest) = text.split_at(end);
    tokens.push(if number { Token::Number(word.to_owned()) } else { Token::Word(word.to_owned()) });
    rest
}

/// Consumes text up to a quote; a doubled quote stands for one.
fn take_quoted<'a>(text: &'a str, quote: char, tokens: &mut Vec<Token>) -> &'a str {
    let mut name = String::new();
    let mut rest = text;
    while let Some((before, after)) = rest.split_once(quote) {
        name.push_str(before);
        rest = after;
        match rest.strip_prefix(quote).filter(|_| quote != ']') {
            Some(after) => {
                name.push(quote);
                rest = after;
            }
            None => {
                tokens.push(Token::Quoted(name));
                return rest;
            }
        }
    }
    tokens.push(Token::Quoted(name + rest));
    ""
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sql_is_split_into_tokens() {
        let word = |text: &str| Token::Word(text.to_owned());
        let quoted = |text: &str| Token::Quoted(text.to_owned());
        assert_eq!(
            split("a \"b \"\"c\"/* , */[d]-- x\n'it''s'(1.5) `e`é"),
            [
                word("a"),
                quoted("b \"c"),
                quoted("d"),
                quoted("it's"),
                Token::Symbol('('),
                Token::Number("1.5".to_owned()),
                Token::Symbol(')'),
                quoted("e"),
                word("é"),
            ]
        );
        assert_eq!(split("\"open"), [quoted("open")]);
        assert_eq!(split("a /* open"), [word("a")]);
    }
}
