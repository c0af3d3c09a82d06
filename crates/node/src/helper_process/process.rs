//! The helper's process.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use esker_prefetch::{ReplayerCommand, RunningReplayer};

use super::operations::Operations;
use super::request::{Answer, Failure, Request};
use crate::mount_spec::MountSpec;
use crate::packets;

/// Maximum number of requests at the same time. A daemon asks for each thread that waits for it at most once.
const RUNNING_MAX: usize = 256;

/// Works for the daemon on the other end of `socket` until it ends. `begin` restricts this process and returns the command of
/// a replayer for the mount, `made` gives up what only mounting needs.
pub fn run(
    socket: OwnedFd,
    begin: impl FnOnce(&MountSpec) -> io::Result<ReplayerCommand>,
    made: impl Fn(),
) -> io::Result<()> {
    let (_, Some(spec)) = packets::receive(&socket)? else { return Ok(()) };
    let spec = MountSpec::read(spec).map_err(io::Error::other)?;
    let replayer = begin(&spec)?;
    let operations = Arc::new(Operations::new(spec, replayer));
    loop {
        let (bytes, connection) = packets::receive(&socket)?;
        if bytes.is_empty() {
            break;
        }
        // Without one there is no place for an answer.
        let Some(connection) = connection else { continue };
        let refused = |error: io::Error| answer(&connection, Err(error.into()));
        match serde_json::from_slice(&bytes) {
            Ok(Request::Made) => {
                operations.made();
                made();
                answer(&connection, Ok((Answer::Done, None)));
            }
            Ok(_) if Arc::strong_count(&operations) > RUNNING_MAX => {
                refused(io::Error::from(io::ErrorKind::WouldBlock));
            }
            Ok(request) => {
                let operations = Arc::clone(&operations);
                let work = move || work(&operations, request, &connection);
                // Without a thread the connection ends, which is an answer.
                let _ = esker_threads::spawn("operation", work);
            }
            Err(_) => refused(io::Error::from(io::ErrorKind::PermissionDenied)),
        }
    }
    operations.leave();
    Ok(())
}

fn work(operations: &Operations, request: Request, connection: &OwnedFd) {
    if request != Request::Replay {
        return answer(connection, operations.perform(request));
    }
    match operations.replay() {
        Ok(RunningReplayer { pipe, end }) => {
            answer(connection, Ok((Answer::Done, Some(pipe.into()))));
            let _ = packets::receive(connection);
            end();
            answer(connection, Ok((Answer::Done, None)));
        }
        Err(error) => answer(connection, Err(error.into())),
    }
}

fn answer(connection: &OwnedFd, outcome: Result<(Answer, Option<OwnedFd>), Failure>) {
    let (answer, descriptor) = outcome.unwrap_or_else(|failure| (Answer::Failed(failure), None));
    // The daemon may have ended.
    let _ = serde_json::to_vec(&answer)
        .map_err(io::Error::from)
        .and_then(|bytes| packets::send(connection, &[&bytes], descriptor.as_ref().map(AsFd::as_fd)));
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use esker_fuse::MountHelper;
    use esker_kernel_mount::Unmount;

    use super::*;
    use crate::helper_process::client::Helper;
    use crate::mount_spec::ContentSpec;
    use crate::mount_spec::tests::repository;

    /// Runs the helper of a mount in this process, for `daemon`.
    fn with_helper(
        change: impl FnOnce(&mut MountSpec),
        daemon: impl FnOnce(&Helper, &tempfile::TempDir),
    ) -> bool {
        let folder = tempfile::tempdir().expect("a folder");
        let mut content = repository();
        content.talk = None;
        let (mountpoint, runtime) = (folder.path().join("mnt"), folder.path().join("run"));
        let mut spec = MountSpec::new(mountpoint, runtime, ContentSpec::Repository(Box::new(content)));
        change(&mut spec);
        let (socket, theirs) = packets::pair().expect("sockets");
        let made = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let command = |_: &MountSpec| Ok(ReplayerCommand::of("/bin/cat", vec![]));
            let made = || made.store(true, Ordering::Relaxed);
            let running = scope.spawn(move || run(theirs, command, made));
            let spec = spec.sealed().expect("options");
            daemon(&Helper::over(socket, folder.path(), &spec).expect("sent"), &folder);
            running.join().expect("no panic").expect("it ends with its daemon");
        });
        made.into_inner()
    }

    /// > L10: No thread of a mount's daemon is without restrictions. What they forbid, another process does: nothing but operations on this mount, of which the daemon names no path, no program and no option.
    #[test]
    fn only_operations_on_the_mount_are_performed() {
        let made = with_helper(
            |_| {},
            |helper, _| {
                for bytes in [
                    r#"{"Mount":{"place":"/etc"}}"#,
                    r#"{"Unmount":{"lazy":true,"place":"/etc"}}"#,
                    r#"{"Replay":"/bin/true"}"#,
                    r#"{"Run":"/bin/true"}"#,
                    "x",
                ] {
                    let refused = helper.send(bytes.as_bytes()).expect("an answer");
                    let error = io::Error::from(refused.expect_err(bytes));
                    assert_eq!(error.to_string(), "permission denied", "{bytes}");
                }
                // What the options of the mount don't have.
                assert!(helper.listen().is_err() && esker_prefetch::StartReplayer::start(helper).is_err());
                let nothing = helper.unmount(Unmount::Lazy).expect_err("nothing is mounted");
                assert!(nothing.to_string().starts_with("unmounting "), "{nothing}");
                helper.made().expect("narrowed");
                for refused in [helper.mount().map(drop), helper.mount_behind().map(drop), helper.show_tree()]
                {
                    let error = refused.expect_err("it is made").to_string();
                    assert!(error.ends_with("mnt: it is mounted"), "{error}");
                }
            },
        );
        assert!(made, "nothing was given up");
    }

    #[test]
    fn a_replayer_ends_when_it_is_told_to_and_with_its_daemon() {
        use std::io::Write as _;
        with_helper(
            |spec| spec.replay = true,
            |helper, _| {
                let replayer = || esker_prefetch::StartReplayer::start(helper).expect("a replayer");
                let RunningReplayer { mut pipe, end } = replayer();
                pipe.write_all(b"a step").expect("it reads");
                drop(pipe);
                end();
                // Left to the end of this daemon.
                let RunningReplayer { pipe, .. } = replayer();
                drop(pipe);
            },
        );
    }

    #[test]
    fn the_runtime_directory_goes_with_the_last_mount() {
        with_helper(
            |_| {},
            |helper, folder| {
                let runtime = folder.path().join("run");
                crate::runtime::RuntimeDir::open(&runtime).expect("a folder");
                std::fs::write(runtime.join("other.json"), "").expect("a file");
                helper.leave();
                assert!(runtime.exists(), "another mount uses it");
                std::fs::remove_file(runtime.join("other.json")).expect("a file");
                helper.leave();
                assert!(!runtime.exists());
            },
        );
    }
}
