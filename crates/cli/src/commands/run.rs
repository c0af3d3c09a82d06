use std::ffi::OsString;
use std::os::fd::RawFd;
use std::process::ExitCode;

use crate::container::{self, ContainerArgs, ContainerRun, Kept, Root};
use crate::error::{Failure, warn};
use crate::image::ImageArgs;
use crate::mounting::open::{mount_options, session_options};
use crate::mounting::run_mounted::{MountedRun, ToMount, end_as, take_signals};
use crate::process::limits::OpenFiles;
use crate::process::respawn::read_proxies;
use crate::publisher;
use crate::settings::args::{RepositoryArgs, TestingArgs, ViewArgs};
use crate::settings::missing_colon::hint_at_colon;
use crate::settings::{Settings, SourceSettings};

/// Runs a command with repositories mounted below /cvmfs, or with an image as its root directory.
///
/// The command needs neither root nor fusermount3. Further repositories are mounted with `--repo`, as in `esker
/// run A --repo B -- CMD` or `esker run --repo A --repo B -- CMD`.
///
/// Example: esker run http://server/cvmfs/sw.example.org --public-key sw.example.org.pub -- ls /cvmfs/sw.example.org
#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    /// Repository: http://host[:port]/cvmfs/NAME, file:///…/NAME, or the NAME of one that is configured, or published from
    /// this machine; NAME@TAG is its revision with this tag. Or a root directory:
    /// a squashfs image (a file, http://host/image.sqfs, or NAME:/path/image.sqfs), a directory with a system in it
    /// (written with a `/`), or a folder of a repository as NAME:/path
    #[arg(value_name = "REPOSITORY|IMAGE", required_unless_present = "repo")]
    what: Option<OsString>,

    /// Repository to mount below /cvmfs, beside REPOSITORY if that is given; may be repeated
    #[arg(long, value_name = "REPOSITORY")]
    repo: Vec<String>,

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

    /// Read the value of --proxy from standard input; keeps passwords out of command lines
    #[arg(long, hide = true, requires = "keep")]
    proxy_from_input: bool,

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
    if let Some(what) = &args.what
        && let Some(root) = Root::of(what, &args.image)?
    {
        if let Some(repo) = args.repo.first() {
            let message = format!("--repo {repo}: {} becomes the root directory", what.display());
            return Err(Failure::usage(message)
                .hint("mount the repository with `esker mount`, and show it in the image with --bind"));
        }
        let what = what.clone();
        return in_container(root, what, args, settings, files, line);
    }
    if args.command.is_empty() {
        return Err(Failure::usage("a COMMAND is missing").hint("as in: esker run NAME -- ls /cvmfs/NAME"));
    }
    let urls = repositories(&args)?;
    let forwarding = take_signals()?;
    let mut to_mount: Vec<ToMount> = Vec::new();
    for url in &urls {
        let checked =
            publisher::resolve(url, &args.repository, settings).map_err(|f| hint_at_colon(url, f))?;
        let name = &checked.address.name;
        if to_mount.iter().any(|other| other.checked.address.name == *name) {
            return Err(Failure::usage(format!("{name} is named twice")).hint("name each repository once"));
        }
        if let Some(option) = args.container.given() {
            return Err(Failure::usage(format!(
                "{option} is for an image as the root directory, and {url} is a repository, which appears below /cvmfs"
            ))
            .hint("leave it out, or name what becomes the root directory: a folder of the repository is NAME:/path"));
        }
        let push = checked.push(args.view.push.as_ref());
        to_mount.push(ToMount { checked, push });
    }
    let are_tagged = to_mount.iter().all(|repository| repository.checked.is_tagged());
    let mounted_run = MountedRun {
        settings,
        files,
        command: args.command,
        view: mount_options(settings, &args.view, &args.testing),
        session: session_options(&args.repository, Some(&args.testing)),
        overlay: args.view.pin().is_some() || are_tagged,
        replay: !args.view.no_prefetch,
        writable: None,
        environment: Vec::new(),
        output_to_stderr: false,
        started: None,
    };
    let at_colon = |failure| urls.iter().fold(failure, |failure, url| hint_at_colon(url, failure));
    let (ending, ()) = mounted_run.run(to_mount, forwarding, |_| (), |_| ()).map_err(at_colon)?;
    Ok(end_as(ending))
}

/// Returns the repositories to mount. Refuses options that mean a single one if there are several.
fn repositories(args: &Args) -> Result<Vec<String>, Failure> {
    let first = args.what.as_ref().map(|what| {
        let text = what.to_str().map(str::to_owned);
        text.ok_or_else(|| Failure::usage(format!("{} is not a repository name", what.display())))
    });
    let urls: Vec<String> =
        first.into_iter().chain(args.repo.iter().cloned().map(Ok)).collect::<Result<_, _>>()?;
    if urls.len() > 1 {
        args.view.refuse_single_revision()?;
        let named =
            [(args.repository.fqrn.is_some(), "--fqrn"), (!args.repository.server.is_empty(), "--server")];
        if let Some((_, option)) = named.iter().find(|(given, _)| *given) {
            return Err(Failure::usage(format!(
                "{option} is for one repository, and {} are named",
                urls.len()
            ))
            .hint("leave it out: give each repository by its URL, or configure it and give its name"));
        }
    }
    Ok(urls)
}

fn in_container(
    root: Root,
    what: OsString,
    mut args: Args,
    settings: &Settings,
    files: OpenFiles,
    line: &[OsString],
) -> Result<ExitCode, Failure> {
    if !matches!(root, Root::Repository(..)) {
        args.view.refuse_revision(&what.to_string_lossy())?;
    }
    let container_run = ContainerRun { args: args.container, image: what, command: args.command, files };
    let is_image = match &root {
        Root::Directory(path) => return container::directory(container_run, path),
        Root::Image(image) => {
            if args.keep.is_none() {
                warn(image.warning().as_deref());
            }
            true
        }
        Root::Repository(..) => false,
    };
    if args.proxy_from_input {
        read_proxies(&mut args.repository)?;
    }
    // The process of the shared mount has changed its directory before it reads them.
    let sources = SourceSettings::new(&args.repository.absolute()?, settings);
    let kept = Kept {
        is_fixed: is_image || args.view.pin().is_some(),
        root,
        sources,
        view: Box::new(|| mount_options(settings, &args.view, &args.testing)),
        session: session_options(&args.repository, Some(&args.testing)),
        replay: !args.view.no_prefetch,
        identity: container_run.args.identity(),
        ids: container_run.args.ids(),
    };
    if let Some(fd) = args.keep {
        return kept.keep(fd).map(|()| ExitCode::SUCCESS);
    }
    container_run.become_command(|| kept.join(line))
}
