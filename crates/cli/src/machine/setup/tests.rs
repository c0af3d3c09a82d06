use std::os::unix::fs::PermissionsExt;

use super::*;

fn file(path: &str, text: &str) -> Item {
    Item::File { path: path.into(), text: text.into(), mode: 0o755 }
}

fn wanted(text: &str) -> Vec<Item> {
    vec![
        file("/etc/new/map", text),
        Item::Link { path: "/usr/sbin/mount.x".into(), target: "/usr/bin/x".into() },
        Item::Line { path: "/etc/fstab".into(), text: "a b c".into() },
    ]
}

/// Returns all files below a folder, with their content.
fn everything(folder: &Path) -> Vec<(PathBuf, String)> {
    let mut all = Vec::new();
    for entry in fs::read_dir(folder).expect("a folder") {
        let path = entry.expect("an entry").path();
        let meta = fs::symlink_metadata(&path).expect("metadata");
        if meta.is_dir() {
            all.push((path.clone(), "folder".into()));
            all.extend(everything(&path));
        } else if meta.is_symlink() {
            all.push((path.clone(), fs::read_link(&path).expect("a link").display().to_string()));
        } else {
            let mode = meta.permissions().mode() & 0o7777;
            all.push((path.clone(), format!("{mode:o} {}", fs::read_to_string(&path).expect("text"))));
        }
    }
    all.sort();
    all
}

/// Returns a machine with a table of file systems that doesn't end with a newline.
fn machine() -> (tempfile::TempDir, Machine) {
    let base = tempfile::tempdir().expect("a folder");
    fs::create_dir(base.path().join("etc")).expect("a folder");
    fs::write(base.path().join("etc/fstab"), "root / ext4\nhome /home ext4\n").expect("a file");
    fs::set_permissions(base.path().join("etc/fstab"), fs::Permissions::from_mode(0o664)).expect("a mode");
    let machine = Machine::at(base.path());
    (base, machine)
}

#[test]
fn undo_removes_exactly_the_created_files() {
    let (base, machine) = machine();
    let before = everything(base.path());
    let plan = Plan::new(&machine, wanted("one")).expect("a plan");
    assert_eq!(everything(base.path()), before, "planning changed something");
    plan.apply(&machine).expect("made");
    let after = everything(base.path());
    let said = |name: &str| {
        after.iter().find(|(path, _)| path.ends_with(name)).map(|(_, text)| text.as_str()).unwrap_or_default()
    };
    assert_eq!(said("etc/new/map"), "755 one");
    assert_eq!(said("usr/sbin/mount.x"), "/usr/bin/x");
    assert_eq!(said("etc/fstab"), "664 root / ext4\nhome /home ext4\na b c\n");
    // A second call finds nothing to do.
    assert!(Plan::new(&machine, wanted("one")).expect("a plan").missing.is_empty());
    assert!(undo(&machine, true).expect("told").iter().all(|left| matches!(left, Left::Gone(_))));
    assert_eq!(everything(base.path()), after, "telling changed something");
    let left = undo(&machine, false).expect("undone");
    assert!(left.iter().all(|left| matches!(left, Left::Gone(_))), "{left:?}");
    assert_eq!(everything(base.path()), before);
}

#[test]
fn an_earlier_version_of_ours_is_replaced() {
    let (base, machine) = machine();
    Plan::new(&machine, wanted("one")).expect("a plan").apply(&machine).expect("made");
    let plan = Plan::new(&machine, wanted("two")).expect("a plan");
    assert_eq!(plan.missing.len(), 1, "{plan:?}");
    plan.apply(&machine).expect("made");
    assert_eq!(fs::read_to_string(base.path().join("etc/new/map")).expect("text"), "two");
    undo(&machine, false).expect("undone");
    assert!(!base.path().join("etc/new").exists());
}

#[test]
fn files_made_or_changed_by_others_stay() {
    let (base, machine) = machine();
    fs::create_dir_all(base.path().join("etc/new")).expect("a folder");
    fs::write(base.path().join("etc/new/map"), "theirs").expect("a file");
    let before = everything(base.path());
    let failure = Plan::new(&machine, wanted("one")).expect_err("a file of others");
    assert!(failure.message.contains("/etc/new/map"), "{failure:?}");
    assert_eq!(everything(base.path()), before, "something was changed");
    fs::remove_file(base.path().join("etc/new/map")).expect("removing");

    Plan::new(&machine, wanted("one")).expect("a plan").apply(&machine).expect("made");
    fs::write(base.path().join("etc/new/map"), "changed").expect("a file");
    assert!(Plan::new(&machine, wanted("two")).is_err(), "a changed file is not ours any more");
    let left = undo(&machine, false).expect("undone");
    let kept: Vec<_> = left.iter().filter(|left| matches!(left, Left::Kept(..))).collect();
    assert_eq!(kept, [&Left::Kept("/etc/new/map".into(), "it was changed since")]);
    assert_eq!(fs::read_to_string(base.path().join("etc/new/map")).expect("text"), "changed");
}

/// The record is written before anything is made: a call that was killed in between can be undone, and repeated.
#[test]
fn a_killed_setup_can_be_undone_and_repeated() {
    let (base, machine) = machine();
    Plan::new(&machine, wanted("one")).expect("a plan").apply(&machine).expect("made");
    let mut plan = Plan::new(&machine, wanted("two")).expect("a plan");
    plan.record.add(plan.missing.iter().map(Item::made));
    plan.record.write(&machine).expect("recorded");
    // Neither the old nor the new version counts as a foreign file.
    Plan::new(&machine, wanted("two")).expect("a plan").apply(&machine).expect("made");
    let left = undo(&machine, false).expect("undone");
    assert!(left.iter().all(|left| matches!(left, Left::Gone(_))), "{left:?}");
    assert!(!base.path().join("etc/new").exists());
}
