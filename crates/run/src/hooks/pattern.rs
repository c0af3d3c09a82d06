//! Matches names with `*`, `?` and `[a-z]`.

/// True if `pattern` has no wildcards.
pub(super) fn is_plain(pattern: &str) -> bool {
    !pattern.contains(['*', '?', '['])
}

/// True if `name` matches `pattern`.
pub(super) fn matches(pattern: &str, name: &str) -> bool {
    let (pattern, name): (Vec<char>, Vec<char>) = (pattern.chars().collect(), name.chars().collect());
    let (mut at, mut from) = (0, 0);
    // Position to continue at when the text behind the last star did not match.
    let mut star: Option<(usize, usize)> = None;
    while from < name.len() {
        let rest = pattern.get(at..).unwrap_or_default();
        let step = match (rest.first(), name.get(from)) {
            (Some('*'), _) => {
                star = Some((at + 1, from));
                at += 1;
                continue;
            }
            (Some('?'), Some(_)) => Some(1),
            (Some('['), Some(c)) => class(rest, *c),
            (Some(wanted), Some(c)) if wanted == c => Some(1),
            _ => None,
        };
        match (step, star) {
            (Some(step), _) => (at, from) = (at + step, from + 1),
            (None, Some((after, begun))) => {
                star = Some((after, begun + 1));
                (at, from) = (after, begun + 1);
            }
            (None, None) => return false,
        }
    }
    pattern.get(at..).unwrap_or_default().iter().all(|c| *c == '*')
}

/// Returns the length of the class at the beginning of `pattern`, if `c` is in it.
fn class(pattern: &[char], c: char) -> Option<usize> {
    let end = pattern.iter().position(|c| *c == ']')?;
    let members = pattern.get(1..end)?;
    let ranges = members.windows(3).any(|w| matches!(w, [a, '-', b] if (*a..=*b).contains(&c)));
    (ranges || (c != '-' && members.contains(&c))).then_some(end + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_match_whole_names() {
        for (pattern, name, expected) in [
            ("libcuda.so*", "libcuda.so.1", true),
            ("libcuda.so*", "libcudart.so.1", false),
            ("lib*-*.so*", "libevent-2.1.so.7", true),
            ("nvidia[0-9]*", "nvidia0", true),
            ("nvidia[0-9]*", "nvidiactl", false),
            ("nul?", "null", true),
            ("nul?", "nul", false),
            ("*", "", true),
            ("[", "[", false),
        ] {
            assert_eq!(matches(pattern, name), expected, "{pattern} {name}");
        }
    }
}
