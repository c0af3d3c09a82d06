//! Makes text safe for terminals and logs.
//!
//! Names and texts of publishers, users, servers and images may hold sequences that change what a terminal shows or types.

use std::borrow::Cow;

/// Returns a text with a question mark for each character that acts on a terminal. Tabs and ends of lines stay.
pub fn shown(text: &str) -> Cow<'_, str> {
    replaced(text, |c| acts(c) && !matches!(c, '\n' | '\t'))
}

/// Returns a text for one line: a variant of [`shown`] without tabs and ends of lines.
pub fn shown_in_line(text: &str) -> Cow<'_, str> {
    replaced(text, acts)
}

fn replaced(text: &str, is_replaced: impl Fn(char) -> bool + Copy) -> Cow<'_, str> {
    match text.contains(is_replaced) {
        true => Cow::Owned(text.replace(is_replaced, "?")),
        false => Cow::Borrowed(text),
    }
}

/// Returns whether a terminal acts on a character: control characters, those of 8 bits too, marks that change the direction of
/// text, and characters without a meaning for others, which programs use among themselves.
pub fn acts(c: char) -> bool {
    let turns =
        matches!(c, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    c.is_control() || turns || matches!(c, '\u{2028}' | '\u{2029}' | '\u{fdd0}'..='\u{fdef}')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_characters_are_replaced() {
        for text in ["", "plain", "naïve Ω 漢字 🦀", "a\tb\nc"] {
            assert_eq!(shown(text), text);
        }
        for (text, wanted) in [
            ("\u{1b}]0;title\u{7}", "?]0;title?"),
            ("\u{9b}31m", "?31m"),
            ("a\rb\u{8}\u{7f}", "a?b??"),
            ("abc\u{202e}gpj.exe", "abc?gpj.exe"),
            ("\u{fdd0}bold", "?bold"),
        ] {
            assert_eq!(shown(text), wanted, "{text:?}");
        }
        assert_eq!(shown_in_line("a\nb\tc"), "a?b?c");
    }
}
