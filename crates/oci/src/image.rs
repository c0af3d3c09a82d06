//! A container image, its configuration and its layers.

use std::fs::{File, OpenOptions};
use std::io::{self, BufReader, BufWriter, Read, Write};
use std::ops::ControlFlow;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::Arc;

use esker_archive::{Reader, decompressed};
use serde::Deserialize;

use crate::OciError;
use crate::config::Config;
use crate::digest::{Digest, VerifiedReader};
use crate::files::Files;
use crate::manifest::{self, Descriptor, Document, Manifest};
use crate::merge::{Layer, Merged};
use crate::registry::Registry;

/// Limits of an image while it is unpacked.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Maximum decompressed bytes of all layers.
    pub bytes: u64,
    /// Maximum number of entries, both of all layers and of the merged tree.
    pub entries: usize,
    /// Maximum bytes of names, link targets and extended attributes, both of a layer and of the merged tree.
    pub names: u64,
}

impl Default for Limits {
    fn default() -> Self {
        // Larger than any image in use; a small file that unpacks to more is an attack or a mistake.
        Self { bytes: 1 << 40, entries: 20_000_000, names: 2 << 30 }
    }
}

/// Progress of unpacking.
#[derive(Clone, Copy, Debug)]
pub struct Unpacking {
    /// Number of the current layer, counted from 1.
    pub layer: usize,
    /// Number of layers.
    pub layers: usize,
    /// Compressed bytes of all layers read so far.
    pub bytes: u64,
}

/// Progress callback, which may stop the operation.
pub type ProgressFn<'t> = dyn FnMut(Unpacking) -> ControlFlow<()> + 't;

/// A container image for this machine.
pub struct Image {
    /// Configuration as stored; [`crate::Config`] parses it.
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
    /// Digest and length of the compressed layer.
    digest: Option<(Digest, u64)>,
    /// Digest of the decompressed layer.
    plain: Option<Digest>,
}

/// The part of a configuration that lists the digests of layers.
#[derive(Deserialize)]
struct ConfigDigests {
    rootfs: Option<RootFs>,
}

#[derive(Deserialize)]
struct RootFs {
    #[serde(default)]
    diff_ids: Vec<String>,
}

/// An entry of the list of images in a Docker archive (`manifest.json`).
#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct DockerManifest {
    config: String,
    #[serde(default)]
    repo_tags: Option<Vec<String>>,
    layers: Vec<String>,
}

impl Image {
    /// Opens an OCI layout: a folder, or an archive of one. `tag` selects one of several images.
    pub fn in_layout(path: &Path, tag: Option<&str>) -> Result<Self, OciError> {
        let what = path.display().to_string();
        let files = Files::open(path)?;
        let index = files.read("index.json", manifest::LEN_MAX)?;
        let mut document = Document::parse(&what, &index)?;
        let mut tag = tag;
        for _ in 0..manifest::DEPTH {
            match document {
                Document::Manifest(manifest) => return Self::of_manifest(&what, manifest, files),
                Document::Index(index) => {
                    let chosen = manifest::choose(&what, &index, tag, manifest::own_architecture())?;
                    let json = blob(&files, chosen, manifest::LEN_MAX)?;
                    document = Document::parse(&what, &json)?;
                    // Only the outermost index has tags.
                    tag = None;
                }
            }
        }
        Err(OciError::refused(what, "its indexes are nested too deeply"))
    }

    /// Opens the image with this tag or digest in a registry.
    pub fn in_registry(what: &str, reference: &str, registry: Box<dyn Registry>) -> Result<Self, OciError> {
        let get = |reference: &str| {
            let manifest = registry.manifest(reference, manifest::LEN_MAX);
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
        Err(OciError::refused(what, "its indexes are nested too deeply"))
    }

    /// Opens an archive of `docker save`. `tag` selects one of several images.
    pub fn in_docker_archive(path: &Path, tag: Option<&str>) -> Result<Self, OciError> {
        let what = path.display().to_string();
        let files = Files::open(path)?;
        if !files.has("manifest.json") && files.has("index.json") {
            return Self::in_layout(path, tag);
        }
        let list = files.read("manifest.json", manifest::LEN_MAX)?;
        let list: Vec<DockerManifest> =
            serde_json::from_slice(&list).map_err(|error| OciError::refused(&*what, error.to_string()))?;
        let named = |image: &DockerManifest| {
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
            return Err(OciError::refused(what, "it refers to files outside of itself"));
        }
        let config = files.read(&first.config, Config::LEN_MAX)?;
        let layers =
            first.layers.into_iter().map(|name| LayerRef { name, digest: None, plain: None }).collect();
        Self::new(&what, config, layers, files)
    }

    fn of_manifest(what: &str, manifest: Manifest, files: Files) -> Result<Self, OciError> {
        let config = blob(&files, &manifest.config, Config::LEN_MAX)?;
        let layer = |layer: &Descriptor| {
            let digest = Some((layer.digest()?, layer.size));
            Ok(LayerRef { name: layer.digest.clone(), digest, plain: None })
        };
        let layers: Result<Vec<_>, OciError> = manifest.layers.iter().map(layer).collect();
        Self::new(what, config, layers?, files)
    }

    fn new(what: &str, config: Vec<u8>, mut layers: Vec<LayerRef>, files: Files) -> Result<Self, OciError> {
        let digests: ConfigDigests =
            serde_json::from_slice(&config).map_err(|error| OciError::refused(what, error.to_string()))?;
        let plain = digests.rootfs.map(|rootfs| rootfs.diff_ids).unwrap_or_default();
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

    /// Unpacks and verifies all layers into unnamed files in `folder`, and merges them.
    pub fn merge(
        &self,
        folder: &Path,
        limits: &Limits,
        report: &mut ProgressFn<'_>,
    ) -> Result<Merged, OciError> {
        let mut merged = Merged::default();
        let mut left = *limits;
        let mut progress = Unpacking { layer: 0, layers: self.layers.len(), bytes: 0 };
        for layer in &self.layers {
            progress.layer += 1;
            let file = Arc::new(self.unpack(layer, folder, &mut left, (&mut progress, report))?);
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
        (progress, report): (&mut Unpacking, &mut ProgressFn<'_>),
    ) -> Result<File, OciError> {
        let what = format!("layer {}", layer.name);
        let mut stopped = false;
        let stored = match &layer.digest {
            Some((digest, size)) => self.files.blob(digest, *size)?,
            None => self.files.stream(&layer.name)?,
        };
        let stored = ProgressReader { inner: stored, progress, report, stopped: &mut stopped };
        let file = unnamed_file(folder)?;
        let written = match &layer.digest {
            Some((digest, _)) => {
                let mut checked = VerifiedReader::new(stored, digest);
                let written = write_plain(&what, &mut checked, layer, &file, left.bytes);
                // An error of unpacking is mostly caused by wrong content, so the digest error takes
                // precedence.
                checked.finish(&what).and(written)
            }
            None => write_plain(&what, stored, layer, &file, left.bytes),
        };
        left.bytes -= if stopped { return Err(OciError::Interrupted) } else { written? };
        Ok(file)
    }
}

/// A stream that reports its progress and can be stopped.
struct ProgressReader<'w, 't> {
    inner: Box<dyn Read + Send>,
    progress: &'w mut Unpacking,
    report: &'w mut ProgressFn<'t>,
    stopped: &'w mut bool,
}

impl Read for ProgressReader<'_, '_> {
    fn read(&mut self, room: &mut [u8]) -> io::Result<usize> {
        if (self.report)(*self.progress).is_break() {
            *self.stopped = true;
            return Err(io::Error::other("interrupted"));
        }
        let len = self.inner.read(room)?;
        self.progress.bytes += len as u64;
        Ok(len)
    }
}

/// Decompresses a layer into a file and verifies its digest.
fn write_plain(
    what: &str,
    stored: impl Read,
    layer: &LayerRef,
    file: &File,
    limit: u64,
) -> Result<u64, OciError> {
    let failed = || OciError::io(format!("unpack {what}"));
    let plain = decompressed(BufReader::with_capacity(1 << 16, stored)).map_err(failed())?;
    let mut plain = plain.take(limit.saturating_add(1));
    let mut out = BufWriter::with_capacity(1 << 20, file);
    let written = match &layer.plain {
        Some(digest) => {
            let mut checked = VerifiedReader::new(&mut plain, digest);
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

/// Returns true if a name stays within its folder.
fn is_within(name: &str) -> bool {
    !name.starts_with('/') && !name.split('/').any(|part| part == "..")
}

/// Creates a file without a name, which is deleted when it is closed.
fn unnamed_file(folder: &Path) -> Result<File, OciError> {
    let failed = OciError::io(format!("make a file in {}", folder.display()));
    let path = folder.join(format!(".esker-layer-{}", std::process::id()));
    let open = || {
        let file = OpenOptions::new().read(true).write(true).create_new(true).mode(0o600).open(&path)?;
        std::fs::remove_file(&path)?;
        Ok(file)
    };
    open().map_err(failed)
}
