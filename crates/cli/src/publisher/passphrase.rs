//! Passphrases of encrypted keys: from a file, a credential of systemd, or a prompt without echo.

use std::collections::HashMap;
use std::fs::{File, OpenOptions};
use std::io::{self, Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::sync::Mutex;

use esker_repository::{PassphraseFor, Passphrases};
use rustix::termios::{LocalModes, OptionalActions, Termios, tcgetattr, tcsetattr};

use crate::settings::Settings;

/// Longest passphrase in bytes.
const LENGTH_MAX: u64 = 4096;

/// Returns the source of passphrases. Each is asked for once.
pub(super) fn source(settings: &Settings) -> Passphrases {
    let file = settings.passphrase_file.clone();
    let known: Mutex<HashMap<PathBuf, String>> = Mutex::default();
    Passphrases::new(move |path, purpose| {
        if let Some(file) = &file {
            return of_file(file);
        }
        let mut known = known.lock().map_err(|_| "an earlier prompt failed".to_owned())?;
        if let Some(passphrase) = known.get(path) {
            return Ok(passphrase.clone());
        }
        let passphrase = ask(path, purpose)?;
        known.insert(path.to_owned(), passphrase.clone());
        Ok(passphrase)
    })
}

/// Returns the first line of a file.
fn of_file(path: &Path) -> Result<String, String> {
    let failed = |error: io::Error| format!("{}: {error}", path.display());
    let mut text = String::new();
    esker_store::open_named(path)
        .and_then(|file| file.take(LENGTH_MAX).read_to_string(&mut text))
        .map_err(failed)?;
    let line = text.lines().next().unwrap_or_default().to_owned();
    if line.is_empty() { Err(format!("{} is empty", path.display())) } else { Ok(line) }
}

fn ask(path: &Path, purpose: PassphraseFor) -> Result<String, String> {
    let no_terminal = |error: io::Error| format!("there is no terminal to ask on: {error}");
    let mut terminal = OpenOptions::new().read(true).write(true).open("/dev/tty").map_err(no_terminal)?;
    match purpose {
        PassphraseFor::Opening => prompt(&mut terminal, &format!("Passphrase of {}: ", path.display())),
        PassphraseFor::Protecting => {
            let first = prompt(&mut terminal, &format!("New passphrase for {}: ", path.display()))?;
            let again = prompt(&mut terminal, "The same again: ")?;
            if first == again { Ok(first) } else { Err("the two passphrases differ".to_owned()) }
        }
    }
}

/// Restores the terminal when it is dropped.
struct Quiet<'t> {
    terminal: &'t File,
    before: Termios,
}

impl Quiet<'_> {
    /// Switches off the echo, and signals of keys: the reader sees Ctrl-C as a byte, so that the terminal is restored.
    fn new(terminal: &File) -> io::Result<Quiet<'_>> {
        let before = tcgetattr(terminal)?;
        let mut quiet = before.clone();
        quiet.local_modes -= LocalModes::ECHO | LocalModes::ICANON | LocalModes::ISIG;
        tcsetattr(terminal, OptionalActions::Flush, &quiet)?;
        Ok(Quiet { terminal, before })
    }
}

impl Drop for Quiet<'_> {
    fn drop(&mut self) {
        // A terminal that is gone needs no restoring.
        let _ = tcsetattr(self.terminal, OptionalActions::Now, &self.before);
    }
}

fn prompt(terminal: &mut File, text: &str) -> Result<String, String> {
    let failed = |error: io::Error| error.to_string();
    let typed = {
        // Before the prompt: what is typed as soon as it appears is neither shown nor lost.
        let quiet = Quiet::new(terminal).map_err(failed)?;
        let mut terminal = quiet.terminal;
        terminal.write_all(text.as_bytes()).map_err(failed)?;
        typed(terminal)
    };
    // The line of the prompt is not the next one's.
    let _ = terminal.write_all(b"\n");
    typed
}

/// Reads a line key by key.
fn typed(mut input: impl io::Read) -> Result<String, String> {
    let mut line = Vec::new();
    let mut key = [0];
    for _ in 0..LENGTH_MAX {
        if input.read(&mut key).map_err(|error| error.to_string())? == 0 {
            break;
        }
        match key[0] {
            b'\n' | b'\r' | 4 => break,
            3 | 28 => return Err("the prompt was interrupted".to_owned()),
            8 | 127 => {
                // A letter may be more than one byte.
                while line.pop().is_some_and(|last: u8| last & 0xc0 == 0x80) {}
            }
            21 => line.clear(),
            other => line.push(other),
        }
    }
    String::from_utf8(line).map_err(|_| "it is not UTF-8 text".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn typed_keys_make_a_line() {
        for (keys, line) in [
            ("secret\n", Ok("secret")),
            ("secreX\x7ft\nrest", Ok("secret")),
            ("wrong\x15right\r", Ok("right")),
            ("pä\x7fe\n", Ok("pe")),
            ("\x7f\x7fa\n", Ok("a")),
            ("half\x03", Err(())),
        ] {
            assert_eq!(
                typed(keys.as_bytes()).map_err(drop).as_deref(),
                line.as_ref().map(|line| *line).map_err(|()| &()),
                "{keys:?}"
            );
        }
    }

    #[test]
    fn a_file_has_the_passphrase_in_its_first_line() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("passphrase");
        std::fs::write(&path, "correct horse\nsecond line\n").expect("a file");
        assert_eq!(of_file(&path).as_deref(), Ok("correct horse"));
        std::fs::write(&path, "\n").expect("a file");
        assert!(of_file(&path).is_err());
        assert!(of_file(&folder.path().join("none")).is_err());
    }
}
