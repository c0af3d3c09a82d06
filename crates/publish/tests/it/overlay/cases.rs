//! One case each for what overlayfs does in its own way.

use std::fs;
use std::sync::atomic::AtomicBool;

use esker_publish::{Compared, FileSide, PublishError};
use esker_repository::{Balance, RepositoryError, SettingsChange};
use esker_testkit::skip;

use super::{Marks, Scene, may_mount, sh};
use crate::workshop::{Workshop, now};

/// Publishes a tree, runs a script in the merged one, and publishes that.
#[track_caller]
fn after(tree: &str, script: &str) -> Vec<String> {
    let mut changed = Vec::new();
    for marks in [Marks::Trusted, Marks::User] {
        let workshop = Workshop::new();
        sh(&workshop.source(), tree);
        let mut scene = Scene::over(workshop, marks);
        sh(&scene.merged(), script);
        changed = scene.changed_paths();
        scene.publish();
    }
    changed
}

macro_rules! needs_overlay {
    () => {
        if !may_mount() {
            skip!("this user may not mount overlays in this namespace");
        }
    };
}

#[test]
fn removed_entries_are_whiteouts_and_are_removed() {
    needs_overlay!();
    let changed = after("mkdir -p d/e; touch f d/g d/e/h", "rm f; rm -r d/e");
    assert_eq!(changed, ["changed /", "changed /d", "removed /d/e", "removed /d/e/h", "removed /f"]);
}

#[test]
fn changed_files_are_compared_by_contents_up_to_a_limit() {
    needs_overlay!();
    let workshop = Workshop::new();
    sh(&workshop.source(), "printf old >f; printf gone >g; ln -s f l; mkdir d; head -c 100 /dev/zero >large");
    let scene = Scene::over(workshop, Marks::Trusted);
    sh(&scene.merged(), "printf new >f; rm g l; printf 1 >l; printf more >>large; ln -s f d/link");
    let (mut seen, root) = (Vec::new(), scene.workshop().root());
    let side = |side: Option<FileSide>| {
        side.map(|side| (side.size, side.content.map(|content| String::from_utf8(content).unwrap())))
    };
    let mut each = |compared: Compared| {
        let path = String::from_utf8(compared.change.path).unwrap();
        seen.push((path, side(compared.old), side(compared.new)));
        true
    };
    assert!(scene.upper.compare(&root, 10, &AtomicBool::new(false), &mut each).unwrap());
    let text = |content: &str| Some((content.len() as u64, Some(content.to_owned())));
    let expected = [
        ("/", None, None),
        ("/d", None, None),
        ("/d/link", None, None),
        ("/f", text("old"), text("new")),
        ("/g", text("gone"), None),
        ("/l", None, text("1")),
        ("/large", Some((100, None)), Some((104, None))),
    ];
    assert_eq!(seen, expected.map(|(path, old, new)| (path.to_owned(), old, new)));
}

#[test]
fn a_directory_that_was_made_again_has_nothing_of_the_old_one() {
    needs_overlay!();
    let changed = after("mkdir -p d/e; touch d/a d/e/b", "rm -r d; mkdir d d/e; touch d/c");
    for path in ["removed /d/a", "removed /d/e/b", "added /d/c", "changed /d"] {
        assert!(changed.iter().any(|change| change == path), "{path}: {changed:?}");
    }
}

#[test]
fn renamed_directories_are_copied_and_named_in_whole() {
    needs_overlay!();
    let changed = after("mkdir -p d/e; echo 1 >d/e/f", "mv d new");
    for path in ["added /new/e/f", "removed /d/e/f"] {
        assert!(changed.iter().any(|change| change == path), "{path}: {changed:?}");
    }
}

#[test]
fn a_file_takes_the_place_of_a_directory_and_the_other_way_round() {
    needs_overlay!();
    after("mkdir -p d/e; touch d/e/f g; ln -s x s", "rm -r d; touch d; rm g; mkdir -p g/h; rm s; mkdir s");
}

#[test]
fn an_unchanged_copied_up_file_is_no_change() {
    needs_overlay!();
    let script = "touch -r f ref; cp f copy; cat copy >f; touch -r ref f; rm ref copy; touch -r d ref; \
                  : >>d/g; rm ref; touch -d @1000000000 .";
    let changed = after("mkdir d; echo text >f; echo x >d/g; touch -d @1000000000 .", script);
    assert_eq!(changed, [""; 0]);
}

#[test]
fn a_new_mode_or_time_changes_an_entry_and_stores_nothing() {
    needs_overlay!();
    let workshop = Workshop::new();
    sh(&workshop.source(), "mkdir d; head -c 100000 /dev/urandom >d/f");
    let mut scene = Scene::over(workshop, Marks::User);
    sh(&scene.merged(), "chmod 600 d/f; touch -d @1500000000 d");
    let report = scene.publish();
    assert_eq!((report.differences.changed.total(), report.files_read), (2, 0));
}

#[test]
fn one_name_of_a_hard_link_group_leaves_it_when_it_is_written() {
    needs_overlay!();
    let tree = "echo 1 >a; ln a b; ln a c";
    let changed = after(tree, "echo 2 >b");
    assert_eq!(changed, ["changed /a", "changed /b", "changed /c"]);
    assert_eq!(after(tree, "rm a b"), ["changed /", "removed /a", "removed /b", "changed /c"]);
}

#[test]
fn one_name_of_a_hard_link_group_stays_in_it_when_it_was_only_copied_up() {
    needs_overlay!();
    let workshop = Workshop::new();
    sh(&workshop.source(), "echo 1 >a; ln a b");
    let mut scene = Scene::over(workshop, Marks::User);
    sh(&scene.merged(), ": >>a");
    assert_eq!(scene.changed_paths(), [""; 0]);
    scene.leave();
    assert!(!scene.try_publish().unwrap().published);
}

#[test]
fn a_group_keeps_its_links_when_one_name_was_only_copied_up_beside_other_changes() {
    needs_overlay!();
    assert_eq!(after("echo 1 >a; ln a b", ": >>a; echo 2 >c"), ["changed /", "added /c"]);
}

#[test]
fn new_hard_links_within_a_directory_are_a_group() {
    needs_overlay!();
    after("mkdir d; echo 1 >d/a; ln d/a d/b", "cd d; ln a x; ln a y; echo 2 >n; ln n m; ln n ../far");
}

#[test]
fn an_equal_copy_in_place_of_a_linked_file_is_no_link() {
    needs_overlay!();
    let changed =
        after("echo 1 >a; touch -d @1000000000 .", "ln a b; cp -a a c; rm a; mv c a; touch -d @1000000000 .");
    assert_eq!(changed, ["added /b"]);
}

#[test]
fn markers_make_and_end_nested_catalogs() {
    needs_overlay!();
    let tree = "mkdir -p a/b c; touch a/.cvmfscatalog a/b/f c/g";
    after(tree, "rm a/.cvmfscatalog; touch c/.cvmfscatalog");
    after(tree, "rm -r a; mkdir a; touch a/n");
    after(tree, "rm -r a; mkdir a; touch a/.cvmfscatalog a/n");
}

/// Makes nine files in `/n1`, of which a balance of eight makes a catalog.
const NINE_FILES: &str = "mkdir n1; for file in 1 2 3 4 5 6 7 8 9; do : >n1/$file; done";

fn workshop_with_balance() -> Workshop {
    Workshop::with(|new| new.settings.balance = Some(Balance { max: 8, min: 3 }))
}

fn catalogs(scene: &Scene) -> Vec<String> {
    scene.workshop().check().catalogs.into_keys().collect()
}

#[test]
fn a_removed_marker_is_replaced_by_a_hidden_one_where_the_balance_needs_it() {
    needs_overlay!();
    let workshop = workshop_with_balance();
    sh(&workshop.source(), &format!("{NINE_FILES}; : >n1/.cvmfscatalog"));
    let mut scene = Scene::over(workshop, Marks::Trusted);
    sh(&scene.merged(), "rm n1/.cvmfscatalog");
    assert_eq!(scene.changed_paths(), ["changed /n1", "removed /n1/.cvmfscatalog"]);
    scene.publish();
    assert_eq!(catalogs(&scene), ["", "/n1"]);
}

#[test]
fn a_removed_marker_is_replaced_by_a_hidden_one_where_a_rule_asks_for_it() {
    needs_overlay!();
    let workshop = Workshop::new();
    sh(&workshop.source(), "mkdir n1; : >n1/.cvmfscatalog; echo /n1 >.cvmfsdirtab");
    let mut scene = Scene::over(workshop, Marks::Trusted);
    sh(&scene.merged(), "rm n1/.cvmfscatalog");
    scene.publish();
    assert_eq!(catalogs(&scene), ["", "/n1"]);
}

/// A mount doesn't list hidden markers, but a command can remove them by name.
#[test]
fn a_command_removes_markers_of_the_balance_only_while_it_is_off() {
    needs_overlay!();
    let workshop = workshop_with_balance();
    sh(&workshop.source(), NINE_FILES);
    let mut scene = Scene::over(workshop, Marks::Trusted);
    scene.leave();
    assert_eq!(catalogs(&scene), ["", "/n1"]);
    let source = scene.workshop().source();
    let source = source.display();
    let script =
        format!("mkdir n1; mknod n1/.cvmfscatalog c 0 0; touch -r {source}/n1 n1; touch -r {source} .");
    sh(&scene.upper.folder, &script);
    assert_eq!(scene.changed_paths(), [""; 0]);
    let off = SettingsChange { values: vec![("catalog_balance".to_owned(), Some("off".to_owned()))] };
    off.run(&scene.workshop().root(), || Ok(scene.workshop().open()), now()).unwrap();
    assert_eq!(scene.changed_paths(), ["removed /n1/.cvmfsautocatalog", "removed /n1/.cvmfscatalog"]);
    assert!(scene.try_publish().unwrap().published);
    scene.workshop().assert_equal();
    assert_eq!(catalogs(&scene), [""]);
}

#[test]
fn rules_make_nested_catalogs_of_directories_that_the_command_never_saw() {
    needs_overlay!();
    let workshop = Workshop::new();
    sh(&workshop.source(), "mkdir -p a/x b/y; touch a/x/f b/y/g");
    let mut scene = Scene::over(workshop, Marks::User);
    sh(&scene.merged(), "echo '/*' >.cvmfsdirtab; mkdir c");
    let report = scene.publish();
    assert_eq!(report.catalogs_written, 4);
}

#[test]
fn reserved_names_are_refused_and_named() {
    needs_overlay!();
    for (script, path) in [
        ("mkdir .cvmfs; touch .cvmfs/x", "`/.cvmfs`"),
        ("touch .cvmfscatalog", "`/.cvmfscatalog`"),
        ("mkdir -p d/.cvmfscatalog", "`/d/.cvmfscatalog`"),
    ] {
        let scene = Scene::over(Workshop::new(), Marks::User);
        sh(&scene.merged(), script);
        let error = scene.try_publish().unwrap_err();
        assert!(
            matches!(error, PublishError::Repository(RepositoryError::Target { .. }))
                && error.to_string().contains(path),
            "{error}"
        );
    }
}

#[test]
fn marks_of_other_overlay_options_are_refused_and_named() {
    needs_overlay!();
    for mark in ["redirect", "metacopy"] {
        let mut scene = Scene::over(Workshop::new(), Marks::User);
        scene.leave();
        let place = scene.upper.folder.join("d");
        fs::create_dir(&place).unwrap();
        let name = format!("user.overlay.{mark}");
        rustix::fs::setxattr(&place, name, b"/x", rustix::fs::XattrFlags::empty()).unwrap();
        let error = scene.try_publish().unwrap_err();
        assert!(error.to_string().contains("`/d`"), "{error}");
    }
}

#[test]
fn whiteouts_that_are_attributes_remove_as_devices_do() {
    needs_overlay!();
    let workshop = Workshop::new();
    sh(&workshop.source(), "mkdir d; touch d/a d/b");
    let mut scene = Scene::over(workshop, Marks::User);
    scene.leave();
    let place = scene.upper.folder.join("d");
    fs::create_dir(&place).unwrap();
    fs::write(place.join("a"), b"").unwrap();
    let mark = |path: &std::path::Path, name: &str, value: &[u8]| {
        rustix::fs::setxattr(path, name, value, rustix::fs::XattrFlags::empty()).unwrap();
    };
    mark(&place, "user.overlay.opaque", b"x");
    mark(&place.join("a"), "user.overlay.whiteout", b"y");
    assert!(scene.changed_paths().contains(&"removed /d/a".to_owned()));
    assert!(!scene.changed_paths().contains(&"removed /d/b".to_owned()));
}

#[test]
fn odd_names_modes_and_kinds_are_kept() {
    needs_overlay!();
    let script = r#"
        printf x >"$(printf 'new\nline')"; printf y >' '; : >'a b*?[\'; mkdir .hidden -- -dash
        touch dark; chmod 000 dark; mkdir closed; touch closed/in; chmod 000 closed
        chmod u+s old; mkfifo pipe; mknod device c 1 3; ln -s /nowhere/at/all dangling; chmod 1777 d
    "#;
    after("touch old; mkdir d", script);
}

#[test]
fn attributes_are_kept_and_marks_of_the_overlay_are_not() {
    needs_overlay!();
    let tree = "touch f; mkdir d; setfattr -n user.a -v 1 f 2>/dev/null || true";
    let script = "rm -r d; mkdir d; touch d/n";
    for marks in [Marks::Trusted, Marks::User] {
        let workshop = Workshop::new();
        sh(&workshop.source(), tree);
        let mut scene = Scene::over(workshop, marks);
        sh(&scene.merged(), script);
        let set = |path: &str| {
            let path = scene.merged().join(path);
            rustix::fs::setxattr(path, "user.b", b"2", rustix::fs::XattrFlags::empty()).unwrap();
        };
        ["f", "d", "d/n"].into_iter().for_each(set);
        scene.publish();
    }
}

#[test]
fn changes_outside_of_the_directory_of_the_transaction_are_refused_and_named() {
    needs_overlay!();
    let workshop = Workshop::new();
    sh(&workshop.source(), "mkdir -p a/b c; touch c/f");
    let mut scene = Scene::over(workshop, Marks::User);
    scene.upper.within = b"/a/b/new".to_vec();
    sh(&scene.merged(), "mkdir a/b/new; touch a/b/new/f");
    assert_eq!(scene.changed_paths(), ["changed /a/b", "added /a/b/new", "added /a/b/new/f"]);
    sh(&scene.merged(), "touch c/g");
    let error = scene.try_publish().unwrap_err();
    assert!(matches!(error, PublishError::Outside { .. }), "{error}");
    assert!(error.to_string().contains("/c/g") && !error.to_string().contains("/a/b/new,"), "{error}");
}

#[test]
fn changes_that_rules_ignore_are_not_published() {
    needs_overlay!();
    let workshop = Workshop::new();
    sh(&workshop.source(), "mkdir d; touch d/a.o b.o; echo '*.o' >.eskerignore");
    let mut scene = Scene::over(workshop, Marks::User);
    sh(&scene.merged(), "rm b.o; echo 1 >d/a.o; touch d/c.o d/c; touch -d @1000000000 d .");
    assert_eq!(scene.changed_paths(), ["changed /", "changed /d", "added /d/c"]);
    scene.leave();
    assert!(scene.try_publish().unwrap().published);
}

#[test]
fn changes_move_onto_a_newer_revision_or_conflict_with_it() {
    needs_overlay!();
    let workshop = Workshop::new();
    sh(&workshop.source(), "mkdir d e; echo 1 >d/f; echo 1 >e/f");
    let mut scene = Scene::over(workshop, Marks::User);
    sh(&scene.merged(), "echo mine >d/f; touch d/new");
    scene.leave();
    let other = scene.upper.folder.with_file_name("other");
    sh(scene.upper.folder.parent().unwrap(), "mkdir other; echo theirs >other/f; echo theirs >other/g");
    scene.workshop().try_publish(&other, "/e").unwrap();
    let mut second = scene.upper.clone();
    let report = scene.try_publish().unwrap();
    assert_eq!(report.revision, 3);
    let findings = scene.workshop().check();
    findings.assert_clean();
    for path in ["/d/new", "/e/g"] {
        assert!(findings.tree.contains_key(path.as_bytes()), "{path}");
    }
    // The same base once more, but another change of a path that has changed since.
    second.folder = scene.upper.folder.with_file_name("second");
    fs::create_dir_all(second.folder.join("e")).unwrap();
    fs::write(second.folder.join("e/f"), "mine as well").unwrap();
    scene.upper = second;
    let error = scene.try_publish().unwrap_err();
    assert!(matches!(error, PublishError::Conflict { .. }) && error.to_string().contains("/e/f"), "{error}");
}

#[test]
fn large_files_are_compared_by_their_chunks() {
    needs_overlay!();
    let workshop = Workshop::with(|new| {
        new.settings.chunks = esker_format::chunker::ChunkSizes::new(4096, 8192, 16_384).unwrap();
    });
    sh(&workshop.source(), "head -c 100000 /dev/urandom >same; head -c 100000 /dev/urandom >other");
    let mut scene = Scene::over(workshop, Marks::User);
    sh(&scene.merged(), "chmod 600 same; printf x | dd of=other bs=1 seek=99000 conv=notrunc 2>/dev/null");
    let report = scene.publish();
    assert_eq!((report.differences.changed.files, report.files_read), (2, 1));
}
