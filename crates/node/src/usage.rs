//! Resources that this process uses.

use std::fs;

use rustix::param::{clock_ticks_per_second, page_size};
use rustix::process::{Resource, getrlimit};

use crate::status::Process;

/// Returns the resources of this process; zeros where `/proc` doesn't show them.
pub(crate) fn of_this_process() -> Process {
    let stat = fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let (cpu_user_us, cpu_system_us) = cpu_in(&stat, clock_ticks_per_second()).unwrap_or_default();
    let pages = fs::read_to_string("/proc/self/statm").ok();
    let pages = pages.and_then(|text| text.split_ascii_whitespace().nth(1)?.parse::<u64>().ok());
    let descriptors = fs::read_dir("/proc/self/fd").map_or(0, |entries| entries.count() as u64);
    Process {
        cpu_user_us,
        cpu_system_us,
        resident_bytes: pages.unwrap_or(0).saturating_mul(page_size() as u64),
        // The listing itself has one open.
        descriptors: descriptors.saturating_sub(1),
        descriptors_limit: getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX),
    }
}

/// Returns the processor time in microseconds, of the process and of the kernel, from the text of `stat`.
fn cpu_in(stat: &str, ticks: u64) -> Option<(u64, u64)> {
    // The name of the program may contain anything, so the fields are those behind it.
    let (_, fields) = stat.rsplit_once(')')?;
    let mut fields = fields.split_ascii_whitespace().skip(11);
    let mut time = || Some(fields.next()?.parse::<u64>().ok()?.saturating_mul(1_000_000) / ticks.max(1));
    Some((time()?, time()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processor_time_is_read_behind_a_strange_name() {
        let stat = "7 (a) b (c) S 1 7 7 0 -1 4194560 200 0 0 0 250 30 0 0 20 0 1 0 5 1 1";
        assert_eq!(cpu_in(stat, 100), Some((2_500_000, 300_000)));
        assert_eq!(cpu_in("7 (a", 100), None);
    }

    #[test]
    fn a_process_has_memory_and_descriptors() {
        let used = of_this_process();
        assert!(used.resident_bytes > 0 && used.descriptors > 0, "{used:?}");
        assert!(used.descriptors <= used.descriptors_limit, "{used:?}");
    }
}
