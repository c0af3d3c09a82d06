//! Cache parameters of the configuration.

use std::fs::{self, OpenOptions};
use std::io::Read;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use esker_testkit::fixture::{self, TAGS};
use esker_testkit::tree_scan::{differences, scan_tree};

use rustix::process::Signal;

use super::Site;
use super::acting::LOCAL;
use crate::daemons::{signal, wait_until_gone};
use crate::test_env::{Mounted, words};
use crate::test_user::TestUser;

impl Site {
    /// Returns the number of requests for objects at all servers.
    fn objects_asked_for(&self) -> usize {
        let mirrors = self.proxies.iter().chain([&self.world.mirror, &self.second]);
        mirrors.map(|mirror| mirror.count(|path| path.contains("/data/"))).sum()
    }

    /// Names in the folder that is configured for caches.
    fn caches(&self) -> usize {
        fs::read_dir(self.world.path("home/caches")).expect("the folder").count()
    }
}

/// Reads a file past the kernel's own cache.
fn read_anew(mounted: &Mounted<'_>, path: &str) -> Vec<u8> {
    mounted.does(|| {
        let mut file = OpenOptions::new()
            .read(true)
            .custom_flags(libc::O_DIRECT)
            .open(mounted.path(path))
            .expect("opening");
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes).expect("reading");
        bytes
    })
}

/// Returns a file with content of its own.
fn large(site: &Site) -> String {
    let listing = site.world.fixture().listing(TAGS[2]);
    let large = listing.iter().find(|entry| entry.sha256.is_some() && entry.size > Some(10_000));
    String::from_utf8(large.expect("a file").path.clone()).expect("UTF-8").trim_start_matches('/').to_owned()
}

/// > C24: A cache in memory is a mount's own: it leaves no file anywhere, and is gone when the mount's process ends, however that ends.
#[test]
fn a_cache_in_memory_leaves_no_file() {
    for person in TestUser::all() {
        let site = Site::new(person);
        let claims = if person.uid == 0 { "no" } else { "yes" };
        let lines = "CVMFS_CACHE_PRIMARY=quick\nCVMFS_CACHE_quick_TYPE=ram\nCVMFS_CACHE_quick_SIZE=50\n";
        site.write(LOCAL, &format!("{lines}CVMFS_CLAIM_OWNERSHIP={claims}\n"));
        let mounted = site.mount().expect("a mount");
        let found = mounted.does(|| scan_tree(&mounted.path("")));
        let complaints = differences(&fixture::FULL.listing(TAGS[2]), &found, person.ownership());
        assert!(complaints.is_empty(), "{}", complaints.join("\n  "));
        let status = mounted.status();
        let cache = &status["cache"];
        assert_eq!(cache["quota"].as_u64(), Some(50 << 20), "{cache}");
        assert!(cache["objects"].as_u64() > Some(50), "{cache}");
        assert_eq!(site.caches(), 0, "in the folder of caches");
        // It works: read objects are not fetched again.
        let (file, before) = (large(&site), site.objects_asked_for());
        let bytes = read_anew(&mounted, &file);
        assert_eq!(read_anew(&mounted, &file), bytes);
        assert_eq!(site.objects_asked_for(), before);
        // Where it is means something to its process alone, and nothing once that is killed.
        let pid = u32::try_from(status["pid"].as_u64().expect("its process")).expect("a number");
        let folder = cache["directory"].as_str().expect("a folder");
        let folder = folder.replacen("/proc/self", &format!("/proc/{pid}"), 1);
        assert!(Path::new(&folder).is_dir(), "{folder}");
        signal(pid, Signal::KILL);
        wait_until_gone(pid);
        assert!(!Path::new(&folder).exists());
        drop(mounted);
        site.write(LOCAL, "");
        site.lists(&["--cache", "ram", "--quota", "50M"]);
        assert_eq!(site.caches(), 0);
    }
}

/// > C25: What is streamed is not kept: catalogs are, and content of files is fetched whenever the kernel asks for it.
#[test]
fn streamed_files_are_not_cached() {
    let site = Site::new(TestUser::ordinary());
    let kept = |lines: &str| {
        site.write(LOCAL, lines);
        let mounted = site.mount().expect("a mount");
        let file = large(&site);
        let mut asked = Vec::new();
        let bytes = read_anew(&mounted, &file);
        for _ in 0..2 {
            let before = site.objects_asked_for();
            assert_eq!(read_anew(&mounted, &file), bytes);
            asked.push(site.objects_asked_for() - before);
        }
        let found = mounted.does(|| scan_tree(&mounted.path("")));
        let complaints = differences(&fixture::FULL.listing(TAGS[2]), &found, site.world.person.ownership());
        assert!(complaints.is_empty(), "{}", complaints.join("\n  "));
        (asked, mounted.status()["cache"]["objects"].as_u64().expect("a number"))
    };
    let (asked, streamed) = kept("CVMFS_STREAMING_CACHE=yes\n");
    assert!(asked.iter().all(|again| *again > 0), "{asked:?}");
    let (_, all) = kept("");
    let catalogs = fs::read_dir(site.world.repository.path().join("data")).expect("objects");
    let catalogs = catalogs.flat_map(|two| fs::read_dir(two.expect("a folder").path()).into_iter().flatten());
    let catalogs =
        catalogs.filter(|name| name.as_ref().expect("a name").file_name().to_string_lossy().ends_with('C'));
    let catalogs = catalogs.count() as u64;
    assert!(
        streamed > 0 && streamed <= catalogs && all > catalogs,
        "{streamed}, {all} of {catalogs} catalogs"
    );
}

/// Files in a folder and those below.
fn files_below(folder: &Path) -> usize {
    let Ok(entries) = fs::read_dir(folder) else { return 0 };
    let paths = entries.map(|entry| entry.expect("an entry").path());
    paths.map(|path| if path.is_dir() { files_below(&path) } else { 1 }).sum()
}

/// Waits until fetched objects are in the lower tier: they are stored when the worker is idle, and unmounting doesn't
/// wait for that.
fn until_given(mounted: &Mounted<'_>, fetched: usize) {
    let given = |status: &serde_json::Value| status["cache"]["lower"]["given"].as_u64().unwrap_or(0);
    mounted.wait_until("giving to the lower tier", |status| given(status) >= fetched as u64);
}

#[test]
fn named_caches_are_in_their_configured_folders() {
    let site = Site::new(TestUser::ordinary());
    let base = site.world.path("home/caches");
    let at = base.display();
    let primary = "CVMFS_CACHE_PRIMARY=near\nCVMFS_CACHE_near_QUOTA_LIMIT=77\n";
    for (lines, folder, quota) in [
        (format!("{primary}CVMFS_CACHE_near_BASE={at}\nCVMFS_CACHE_near_SHARED=yes\n"), "esker", 77),
        (format!("{primary}CVMFS_CACHE_near_BASE={at}\n"), "esker-full.test", 77),
        (format!("{primary}CVMFS_CACHE_near_DIR={at}/own\n"), "own/esker", 77),
        (format!("CVMFS_CACHE_DIR={at}/one\n"), "one/esker", 1000),
    ] {
        site.write(LOCAL, &lines);
        let mounted = site.mount().unwrap_or_else(|output| panic!("{lines}: {}", words(&output)));
        read_anew(&mounted, &large(&site));
        let cache = &mounted.status()["cache"];
        assert_eq!(cache["directory"].as_str().map(Path::new), Some(base.join(folder).as_path()), "{lines}");
        assert_eq!(cache["quota"].as_u64(), Some(quota << 20), "{lines}");
        drop(mounted);
        assert!(files_below(&base.join(folder)) > 1, "{lines}");
    }
    let tiers = "CVMFS_CACHE_PRIMARY=both\nCVMFS_CACHE_both_TYPE=tiered\nCVMFS_CACHE_both_UPPER=near\n\
         CVMFS_CACHE_both_LOWER=far\nCVMFS_CACHE_far_ALIEN=/far\nCVMFS_CACHE_far_QUOTA_LIMIT=-1\n\
         CVMFS_CACHE_near_TYPE=ram\n";
    let far = site.world.path("root/far");
    fs::create_dir(&far).expect("a folder");
    std::os::unix::fs::chown(&far, Some(site.world.person.uid), Some(site.world.person.gid))
        .expect("an owner");
    // A read-only tier stays as it is; otherwise it gets the fetched objects, and the next mount doesn't fetch them.
    for (read_only, filled) in [("yes", false), ("no", true)] {
        site.write(LOCAL, &format!("{tiers}CVMFS_CACHE_both_LOWER_READONLY={read_only}\n"));
        let before = site.objects_asked_for();
        let mounted = site.mount().unwrap_or_else(|output| panic!("{read_only}: {}", words(&output)));
        mounted.does(|| scan_tree(&mounted.path("")));
        if filled {
            until_given(&mounted, site.objects_asked_for() - before);
        }
        drop(mounted);
        assert_eq!(files_below(&far) > 50, filled, "read-only: {read_only}");
    }
    let before = site.objects_asked_for();
    let mounted = site.mount().expect("a mount");
    mounted.does(|| scan_tree(&mounted.path("")));
    let fetched = site.objects_asked_for() - before;
    assert!(fetched < 10, "{fetched} objects were fetched");
}
