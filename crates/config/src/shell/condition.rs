//! `[ … ]` and `test`.

use super::Shell;
use super::expand::NoValue;
use crate::files::Probe;

type Tested = Result<bool, TestError>;

/// Reason why a test has no outcome.
enum TestError {
    /// The arguments of `test` are invalid, which a shell reports before it continues with failure.
    Number,
    NoValue(NoValue),
}

/// Maximum nesting of tests.
const DEPTH_MAX: u32 = 40;

fn beyond(text: impl std::fmt::Display) -> TestError {
    TestError::NoValue(NoValue::new(format!("the test `{text}`")))
}

impl Shell<'_> {
    /// Evaluates `test` with these arguments; `None` for an invalid number.
    pub(super) fn test(&self, words: &[String]) -> Result<Option<bool>, NoValue> {
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        match self.test_words(&words, 0) {
            Ok(it) => Ok(Some(it)),
            Err(TestError::Number) => Ok(None),
            Err(TestError::NoValue(obstacle)) => Err(obstacle),
        }
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
                    _ => Err(TestError::Number),
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
            _ => return Err(TestError::Number),
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
        let number = |text: &str| text.trim().parse::<i64>().map_err(|_| TestError::Number);
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
}

fn is_binary(operator: &str) -> bool {
    matches!(operator, "=" | "==" | "!=" | "<" | ">" | "-eq" | "-ne" | "-lt" | "-le" | "-gt" | "-ge")
}
