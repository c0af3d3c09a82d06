//! A running `esker serve`.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use serde_json::Value;

use crate::test_env::esker_binary;
use crate::test_user::TestUser;

/// A server of the repositories in a folder, gone when dropped.
pub(crate) struct Served {
    child: Child,
    pub(crate) url: String,
}

impl Served {
    pub(crate) fn start(folder: &Path) -> Served {
        Served::start_as(TestUser::myself(), folder)
    }

    /// Serves as this user: root drops its privileges.
    pub(crate) fn start_as(person: TestUser, folder: &Path) -> Served {
        let mut command = person.command(esker_binary());
        Served::by(command.arg("serve").arg(folder).env_clear().env("HOME", "/"))
    }

    /// Serves by this command, which names what is served.
    pub(crate) fn by(command: &mut Command) -> Served {
        command.args(["--listen", "127.0.0.1:0", "--json"]);
        let mut child = command.stdout(Stdio::piped()).spawn().expect("esker serve");
        let mut line = String::new();
        let output = child.stdout.as_mut().expect("its output");
        BufReader::new(output).read_line(&mut line).expect("a line");
        let ready: Value = serde_json::from_str(&line).expect("JSON");
        let url = ready["url"].as_str().expect("a URL").to_owned();
        Served { child, url }
    }

    /// Returns the URL of a repository.
    pub(crate) fn url(&self, repository: &str) -> String {
        format!("{}/cvmfs/{repository}", self.url)
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        // It may be stopped or gone, which are the faults of some tests.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
