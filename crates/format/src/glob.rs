//! Matches names with shell patterns: `*`, `?`, `[a-z]`, `[!a-z]`, and `\` before a special character.

/// A shell pattern over bytes or characters.
pub struct Glob<T>(Vec<Part<T>>);

/// An element and whether it is quoted, so that it matches only itself.
pub type Element<T> = (T, bool);

enum Part<T> {
    Exactly(T),
    One,
    Any,
    Set { not: bool, ranges: Vec<(T, T)> },
}

impl<T: Copy + Ord + From<u8>> Glob<T> {
    /// Parses a pattern.
    pub fn new(elements: &[Element<T>]) -> Self {
        let mut parts = Vec::new();
        let mut rest = elements;
        while let Some((&(element, quoted), after)) = rest.split_first() {
            rest = after;
            let is = |special: u8| !quoted && element == T::from(special);
            parts.push(if is(b'*') {
                Part::Any
            } else if is(b'?') {
                Part::One
            } else if is(b'\\')
                && let Some((&(escaped, _), after)) = rest.split_first()
            {
                rest = after;
                Part::Exactly(escaped)
            } else if is(b'[')
                && let Some((set, after)) = set(rest)
            {
                rest = after;
                set
            } else {
                // A bracket that is never closed stands for itself.
                Part::Exactly(element)
            });
        }
        Self(parts)
    }

    /// Returns the number of elements and wildcards.
    pub fn part_count(&self) -> usize {
        self.0.len()
    }

    /// True if the whole text matches. Takes at most the product of both lengths.
    pub fn fits(&self, text: &[T]) -> bool {
        let (mut parts, mut left) = (self.0.as_slice(), text);
        // Position to retry at if the text behind the last star doesn't match: one element further.
        let mut retry: Option<(&[Part<T>], &[T])> = None;
        loop {
            match (parts, left) {
                ([Part::Any, after @ ..], _) => {
                    retry = Some((after, left));
                    parts = after;
                }
                ([], []) => return true,
                ([part, after @ ..], [element, tail @ ..]) if part.takes(*element) => {
                    (parts, left) = (after, tail);
                }
                _ => match retry {
                    Some((after, [_, tail @ ..])) => {
                        retry = Some((after, tail));
                        (parts, left) = (after, tail);
                    }
                    _ => return false,
                },
            }
        }
    }
}

impl Glob<u8> {
    /// Parses a pattern without quoted parts.
    pub fn from_bytes(pattern: &[u8]) -> Self {
        Self::new(&pattern.iter().map(|byte| (*byte, false)).collect::<Vec<_>>())
    }
}

impl<T: Copy + Ord> Part<T> {
    fn takes(&self, element: T) -> bool {
        match self {
            Part::Exactly(own) => *own == element,
            Part::One => true,
            Part::Any => false,
            Part::Set { not, ranges } => {
                ranges.iter().any(|(from, to)| (*from..=*to).contains(&element)) != *not
            }
        }
    }
}

/// Parses the set behind `[`; also returns what is behind the set. `None` if it is never closed.
fn set<T: Copy + Ord + From<u8>>(elements: &[Element<T>]) -> Option<(Part<T>, &[Element<T>])> {
    let special = |byte: u8| (T::from(byte), false);
    let not = elements.first().is_some_and(|first| [special(b'!'), special(b'^')].contains(first));
    let mut rest = elements.get(usize::from(not)..)?;
    let mut ranges = Vec::new();
    loop {
        rest = match rest {
            [first, after @ ..] if *first == special(b']') && !ranges.is_empty() => {
                return Some((Part::Set { not, ranges }, after));
            }
            [(from, _), dash, (to, _), after @ ..] if *dash == special(b'-') && *to != T::from(b']') => {
                ranges.push((*from, *to));
                after
            }
            [(one, _), after @ ..] => {
                ranges.push((*one, *one));
                after
            }
            [] => return None,
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_match_as_in_a_shell() {
        for (pattern, name, expected) in [
            ("*.so*", "libc.so.6", true),
            ("*.so", "libc.so.6", false),
            ("libcuda.so*", "libcudart.so.1", false),
            ("lib*-*.so*", "libevent-2.1.so.7", true),
            ("a?c", "abc", true),
            ("a?c", "ac", false),
            ("?", "", false),
            ("[a-c]x", "bx", true),
            ("[a-c]", "d", false),
            ("[!a-c]x", "bx", false),
            ("[!a]", "b", true),
            ("[^a]", "a", false),
            ("nvidia[0-9]*", "nvidia0", true),
            ("nvidia[0-9]*", "nvidiactl", false),
            ("[]]", "]", true),
            ("[", "[", true),
            ("a[", "a[", true),
            ("\\*", "*", true),
            ("\\*", "x", false),
            ("", "", true),
            ("", "a", false),
            ("*", "", true),
            ("a*c", "abcd", false),
            ("a*b*c", "a1b2b3c", true),
            ("a*b*c", "a1b2b3", false),
            ("**a", "bba", true),
        ] {
            let fits = Glob::from_bytes(pattern.as_bytes()).fits(name.as_bytes());
            assert_eq!(fits, expected, "{pattern:?} on {name:?}");
        }
    }

    #[test]
    fn quoted_elements_match_only_themselves() {
        let pattern = [('*', true), ('?', true), ('[', true), ('é', false), ('*', false)];
        let fits = |text: &str| Glob::new(&pattern).fits(&text.chars().collect::<Vec<_>>());
        assert!(fits("*?[é") && fits("*?[éa") && !fits("a?[é"));
        let set = Glob::new(&[('[', false), (']', true), ('a', false), (']', false)]);
        assert!(set.fits(&[']']) && set.fits(&['a']) && !set.fits(&['b']));
    }

    #[test]
    fn many_stars_take_no_exponential_time() {
        assert!(!Glob::from_bytes(b"*a*a*a*a*a*a*a*a*a*b").fits(&[b'a'; 5000]));
        assert!(!Glob::from_bytes(&b"*a".repeat(50)).fits(&[b'a'; 49]));
    }
}
