//! Credentials for registries, from the files of `docker login` and `podman login`.
//!
//! Files are searched in the order of podman and Docker, and in each file a program for this registry (`credHelpers`),
//! then the file's own entries, the most specific name first, then its program for all (`credsStore`).

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fmt;
use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use base64ct::{Base64, Encoding};
use esker_oci::{HUB, Reference, registry_of_key};
use esker_run::give_signals_back;
use serde::Deserialize;

use crate::error::warn;

/// Maximum size of a file with credentials.
const LONGEST: u64 = 4 << 20;
/// URL that requests to credential programs use for Docker Hub.
const HUB_URL: &str = "https://index.docker.io/v1/";
/// User name by which credential programs mark a token.
const TOKEN_USER: &str = "<token>";

/// Credentials for a registry. They are sent to that registry alone.
#[derive(Clone, PartialEq, Eq)]
pub(super) enum Login {
    Password {
        user: String,
        password: String,
    },
    /// Identity token, which is exchanged for other tokens.
    Identity(String),
}

impl fmt::Debug for Login {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Login(…)")
    }
}

impl Login {
    /// Returns the value of the field `Authorization` for basic authentication, if the login has one.
    pub(super) fn basic(&self) -> Option<String> {
        match self {
            Self::Password { user, password } => {
                Some(format!("Basic {}", Base64::encode_string(format!("{user}:{password}").as_bytes())))
            }
            Self::Identity(_) => None,
        }
    }
}

/// A login and the file it comes from.
#[derive(Debug)]
pub(super) struct Found {
    pub(super) login: Login,
    /// The file, for messages.
    pub(super) from: String,
}

#[derive(Default, Deserialize)]
struct Config {
    #[serde(default)]
    auths: BTreeMap<String, Entry>,
    #[serde(default, rename = "credHelpers")]
    helpers: BTreeMap<String, String>,
    #[serde(default, rename = "credsStore")]
    store: Option<String>,
}

#[derive(Default, Deserialize)]
struct Entry {
    #[serde(default)]
    auth: String,
    #[serde(default)]
    username: String,
    #[serde(default)]
    password: String,
    #[serde(default, rename = "identitytoken")]
    identity: String,
}

/// Reply of a credential program.
#[derive(Deserialize)]
struct Answer {
    #[serde(rename = "Username")]
    user: String,
    #[serde(rename = "Secret")]
    secret: String,
}

/// Returns the paths of files that may contain credentials.
pub(super) fn usual_files(variable: impl Fn(&str) -> Option<OsString>) -> Vec<PathBuf> {
    let folder = |name: &str| variable(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    if let Some(file) = folder("REGISTRY_AUTH_FILE") {
        return vec![file];
    }
    let home = folder("HOME");
    let below = |path: &str| home.as_ref().map(|home| home.join(path));
    let docker = folder("DOCKER_CONFIG");
    let usual_docker = below(".docker").filter(|_| docker.is_none());
    let settings = folder("XDG_CONFIG_HOME").or_else(|| below(".config"));
    [
        docker.map(|folder| folder.join("config.json")),
        folder("XDG_RUNTIME_DIR").map(|folder| folder.join("containers/auth.json")),
        settings.map(|folder| folder.join("containers/auth.json")),
        usual_docker.map(|folder| folder.join("config.json")),
    ]
    .into_iter()
    .flatten()
    .collect()
}

/// Finds the login for an image.
pub(super) fn find(reference: &Reference, files: &[PathBuf]) -> Result<Option<Found>, String> {
    for file in files {
        let Some(config) = read(file)? else { continue };
        if let Some(login) = config.login(reference, file)? {
            return Ok(Some(Found { login, from: file.display().to_string() }));
        }
    }
    Ok(None)
}

fn read(file: &Path) -> Result<Option<Config>, String> {
    let failed =
        |error: &dyn fmt::Display| format!("can't read the credentials in {}: {error}", file.display());
    match fs::metadata(file) {
        Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => {
            Ok(None)
        }
        Err(error) => Err(failed(&error)),
        Ok(meta) if !meta.is_file() || meta.len() > LONGEST => {
            Err(failed(&"it is not a file of credentials"))
        }
        Ok(_) => {
            let text = fs::read(file).map_err(|error| failed(&error))?;
            if text.iter().all(u8::is_ascii_whitespace) {
                return Ok(None);
            }
            // The text of a JSON error may repeat a part of the file.
            let config = serde_json::from_slice(&text).map_err(|error| {
                failed(&format!("it is not in the form that docker login writes (line {})", error.line()))
            })?;
            Ok(Some(config))
        }
    }
}

impl Config {
    fn login(&self, reference: &Reference, file: &Path) -> Result<Option<Login>, String> {
        let registry = reference.registry.as_str();
        let is_for = |key: &String| registry_of_key(key) == registry;
        let helper = self.helpers.iter().find(|(key, _)| is_for(key)).map(|(_, helper)| helper);
        if let Some(login) = helper.and_then(|helper| ask(helper, registry)) {
            return Ok(Some(login));
        }
        for name in names(reference) {
            let entries = self.auths.iter().filter(|(key, _)| registry_of_key(key) == name);
            for (key, entry) in entries {
                if let Some(login) = entry.login().ok_or_else(|| {
                    format!("the credentials for {key} in {} are damaged: log in again", file.display())
                })? {
                    return Ok(Some(login));
                }
            }
        }
        Ok(self.store.as_ref().filter(|store| !store.is_empty()).and_then(|store| ask(store, registry)))
    }
}

/// Returns the keys that may hold the login for an image, the most specific first.
fn names(reference: &Reference) -> Vec<String> {
    let mut name = format!("{}/{}", reference.registry, reference.name);
    let mut names = vec![name.clone()];
    while let Some(at) = name.rfind('/') {
        name.truncate(at);
        names.push(name.clone());
    }
    names
}

impl Entry {
    /// Returns the login, if there is one; `None` if it can't be read.
    fn login(&self) -> Option<Option<Login>> {
        if !self.identity.is_empty() {
            return Some(Some(Login::Identity(self.identity.clone())));
        }
        let password = |user: &str, password: &str| {
            Some(Some(Login::Password { user: user.to_owned(), password: password.to_owned() }))
        };
        if self.auth.trim().is_empty() {
            let is_there = !self.username.is_empty() && !self.password.is_empty();
            return if is_there { password(&self.username, &self.password) } else { Some(None) };
        }
        let plain = String::from_utf8(Base64::decode_vec(self.auth.trim()).ok()?).ok()?;
        let (user, secret) = plain.split_once(':')?;
        password(user, secret.trim_end_matches('\0'))
    }
}

/// Asks the program `docker-credential-HELPER`. A program without a reply is no error, because the image may be
/// public.
fn ask(helper: &str, registry: &str) -> Option<Login> {
    let is_name = !helper.is_empty()
        && helper.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte));
    let program = format!("docker-credential-{helper}");
    let servers = if registry == HUB { vec![HUB_URL, HUB] } else { vec![registry] };
    for server in servers {
        let answered =
            if is_name { answer(&program, server) } else { Err(io::ErrorKind::InvalidInput.into()) };
        match answered {
            Ok(Some(Answer { user, secret })) if user == TOKEN_USER => return Some(Login::Identity(secret)),
            Ok(Some(Answer { user, secret })) => return Some(Login::Password { user, password: secret }),
            Ok(None) => {}
            Err(error) => {
                warn(Some(&format!("can't ask {program} for the credentials of {registry}: {error}")));
                return None;
            }
        }
    }
    None
}

/// Returns a program's credentials for a server. The server is written to its standard input, which no list of
/// processes shows.
fn answer(program: &str, server: &str) -> io::Result<Option<Answer>> {
    let mut command = Command::new(program);
    command.arg("get").stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
    give_signals_back(&mut command);
    let mut child = command.spawn()?;
    if let Some(mut input) = child.stdin.take() {
        match input.write_all(server.as_bytes()) {
            Err(error) if error.kind() != io::ErrorKind::BrokenPipe => return Err(error),
            // It may know nothing, whatever the server is.
            _ => {}
        }
    }
    let output = child.wait_with_output()?;
    if !output.status.success() {
        return Ok(None);
    }
    let answer: Answer = serde_json::from_slice(&output.stdout)
        .map_err(|_| io::Error::other("its answer is not in the form of such programs"))?;
    Ok(Some(answer).filter(|answer| !answer.secret.is_empty()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    fn login(user: &str, password: &str) -> Login {
        Login::Password { user: user.into(), password: password.into() }
    }

    /// Returns the login for an image in a file with this text.
    fn found(text: &str, image: &str) -> Result<Option<Login>, String> {
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("auth.json");
        fs::write(&file, text).expect("a file");
        let reference = Reference::parse(image).expect("a name");
        Ok(find(&reference, &[file])?.map(|found| found.login))
    }

    #[test]
    fn credentials_are_found_under_all_names() {
        let encoded = |text: &str| Base64::encode_string(text.as_bytes());
        let auths = |key: &str, entry: &str| format!(r#"{{"auths":{{"{key}":{entry}}}}}"#);
        let entry = format!(r#"{{"auth":"{}"}}"#, encoded("ada:se:cret"));
        for (key, image, is_found) in [
            ("https://index.docker.io/v1/", "alpine", true),
            ("docker.io", "alpine", true),
            ("docker.io", "docker.io/ada/tool", true),
            ("docker.io/ada", "ada/tool", true),
            ("docker.io/eve", "ada/tool", false),
            ("h.example:5000", "h.example:5000/a", true),
            ("https://h.example/v2/", "h.example/a", true),
            ("h.example", "h.example:5000/a", false),
            ("h.example", "x.h.example/a", false),
            ("h.example.evil", "h.example/a", false),
        ] {
            let expected = is_found.then(|| login("ada", "se:cret"));
            assert_eq!(found(&auths(key, &entry), image), Ok(expected), "{key}: {image}");
        }
        let specific = format!(
            r#"{{"auths":{{"h.example":{entry},"h.example/a/b":{{"username":"bob","password":"x"}}}}}}"#
        );
        assert_eq!(found(&specific, "h.example/a/b:1"), Ok(Some(login("bob", "x"))));
        assert_eq!(found(&specific, "h.example/a/c"), Ok(Some(login("ada", "se:cret"))));
        let token = r#"{"auth":"","identitytoken":"abc"}"#;
        assert_eq!(found(&auths("h.example", token), "h.example/a"), Ok(Some(Login::Identity("abc".into()))));
        for empty in ["", "{}", r#"{"auths":{}}"#, &auths("h.example", "{}")] {
            assert_eq!(found(empty, "h.example/a"), Ok(None), "{empty}");
        }
        for (wrong, secret) in [
            (r#"{"auths":"secret"}"#, "secret"),
            ("secret", "secret"),
            (&auths("h.example", r#"{"auth":"c2VjcmV0"}"#), "c2Vj"),
        ] {
            let told = found(wrong, "h.example/a").expect_err(wrong);
            assert!(told.contains("auth.json") && !told.contains(secret), "{told}");
        }
        assert_eq!(login("ada", "x").basic().as_deref(), Some("Basic YWRhOng="));
        assert_eq!(format!("{:?}", login("ada", "secret")), "Login(…)");
    }

    #[test]
    fn credential_files_are_read_in_order() {
        let with = |pairs: &'static [(&'static str, &'static str)]| {
            usual_files(move |name| {
                pairs.iter().find(|(known, _)| *known == name).map(|(_, value)| value.into())
            })
        };
        assert_eq!(with(&[("REGISTRY_AUTH_FILE", "/r"), ("HOME", "/h")]), [PathBuf::from("/r")]);
        let all = with(&[("HOME", "/h"), ("XDG_RUNTIME_DIR", "/run/1"), ("DOCKER_CONFIG", "/d")]);
        let expected = ["/d/config.json", "/run/1/containers/auth.json", "/h/.config/containers/auth.json"];
        assert_eq!(all, expected.map(PathBuf::from));
        let plain = ["/h/.config/containers/auth.json", "/h/.docker/config.json"];
        assert_eq!(with(&[("HOME", "/h")]), plain.map(PathBuf::from));
        assert!(with(&[]).is_empty());
    }

    #[test]
    fn programs_are_asked_by_standard_input() {
        let folder = tempfile::tempdir().expect("a folder");
        let program = folder.path().join("docker-credential-fake");
        let script = "#!/bin/sh\n[ \"$*\" = get ] || exit 1\nread -r server\n[ \"$server\" = h.example ] || exit 1\n\
                      echo '{\"ServerURL\":\"h.example\",\"Username\":\"ada\",\"Secret\":\"secret\"}'\n";
        fs::write(&program, script).expect("a program");
        fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).expect("a mode");
        let program = program.display().to_string();
        let told = answer(&program, "h.example").expect("an answer").expect("a login");
        assert_eq!((&*told.user, &*told.secret), ("ada", "secret"));
        assert!(answer(&program, "other.example").expect("an answer").is_none());
        assert!(answer("/no/such/program", "h.example").is_err());
        assert_eq!(ask("../evil", "h.example"), None);
    }
}
