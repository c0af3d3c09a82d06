//! Transactions of one directory of the repository.

use std::fs;
use std::path::Path;

use super::Publisher;
use crate::publishing::NAME;
use crate::test_env::{complaint, printed};
use crate::test_user::TestUser;

/// A command changes the directory of its transaction and nothing else.
#[test]
fn the_rest_of_the_tree_is_read_only() {
    for person in TestUser::all() {
        let publisher = Publisher::new(person);
        let script = "pwd; touch e/new; mv e/f e/moved; chmod 711 .; for other in ../g ../new; do \
                      touch $other 2>>e/errors && exit 9; done; grep -c 'Read-only' e/errors";
        let said = printed(&mut publisher.begin(&["/d", "--tag", "inside"], script));
        assert!(said.starts_with(&format!("/cvmfs/{NAME}/d\n2\n")), "{said}");
        assert_eq!(publisher.reads("stat -c %a d; ls d/e; ls"), "711\nerrors\nmoved\nnew\nd\ng\n");
    }
}

/// Kernels that don't keep the rest read-only let a command change it, which is refused later. The changes can be dropped.
#[test]
fn changes_elsewhere_are_refused_and_dropped_by_name() {
    let publisher = Publisher::new(TestUser::ordinary());
    printed(&mut publisher.begin(&["/d", "--keep"], "touch inside"));
    let id = publisher.list()[0]["id"].as_str().expect("an id").to_owned();
    let upper = Path::new(&publisher.workshop.home("transactions")).join(&id).join("upper");
    publisher.workshop.world.person.does(|| fs::write(upper.join("outside"), "")).expect("a file");
    let text = complaint(&mut publisher.call(&["publish", &id]), 2);
    assert!(text.contains("/outside") && !text.contains("/inside") && text.contains("is kept"), "{text}");
    assert!(text.contains("--drop PATH"), "{text}");
    let text = complaint(&mut publisher.call(&["publish", &id, "--drop", "/typo"]), 2);
    assert!(text.contains("changes nothing at `/typo`"), "{text}");
    printed(&mut publisher.call(&["publish", &id, "--drop", "/outside", "--quiet"]));
    assert_eq!(publisher.reads("ls; ls d"), "d\ng\ne\ninside\n");
}

/// A mistyped directory is refused before the command runs; a new one is made on request.
#[test]
fn a_directory_is_made_on_request_only() {
    let publisher = Publisher::new(TestUser::ordinary());
    for (path, options, said) in [
        ("/typo", &[][..], "--create makes it"),
        ("/typo/deep", &["--create"][..], "no directory /typo"),
        ("/g", &["--create"][..], "it is no directory"),
    ] {
        let text = complaint(&mut publisher.begin(&[&[path], options].concat(), "echo ran >&2"), 2);
        assert!(text.contains(said) && text.contains(path) && !text.contains("ran\n"), "{text}");
    }
    assert_eq!((publisher.list().len(), publisher.revision()), (0, 1));
    printed(&mut publisher.begin(&["/new", "--create"], "pwd; echo 1 >file"));
    printed(&mut publisher.begin(&["/new"], "mkdir place; echo 2 >place/file"));
    assert_eq!(publisher.reads("cat new/file new/place/file"), "1\n2\n");
}
