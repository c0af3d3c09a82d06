//! Check and collect of a repository with many revisions.

use std::process::Command;

use anyhow::{Result, ensure};

use super::packages::Packages;
use super::place::{NAME, Place};
use super::rows::{self, DELETED, Row, Way};
use super::{Bench, Scenario};
use crate::measure::Cost;

pub(super) fn run(bench: &mut Bench<'_>) -> Result<Vec<Row>> {
    let plan = bench.plan;
    let packages = Packages::of(plan.aged_entries, plan.catalog, true);
    bench.trees.push(format!(
        "collect: {} entries, {} in each nested catalog; {} revisions that change {} files each; the head and {} before it \
         are kept",
        packages.entries(),
        packages.entries() / packages.count,
        plan.revisions,
        plan.changed,
        plan.kept
    ));
    bench.say("check and collect: publishing the tree");
    let folder = bench.folder()?;
    let place = bench.place(&folder.path().join("first"));
    std::fs::create_dir(&place.scratch)?;
    place.create(&[])?;
    // A tag for each revision would keep all of them.
    place.run(place.command(&["repo", "set", NAME, "automatic_tags=off"])?)?;
    let archive = place.publish(&packages)?;
    bench.say(&format!("check and collect: {} revisions", plan.revisions));
    let mut made = Way::new("esker ingest, one of the revisions");
    for revision in 1..=plan.revisions {
        packages.write_change(&archive, revision, plan.changed)?;
        made.runs.push(place.run(place.ingest(&archive)?)?);
    }
    let mut checks = [Way::new("check: esker"), Way::base("check: reference")];
    let [first, again] = ["collect: esker", "collect: esker, lists of hashes known"].map(Way::new);
    let mut collects = [first, again, Way::base("collect: reference")];
    for round in 0..plan.repetitions {
        bench.say(&format!("check and collect: round {} of {}", round + 1, plan.repetitions));
        let copies = tempfile::tempdir_in(folder.path())?;
        let copy = |name: &str| place.copy(&copies.path().join(name));
        let (own, known) = (copy("esker")?, copy("known")?);
        checks[0].runs.push(own.run(own.check()?)?);
        // A dry run makes the lists, as an earlier collect did for most catalogs of a repository that is collected each day.
        let mut foresee = collect(&known, plan.kept)?;
        foresee.arg("--dry-run");
        known.run(foresee)?;
        let mut ours = 0;
        for (place, way) in [&own, &known].into_iter().zip(&mut collects) {
            ours = deleted(place, way, |place| place.run(collect(place, plan.kept)?))?;
            place.run(place.check()?)?;
        }
        let Some(program) = &bench.reference else { continue };
        let other = copy("reference")?;
        checks[1].runs.push(program.check(&other)?);
        let theirs = deleted(&other, &mut collects[2], |place| program.collect(place, plan.kept))?;
        ensure!(
            ours > 0 && theirs > 0,
            "nothing was deleted: {ours} objects by Esker, {theirs} by the reference"
        );
    }
    let made = rows::of(Scenario::Collect, vec![made]);
    let [checks, collects] =
        [Vec::from(checks), Vec::from(collects)].map(|ways| rows::of(Scenario::Collect, ways));
    Ok([made, checks, collects].concat())
}

/// Returns a collect of Esker that deletes at once.
fn collect(place: &Place, kept: usize) -> Result<Command> {
    let mut command = place.command(&["collect", NAME, "--quiet", "--grace", "0"])?;
    command.arg("--keep-last").arg(kept.to_string());
    Ok(command)
}

/// Runs a collect, and counts the objects that it deletes.
fn deleted(place: &Place, way: &mut Way, collect: impl FnOnce(&Place) -> Result<Cost>) -> Result<u64> {
    let before = place.objects()?.0;
    way.runs.push(collect(place)?);
    let deleted = before.saturating_sub(place.objects()?.0);
    way.facts.insert(DELETED, deleted as f64);
    Ok(deleted)
}
