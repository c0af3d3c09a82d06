//! Archives that programs write: GNU tar, bsdtar, Python and Go.

use std::ffi::OsStr;
use std::fs;
use std::io::ErrorKind;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{FileExt as _, PermissionsExt as _, symlink};
use std::path::Path;
use std::process::{Command, Stdio};

use crate::cases::Case;
use crate::judge::is_root;

/// Returns the archives by the program that wrote them; programs that are not installed are left out.
pub(crate) fn cases(folder: &Path) -> Vec<(&'static str, Vec<Case>)> {
    let tree = folder.join("tree");
    make(&tree);
    let mut cases = Vec::new();
    for options in gnu_tar() {
        let name = format!("GNU tar {}", options.join(" ")).replace(&*folder.to_string_lossy(), "");
        let case = Case::new(name, output("tar", &options, &tree).expect("tar"));
        // Python takes labels and dumped directories for files.
        let is_odd =
            ["--label", "incremental"].iter().any(|odd| options.iter().any(|option| option.contains(odd)));
        cases.push(if is_odd { case } else { case.python_agrees() });
    }
    cases.extend(volumes(folder, &tree));
    let mut all = vec![("GNU tar", cases)];
    let of_bsdtar = bsdtar().into_iter().map(|options| {
        output("bsdtar", &options, &tree)
            .map(|bytes| Case::new(format!("bsdtar {}", options.join(" ")), bytes))
    });
    all.extend(of_bsdtar.collect::<Option<Vec<Case>>>().map(|cases| ("bsdtar", cases)));
    let python = folder.join("python");
    fs::create_dir(&python).expect("a folder");
    let made = Command::new("python3").args(["-c", PYTHON]).arg(&python).status().expect("python3");
    assert!(made.success());
    all.push(("Python", of_folder(&python, "Python").into_iter().map(Case::python_agrees).collect()));
    let go = folder.join("go");
    fs::create_dir(&go).expect("a folder");
    fs::write(go.join("make.go"), GO).expect("written");
    let made = Command::new("go")
        .args(["run", "make.go"])
        .current_dir(&go)
        .env("GO111MODULE", "off")
        .env("GOFLAGS", "")
        .env("GOTOOLCHAIN", "local")
        .stderr(Stdio::inherit())
        .status();
    match made {
        Ok(status) => {
            assert!(status.success(), "go run");
            all.push(("Go", of_folder(&go, "Go").into_iter().map(Case::python_agrees).collect()));
        }
        Err(error) => assert_eq!(error.kind(), ErrorKind::NotFound, "go: {error}"),
    }
    all
}

/// Returns the archives in a folder.
fn of_folder(folder: &Path, by: &str) -> Vec<Case> {
    let mut found: Vec<Case> = fs::read_dir(folder)
        .expect("a folder")
        .map(|entry| entry.expect("an entry").path())
        .filter(|path| path.extension().is_some_and(|end| end == "tar"))
        .map(|path| {
            let name = path.file_stem().expect("a name").to_string_lossy().into_owned();
            Case::new(format!("{by} {name}"), fs::read(&path).expect("an archive"))
        })
        .collect();
    found.sort_by(|a, b| a.name.cmp(&b.name));
    found
}

/// Returns the output of a program, if it is installed. It may complain about entries that the format can't hold, and
/// leave them out.
fn output(program: &str, options: &[&str], tree: &Path) -> Option<Vec<u8>> {
    let mut command = Command::new(program);
    command.args(options).arg("-C").arg(tree).args(["-c", "-f", "-", "."]).env("LC_ALL", "C.UTF-8");
    let output = match command.env("TZ", "UTC").output() {
        Err(error) if error.kind() == ErrorKind::NotFound => return None,
        output => output.expect(program),
    };
    assert!(output.stdout.len() > 500, "{program}: {}", String::from_utf8_lossy(&output.stderr));
    Some(output.stdout)
}

/// Makes a tree with something of everything, the same each time.
fn make(top: &Path) {
    let at = |path: &str| top.join(path);
    let write = |path: &str, bytes: &[u8], mode: u32| {
        let path = top.join(path);
        fs::create_dir_all(path.parent().expect("a folder")).expect("folders");
        fs::write(&path, bytes).expect("written");
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).expect("a mode");
    };
    write("dir/file", b"hello", 0o644);
    write("dir/run", b"#!/bin/sh\n", 0o755);
    write("dir/setuid", b"x", 0o4711);
    write("empty", b"", 0o600);
    write("large", &(0..200_000_u32).map(|number| (number % 251) as u8).collect::<Vec<_>>(), 0o644);
    write(&format!("{}/{}", "p".repeat(90), "n".repeat(99)), b"needs a prefix", 0o644);
    write(&"l".repeat(200), b"a long name", 0o644);
    write(&format!("deep/{}/x", "d".repeat(60) + &"/e".repeat(120)), b"deep", 0o644);
    write("grün/ñ 漢字", b"text", 0o644);
    write("new\nline", b"of a name", 0o644);
    let bytes = top.join(OsStr::from_bytes(b"bytes \xff\xfe"));
    fs::write(&bytes, "no text").expect("written");
    fs::set_permissions(&bytes, fs::Permissions::from_mode(0o644)).expect("a mode");
    let holes = fs::File::create(at("holes")).expect("a file");
    holes.set_len(3 << 20).expect("a length");
    for (offset, text) in [(0, "start"), (1 << 20, "middle"), ((3 << 20) - 5, "thend")] {
        holes.write_all_at(text.as_bytes(), offset).expect("written");
    }
    let hole = fs::File::create(at("hole at the end")).expect("a file");
    hole.write_all_at(&[7; 5000], 40_960).expect("written");
    hole.set_len(1 << 20).expect("a length");
    symlink("dir/file", at("link")).expect("a link");
    symlink(format!("{}/none", "t".repeat(150)), at("long link")).expect("a link");
    fs::hard_link(at("dir/file"), at("same")).expect("a link");
    fs::create_dir(at("sticky")).expect("a folder");
    fs::set_permissions(at("sticky"), fs::Permissions::from_mode(0o1777)).expect("a mode");
    let pipe = rustix::fs::mknodat(
        rustix::fs::CWD,
        at("pipe"),
        rustix::fs::FileType::Fifo,
        rustix::fs::Mode::from_raw_mode(0o640),
        0,
    );
    pipe.expect("a pipe");
    for (path, name, value) in [
        ("dir/file", "user.a", &b"value"[..]),
        ("dir/file", "user.x=y%", b"bytes\n\0\xff"),
        ("dir", "user.of a directory", b""),
    ] {
        let set = rustix::fs::setxattr(at(path), name, value, rustix::fs::XattrFlags::empty());
        set.expect("an attribute");
    }
    if is_root() {
        let id = |id| (Some(rustix::fs::Uid::from_raw(id)), Some(rustix::fs::Gid::from_raw(id)));
        for (path, owner) in [("dir/file", 1234), ("large", 3_000_000), ("empty", 4_294_967_290)] {
            rustix::fs::chown(at(path), id(owner).0, id(owner).1).expect("an owner");
        }
    }
    // Directories last, since new entries change them.
    let output = Command::new("find")
        .arg(top)
        .args(["-depth", "-exec", "touch", "-h", "-d", "2001-02-03 04:05:06.25 UTC", "{}", "+"])
        .status();
    assert!(output.expect("find").success());
    let old = Command::new("touch").args(["-h", "-d", "1969-12-31 23:59:50 UTC"]).arg(at("empty")).status();
    assert!(old.expect("touch").success());
}

fn gnu_tar() -> Vec<Vec<&'static str>> {
    let mut all: Vec<Vec<&str>> = Vec::new();
    for format in ["v7", "oldgnu", "gnu", "ustar", "posix"] {
        let format = match format {
            "v7" => "--format=v7",
            "oldgnu" => "--format=oldgnu",
            "gnu" => "--format=gnu",
            "ustar" => "--format=ustar",
            _ => "--format=posix",
        };
        all.push(vec![format, "--sort=name"]);
        if format.ends_with("v7") || format.ends_with("ustar") {
            continue;
        }
        all.push(vec![format, "--sort=name", "--sparse"]);
        all.push(vec![
            format,
            "--sort=name",
            "--sparse",
            "--hole-detection=raw",
            "--numeric-owner",
            "--blocking-factor=1",
        ]);
    }
    let posix = ["--format=posix", "--sort=name"];
    for more in [
        &["--sparse", "--sparse-version=0.0"][..],
        &["--sparse", "--sparse-version=0.1"],
        &["--sparse", "--sparse-version=1.0", "--xattrs", "--xattrs-include=*"],
        &["--xattrs", "--xattrs-include=*"],
        &["--label=a label"],
        &["--pax-option=uid=77"],
        &["--pax-option=mtime:=99.5"],
        &["--pax-option=delete=atime,delete=ctime"],
        &["--listed-incremental=/dev/null"],
        &["--hard-dereference"],
        &["--mtime=@-5.5", "--owner=x:4000000000", "--group=y:5"],
    ] {
        all.push([&posix, more].concat());
    }
    let gnu = ["--format=gnu", "--sort=name"];
    for more in [
        &["--label=a label"][..],
        &["--listed-incremental=/dev/null", "--sparse"],
        &["--incremental"],
        &["--mtime=@-5", "--owner=x:4000000000"],
        &["--no-recursion"],
        &["--transform=s,^\\./,,"],
        &["--blocking-factor=128"],
    ] {
        all.push([&gnu, more].concat());
    }
    all.retain(|options| !options.contains(&"--no-recursion"));
    all
}

/// Returns the volumes of an archive that has several.
fn volumes(folder: &Path, tree: &Path) -> Vec<Case> {
    let mut cases = Vec::new();
    for format in ["gnu", "posix"] {
        let at = folder.join(format!("volumes-{format}"));
        fs::create_dir(&at).expect("a folder");
        let mut tar = Command::new("tar");
        tar.arg(format!("--format={format}")).args(["-M", "-L", "60", "--sort=name"]).current_dir(&at);
        for number in 0..9 {
            tar.args(["-f", &format!("{number}.tar")]);
        }
        let output = tar.arg("-c").arg("-C").arg(tree).args(["dir", "large"]).output().expect("tar");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let volumes = of_folder(&at, &format!("volume of {format}"));
        assert!(volumes.len() > 2, "only {} volumes", volumes.len());
        let last = volumes.len() - 1;
        for (number, case) in volumes.into_iter().enumerate() {
            let is_end = number == last && format == "posix";
            cases.push(if is_end { case.refused("it begins with the rest of a file") } else { case });
        }
    }
    cases
}

fn bsdtar() -> Vec<Vec<&'static str>> {
    let mut all: Vec<Vec<&str>> = vec![vec!["--xattrs"]];
    for format in ["ustar", "pax", "paxr", "gnutar", "v7tar"] {
        all.push(vec!["--format", format]);
        all.push(vec!["--format", format, "--no-read-sparse", "--numeric-owner"]);
    }
    // Formats of other programs that could be mistaken for tar.
    for format in ["zip", "newc", "odc", "7zip", "xar", "shar", "cpio", "mtree", "warc"] {
        all.push(vec!["--format", format]);
    }
    all.push(vec!["--format", "pax", "--options", "pax:xattrheader=SCHILY"]);
    all
}

/// Writes archives with Python's `tarfile` into a folder.
const PYTHON: &str = r#"
import io, os, sys, tarfile
def add(archive, name, data=b"", **about):
    member = tarfile.TarInfo(name)
    member.mtime, member.uid, member.gid, member.mode = 1000000000.25, 1000, 1000, 0o640
    for key, value in about.items():
        setattr(member, key, value)
    if member.isreg():
        member.size = len(data)
    archive.addfile(member, io.BytesIO(data))
def fill(archive, large):
    add(archive, "dir", type=tarfile.DIRTYPE, mode=0o755)
    add(archive, "dir/file", b"hello")
    add(archive, "d" * 90 + "/" + "f" * 90, b"prefix")
    add(archive, "link", type=tarfile.SYMTYPE, linkname="dir/file")
    add(archive, "hard", type=tarfile.LNKTYPE, linkname="dir/file")
    add(archive, "pipe", type=tarfile.FIFOTYPE)
    add(archive, "contiguous", b"x", type=tarfile.CONTTYPE)
    add(archive, "old", b"old", type=tarfile.AREGTYPE)
    if large:
        add(archive, "n" * 180, b"long")
        add(archive, "long link", type=tarfile.SYMTYPE, linkname="t" * 180)
        add(archive, "owner", b"x", uid=3000000000, gid=2097152)
        add(archive, "time", b"x", mtime=-5)
        add(archive, "ünïcödé", b"text")
        add(archive, "new\nline", b"x")
        add(archive, "same", b"first")
        add(archive, "same", b"second")
for name, format in ("ustar", tarfile.USTAR_FORMAT), ("gnu", tarfile.GNU_FORMAT), ("pax", tarfile.PAX_FORMAT):
    large = name != "ustar"
    for form, options in ("", {}), (" latin", {"encoding": "iso8859-1"}):
        with tarfile.open(os.path.join(sys.argv[1], name + form + ".tar"), "w", format=format, **options) as archive:
            fill(archive, large)
for name, headers in ("global", {"uid": "77", "comment": "x"}), ("global time", {"mtime": "123.5"}):
    with tarfile.open(os.path.join(sys.argv[1], name + ".tar"), "w", format=tarfile.PAX_FORMAT, pax_headers=headers) as archive:
        add(archive, "one", b"1")
        member = tarfile.TarInfo("two")
        member.pax_headers = {"VENDOR.x": "a\nb", "SCHILY.xattr.user.a": "b"}
        archive.addfile(member)
"#;

/// Writes archives with Go's `archive/tar` into the current folder.
const GO: &str = r#"
package main

import (
	"archive/tar"
	"os"
	"strings"
	"time"
)

func main() {
	for name, format := range map[string]tar.Format{"ustar": tar.FormatUSTAR, "pax": tar.FormatPAX, "gnu": tar.FormatGNU, "any": tar.FormatUnknown} {
		file, err := os.Create(name + ".tar")
		if err != nil {
			panic(err)
		}
		out := tar.NewWriter(file)
		at := time.Unix(1000000000, 0)
		if name == "pax" {
			at = time.Unix(1000000000, 123456789)
		}
		add := func(header tar.Header, content string) {
			header.Format, header.ModTime, header.Size = format, at, int64(len(content))
			if header.Mode == 0 {
				header.Mode = 0o644
			}
			if err := out.WriteHeader(&header); err != nil {
				panic(name + ": " + err.Error())
			}
			if _, err := out.Write([]byte(content)); err != nil {
				panic(err)
			}
		}
		add(tar.Header{Typeflag: tar.TypeDir, Name: "dir/", Mode: 0o755}, "")
		add(tar.Header{Typeflag: tar.TypeReg, Name: "dir/file", Uid: 1000, Gid: 1000}, "hello")
		add(tar.Header{Typeflag: tar.TypeReg, Name: strings.Repeat("d", 90) + "/" + strings.Repeat("f", 90)}, "prefix")
		add(tar.Header{Typeflag: tar.TypeSymlink, Name: "link", Linkname: "dir/file"}, "")
		add(tar.Header{Typeflag: tar.TypeLink, Name: "hard", Linkname: "dir/file"}, "")
		add(tar.Header{Typeflag: tar.TypeFifo, Name: "pipe"}, "")
		if format != tar.FormatUSTAR {
			add(tar.Header{Typeflag: tar.TypeReg, Name: strings.Repeat("n", 180)}, "long")
			add(tar.Header{Typeflag: tar.TypeSymlink, Name: "long link", Linkname: strings.Repeat("t", 180)}, "")
			add(tar.Header{Typeflag: tar.TypeReg, Name: "owner", Uid: 3000000000, Gid: 2097152}, "x")
			add(tar.Header{Typeflag: tar.TypeReg, Name: "ünïcödé"}, "text")
		}
		if format == tar.FormatPAX || format == tar.FormatUnknown {
			records := map[string]string{"SCHILY.xattr.user.a": "a\n\x00b", "VENDOR.x": "y"}
			add(tar.Header{Typeflag: tar.TypeReg, Name: "attribute", PAXRecords: records}, "x")
		}
		if err := out.Close(); err != nil {
			panic(err)
		}
	}
	file, err := os.Create("global.tar")
	if err != nil {
		panic(err)
	}
	out := tar.NewWriter(file)
	out.WriteHeader(&tar.Header{Typeflag: tar.TypeXGlobalHeader, PAXRecords: map[string]string{"mtime": "77", "comment": "x"}})
	out.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: "file", Mode: 0o644})
	out.Close()
}
"#;
