//! Builds container images for tests: layers, packed or not, in a layout of OCI, an archive of Docker or a
//! registry.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::Write;
use std::path::Path;

use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use tar::EntryType;

/// Storage of layers.
#[derive(Clone, Copy, Debug)]
pub enum Packing {
    /// Uncompressed.
    Plain,
    /// With gzip.
    Gzip,
    /// With zstd.
    Zstd,
}

/// A layer: an archive, member by member.
pub struct Layer(tar::Builder<Vec<u8>>);

impl Layer {
    fn member(&mut self, kind: EntryType, path: &str, mode: u32, content: &[u8]) -> &mut Self {
        let mut header = header(kind, mode, content.len() as u64);
        self.0.append_data(&mut header, path, content).expect("a member");
        self
    }

    /// Adds a file.
    pub fn file(&mut self, path: &str, mode: u32, content: &str) -> &mut Self {
        self.member(EntryType::Regular, path, mode, content.as_bytes())
    }

    /// Adds a directory.
    pub fn folder(&mut self, path: &str) -> &mut Self {
        self.member(EntryType::Directory, path, 0o755, &[])
    }

    /// Removes a path of the layers below with a whiteout.
    pub fn gone(&mut self, path: &str) -> &mut Self {
        let (folder, name) = path.rsplit_once('/').map_or(("", path), |(folder, name)| (folder, name));
        let separator = if folder.is_empty() { "" } else { "/" };
        self.file(&format!("{folder}{separator}.wh.{name}"), 0o644, "")
    }

    /// Marks a directory as opaque: it hides everything in the layers below.
    pub fn opaque(&mut self, folder: &str) -> &mut Self {
        self.file(&format!("{folder}/.wh..wh..opq"), 0o644, "")
    }

    /// Adds a symbolic link.
    pub fn symlink(&mut self, path: &str, target: &str) -> &mut Self {
        self.link(EntryType::Symlink, path, target)
    }

    /// Adds another name of a file.
    pub fn hard_link(&mut self, path: &str, of: &str) -> &mut Self {
        self.link(EntryType::Link, path, of)
    }

    /// Adds everything in a folder.
    pub fn tree(&mut self, folder: &Path) -> &mut Self {
        self.0.append_dir_all("", folder).expect("a tree");
        self
    }

    fn link(&mut self, kind: EntryType, path: &str, target: &str) -> &mut Self {
        let mut header = header(kind, 0o777, 0);
        self.0.append_link(&mut header, path, target).expect("a link");
        self
    }

    /// Adds a member with a false header: a name that no archiver writes, a size without data.
    pub fn lie(&mut self, path: &str, size: u64) -> &mut Self {
        let mut header = header(EntryType::Regular, 0o644, size);
        header.as_mut_bytes()[..path.len()].copy_from_slice(path.as_bytes());
        header.set_cksum();
        self.0.get_mut().extend_from_slice(header.as_bytes());
        self
    }
}

fn header(kind: EntryType, mode: u32, size: u64) -> tar::Header {
    let mut header = tar::Header::new_gnu();
    header.set_entry_type(kind);
    header.set_mode(mode);
    header.set_uid(7);
    header.set_gid(8);
    header.set_mtime(1_500_000_000);
    header.set_size(size);
    header
}

/// A container image.
#[derive(Debug)]
pub struct ContainerImage {
    config: Value,
    /// Each layer, uncompressed and stored.
    layers: Vec<(Vec<u8>, Vec<u8>)>,
    lies: bool,
}

/// Returns the digest of some bytes in the form of container registries.
pub fn digest(bytes: &[u8]) -> String {
    let digits: String = Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect();
    format!("sha256:{digits}")
}

impl ContainerImage {
    /// Creates an image without layers. `config` has the settings for running it.
    pub fn new(config: Value) -> Self {
        Self { config, layers: Vec::new(), lies: false }
    }

    /// Adds a layer on top.
    #[must_use]
    pub fn layer(mut self, packing: Packing, fill: impl FnOnce(&mut Layer)) -> Self {
        let mut layer = Layer(tar::Builder::new(Vec::new()));
        fill(&mut layer);
        let plain = layer.0.into_inner().expect("an archive");
        let stored = match packing {
            Packing::Plain => plain.clone(),
            Packing::Gzip => {
                let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
                encoder.write_all(&plain).and_then(|()| encoder.finish()).expect("compressed")
            }
            Packing::Zstd => zstd::encode_all(plain.as_slice(), 3).expect("compressed"),
        };
        self.layers.push((plain, stored));
        self
    }

    /// Makes Docker archives of the image name layers outside of the archive.
    #[must_use]
    pub fn lying(mut self) -> Self {
        self.lies = true;
        self
    }

    fn config(&self) -> Vec<u8> {
        let ids: Vec<String> = self.layers.iter().map(|(plain, _)| digest(plain)).collect();
        let config = json!({"os": "linux", "config": self.config, "rootfs": {"diff_ids": ids}});
        config.to_string().into_bytes()
    }

    /// Returns the manifest.
    pub fn manifest(&self) -> Vec<u8> {
        let described = |bytes: &[u8]| json!({"digest": digest(bytes), "size": bytes.len()});
        let layers: Vec<Value> = self.layers.iter().map(|(_, stored)| described(stored)).collect();
        json!({"schemaVersion": 2, "config": described(&self.config()), "layers": layers})
            .to_string()
            .into_bytes()
    }

    /// Returns the blobs by digest, without the manifest.
    pub fn blobs(&self) -> BTreeMap<String, Vec<u8>> {
        let layers = self.layers.iter().map(|(_, stored)| stored.clone());
        layers.chain([self.config()]).map(|bytes| (digest(&bytes), bytes)).collect()
    }

    /// Writes a layout of OCI into a folder, which is made.
    pub fn write_layout(&self, folder: &Path, tag: &str) {
        let blobs = folder.join("blobs/sha256");
        fs::create_dir_all(&blobs).expect("folders");
        let manifest = self.manifest();
        let mut all = self.blobs();
        all.insert(digest(&manifest), manifest.clone());
        for (name, bytes) in all {
            fs::write(blobs.join(name.trim_start_matches("sha256:")), bytes).expect("a blob");
        }
        let index = json!({"schemaVersion": 2, "manifests": [{
            "digest": digest(&manifest),
            "size": manifest.len(),
            "annotations": {"org.opencontainers.image.ref.name": tag},
        }]});
        fs::write(folder.join("index.json"), index.to_string()).expect("an index");
        fs::write(folder.join("oci-layout"), r#"{"imageLayoutVersion":"1.0.0"}"#).expect("a mark");
    }

    /// Writes the archive of a layout.
    pub fn write_layout_archive(&self, file: &Path, tag: &str) {
        let folder = tempfile::tempdir().expect("a folder");
        self.write_layout(folder.path(), tag);
        let mut archive = tar::Builder::new(File::create(file).expect("an archive"));
        archive.append_dir_all(".", folder.path()).and_then(|()| archive.finish()).expect("an archive");
    }

    /// Writes an archive as `docker save` does.
    pub fn write_docker_archive(&self, file: &Path, name: &str) {
        let mut archive = tar::Builder::new(File::create(file).expect("an archive"));
        let mut add = |path: &str, bytes: &[u8]| {
            let mut header = header(EntryType::Regular, 0o644, bytes.len() as u64);
            archive.append_data(&mut header, path, bytes).expect("a member");
        };
        let names: Vec<String> = (0..self.layers.len()).map(|number| format!("{number}/layer.tar")).collect();
        names.iter().zip(&self.layers).for_each(|(path, (plain, _))| add(path, plain));
        add("config.json", &self.config());
        let outside = if self.lies { "../" } else { "" };
        let named: Vec<String> = names.iter().map(|name| format!("{outside}{name}")).collect();
        let list = json!([{"Config": "config.json", "RepoTags": [name], "Layers": named}]);
        add("manifest.json", list.to_string().as_bytes());
        archive.finish().expect("an archive");
    }
}
