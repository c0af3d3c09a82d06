//! Finds out whether a client of the supervisor belongs to the supervised mount itself.
//!
//! A daemon reads bytes of servers that are not trusted, so what it asks for must not widen what it may do: a program that
//! it handed over would run without its restrictions. Each process that a daemon starts has the supervisor among its
//! ancestors, also after its parent has ended: the supervisor adopts it (`PR_SET_CHILD_SUBREAPER`).

use std::fs;
use std::os::fd::AsFd;
use std::process;

use esker_cache_share::peer;
use rustix::process::{WaitOptions, geteuid, getpid, set_child_subreaper, wait};

/// Maximum number of ancestors that are looked at; Linux allows far fewer nested processes in practice.
const ANCESTORS_MAX: usize = 4096;
/// Number of looks at ancestors, one of which may end during a look.
const CHECKS_MAX: usize = 8;

/// Makes this process the parent of its descendants whose parents end.
pub(super) fn adopt_orphans() {
    // Linux has it since 3.4.
    let _ = set_child_subreaper(Some(getpid()));
}

/// Removes the entries of adopted processes that have ended; called while this process has no other child.
pub(super) fn bury_orphans() {
    while let Ok(Some(_)) = wait(WaitOptions::NOHANG) {}
}

/// Returns why a client isn't heard: it is the daemon, a process that the daemon started, or one that is gone.
pub(super) fn refusal(client: impl AsFd) -> Option<&'static str> {
    // Descendants are seen in every PID namespace of their ancestors, so a client that isn't seen is none.
    let pid = peer::pid(&client)?;
    if peer::user(&client) == Some(0) && !geteuid().is_root() {
        // A mount of an ordinary user gains nothing that root doesn't have. Its processes may be hidden (hidepid).
        return None;
    }
    let looked = (0..CHECKS_MAX).find_map(|_| is_descendant(pid));
    match looked {
        Some(false) if !peer::has_ended(&client) => None,
        Some(true) => Some("the request comes from the mount's own processes"),
        _ => Some("the process that sent the request has ended"),
    }
}

/// Returns whether a process is this one or one of its descendants; `None` if one of the ancestors has just ended.
fn is_descendant(pid: u32) -> Option<bool> {
    let mut at = pid;
    for _ in 0..ANCESTORS_MAX {
        match at {
            own if own == process::id() => return Some(true),
            0 | 1 => return Some(false),
            _ => at = parent(at)?,
        }
    }
    None
}

/// Returns the parent of a process; 0 for that of a namespace's first process.
fn parent(pid: u32) -> Option<u32> {
    let text = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name, which is in parentheses, may contain any character.
    text.rsplit_once(')')?.1.split_ascii_whitespace().nth(1)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::os::unix::net::{UnixListener, UnixStream};
    use std::path::Path;
    use std::process::{Command, Stdio};

    use super::*;

    /// Environment variable with the socket that a child of this test connects to.
    const SOCKET: &str = "ESKER_TEST_ORIGIN";
    const OWN: &str = "the request comes from the mount's own processes";

    /// Is a client if the environment says so; otherwise a test without content.
    #[test]
    fn a_client_connects_until_its_input_ends() {
        let Some(socket) = std::env::var_os(SOCKET) else { return };
        let _client = UnixStream::connect(Path::new(&socket)).expect("a listener");
        let _ = std::io::stdin().read_to_end(&mut Vec::new());
    }

    /// Starts a client: by a shell that waits for its end, or by one that ends before.
    fn client(socket: &Path, script: &str) -> process::Child {
        let mut command = Command::new("sh");
        command.args(["-c", script]).env("PROGRAM", std::env::current_exe().expect("this program"));
        command.env("TEST", "supervisor::origin::tests::a_client_connects_until_its_input_ends");
        command.env(SOCKET, socket).stdin(Stdio::piped()).stdout(Stdio::null());
        command.spawn().expect("a shell")
    }

    /// Connects as a grandchild, and as a process whose parents have ended.
    #[test]
    fn descendants_of_this_process_are_refused_also_when_their_parents_have_ended() {
        let folder = tempfile::tempdir().expect("a folder");
        let socket = folder.path().join("s");
        let listener = UnixListener::bind(&socket).expect("a socket");
        adopt_orphans();
        let mut child = client(&socket, r#""$PROGRAM" --exact "$TEST"; true"#);
        let (stream, _) = listener.accept().expect("a client");
        assert_eq!(refusal(&stream), Some(OWN));
        drop(child.stdin.take());
        child.wait().expect("its end");
        assert_eq!(refusal(&stream), Some("the process that sent the request has ended"));
        let mut child = client(&socket, r#"exec 3<&0; (setsid "$PROGRAM" --exact "$TEST" <&3 &) "#);
        let (stream, _) = listener.accept().expect("a client");
        let input = child.stdin.take();
        child.wait().expect("the end of the shell");
        assert_eq!(refusal(&stream), Some(OWN), "an orphan");
        drop(input);
        // One that has no parent here is none of its processes.
        assert_eq!(is_descendant(1), Some(false));
        assert_eq!(is_descendant(process::id()), Some(true));
    }
}
