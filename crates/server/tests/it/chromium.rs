//! A headless Chromium, driven through its debugging pipe.

use std::collections::VecDeque;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use serde_json::{Value, json};

/// Number of messages of Chromium that are read while one is awaited.
const MESSAGES_MAX: usize = 100_000;

/// A browser with one tab.
pub(crate) struct Chromium {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
    next: u64,
    session: Option<String>,
    /// Events that no caller has taken yet.
    events: VecDeque<Value>,
    _profile: tempfile::TempDir,
}

impl Chromium {
    /// Returns the path of the program, if it is installed.
    pub(crate) fn program() -> Option<&'static Path> {
        ["/usr/bin/chromium", "/usr/bin/chromium-browser", "/usr/bin/google-chrome"]
            .into_iter()
            .map(Path::new)
            .find(|path| path.exists())
    }

    /// Starts the program and opens a tab.
    pub(crate) fn start(program: &Path) -> Self {
        let profile = tempfile::tempdir().expect("a folder");
        // The debugging pipe is descriptors 3 and 4; a shell can put the standard ones there.
        let mut command = Command::new("/bin/sh");
        command.args(["-c", "exec \"$@\" 3<&0 4>&1 </dev/null >/dev/null", "sh"]).arg(program);
        command.args([
            "--headless=new",
            "--remote-debugging-pipe",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-dev-shm-usage",
            "--no-first-run",
            "--no-proxy-server",
            "--disable-background-networking",
            "--disable-component-update",
            "--disable-default-apps",
            "--disable-extensions",
            "--disable-sync",
            "--hide-scrollbars",
            "--force-device-scale-factor=1",
            // Nothing but this machine can be reached.
            "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
        ]);
        command.arg(format!("--user-data-dir={}", profile.path().display()));
        command.env("HOME", profile.path());
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut child = command.spawn().expect("starting Chromium");
        let input = child.stdin.take().expect("its input");
        let output = BufReader::new(child.stdout.take().expect("its output"));
        let events = VecDeque::new();
        let mut browser = Self { child, input, output, next: 0, session: None, events, _profile: profile };
        let target = browser.call("Target.createTarget", &json!({ "url": "about:blank" }));
        let attach = json!({ "targetId": target["targetId"], "flatten": true });
        let attached = browser.call("Target.attachToTarget", &attach);
        browser.session = attached["sessionId"].as_str().map(str::to_owned);
        for part in ["Page", "Runtime", "Log", "Network"] {
            browser.call(&format!("{part}.enable"), &json!({}));
        }
        browser
    }

    /// Calls a method and returns its result.
    #[track_caller]
    pub(crate) fn call(&mut self, method: &str, params: &Value) -> Value {
        self.next += 1;
        let id = self.next;
        let mut message = json!({ "id": id, "method": method, "params": params });
        if let Some(session) = &self.session {
            message["sessionId"] = session.as_str().into();
        }
        let mut bytes = message.to_string().into_bytes();
        bytes.push(0);
        self.input.write_all(&bytes).expect("a message to Chromium");
        for _ in 0..MESSAGES_MAX {
            let mut message = self.read();
            if message["id"] == id {
                assert!(message["error"].is_null(), "{method}: {}", message["error"]);
                return message["result"].take();
            }
            self.events.push_back(message);
        }
        panic!("{method} has no result");
    }

    fn read(&mut self) -> Value {
        let mut bytes = Vec::new();
        self.output.read_until(0, &mut bytes).expect("a message of Chromium");
        assert_eq!(bytes.pop(), Some(0), "Chromium ended");
        serde_json::from_slice(&bytes).expect("JSON")
    }

    /// Opens a page, and waits until it is loaded.
    #[track_caller]
    pub(crate) fn open(&mut self, url: &str) {
        let opened = self.call("Page.navigate", &json!({ "url": url }));
        assert!(opened["errorText"].is_null(), "{url}: {opened}");
        let mut seen = 0;
        loop {
            if self.events.iter().skip(seen).any(|event| event["method"] == "Page.loadEventFired") {
                self.events.retain(|event| event["method"] != "Page.loadEventFired");
                return;
            }
            seen = self.events.len();
            assert!(seen < MESSAGES_MAX, "{url} is not loaded");
            let event = self.read();
            self.events.push_back(event);
        }
    }

    /// Returns the value of an expression in the page; promises are awaited.
    #[track_caller]
    pub(crate) fn value(&mut self, expression: &str) -> Value {
        let params = json!({ "expression": expression, "awaitPromise": true, "returnByValue": true });
        let mut result = self.call("Runtime.evaluate", &params);
        assert!(result["exceptionDetails"].is_null(), "{expression:.200}: {}", result["exceptionDetails"]);
        result["result"]["value"].take()
    }

    /// Presses a key.
    pub(crate) fn press(&mut self, key: &str, code: u32) {
        for kind in ["keyDown", "keyUp"] {
            let params = json!({ "type": kind, "key": key, "code": key, "windowsVirtualKeyCode": code });
            self.call("Input.dispatchKeyEvent", &params);
        }
    }

    /// Takes the events with one of these names.
    pub(crate) fn take(&mut self, methods: &[&str]) -> Vec<Value> {
        let is_wanted = |event: &Value| methods.iter().any(|method| event["method"] == *method);
        let (taken, left) = std::mem::take(&mut self.events).into_iter().partition(is_wanted);
        self.events = left;
        taken.into()
    }

    /// Takes the errors of the console and of scripts since the last call.
    pub(crate) fn errors(&mut self) -> Vec<Value> {
        let events = self.take(&["Log.entryAdded", "Runtime.consoleAPICalled", "Runtime.exceptionThrown"]);
        let is_error = |event: &Value| {
            let params = &event["params"];
            event["method"] == "Runtime.exceptionThrown"
                || ["error", "warning"].iter().any(|level| params["entry"]["level"] == *level)
                || ["error", "warning"].iter().any(|kind| params["type"] == *kind)
        };
        events.into_iter().filter(is_error).collect()
    }
}

impl Drop for Chromium {
    fn drop(&mut self) {
        // The end of the pipe ends it, too.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
