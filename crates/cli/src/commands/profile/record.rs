use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

use esker_format::name::RepositoryName;
use esker_format::profile::{Profile, is_path};
use esker_node::push::Push;
use esker_run::Ending;
use esker_view::{Pin, ViewOptions};

use crate::error::{Context, Failure, Kind, warn};
use crate::mounting::first_reads::Recorded;
use crate::mounting::open::{session_options, view_options};
use crate::mounting::recorder::Recorder;
use crate::mounting::run_mounted::{MountedRun, ToMount, end_as, take_signals};
use crate::process::limits::OpenFiles;
use crate::publisher::{now, write_profile};
use crate::settings::Settings;
use crate::settings::args::RepositoryArgs;
use crate::settings::repository::ResolvedRepository;

/// Runs a command as `esker run` does, and records the files that it reads from the repository.
///
/// Send the profile to the publisher of the repository. It contains the command line, and file names in the order of
/// their reads.
///
/// Example: esker profile record http://server/cvmfs/sw.example.org --public-key sw.example.org.pub -o tool.profile.json -- /cvmfs/sw.example.org/bin/tool
#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    /// Repository: http://host[:port]/cvmfs/NAME or file:///…/NAME
    #[arg(value_name = "URL")]
    url: String,

    /// Profile to write [default: PROGRAM.profile.json]
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,

    /// File whose read triggers the prefetch of the files read after it, like a script; programs and packages are
    /// triggers without this option
    #[arg(long, value_name = "/PATH")]
    trigger: Vec<String>,

    #[command(flatten)]
    repository: RepositoryArgs,

    /// Command and its arguments
    #[arg(last = true, required = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

pub(super) fn run(args: Args, settings: &Settings, files: OpenFiles) -> Result<ExitCode, Failure> {
    let forwarding = take_signals()?;
    if let Some(bad) = args.trigger.iter().find(|path| !is_path(path)) {
        let what = format!("--trigger {bad}: it is not the path of a file in the repository");
        return Err(
            Failure::usage(what).hint("write it without the part up to the repository, like /bin/tool")
        );
    }
    let output = match &args.output {
        Some(output) => output.clone(),
        None => default_output(&args.command)?,
    };
    // The command may change the directory of a relative path.
    let output = std::path::absolute(&output).context(Kind::Usage, "can't write the profile")?;
    let checked = ResolvedRepository::new(&args.url, &args.repository, settings)?;
    let name = RepositoryName::parse(&checked.address.name).context(Kind::Usage, "can't use this name")?;
    let words: Vec<_> = args.command.iter().map(|word| word.to_string_lossy()).collect();
    let command = words.join(" ");
    let mounted_run = MountedRun {
        settings,
        files,
        command: args.command,
        // At one revision, so that every name is from the same tree.
        view: ViewOptions { pin: Some(Pin::Head), ..view_options(settings) },
        session: session_options(&args.repository, None),
        // Reads that an overlay answers from the page cache would not be recorded.
        overlay: false,
        // Reads of other processes are not recorded either.
        replay: false,
        writable: None,
        environment: Vec::new(),
        output_to_stderr: false,
        started: None,
    };
    let recorder = Arc::new(Recorder::new());
    let (recorded_at, theirs) = (now(), recorder.clone());
    let (ending, (recorded, revision)) = mounted_run.run(
        vec![ToMount { checked, push: Push::Off }],
        forwarding,
        |view| view.observe(theirs),
        |view| (recorder.finish(view), view.status().revision),
    )?;
    let Recorded { files, reads, left_out } = recorded;
    let profile = Profile {
        repository: name,
        revision,
        command,
        recorded: recorded_at,
        triggers: args.trigger,
        files,
        reads,
    };
    write(&output, &profile, left_out)?;
    if !matches!(ending, Ending::Code(0)) {
        warn(Some(&format!("the command failed; {} may be incomplete", output.display())));
    }
    Ok(end_as(ending))
}

fn default_output(command: &[OsString]) -> Result<PathBuf, Failure> {
    let program = command.first().map(Path::new).and_then(Path::file_name).and_then(|name| name.to_str());
    let program = program.ok_or_else(|| {
        Failure::usage("there is no name for the profile").hint("name its file with -o FILE")
    })?;
    Ok(PathBuf::from(format!("{program}.profile.json")))
}

fn write(output: &Path, profile: &Profile, left_out: usize) -> Result<(), Failure> {
    write_profile(output, profile)?;
    if left_out > 0 {
        warn(Some(&format!("{left_out} files are not in it because their names are not UTF-8")));
    }
    if profile.files.is_empty() {
        warn(Some(&format!("the command read nothing of {}", profile.repository)));
    }
    Ok(())
}
