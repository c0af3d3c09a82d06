use std::ffi::OsString;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::PathBuf;
use std::process::{Command, ExitCode};

use esker_node::mounted::{MountPlan, Mounted};
use esker_run::{Ending, Forwarding, Outside, Point, RunError, die_by};

use crate::args::{RepositoryArgs, RevisionArgs, TestingArgs};
use crate::exit::{Failure, Kind, chain, warn};
use crate::join::{Checked, mount_options, offline_warning, session_options};
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
    revision: RevisionArgs,

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
        shield: args.revision.fixed,
    };
    let (repository, view) = checked.open(&mount_options(settings, &args.revision, &args.testing))?;
    warn(offline_warning(&view.status()).as_deref());
    let mut launcher = Command::new("/proc/self/exe");
    launcher.arg0("esker").arg(INSIDE);
    let plan = MountPlan {
        mountpoint: point.path.clone(),
        runtime: settings.runtime.clone(),
        session: session_options(&args.repository, Some(&args.testing)),
        command: args.command.first().map(|program| program.to_string_lossy().into_owned()),
        shield: args.revision.fixed,
    };
    let failed = |error: RunError| of_run(&error);
    let mut outside =
        Outside::start(launcher, vec![point], args.command, files.before, forwarding).map_err(failed)?;
    // There is one point, so there is one device.
    let device =
        outside.devices().and_then(|mut devices| devices.pop().ok_or(RunError::NoDevice)).map_err(failed)?;
    let (mounted, unregistered) =
        Mounted::attach(plan, device, repository, view).map_err(|error| Failure::failed(chain(&error)))?;
    let unregistered = unregistered.map(|error| format!("`esker status` won't show it: {}", chain(&error)));
    warn(unregistered.as_deref());
    let ending = outside.go().and_then(|()| outside.wait());
    // What the command left running loses its mount when this process ends.
    mounted.abandon();
    match ending.map_err(failed)? {
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
