//! Damaged and hostile images: the committed seeds of the fuzz target, and random mutations of them.
//!
//! libFuzzer finds more (see `fuzz/`); this test makes sure that the target runs everywhere.
#![allow(clippy::print_stdout, reason = "seed and file needed to repeat a random test")]

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::path::Path;
use std::process::Command;

use esker_testkit::soak::{Random, Soak};

use crate::image::check;

/// Memory limit in KiB of the whole process, all tests of this binary included.
const MEMORY_MAX_KIB: u64 = 256 << 10;
/// Environment variable of the process that runs only the fuzz test.
const ALONE: &str = "ESKER_FUZZ_ALONE";

fn seeds() -> Vec<Vec<u8>> {
    let folder = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../fuzz/seeds/image"));
    let mut files: Vec<_> = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    assert!(files.len() >= 7, "there is a seed of each codec, and two without");
    files.iter().map(|file| std::fs::read(file).unwrap()).collect()
}

/// Returns the peak memory of this process in KiB.
fn memory_kib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).expect("the kernel tells it");
    line.trim().trim_end_matches(" kB").parse().unwrap()
}

#[test]
fn seeds_are_valid_and_truncated_ones_are_rejected_or_partly_readable() {
    for seed in seeds() {
        let (seen, failed) = check(&seed).expect("a seed opens");
        assert!(seen >= 20 && failed == 0, "{seen} names, {failed} failures");
        for len in (0..seed.len()).step_by(61) {
            // Padding follows the end of an image.
            if let Ok((_, failed)) = check(&seed[..len]) {
                assert_eq!(failed, 0, "an image is as long as it says, or refused");
            }
        }
    }
}

#[test]
fn two_hundred_damaged_images_are_rejected_or_partly_readable_with_clear_errors() {
    let seeds = seeds();
    let (mut refused, mut partial) = (0, 0);
    for number in 0..200usize {
        let mut bytes = seeds[number % seeds.len()].clone();
        // Sixteen wrong bytes anywhere in the used part of the image; every tenth time the superblock is
        // included.
        let used = u64::from_le_bytes(bytes[40..48].try_into().unwrap()) as usize;
        let at = if number % 10 == 0 { 12 + number % 84 } else { 96 + number * 7919 % (used - 112) };
        bytes[at..at + 16].iter_mut().for_each(|byte| *byte ^= 0xa5);
        match check(&bytes) {
            Err(error) => {
                let text = error.to_string();
                assert!(text.contains("an image in memory"), "{text}");
                refused += 1;
            }
            Ok((_, failed)) => partial += usize::from(failed > 0),
        }
    }
    println!("{refused} refused, {partial} read in part");
    assert!(refused > 20 && partial > 60, "{refused} refused, {partial} read in part");
}

/// Mutates bytes in ways that parsers handle badly: most bytes of an image are numbers.
fn mutate(bytes: &mut [u8], random: &mut Random) {
    const NASTY: [u8; 6] = [0, 1, 0x7f, 0x80, 0xff, 0x10];
    let at = random.below(bytes.len());
    let end = (at + 1 + random.below(8)).min(bytes.len());
    match random.below(6) {
        0 => bytes[at] ^= 1 << random.below(8),
        1 => bytes[at] = NASTY[random.below(NASTY.len())],
        2 => bytes[at..end].fill(NASTY[random.below(NASTY.len())]),
        3 => bytes[random.below(96)] ^= 1 << random.below(8),
        4 => bytes[at] = bytes[at].wrapping_add(random.draw() as u8 & 7),
        _ => {
            let from = random.below(bytes.len() - (end - at) + 1);
            bytes.copy_within(from..from + (end - at), at);
        }
    }
}

#[test]
fn soak_fuzz_image() {
    // In a process of its own, so that memory of other tests doesn't count.
    if std::env::var_os(ALONE).is_none() {
        let program = std::env::current_exe().expect("this program");
        let arguments = ["--exact", "damage::soak_fuzz_image", "--nocapture"];
        let status = Command::new(program).args(arguments).env(ALONE, "yes").status();
        assert!(status.expect("running it").success());
        return;
    }
    let seeds = seeds();
    let mut soak = Soak::begin("fuzz_image");
    let seed = soak.seed();
    let mut random = Random(seed);
    let (mut runs, mut opened) = (0u64, 0u64);
    while soak.goes_on() {
        for _ in 0..16 {
            let mut bytes = seeds[random.below(seeds.len())].clone();
            for _ in 0..=random.below(6) {
                mutate(&mut bytes, &mut random);
            }
            match catch_unwind(AssertUnwindSafe(|| check(&bytes))) {
                Ok(outcome) => opened += u64::from(outcome.is_ok()),
                Err(panic) => {
                    let file = std::env::temp_dir().join(format!("esker-fuzz-image-{seed}"));
                    std::fs::write(&file, &bytes).unwrap();
                    println!("the image that broke it is {}", file.display());
                    resume_unwind(panic);
                }
            }
            runs += 1;
        }
    }
    let memory = memory_kib();
    assert!(memory < MEMORY_MAX_KIB, "{memory} KiB of memory");
    assert!(opened > runs / 20, "{opened} of {runs} images open, too few to find much");
    soak.finish(&[("images", &runs), ("opened", &opened), ("KiB", &memory)]);
}
