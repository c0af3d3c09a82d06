use std::collections::BTreeSet;
use std::path::Path;

use proptest::prelude::*;

use super::*;

fn path(file: u32) -> String {
    format!("/some/folder/{file}")
}

/// Reads whole files one after the other, without a pause; returns the steps predicted with each.
fn read(learned: &mut Sequences, files: impl IntoIterator<Item = u32>, now: Instant) -> Vec<Vec<u32>> {
    files.into_iter().map(|file| numbers(&learned.read(path(file).as_bytes(), 0, now).next)).collect()
}

fn numbers(steps: &[NamedStep]) -> Vec<u32> {
    let number = |(path, _): &NamedStep| String::from_utf8_lossy(path).rsplit('/').next()?.parse().ok();
    steps.iter().filter_map(number).collect()
}

#[test]
fn readers_in_sequence_get_more_steps_and_each_once() {
    let (mut learned, now) = (Sequences::default(), Instant::now());
    assert_eq!(read(&mut learned, 0..1000, now).concat(), [0; 0], "nothing is known of it");
    let handed = read(&mut learned, 0..1000, now);
    let head = HEAD as u32;
    assert_eq!(handed[0], (1..=head).collect::<Vec<_>>());
    assert_eq!(handed[1], [head + 1, head + 2], "one step farther, and one for having come there");
    assert_eq!(handed.concat(), (1..1000).collect::<Vec<_>>());
}

#[test]
fn readers_that_leave_a_sequence_get_no_more_steps() {
    let (mut learned, now) = (Sequences::default(), Instant::now());
    read(&mut learned, 0..1000, now);
    let handed = read(&mut learned, (0..20).chain(2000..3000), now).concat();
    assert_eq!(handed, (1..=19 + HEAD as u32 + 19).collect::<Vec<_>>(), "what was right, and a few");
    // The files read instead are a sequence of their own, which predicts their reads.
    let handed = read(&mut learned, 2000..2002, now);
    assert_eq!(handed[0][..2], [2001, 2002]);
}

#[test]
fn skipping_steps_continues_a_sequence_and_jumping_restarts_it() {
    let (mut learned, now) = (Sequences::default(), Instant::now());
    read(&mut learned, 0..1000, now);
    let head = HEAD as u32;
    assert_eq!(read(&mut learned, [0, 10, 9], now).concat(), (1..=10 + head + 1).collect::<Vec<_>>());
    assert_eq!(read(&mut learned, [500], now)[0], (501..=500 + head).collect::<Vec<_>>());
    assert_eq!(read(&mut learned, [100], now)[0], (101..=100 + head).collect::<Vec<_>>());
    assert_eq!(read(&mut learned, [100], now)[0], [0; 0], "it was handed out");
    assert_eq!(read(&mut learned, [100], now + AWAY)[0], (101..=100 + head).collect::<Vec<_>>());
}

#[test]
fn short_sequences_and_last_steps_predict_nothing() {
    let (mut learned, mut now) = (Sequences::default(), Instant::now());
    let short = SHORT as u32;
    read(&mut learned, 0..short - 1, now);
    now += PAUSE;
    read(&mut learned, 100..100 + short, now);
    let mut guided = |file: u32| learned.read(path(file).as_bytes(), 0, now).guided;
    assert!(!guided(0));
    assert!(!guided(100 + short - 1), "nothing follows, and nothing went before");
    assert!(guided(100) && guided(101) && guided(100 + short - 1));
}

#[test]
fn the_sequences_read_longest_ago_are_dropped_first() {
    let (mut learned, mut now) = (Sequences::default(), Instant::now());
    let files = STEPS_MAX as u32 * 3;
    for file in 0..files {
        if file % 500 == 0 {
            now += PAUSE;
            // Used all the time.
            read(&mut learned, [0], now);
        }
        read(&mut learned, [file], now);
        assert!(learned.locations.len() <= STEPS_MAX && learned.files.len() <= STEPS_MAX);
    }
    assert!(learned.locations.len() > STEPS_MAX / 2);
    assert_eq!(read(&mut learned, [0], now + AWAY)[0][0], 1);
    assert_eq!(read(&mut learned, [files - 2], now + AWAY)[0], [files - 1]);
    let long = "/".to_owned() + &"x".repeat(PATH_MAX - 10);
    for file in 0..3 * PATHS_MAX / PATH_MAX {
        learned.read(format!("{long}{file}").as_bytes(), 0, now);
        assert!(learned.paths_len <= PATHS_MAX);
    }
    assert_eq!(learned.read(&[b'/'; PATH_MAX + 1], 0, now), Prediction::default());
    assert!(learned.location(&[b'/'; PATH_MAX + 1], 0).is_none());
}

/// First reads, in order, and the sequence of each: the expected result of recording.
#[derive(Default)]
struct Reference {
    first: Vec<((u32, u32), usize)>,
    last: Option<Instant>,
}

impl Reference {
    fn read(&mut self, step: (u32, u32), now: Instant) -> Option<usize> {
        if let Some(at) = self.first.iter().position(|(known, _)| *known == step) {
            return Some(at);
        }
        let begins = self.last.is_none_or(|last| now - last >= PAUSE);
        let sequence = self.first.last().map_or(0, |(_, sequence)| sequence + usize::from(begins));
        self.first.push((step, sequence));
        self.last = Some(now);
        None
    }
}

proptest! {
    /// Whatever the order of reads: sequences are the first reads in their order, and predictions follow what is read,
    /// on its sequence, in its order, and are in all no more than what was read of the sequence and a few.
    #[test]
    fn sequences_equal_a_list_of_first_reads(
        reads in prop::collection::vec((0_u32..60, 0_u32..3, 0_u64..12), 1..400),
    ) {
        let (mut learned, mut reference, mut now) = (Sequences::default(), Reference::default(), Instant::now());
        for (file, part, pause) in reads {
            // Mostly no pause.
            now += Duration::from_secs(if pause > 9 { pause * 2 } else { 0 });
            let heard = learned.read(path(file).as_bytes(), part, now);
            let Some(at) = reference.read((file, part), now) else {
                prop_assert_eq!(heard, Prediction::default());
                continue;
            };
            let sequence = reference.first[at].1;
            let pause: Vec<(u32, u32)> = reference.first[at + 1..]
                .iter()
                .filter(|(_, other)| *other == sequence)
                .map(|(step, _)| *step)
                .collect();
            let next: Vec<(u32, u32)> =
                numbers(&heard.next).into_iter().zip(heard.next.iter().map(|(_, part)| *part)).collect();
            if let Some(first) = next.first() {
                let skipped = pause.iter().position(|step| step == first);
                prop_assert!(skipped.is_some_and(|skipped| pause[skipped..].starts_with(&next)));
            }
            let reader = &learned.readers[&sequence];
            prop_assert!(reader.handed <= (reader.reached + 1 + HEAD + reader.taken).max(reader.start + 1));
        }
        let mut expected: Vec<Vec<(u32, u32)>> = Vec::new();
        for (step, sequence) in reference.first {
            if sequence == expected.len() {
                expected.push(Vec::new());
            }
            expected[sequence].push(step);
        }
        let of = |sequence: &Vec<NamedStep>| {
            numbers(sequence).into_iter().zip(sequence.iter().map(|(_, part)| *part)).collect::<Vec<_>>()
        };
        let found: BTreeSet<_> = learned.named().iter().map(of).collect();
        prop_assert_eq!(&found, &expected.into_iter().collect::<BTreeSet<_>>());
        let decoded = file::decode(&learned.encode()).unwrap();
        prop_assert_eq!(decoded, learned.named());
    }
}

#[test]
fn a_damaged_file_is_not_loaded() {
    let mut learned = Sequences::default();
    read(&mut learned, 0..5, Instant::now());
    learned.read(b"/a", 7, Instant::now());
    let bytes = learned.encode();
    assert_eq!(file::decode(&bytes).unwrap(), learned.named());
    for cut in 0..bytes.len() {
        assert_eq!(file::decode(&bytes[..cut]), None);
    }
    for at in 0..bytes.len() {
        let mut changed = bytes.clone();
        changed[at] ^= 4;
        assert_eq!(file::decode(&changed), None);
    }
}

#[test]
fn a_malicious_file_is_not_loaded() {
    let signed = |parts: &[&[u8]]| {
        let mut bytes = [&b"ESKERTR1"[..], &parts.concat()].concat();
        let digest = xxhash_rust::xxh3::xxh3_128(&bytes);
        bytes.extend_from_slice(&digest.to_le_bytes());
        bytes
    };
    let number = |number: u32| number.to_le_bytes();
    let path = [&[0, 0, 2, 0], &b"/a"[..]].concat();
    let good = signed(&[&number(1), &path, &number(1), &number(1), &number(0), &number(0)]);
    assert!(file::decode(&good).is_some());
    let long = [&[0, 0, 255, 15], &b"/".repeat(4095)[..]].concat();
    // Each four bytes more are 4 KiB in memory.
    let repeated = [255, 15, 0, 0].repeat(PATHS_MAX / 4095);
    let paths = PATHS_MAX as u32 / 4095 + 1;
    let bad: [&[&[u8]]; 9] = [
        &[],
        &[&number(u32::MAX)],
        &[&number(1), &path, &number(u32::MAX)],
        &[&number(1), &path, &number(1), &number(u32::MAX)],
        &[&number(1), &path, &number(1), &number(0)],
        &[&number(1), &path, &number(1), &number(1), &number(1), &number(0)],
        &[&number(1), &[0, 0, 1, 0, b'a'], &number(0)],
        &[&number(1), &[1, 0, 1, 0, b'/'], &number(0)],
        &[&number(paths), &long, &repeated, &number(0)],
    ];
    for (at, parts) in bad.into_iter().enumerate() {
        assert_eq!(file::decode(&signed(parts)), None, "{at}");
    }
}

#[test]
fn sequences_of_two_processes_are_merged() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("trails/sw.test");
    let store = || SequenceStore::new(Some(file.clone()));
    let (mut one, mut other) = (store().load(Observation::All), store().load(Observation::All));
    let now = Instant::now();
    read(&mut one, 0..20, now);
    read(&mut other, 10..30, now);
    store().save(&mut one);
    store().save(&mut other);
    assert!(!one.is_changed() && !other.is_changed());
    let mut both = store().load(Observation::All);
    assert_eq!(read(&mut both, [0], now)[0], (1..10).collect::<Vec<_>>());
    assert_eq!(read(&mut both, [10], now)[0], (11..30).collect::<Vec<_>>());
    let names: Vec<_> = std::fs::read_dir(folder.path().join("trails")).unwrap().collect();
    assert_eq!(names.len(), 1, "{names:?}");
}

#[test]
fn an_unwritable_path_loses_only_the_sequences() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("sw.test");
    let store = |file: &Path| SequenceStore::new(Some(file.to_owned()));
    std::fs::create_dir(&file).unwrap();
    std::fs::write(folder.path().join(".new-1-1-sw.test"), "left by a crash").unwrap();
    let mut learned = store(&file).load(Observation::All);
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1);
    read(&mut learned, 0..20, Instant::now());
    store(&file).save(&mut learned);
    assert_eq!(read(&mut learned, [0], Instant::now())[0].len(), 19);
    std::fs::remove_dir(&file).unwrap();
    std::fs::write(&file, "something else").unwrap();
    assert_eq!(store(&file).load(Observation::All).named(), Vec::<Vec<NamedStep>>::new());
    read(&mut learned, [20], Instant::now());
    store(&file).save(&mut learned);
    assert_eq!(store(&file).load(Observation::All).named(), learned.named());
    assert!(SequenceStore::new(None).load(Observation::All).named().is_empty());
}
