//! Docker Hub and registries with authentication. No real one is used: a proxy on the loopback interface stands for
//! every host, and records which one was meant.

use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::Command;
use std::sync::{Arc, Mutex};

use esker_testkit::container::{ContainerImage, Packing};
use esker_testkit::programs;
use serde_json::json;

use super::Builder;
use crate::test_env::{complaint, printed};

/// A request as it reached the proxy.
#[derive(Clone, Debug, Default)]
struct Asked {
    method: String,
    host: String,
    /// With the query.
    path: String,
    authorization: Option<String>,
    body: String,
}

/// An answer: status, header lines, body.
type Answer = (u16, String, Vec<u8>);
type Answers = dyn Fn(&Asked) -> Answer + Send + Sync;

/// A proxy that answers in the name of every server.
struct Proxy {
    port: u16,
    log: Arc<Mutex<Vec<Asked>>>,
}

impl Proxy {
    fn new(answers: impl Fn(&Asked) -> Answer + Send + Sync + 'static) -> Proxy {
        let listener = TcpListener::bind(("127.0.0.1", 0)).expect("a free port");
        let port = listener.local_addr().expect("its address").port();
        let log: Arc<Mutex<Vec<Asked>>> = Arc::default();
        let (theirs, answers): (_, Arc<Answers>) = (log.clone(), Arc::new(answers));
        // It ends with the test's process.
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let (log, answers) = (theirs.clone(), answers.clone());
                std::thread::spawn(move || serve(&stream, &log, &*answers));
            }
        });
        Proxy { port, log }
    }

    fn asked(&self) -> Vec<Asked> {
        self.log.lock().expect("the log").clone()
    }
}

/// Answers one request.
fn serve(stream: &TcpStream, log: &Mutex<Vec<Asked>>, answers: &Answers) {
    let mut reader = BufReader::new(stream);
    let mut line = String::new();
    if reader.read_line(&mut line).unwrap_or(0) == 0 {
        return;
    }
    let mut words = line.split_whitespace();
    let (method, target) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
    let place = target.strip_prefix("http://").expect("a proxy is asked for URLs");
    let (host, path) = place.split_at(place.find('/').unwrap_or(place.len()));
    let mut asked = Asked { method: method.into(), host: host.into(), path: path.into(), ..Asked::default() };
    let mut len = 0;
    loop {
        let mut field = String::new();
        reader.read_line(&mut field).expect("a header");
        let Some((name, value)) = field.trim_end().split_once(':') else { break };
        match name.to_ascii_lowercase().as_str() {
            "authorization" => asked.authorization = Some(value.trim().to_owned()),
            "content-length" => len = value.trim().parse().expect("a length"),
            _ => {}
        }
    }
    let mut body = vec![0; len];
    reader.read_exact(&mut body).expect("a body");
    asked.body = String::from_utf8(body).expect("a form");
    log.lock().expect("the log").push(asked.clone());
    let (status, fields, body) = answers(&asked);
    let head = format!(
        "HTTP/1.1 {status} Told\r\nConnection: close\r\nContent-Length: {}\r\n{fields}\r\n",
        body.len()
    );
    let mut stream = stream;
    // A client that gives up tells its test.
    let _ = stream.write_all(head.as_bytes()).and_then(|()| stream.write_all(&body));
}

/// Returns the registry's files: by path below the image's name.
fn contents(image: &ContainerImage) -> BTreeMap<String, Vec<u8>> {
    let mut all: BTreeMap<String, Vec<u8>> =
        image.blobs().into_iter().map(|(name, bytes)| (format!("blobs/{name}"), bytes)).collect();
    for tag in ["latest", "24.04"] {
        all.insert(format!("manifests/{tag}"), image.manifest());
    }
    all
}

const TOKEN: &str = "a-token";
const REALM: &str = "http://auth.docker.io/token";

fn image() -> ContainerImage {
    ContainerImage::new(json!({})).layer(Packing::Gzip, |layer| _ = layer.file("a", 0o644, "a"))
}

/// Makes a registry with tokens, which its server gives for requests that `may_have` accepts.
fn with_tokens(name: &'static str, may_have: impl Fn(&Asked) -> bool + Send + Sync + 'static) -> Proxy {
    let has = contents(&image());
    Proxy::new(move |asked| {
        if asked.host == "auth.docker.io" {
            let token = format!("{{\"token\":\"{TOKEN}\"}}");
            return if may_have(asked) {
                (200, String::new(), token.into())
            } else {
                (401, String::new(), Vec::new())
            };
        }
        if asked.authorization.as_deref() != Some(&format!("Bearer {TOKEN}")) {
            let wants = format!(
                "WWW-Authenticate: Bearer realm=\"{REALM}\",service=\"registry.docker.io\",scope=\"repository:{name}:pull\"\r\n"
            );
            return (401, wants, Vec::new());
        }
        let found = asked.path.strip_prefix(&format!("/v2/{name}/")).and_then(|path| has.get(path));
        found.map_or((404, String::new(), Vec::new()), |content| (200, String::new(), content.clone()))
    })
}

fn build(builder: &Builder, proxy: &Proxy, from: &str) -> Command {
    let address = format!("http://127.0.0.1:{}", proxy.port);
    builder.command(&["image", "build", "made.sqfs", from, "--insecure-http", "--proxy", &address, "--force"])
}

#[test]
fn short_names_mean_docker_hub() {
    for (from, name, tag) in [
        ("docker://alpine", "library/alpine", "latest"),
        ("docker://ubuntu:24.04", "library/ubuntu", "24.04"),
        ("docker://docker.io/alpine", "library/alpine", "latest"),
        ("docker://index.docker.io/library/x", "library/x", "latest"),
        ("docker://ada/tool", "ada/tool", "latest"),
    ] {
        let builder = Builder::new();
        let proxy = with_tokens(name, |asked| asked.authorization.is_none());
        printed(&mut build(&builder, &proxy, from));
        assert_eq!(builder.done(&["image", "cat", "made.sqfs", "/a"]), "a");
        let asked = proxy.asked();
        let of_hub: Vec<_> = asked.iter().filter(|asked| asked.host == "registry-1.docker.io").collect();
        assert_eq!(of_hub[0].path, format!("/v2/{name}/manifests/{tag}"), "{from}");
        let token = asked.iter().find(|asked| asked.host == "auth.docker.io").expect("a token was asked for");
        assert_eq!(token.path, format!("/token?service=registry.docker.io&scope=repository:{name}:pull"));
        assert_eq!(of_hub.len() + 1, asked.len(), "no other host is asked: {asked:?}");
    }
}

/// `ada:sesame` as files and headers have it.
const ENCODED: &str = "YWRhOnNlc2FtZQ==";

#[test]
fn credentials_are_read_from_the_usual_files() {
    let auths = |key: &str| format!(r#"{{"auths":{{"{key}":{{"auth":"{ENCODED}"}}}}}}"#);
    let hub = auths("https://index.docker.io/v1/");
    let token = r#"{"auths":{"docker.io":{"auth":"","identitytoken":"refresh it"}}}"#;
    let cases: [(&str, &str, Option<&str>, bool); 8] = [
        ("home/.docker/config.json", &hub, None, false),
        ("home/elsewhere/config.json", &hub, Some("DOCKER_CONFIG"), false),
        ("home/auth.json", &hub, Some("REGISTRY_AUTH_FILE"), false),
        ("run/containers/auth.json", &auths("docker.io"), None, false),
        ("home/.config/containers/auth.json", &auths("docker.io/library"), None, false),
        ("home/.docker/config.json", r#"{"credHelpers":{"docker.io":"password"}}"#, None, false),
        ("home/.docker/config.json", r#"{"auths":{"docker.io":{}},"credsStore":"token"}"#, None, true),
        ("home/.docker/config.json", token, None, true),
    ];
    for (file, text, variable, is_identity) in cases {
        let builder = Builder::new();
        let place = builder.world.path(file);
        let folder = place.parent().expect("a folder").to_owned();
        builder
            .world
            .person
            .does(|| fs::create_dir_all(&folder).and_then(|()| fs::write(&place, text)))
            .expect("a file");
        let bin = builder.world.path("home/bin");
        builder.world.person.does(|| fs::create_dir(&bin)).expect("a folder");
        for (name, user, secret) in [("password", "ada", "sesame"), ("token", "<token>", "refresh it")] {
            let script = format!(
                "#!/bin/sh\n[ \"$*\" = get ] && read -r server || [ -n \"$server\" ] || exit 1\n\
                 case $server in https://index.docker.io/v1/) ;; *) exit 1;; esac\n\
                 echo '{{\"Username\":\"{user}\",\"Secret\":\"{secret}\"}}'\n"
            );
            let program = bin.join(format!("docker-credential-{name}"));
            programs::write(builder.world.person.command("sh"), &program, &script);
        }
        let proxy = with_tokens("library/alpine", move |asked| {
            let is_refreshed = asked.method == "POST"
                && asked.path == "/token"
                && asked.body.starts_with("grant_type=refresh_token&")
                && asked.body.contains("&refresh_token=refresh%20it&")
                && asked.body.ends_with("scope=repository:library/alpine:pull");
            let is_basic = asked.authorization.as_deref() == Some(&format!("Basic {ENCODED}"));
            if is_identity { is_refreshed && asked.authorization.is_none() } else { is_basic }
        });
        let mut call = build(&builder, &proxy, "docker://alpine");
        let search = std::env::var("PATH").expect("PATH");
        call.env("PATH", format!("{}:{search}", bin.display()));
        match variable {
            Some("DOCKER_CONFIG") => _ = call.env("DOCKER_CONFIG", &folder),
            Some(variable) => _ = call.env(variable, &place),
            None => {}
        }
        printed(&mut call);
        let is_shown = |asked: &&Asked| {
            let shown = asked.authorization.as_deref().is_some_and(|shown| shown.starts_with("Basic"));
            shown || asked.body.contains("refresh")
        };
        let shown = proxy.asked();
        let shown: Vec<_> = shown.iter().filter(is_shown).map(|asked| asked.host.as_str()).collect();
        assert_eq!(shown, ["auth.docker.io"], "{file}: {text}");
    }
}

#[test]
fn a_password_is_sent_to_its_registry_only_and_never_shown() {
    let builder = Builder::new();
    let has = contents(&image());
    let proxy = Proxy::new(move |asked| {
        let (name, path) = asked.path.split_once("/a/tool/").unwrap_or_default();
        let content = || has.get(path.split('?').next().unwrap_or_default()).cloned();
        match asked.host.as_str() {
            // It has blobs elsewhere, and asks for a password in one of two ways.
            "one.example" if asked.authorization.as_deref() != Some(&format!("Basic {ENCODED}")) => (
                401,
                "WWW-Authenticate: Negotiate\r\nWWW-Authenticate: Basic realm=\"it\"\r\n".into(),
                Vec::new(),
            ),
            "one.example" if path.starts_with("blobs/") => {
                (307, format!("Location: http://other.example{}?signed\r\n", asked.path), Vec::new())
            }
            "one.example" | "other.example"
                if asked.host == "one.example" || asked.authorization.is_none() =>
            {
                content().map_or((404, String::new(), Vec::new()), |content| (200, String::new(), content))
            }
            _ => (401, format!("WWW-Authenticate: Basic realm=\"{name}\"\r\n"), Vec::new()),
        }
    });
    let file = builder.home("auth.json");
    let login = |text: &str| builder.world.person.does(|| fs::write(&file, text)).expect("a file");
    let call = |from: &str| {
        let mut call = build(&builder, &proxy, from);
        call.env("REGISTRY_AUTH_FILE", &file);
        call
    };
    login(&format!(r#"{{"auths":{{"one.example":{{"auth":"{ENCODED}"}}}}}}"#));
    printed(&mut call("docker://one.example/a/tool"));
    let asked = proxy.asked();
    let elsewhere: Vec<_> = asked.iter().filter(|asked| asked.host == "other.example").collect();
    assert!(
        !elsewhere.is_empty() && elsewhere.iter().all(|asked| asked.authorization.is_none()),
        "{asked:?}"
    );

    // Never to another registry.
    let told = complaint(&mut call("docker://two.example/a/tool"), 3);
    assert!(
        told.contains("two.example wants a user and a password") && told.contains("docker login two.example"),
        "{told}"
    );
    assert!(proxy.asked().iter().all(|asked| asked.host != "two.example" || asked.authorization.is_none()));

    let wrong = "YWRhOndyb25nLXNlY3JldA==";
    login(&format!(r#"{{"auths":{{"one.example":{{"auth":"{wrong}"}}}}}}"#));
    let told = complaint(&mut call("docker://one.example/a/tool"), 3);
    assert!(told.contains("auth.json") && told.contains("podman login one.example"), "{told}");
    assert!(!told.contains("wrong-secret") && !told.contains(wrong), "{told}");
    login("no JSON, but a secret");
    let told = complaint(&mut call("docker://one.example/a/tool"), 1);
    assert!(told.contains("auth.json") && !told.contains("but a secret"), "{told}");
}
