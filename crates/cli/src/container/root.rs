//! Finds the root directory of a command, and runs the process that keeps it mounted.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::io;
use std::os::fd::RawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use esker_fuse::SessionOptions;
use esker_node::replay as node_replay;
use esker_node::repository::Repository;
use esker_node::runtime::RuntimeDir;
use esker_prefetch::RecordingTree;
use esker_run::container::{ContainerError, MappedIds, Stage};
use esker_run::shared_mount::{self, Key, MountedAt, SharedMountAddress, SharedMountError, SharedMountPlan};
use esker_run::{Identity, Step};
use esker_vfs::Tree;
use esker_view::{Ownership, View, ViewOptions};
use rustix::process::{WaitOptions, geteuid, getppid, waitpid};

use super::of_container;
use crate::commands::replay;
use crate::error::{Context, Failure, Kind, chain};
use crate::image::{self, ImageArgs, ImageNamed};
use crate::mounting::open::open;
use crate::process::respawn::{Respawn, run_again, start_again};
use crate::settings::SourceSettings;
use crate::settings::address;
use crate::settings::address::split_path;

/// File that marks a folder of a web server as a repository.
const PUBLISHED: &str = ".cvmfspublished";

/// Root directory of a command.
#[derive(Clone, Debug)]
pub(crate) enum Root {
    /// A directory of the host.
    Directory(PathBuf),
    /// A squashfs image in a file, on a server, or in a repository.
    Image(ImageNamed),
    /// A folder of a repository: its URL or name, and the path.
    Repository(String, PathBuf),
}

impl Root {
    /// Classifies an argument as an image or as a repository to mount below `/cvmfs`, by its name and its file.
    pub(crate) fn of(what: &OsStr, args: &ImageArgs) -> Result<Option<Self>, Failure> {
        refuse_container_image(what)?;
        if let Some((place, Some(path))) = what.to_str().map(split_path)
            && (place.contains("://") || address::is_name(place))
            && !image::is_called_one(path)
        {
            return Ok(Some(Root::Repository(place.to_owned(), path.into())));
        }
        let path = Path::new(what);
        let is_path = what.as_bytes().contains(&b'/');
        if is_path && path.is_dir() && !path.join(PUBLISHED).exists() {
            return Ok(Some(Root::Directory(path.to_owned())));
        }
        let Some(text) = what.to_str() else { return Ok(None) };
        Ok(ImageNamed::of(text, args)?.map(Root::Image))
    }
}

/// Prefixes of container images, which can't be run directly.
const CONTAINER_IMAGES: [&str; 4] = ["docker://", "docker-archive:", "oci-archive:", "oci:"];
/// Prefixes of images of other programs, which are unsupported.
const OTHERS: [&str; 6] =
    ["docker-daemon:", "containers-storage:", "oras://", "library://", "shub://", "dir:"];

/// Returns the error for a container image that must be converted first, with the command for it.
fn refuse_container_image(what: &OsStr) -> Result<(), Failure> {
    let text = what.to_string_lossy();
    let begins = |forms: &[&str]| forms.iter().any(|form| text.starts_with(form));
    if begins(&CONTAINER_IMAGES) {
        let name = text.split_once(':').map_or("", |(_, rest)| rest);
        let name = name.split('@').next().unwrap_or_default().trim_end_matches('/');
        let name = name.rsplit('/').next().unwrap_or_default();
        let name = name.split([':', '.']).next().filter(|name| !name.is_empty()).unwrap_or("image");
        return Err(Failure::usage(format!(
            "{text} is a container image, which is made into a squashfs image first"
        ))
        .hint(format!("esker image build {name}.sqfs {text}\nesker run ./{name}.sqfs")));
    }
    if begins(&OTHERS) {
        return Err(Failure::usage(format!("esker can't read {text}"))
            .hint("save it with another program, like `skopeo copy FROM oci:FOLDER`, then `esker image build it.sqfs oci:FOLDER`"));
    }
    Ok(())
}

/// An image that the process of a shared mount keeps mounted for a job.
pub(crate) struct Kept<'a> {
    pub(crate) root: Root,
    pub(crate) sources: SourceSettings,
    /// Options of a repository's view.
    pub(crate) view: Box<dyn Fn() -> ViewOptions + 'a>,
    /// True if the tree never changes.
    pub(crate) is_fixed: bool,
    pub(crate) session: SessionOptions,
    /// True if recorded reads are replayed ahead of programs that start from the image.
    pub(crate) replay: bool,
    pub(crate) identity: Identity,
    /// Users of commands that must not get out of it, if they aren't those of this process.
    pub(crate) ids: Option<MappedIds>,
}

/// Files that the process of a shared mount has open.
#[derive(Default)]
struct Open {
    recording: Option<Arc<RecordingTree>>,
    repository: Option<(Repository, Arc<View>)>,
}

impl Open {
    fn close(self) {
        self.recording.iter().for_each(|recording| recording.close());
        self.repository.iter().for_each(|(repository, view)| {
            view.close();
            repository.close();
        });
    }
}

impl Kept<'_> {
    /// Joins the shared mount of the image; starts its process with this command line if necessary.
    pub(crate) fn join(&self, line: &[OsString]) -> Result<Stage, Failure> {
        let runtime = self.runtime()?;
        let place = self.place(&runtime)?;
        let log = runtime.log(&format!("image-{}", std::process::id()));
        let stage = place.join(|| {
            let started = start(&log, line);
            // The process of the shared mount continues to write to the unnamed file; the log of a failed one has been read.
            let _ = fs::remove_file(&log);
            started
        });
        Ok(match &self.root {
            Root::Repository(_, path) => stage?.below(path),
            _ => stage?,
        })
    }

    /// Runs as the process of a shared mount. `fd` is the pipe to the process that started it.
    pub(crate) fn keep(self, fd: RawFd) -> Result<(), Failure> {
        run_again("--keep", fd, |ready| {
            let starter = getppid().map_or(1, |pid| pid.as_raw_nonzero().get().cast_unsigned());
            // The command would be its parent, and wait for it.
            shared_mount::leave_parent()
                .context(Kind::Failed, "can't start a process that keeps the image")?;
            self.serve(starter, ready)
        })
    }

    fn serve(self, starter: u32, ready: impl FnOnce() -> io::Result<()>) -> Result<(), Failure> {
        let runtime = self.runtime()?;
        let place = self.place(&runtime)?;
        let keeping = SharedMountPlan {
            identity: self.identity,
            source: self.describe(),
            session: self.session.clone(),
            is_fixed: self.is_fixed,
            apart: self.is_apart(),
            starter,
        };
        // Opened before the namespaces hide the permissions.
        let mut opened = Open::default();
        let kept = place.keep(keeping, |mount| self.open(mount, &mut opened), ready);
        opened.close();
        runtime.leave();
        kept
    }

    fn runtime(&self) -> Result<RuntimeDir, Failure> {
        RuntimeDir::open(&self.sources.user().runtime).context(Kind::Failed, "can't register the image")
    }

    fn place(&self, runtime: &RuntimeDir) -> Result<SharedMountAddress, Failure> {
        let image = match &self.root {
            Root::Directory(path) => of_file(path)?,
            Root::Image(image) => match &image.place {
                image::ImageLocation::File(path) => format!("{} {}", of_file(path)?, image.identity()),
                _ => format!("{} {}", image.identity(), self.sources.identity()),
            },
            Root::Repository(place, _) => format!("{place} {} {:?}", self.sources.identity(), self.is_fixed),
        };
        let image = format!("{image} {} {:?}", self.is_apart(), self.ids);
        Ok(SharedMountAddress::new(runtime.path(), Key::new(&image, self.identity)))
    }

    /// True if commands are in a user namespace of their own. Those of ordinary users always are; root's would lose
    /// the rights that root has elsewhere, and make one of their own where they are contained.
    fn is_apart(&self) -> bool {
        !geteuid().is_root()
    }

    fn describe(&self) -> String {
        match &self.root {
            Root::Directory(path) => path.display().to_string(),
            Root::Image(image) => image.describe(),
            Root::Repository(place, _) => place.clone(),
        }
    }

    /// Opens the tree for `mount`, and records in `opened` what must be closed at the end.
    fn open(&self, mount: MountedAt<'_>, opened: &mut Open) -> Result<Arc<dyn Tree>, Failure> {
        let command = self.replay.then(|| Arc::new(replay::command_in(mount.directory, mount.name)) as _);
        let first_ids = self.ids.map_or((0, 0), MappedIds::first);
        let tree: Arc<dyn Tree> = match &self.root {
            Root::Directory(path) => {
                let path = path.display();
                return Err(Failure::failed(format!("{path} is a directory, which needs no shared mount")));
            }
            Root::Image(named) => {
                let mut image = named.mount(&self.sources, first_ids)?;
                opened.recording = command.and_then(|command| node_replay::in_image(&mut image, command));
                image.tree
            }
            Root::Repository(place, _) => {
                let checked = self.sources.repository(place)?;
                let mut options = (self.view)();
                if let Some((uid, gid)) = self.ids.map(MappedIds::first) {
                    options.ownership = Ownership::From { uid, gid };
                }
                let (repository, view) = open(checked, &options)?;
                let recording = |command| node_replay::in_repository(&repository, &view, command);
                opened.recording = command.and_then(recording);
                opened.repository = Some((repository, view.clone()));
                view
            }
        };
        Ok(opened.recording.clone().map_or(tree, |recording| recording))
    }
}

/// Returns an identity for a file that changes with its content.
fn of_file(path: &Path) -> Result<String, Failure> {
    let unknown = || format!("can't find the image {}", path.display());
    let real = fs::canonicalize(path).context(Kind::Failed, unknown())?;
    let meta = fs::metadata(&real).context(Kind::Failed, unknown())?;
    let time = (meta.mtime(), meta.mtime_nsec());
    Ok(format!("{} {} {} {} {time:?}", real.display(), meta.dev(), meta.ino(), meta.len()))
}

/// Starts the process of the shared mount, and waits until the mount is ready.
fn start(log: &Path, line: &[OsString]) -> Result<(), Failure> {
    let again = Respawn {
        name: "esker",
        option: "--keep",
        failed: "can't start a process that keeps the image",
        supervised: false,
        spec: None,
    };
    let outcome = start_again(&again, log, line);
    // The child has started another and ended: the command must not find an unknown child.
    let _ = waitpid(None, WaitOptions::empty());
    outcome.map(drop)
}

impl From<SharedMountError> for Failure {
    fn from(error: SharedMountError) -> Self {
        match error {
            SharedMountError::Container(ContainerError::Blocked(blocked)) if blocked.step == Step::Device => {
                Failure::failed(blocked.to_string()).hint(format!(
                    "{}; or unpack the image with `esker image extract IMAGE FOLDER` and run ./FOLDER, which needs no \
                     /dev/fuse",
                    blocked.remedy
                ))
            }
            SharedMountError::Container(error) => of_container(&error),
            SharedMountError::Mount(_) | SharedMountError::Session(_) => Failure::failed(chain(&error)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_container_image_keeps_its_run_settings() {
        for (what, name) in [
            ("docker://alpine", "alpine"),
            ("docker://h.example:5000/a/tool:1.0", "tool"),
            ("docker-archive:/tmp/saved.tar", "saved"),
            ("oci:layout:v1", "layout"),
            ("docker://ubuntu@sha256:00", "ubuntu"),
        ] {
            let failure = Root::of(OsStr::new(what), &ImageArgs::default()).expect_err(what);
            let hint = failure.hint.expect("a hint");
            assert!(hint.starts_with(&format!("esker image build {name}.sqfs {what}\n")), "{what}: {hint}");
        }
        assert!(Root::of(OsStr::new("library://a/b"), &ImageArgs::default()).is_err());
    }

    #[test]
    fn images_are_distinguished_from_repositories() {
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("a.sqfs");
        fs::write(&file, "").expect("a file");
        let of = |what: &Path| Root::of(what.as_os_str(), &ImageArgs::default()).expect("an answer");
        let image = |what: &Path| match of(what) {
            Some(Root::Image(image)) => image.describe(),
            other => panic!("{}: {other:?}", what.display()),
        };
        assert_eq!(image(&file), fs::canonicalize(&file).expect("it").display().to_string());
        assert!(matches!(of(folder.path()), Some(Root::Directory(path)) if path == folder.path()));
        fs::write(folder.path().join(PUBLISHED), "").expect("a file");
        assert!(of(folder.path()).is_none(), "a repository in a folder");
        for (what, place, path) in
            [("http://h:80/cvmfs/a.test:/b", "http://h:80/cvmfs/a.test", "/b"), ("a.test:/b", "a.test", "/b")]
        {
            let found = of(Path::new(what));
            let is = matches!(&found, Some(Root::Repository(is, at)) if is == place && at == Path::new(path));
            assert!(is, "{what}: {found:?}");
        }
        for remote in ["http://h:80/a/b.sqfs", "a.test:/b.sqfs"] {
            assert_eq!(image(Path::new(remote)), remote);
        }
        for none in ["http://h:80/cvmfs/a.test", "a.test", "/no/such/path"] {
            assert!(of(Path::new(none)).is_none(), "{none}");
        }
    }
}
