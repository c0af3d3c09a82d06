//! Detects changes that remove so much of a repository that they are likely mistakes.

/// A change that removes more than half of the entries of a repository.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shrink {
    /// Entries that the change removes.
    pub removed: u64,
    /// Entries of the published revision.
    pub entries: u64,
}

impl Shrink {
    /// Minimum number of removed entries that counts as a shrink.
    pub const REMOVED_MIN: u64 = 10;

    /// Returns a shrink if the removal of so many entries counts as one.
    pub(crate) fn of(removed: u64, entries: u64) -> Option<Self> {
        let is_most = removed >= Self::REMOVED_MIN && removed > entries / 2;
        is_most.then_some(Self { removed, entries: entries.max(removed) })
    }
}

/// Formats a number with a comma between groups of three digits.
pub(crate) fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::with_capacity(digits.len() + digits.len() / 3);
    for (at, digit) in digits.char_indices() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shrink_removes_more_than_half_and_at_least_ten() {
        let is_shrink = |removed, entries| Shrink::of(removed, entries).is_some();
        assert!(!is_shrink(9, 9), "below the least number");
        assert!(is_shrink(10, 10) && is_shrink(10, 19) && is_shrink(11, 21));
        assert!(!is_shrink(10, 20) && !is_shrink(10, 21), "half or less");
        assert!(is_shrink(500_001, 1_000_000) && !is_shrink(500_000, 1_000_000));
    }

    #[test]
    fn numbers_are_grouped() {
        let text = [0, 999, 1000, 12_345, 1_234_567].map(grouped);
        assert_eq!(text, ["0", "999", "1,000", "12,345", "1,234,567"]);
    }
}
