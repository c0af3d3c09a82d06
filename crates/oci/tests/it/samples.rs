//! Sample images in all supported formats, in a temporary folder.

use std::path::{Path, PathBuf};

use esker_testkit::container::{ContainerImage, Packing};
use serde_json::json;

pub(crate) struct SampleImages {
    folder: tempfile::TempDir,
    image: ContainerImage,
}

impl SampleImages {
    /// Writes the layout of an image whose layers have these paths, with the content of files or, after an
    /// arrow, the target of a link.
    pub(crate) fn new(layers: &[&[(&str, &str)]], packing: Packing) -> SampleImages {
        let folder = tempfile::tempdir().expect("a folder");
        let mut image = ContainerImage::new(json!({"Env": ["A=b"]}));
        for entries in layers {
            image = image.layer(packing, |layer| {
                for (path, content) in *entries {
                    match content.strip_prefix("-> ") {
                        Some(target) => layer.symlink(path, target),
                        None => layer.file(path, 0o644, content),
                    };
                }
            });
        }
        image.write_layout(&folder.path().join("layout"), "latest");
        SampleImages { folder, image }
    }

    /// Makes later archives name files outside of themselves.
    pub(crate) fn with_escaping_names(self) -> SampleImages {
        SampleImages { image: self.image.lying(), ..self }
    }

    pub(crate) fn path(&self) -> &Path {
        self.folder.path()
    }

    pub(crate) fn docker_archive(&self) -> PathBuf {
        let path = self.path().join("docker.tar");
        self.image.write_docker_archive(&path, "it:1");
        path
    }

    pub(crate) fn layout_archive(&self) -> PathBuf {
        let path = self.path().join("layout.tar");
        self.image.write_layout_archive(&path, "latest");
        path
    }
}
