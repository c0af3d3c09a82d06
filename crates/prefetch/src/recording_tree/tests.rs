use std::path::Path;
use std::time::Duration;

use esker_testkit::memory_tree::{Entry, MemoryTree};
use esker_testkit::waiting::until;
use proptest::prelude::*;

use super::*;
use crate::ReplayerCommand;
use crate::replayer::decode;

const FILES: usize = 1000;

fn tree() -> Arc<MemoryTree> {
    let tree = Arc::new(MemoryTree::new());
    for number in 0..FILES {
        tree.put(&number.to_string(), Entry::directory());
        tree.put(&format!("{number}/file"), Entry::file(b"content"));
    }
    tree
}

/// Returns a mount whose replayer writes its steps to a file.
fn mount(folder: &Path, near: bool) -> RecordingTree {
    let script = format!("cat >> {}", folder.join("told").display());
    let command = ReplayerCommand::of("/bin/sh", vec!["-c".into(), script.into()]);
    let store = SequenceStore::new(Some(folder.join("trails/one")));
    RecordingTree::new(tree(), store, Arc::new(command), Box::new(move || near)).expect("a thread")
}

const PATIENCE: Duration = Duration::from_secs(60);

/// Waits until the replayer has received this step.
fn until_told(folder: &Path, step: &(String, u32)) {
    assert!(
        until(PATIENCE, || requested(folder).contains(step)),
        "{step:?} is not told: {:?}",
        requested(folder)
    );
}

/// Returns the steps that the replayer has received so far, in order.
fn requested(folder: &Path) -> Vec<(String, u32)> {
    let message = std::fs::read(folder.join("told")).unwrap_or_default();
    let (mut steps, mut at) = (Vec::new(), 0);
    while let Some(((path, part), len)) = decode(&message[at..]) {
        steps.push((String::from_utf8_lossy(path).into_owned(), part));
        at += len;
    }
    steps
}

/// Reads one of the directories like a program.
fn visit(mount: &RecordingTree, number: usize) {
    let root = mount.root().node;
    let find = |dir: &Node, name: &str| Reply::wait(|reply| mount.lookup(dir, name.as_bytes(), reply));
    let dir = find(&root, &number.to_string()).expect("it is there").node;
    let _ = find(&dir, "absent").expect_err("it is not there");
    let listing = Reply::wait(|reply| mount.list(&dir, Cookie(0), reply)).expect("a directory");
    // The file is not looked up: the listing returned it.
    let file = listing.entries[0].node;
    Reply::wait(|reply| mount.read(&file, 5, 10, reply)).expect("a file");
}

/// Returns a folder with the recorded sequence of a program that read all directories.
fn after_a_start() -> tempfile::TempDir {
    let folder = tempfile::tempdir().expect("a folder");
    let first = mount(folder.path(), true);
    (0..FILES).for_each(|number| visit(&first, number));
    first.close();
    folder
}

fn steps_of(number: usize) -> [(String, u32); 4] {
    let dir = format!("/{number}");
    [(dir.clone(), NAME), (format!("{dir}/absent"), NAME), (dir.clone(), NAMES), (format!("{dir}/file"), 0)]
}

#[test]
fn requests_of_a_program_are_replayed_at_its_next_start() {
    let folder = after_a_start();
    assert_eq!(requested(folder.path()), [], "nothing was known");

    let second = mount(folder.path(), true);
    visit(&second, 0);
    until_told(folder.path(), &steps_of(5)[2]);
    second.close();
    let all: Vec<_> = (0..FILES).flat_map(steps_of).collect();
    let begun = requested(folder.path());
    assert!(begun.len() >= 20 && begun.len() < 80, "a few steps: {}", begun.len());
    let ahead: Vec<_> = all[1..].iter().filter(|step| begun.contains(step)).cloned().collect();
    assert_eq!(begun, ahead, "in order, each once");

    // A program that continues gets more and more steps.
    let third = mount(folder.path(), true);
    (0..FILES).for_each(|number| visit(&third, number));
    until_told(folder.path(), &steps_of(FILES - 1)[2]);
    third.close();
    let whole = requested(folder.path()).split_off(begun.len());
    let kept = all.len() - 1 - whole.len();
    assert!((1..100).contains(&kept), "{kept} steps were withheld, or the program was faster");
}

#[test]
fn arrived_bytes_are_replayed_and_not_recorded() {
    let folder = tempfile::tempdir().expect("a folder");
    let mount = mount(folder.path(), false);
    let arrivals = [
        ("/0/file", 0..7, true),
        ("/large", UNIT + 1..4 * UNIT + 1, false),
        ("/large", 4 * UNIT..5 * UNIT + 1, true),
        ("/small part", 1..UNIT - 1, false),
        ("/beyond all", u64::MAX - 1..u64::MAX, true),
    ];
    for (path, range, ends) in arrivals {
        mount.arrived(path.as_bytes(), range, ends);
    }
    (0..FILES).for_each(|number| visit(&mount, number));
    until_told(folder.path(), &("/0/absent".to_owned(), NAME));
    mount.close();
    let steps = [("/", NAMES), ("/0", NAMES), ("/0/file", 0)];
    let parts = [("/large", 2), ("/large", 3), ("/large", 4), ("/large", 5)];
    // Names that the program looks up in each folder become common after some folders.
    let negative = [("/absent", NAME), ("/0/absent", NAME)];
    let expected = steps.into_iter().chain(parts).chain(negative);
    let expected = expected.map(|(path, part)| (path.to_owned(), part));
    assert_eq!(requested(folder.path()), expected.collect::<Vec<_>>());
    assert!(!folder.path().join("trails/one").exists());
}

#[test]
fn common_negative_lookups_are_replayed_while_the_server_is_slow() {
    let folder = tempfile::tempdir().expect("a folder");
    let mount = mount(folder.path(), false);
    (0..FILES / 2).for_each(|number| visit(&mount, number));
    assert_eq!(requested(folder.path()), []);
    mount.expect_reads(b"/900");
    mount.expect_reads(b"/900");
    mount.expect_reads(b"/901");
    until_told(folder.path(), &("/901/absent".to_owned(), NAME));
    mount.close();
    let root = [("/", NAMES), ("/absent", NAME)];
    let expected = [("/900", NAMES), ("/900/absent", NAME), ("/901", NAMES), ("/901/absent", NAME)];
    let expected = root.into_iter().chain(expected).map(|(path, part)| (path.to_owned(), part));
    assert_eq!(requested(folder.path()), expected.collect::<Vec<_>>());
    assert!(folder.path().join("trails/one").exists(), "what it did is learned all the same");
}

#[test]
fn sequences_are_not_replayed_while_programs_wait_for_a_server() {
    let folder = tempfile::tempdir().expect("a folder");
    for near in [true, false] {
        let mount = mount(folder.path(), near);
        (0..FILES).for_each(|number| visit(&mount, number));
        mount.close();
    }
    assert_eq!(requested(folder.path()), []);
}

#[test]
fn a_paused_replayer_starts_again() {
    let folder = after_a_start();
    let second = mount(folder.path(), true);
    second.pause();
    visit(&second, 0);
    until_told(folder.path(), &steps_of(5)[2]);
    second.pause();
    let before = requested(folder.path()).len();
    visit(&second, FILES / 2);
    until_told(folder.path(), &steps_of(FILES / 2 + 5)[2]);
    assert!(requested(folder.path()).len() > before);
}

/// Requests after the replayer are answered by the kernel and not seen.
#[test]
fn withheld_steps_keep_a_replay_going_to_its_end() {
    let folder = after_a_start();

    let second = mount(folder.path(), true);
    let all: Vec<_> = (0..FILES).flat_map(steps_of).collect();
    let mut known = Vec::new();
    let mut asked = 0;
    for (number, steps) in all.chunks(4).enumerate() {
        if steps.iter().all(|step| known.contains(step)) {
            continue;
        }
        asked += 1;
        visit(&second, number);
        // The replayer has done all its steps at once.
        let recorded = second.shared.recorded.lock();
        known = all
            .iter()
            .filter(|(path, part)| recorded.sequences.was_handed(path.as_bytes(), *part))
            .cloned()
            .collect();
    }
    assert!(asked < FILES / 10, "{asked} of {FILES} visits were seen");
    second.close();
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]

    /// The answers are those of the tree, for any order of requests.
    #[test]
    fn replies_equal_those_of_the_tree(visits in proptest::collection::vec(0..FILES, 1..20)) {
        let folder = tempfile::tempdir().expect("a folder");
        for _ in 0..2 {
            let mount = mount(folder.path(), true);
            visits.iter().for_each(|number| visit(&mount, *number));
        }
    }
}
