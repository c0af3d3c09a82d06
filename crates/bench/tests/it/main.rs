//! `esker-bench` as a process.

mod publisher;

use std::fs;
use std::process::Command;

/// The command interrupts the benchmark, as a user does with Ctrl-C.
#[test]
fn a_run_that_is_interrupted_unmounts() {
    let folder = tempfile::tempdir().expect("a folder");
    let (clients, log) = (folder.path().join("clients.toml"), folder.path().join("log"));
    let line = |word: &str| format!("echo {word} >> {}", log.display());
    let text = format!(
        "[[client]]\nname = 'any'\nmount = '{}'\nunmount = '{}'\ndrop_cache = 'true'\n",
        line("mounted"),
        line("unmounted")
    );
    fs::write(&clients, text).expect("a file");
    let bench = |command: &str| {
        let mut bench = Command::new(env!("CARGO_BIN_EXE_esker-bench"));
        bench.args(["startup", "--states", "hot", "--repetitions", "2", "--clients"]).arg(&clients);
        bench.arg("--scratch").arg(folder.path()).args(["--", "sh", "-c", command, "{root}"]);
        let output = bench.output().expect("it starts");
        let told = String::from_utf8_lossy(&output.stderr).into_owned();
        (output.status.success(), told, fs::read_to_string(&log).expect("a log"))
    };
    let once = "mounted\nunmounted\n";
    let (succeeded, told, lines) = bench("true");
    assert!(succeeded, "{told}");
    assert_eq!(lines, once);
    let (succeeded, told, lines) = bench("kill -TERM $PPID");
    assert!(!succeeded && told.contains("interrupted"), "{told}");
    assert_eq!(lines, once.repeat(2));
}
