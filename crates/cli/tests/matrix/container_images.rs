//! `esker image build` from container images: layers are merged, digests checked, and settings for running kept.

mod hub;

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use esker_testkit::container::{ContainerImage, Layer, Packing, digest};
use esker_testkit::fixture;
use esker_testkit::mirror::Fault;
use esker_testkit::web::{Authority, Web};
use serde_json::json;

use crate::containers::rootfs::Rootfs;
use crate::test_env::{TestEnv, complaint, printed, words};
use crate::test_user::TestUser;

/// A user with images to build.
struct Builder {
    world: TestEnv,
}

impl Builder {
    fn new() -> Self {
        Self { world: TestEnv::new(TestUser::ordinary(), fixture::RMD) }
    }

    fn home(&self, name: &str) -> PathBuf {
        self.world.path("home").join(name)
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = self.world.esker(arguments);
        command.current_dir(self.home(""));
        command
    }

    fn esker(&self, arguments: &[&str]) -> Output {
        self.command(arguments).output().expect("running esker")
    }

    #[track_caller]
    fn done(&self, arguments: &[&str]) -> String {
        printed(&mut self.command(arguments))
    }

    #[track_caller]
    fn refused(&self, code: i32, from: &str) -> String {
        let told = complaint(&mut self.command(&["image", "build", "refused.sqfs", from]), code);
        assert!(!self.home("refused.sqfs").exists(), "{from}");
        let left = fs::read_dir(self.home("")).expect("the folder").map(|entry| entry.expect("an entry"));
        let left: Vec<_> = left.map(|entry| entry.file_name()).collect();
        let is_part = |name: &std::ffi::OsString| {
            let name = name.to_string_lossy();
            name.ends_with(".part") || name.starts_with(".esker")
        };
        assert!(!left.iter().any(is_part), "{left:?}");
        told
    }
}

/// Returns three layers that remove, replace and link entries of those below.
fn layered(packing: [Packing; 3]) -> ContainerImage {
    let [base, middle, top] = packing;
    ContainerImage::new(json!({"Env": ["A=b"], "User": "1000:1000"}))
        .layer(base, |layer| {
            layer.folder("usr").folder("usr/bin").file("usr/bin/tool", 0o755, "a tool");
            layer.symlink("bin", "usr/bin").file("etc/old", 0o644, "old").file("etc/kept", 0o640, "kept");
            layer.file("cache/a", 0o644, "a").file("cache/deep/b", 0o644, "b").file("dir/file", 0o644, "x");
        })
        .layer(middle, |layer| {
            // Through the link of the layer below, and in an order that a whiteout must not care about.
            layer.hard_link("bin/also", "usr/bin/tool").file("cache/c", 0o644, "c").opaque("cache");
            layer.gone("etc/old").gone("dir").symlink("dir", "etc");
        })
        .layer(top, |layer| {
            layer.file("etc/old", 0o600, "new").file("dir/through", 0o644, "through the link");
        })
}

#[test]
fn every_form_of_a_container_image_becomes_the_same_image() {
    let builder = Builder::new();
    let here = |name: &str| builder.home(name);
    let mixed = layered([Packing::Gzip, Packing::Zstd, Packing::Plain]);
    builder.world.person.does(|| {
        mixed.write_layout(&here("layout"), "v1");
        mixed.write_layout_archive(&here("layout.tar"), "v1");
        mixed.write_docker_archive(&here("docker.tar"), "it:v1");
    });
    let mut images = Vec::new();
    for (number, from) in [
        "oci:layout",
        "oci:layout:v1",
        "oci-archive:layout.tar",
        "docker-archive:docker.tar",
        "docker-archive:docker.tar:it:v1",
    ]
    .into_iter()
    .enumerate()
    {
        let image = format!("{number}.sqfs");
        let output = builder.esker(&["image", "build", &image, from]);
        assert!(output.status.success(), "{from}: {}", words(&output));
        assert!(words(&output).contains("run as 1000:1000"), "{from}: {}", words(&output));
        images.push(fs::read(here(&image)).expect("an image"));
    }
    assert!(images.iter().all(|image| *image == images[0]), "the same bytes from every form");
    let listed = |path: &str| builder.done(&["image", "ls", "0.sqfs", path]);
    assert_eq!(listed("/"), ".esker\nbin\ncache\ndir\netc\nusr\n");
    assert_eq!(listed("/cache"), "c\n");
    assert_eq!(listed("/etc"), "kept\nold\nthrough\n");
    assert_eq!(builder.done(&["image", "cat", "0.sqfs", "/etc/old", "/dir/through"]), "newthrough the link");
    let config = builder.done(&["image", "cat", "0.sqfs", "/.esker/config.json"]);
    assert!(config.contains(r#""Env":["A=b"]"#), "{config}");
    builder.done(&["image", "extract", "0.sqfs", "out"]);
    let of = |path: &str| fs::metadata(here("out").join(path)).expect("looking");
    let (tool, also) = (of("usr/bin/tool"), of("usr/bin/also"));
    assert_eq!((tool.ino(), tool.nlink()), (also.ino(), 2), "another name across layers");
    assert_eq!((tool.mtime(), of("etc/kept").mode() & 0o777), (1_500_000_000, 0o640));
    let listed = builder.done(&["image", "ls", "0.sqfs", "/etc", "--json"]);
    let listed: serde_json::Value = serde_json::from_str(&listed).expect("JSON");
    assert_eq!((&listed[0]["uid"], &listed[0]["gid"]), (&7.into(), &8.into()));
    builder.done(&["image", "build", "less.sqfs", "oci:layout", "--exclude", "usr", "--all-root"]);
    assert_eq!(builder.done(&["image", "ls", "less.sqfs"]), ".esker\nbin\ncache\ndir\netc\n");
}

#[test]
fn a_container_image_runs_by_its_own_settings() {
    let builder = Builder::new();
    let root = Rootfs::new(&builder.world.path("root"));
    let config = json!({
        "Entrypoint": ["sh", "-c", "echo $0 $1 $WHO $PWD"],
        "Cmd": ["by", "itself"],
        "Env": ["PATH=/bin", "WHO=image"],
        "WorkingDir": "/srv/work",
    });
    let image = ContainerImage::new(config)
        .layer(Packing::Gzip, |layer| _ = layer.tree(root.path()))
        .layer(Packing::Zstd, |layer| _ = layer.folder("srv/work"));
    builder.world.person.does(|| image.write_layout(&builder.home("layout"), "latest"));
    builder.done(&["image", "build", "it.sqfs", "oci:layout"]);
    let run = |words: &[&str]| builder.done(&[&["run", "it.sqfs", "--contain"], words].concat());
    assert_eq!(run(&[]), "by itself image /srv/work\n");
    assert_eq!(run(&["--entrypoint", "--", "with", "words"]), "with words image /srv/work\n");
    assert_eq!(run(&["--", "cat", "/made-for-this-test"]), "a system\n");
}

type Fill = fn(&mut Layer);

#[test]
fn hostile_and_damaged_container_images_are_refused() {
    let builder = Builder::new();
    let hostile: [(&str, Fill); 6] = [
        ("name what is above it", |layer| _ = layer.lie("../../escaped", 0)),
        ("name what is above it", |layer| _ = layer.hard_link("passwd", "../../../etc/passwd")),
        ("hard link to a missing file", |layer| _ = layer.hard_link("shadow", "/etc/shadow")),
        ("too many symlinks", |layer| _ = layer.symlink("loop", "loop").file("loop/file", 0o644, "")),
        ("its parent is not a directory", |layer| _ = layer.file("a", 0o644, "").file("a/b", 0o644, "")),
        ("can't read layer", |layer| _ = layer.lie("huge", 0o77_777_777_777)),
    ];
    for (number, (reason, fill)) in hostile.into_iter().enumerate() {
        let image = ContainerImage::new(json!({})).layer(Packing::Gzip, fill);
        let name = format!("hostile-{number}");
        builder.world.person.does(|| image.write_layout(&builder.home(&name), "it"));
        let output = builder.esker(&["image", "build", "refused.sqfs", &format!("oci:{name}")]);
        assert!(!output.status.success() && words(&output).contains(reason), "{reason}: {}", words(&output));
    }
    assert!(!builder.home("refused.sqfs").exists());
    assert!(!builder.world.path("escaped").exists() && !builder.home("escaped").exists());
    // A link's target is a path of the image, never one of this machine.
    let image = ContainerImage::new(json!({})).layer(Packing::Plain, |layer| {
        layer.symlink("up", "../../../..").file("up/etc/inside", 0o644, "inside");
    });
    builder.world.person.does(|| image.write_layout(&builder.home("within"), "it"));
    builder.done(&["image", "build", "within.sqfs", "oci:within"]);
    assert_eq!(builder.done(&["image", "ls", "within.sqfs", "/etc"]), "inside\n");

    let good = layered([Packing::Gzip; 3]);
    builder.world.person.does(|| good.write_layout(&builder.home("damaged"), "v1"));
    let told = builder.refused(2, "oci:none");
    assert!(told.contains("not there"), "{told}");
    let told = builder.refused(4, "oci:damaged:v2");
    assert!(told.contains("v2") && told.contains("v1"), "{told}");
    for (name, bytes) in good.blobs() {
        let path = blob(&builder.home("damaged"), &name);
        let damaged = [&bytes[..], b" "].concat();
        fs::write(&path, damaged).expect("writing");
        let told = builder.refused(4, "oci:damaged");
        assert!(told.contains("has the digest") && told.contains(&name), "{told}");
        fs::write(&path, bytes).expect("writing");
    }
    let manifest = blob(&builder.home("damaged"), &digest(&good.manifest()));
    fs::write(manifest, "{}").expect("writing");
    assert!(builder.refused(4, "oci:damaged").contains("has the digest"));
}

fn blob(layout: &Path, name: &str) -> PathBuf {
    layout.join("blobs/sha256").join(name.trim_start_matches("sha256:"))
}

/// Writes an image as a registry has it: by its tag an index for several machines, by digests the rest.
fn store(image: &ContainerImage, folder: &Path) -> String {
    let place = |path: &str| folder.join("v2/app/tool").join(path);
    for name in ["manifests", "blobs"] {
        fs::create_dir_all(place(name)).expect("folders");
    }
    for (name, bytes) in image.blobs() {
        fs::write(place("blobs").join(name), bytes).expect("a blob");
    }
    let manifest = image.manifest();
    let name = digest(&manifest);
    let described = |architecture: &str, digest: &str| json!({"digest": digest, "size": manifest.len(), "platform": {"os": "linux", "architecture": architecture}});
    let other = digest(b"for another machine");
    let own = match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    };
    let index = json!({"manifests": [described("s390x", &other), described(own, &name)]});
    fs::write(place("manifests/v1"), index.to_string()).expect("an index");
    fs::write(place("manifests").join(&name), manifest).expect("a manifest");
    name
}

/// Starts a registry with tokens that redirects blobs to a host that refuses the token.
fn registry(image: &ContainerImage, (certificate, key): &(PathBuf, PathBuf)) -> (Web, String) {
    let name = std::cell::OnceCell::new();
    let web = Web::nginx(2, |folder, ports| {
        name.get_or_init(|| store(image, folder));
        let (folder, tls) = (
            folder.display(),
            format!("ssl_certificate {}; ssl_certificate_key {};", certificate.display(), key.display()),
        );
        let own = format!("https://127.0.0.1:{}", ports[0]);
        let challenge =
            format!(r#"Bearer realm="{own}/token",service="it",scope="repository:app/tool:pull""#);
        format!(
            "server {{ listen 127.0.0.1:{} ssl; {tls} root {folder};\n\
               location = /token {{ if ($arg_scope != 'repository:app/tool:pull') {{ return 403; }}\n\
                 return 200 '{{\"token\":\"sesame\"}}'; }}\n\
               location /v2/ {{ if ($http_authorization != 'Bearer sesame') {{\n\
                 add_header WWW-Authenticate '{challenge}' always; return 401; }}\n\
                 location ~ /blobs/ {{ if ($http_authorization != 'Bearer sesame') {{ return 403; }}\n\
                   return 307 https://127.0.0.1:{}$uri?signed=1; }} }} }}\n\
             server {{ listen 127.0.0.1:{} ssl; {tls} root {folder};\n\
               if ($http_authorization) {{ return 400; }} }}\n",
            ports[0], ports[1], ports[1]
        )
    });
    let name = name.into_inner().expect("the server was configured");
    (web, name)
}

#[test]
fn an_image_in_a_registry_is_fetched_and_checked() {
    let builder = Builder::new();
    let image = layered([Packing::Gzip, Packing::Zstd, Packing::Plain]);
    let authority = Authority::new();
    let (web, name) = registry(&image, &authority.sign("IP:127.0.0.1", 1));
    let ca = authority.certificate().display().to_string();
    let place = format!("docker://127.0.0.1:{}/app/tool", web.ports()[0]);
    builder.world.person.does(|| image.write_layout(&builder.home("layout"), "v1"));
    builder.done(&["image", "build", "expected.sqfs", "oci:layout"]);
    let expected = fs::read(builder.home("expected.sqfs")).expect("an image");
    for (number, reference) in [":v1".to_owned(), format!("@{name}")].into_iter().enumerate() {
        let made = format!("{number}.sqfs");
        builder.done(&["image", "build", &made, &format!("{place}{reference}"), "--ca", &ca]);
        assert!(fs::read(builder.home(&made)).expect("an image") == expected, "{reference}");
    }
    let log = web.log();
    let elsewhere: Vec<_> = log.lines().filter(|line| line.contains("signed=1")).collect();
    assert!(log.contains("/token?") && !elsewhere.is_empty(), "{log}");
    assert!(elsewhere.iter().all(|line| line.contains("\" 200 ")), "the token stays here: {log}");

    let refused = |reference: &str, code: i32, reason: &str| {
        let from = format!("{place}{reference}");
        let mut build = builder.command(&["image", "build", "refused.sqfs", &from, "--ca", &ca]);
        let told = complaint(&mut build, code);
        assert!(told.contains(reason), "{from}: {told}");
        assert!(!builder.home("refused.sqfs").exists(), "{from}");
    };
    refused(":v2", 3, "no such object");
    refused(&format!("@{}", digest(b"another")), 3, "no such object");
    refused(":../v1", 2, "no name of an image");
    // An unknown authority.
    complaint(&mut builder.command(&["image", "build", "refused.sqfs", &format!("{place}:v1")]), 3);
}

#[test]
fn wrong_replies_of_a_registry_are_refused() {
    let builder = Builder::new();
    let image = layered([Packing::Gzip; 3]);
    let mirror = &builder.world.mirror;
    let put = |path: &str, bytes: Vec<u8>| mirror.put(&format!("/v2/app/tool/{path}"), bytes);
    put("manifests/v1", image.manifest());
    image.blobs().into_iter().for_each(|(name, bytes)| put(&format!("blobs/{name}"), bytes));
    let place = format!("docker://127.0.0.1:{}/app/tool:v1", mirror.port());
    builder.done(&["image", "build", "good.sqfs", &place, "--insecure-http"]);
    let build = || builder.command(&["image", "build", "refused.sqfs", &place, "--insecure-http"]);
    for (name, bytes) in image.blobs() {
        let path = format!("/v2/app/tool/blobs/{name}");
        let mut wrong = bytes.clone();
        wrong[bytes.len() / 2] ^= 1;
        let rule = mirror.fault(move |asked: &str| asked == path, Fault::Content(wrong));
        let told = complaint(&mut build(), 4);
        assert!(told.contains(&name), "{told}");
        rule.assert_hit();
        rule.lift();
    }
    let rule = mirror.fault(|path: &str| path.contains("/manifests/"), Fault::Content(vec![b' '; 5 << 20]));
    let output = build().output().expect("running esker");
    assert!(!output.status.success() && words(&output).contains("larger than"), "{}", words(&output));
    rule.assert_hit();
    assert!(!builder.home("refused.sqfs").exists());
}
