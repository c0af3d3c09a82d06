//! Environments that name the folder in which they were built.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;

use esker_publish::{Publish, PublishError, Remark, RemarkKind, Report};

use crate::ingest::{Archive, file, ingest};
use crate::workshop::{Workshop, now, options, write};

const BUILT: &str = "/build/env";
/// Path of the source at clients.
const HOME: &str = "/cvmfs/workshop.test/sw";

/// Writes a Python environment that was built elsewhere.
fn environment(source: &Path) {
    write(&source.join("bin/python3"), "\x7fELF");
    write(&source.join("bin/pip"), &pip(BUILT));
    write(&source.join("bin/long"), &long(BUILT));
    write(&source.join("bin/of_the_system"), "#!/usr/bin/env python3\n");
    write(&source.join("bin/elsewhere"), "#!/opt/ruby/bin/ruby\n");
    write(&source.join("bin/activate"), &activate(BUILT));
    write(&source.join("pyvenv.cfg"), &configuration(BUILT));
    write(&source.join("notes.txt"), "built in /build/env\n");
}

fn pip(folder: &str) -> String {
    format!("#!{folder}/bin/python3\nimport sys\n")
}

fn long(folder: &str) -> String {
    format!("#!/bin/sh\n'''exec' \"{folder}/bin/python3\" \"$0\" \"$@\"\n' '''\n")
}

fn activate(folder: &str) -> String {
    format!("VIRTUAL_ENV='{folder}'\nPATH=\"{folder}/bin:/build/env2:/my/build/env:$PATH\"\n")
}

fn configuration(folder: &str) -> String {
    format!("command = python3 -m venv {folder}\n")
}

fn remarks(report: &Report, what: RemarkKind) -> Vec<(&str, &str)> {
    let all = report.remarks.iter().filter(|remark| remark.what == what);
    all.map(|remark: &Remark| (remark.path.as_str(), remark.detail.as_deref().unwrap())).collect()
}

fn try_publish(workshop: &Workshop, relocate: Option<&str>) -> Result<Report, PublishError> {
    let mut quiet = |_| ();
    let mut options = options(&mut quiet);
    options.filter.relocate = relocate.map(Into::into);
    Publish { source: workshop.source(), target: b"/sw".to_vec(), options }.run(&workshop.open(), now())
}

fn publish(workshop: &Workshop, relocate: Option<&str>) -> Report {
    try_publish(workshop, relocate).unwrap()
}

#[track_caller]
fn assert_content(workshop: &Workshop, path: &str, expected: impl AsRef<[u8]>) {
    let findings = workshop.check();
    let entry = &findings.assert_clean().tree[format!("/sw/{path}").as_bytes()];
    let expected = expected.as_ref();
    assert_eq!(entry.sha256, Some(esker_testkit::object::sha256(expected)), "{path}");
    assert_eq!(entry.size, Some(expected.len() as u64), "{path}");
}

#[test]
fn scripts_and_links_that_name_the_build_folder_are_named() {
    let workshop = Workshop::new();
    environment(&workshop.source());
    let source = workshop.source();
    symlink(source.join("bin/python3"), source.join("bin/python")).unwrap();
    symlink("../../out", source.join("bin/out")).unwrap();
    symlink("../../../out", source.join("bin/beyond")).unwrap();
    symlink("/usr/bin/python3", source.join("bin/system")).unwrap();
    let report = publish(&workshop, None);
    let folder = "/build/env/bin";
    assert_eq!(
        remarks(&report, RemarkKind::BuildFolder),
        [("/sw/bin/long", folder), ("/sw/bin/pip", folder)]
    );
    let python = source.join("bin/python3").display().to_string();
    let links = [("/sw/bin/beyond", "../../../out"), ("/sw/bin/python", python.as_str())];
    assert_eq!(remarks(&report, RemarkKind::LeadsOut), links);
    let warning = report.warnings.iter().find(|text| text.contains("interpreter")).unwrap();
    assert!(
        warning.contains("`/sw/bin/pip` (/build/env/bin)") && warning.contains("--relocate"),
        "{warning}"
    );

    let mut archive = Archive::new(Vec::new());
    file(&mut archive, "env/bin/pip", b"#!/build/env/bin/python3\n");
    file(&mut archive, "env/bin/right", b"#!/cvmfs/workshop.test/in/here/env/bin/python3\n");
    file(&mut archive, "opt/bin/image", b"#!/opt/bin/python3\n");
    file(&mut archive, "opt/bin/python3", b"ELF");
    file(&mut archive, "env/bin/python3", b"ELF");
    let archive = crate::ingest::write(&workshop, "env.tar", &archive.into_inner().unwrap());
    let report = ingest(&workshop, &archive, |_| ()).unwrap();
    assert_eq!(remarks(&report, RemarkKind::BuildFolder), [("/in/here/env/bin/pip", folder)]);
}

#[test]
fn an_environment_is_relocated() {
    let workshop = Workshop::new();
    environment(&workshop.source());
    let source = workshop.source();
    symlink("/build/env/bin/python3", source.join("bin/python")).unwrap();
    publish(&workshop, None);
    let report = publish(&workshop, Some(BUILT));
    assert_eq!(report.differences.changed.total(), 5, "{report:?}");
    assert_eq!(remarks(&report, RemarkKind::BuildFolder), []);
    assert_content(&workshop, "bin/pip", pip(HOME));
    assert_content(&workshop, "bin/long", long(HOME));
    assert_content(&workshop, "bin/activate", activate(HOME));
    assert_content(&workshop, "pyvenv.cfg", configuration(HOME));
    assert_content(&workshop, "notes.txt", "built in /build/env\n");
    let target = workshop.check().tree[&b"/sw/bin/python"[..]].target.clone();
    assert_eq!(target, Some(format!("{HOME}/bin/python3").into_bytes()));
    assert!(!publish(&workshop, Some(BUILT)).published);
}

#[test]
fn files_of_conda_are_relocated_as_it_has_recorded_them() {
    let workshop = Workshop::new();
    let source = workshop.source();
    let placeholder = format!("/feedstock/{}", "p".repeat(60));
    let record = format!(
        r#"{{"paths_data": {{"paths": [
            {{"_path": "lib/text.pc", "prefix_placeholder": "{placeholder}", "file_mode": "text"}},
            {{"_path": "lib/lib.so", "prefix_placeholder": "{placeholder}", "file_mode": "binary"}},
            {{"_path": "lib/other.so"}}]}}}}"#
    );
    write(&source.join("conda-meta/package.json"), &record);
    let text = |folder: &str| format!("prefix={folder}\nlibs={folder}/lib\n");
    write(&source.join("lib/text.pc"), &text(BUILT));
    // What the placeholder took beyond the path is NUL.
    let library = |folder: &str| {
        let mut library = format!("\x7fELF\0{folder}/lib:{folder}/share").into_bytes();
        library.resize(library.len() + 2 * (placeholder.len() - folder.len()), 0);
        [&library, &b"\0next"[..]].concat()
    };
    fs::write(source.join("lib/lib.so"), library(BUILT)).unwrap();
    fs::write(source.join("lib/other.so"), library(BUILT)).unwrap();
    publish(&workshop, Some(BUILT));
    assert_content(&workshop, "lib/text.pc", text(HOME));
    assert_content(&workshop, "lib/lib.so", library(HOME));
    assert_content(&workshop, "lib/other.so", library(BUILT));

    // Without the room that conda leaves.
    fs::write(source.join("lib/lib.so"), b"/build/env/lib\0next").unwrap();
    let error = try_publish(&workshop, Some(BUILT)).unwrap_err().to_string();
    assert!(error.contains("lib/lib.so") && error.contains("room"), "{error}");
}
