//! Executes a command, and explains failures.
//!
//! `execve` returns ENOENT for a script whose interpreter is missing and for a program whose loader is missing, as it
//! does for a missing file. [`execute`] looks at the file afterwards and names the missing one.

mod program;

use std::ffi::{CString, OsStr, OsString};
use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use rustix::fs::{StatVfsMountFlags, statvfs};

use crate::container::resolve;
use crate::sys;
use program::Program;

/// Exit code of a shell for a missing command.
pub(crate) const NOT_FOUND: u8 = 127;
/// A shell's exit code for a command that can't be executed.
pub(crate) const NOT_EXECUTABLE: u8 = 126;

/// Default search path without PATH.
const DEFAULT_PATH: &str = "/bin:/usr/bin";
/// Shell for scripts without a `#!` line.
const SHELL: &str = "/bin/sh";
/// Maximum depth of interpreters that are scripts, as in the kernel.
const INTERPRETERS_MAX: usize = 5;

/// Reason why a command was not executed.
#[derive(Debug)]
pub(crate) struct NotExecuted {
    /// Exit code of a shell in this case.
    pub(crate) code: u8,
    /// Cause, without the name of the command.
    pub(crate) reason: String,
    /// Hint for the user.
    pub(crate) hint: String,
}

/// Executes `program`; returns only if that failed.
pub(crate) fn execute(
    program: &OsStr,
    arguments: &[OsString],
    environment: &[(OsString, OsString)],
) -> NotExecuted {
    let path = environment.iter().find(|(name, _)| name == "PATH").map(|(_, value)| value.as_os_str());
    let Some(file) = find(program, path) else {
        let shown = path.unwrap_or(OsStr::new(DEFAULT_PATH)).display();
        return NotExecuted {
            code: NOT_FOUND,
            reason: "there is no such program".into(),
            hint: format!("name its path, or see that it is in a directory of PATH ({shown})"),
        };
    };
    let error = replace_process(&file, program, arguments, environment);
    explain(program, &file, &error)
}

/// Fails if the program that `name` stands for, or an interpreter of it, is named by a link to an open file or program of a
/// process: this process is still the host's, and the command could write to its program.
pub(crate) fn refuse_process_links(name: &OsStr, path: Option<&OsStr>) -> io::Result<()> {
    let mut file = find(name, path);
    for _ in 0..=INTERPRETERS_MAX {
        let Some(program) = file else { break };
        resolve::without_process_links(&program)?;
        file = match Program::of(&program) {
            Some(Program::Script { interpreter, .. }) => Some(interpreter),
            Some(Program::Elf { loader, .. }) => loader,
            Some(Program::Text) => Some(SHELL.into()),
            Some(Program::Damaged) | None => None,
        };
    }
    Ok(())
}

/// Finds the file that a shell would execute as `program`.
fn find(program: &OsStr, path: Option<&OsStr>) -> Option<PathBuf> {
    if program.as_bytes().contains(&b'/') {
        return Some(program.into());
    }
    if program.is_empty() {
        return None;
    }
    let mut not_executable = None;
    for folder in std::env::split_paths(path.unwrap_or(OsStr::new(DEFAULT_PATH))) {
        let folder = if folder.as_os_str().is_empty() { Path::new(".") } else { &folder };
        let file = folder.join(program);
        match fs::metadata(&file) {
            Ok(meta) if !meta.is_file() => {}
            Ok(meta) if meta.permissions().mode() & 0o111 != 0 => return Some(file),
            Ok(_) => not_executable = not_executable.or(Some(file)),
            Err(_) => {}
        }
    }
    not_executable
}

fn replace_process(
    file: &Path,
    name: &OsStr,
    arguments: &[OsString],
    environment: &[(OsString, OsString)],
) -> io::Error {
    let text = |text: &OsStr| CString::new(text.as_bytes());
    let call = |file: &OsStr, line: Vec<&OsStr>| -> io::Error {
        let all = || -> io::Result<(CString, Vec<CString>, Vec<CString>)> {
            let line = line.iter().map(|word| text(word)).collect::<Result<_, _>>()?;
            let pair =
                |(name, value): &(OsString, OsString)| text(&[name.as_os_str(), value].join(OsStr::new("=")));
            let environment = environment.iter().map(pair).collect::<Result<_, _>>()?;
            Ok((text(file)?, line, environment))
        };
        match all() {
            Ok((file, line, environment)) => sys::replace_process(&file, &line, &environment),
            Err(error) => error,
        }
    };
    let words = |first: &[&'_ OsStr]| -> Vec<OsString> {
        first.iter().map(|word| (*word).to_owned()).chain(arguments.iter().cloned()).collect()
    };
    let line = words(&[name]);
    let error = call(file.as_os_str(), line.iter().map(OsString::as_os_str).collect());
    // Text without a `#!` line is run by a shell, as POSIX requires.
    if error.raw_os_error() == Some(libc::ENOEXEC) && Program::of(file).is_some_and(|it| it == Program::Text)
    {
        let line = words(&[OsStr::new("sh"), file.as_os_str()]);
        return call(OsStr::new(SHELL), line.iter().map(OsString::as_os_str).collect());
    }
    error
}

fn explain(program: &OsStr, file: &Path, error: &io::Error) -> NotExecuted {
    let missing = error.kind() == io::ErrorKind::NotFound;
    let code = if missing { NOT_FOUND } else { NOT_EXECUTABLE };
    let known = match error.raw_os_error() {
        Some(libc::ENOENT | libc::ENOTDIR) => why_missing(file, INTERPRETERS_MAX),
        Some(libc::EACCES | libc::EPERM) => why_forbidden(file, INTERPRETERS_MAX),
        Some(libc::ENOEXEC | libc::EINVAL | libc::ELIBBAD) => why_unknown(file, INTERPRETERS_MAX),
        _ => None,
    };
    let (reason, hint) = known
        .unwrap_or_else(|| (error.to_string(), format!("check that it exists: ls -l {}", program.display())));
    NotExecuted { code, reason, hint }
}

type Reason = Option<(String, String)>;

fn why_missing(file: &Path, depth: usize) -> Reason {
    if fs::symlink_metadata(file).is_ok_and(|meta| meta.is_symlink()) && fs::metadata(file).is_err() {
        let target = fs::read_link(file).unwrap_or_default();
        return Some((
            format!("it is a link to {}, which is not there", target.display()),
            "name a program that is there".into(),
        ));
    }
    let wanted = Program::of(file)?;
    match &wanted {
        Program::Script { interpreter, line } => {
            if fs::metadata(interpreter).is_ok() {
                return below(file, interpreter, depth, why_missing);
            }
            let hint = if line.ends_with('\r') {
                "its lines end in carriage returns, as on Windows: remove them (sed -i 's/\\r$//')"
            } else {
                "use an image that has the interpreter, or start the script with another one"
            };
            let shown = interpreter.display().to_string();
            let reason = format!(
                "its interpreter {} is not there (its first line is `{}`)",
                shown.escape_debug(),
                line.escape_debug()
            );
            Some((reason, hint.into()))
        }
        Program::Elf { loader: Some(loader), machine, .. } if fs::metadata(loader).is_err() => {
            let mut reason = format!("its loader {} is not there", loader.display());
            if let Some(other) = machine.other() {
                reason.push_str(&format!(", and {other}"));
            }
            let hint = "it was built for another system (another C library or machine type): use a program that was built for this \
                 one";
            Some((reason, hint.into()))
        }
        _ => None,
    }
}

fn why_forbidden(file: &Path, depth: usize) -> Reason {
    let Ok(meta) = fs::metadata(file) else {
        return Some((
            "a directory of its path may not be entered by this user".into(),
            format!("check with: namei -l {}", file.display()),
        ));
    };
    if meta.is_dir() {
        return Some(("it is a directory".into(), "name a program in it".into()));
    }
    if meta.permissions().mode() & 0o111 == 0 {
        return Some((
            "it is not marked as executable".into(),
            format!("chmod +x {0}, or start it with its interpreter: sh {0}", file.display()),
        ));
    }
    if statvfs(file).is_ok_and(|mount| mount.f_flag.contains(StatVfsMountFlags::NOEXEC)) {
        return Some((
            "it is on a mount with the option noexec".into(),
            "copy it elsewhere, or mount without noexec".into(),
        ));
    }
    match Program::of(file)? {
        Program::Script { interpreter, line } => {
            let (reason, hint) = why_forbidden(&interpreter, depth.checked_sub(1)?)?;
            let reason = format!(
                "its interpreter {} can't be executed: {reason} (its first line is `{}`)",
                interpreter.display(),
                line.escape_debug()
            );
            Some((reason, hint))
        }
        _ => None,
    }
}

fn why_unknown(file: &Path, depth: usize) -> Reason {
    match Program::of(file)? {
        Program::Script { interpreter, .. } => below(file, &interpreter, depth, why_unknown),
        Program::Elf { machine, .. } => {
            let hint = "use an image or a program for this machine type";
            match machine.other() {
                Some(other) => Some((other, hint.into())),
                None => Some(("it is damaged, or no program".into(), "check with: file, readelf -h".into())),
            }
        }
        Program::Damaged => Some(("it is cut off, or no program".into(), "download it again".into())),
        Program::Text => None,
    }
}

/// Returns the reason of an interpreter, which is a reason of its script.
fn below(file: &Path, interpreter: &Path, depth: usize, why: fn(&Path, usize) -> Reason) -> Reason {
    if interpreter == file {
        return None;
    }
    let (reason, hint) = why(interpreter, depth.checked_sub(1)?)?;
    Some((format!("its interpreter {} can't be executed: {reason}", interpreter.display()), hint))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Makes an ELF head for a machine, with a loader.
    fn elf(machine: u16, loader: &str) -> Vec<u8> {
        let mut bytes = vec![0x7f, b'E', b'L', b'F', 2, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0];
        bytes.extend_from_slice(&2u16.to_le_bytes());
        bytes.extend_from_slice(&machine.to_le_bytes());
        bytes.extend_from_slice(&1u32.to_le_bytes());
        // Entry, program headers at 64, no sections.
        for word in [0u64, 64, 0] {
            bytes.extend_from_slice(&word.to_le_bytes());
        }
        bytes.extend_from_slice(&0u32.to_le_bytes());
        for half in [64u16, 56, 1, 0, 0, 0] {
            bytes.extend_from_slice(&half.to_le_bytes());
        }
        // The one program header: an interpreter, right after it.
        bytes.extend_from_slice(&3u32.to_le_bytes());
        bytes.extend_from_slice(&4u32.to_le_bytes());
        let len = loader.len() as u64 + 1;
        for word in [120u64, 0, 0, len, len, 1] {
            bytes.extend_from_slice(&word.to_le_bytes());
        }
        bytes.extend_from_slice(loader.as_bytes());
        bytes.push(0);
        bytes
    }

    fn own_machine() -> u16 {
        let own = fs::read("/proc/self/exe").expect("this program");
        u16::from_le_bytes([own[18], own[19]])
    }

    #[test]
    fn a_missing_interpreter_or_loader_is_named() {
        let folder = tempfile::tempdir().expect("a folder");
        let at = |name: &str| folder.path().join(name);
        let make = |name: &str, content: &[u8], mode: u32| {
            fs::write(at(name), content).expect("a file");
            fs::set_permissions(at(name), fs::Permissions::from_mode(mode)).expect("a mode");
        };
        let other = if own_machine() == 183 { 62 } else { 183 };
        let inner = format!("#!{}\n", at("script").display());
        let through = at("folder").display().to_string();
        fs::create_dir(at("folder")).expect("a folder");
        std::os::unix::fs::symlink("nowhere", at("link")).expect("a link");
        /// Name, content, mode, expected exit code and words of the message.
        type Case<'a> = (&'a str, Vec<u8>, u32, u8, &'a [&'a str]);
        let cases: [Case<'_>; 10] = [
            (
                "script",
                b"#! /no/such/python9 -E\nx".into(),
                0o755,
                127,
                &["/no/such/python9", "`#! /no/such/python9 -E`"],
            ),
            ("dos", b"#!/bin/sh\r\necho".into(), 0o755, 127, &["/bin/sh\\r", "carriage"]),
            ("nested", inner.into(), 0o755, 127, &["script", "/no/such/python9"]),
            ("loader", elf(own_machine(), "/no/such/ld.so"), 0o755, 127, &["loader /no/such/ld.so"]),
            ("plain", b"echo".into(), 0o644, 126, &["not marked as executable", "chmod +x"]),
            ("cut", elf(own_machine(), "/x")[..30].into(), 0o755, 126, &["cut off"]),
            ("inside", format!("#!{through}\n").into(), 0o755, 126, &["it is a directory", "#!"]),
            ("no-text", b"\x00\x01\x02\x03 binary".into(), 0o755, 126, &["no program"]),
            ("other", elf(other, "/bin/sh"), 0o755, 126, &["this machine is"]),
            ("other-loader", elf(other, "/no/such/ld.so"), 0o755, 126, &["this machine is"]),
        ];
        for (name, content, mode, code, words) in cases {
            make(name, &content, mode);
            // This process goes on, since nothing of this can be executed.
            let told = execute(at(name).as_os_str(), &[], &[]);
            for word in words {
                let all = format!("{} {}", told.reason, told.hint);
                assert!(all.contains(word), "{name}: {word}: {all}");
            }
            assert!(told.code == code, "{name}: {told:?}");
        }
        let told = execute(at("link").as_os_str(), &[], &[]);
        assert!(told.code == 127 && told.reason.contains("link to nowhere"), "{told:?}");
        let told = execute(at("folder").as_os_str(), &[], &[]);
        assert!(told.code == 126 && told.reason.contains("directory"), "{told:?}");
        let path = [("PATH".into(), folder.path().as_os_str().to_owned())];
        let told = execute(OsStr::new("none"), &[], &path);
        assert!(told.code == 127 && told.hint.contains(&*folder.path().to_string_lossy()), "{told:?}");
        let told = execute(OsStr::new("plain"), &[], &path);
        assert!(told.code == 126 && told.reason.contains("not marked"), "{told:?}");
    }

    #[test]
    fn programs_are_found_as_a_shell_finds_them() {
        let folder = tempfile::tempdir().expect("a folder");
        for (name, mode) in [("a/x", 0o644), ("b/x", 0o755), ("a/only", 0o644)] {
            let path = folder.path().join(name);
            fs::create_dir_all(path.parent().expect("a parent")).expect("a folder");
            fs::write(&path, "").expect("a file");
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).expect("a mode");
        }
        let path = std::env::join_paths(["a", "b"].map(|name| folder.path().join(name))).expect("a path");
        let find = |name: &str| find(OsStr::new(name), Some(&path));
        assert_eq!(find("x"), Some(folder.path().join("b/x")));
        assert_eq!(find("only"), Some(folder.path().join("a/only")));
        assert_eq!(find("none"), None);
        assert_eq!(find("./none"), Some("./none".into()));
    }
}
