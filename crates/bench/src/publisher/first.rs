//! The first publish of a tree, with each encoder.

use std::process::Command;

use anyhow::{Context, Result};

use super::place::NAME;
use super::rows::{self, Row, STORED, Way};
use super::session::Session;
use super::{Bench, Scenario};
use crate::measure;
use crate::serve::Served;
use crate::tree_size::size;

/// Names and options of `esker repo create`.
const ENCODERS: [(&str, &[&str]); 3] = [
    ("esker, zlib of the same bytes", &[]),
    ("esker, fast zlib", &["--deflate", "fast"]),
    ("esker, zstd", &["--compress", "zstd"]),
];

pub(super) fn run(bench: &mut Bench<'_>) -> Result<Vec<Row>> {
    let tree = bench.plan.tree.clone().context("the first publish needs a TREE")?;
    let (files, bytes) = size(&tree)?;
    bench.trees.push(format!("first: {files} files, {} MB", bytes / 1_000_000));
    let mut ours: Vec<Way> = ENCODERS.iter().map(|(name, _)| Way::new(*name)).collect();
    let mut reference = Way::base("reference, zlib");
    // Reads the tree once, so that no way alone pays for the disk.
    let mut read = Command::new("tar");
    read.args(["-cf", "-", "-C"]).arg(&tree).arg(".");
    measure::run(read)?;
    // ext4 may skip inodes that were freed a moment ago, one by one for each new file, so nothing is removed between runs.
    let mut folders = Vec::new();
    for round in 0..bench.plan.repetitions {
        bench.say(&format!("first publish: round {} of {}", round + 1, bench.plan.repetitions));
        for ((_, options), way) in ENCODERS.iter().zip(&mut ours) {
            let folder = bench.folder()?;
            let place = bench.place(folder.path());
            place.create(options)?;
            let mut publish = place.command(&["publish", NAME, "--quiet"])?;
            publish.arg(&tree);
            way.runs.push(place.run(publish)?);
            way.facts.insert(STORED, place.objects()?.1 as f64);
            folders.push(folder);
        }
        let Some(program) = &bench.reference else { continue };
        let folder = bench.folder()?;
        let place = bench.place(folder.path());
        place.create(&[])?;
        let served = Served::start(&bench.plan.esker.to_string_lossy(), &place.storage)?;
        let session = Session::begin(program, &place, &served.url)?;
        let mut copy = place.logged(Command::new("cp"))?;
        copy.arg("-a").arg(tree.join(".")).arg(session.union());
        place.run(copy)?;
        reference.runs.push(session.publish()?.publish);
        reference.facts.insert(STORED, place.objects()?.1 as f64);
        drop(served);
        folders.push(folder);
    }
    ours.push(reference);
    Ok(rows::of(Scenario::First, ours))
}
