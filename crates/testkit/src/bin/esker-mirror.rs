//! Serves a folder over HTTP on the loopback interface, for the demo and for trying things out.
//!
//! Usage: `esker-mirror FOLDER`. Prints its address and serves until it is killed or its parent dies.
#![forbid(unsafe_code)]
#![allow(clippy::print_stderr, reason = "a program of its own, with a terminal to talk to")]

use std::io::Write;
use std::process::ExitCode;

use esker_testkit::mirror::Mirror;
use rustix::process::Signal;

fn main() -> ExitCode {
    let mut arguments = std::env::args_os().skip(1);
    let (Some(folder), None) = (arguments.next(), arguments.next()) else {
        eprintln!("usage: esker-mirror FOLDER");
        return ExitCode::from(2);
    };
    if !std::path::Path::new(&folder).is_dir() {
        eprintln!("esker-mirror: {} is not a folder", folder.display());
        return ExitCode::from(2);
    }
    // The demo's shell may die of a signal it can't trap; its server must not outlive it.
    let parent = rustix::process::getppid();
    if let Err(error) = rustix::process::set_parent_process_death_signal(Some(Signal::TERM)) {
        eprintln!("esker-mirror: asking to be stopped with the parent: {error}");
        return ExitCode::FAILURE;
    }
    if rustix::process::getppid() != parent {
        return ExitCode::SUCCESS;
    }
    let mirror = Mirror::serve(folder);
    let mut out = std::io::stdout();
    if writeln!(out, "{}", mirror.url("")).and_then(|()| out.flush()).is_err() {
        return ExitCode::FAILURE;
    }
    loop {
        std::thread::park();
    }
}
