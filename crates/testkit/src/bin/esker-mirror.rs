//! Serves a folder over HTTP on the loopback interface, for the demo and for trying things out.
//!
//! Usage: `esker-mirror FOLDER`, or `esker-mirror --fixture NAME` to serve a repository of `fixtures/`, unpacked into
//! the folder for temporary files. Prints its address and serves until it is killed or its parent dies.
#![forbid(unsafe_code)]
#![allow(clippy::print_stderr, reason = "a program of its own, with a terminal to talk to")]

use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;

use esker_testkit::fixture::{Fixture, Repository};
use esker_testkit::mirror::Mirror;
use rustix::process::Signal;

/// What is served; an unpacked fixture goes with the process if that ends by itself.
enum Served {
    Folder(PathBuf),
    Fixture(Repository),
}

fn served() -> Option<Served> {
    let arguments: Vec<_> = std::env::args_os().skip(1).collect();
    match arguments.as_slice() {
        [option, name] if option == "--fixture" => {
            Some(Served::Fixture(Fixture::named(name.to_str()?).unpack()))
        }
        [folder] if PathBuf::from(folder).is_dir() => Some(Served::Folder(folder.into())),
        _ => None,
    }
}

fn main() -> ExitCode {
    // The demo's shell may die of a signal it can't trap; its server must not outlive it.
    let parent = rustix::process::getppid();
    if let Err(error) = rustix::process::set_parent_process_death_signal(Some(Signal::TERM)) {
        eprintln!("esker-mirror: asking to be stopped with the parent: {error}");
        return ExitCode::FAILURE;
    }
    if rustix::process::getppid() != parent {
        return ExitCode::SUCCESS;
    }
    let Some(served) = served() else {
        eprintln!("usage: esker-mirror FOLDER | --fixture NAME");
        return ExitCode::from(2);
    };
    let mirror = match &served {
        Served::Folder(folder) => Mirror::serve(folder),
        Served::Fixture(repository) => Mirror::serve(repository.document_root()),
    };
    let path = match &served {
        Served::Folder(_) => "",
        Served::Fixture(repository) => repository.fixture().name(),
    };
    let mut out = std::io::stdout();
    if writeln!(out, "{}", mirror.url(path)).and_then(|()| out.flush()).is_err() {
        return ExitCode::FAILURE;
    }
    loop {
        std::thread::park();
    }
}
