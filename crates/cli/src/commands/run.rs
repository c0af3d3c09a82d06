use std::ffi::OsString;
use std::os::fd::RawFd;
use std::process::ExitCode;

use crate::args::{RepositoryArgs, TestingArgs, ViewArgs};
use crate::around::{Around, end_as, take_signals};
use crate::container::{self, ContainerArgs, Inside, Kept, Root};
use crate::exit::{Failure, warn};
use crate::image::ImageArgs;
use crate::join::{Checked, mount_options, session_options};
use crate::limits::OpenFiles;
use crate::named::hint_at_colon;
use crate::settings::Settings;

/// Runs a command with a repository mounted below /cvmfs, or with an image as its root directory.
///
/// Needs neither root nor fusermount3.
///
/// Example: esker run http://server/cvmfs/sw.example.org --public-key sw.example.org.pub -- ls /cvmfs/sw.example.org
#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    /// Repository: http://host[:port]/cvmfs/NAME, file:///…/NAME, or the NAME of a configured one. Or a root directory:
    /// a squashfs image (a file, http://host/image.sqfs, or NAME:/path/image.sqfs), a directory with a system in it
    /// (written with a `/`), or a folder of a repository as NAME:/path
    #[arg(value_name = "REPOSITORY|IMAGE")]
    what: OsString,

    #[command(flatten)]
    container: ContainerArgs,

    #[command(flatten)]
    repository: RepositoryArgs,

    #[command(flatten)]
    view: ViewArgs,

    #[command(flatten)]
    image: ImageArgs,

    #[command(flatten)]
    testing: TestingArgs,

    /// Keep the image mounted and report to this descriptor; `esker run` starts itself with this option
    #[arg(long, hide = true, value_name = "FD")]
    keep: Option<RawFd>,

    /// Command and its arguments [default for an image: its own command]
    #[arg(last = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

pub(crate) fn run(
    args: Args,
    settings: &Settings,
    files: OpenFiles,
    line: &[OsString],
) -> Result<ExitCode, Failure> {
    let what = args.what.clone();
    if let Some(root) = Root::of(&what, &args.image)? {
        return in_container(root, args, settings, files, line);
    }
    if args.command.is_empty() {
        return Err(Failure::usage("a COMMAND is missing").hint("as in: esker run NAME -- ls /cvmfs/NAME"));
    }
    let url = what
        .to_str()
        .ok_or_else(|| Failure::usage(format!("{} is no name of a repository", what.display())))?;
    let forwarding = take_signals()?;
    let at_colon = |failure| hint_at_colon(url, failure);
    let checked = Checked::new(url, &args.repository, settings).map_err(at_colon)?;
    if let Some(option) = args.container.given() {
        return Err(Failure::usage(format!(
            "{option} is for an image as the root directory, and {url} is a repository, which appears below /cvmfs"
        ))
        .hint("leave it out, or name what becomes the root directory: a folder of the repository is NAME:/path"));
    }
    let around = Around {
        settings,
        files,
        command: args.command,
        view: mount_options(settings, &args.view, &args.testing),
        session: session_options(&args.repository, Some(&args.testing)),
        push: checked.push(args.view.push.as_ref()),
        shield: args.view.pin().is_some(),
        scout: !args.view.no_prefetch,
    };
    let (ending, ()) = around.run(checked, forwarding, |_| (), |_| ()).map_err(at_colon)?;
    Ok(end_as(ending))
}

fn in_container(
    root: Root,
    args: Args,
    settings: &Settings,
    files: OpenFiles,
    line: &[OsString],
) -> Result<ExitCode, Failure> {
    if !matches!(root, Root::Repository(..)) {
        args.view.refuse_revision(&args.what.to_string_lossy())?;
    }
    let inside = Inside { args: args.container, image: args.what, command: args.command, files };
    let is_image = match &root {
        Root::Directory(path) => return container::directory(inside, path),
        Root::Image(image) => {
            if args.keep.is_none() {
                warn(image.warning().as_deref());
            }
            true
        }
        Root::Repository(..) => false,
    };
    // Who keeps it is in another directory by the time that it reads them.
    let repository = args.repository.absolute()?;
    let kept = Kept {
        is_fixed: is_image || args.view.pin().is_some(),
        root,
        repository: &repository,
        view: Box::new(|| mount_options(settings, &args.view, &args.testing)),
        session: session_options(&args.repository, Some(&args.testing)),
        scout: !args.view.no_prefetch,
        identity: inside.identity(),
        contained: inside.args.is_contained(),
        settings,
    };
    if let Some(fd) = args.keep {
        return kept.keep(fd).map(|()| ExitCode::SUCCESS);
    }
    inside.become_command(|| kept.join(line))
}
