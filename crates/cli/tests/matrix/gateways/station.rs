//! A repository with a gateway, and publishers that speak its protocol.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};

use esker_format::object::ObjectName;
use esker_gateway::{Authorization, PackHeader, PackedObject, plain_key};
use serde_json::{Value, json};

use crate::publishing::{NAME, Workshop};
use crate::test_env::{PATIENCE, words};
use crate::test_user::TestUser;

/// A repository of a publisher that also runs the gateway.
pub(super) struct Station {
    pub(super) workshop: Workshop,
}

/// A gateway that runs.
pub(super) struct Running {
    pub(super) child: Child,
    pub(super) address: String,
}

/// Key of a publisher.
#[derive(Clone)]
pub(super) struct Key {
    pub(super) name: String,
    secret: String,
}

/// Objects with their names.
pub(super) type Objects = Vec<(ObjectName, Vec<u8>)>;

impl Station {
    pub(super) fn new(person: TestUser) -> Self {
        let workshop = Workshop::with(person, |tree| {
            fs::create_dir_all(tree.join("one")).expect("folders");
            fs::write(tree.join("one/file"), "first\n").expect("a file");
        });
        workshop.create();
        workshop.json(&["publish", NAME, &workshop.tree()]);
        Self { workshop }
    }

    /// Runs a command of the gateway's operator.
    #[track_caller]
    pub(super) fn operator(&self, arguments: &[&str]) -> String {
        let state = self.workshop.home("gateway");
        let arguments = [&["gateway"], arguments, &["--state", &state]].concat();
        let output = self.workshop.world.esker(&arguments).output().expect("running esker");
        assert!(output.status.success(), "{}", words(&output));
        String::from_utf8(output.stdout).expect("text")
    }

    /// Makes a key.
    pub(super) fn key(&self, name: &str, options: &[&str]) -> Key {
        let file = self.workshop.home(&format!("{name}.gw"));
        self.operator(&[&["key", "add", name, "--output", &file], options].concat());
        Key::read(Path::new(&file))
    }

    /// Starts the gateway.
    pub(super) fn start(&self, options: &[&str]) -> Running {
        let [storage, keys, state] = ["storage", "keys", "gateway"].map(|name| self.workshop.home(name));
        let places = ["--storage", &storage, "--keys", &keys, "--state", &state];
        let listen = ["--listen", "127.0.0.1:0", "--json"];
        let mut command = self.workshop.world.esker(&[&["gateway"], &places[..], &listen, options].concat());
        let mut child = command.stdout(Stdio::piped()).spawn().expect("esker gateway");
        let mut line = String::new();
        BufReader::new(child.stdout.as_mut().expect("its output")).read_line(&mut line).expect("a line");
        let ready: Value = serde_json::from_str(&line).expect("JSON");
        assert_eq!(ready["repositories"], json!([NAME]));
        let url = ready["url"].as_str().and_then(|url| url.strip_prefix("http://")).expect("a URL");
        Running { child, address: url.trim_end_matches("/api/v1").to_owned() }
    }

    /// Builds a tree with another file as the next revision on a copy of the storage; returns its root catalog, and the new objects.
    pub(super) fn build(&self, path: &str, content: &str) -> (String, Objects) {
        let (home, copy) = (self.workshop.home("storage"), self.workshop.home("copy"));
        let (keys, tree) = (self.workshop.home("keys"), self.workshop.tree());
        let person = self.workshop.world.person;
        let _ = fs::remove_dir_all(&copy);
        let copied = person.command("cp").args(["-a", &home, &copy]).status().expect("cp");
        assert!(copied.success());
        let file = Path::new(&tree).join(path);
        person.does(|| {
            fs::create_dir_all(file.parent().expect("a folder")).expect("folders");
            fs::write(&file, content).expect("a file");
        });
        let publish = ["publish", NAME, &tree, "--storage", &copy, "--keys", &keys];
        let output = self.workshop.world.esker(&publish).output().expect("running esker");
        assert!(output.status.success(), "{}", words(&output));
        let copy = PathBuf::from(copy).join(NAME);
        let before = objects(&Path::new(&home).join(NAME));
        let new = objects(&copy).into_iter().filter(|(name, _)| !before.contains_key(name));
        let new = new.map(|(name, file)| (name, fs::read(file).expect("an object"))).collect();
        let head = fs::read(copy.join(".cvmfspublished")).expect("the head");
        let root =
            String::from_utf8_lossy(&head).lines().find_map(|line| Some(line.strip_prefix('C')?.to_owned()));
        (format!("{}C", root.expect("a root catalog")), new)
    }

    /// Returns the number of stored objects.
    pub(super) fn stored(&self) -> usize {
        objects(&Path::new(&self.workshop.home("storage")).join(NAME)).len()
    }

    /// Returns the entries of the folders of the publisher, but for those of the gateway: what could be planted there.
    pub(super) fn tree_of_storage(&self) -> BTreeSet<PathBuf> {
        let mut all = BTreeSet::new();
        let mut folders = vec![PathBuf::from(self.workshop.home("storage"))];
        while let Some(folder) = folders.pop() {
            for entry in fs::read_dir(folder).expect("a folder").flatten() {
                folders.extend(Some(entry.path()).filter(|path| path.is_dir()));
                all.insert(entry.path());
            }
        }
        all
    }

    /// Returns a file of the head.
    pub(super) fn file(&self, path: &str) -> String {
        let url = self.workshop.published();
        let key = self.workshop.world.path("key.pub").display().to_string();
        let arguments = ["cat", &url, path, "--public-key", &key, "--cache", "ram"];
        let output = self.workshop.world.esker(&arguments).output().expect("running esker");
        assert!(output.status.success(), "{}", words(&output));
        String::from_utf8(output.stdout).expect("text")
    }
}

/// Returns the objects of a repository's folder.
fn objects(root: &Path) -> BTreeMap<ObjectName, PathBuf> {
    let folders = fs::read_dir(root.join("data")).expect("objects").flatten();
    let named = folders.filter_map(|folder| Some((folder.file_name().into_string().ok()?, folder.path())));
    let files = named.flat_map(|(begin, folder)| {
        let entries: Vec<_> = fs::read_dir(folder).into_iter().flatten().flatten().collect();
        entries
            .into_iter()
            .map(move |entry| (format!("{begin}{}", entry.file_name().to_string_lossy()), entry.path()))
    });
    files.filter_map(|(name, path)| Some((ObjectName::parse(&name)?, path))).collect()
}

impl Key {
    pub(super) fn read(file: &Path) -> Self {
        let (name, secret) = plain_key(file).expect("a key");
        Self { name, secret }
    }

    pub(super) fn sign(&self, input: &[u8]) -> String {
        format!(
            "Authorization: {}\r\n",
            Authorization::sign(&self.name, self.secret.as_bytes(), input).header()
        )
    }
}

impl Running {
    pub(super) fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(&self.address).expect("connecting");
        stream.set_read_timeout(Some(PATIENCE)).expect("a time limit");
        stream
    }

    /// Sends a request; returns the answer, which is JSON.
    #[track_caller]
    pub(super) fn ask(&self, method: &str, path: &str, fields: &str, body: &[u8]) -> Value {
        let mut stream = self.connect();
        let head = format!(
            "{method} {path} HTTP/1.1\r\nHost: h\r\n{fields}Content-Length: {}\r\nConnection: close\r\n\r\n",
            body.len()
        );
        // A server that refuses the head need not read the body.
        let _ = stream.write_all(&[head.as_bytes(), body].concat());
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer);
        let answer = String::from_utf8_lossy(&answer);
        let body = answer.split_once("\r\n\r\n").map(|(_, body)| body).unwrap_or_default();
        serde_json::from_str(body).unwrap_or_else(|error| panic!("{method} {path}: {error}: {answer}"))
    }

    #[track_caller]
    pub(super) fn signed(&self, key: &Key, method: &str, path: &str, input: &[u8], body: &[u8]) -> Value {
        self.ask(method, path, &key.sign(input), body)
    }

    /// Leases a directory; returns the answer.
    #[track_caller]
    pub(super) fn lease(&self, key: &Key, path: &str) -> Value {
        let body = json!({ "path": path, "api_version": "2", "hostname": "h" }).to_string();
        self.signed(key, "POST", "/api/v1/leases", body.as_bytes(), body.as_bytes())
    }

    #[track_caller]
    pub(super) fn token(&self, key: &Key, path: &str) -> String {
        let answer = self.lease(key, path);
        answer["session_token"].as_str().unwrap_or_else(|| panic!("{answer}")).to_owned()
    }

    #[track_caller]
    pub(super) fn send(&self, key: &Key, token: &str, objects: &Objects) -> Value {
        let packed =
            objects.iter().map(|(name, bytes)| PackedObject { name: *name, len: bytes.len() as u64 });
        let (header, digest) = PackHeader { objects: packed.collect() }.to_text();
        let bytes: Vec<u8> = objects.iter().flat_map(|(_, bytes)| bytes.clone()).collect();
        self.pack(key, token, (header.as_bytes(), &digest), &bytes)
    }

    /// Sends a pack.
    #[track_caller]
    pub(super) fn pack(
        &self,
        key: &Key,
        token: &str,
        (header, digest): (&[u8], &str),
        bytes: &[u8],
    ) -> Value {
        let message = message(token, digest, header.len());
        let fields = format!("{}Message-Size: {}\r\n", key.sign(message.as_bytes()), message.len());
        self.ask("POST", "/api/v1/payloads", &fields, &[message.as_bytes(), header, bytes].concat())
    }

    #[track_caller]
    pub(super) fn commit(&self, key: &Key, token: &str, root: &str) -> Value {
        let body =
            json!({ "old_root_hash": root, "new_root_hash": root, "tag_name": "", "tag_description": "" });
        let path = format!("/api/v1/leases/{token}");
        self.signed(key, "POST", &path, token.as_bytes(), body.to_string().as_bytes())
    }

    /// Returns a field of the process's status, in KiB for sizes.
    pub(super) fn status(&self, field: &str) -> String {
        let text = fs::read_to_string(format!("/proc/{}/status", self.child.id())).expect("a status");
        let line = text.lines().find_map(|line| line.strip_prefix(field)?.strip_prefix(':'));
        line.expect("a field").trim().trim_end_matches(" kB").to_owned()
    }
}

/// Returns the JSON in front of a pack.
pub(super) fn message(token: &str, digest: &str, header: usize) -> String {
    json!({ "session_token": token, "payload_digest": digest, "header_size": header.to_string(), "api_version": "2" })
        .to_string()
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
