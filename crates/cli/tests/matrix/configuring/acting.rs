//! Parameters that act on a mount: each is set where sites set it, and seen where users see it.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Output;

use esker_testkit::fixture;
use esker_testkit::revision_builder::RevisionBuilder;

use super::Site;
use crate::test_env::{Mounted, words};
use crate::test_user::TestUser;

/// File for the lines of a case.
pub(super) const LOCAL: &str = "/etc/cvmfs/config.d/full.test.local";

impl Site {
    pub(super) fn mount(&self) -> Result<Mounted<'_>, Output> {
        let mountpoint = self.world.mountpoint();
        let output = self.call(&["mount", "full.test", mountpoint.to_str().expect("UTF-8")]);
        if output.status.success() { Ok(self.world.mounted()) } else { Err(output) }
    }

    /// Returns owner, group and permissions of some entries, with these lines.
    #[track_caller]
    fn looks(&self, lines: &str) -> BTreeMap<PathBuf, (u32, u32, u32)> {
        self.write(LOCAL, lines);
        let mounted = self.mount().unwrap_or_else(|output| panic!("{lines}: {}", words(&output)));
        let mut found = BTreeMap::new();
        mounted
            .does(|| ["", "data", "perm"].iter().for_each(|folder| look(&mounted.path(folder), &mut found)));
        assert!(found.len() > 10, "{found:?}");
        found
    }

    /// Returns a file of the daemon in /proc, with these lines.
    #[track_caller]
    fn process(&self, lines: &str, file: &str) -> String {
        self.write(LOCAL, lines);
        let mounted = self.mount().unwrap_or_else(|output| panic!("{lines}: {}", words(&output)));
        let pid = mounted.status()["pid"].as_u64().expect("its process");
        fs::read_to_string(format!("/proc/{pid}/{file}")).expect("a file of the process")
    }

    #[track_caller]
    pub(super) fn refuses_to_mount(&self, lines: &str, told: &str) {
        self.write(LOCAL, lines);
        let output = self.mount().map(drop).expect_err("mounted");
        assert!(words(&output).contains(told), "{lines}: {told} is not in {}", words(&output));
    }
}

/// Collects the entries of a folder.
fn look(folder: &Path, found: &mut BTreeMap<PathBuf, (u32, u32, u32)>) {
    for entry in fs::read_dir(folder).expect("a folder") {
        let entry = entry.expect("an entry");
        let meta = entry.metadata().expect("metadata");
        found.insert(entry.path(), (meta.uid(), meta.gid(), meta.mode()));
    }
}

#[test]
fn parameters_act_on_mounts() {
    for person in TestUser::all() {
        let site = Site::new(person);
        owners_and_permissions(&site);
        let score = site.process("CVMFS_OOM_SCORE_ADJ=321\n", "oom_score_adj");
        assert_eq!(score.trim(), "321");
        site.refuses_to_mount("CVMFS_OOM_SCORE_ADJ=1001\n", "not from -1000 to 1000");
        let allowed = |text: &str| {
            let line = text.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"));
            line.map(|list| list.trim().to_owned())
        };
        // The last that the tests may use themselves.
        let own = allowed(&fs::read_to_string("/proc/self/status").expect("our own")).expect("a list");
        let last = own.rsplit([',', '-']).next().expect("a processor");
        let status = site.process(&format!("CVMFS_CPU_AFFINITY={last}\n"), "status");
        assert_eq!(allowed(&status).as_deref(), Some(last));
        site.refuses_to_mount("CVMFS_CPU_AFFINITY=all\n", "not a list of processors");
        assert!(site.process("", "cmdline").starts_with("esker\0"));
        assert!(site.process("CVMFS_SYSTEMD_NOKILL=yes\n", "cmdline").starts_with("@esker\0"));

        // Trust: keys and blacklists are those that are configured.
        let other = fs::read_to_string(fixture::RMD.public_key()).expect("another key");
        site.write("/etc/cvmfs/keys/other.pub", &other);
        site.refuses_to_mount(
            "CVMFS_PUBLIC_KEY=/etc/cvmfs/keys/other.pub\n",
            "was not made by any of the 1 public key",
        );
        site.looks("CVMFS_PUBLIC_KEY=/etc/cvmfs/keys/other.pub:/etc/cvmfs/keys/test/test.pub\n");
        site.write("/etc/cvmfs/list", "<full.test 1000000\n");
        site.refuses_to_mount("CVMFS_BLACKLIST=/etc/cvmfs/list\n", "blacklist");
    }
}

/// A repository for members is hidden from all users, since membership can't be checked here.
#[test]
fn a_repository_for_members_is_hidden_from_all_users() {
    let site = Site::new(TestUser::ordinary());
    let craft = RevisionBuilder::of(&site.world.repository);
    let values = "INSERT OR REPLACE INTO properties (key, value) VALUES ('voms_authz', 'x509%/cms')";
    craft.catalog().execute_batch(values).expect("a property");
    craft.publish(&site.world.repository);
    site.refuses_to_mount("", "it is for members of x509%/cms only");
    site.refuses_to_mount("CVMFS_AUTHZ_HELPER=/usr/bin/true\n", "it is for members of x509%/cms only");
}

fn owners_and_permissions(site: &Site) {
    let claimed = site.looks("");
    let own = site.world.person;
    assert!(claimed.values().all(|(uid, gid, _)| (*uid, *gid) == (own.uid, own.gid)), "{claimed:?}");
    let readable = site.looks("CVMFS_WORLD_READABLE=yes\n");
    let more = |mode: u32| mode | if mode & libc::S_IFMT == libc::S_IFDIR { 0o555 } else { 0o444 };
    for (path, (.., mode)) in &claimed {
        assert_eq!(readable.get(path).map(|(.., mode)| *mode), Some(more(*mode)), "{}", path.display());
    }
    assert!(claimed.values().any(|(.., mode)| more(*mode) != *mode), "everything was readable before");
    if !own.is_root() {
        return;
    }
    let published = site.looks("CVMFS_CLAIM_OWNERSHIP=no\n");
    let mut owners: Vec<u32> = published.values().map(|(uid, ..)| *uid).collect();
    owners.sort_unstable();
    owners.dedup();
    let (from, rest) = (owners[0], owners.len());
    site.write("/etc/cvmfs/uids", &format!("# owners\n{from} 4711\n"));
    site.write("/etc/cvmfs/gids", "* 4712\n");
    let maps = "CVMFS_CLAIM_OWNERSHIP=no\nCVMFS_UID_MAP=/etc/cvmfs/uids\nCVMFS_GID_MAP=/etc/cvmfs/gids\n";
    let mapped = site.looks(maps);
    for (path, (uid, ..)) in &published {
        let expected = if *uid == from { 4711 } else { *uid };
        let found = mapped.get(path).map(|(uid, gid, _)| (*uid, *gid));
        assert_eq!(found, Some((expected, 4712)), "{} of {rest} owners", path.display());
    }
    site.write("/etc/cvmfs/uids", "a b\n");
    site.refuses_to_mount(maps, "CVMFS_UID_MAP=/etc/cvmfs/uids");
    site.refuses_to_mount("CVMFS_GID_MAP=/etc/cvmfs/none\n", "CVMFS_GID_MAP=/etc/cvmfs/none");
}
