//! Profiles become bundles, in this revision and in every later one.

use std::fs;
use std::path::Path;

use esker_format::name::RepositoryName;
use esker_format::profile::{Profile, ProfileFile, ProfileRead};
use esker_format::time::UnixTime;
use esker_publish::{Ingest, NamedProfile, Owner, Profiles, Publish, PublishError, Report};
use esker_testkit::check::Findings;

use crate::workshop::{NAME, Workshop, now, options};

/// A profile in which these files are read whole, in this order.
fn profile(name: &str, paths: &[&str]) -> NamedProfile {
    let file = |path: &&str| ProfileFile { path: (*path).to_owned(), size: 4, program: false };
    let profile = Profile {
        repository: RepositoryName::parse(NAME).unwrap(),
        revision: 1,
        command: "tool".to_owned(),
        recorded: UnixTime(0),
        triggers: Vec::new(),
        files: paths.iter().map(file).collect(),
        reads: (0..paths.len()).map(|file| ProfileRead { file, ms: 1, range: None }).collect(),
    };
    NamedProfile { name: name.to_owned(), profile }
}

fn make_tree(top: &Path) {
    for folder in ["bin", "lib/nested"] {
        fs::create_dir_all(top.join(folder)).unwrap();
    }
    fs::write(top.join("lib/nested/.cvmfscatalog"), "").unwrap();
    for file in ["bin/tool", "bin/other", "lib/a.so", "lib/b.so", "lib/nested/c.so"] {
        fs::write(top.join(file), file).unwrap();
    }
}

const TOOL: [&str; 5] = ["/bin/tool", "/lib/b.so", "/lib/nested/c.so", "/lib/a.so", "/lib/gone.so"];

fn publish_with(workshop: &Workshop, profiles: Vec<NamedProfile>, target: &str) -> Report {
    let mut progress = |_| ();
    let mut options = options(&mut progress);
    options.profiles = profiles;
    let source = if target.is_empty() { workshop.source() } else { workshop.source().join(&target[1..]) };
    Publish { source, target: target.as_bytes().to_vec(), options }.run(&workshop.open(), now()).unwrap()
}

/// The bundles, as the checker found them.
fn bundles(findings: &Findings) -> Vec<(String, Vec<String>)> {
    let shown =
        |(path, files): (&Vec<u8>, &Vec<String>)| (String::from_utf8(path.clone()).unwrap(), files.clone());
    findings.bundles.iter().map(shown).collect()
}

fn tool_bundle() -> Vec<(String, Vec<String>)> {
    let files = ["/lib/b.so", "/lib/nested/c.so", "/lib/a.so"].map(str::to_owned);
    vec![("/bin/.cvmfsbundle-tool".to_owned(), files.to_vec())]
}

#[test]
fn a_profile_is_merged_into_every_later_revision() {
    let workshop = Workshop::new();
    make_tree(&workshop.source());
    let first = publish_with(&workshop, vec![profile("tool", &TOOL)], "");
    assert_eq!((first.bundles.bundles, first.bundles.files, first.bundles.files_missing), (1, 3, 1));
    assert_eq!(bundles(&workshop.assert_equal()), tool_bundle());
    assert_eq!(first.differences.added.files, 6, "the bundle is none of the differences");

    let again = workshop.publish();
    assert!(!again.published && again.differences.removed.total() == 0, "{again:?}");

    fs::write(workshop.source().join("bin/tool"), "another one").unwrap();
    let changed = workshop.publish();
    assert_eq!((changed.published, changed.differences.changed.files), (true, 1));
    assert_eq!(bundles(&workshop.assert_equal()), tool_bundle());

    // Missing files are dropped, and return with their file.
    fs::remove_file(workshop.source().join("lib/b.so")).unwrap();
    let less = publish_with(&workshop, Vec::new(), "/lib");
    assert_eq!((less.bundles.files, less.bundles.files_missing), (2, 2));
    assert_eq!(bundles(&workshop.assert_equal())[0].1, ["/lib/nested/c.so", "/lib/a.so"]);
    fs::write(workshop.source().join("lib/b.so"), "b").unwrap();
    workshop.publish();
    assert_eq!(bundles(&workshop.assert_equal()), tool_bundle());
}

#[test]
fn the_bundle_of_a_removed_trigger_is_removed() {
    let workshop = Workshop::new();
    make_tree(&workshop.source());
    publish_with(&workshop, vec![profile("tool", &TOOL)], "");
    fs::remove_file(workshop.source().join("bin/tool")).unwrap();
    let report = workshop.publish();
    assert_eq!(report.differences.removed.files, 1);
    assert!(report.warnings.iter().any(|warning| warning.contains("`/bin/tool`")), "{:?}", report.warnings);
    assert_eq!(bundles(&workshop.assert_equal()), []);
    fs::remove_dir_all(workshop.source().join("bin")).unwrap();
    workshop.publish();
    assert_eq!(bundles(&workshop.assert_equal()), []);
    make_tree(&workshop.source());
    workshop.publish();
    assert_eq!(bundles(&workshop.assert_equal()), tool_bundle());
}

#[test]
fn removing_a_profile_removes_its_bundles() {
    let workshop = Workshop::new();
    make_tree(&workshop.source());
    fs::hard_link(workshop.source().join("bin/tool"), workshop.source().join("bin/same")).unwrap();
    let other = profile("other", &["/bin/other", "/lib/a.so", "/bin/tool"]);
    publish_with(&workshop, vec![profile("tool", &TOOL), other.clone()], "");
    assert_eq!(workshop.assert_equal().bundles.len(), 2);
    let repository = workshop.open();
    assert_eq!(Profiles::of(&repository).names().unwrap(), ["other", "tool"]);
    assert_eq!(Profiles::of(&repository).get("other").unwrap(), other);
    Profiles::of(&repository).remove("tool").unwrap();
    assert!(matches!(Profiles::of(&repository).remove("tool"), Err(PublishError::NoProfile(_))));
    assert!(matches!(Profiles::of(&repository).get("../settings"), Err(PublishError::NoProfile(_))));
    drop(repository);
    // A publish elsewhere is enough.
    let report = publish_with(&workshop, Vec::new(), "/lib");
    assert!(report.published, "{report:?}");
    let findings = workshop.assert_equal();
    assert_eq!(findings.bundles.keys().map(Vec::as_slice).collect::<Vec<_>>(), [b"/bin/.cvmfsbundle-other"]);
    assert!(!workshop.publish().published);
}

#[test]
fn bundles_of_the_source_take_precedence() {
    let workshop = Workshop::new();
    make_tree(&workshop.source());
    let own = workshop.source().join("bin/.cvmfsbundle-tool");
    fs::write(&own, "whatever it is").unwrap();
    fs::hard_link(workshop.source().join("bin/tool"), workshop.source().join("bin/same")).unwrap();
    publish_with(&workshop, vec![profile("tool", &TOOL)], "");
    assert_eq!(bundles(&workshop.assert_equal()), [], "theirs is an ordinary file");
    fs::remove_file(&own).unwrap();
    let report = workshop.publish();
    assert_eq!(report.differences.removed.files, 1);
    assert_eq!(bundles(&workshop.assert_equal()), tool_bundle());
    fs::write(&own, "theirs again").unwrap();
    let report = workshop.publish();
    assert_eq!(report.differences.added.files, 1);
    assert_eq!(bundles(&workshop.assert_equal()), []);
    assert!(!workshop.publish().published);
}

#[test]
fn an_archive_may_replace_a_trigger_or_contain_a_bundle() {
    let workshop = Workshop::new();
    make_tree(&workshop.source());
    publish_with(&workshop, vec![profile("tool", &TOOL)], "");
    let ingest = |members: &[(&str, &str)], delete: &[&str]| {
        let mut archive = tar::Builder::new(Vec::new());
        for (path, text) in members {
            let mut header = tar::Header::new_gnu();
            header.set_uid(7);
            header.set_gid(7);
            header.set_mtime(1);
            header.set_size(text.len() as u64);
            header.set_mode(0o755);
            archive.append_data(&mut header, path, text.as_bytes()).unwrap();
        }
        let path = workshop.folder.path().join("members.tar");
        fs::write(&path, archive.into_inner().unwrap()).unwrap();
        let mut progress = |_| ();
        let delete = delete.iter().map(|path| path.as_bytes().to_vec()).collect();
        let (owner, options) = (Owner::default(), options(&mut progress));
        let mut ingest = Ingest { archive: path, target: Vec::new(), delete, owner, nested: false, options };
        let report = ingest.run(&workshop.open(), now()).unwrap();
        let findings = workshop.check();
        findings.assert_clean();
        (report, bundles(&findings))
    };
    assert_eq!(ingest(&[("bin/tool", "new")], &[]).1, tool_bundle());
    let (report, found) = ingest(&[("bin/.cvmfsbundle-other", "theirs")], &["/lib/a.so"]);
    assert_eq!((report.bundles.files, found[0].1.len()), (2, 2));
    assert_eq!(ingest(&[], &["/bin/tool"]).1, []);
}

#[test]
fn invalid_profiles_are_refused() {
    let workshop = Workshop::new();
    let repository = workshop.open();
    let mut strange = profile("strange", &TOOL);
    strange.profile.repository = RepositoryName::parse("another.test").unwrap();
    let error = Profiles::of(&repository).add(&strange).unwrap_err();
    assert!(error.to_string().contains("recorded in `another.test`"), "{error}");
    let text = profile("x", &TOOL).profile.to_json();
    for (file, text, expected) in [
        ("/tmp/a b.json", text.as_slice(), "its name has to be"),
        ("/tmp/.json", &text, "its name has to be"),
        ("/tmp/a.json", &text[..50], "not a profile"),
    ] {
        let error = NamedProfile::from_file(Path::new(file), text).unwrap_err();
        assert!(error.to_string().contains(expected), "{error}");
    }
    assert_eq!(NamedProfile::from_file(Path::new("/tmp/tool-1.2.json"), &text).unwrap().name, "tool-1.2");
}

/// Damage that may occur in the folder over years.
#[test]
fn a_damaged_profile_is_left_out_with_a_warning() {
    let workshop = Workshop::new();
    make_tree(&workshop.source());
    publish_with(
        &workshop,
        vec![profile("tool", &TOOL), profile("x", &["/bin/other", "/lib/a.so", "/lib/b.so"])],
        "",
    );
    let folder = workshop.root().join(".esker/profiles");
    fs::write(folder.join("x.json"), "{").unwrap();
    fs::write(folder.join("notes.txt"), "no profile").unwrap();
    let report = workshop.publish();
    assert!(report.warnings.iter().any(|warning| warning.contains("profile `x` was left out")), "{report:?}");
    assert_eq!(bundles(&workshop.assert_equal()), tool_bundle());
}

#[test]
fn a_dry_run_stores_no_profile() {
    let workshop = Workshop::new();
    make_tree(&workshop.source());
    let mut progress = |_| ();
    let mut options = options(&mut progress);
    options.profiles = vec![profile("tool", &TOOL)];
    let mut publish = Publish { source: workshop.source(), target: Vec::new(), options };
    let report = publish.dry_run(&workshop.open(), now()).unwrap();
    assert_eq!((report.bundles.bundles, report.published), (1, false));
    assert_eq!(Profiles::of(&workshop.open()).names().unwrap(), [""; 0]);
    workshop.publish();
    assert_eq!(bundles(&workshop.assert_equal()), []);
}

/// A profile in which each of these programs reads two libraries.
fn programs(name: &str, numbers: std::ops::Range<usize>) -> NamedProfile {
    let mut named = profile(name, &["/lib/a.so", "/lib/b.so"]);
    let Profile { files, reads, .. } = &mut named.profile;
    reads.clear();
    for number in numbers {
        files.push(ProfileFile { path: format!("/bin/{number}"), size: 0, program: true });
        reads.extend([files.len() - 1, 0, 1].map(|file| ProfileRead { file, ms: 1, range: None }));
    }
    named
}

#[test]
fn bundles_beyond_the_limits_cause_a_warning() {
    let workshop = Workshop::new();
    make_tree(&workshop.source());
    let one = publish_with(&workshop, vec![programs("one", 0..130)], "");
    let told = |report: &Report, what: &str| report.warnings.iter().any(|warning| warning.contains(what));
    assert!(told(&one, "profile `one` would have 2 more triggers"), "{:?}", one.warnings);

    (0..33 * 128).for_each(|n| fs::write(workshop.source().join(format!("bin/{n}")), "").unwrap());
    let profiles = (0..33).map(|n| programs(&format!("p{n}"), n * 128..(n + 1) * 128)).collect();
    let all = publish_with(&workshop, profiles, "");
    assert_eq!(all.bundles.bundles, 4096);
    assert!(told(&all, "have 128 more triggers than the 4096 that"), "{:?}", all.warnings);
}
