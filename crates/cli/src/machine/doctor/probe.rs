//! Probes paths that may hang, in a child process that can be detached.

use std::ffi::OsString;
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::mpsc::channel;
use std::time::Duration;

use rustix::io::Errno;
use serde::{Deserialize, Serialize};

use crate::settings::Settings;

/// Longest answer of a child.
const ANSWER_MAX: u64 = 64 * 1024;

/// Operation of the child.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum ProbeTarget {
    /// A mount, or a folder in it: its facts, its numbers, its names, and an attribute that only its daemon answers.
    Mount,
    /// A mount: reads its name and revision from its attributes.
    Revision,
    /// A cache folder: checks free space and write access.
    Cache,
    /// The cache folder that the next mount would use.
    DefaultCache,
    /// Creation of namespaces.
    Namespaces,
}

/// Result of the child. A child that hangs has none.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum ProbeResult {
    /// The mount replies.
    Answers,
    /// Name and revision of a mount, from its attributes.
    Shows { name: Option<String>, revision: Option<u64> },
    /// The folder is writable and has this much free space.
    Writable { free: u64, total: u64, network: Option<String> },
    /// The folder does not exist yet.
    Absent,
    /// The operation is possible.
    Allowed,
    /// A system call failed.
    Failed { call: String, errno: i32, text: String },
    /// The system does not allow it: cause and advice.
    Blocked { cause: String, remedy: String },
}

/// Reason of a missing result.
pub(crate) enum NoAnswer {
    /// The operation did not return in time. The child may live on for as long as the file hangs.
    Hangs,
    /// The child failed.
    Failed(String),
}

/// Runs an operation in a child process; waits no longer than `patience`.
pub(crate) fn touch(what: ProbeTarget, path: &Path, patience: Duration) -> Result<ProbeResult, NoAnswer> {
    let failed = |error: std::io::Error| NoAnswer::Failed(error.to_string());
    let kind: OsString = match what {
        ProbeTarget::Mount => "mount",
        ProbeTarget::Revision => "revision",
        ProbeTarget::Cache => "cache",
        ProbeTarget::DefaultCache => "default-cache",
        ProbeTarget::Namespaces => "namespaces",
    }
    .into();
    let mut command = Command::new("/proc/self/exe");
    command.arg0("esker").arg("doctor").arg("--touch").arg(kind).arg(path).current_dir("/");
    // An automounter ignores lookups of its own process group, which this process may be in.
    command.process_group(0);
    let mut child =
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().map_err(failed)?;
    let output = child.stdout.take().ok_or_else(|| NoAnswer::Failed("it has no output".into()))?;
    let (sender, receiver) = channel();
    let read = move || {
        let mut text = Vec::new();
        let read = output.take(ANSWER_MAX).read_to_end(&mut text);
        // The receiver may have timed out.
        let _ = sender.send(read.map(|_| text));
    };
    std::thread::Builder::new().stack_size(256 << 10).spawn(read).map_err(failed)?;
    match receiver.recv_timeout(patience) {
        Ok(text) => {
            // It has said all and is about to end.
            let _ = child.wait();
            serde_json::from_slice(&text.map_err(failed)?)
                .map_err(|error| NoAnswer::Failed(error.to_string()))
        }
        Err(_) => {
            // The child ends now or when its system call returns; nothing waits for that.
            let _ = child.kill();
            Err(NoAnswer::Hangs)
        }
    }
}

impl ProbeTarget {
    /// Runs in the child: touches the file and returns the result as text.
    pub(crate) fn perform(self, path: &Path, settings: &Settings) -> String {
        let touched = match self {
            Self::Mount => mount(path),
            Self::Revision => revision(path),
            Self::Cache => cache(path),
            Self::DefaultCache => match settings.cache(None, false) {
                Ok(place) => cache(&place.path),
                Err(failure) => {
                    ProbeResult::Blocked { cause: failure.message, remedy: failure.hint.unwrap_or_default() }
                }
            },
            Self::Namespaces => match esker_run::namespaces_blocked() {
                None => ProbeResult::Allowed,
                Some(blocked) => {
                    let (cause, remedy) = (blocked.to_string(), blocked.remedy);
                    ProbeResult::Blocked { cause, remedy }
                }
            },
        };
        serde_json::to_string(&touched).unwrap_or_default()
    }
}

fn failed(call: &str) -> impl Fn(std::io::Error) -> ProbeResult {
    move |error| ProbeResult::Failed {
        call: call.to_owned(),
        errno: error.raw_os_error().unwrap_or_default(),
        text: error.to_string(),
    }
}

fn mount(path: &Path) -> ProbeResult {
    let touch = || -> Result<(), ProbeResult> {
        std::fs::metadata(path).map_err(failed("stat"))?;
        rustix::fs::statvfs(path).map_err(std::io::Error::from).map_err(failed("statfs"))?;
        std::fs::read_dir(path)
            .map_err(failed("opendir"))?
            .take(1)
            .try_for_each(|entry| entry.map(drop).map_err(failed("readdir")))?;
        // The kernel answers other requests from its cache; this one reaches the daemon. An absent attribute is an
        // answer too.
        let mut value = [0; 256];
        match rustix::fs::getxattr(path, "user.fqrn", &mut value[..]) {
            Ok(_) | Err(Errno::NODATA | Errno::OPNOTSUPP) => Ok(()),
            Err(error) => Err(failed("getxattr")(error.into())),
        }
    };
    touch().err().unwrap_or(ProbeResult::Answers)
}

fn revision(path: &Path) -> ProbeResult {
    let attribute = |name: &str| {
        let mut value = [0; 256];
        let len = rustix::fs::getxattr(path, name, &mut value[..]).ok()?;
        String::from_utf8(value.get(..len)?.to_vec()).ok()
    };
    let revision = attribute("user.revision").and_then(|text| text.trim().parse().ok());
    ProbeResult::Shows { name: attribute("user.fqrn"), revision }
}

fn cache(path: &Path) -> ProbeResult {
    let touch = || -> Result<ProbeResult, ProbeResult> {
        match std::fs::metadata(path) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(ProbeResult::Absent),
            other => other.map(drop).map_err(failed("stat"))?,
        }
        let room = rustix::fs::statvfs(path).map_err(std::io::Error::from).map_err(failed("statfs"))?;
        let network =
            esker_cache_share::location::network_of(path).map_err(failed("statfs"))?.map(ToOwned::to_owned);
        let own: PathBuf = path.join(format!(".doctor-{}", std::process::id()));
        let written = std::fs::write(&own, own.as_os_str().as_bytes());
        // It was ours and is not needed; if it could not be made there is none.
        let _ = std::fs::remove_file(&own);
        written.map_err(failed("write"))?;
        Ok(ProbeResult::Writable {
            free: room.f_bavail * room.f_frsize,
            total: room.f_blocks * room.f_frsize,
            network,
        })
    };
    touch().unwrap_or_else(|failed| failed)
}
