//! Extended attributes whose names begin with `trusted.`. The kernel shows their values to the machine's root alone;
//! file systems decide about the names, and those of the kernel do the same.

use std::sync::OnceLock;

/// Returns true if a caller with this number, in the user namespace of this process, may see them.
pub fn may_see_trusted(uid: u32) -> bool {
    static IS_FIRST: OnceLock<bool> = OnceLock::new();
    uid == 0
        && *IS_FIRST
            .get_or_init(|| std::fs::read_to_string("/proc/self/uid_map").is_ok_and(|map| is_first(&map)))
}

/// Returns true if this user map is that of the initial namespace, where root is the machine's root.
fn is_first(map: &str) -> bool {
    map.split_whitespace().eq(["0", "0", "4294967295"])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_root_of_the_machine_sees_trusted_attributes() {
        assert!(is_first("         0          0 4294967295\n"));
        assert!(!is_first("         0       1000          1\n"));
        assert!(!is_first(""));
        assert!(!may_see_trusted(1000));
    }
}
