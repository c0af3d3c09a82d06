use std::ffi::OsString;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::PathBuf;
use std::process::{Command, ExitCode};

use esker_fuse::Session;
use esker_run::{Ending, Forwarding, Outside, Point, RunError, die_by};

use crate::args::{RepositoryArgs, TestingArgs};
use crate::exit::{Failure, Kind, chain, warn};
use crate::join::{Checked, offline_warning, session_options, view_options};
use crate::limits::OpenFiles;
use crate::settings::Settings;

/// Runs a command that sees the repository below /cvmfs, without root and without fusermount3.
///
/// Example: esker run http://server/cvmfs/sw.example.org --public-key sw.example.org.pub -- ls /cvmfs/sw.example.org
#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    /// The repository: http://host[:port]/cvmfs/NAME or file:///…/NAME
    #[arg(value_name = "URL")]
    url: String,

    #[command(flatten)]
    repository: RepositoryArgs,

    #[command(flatten)]
    testing: TestingArgs,

    /// The command and its arguments
    #[arg(last = true, required = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

/// The name of the hidden subcommand that the child runs.
pub(crate) const INSIDE: &str = "run-inside";

pub(crate) fn run(args: Args, settings: &Settings, files: OpenFiles) -> Result<ExitCode, Failure> {
    // Before anything starts a thread: a signal must find a thread that knows what to do with it.
    let forwarding = Forwarding::begin().map_err(|error| of_run(&error))?;
    let checked = Checked::new(&args.url, &args.repository, settings)?;
    let point = Point {
        path: PathBuf::from("/cvmfs").join(&checked.address.name),
        source: checked.address.url.clone(),
    };
    let (repository, view) = checked.open(&view_options(settings, Some(&args.testing)))?;
    warn(offline_warning(&view.status()).as_deref());
    let mut launcher = Command::new("/proc/self/exe");
    launcher.arg0("esker").arg(INSIDE);
    let ending = (|| {
        let mut outside = Outside::start(launcher, vec![point], args.command, files.before, forwarding)
            .map_err(|error| of_run(&error))?;
        let mut sessions = Vec::new();
        for device in outside.devices().map_err(|error| of_run(&error))? {
            let options = session_options(&args.repository, Some(&args.testing));
            let session = Session::start(device, view.clone(), options)
                .map_err(|error| Failure::failed(format!("the mount can't be served: {}", chain(&error))))?;
            sessions.push(session);
        }
        outside.go().map_err(|error| of_run(&error))?;
        outside.wait().map_err(|error| of_run(&error))
    })();
    // What the command left running loses its mount when this process ends.
    view.close();
    repository.close();
    match ending? {
        Ending::Code(code) => Ok(ExitCode::from(code)),
        Ending::Signal(signal) => die_by(signal),
    }
}

fn of_run(error: &RunError) -> Failure {
    match error {
        RunError::Child { code, text } => {
            let (message, remedy) = text.split_once('\n').unwrap_or((text, ""));
            let failure = Failure::failed(message).with_code(*code);
            if remedy.is_empty() { failure } else { failure.hint(remedy) }
        }
        RunError::Vanished(status) if status.signal() == Some(libc::SIGINT) => {
            Failure::new(Kind::Interrupted, "interrupted before the command began")
        }
        _ => Failure::failed(chain(error)),
    }
}
