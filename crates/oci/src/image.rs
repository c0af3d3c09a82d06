//! An image, wherever it is: its configuration and its layers.

use std::fs::{File, OpenOptions};
use std::io::{self, BufReader, BufWriter, Read, Write};
use std::ops::ControlFlow;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::Arc;

use esker_archive::{Reader, unpacked};
use serde::Deserialize;

use crate::OciError;
use crate::config::Config;
use crate::digest::{Checked, Digest};
use crate::files::Files;
use crate::manifest::{self, Descriptor, Document, Manifest};
use crate::merge::{Layer, Merged};
use crate::registry::Registry;

/// Bounds on what an image may take up while it is unpacked.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Bytes of all layers, unpacked.
    pub bytes: u64,
    /// Entries of all layers, and of what they make together.
    pub entries: usize,
    /// Bytes of names, link targets and extended attributes of a layer, and of what they make together.
    pub names: u64,
}

impl Default for Limits {
    fn default() -> Self {
        // Larger than any image that people use; a small file that unpacks to more is an attack, or a mistake.
        Self { bytes: 1 << 40, entries: 20_000_000, names: 2 << 30 }
    }
}

/// How far unpacking is.
#[derive(Clone, Copy, Debug)]
pub struct Unpacking {
    /// Which layer is unpacked, counted from 1…
    pub layer: usize,
    /// …of so many.
    pub layers: usize,
    /// Bytes that were read of all layers so far, as they are stored.
    pub bytes: u64,
}

/// Hears how far unpacking is, now and then, and may end it.
pub type Told<'t> = dyn FnMut(Unpacking) -> ControlFlow<()> + 't;

/// An image for this machine.
pub struct Image {
    /// Its configuration, as it is stored: [`crate::Config`] reads it.
    pub config: Vec<u8>,
    files: Files,
    layers: Vec<LayerRef>,
}

impl std::fmt::Debug for Image {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Image").field("layers", &self.layers).finish_non_exhaustive()
    }
}

#[derive(Clone, Debug)]
struct LayerRef {
    name: String,
    /// Of the layer as it is stored, and how long that is.
    digest: Option<(Digest, u64)>,
    /// Of the layer when it is unpacked.
    plain: Option<Digest>,
}

/// The part of a configuration that vouches for layers.
#[derive(Deserialize)]
struct Vouching {
    rootfs: Option<RootFs>,
}

#[derive(Deserialize)]
struct RootFs {
    #[serde(default)]
    diff_ids: Vec<String>,
}

/// A line of the list of images in an archive of Docker.
#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Saved {
    config: String,
    #[serde(default)]
    repo_tags: Option<Vec<String>>,
    layers: Vec<String>,
}

impl Image {
    /// Opens a layout of OCI: a folder, or an archive of one. `tag` chooses among several images.
    pub fn in_layout(path: &Path, tag: Option<&str>) -> Result<Self, OciError> {
        let what = path.display().to_string();
        let files = Files::open(path)?;
        let index = files.read("index.json", manifest::LONGEST)?;
        let mut document = Document::parse(&what, &index)?;
        let mut tag = tag;
        for _ in 0..manifest::DEPTH {
            match document {
                Document::Manifest(manifest) => return Self::of_manifest(&what, manifest, files),
                Document::Index(index) => {
                    let chosen = manifest::choose(&what, &index, tag, manifest::own_architecture())?;
                    let json = blob(&files, chosen, manifest::LONGEST)?;
                    document = Document::parse(&what, &json)?;
                    // Names are given in the outermost index.
                    tag = None;
                }
            }
        }
        Err(OciError::refused(what, "its indexes name indexes, and so on"))
    }

    /// Opens the image with this tag or digest in a registry.
    pub fn in_registry(what: &str, reference: &str, registry: Box<dyn Registry>) -> Result<Self, OciError> {
        let get = |reference: &str| {
            let manifest = registry.manifest(reference, manifest::LONGEST);
            manifest.map_err(OciError::io(format!("get the manifest {reference} of {what}")))
        };
        let mut json = get(reference)?;
        if let Ok(digest) = Digest::parse(reference) {
            digest.check(reference, &json)?;
        }
        for _ in 0..manifest::DEPTH {
            match Document::parse(what, &json)? {
                Document::Manifest(manifest) => {
                    return Self::of_manifest(what, manifest, Files::Registry(registry));
                }
                Document::Index(index) => {
                    let chosen = manifest::choose(what, &index, None, manifest::own_architecture())?;
                    let digest = chosen.digest()?;
                    json = get(&digest.to_string())?;
                    digest.check(&digest.to_string(), &json)?;
                }
            }
        }
        Err(OciError::refused(what, "its indexes name indexes, and so on"))
    }

    /// Opens an archive as `docker save` makes it. `tag` chooses among several images.
    pub fn in_docker_archive(path: &Path, tag: Option<&str>) -> Result<Self, OciError> {
        let what = path.display().to_string();
        let files = Files::open(path)?;
        if !files.has("manifest.json") && files.has("index.json") {
            return Self::in_layout(path, tag);
        }
        let list = files.read("manifest.json", manifest::LONGEST)?;
        let list: Vec<Saved> =
            serde_json::from_slice(&list).map_err(|error| OciError::refused(&*what, error.to_string()))?;
        let named = |image: &Saved| {
            let names = image.repo_tags.iter().flatten();
            tag.is_none_or(|tag| names.clone().any(|name| name == tag))
        };
        let mut found = list.into_iter().filter(named);
        let (first, second) = (found.next(), found.next());
        let first = first.ok_or_else(|| OciError::refused(&*what, "it has no image of that name"))?;
        if second.is_some() {
            return Err(OciError::refused(
                what,
                "it has several images: name one, as in docker-archive:FILE:NAME:TAG",
            ));
        }
        if !first.layers.iter().chain([&first.config]).all(|name| is_within(name)) {
            return Err(OciError::refused(what, "it names files outside of itself"));
        }
        let config = files.read(&first.config, Config::LONGEST)?;
        let layers =
            first.layers.into_iter().map(|name| LayerRef { name, digest: None, plain: None }).collect();
        Self::new(&what, config, layers, files)
    }

    fn of_manifest(what: &str, manifest: Manifest, files: Files) -> Result<Self, OciError> {
        let config = blob(&files, &manifest.config, Config::LONGEST)?;
        let layer = |layer: &Descriptor| {
            let digest = Some((layer.digest()?, layer.size));
            Ok(LayerRef { name: layer.digest.clone(), digest, plain: None })
        };
        let layers: Result<Vec<_>, OciError> = manifest.layers.iter().map(layer).collect();
        Self::new(what, config, layers?, files)
    }

    fn new(what: &str, config: Vec<u8>, mut layers: Vec<LayerRef>, files: Files) -> Result<Self, OciError> {
        let vouching: Vouching =
            serde_json::from_slice(&config).map_err(|error| OciError::refused(what, error.to_string()))?;
        let plain = vouching.rootfs.map(|rootfs| rootfs.diff_ids).unwrap_or_default();
        if plain.len() != layers.len() {
            let reason =
                format!("it has {} layers, but its configuration knows {}", layers.len(), plain.len());
            return Err(OciError::refused(what, reason));
        }
        for (layer, plain) in layers.iter_mut().zip(&plain) {
            layer.plain = Some(Digest::parse(plain)?);
        }
        Ok(Self { config, files, layers })
    }

    /// Unpacks and checks all layers, in files without a name in `folder`, and puts them one above the other.
    pub fn merge(&self, folder: &Path, limits: &Limits, told: &mut Told<'_>) -> Result<Merged, OciError> {
        let mut merged = Merged::default();
        let mut left = *limits;
        let mut progress = Unpacking { layer: 0, layers: self.layers.len(), bytes: 0 };
        for layer in &self.layers {
            progress.layer += 1;
            let file = Arc::new(self.unpack(layer, folder, &mut left, (&mut progress, told))?);
            let what = format!("layer {}", layer.name);
            let reader = Reader::of_file(file.clone());
            let mut reader = reader.map_err(OciError::io("look at an unpacked layer"))?;
            let mut found = Layer::default();
            while let Some(entry) = reader.next().map_err(OciError::archive(&*what))? {
                found.add(entry)?;
                if !found.is_within(&left) {
                    return Err(OciError::refused(&*layer.name, "it has too many entries"));
                }
            }
            left.entries -= found.len();
            merged.put(found, &file, limits)?;
        }
        Ok(merged)
    }

    fn unpack(
        &self,
        layer: &LayerRef,
        folder: &Path,
        left: &mut Limits,
        (progress, told): (&mut Unpacking, &mut Told<'_>),
    ) -> Result<File, OciError> {
        let what = format!("layer {}", layer.name);
        let mut stopped = false;
        let stored = match &layer.digest {
            Some((digest, size)) => self.files.blob(digest, *size)?,
            None => self.files.stream(&layer.name)?,
        };
        let stored = Watched { inner: stored, progress, told, stopped: &mut stopped };
        let file = nameless(folder)?;
        let written = match &layer.digest {
            Some((digest, _)) => {
                let mut checked = Checked::new(stored, digest);
                let written = write_plain(&what, &mut checked, layer, &file, left.bytes);
                // What can't be unpacked is mostly not what it should be, which says more.
                checked.finish(&what).and(written)
            }
            None => write_plain(&what, stored, layer, &file, left.bytes),
        };
        left.bytes -= if stopped { return Err(OciError::Interrupted) } else { written? };
        Ok(file)
    }
}

/// A stream that tells how far it is, and ends when that is asked for.
struct Watched<'w, 't> {
    inner: Box<dyn Read + Send>,
    progress: &'w mut Unpacking,
    told: &'w mut Told<'t>,
    stopped: &'w mut bool,
}

impl Read for Watched<'_, '_> {
    fn read(&mut self, room: &mut [u8]) -> io::Result<usize> {
        if (self.told)(*self.progress).is_break() {
            *self.stopped = true;
            return Err(io::Error::other("interrupted"));
        }
        let len = self.inner.read(room)?;
        self.progress.bytes += len as u64;
        Ok(len)
    }
}

/// Decompresses into a file, and checks what comes out.
fn write_plain(
    what: &str,
    stored: impl Read,
    layer: &LayerRef,
    file: &File,
    limit: u64,
) -> Result<u64, OciError> {
    let failed = || OciError::io(format!("unpack {what}"));
    let plain = unpacked(BufReader::with_capacity(1 << 16, stored)).map_err(failed())?;
    let mut plain = plain.take(limit.saturating_add(1));
    let mut out = BufWriter::with_capacity(1 << 20, file);
    let written = match &layer.plain {
        Some(digest) => {
            let mut checked = Checked::new(&mut plain, digest);
            let written = io::copy(&mut checked, &mut out).map_err(failed())?;
            if written <= limit {
                checked.finish(&format!("{what}, unpacked,"))?;
            }
            written
        }
        None => io::copy(&mut plain, &mut out).map_err(failed())?,
    };
    out.flush().map_err(failed())?;
    if written > limit {
        return Err(OciError::refused(what, "the image unpacks to more than is allowed"));
    }
    Ok(written)
}

fn blob(files: &Files, descriptor: &Descriptor, limit: u64) -> Result<Vec<u8>, OciError> {
    let digest = descriptor.digest()?;
    if descriptor.size > limit {
        return Err(OciError::refused(digest.to_string(), "it is too long"));
    }
    let content = files.read_blob(&digest, limit)?;
    digest.check(&digest.to_string(), &content)?;
    Ok(content)
}

/// Whether a name stays in its folder.
fn is_within(name: &str) -> bool {
    !name.starts_with('/') && !name.split('/').any(|part| part == "..")
}

/// A file that is gone when it is closed.
fn nameless(folder: &Path) -> Result<File, OciError> {
    let failed = OciError::io(format!("make a file in {}", folder.display()));
    let path = folder.join(format!(".esker-layer-{}", std::process::id()));
    let open = || {
        let file = OpenOptions::new().read(true).write(true).create_new(true).mode(0o600).open(&path)?;
        std::fs::remove_file(&path)?;
        Ok(file)
    };
    open().map_err(failed)
}
