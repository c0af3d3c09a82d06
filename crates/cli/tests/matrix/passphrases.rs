//! Passphrases of keys, asked for on a terminal.

use std::fs::File;
use std::io::{Read as _, Write as _};
use std::process::{Child, Stdio};

use rustix::termios::{LocalModes, tcgetattr};

use crate::publishing::{NAME, Workshop};
use crate::sys::{in_session_of, terminal};
use crate::test_user::TestUser;

/// A command on a terminal of its own.
struct Conversation {
    terminal: File,
    child: Child,
    said: String,
}

impl Conversation {
    fn begin(workshop: &Workshop, arguments: &[&str]) -> Self {
        let (storage, keys) = (workshop.home("storage"), workshop.home("keys"));
        let places = ["--storage", &storage, "--keys", &keys];
        let mut command = workshop.world.esker(&[arguments, &places].concat());
        let (outside, inside) = terminal();
        let end = || Stdio::from(inside.try_clone().expect("a terminal"));
        in_session_of(command.stdin(end()).stdout(end()).stderr(end()));
        let child = command.spawn().expect("running esker");
        Self { terminal: outside, child, said: String::new() }
    }

    /// Reads until the command has written a text, and returns what came before it.
    #[track_caller]
    fn hear(&mut self, text: &str) -> String {
        let mut room = [0; 1024];
        loop {
            if let Some(at) = self.said.find(text) {
                let rest = self.said.split_off(at + text.len());
                return std::mem::replace(&mut self.said, rest);
            }
            let read = self.terminal.read(&mut room).unwrap_or_default();
            assert!(read > 0, "it ended before {text:?}: {}", self.said);
            self.said.push_str(&String::from_utf8_lossy(&room[..read]));
        }
    }

    fn types(&mut self, keys: &str) {
        assert!(!self.echoes(), "what is typed would be shown");
        self.terminal.write_all(keys.as_bytes()).expect("typing");
    }

    fn echoes(&self) -> bool {
        tcgetattr(&self.terminal).expect("a terminal").local_modes.contains(LocalModes::ECHO)
    }

    /// Returns the exit code and the rest of what it writes.
    fn end(mut self) -> (Option<i32>, String) {
        let mut room = [0; 1024];
        // A terminal whose other end is closed is an error of its own.
        while let Some(read) = self.terminal.read(&mut room).ok().filter(|read| *read > 0) {
            self.said.push_str(&String::from_utf8_lossy(&room[..read]));
        }
        (self.child.wait().expect("an end").code(), self.said)
    }
}

/// The prompt hides what is typed, asks twice for a new passphrase, and can be interrupted.
#[test]
fn a_passphrase_is_asked_for_on_the_terminal_without_echo() {
    for person in TestUser::all() {
        let workshop = Workshop::with(person, |top| std::fs::create_dir(top).expect("a folder"));
        workshop.create();
        let key = workshop.home(&format!("keys/{NAME}.key"));
        let encrypt = ["key", "encrypt", NAME, "--publisher"];

        let mut differs = Conversation::begin(&workshop, &encrypt);
        differs.hear("New passphrase for ");
        differs.hear(": ");
        differs.types("one\n");
        differs.hear("The same again: ");
        differs.types("another\n");
        let (code, said) = differs.end();
        assert!(code != Some(0) && said.contains("the two passphrases differ"), "{said}");

        let mut set = Conversation::begin(&workshop, &encrypt);
        set.hear("New passphrase for ");
        set.hear(": ");
        set.types("horse stapler\x7f\n");
        set.hear("The same again: ");
        set.types("horse staple\n");
        let (code, said) = set.end();
        assert!(code == Some(0) && !said.contains("horse"), "{said}");
        let text = person.does(|| std::fs::read_to_string(&key)).expect("the key");
        assert!(text.contains("ENCRYPTED"), "{text}");

        let publish = ["publish", NAME, &workshop.tree(), "--tag", "v1"];
        let mut wrong = Conversation::begin(&workshop, &publish);
        wrong.hear(&format!("Passphrase of {key}: "));
        wrong.types("zebra\n");
        let (code, said) = wrong.end();
        assert!(code != Some(0) && !said.contains("zebra"), "{said}");

        let mut stopped = Conversation::begin(&workshop, &publish);
        stopped.hear(": ");
        stopped.types("hor\x03");
        let interrupted = stopped.hear("the prompt was interrupted");
        assert!(stopped.echoes(), "the terminal is as before: {interrupted}");
        assert_ne!(stopped.end().0, Some(0));

        let mut right = Conversation::begin(&workshop, &publish);
        right.hear(&format!("Passphrase of {key}: "));
        right.types("horse staple\r");
        let (code, said) = right.end();
        assert!(code == Some(0) && said.contains("revision 1") && !said.contains("horse"), "{said}");
    }
}
