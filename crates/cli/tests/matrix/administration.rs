//! Repositories listed, described, configured, rotated and removed with the binary.

use std::fs;

use serde_json::Value;

use crate::publishing::{NAME, Workshop};
use crate::test_env::words;
use crate::test_user::TestUser;

impl Workshop {
    #[track_caller]
    fn told(&self, arguments: &[&str]) -> Value {
        let output = self.esker(&[arguments, &["--json"]].concat());
        assert!(output.status.success(), "{arguments:?}: {}", words(&output));
        serde_json::from_slice(&output.stdout).expect("JSON from esker")
    }

    /// Returns the output of a command that must end with this code.
    #[track_caller]
    fn refused(&self, arguments: &[&str], code: i32) -> String {
        let output = self.esker(arguments);
        assert_eq!(output.status.code(), Some(code), "{arguments:?}: {}", words(&output));
        words(&output)
    }
}

#[test]
fn a_repository_is_described_with_missing_keys_and_damaged_files() {
    let workshop = Workshop::with(TestUser::ordinary(), |_| ());
    workshop.create();
    let info = workshop.told(&["repo", "info", NAME]);
    assert_eq!((&info["revision"], &info["signatures_verified"]), (&0.into(), &true.into()), "{info}");
    assert_eq!(info["problems"], Value::Array(Vec::new()));
    let root = workshop.home(&format!("storage/{NAME}"));
    let by_folder = workshop.told(&["repo", "info", &root]);
    assert_eq!(by_folder["root_hash"], info["root_hash"]);
    let key = workshop.home(&format!("keys/{NAME}.pub"));
    let by_url = workshop.told(&["repo", "info", &format!("file://{root}"), "--public-key", &key]);
    assert_eq!((&by_url["revision"], &by_url["signatures_verified"]), (&0.into(), &true.into()), "{by_url}");

    fs::remove_file(&key).expect("the key");
    fs::write(format!("{root}/.cvmfswhitelist"), "nonsense").expect("a whitelist");
    let info = workshop.told(&["repo", "info", NAME]);
    assert_eq!((&info["revision"], &info["whitelist"]), (&0.into(), &Value::Null), "{info}");
    assert_eq!(info["problems"][0]["part"], "whitelist");
    let listed = workshop.esker(&["repo", "info", NAME]);
    assert!(listed.status.success() && words(&listed).contains("whitelist"), "{}", words(&listed));
    workshop.refused(&["repo", "info", "no.such.test"], 2);
}

#[test]
fn settings_change_by_name_and_unknown_ones_get_a_suggestion() {
    let workshop = Workshop::with(TestUser::ordinary(), |_| ());
    workshop.create();
    let told = workshop.told(&["repo", "set", NAME, "compression=none", "--dry-run"]);
    assert_eq!(told["changed"], false);
    let told = workshop.told(&["repo", "set", NAME, "compression=none", "--unset", "xattrs"]);
    assert_eq!(told["settings"]["changed"][0]["after"], "none", "{told}");
    assert!(workshop.refused(&["repo", "set", NAME, "compresion=none"], 2).contains("`compression`"));
    workshop.refused(&["repo", "set", NAME, "ttl=never"], 2);
    workshop.refused(&["repo", "set", NAME, "ttl"], 2);
    let conf = workshop.home("conf");
    workshop.told(&["repo", "export-config", NAME, "--to", &conf]);
    let conf = format!("{conf}/server.conf");
    assert!(fs::read_to_string(&conf).expect("a file").contains("CVMFS_COMPRESSION_ALGORITHM=none\n"));
    let taken = workshop.told(&["repo", "import", NAME, "--config", &conf]);
    assert_eq!((&taken["taken_over"], &taken["result"]["revision"]), (&true.into(), &0.into()));
}

#[test]
fn a_rotated_repository_is_removed_only_after_confirmation() {
    let workshop = Workshop::with(TestUser::ordinary(), |tree| fs::create_dir_all(tree).expect("a folder"));
    workshop.create();
    let started = workshop.told(&["key", "rotate", NAME]);
    assert_eq!(started["rotation"]["finished"], false);
    let finished = workshop.told(&["key", "rotate", NAME, "--finish"]);
    assert_eq!(finished["rotation"]["finished"], true, "{finished}");
    let keys = workshop.told(&["key", "list", NAME]);
    assert_eq!(keys["certificates"].as_array().map(Vec::len), Some(1), "{keys}");
    let planned = workshop.told(&["repo", "remove", NAME, "--dry-run"]);
    assert_eq!(planned["removed"], false);
    assert!(workshop.refused(&["repo", "remove", NAME], 1).contains("--yes"));
    let storage = workshop.home("storage");
    let listed =
        workshop.world.esker(&["repo", "list", "--json", "--storage", &storage]).output().expect("esker");
    assert!(words(&listed).contains(NAME), "{}", words(&listed));
    workshop.told(&["repo", "remove", NAME, "--yes"]);
    assert!(!std::path::Path::new(&format!("{storage}/{NAME}")).exists());
    workshop.refused(&["repo", "remove", NAME, "--yes"], 2);
}
