//! `$((…))`: whole numbers with `+ - * / %`, signs and parentheses.

/// Parentheses lie in each other at most so deep.
const DEPTH_MAX: u32 = 40;

/// The value of a term; `None` if it has anything else in it, or doesn't fit 64 bits. `variable` gives the values of
/// names.
pub(super) fn evaluate(text: &str, variable: &dyn Fn(&str) -> Option<String>) -> Option<i64> {
    let mut term = Term { rest: text, variable, depth: 0 };
    let value = term.sum()?;
    term.rest.trim_start().is_empty().then_some(value)
}

struct Term<'a> {
    rest: &'a str,
    variable: &'a dyn Fn(&str) -> Option<String>,
    depth: u32,
}

impl Term<'_> {
    fn take(&mut self, wanted: &[char]) -> Option<char> {
        self.rest = self.rest.trim_start();
        let c = self.rest.chars().next().filter(|c| wanted.contains(c))?;
        self.rest = &self.rest[c.len_utf8()..];
        Some(c)
    }

    fn sum(&mut self) -> Option<i64> {
        let mut value = self.product()?;
        while let Some(operator) = self.take(&['+', '-']) {
            let next = self.product()?;
            value = if operator == '+' { value.checked_add(next)? } else { value.checked_sub(next)? };
        }
        Some(value)
    }

    fn product(&mut self) -> Option<i64> {
        let mut value = self.factor()?;
        while let Some(operator) = self.take(&['*', '/', '%']) {
            let next = self.factor()?;
            value = match operator {
                '*' => value.checked_mul(next)?,
                '/' => value.checked_div(next)?,
                _ => value.checked_rem(next)?,
            };
        }
        Some(value)
    }

    fn factor(&mut self) -> Option<i64> {
        let mut negative = false;
        while let Some(sign) = self.take(&['+', '-']) {
            negative ^= sign == '-';
        }
        let value = if self.take(&['(']).is_some() {
            self.depth += 1;
            if self.depth > DEPTH_MAX {
                return None;
            }
            let value = self.sum()?;
            self.take(&[')'])?;
            self.depth -= 1;
            value
        } else {
            let len = self.rest.find(|c: char| !(c.is_ascii_alphanumeric() || c == '_'));
            let (word, rest) = self.rest.split_at(len.unwrap_or(self.rest.len()));
            self.rest = rest;
            number(word).or_else(|| match word.chars().next()? {
                c if c.is_ascii_digit() => None,
                _ => number((self.variable)(word)?.trim()),
            })?
        };
        if negative { value.checked_neg() } else { Some(value) }
    }
}

/// Decimal; a leading zero means octal to a shell and is not guessed at.
fn number(text: &str) -> Option<i64> {
    let plain = text == "0" || !text.starts_with('0');
    (plain && text.bytes().all(|b| b.is_ascii_digit())).then(|| text.parse().ok())?
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn terms_have_the_values_a_shell_gives_them() {
        let variable = |name: &str| (name == "MB").then(|| "20".to_owned());
        let value = |text| evaluate(text, &variable);
        assert_eq!(value("MB * 1024"), Some(20480));
        assert_eq!(value(" 1 + 2*3 - -(4 / 2) % 3"), Some(9));
        assert_eq!(value("-7 / 2"), Some(-3));
        for bad in ["", "1 +", "1 / 0", "010", "A", "1 << 2", "(1", "9223372036854775807 + 1", "1 2"] {
            assert_eq!(value(bad), None, "{bad}");
        }
    }
}
