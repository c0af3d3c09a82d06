//! The uses of the reader: `ingest`, an image, a layer of a container image.

use std::fs::{self, File};
use std::io::Read as _;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{SystemTime, UNIX_EPOCH};

use esker_format::name::RepositoryName;
use esker_format::time::UnixTime;
use esker_oci::{FileContent, Image, Kind as LayerKind, Limits};
use esker_publish::{Ingest, Owner, PublishOptions, TagRequest};
use esker_repository::{KeyFolder, NewRepository, Repository};
use esker_squashfs::layout::CodecId;
use esker_squashfs::writer::{Archive, BuildControl, Compression, ImageFile, Options, build};
use esker_squashfs::{FileImage, ImageTree};
use esker_testkit::container::digest;
use esker_testkit::listing::Entry;
use esker_testkit::object::sha256;
use esker_testkit::raw_tar::{Raw, archive};
use esker_vfs::{ErrorKind, Kind, NodeWithAttr, Reply, Tree as _, whole_listing};

use crate::cases::{Case, Tree};
use crate::judge::{difference, tree};

/// A use.
pub(crate) enum Use {
    /// Archives become directories of one repository, which is read at the end.
    Ingest {
        folder: PathBuf,
        keys: KeyFolder,
        read: Vec<(usize, Tree)>,
    },
    Image(PathBuf),
    Layer(PathBuf),
}

const REPOSITORY: &str = "archives.test";

fn now() -> UnixTime {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).expect("a time");
    UnixTime(i64::try_from(now.as_secs()).expect("a time"))
}

fn name() -> RepositoryName {
    RepositoryName::parse(REPOSITORY).expect("a name")
}

impl Use {
    pub(crate) fn ingest(folder: &Path) -> Self {
        let folder = folder.join("repository");
        fs::create_dir(&folder).expect("a folder");
        let keys = KeyFolder::new(folder.join("keys"), &name());
        NewRepository::new(name()).create(&folder.join(REPOSITORY), &keys, now()).expect("a repository");
        Self::Ingest { folder, keys, read: Vec::new() }
    }

    pub(crate) fn image(folder: &Path) -> Self {
        Self::Image(folder.join("images"))
    }

    pub(crate) fn layer(folder: &Path) -> Self {
        Self::Layer(folder.join("layers"))
    }

    /// Ingests an archive, which has to become this tree, or be refused if there is none.
    pub(crate) fn take(
        &mut self,
        number: usize,
        case: &Case,
        expected: Option<&Tree>,
        complaints: &mut Vec<String>,
    ) {
        let mut complain = |what: String| complaints.push(format!("{}: {}", case.name, what));
        match self {
            Self::Ingest { folder, keys, read } => {
                let before = all_files(folder);
                let outcome = ingest(folder, keys, number, case);
                match (outcome, expected) {
                    (Ok(()), Some(expected)) => read.push((number, expected.clone())),
                    (Ok(()), None) => complain("is ingested".to_owned()),
                    (Err(error), Some(_)) => complain(format!("is not ingested: {error}")),
                    (Err(_), None) if all_files(folder) != before => {
                        complain("is refused by ingest, and something was written".to_owned());
                    }
                    (Err(error), None) => told(&error, "ingest", &mut complain),
                }
            }
            Self::Image(folder) => {
                // A compressed archive is read as a stream anyway.
                let forms: &[bool] = if case.packed.is_some() { &[false] } else { &[false, true] };
                for is_stream in forms.iter().copied() {
                    fs::create_dir_all(&*folder).expect("a folder");
                    let image = folder.join("it.sqfs");
                    let outcome = build_image(folder, &image, case, is_stream);
                    match (outcome, expected) {
                        (Ok(()), Some(expected)) => {
                            if let Some(difference) = difference(expected, &tree_of_image(&image), false) {
                                complain(format!("in an image: {difference}"));
                            }
                        }
                        (Ok(()), None) => complain("becomes an image".to_owned()),
                        (Err(error), Some(_)) => complain(format!("becomes no image: {error}")),
                        (Err(_), None) if image.exists() => complain("leaves an image, refused".to_owned()),
                        (Err(error), None) => told(&error, "image", &mut complain),
                    }
                    fs::remove_dir_all(&*folder).expect("removed");
                }
            }
            Self::Layer(folder) => {
                fs::create_dir_all(&*folder).expect("a folder");
                match (layer(folder, case), expected) {
                    (Ok(found), Some(expected)) => {
                        if let Some(difference) = difference(expected, &found, false) {
                            complain(format!("in a layer: {difference}"));
                        }
                    }
                    (Ok(_), None) if case.layer.is_some() => {}
                    (_, None) if case.layer.is_some() => complain("is refused as a layer, too".to_owned()),
                    (Ok(_), None) => complain("becomes a layer".to_owned()),
                    (Err(error), Some(_)) => complain(format!("becomes no layer: {error}")),
                    (Err(error), None) => told(&error, "layer", &mut complain),
                }
                let left = fs::read_dir(&*folder).expect("a folder").count();
                if left != 1 {
                    complain(format!("leaves {left} files beside the archive as a layer"));
                }
                fs::remove_dir_all(&*folder).expect("removed");
            }
        }
    }

    /// Compares results that are complete only at the end.
    pub(crate) fn finish(&mut self, corpus: &[Case], complaints: &mut Vec<String>) {
        let Self::Ingest { folder, keys, read } = self else { return };
        assert!(!read.is_empty());
        let public = fs::read_to_string(keys.public_key_file()).expect("a key");
        let findings = esker_testkit::check::check(&folder.join(REPOSITORY), REPOSITORY, &public);
        findings.assert_clean();
        assert_eq!(findings.revision, read.len() as u64, "a revision for each that was read, and no other");
        for (number, expected) in read {
            let top = target(*number);
            let below = findings.tree.iter().filter_map(|(path, entry)| {
                let rest = path.strip_prefix(&*top)?;
                let path = if rest.is_empty() { b"/".to_vec() } else { rest.to_vec() };
                (rest.is_empty() || rest.starts_with(b"/")).then(|| Entry { path, ..entry.clone() })
            });
            if let Some(difference) = difference(expected, &tree(below), true) {
                complaints.push(format!("{}: ingested: {difference}", corpus[*number].name));
            }
        }
    }
}

/// Checks that every refusal states the cause, and not just a failure.
fn told(error: &str, by: &str, complain: &mut impl FnMut(String)) {
    if error.len() < 25 {
        complain(format!("is refused by {by} without a reason: {error}"));
    }
}

fn all_files(folder: &Path) -> Vec<Vec<u8>> {
    esker_testkit::listing::of_folder(folder).into_iter().map(|entry| entry.path).collect()
}

fn target(number: usize) -> Vec<u8> {
    format!("/case-{number:03}").into_bytes()
}

/// Returns an error with its causes.
fn chain(error: &dyn std::error::Error) -> String {
    let causes = std::iter::successors(error.source(), |error| error.source());
    causes.fold(error.to_string(), |text, cause| format!("{text}: {cause}"))
}

fn ingest(folder: &Path, keys: &KeyFolder, number: usize, case: &Case) -> Result<(), String> {
    let archive = folder.with_extension("tar");
    fs::write(&archive, case.bytes()).expect("written");
    let repository =
        Repository::open(&folder.join(REPOSITORY), &name(), keys.clone(), now()).expect("a repository");
    let mut progress = |_| ();
    let mut confirm_shrink = |_| true;
    let mut ingest = Ingest {
        archive,
        target: target(number),
        delete: Vec::new(),
        owner: Owner::default(),
        nested: false,
        options: PublishOptions {
            tag: TagRequest::default(),
            threads: 1,
            stop: Arc::new(AtomicBool::new(false)),
            profiles: Vec::new(),
            filter: Default::default(),
            progress: &mut progress,
            confirm_shrink: &mut confirm_shrink,
        },
    };
    ingest.run(&repository, now()).map(drop).map_err(|error| chain(&error))
}

fn build_image(folder: &Path, image: &Path, case: &Case, is_stream: bool) -> Result<(), String> {
    let archive = folder.join("it.tar");
    fs::write(&archive, case.bytes()).expect("written");
    let opened = match is_stream {
        true => Archive::of_stream("it".to_owned(), Box::new(File::open(&archive).expect("it"))),
        false => Archive::open(&archive),
    };
    let mut input = opened.map_err(|error| chain(&error))?;
    let options = Options::new(Compression::new(CodecId::Zstd, Some(1)).expect("a codec"), 1);
    let stop = AtomicBool::new(false);
    let mut watch = BuildControl { excludes: &|_| false, stop: &stop, progress: &mut |_| {} };
    let mut target = ImageFile::create(image).expect("a file");
    build(&mut input, &options, &mut watch, &mut target).map(drop).map_err(|error| chain(&error))
}

fn tree_of_image(image: &Path) -> Tree {
    let image = FileImage::open(image, 0).expect("an image");
    let image = ImageTree::open(Arc::new(image), &esker_squashfs::Options::default()).expect("an image");
    let mut found = Vec::new();
    let mut waiting = vec![(b"/".to_vec(), image.root())];
    while let Some((path, NodeWithAttr { node, attr })) = waiting.pop() {
        let mut content = Vec::new();
        let mut is_complete = attr.kind != Kind::File;
        while !is_complete {
            let data = Reply::wait(|reply| image.read(&node, content.len() as u64, 1 << 20, reply))
                .expect("content");
            let data = data.to_vec().expect("bytes in memory");
            is_complete = data.is_empty();
            content.extend(data);
        }
        let target = || Reply::wait(|reply| image.link_target(&node, reply)).expect("a target");
        let names = match Reply::wait(|reply| image.xattr_names(&node, reply)) {
            // The image has no attributes.
            Err(error) if error.kind == ErrorKind::Unsupported => Vec::new(),
            names => names.expect("names"),
        };
        let value = |name: &Vec<u8>| Reply::wait(|reply| image.xattr(&node, name, reply)).expect("a value");
        if attr.kind == Kind::Directory {
            for entry in whole_listing(&image, &node).expect("a listing") {
                let separator: &[u8] = if path == b"/" { b"" } else { b"/" };
                let below = [&path[..], separator, &entry.name].concat();
                waiting.push((below, NodeWithAttr { node: entry.node, attr: entry.attr }));
            }
        }
        let is_device = matches!(attr.kind, Kind::CharDevice | Kind::BlockDevice);
        found.push(Entry {
            path,
            mode: attr.mode(),
            mtime_ns: attr.mtime.secs * 1_000_000_000,
            uid: attr.uid,
            gid: attr.gid,
            size: None,
            nlink: None,
            rdev: is_device.then(|| rustix::fs::makedev(attr.rdev.major, attr.rdev.minor)),
            target: (attr.kind == Kind::Symlink).then(target),
            sha256: (attr.kind == Kind::File).then(|| sha256(&content)),
            xattrs: names.iter().map(|name| (name.clone(), value(name))).collect(),
        });
    }
    tree(found)
}

/// Returns the tree of a container image whose one layer is the archive.
fn layer(folder: &Path, case: &Case) -> Result<Tree, String> {
    let config =
        serde_json::json!({"os": "linux", "rootfs": {"diff_ids": [digest(&case.plain)]}}).to_string();
    let list = serde_json::json!([{"Config": "config.json", "Layers": ["0/layer.tar"]}]).to_string();
    let members = [
        Raw::file(b"0/layer.tar", case.bytes()),
        Raw::file(b"config.json", config.as_bytes()),
        Raw::file(b"manifest.json", list.as_bytes()),
    ];
    let path = folder.join("image.tar");
    fs::write(&path, archive(&members)).expect("written");
    let image = Image::in_docker_archive(&path, None).map_err(|error| chain(&error))?;
    let merged = image.merge(folder, &Limits::default(), &mut |_| ControlFlow::Continue(()));
    let merged = merged.map_err(|error| chain(&error))?;
    let mut found = Vec::new();
    let root = merged.root().cloned();
    let entries = merged.iter().map(|(path, entry)| ([b"/", path].concat(), (**entry).clone()));
    for (path, entry) in root.into_iter().map(|root| (b"/".to_vec(), root)).chain(entries) {
        let mut content = Vec::new();
        if let LayerKind::File { layer, data } = &entry.kind {
            FileContent::new(layer.clone(), data.clone()).read_to_end(&mut content).expect("content");
        }
        let (kind, rdev) = match &entry.kind {
            LayerKind::Directory => (0o040_000, None),
            LayerKind::File { .. } => (0o100_000, None),
            LayerKind::Symlink(_) => (0o120_000, None),
            LayerKind::Fifo => (0o010_000, None),
            LayerKind::CharDevice(major, minor) => (0o020_000, Some(rustix::fs::makedev(*major, *minor))),
            LayerKind::BlockDevice(major, minor) => (0o060_000, Some(rustix::fs::makedev(*major, *minor))),
        };
        found.push(Entry {
            path,
            mode: entry.mode | kind,
            mtime_ns: entry.mtime.saturating_mul(1_000_000_000),
            uid: entry.uid,
            gid: entry.gid,
            size: None,
            nlink: None,
            rdev,
            sha256: (kind == 0o100_000).then(|| sha256(&content)),
            target: if let LayerKind::Symlink(target) = entry.kind { Some(target) } else { None },
            xattrs: entry.xattrs.into_iter().collect(),
        });
    }
    let mut tree = tree(found);
    // A layer need not describe its root.
    tree.entry(b"/".to_vec()).or_insert_with(|| Entry {
        path: b"/".to_vec(),
        mode: 0o040_755,
        mtime_ns: 0,
        uid: 0,
        gid: 0,
        size: None,
        nlink: None,
        rdev: None,
        target: None,
        sha256: None,
        xattrs: Default::default(),
    });
    Ok(tree)
}
