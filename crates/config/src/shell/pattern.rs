//! Patterns of `case`, `[[`, `%` and `#`.

/// A pattern: literal characters and wildcards.
pub(super) struct Pattern(Vec<Part>);

enum Part {
    Exactly(char),
    One,
    Any,
    Set { not: bool, ranges: Vec<(char, char)> },
}

impl Pattern {
    /// Parses fragments of text; quoted parts are literal.
    pub(super) fn new(fragments: &[(String, bool)]) -> Self {
        let all: Vec<(char, bool)> =
            fragments.iter().flat_map(|(text, quoted)| text.chars().map(|c| (c, *quoted))).collect();
        let mut parts = Vec::new();
        let mut at = 0;
        while let Some(&(c, quoted)) = all.get(at) {
            at += 1;
            parts.push(match c {
                _ if quoted => Part::Exactly(c),
                '*' => Part::Any,
                '?' => Part::One,
                // It comes from a value: in a word of the file it would have made a quoted character.
                '\\' => match all.get(at) {
                    Some(&(next, _)) => {
                        at += 1;
                        Part::Exactly(next)
                    }
                    None => Part::Exactly(c),
                },
                '[' => match set(&all[at..]) {
                    Some((part, len)) => {
                        at += len;
                        part
                    }
                    None => Part::Exactly(c),
                },
                _ => Part::Exactly(c),
            });
        }
        Self(parts)
    }

    /// Returns the number of its parts.
    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    /// True if the whole text matches. Takes at most the product of both lengths.
    pub(super) fn fits(&self, text: &[char]) -> bool {
        let (mut part, mut at) = (0, 0);
        // The last `*`, and how far it reaches so far.
        let mut star: Option<(usize, usize)> = None;
        while at < text.len() {
            match self.0.get(part) {
                Some(Part::Any) => {
                    star = Some((part, at));
                    part += 1;
                }
                Some(this) if this.takes(text[at]) => {
                    part += 1;
                    at += 1;
                }
                _ => match &mut star {
                    Some((begin, reach)) => {
                        *reach += 1;
                        (part, at) = (*begin + 1, *reach);
                    }
                    None => return false,
                },
            }
        }
        self.0[part..].iter().all(|part| matches!(part, Part::Any))
    }

    /// Returns `text` without the matching end (`%`) or beginning (`#`).
    pub(super) fn cut(&self, text: &str, operator: char, longest: bool) -> String {
        let chars: Vec<char> = text.chars().collect();
        let fits = |at: &usize| self.fits(if operator == '%' { &chars[*at..] } else { &chars[..*at] });
        // The longest end begins first; the longest beginning ends last.
        let forward = (operator == '%') == longest;
        let found = if forward { (0..=chars.len()).find(fits) } else { (0..=chars.len()).rev().find(fits) };
        match found {
            Some(at) if operator == '%' => chars[..at].iter().collect(),
            Some(at) => chars[at..].iter().collect(),
            None => text.to_owned(),
        }
    }
}

impl Part {
    fn takes(&self, c: char) -> bool {
        match self {
            Part::Exactly(own) => *own == c,
            Part::One => true,
            Part::Any => false,
            Part::Set { not, ranges } => ranges.iter().any(|(from, to)| (*from..=*to).contains(&c)) != *not,
        }
    }
}

/// Parses the set behind `[`; returns its length, too.
fn set(rest: &[(char, bool)]) -> Option<(Part, usize)> {
    let not = matches!(rest.first(), Some(('!' | '^', false)));
    let mut at = usize::from(not);
    let mut ranges = Vec::new();
    loop {
        let &(from, quoted) = rest.get(at)?;
        if from == ']' && !quoted && !ranges.is_empty() {
            return Some((Part::Set { not, ranges }, at + 1));
        }
        if let (Some(('-', false)), Some(&(to, _))) = (rest.get(at + 1), rest.get(at + 2))
            && to != ']'
        {
            ranges.push((from, to));
            at += 3;
        } else {
            ranges.push((from, from));
            at += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fits(pattern: &str, text: &str) -> bool {
        Pattern::new(&[(pattern.to_owned(), false)]).fits(&text.chars().collect::<Vec<_>>())
    }

    #[test]
    fn patterns_match_as_in_a_shell() {
        for (pattern, text) in
            [("*", ""), ("a*c", "abbc"), ("a*b*c", "aXbYc"), ("[a-c]?", "bz"), ("[!a]", "b")]
        {
            assert!(fits(pattern, text), "{pattern} {text}");
        }
        for (pattern, text) in [("", "a"), ("a*c", "abcd"), ("[a-c]", "d"), ("[!a]", "a"), ("?", "")] {
            assert!(!fits(pattern, text), "{pattern} {text}");
        }
        assert!(fits("[", "[") && fits("[]]", "]") && fits("a[", "a["));
        // Many wildcards against a text that nearly fits must not take for ever.
        assert!(!fits(&"*a".repeat(50), &"a".repeat(49)));
    }

    #[test]
    fn cutting_removes_the_shortest_or_longest_match() {
        let cut = |pattern: &str, operator, longest| {
            Pattern::new(&[(pattern.to_owned(), false)]).cut("wn12.cluster.example.org", operator, longest)
        };
        assert_eq!(cut(".*", '%', false), "wn12.cluster.example");
        assert_eq!(cut(".*", '%', true), "wn12");
        assert_eq!(cut("*.", '#', false), "cluster.example.org");
        assert_eq!(cut("*.", '#', true), "org");
        assert_eq!(cut("x", '#', true), "wn12.cluster.example.org");
    }
}
