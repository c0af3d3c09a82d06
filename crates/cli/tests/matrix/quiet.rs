//! `--quiet`: commands that succeed print nothing.

use std::collections::BTreeSet;
use std::fs;

use esker_testkit::mirror::Mirror;
use serde_json::Value;

use crate::publishing::{NAME, Workshop};
use crate::test_env::words;
use crate::test_user::TestUser;
use crate::usage::{commands, help};

const PROFILE: &str = r#"{"format":"esker-profile","version":1,"repository":"made.test","revision":1,
"command":"sh","recorded":1,"triggers":[],"files":[{"path":"/sub/file","size":4}],"reads":[{"file":0,"ms":1}]}"#;

#[test]
fn quiet_commands_print_nothing_but_faults() {
    let workshop = Workshop::with(TestUser::ordinary(), |tree| {
        fs::create_dir_all(tree.join("sub")).expect("folders");
        fs::write(tree.join("sub/file"), "one\n").expect("a file");
    });
    let world = &workshop.world;
    let home = |name: &str| workshop.home(name);
    let (storage, keys, tree) = (home("storage"), home("keys"), workshop.tree());
    let made = ["--storage", &storage, "--keys", &keys];
    let (archive, profile, passphrase) = (home("a.tar"), home("p.profile.json"), home("passphrase"));
    world.person.does(|| {
        let made = std::process::Command::new("tar").args(["-cf", &archive, "-C", &tree, "sub"]).status();
        assert!(made.expect("running tar").success());
        fs::write(&profile, PROFILE).expect("a file");
        fs::write(&passphrase, "a passphrase\n").expect("a file");
    });
    let mirror = Mirror::serve(home("storage"));
    let (url, public) = (mirror.url(NAME), home(&format!("keys/{NAME}.pub")));
    let (copies, stage, image, state) = (home("copies"), home("stage"), home("i.sqfs"), home("state"));
    let (exported, conf, out, cache, key) =
        (home("exported"), home("conf"), home("out"), home("cache"), home("k.gw"));
    let (request, answer, config) = (home("request"), home("answer"), home("conf/server.conf"));
    let digests = home("i.digests");
    let place = format!("{url}:/sub");
    let reads = ["--public-key", &public, "--cache", &cache, "--no-broker"];
    let mut tested = BTreeSet::new();
    let mut quiet = |line: &str, more: &[&str]| {
        let words_of_line: Vec<&str> = line.split(' ').collect();
        // A command comes before its arguments, and these before the one that runs in a transaction.
        let (own, program) = match words_of_line.iter().position(|word| *word == "--") {
            Some(at) => words_of_line.split_at(at),
            None => (&words_of_line[..], &[][..]),
        };
        let mut command = world.esker(&[own, more, &["--quiet"], program].concat());
        let output = command.env("ESKER_KEY_PASSPHRASE_FILE", &passphrase).output().expect("esker");
        assert!(output.status.success(), "{line}: {}", words(&output));
        assert!(output.stdout.is_empty() && output.stderr.is_empty(), "{line}: {}", words(&output));
        tested.insert(line.to_owned());
    };
    quiet(&format!("repo create {NAME}"), &made);
    quiet(&format!("publish {NAME} {tree} --tag v1"), &made);
    quiet(&format!("publish {NAME} {tree} --dry-run"), &made);
    quiet(&format!("ingest {NAME} {archive} --to /gcc"), &made);
    quiet(&format!("remove {NAME} /gcc/sub/file"), &made);
    quiet(&format!("repo copy {NAME} /sub /copy"), &made);
    let transactions = ["--transactions", &home("transactions")];
    let work = [&made[..], &transactions].concat();
    quiet(&format!("transaction {NAME} -- touch more"), &work);
    quiet(&format!("transaction {NAME} --keep -- touch kept"), &work);
    quiet(&format!("transaction resume {NAME} --keep -- touch again"), &transactions);
    quiet(&format!("transaction publish {NAME}"), &transactions);
    quiet(&format!("transaction {NAME} --keep -- touch dropped"), &work);
    quiet(&format!("transaction abort {NAME}"), &transactions);
    quiet(&format!("tag add {NAME} v2"), &made);
    quiet(&format!("tag move {NAME} v2 --revision v1"), &made);
    quiet(&format!("tag remove {NAME} v2"), &made);
    quiet(&format!("undo {NAME}"), &made);
    quiet(&format!("rollback {NAME} --to v1"), &made);
    quiet(&format!("profile add {NAME} {profile}"), &made);
    quiet(&format!("profile remove {NAME} p"), &made);
    quiet(&format!("repo set {NAME} automatic_tags_for=7"), &made);
    quiet(&format!("repo resign {NAME}"), &made);
    quiet(&format!("repo reindex {NAME}"), &made);
    quiet(&format!("repo export-config {NAME} --to {conf}"), &made);
    quiet(&format!("collect {NAME} --grace 0 --keep-tags"), &made);
    quiet(&format!("check {NAME} --data"), &made);
    quiet(&format!("key export {NAME} --to {exported}"), &made);
    quiet(&format!("key import {NAME} {exported}"), &made);
    quiet(&format!("repo import {NAME} --config {config} --dry-run"), &made);
    let asked = workshop.esker(&["key", "request", NAME]);
    fs::write(&request, asked.stdout).expect("a file");
    let signed = world.esker(&["key", "sign", &request, "--yes", "--keys", &keys]).output().expect("esker");
    fs::write(&answer, signed.stdout).expect("a file");
    quiet(&format!("key apply {answer}"), &made);
    quiet(&format!("key rotate {NAME}"), &made);
    let listed = workshop.esker(&["key", "list", NAME, "--json"]);
    let listed: Value = serde_json::from_slice(&listed.stdout).expect("JSON");
    let fingerprint = listed["certificates"][0]["fingerprint"].as_str().expect("a fingerprint");
    quiet(&format!("key revoke {NAME} {fingerprint} --dry-run"), &made);
    quiet(&format!("key rotate {NAME} --finish"), &made);
    quiet(&format!("key encrypt {NAME}"), &made);
    fs::remove_file(home(&format!("keys/{NAME}.masterkey"))).expect("removing a key");
    quiet(&format!("key signer {NAME} true --master"), &made);
    let replicas = ["--to", &copies, "--public-key", &public];
    quiet(&format!("replicate {url}"), &replicas);
    quiet(&format!("cache preload {url}"), &reads);
    quiet(&format!("cache pin {place}"), &reads);
    quiet(&format!("cache evict {place}"), &reads);
    quiet("cache check", &["--cache", &cache]);
    quiet("cache wipe --pinned", &["--cache", &cache]);
    quiet(&format!("compare {tree} {tree}"), &[]);
    quiet(&format!("image build {image} {tree}"), &[]);
    quiet(&format!("image digest {image} --output {digests}"), &[]);
    quiet(&format!("image verify {image}"), &[]);
    quiet(&format!("image extract {image} {out}"), &[]);
    quiet(&format!("image learn {image} --remove"), &[]);
    let gateway = ["--state", &state];
    quiet(&format!("gateway key add k {NAME}/ --output {key}"), &gateway);
    quiet(&format!("gateway key rotate k --output {key}.2"), &gateway);
    quiet("gateway key remove k", &gateway);
    for line in [
        "setup mount",
        "setup replicate",
        "setup serve",
        "setup proxy --upstream http://server",
        "setup broker",
        "setup check",
        "setup collect",
        "setup resign",
        "setup gateway",
        "setup metrics",
    ] {
        quiet(line, &["--root", &stage]);
    }
    quiet("reload", &[]);
    quiet("upgrade", &[]);
    quiet(&format!("repo remove {NAME} --yes"), &made);
    // Each command that has the option is in the list.
    let is_tested =
        |name: &String| tested.iter().any(|line| format!("{line} ").starts_with(&format!("{name} ")));
    let all = commands(world);
    let untested: Vec<_> =
        all.iter().filter(|name| help(world, name).contains("--quiet") && !is_tested(name)).collect();
    assert!(untested.is_empty(), "{untested:?}");
}
