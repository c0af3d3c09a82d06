//! Evaluates `$((…))`: integers and the operators of C, without assignments.

/// Maximum nesting of terms.
const DEPTH_MAX: u32 = 40;

/// Binary operators by precedence, the lowest first. An operator stands before its own prefixes.
const LEVELS: [&[&str]; 10] = [
    &["||"],
    &["&&"],
    &["|"],
    &["^"],
    &["&"],
    &["==", "!="],
    &["<=", ">=", "<", ">"],
    &["<<", ">>"],
    &["+", "-"],
    &["*", "/", "%"],
];

/// Returns the value of a term; `None` if it is invalid, or doesn't fit 64 bits. `variable` returns the values of
/// names.
pub(super) fn evaluate(text: &str, variable: &dyn Fn(&str) -> Option<String>) -> Option<i64> {
    let mut term = Term { rest: text, variable, depth: 0 };
    if text.trim().is_empty() {
        return Some(0);
    }
    let value = term.choice()?;
    term.rest.trim_start().is_empty().then_some(value)
}

struct Term<'a> {
    rest: &'a str,
    variable: &'a dyn Fn(&str) -> Option<String>,
    depth: u32,
}

impl Term<'_> {
    /// Consumes a character if it is next and does not begin a two-character operator.
    fn take(&mut self, wanted: char) -> bool {
        self.rest = self.rest.trim_start();
        match self.rest.strip_prefix(wanted) {
            Some(rest) => {
                self.rest = rest;
                true
            }
            None => false,
        }
    }

    fn deeper(&mut self, inner: impl FnOnce(&mut Self) -> Option<i64>) -> Option<i64> {
        self.depth += 1;
        if self.depth > DEPTH_MAX {
            return None;
        }
        let value = inner(self);
        self.depth -= 1;
        value
    }

    fn choice(&mut self) -> Option<i64> {
        let condition = self.level(0)?;
        if !self.take('?') {
            return Some(condition);
        }
        let first = self.deeper(Self::choice)?;
        if !self.take(':') {
            return None;
        }
        let second = self.deeper(Self::choice)?;
        Some(if condition != 0 { first } else { second })
    }

    /// Consumes the next operator of this precedence, if there is one.
    fn operator(&mut self, level: usize) -> Option<&'static str> {
        self.rest = self.rest.trim_start();
        let found = LEVELS[level].iter().find(|operator| self.rest.starts_with(**operator))?;
        // `&` is not the beginning of `&&`, and so on.
        let longer = LEVELS.iter().flat_map(|level| level.iter());
        let longer = longer.filter(|other| other.len() > found.len() && other.starts_with(found));
        if longer.into_iter().any(|other| self.rest.starts_with(other)) {
            return None;
        }
        self.rest = &self.rest[found.len()..];
        Some(found)
    }

    fn level(&mut self, level: usize) -> Option<i64> {
        if level == LEVELS.len() {
            return self.factor();
        }
        let mut value = self.level(level + 1)?;
        while let Some(operator) = self.operator(level) {
            let next = self.level(level + 1)?;
            value = match operator {
                "||" => i64::from(value != 0 || next != 0),
                "&&" => i64::from(value != 0 && next != 0),
                "|" => value | next,
                "^" => value ^ next,
                "&" => value & next,
                "==" => i64::from(value == next),
                "!=" => i64::from(value != next),
                "<=" => i64::from(value <= next),
                ">=" => i64::from(value >= next),
                "<" => i64::from(value < next),
                ">" => i64::from(value > next),
                "<<" => value.checked_shl(u32::try_from(next).ok()?)?,
                ">>" => value.checked_shr(u32::try_from(next).ok()?)?,
                "+" => value.checked_add(next)?,
                "-" => value.checked_sub(next)?,
                "*" => value.checked_mul(next)?,
                "/" => value.checked_div(next)?,
                _ => value.checked_rem(next)?,
            };
        }
        Some(value)
    }

    fn factor(&mut self) -> Option<i64> {
        for sign in ['-', '+', '~', '!'] {
            if self.take(sign) {
                let value = self.deeper(Self::factor)?;
                return match sign {
                    '-' => value.checked_neg(),
                    '+' => Some(value),
                    '~' => Some(!value),
                    _ => Some(i64::from(value == 0)),
                };
            }
        }
        if self.take('(') {
            let value = self.deeper(Self::choice)?;
            return self.take(')').then_some(value);
        }
        let len = self.rest.find(|c: char| !(c.is_ascii_alphanumeric() || c == '_'));
        let (word, rest) = self.rest.split_at(len.unwrap_or(self.rest.len()));
        self.rest = rest;
        match word.chars().next()? {
            c if c.is_ascii_digit() => number(word),
            _ => {
                let value = (self.variable)(word)?;
                match value.trim() {
                    "" => Some(0),
                    text => match text.strip_prefix('-') {
                        Some(text) => number(text)?.checked_neg(),
                        None => number(text),
                    },
                }
            }
        }
    }
}

/// Parses a number: decimal, octal with a leading 0, hexadecimal with a leading 0x.
fn number(text: &str) -> Option<i64> {
    if let Some(digits) = text.strip_prefix("0x").or_else(|| text.strip_prefix("0X")) {
        return i64::from_str_radix(digits, 16).ok();
    }
    if !text.bytes().all(|b| b.is_ascii_digit()) {
        return None;
    }
    let radix = if text.len() > 1 && text.starts_with('0') { 8 } else { 10 };
    i64::from_str_radix(text, radix).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn terms_have_the_same_values_as_in_a_shell() {
        let variable = |name: &str| {
            Some(match name {
                "MB" => "20".to_owned(),
                "NEGATIVE" => "-3".to_owned(),
                "TEXT" => "x y".to_owned(),
                _ => String::new(),
            })
        };
        let value = |text| evaluate(text, &variable);
        for (text, expected) in [
            ("MB * 1024", 20480),
            (" 1 + 2*3 - -(4 / 2) % 3", 9),
            ("-7 / 2", -3),
            ("UNSET % 2", 0),
            ("NEGATIVE*2", -6),
            ("", 0),
            ("010 + 0x10", 24),
            ("1 << 4 | 1", 17),
            ("6 & 3 ^ 1", 3),
            ("3 > 2 && 2 >= 2 && 1 != 0 || 0", 1),
            ("!1 + !0 + ~0", 0),
            ("1 == 2 ? 10 : 2 < 3 ? 20 : 30", 20),
        ] {
            assert_eq!(value(text), Some(expected), "{text}");
        }
        for bad in ["1 +", "1 / 0", "08", "TEXT", "A = 1", "(1", "9223372036854775807 + 1", "1 2", "1 ? 2"] {
            assert_eq!(value(bad), None, "{bad}");
        }
    }
}
