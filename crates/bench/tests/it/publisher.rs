//! `esker-bench publisher` as a process.

use std::fs;
use std::path::Path;
use std::process::Command;

use esker_testkit::skip;
use serde_json::Value;

/// Measures all parts with trees of some hundred entries, and without the reference.
#[test]
fn the_publishers_side_is_measured_with_small_trees() {
    let bench = Path::new(env!("CARGO_BIN_EXE_esker-bench"));
    let esker = bench.with_file_name("esker");
    if !esker.is_file() {
        skip!("the esker binary isn't built beside esker-bench");
    }
    let folder = tempfile::tempdir().expect("a folder");
    let path = |name: &str| folder.path().join(name);
    for name in ["home", "run", "config", "scratch", "tree"] {
        fs::create_dir(path(name)).expect("a folder");
    }
    fs::write(path("tree/file"), "content of a file\n".repeat(1000)).expect("a file");
    let mut command = Command::new(bench);
    command
        .arg("publisher")
        .arg(path("tree"))
        .arg("--binary")
        .arg(&esker)
        .arg("--scratch")
        .arg(path("scratch"));
    command.arg("--json").arg(path("publisher.json"));
    command.args(["--entries", "300", "--aged-entries", "300", "--catalog", "100", "--revisions", "6"]);
    command.args(["--changed", "4", "--kept", "2", "--series", "2", "--repetitions", "1"]);
    command
        .env("HOME", path("home"))
        .env("XDG_RUNTIME_DIR", path("run"))
        .env("ESKER_CONFIG_ROOT", path("config"));
    let output = command.output().expect("it starts");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let report: Value =
        serde_json::from_slice(&fs::read(path("publisher.json")).expect("a result")).expect("JSON");
    let rows = report["rows"].as_array().expect("rows");
    let names: Vec<&str> = rows.iter().map(|row| row["name"].as_str().expect("a name")).collect();
    assert_eq!(
        names,
        [
            "esker transaction, whole",
            "esker ingest, one of the revisions",
            "check: esker",
            "collect: esker",
            "collect: esker, lists of hashes known",
            "esker transaction, whole",
            "esker ingest of an archive",
            "esker, zlib of the same bytes",
            "esker, fast zlib",
            "esker, zstd",
        ]
    );
    for row in rows {
        assert!(row["real"]["point"].as_f64().expect("seconds") > 0.0, "{row}");
        assert!(row["peak"].as_u64().expect("bytes") > 0, "{row}");
        assert_eq!(row["speed"], Value::Null, "{row}");
    }
    // Of the revisions 1 to 3, each changed four files in two packages, as did those of 4 to 6, which are kept.
    assert!(rows[3]["facts"]["objects deleted"].as_f64().expect("a count") >= 12.0, "{}", rows[3]);
    let left = fs::read_dir(path("scratch")).expect("a folder").count();
    assert_eq!(left, 0, "temporary repositories are removed");
}
