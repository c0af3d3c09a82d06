//! Orders the names in a directory by a function of each name alone.
//!
//! A listing that pauses while the view moves to another revision continues after the last name it returned, and
//! unchanged names keep their positions.

use esker_vfs::{Cookie, FIRST_COOKIE, LAST_COOKIE};
use xxhash_rust::xxh3::xxh3_64;

/// Returns the position of `name`, were it alone in its directory.
pub(crate) fn cookie(name: &[u8]) -> Cookie {
    Cookie((xxh3_64(name) >> 1).clamp(FIRST_COOKIE.0, LAST_COOKIE.0))
}

/// Sorts names by position.
///
/// If two names have the same one (once in 2^63 pairs, unless they were chosen so), the name that sorts first keeps it
/// and the other one gets the next, so that positions strictly ascend.
pub(crate) fn arrange<T>(items: &mut Vec<T>, name: impl Fn(&T) -> &[u8], place: impl Fn(&mut T, Cookie)) {
    items.sort_unstable_by(|a, b| {
        let (a, b) = (name(a), name(b));
        cookie(a).cmp(&cookie(b)).then_with(|| a.cmp(b))
    });
    items.dedup_by(|a, b| name(a) == name(b));
    let mut next = FIRST_COOKIE;
    for item in items.iter_mut() {
        let own = cookie(name(item)).max(next);
        place(item, own);
        next = Cookie(own.0.saturating_add(1));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn positions_strictly_ascend_without_duplicates() {
        let mut names: Vec<(Vec<u8>, Cookie)> =
            (0..5000).map(|n| (format!("name {}", n % 4000).into_bytes(), Cookie(0))).collect();
        arrange(&mut names, |item| &item.0, |item, cookie| item.1 = cookie);
        assert_eq!(names.len(), 4000);
        assert!(names.windows(2).all(|pair| pair[0].1 < pair[1].1));
        assert!(names.iter().all(|(name, place)| *place == cookie(name) && *place >= FIRST_COOKIE));
    }
}
