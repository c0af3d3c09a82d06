//! Runs the fuzz targets on the stable toolchain: the committed seeds, and random mutations of them.
//!
//! libFuzzer finds more (see `fuzz/`); this test makes sure that the targets run everywhere.
#![allow(clippy::print_stdout, reason = "seed and file needed to repeat a random test")]

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::path::Path;

use esker_testkit::soak::{Random, Soak};

use crate::targets;

/// Reads the committed seeds of a target.
fn seeds(target: &str) -> Vec<Vec<u8>> {
    let folder = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../fuzz/seeds")).join(target);
    let mut files: Vec<_> = std::fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    assert!(!files.is_empty(), "{target} has seeds");
    files.iter().map(|file| std::fs::read(file).unwrap()).collect()
}

#[test]
fn all_targets_accept_their_seeds() {
    for (target, check) in targets::TARGETS {
        for seed in seeds(target) {
            check(&seed);
            for len in 0..seed.len().min(600) {
                check(&seed[..len]);
            }
        }
    }
    targets::catalog::check_sound(include_bytes!("../../../../fuzz/seeds/catalog/two-levels"));
}

/// Without this test, an ineffective heap limit would not be noticed.
#[test]
fn heap_use_is_counted() {
    let (kept, peak) = targets::sys::peak_heap(|| {
        drop(vec![1u8; 3 << 20]);
        vec![1u8; 1 << 20]
    });
    assert_eq!(kept.len(), 1 << 20);
    assert!((3 << 20..4 << 20).contains(&peak), "{peak}");
}

/// Mutates bytes in ways that parsers handle badly.
fn mutate(bytes: &mut Vec<u8>, other: &[u8], random: &mut Random) {
    const NASTY: [u8; 8] = [0, 1, 0x7f, 0x80, 0xff, b'\n', b'-', 0x0d];
    let at = random.below(bytes.len() + 1);
    let end = (at + 1 + random.below(16)).min(bytes.len());
    match random.below(8) {
        0 if at < bytes.len() => bytes[at] ^= 1 << random.below(8),
        1 if at < bytes.len() => bytes[at] = NASTY[random.below(NASTY.len())],
        2 if at < bytes.len() => bytes[at..end].fill(NASTY[random.below(NASTY.len())]),
        3 => bytes.truncate(at),
        4 => {
            let copy = bytes[at..end.max(at)].to_vec();
            let to = random.below(bytes.len() + 1);
            bytes.splice(to..to, copy);
        }
        5 if end > at => drop(bytes.drain(at..end)),
        6 => bytes.insert(at, random.draw() as u8),
        // Bytes of another seed at the same offset keep page numbers and offsets valid.
        _ => {
            let end = (at + random.below(64)).min(bytes.len()).min(other.len());
            if at < end {
                bytes[at..end].copy_from_slice(&other[at..end]);
            }
        }
    }
}

fn soak(name: &'static str, target: &str) {
    let (_, check) = targets::TARGETS.into_iter().find(|(name, _)| *name == target).unwrap();
    let seeds = seeds(target);
    let mut soak = Soak::begin(name);
    let seed = soak.seed();
    let mut random = Random(seed);
    let mut runs = 0u64;
    while soak.goes_on() {
        // A round has many inputs, so that reading the clock costs little.
        for _ in 0..64 {
            let mut bytes = seeds[random.below(seeds.len())].clone();
            let other = &seeds[random.below(seeds.len())];
            for _ in 0..=random.below(6) {
                mutate(&mut bytes, other, &mut random);
            }
            if let Err(panic) = catch_unwind(AssertUnwindSafe(|| check(&bytes))) {
                let file = std::env::temp_dir().join(format!("esker-fuzz-{target}-{seed}"));
                std::fs::write(&file, &bytes).unwrap();
                println!("the input that broke {target} is {}", file.display());
                resume_unwind(panic);
            }
            runs += 1;
        }
    }
    soak.finish(&[("inputs", &runs)]);
}

#[test]
fn soak_fuzz_manifest() {
    soak("fuzz_manifest", "manifest");
}

#[test]
fn soak_fuzz_whitelist() {
    soak("fuzz_whitelist", "whitelist");
}

#[test]
fn soak_fuzz_certificate() {
    soak("fuzz_certificate", "certificate");
}

#[test]
fn soak_fuzz_catalog() {
    soak("fuzz_catalog", "catalog");
}

#[test]
fn soak_fuzz_history() {
    soak("fuzz_history", "history");
}

#[test]
fn soak_fuzz_xattr() {
    soak("fuzz_xattr", "xattr");
}

#[test]
fn soak_fuzz_compress() {
    soak("fuzz_compress", "compress");
}

#[test]
fn soak_fuzz_text() {
    soak("fuzz_text", "text");
}

#[test]
fn soak_fuzz_loaded() {
    soak("fuzz_loaded", "loaded");
}
