//! Writes images.

use std::cell::Cell;
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};

use sha2::{Digest, Sha256};

/// How layers are stored.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Packing {
    Plain,
    Gzip,
    Zstd,
}

pub(crate) struct Written {
    folder: tempfile::TempDir,
    plain: Vec<Vec<u8>>,
    config: String,
    lies: Cell<bool>,
}

fn digits(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}

fn archive(entries: &[(&str, &str)]) -> Vec<u8> {
    let mut builder = tar::Builder::new(Vec::new());
    for (path, content) in entries {
        let mut header = tar::Header::new_gnu();
        header.set_mode(0o644);
        match content.strip_prefix("-> ") {
            Some(target) => {
                header.set_entry_type(tar::EntryType::Symlink);
                header.set_size(0);
                builder.append_link(&mut header, path, target).expect("a link");
            }
            None => {
                header.set_size(content.len() as u64);
                builder.append_data(&mut header, path, content.as_bytes()).expect("a file");
            }
        }
    }
    builder.into_inner().expect("an archive")
}

fn packed(plain: &[u8], packing: Packing) -> Vec<u8> {
    match packing {
        Packing::Plain => plain.to_vec(),
        Packing::Gzip => {
            let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
            encoder.write_all(plain).and_then(|()| encoder.finish()).expect("compressed")
        }
        Packing::Zstd => zstd::encode_all(plain, 3).expect("compressed"),
    }
}

impl Written {
    pub(crate) fn new(layers: &[&[(&str, &str)]], packing: Packing) -> Written {
        let folder = tempfile::tempdir().expect("a folder");
        let blobs = folder.path().join("layout/blobs/sha256");
        fs::create_dir_all(&blobs).expect("a folder");
        let put = |bytes: &[u8]| {
            let digits = digits(bytes);
            fs::write(blobs.join(&digits), bytes).expect("a blob");
            format!(r#"{{"digest":"sha256:{digits}","size":{}"#, bytes.len())
        };
        let plain: Vec<Vec<u8>> = layers.iter().map(|entries| archive(entries)).collect();
        let stored: Vec<String> = plain.iter().map(|plain| put(&packed(plain, packing)) + "}").collect();
        let ids: Vec<String> = plain.iter().map(|plain| format!(r#""sha256:{}""#, digits(plain))).collect();
        let config = format!(r#"{{"config":{{"Env":["A=b"]}},"rootfs":{{"diff_ids":[{}]}}}}"#, ids.join(","));
        let manifest =
            format!(r#"{{"config":{}}},"layers":[{}]}}"#, put(config.as_bytes()), stored.join(","));
        let name = r#""annotations":{"org.opencontainers.image.ref.name":"latest"}"#;
        let index = format!(r#"{{"manifests":[{},{name}}}]}}"#, put(manifest.as_bytes()));
        fs::write(folder.path().join("layout/index.json"), index).expect("an index");
        Written { folder, plain, config, lies: Cell::new(false) }
    }

    pub(crate) fn path(&self) -> &Path {
        self.folder.path()
    }

    /// Archives name files outside of themselves from now on.
    pub(crate) fn lie_about_layers(&self) {
        self.lies.set(true);
    }

    pub(crate) fn docker_archive(&self) -> PathBuf {
        let names: Vec<String> = (0..self.plain.len()).map(|number| format!("{number}/layer.tar")).collect();
        let listed: Vec<String> = names
            .iter()
            .map(|name| if self.lies.get() { format!(r#""../{name}""#) } else { format!(r#""{name}""#) })
            .collect();
        let list = format!(r#"[{{"Config":"c.json","RepoTags":["it:1"],"Layers":[{}]}}]"#, listed.join(","));
        let mut builder = tar::Builder::new(Vec::new());
        let mut add = |name: &str, bytes: &[u8]| {
            let mut header = tar::Header::new_gnu();
            header.set_size(bytes.len() as u64);
            builder.append_data(&mut header, name, bytes).expect("a member");
        };
        for (name, plain) in names.iter().zip(&self.plain) {
            add(name, plain);
        }
        add("c.json", self.config.as_bytes());
        add("manifest.json", list.as_bytes());
        let path = self.path().join("docker.tar");
        fs::write(&path, builder.into_inner().expect("an archive")).expect("written");
        path
    }

    pub(crate) fn layout_archive(&self) -> PathBuf {
        let mut builder = tar::Builder::new(Vec::new());
        builder.append_dir_all(".", self.path().join("layout")).expect("an archive");
        let path = self.path().join("layout.tar");
        fs::write(&path, builder.into_inner().expect("an archive")).expect("written");
        path
    }
}
