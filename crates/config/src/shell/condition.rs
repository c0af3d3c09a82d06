//! `[ … ]`, `test` and `[[ … ]]`.

use super::Shell;
use super::expand::Obstacle;
use super::regexp::{Search, Syntax};
use super::syntax::{Token, Word};
use crate::files::Probe;

type Tested = Result<bool, Wrong>;

/// Reason why a test has no outcome.
enum Wrong {
    /// The arguments of `test` are invalid, which a shell reports before it continues with failure.
    Number,
    Obstacle(Obstacle),
}

impl From<Obstacle> for Wrong {
    fn from(obstacle: Obstacle) -> Self {
        Self::Obstacle(obstacle)
    }
}

/// Maximum nesting of tests.
const DEPTH_MAX: u32 = 40;

fn beyond(text: impl std::fmt::Display) -> Wrong {
    Wrong::Obstacle(Obstacle::new(format!("the test `{text}`")))
}

/// Returns the outcome, `None` where a number is illegal.
fn outcome(tested: Tested) -> Result<Option<bool>, Obstacle> {
    match tested {
        Ok(it) => Ok(Some(it)),
        Err(Wrong::Number) => Ok(None),
        Err(Wrong::Obstacle(obstacle)) => Err(obstacle),
    }
}

impl Shell<'_> {
    /// Evaluates `test` with these arguments; `None` for an invalid number.
    pub(super) fn test(&self, words: &[String]) -> Result<Option<bool>, Obstacle> {
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        outcome(self.test_words(&words, 0))
    }

    /// Evaluates by the number of arguments, as POSIX requires.
    fn test_words(&self, words: &[&str], depth: u32) -> Tested {
        if depth > DEPTH_MAX {
            return Err(beyond("of so many parts"));
        }
        match words {
            [] => Ok(false),
            [word] => Ok(!word.is_empty()),
            ["!", word] => Ok(word.is_empty()),
            [operator, word] => self.unary(operator, word),
            [left, operator, right] if is_binary(operator) => self.binary(left, operator, right),
            ["!", rest @ ..] if rest.len() <= 3 => self.test_words(rest, depth + 1).map(|it| !it),
            _ => {
                for (operator, any) in [("-o", true), ("-a", false)] {
                    if let Some(at) = words.iter().position(|word| *word == operator)
                        && at > 0
                    {
                        let left = self.test_words(&words[..at], depth + 1)?;
                        let right = self.test_words(&words[at + 1..], depth + 1)?;
                        return Ok(if any { left || right } else { left && right });
                    }
                }
                match words {
                    ["!", rest @ ..] => self.test_words(rest, depth + 1).map(|it| !it),
                    ["(", inner @ .., ")"] => self.test_words(inner, depth + 1),
                    _ if words.iter().any(|word| matches!(*word, "-nt" | "-ot" | "-ef" | "=~")) => {
                        Err(beyond(words.join(" ")))
                    }
                    _ => Err(Wrong::Number),
                }
            }
        }
    }

    fn unary(&self, operator: &str, word: &str) -> Tested {
        let probe = match operator {
            // There is no terminal.
            "-t" => return Ok(false),
            "-n" => return Ok(!word.is_empty()),
            "-z" => return Ok(word.is_empty()),
            "-e" => Probe::Exists,
            "-f" => Probe::File,
            "-d" => Probe::Folder,
            "-s" => Probe::NotEmpty,
            "-h" | "-L" => Probe::Link,
            "-r" => Probe::Readable,
            "-w" => Probe::Writable,
            "-x" => Probe::Executable,
            "-a" | "-b" | "-c" | "-g" | "-k" | "-p" | "-u" | "-S" | "-O" | "-G" | "-N" | "-o" | "-R"
            | "-v" => {
                return Err(beyond(format!("{operator} {word}")));
            }
            _ => return Err(Wrong::Number),
        };
        Ok(!word.is_empty() && self.files.probe(&self.folder.join(word), probe))
    }

    fn binary(&self, left: &str, operator: &str, right: &str) -> Tested {
        if matches!(operator, "=" | "==" | "!=") {
            return Ok((left == right) == (operator != "!="));
        }
        if matches!(operator, "<" | ">") {
            return Ok(if operator == "<" { left < right } else { left > right });
        }
        let number = |text: &str| text.trim().parse::<i64>().map_err(|_| Wrong::Number);
        let order = number(left)?.cmp(&number(right)?);
        Ok(match operator {
            "-eq" => order.is_eq(),
            "-ne" => order.is_ne(),
            "-lt" => order.is_lt(),
            "-le" => order.is_le(),
            "-gt" => order.is_gt(),
            _ => order.is_ge(),
        })
    }

    /// Evaluates `[[ … ]]`.
    pub(super) fn condition(&mut self, tokens: &[Token]) -> Result<bool, Obstacle> {
        let mut rest = tokens;
        let tested = self.any(&mut rest, true, 0).and_then(|value| match rest.is_empty() {
            true => Ok(value),
            false => Err(beyond("[[ … ]]")),
        });
        Ok(outcome(tested)?.unwrap_or(false))
    }

    /// Evaluates alternatives; `wanted` is false where the result is known and evaluation must stop.
    fn any(&mut self, rest: &mut &[Token], wanted: bool, depth: u32) -> Tested {
        let mut value = self.all(rest, wanted, depth)?;
        while let [Token::Or, next @ ..] = *rest {
            *rest = next;
            value |= self.all(rest, wanted && !value, depth)?;
        }
        Ok(value)
    }

    fn all(&mut self, rest: &mut &[Token], wanted: bool, depth: u32) -> Tested {
        let mut value = self.one(rest, wanted, depth)?;
        while let [Token::And, next @ ..] = *rest {
            *rest = next;
            value &= self.one(rest, wanted && value, depth)?;
        }
        Ok(value)
    }

    fn one(&mut self, rest: &mut &[Token], wanted: bool, depth: u32) -> Tested {
        if depth > DEPTH_MAX {
            return Err(beyond("of so many parts"));
        }
        if let [Token::Open, next @ ..] = *rest {
            *rest = next;
            let value = self.any(rest, wanted, depth + 1)?;
            let [Token::Close, next @ ..] = *rest else { return Err(beyond("[[ ( … ]]")) };
            *rest = next;
            return Ok(value);
        }
        let len = rest.iter().take_while(|token| matches!(token, Token::Word(_))).count();
        let (words, next) = rest.split_at(len);
        *rest = next;
        let words: Vec<&Word> = words
            .iter()
            .filter_map(|token| match token {
                Token::Word(word) => Some(word),
                _ => None,
            })
            .collect();
        if !wanted {
            return Ok(false);
        }
        self.one_of_words(&words)
    }

    fn one_of_words(&mut self, words: &[&Word]) -> Tested {
        match words {
            [] => Err(beyond("[[ ]]")),
            [word] => Ok(!self.value_of(word)?.is_empty()),
            [first, rest @ ..] if super::parse::literal(first) == Some("!") => {
                self.one_of_words(rest).map(|it| !it)
            }
            [operator, word] => {
                let (operator, word) = (self.value_of(operator)?, self.value_of(word)?);
                self.unary(&operator, &word)
            }
            [left, operator, right] => {
                let (left, operator) = (self.value_of(left)?, self.value_of(operator)?);
                match operator.as_str() {
                    "=" | "==" | "!=" => {
                        let text: Vec<char> = left.chars().collect();
                        let pattern = self.pattern_of(right)?;
                        self.charge(text.len().saturating_mul(pattern.part_count()) / 64)?;
                        Ok(pattern.fits(&text) == (operator != "!="))
                    }
                    "=~" => {
                        let right = self.value_of(right)?;
                        let search = Search::new(&[&right], &Syntax { extended: true, ..Syntax::default() })?;
                        self.charge(search.cost(left.len()))?;
                        Ok(search.finds(&left))
                    }
                    other if is_binary(other) => {
                        let right = self.value_of(right)?;
                        self.binary(&left, other, &right)
                    }
                    other => Err(beyond(format!("[[ {left} {other} … ]]"))),
                }
            }
            _ => Err(beyond("[[ … ]]")),
        }
    }
}

fn is_binary(operator: &str) -> bool {
    matches!(operator, "=" | "==" | "!=" | "<" | ">" | "-eq" | "-ne" | "-lt" | "-le" | "-gt" | "-ge")
}
