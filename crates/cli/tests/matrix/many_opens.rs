//! Many open files on one mount: descriptors and memory of the daemon.

use std::fs::{self, File};
use std::path::PathBuf;

use esker_testkit::soak::Soak;
use esker_testkit::{descriptors, fixture};

use crate::test_env::TestEnv;
use crate::test_user::TestUser;

/// Open files at the same time: the descriptors of a daemon don't grow with them, nor with the processes that have them.
const OPEN: usize = 15_000;
/// Descriptors of a daemon beside those of objects: sockets, threads, its cache.
const BESIDE: usize = 128;
/// Bytes of the daemon for one open file.
const OF_OPEN_FILE: u64 = 512;

fn regular_files(root: PathBuf) -> Vec<PathBuf> {
    let (mut found, mut folders) = (Vec::new(), vec![root]);
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).expect("a folder") {
            let entry = entry.expect("an entry");
            let kind = entry.file_type().expect("a kind");
            if kind.is_dir() {
                folders.push(entry.path());
            } else if kind.is_file() && File::open(entry.path()).is_ok() {
                found.push(entry.path());
            }
        }
    }
    found
}

fn resident(pid: u64) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).expect("its status");
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).expect("its memory");
    line.trim().trim_end_matches(" kB").parse::<u64>().expect("a number") * 1024
}

#[test]
fn soak_a_daemon_has_one_descriptor_for_an_object_that_is_open_many_times() {
    let mut soak = Soak::begin("many_opens");
    descriptors::allow(OPEN as u64 + 1000);
    let env = TestEnv::new(TestUser::myself(), fixture::FULL);
    let mounted = env.mount(&[]);
    let files = regular_files(mounted.path(""));
    for file in &files {
        fs::read(file).expect("a file");
    }
    let status = mounted.status();
    let pid = status["pid"].as_u64().expect("a process");
    let objects = usize::try_from(status["cache"]["objects"].as_u64().expect("a count")).expect("a count");
    let (before, mut most) = (resident(pid), (0, 0));
    while soak.goes_on_until(1) {
        let open: Vec<File> =
            files.iter().cycle().take(OPEN).map(|file| File::open(file).expect("a file")).collect();
        let count = fs::read_dir(format!("/proc/{pid}/fd")).expect("its descriptors").count();
        assert!(
            count <= objects + BESIDE,
            "{count} descriptors for {objects} objects and {} files",
            open.len()
        );
        let grown = resident(pid).saturating_sub(before);
        let bound = OPEN as u64 * OF_OPEN_FILE + (16 << 20);
        assert!(grown <= bound, "{grown} bytes for {} open files", open.len());
        most = (most.0.max(count), most.1.max(grown));
    }
    soak.finish(&[("open files", &OPEN), ("descriptors", &most.0), ("bytes", &most.1)]);
}
