use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::process::ExitCode;

use crate::args::{RepositoryArgs, TestingArgs, ViewArgs};
use crate::around::{Around, end_as, take_signals};
use crate::container::{self, ContainerArgs, Inside};
use crate::exit::Failure;
use crate::join::{Checked, mount_options, session_options};
use crate::limits::OpenFiles;
use crate::settings::Settings;

/// Runs a command that sees a repository below /cvmfs, or has an image as its root directory, without root and without
/// fusermount3.
///
/// Example: esker run http://server/cvmfs/sw.example.org --public-key sw.example.org.pub -- ls /cvmfs/sw.example.org
#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    /// A repository: http://host[:port]/cvmfs/NAME, file:///…/NAME, or the NAME of one that is configured. Or what becomes
    /// the root directory: a directory with a system in it (with a `/` in its name)
    #[arg(value_name = "REPOSITORY|IMAGE")]
    what: OsString,

    #[command(flatten)]
    container: ContainerArgs,

    #[command(flatten)]
    repository: RepositoryArgs,

    #[command(flatten)]
    view: ViewArgs,

    #[command(flatten)]
    testing: TestingArgs,

    /// The command and its arguments; for an image its own, if none is named
    #[arg(last = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

pub(crate) fn run(args: Args, settings: &Settings, files: OpenFiles) -> Result<ExitCode, Failure> {
    let what = args.what.clone();
    if let Some(root) = Root::of(&what) {
        let inside = Inside { args: args.container, image: what, command: args.command, files };
        return match root {
            Root::Directory(path) => container::directory(inside, &path),
        };
    }
    if args.command.is_empty() {
        return Err(Failure::usage("a COMMAND is missing").hint("as in: esker run NAME -- ls /cvmfs/NAME"));
    }
    let url = what
        .to_str()
        .ok_or_else(|| Failure::usage(format!("{} is no name of a repository", what.display())))?;
    let forwarding = take_signals()?;
    let checked = Checked::new(url, &args.repository, settings)?;
    let around = Around {
        settings,
        files,
        command: args.command,
        view: mount_options(settings, &args.view, &args.testing),
        session: session_options(&args.repository, Some(&args.testing)),
        push: checked.push(args.view.push.as_ref()),
        shield: args.view.pin().is_some(),
    };
    let (ending, ()) = around.run(checked, forwarding, |_| (), |_| ())?;
    Ok(end_as(ending))
}

/// What becomes the root directory of a command.
enum Root {
    Directory(PathBuf),
}

impl Root {
    /// A name without a slash is a repository's.
    fn of(what: &OsStr) -> Option<Self> {
        let path = PathBuf::from(what);
        let is_path =
            what.as_bytes().contains(&b'/') && !what.as_bytes().windows(3).any(|part| part == b"://");
        (is_path && path.is_dir()).then_some(Root::Directory(path))
    }
}
