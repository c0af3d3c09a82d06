//! Detects archives of container images by the names of their members.

/// Format of a container image in an archive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ContainerImage {
    /// Archive of `docker save` or `podman save`.
    Docker,
    /// An archive of an OCI layout.
    Oci,
}

/// Collects member names that distinguish a container image from a tree of files.
#[derive(Clone, Copy, Debug, Default)]
pub struct ContainerImageNames {
    manifest: bool,
    layout: bool,
    index: bool,
    layers: bool,
    others: bool,
}

impl ContainerImageNames {
    /// Records the path of an entry.
    pub fn note(&mut self, path: &[u8]) {
        match path {
            b"" => {}
            b"manifest.json" => self.manifest = true,
            b"oci-layout" => self.layout = true,
            b"index.json" => self.index = true,
            b"repositories" | b"blobs" | b"blobs/sha256" => {}
            path if path.starts_with(b"blobs/sha256/") => self.layers = true,
            path => match part_of_docker(path) {
                Some(is_layer) => self.layers |= is_layer,
                None => self.others = true,
            },
        }
    }

    /// Returns the format of the image, if the archive has the members of one and no others.
    pub fn image(&self) -> Option<ContainerImage> {
        match self {
            Self { others: true, .. } | Self { layers: false, .. } => None,
            Self { manifest: true, .. } => Some(ContainerImage::Docker),
            Self { layout: true, index: true, .. } => Some(ContainerImage::Oci),
            _ => None,
        }
    }
}

/// Returns whether a member of a Docker image archive is a layer; none if it can't be a member of one.
///
/// Members have the forms `NAME.json`, `NAME.tar`, `NAME`, `NAME/layer.tar`, `NAME/json` and `NAME/VERSION`.
fn part_of_docker(path: &[u8]) -> Option<bool> {
    let mut parts = path.split(|byte| *byte == b'/');
    match (parts.next()?, parts.next(), parts.next()) {
        (_, Some(b"layer.tar"), None) => Some(true),
        (_, Some(b"json" | b"VERSION"), None) => Some(false),
        (name, None, None) if name.ends_with(b".tar") => Some(true),
        (name, None, None) if name.ends_with(b".json") || !name.contains(&b'.') => Some(false),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn image(paths: &[&str]) -> Option<ContainerImage> {
        let mut names = ContainerImageNames::default();
        paths.iter().for_each(|path| names.note(path.as_bytes()));
        names.image()
    }

    #[test]
    fn container_images_are_distinguished_from_trees() {
        let digest = "ab".repeat(32);
        let (layer, config) = (format!("{digest}/layer.tar"), format!("{digest}.json"));
        assert_eq!(image(&["manifest.json", "repositories", &layer, &config]), Some(ContainerImage::Docker));
        let blob = format!("blobs/sha256/{digest}");
        let both = ["", "blobs", "blobs/sha256", &blob, "index.json", "manifest.json", "oci-layout"];
        assert_eq!(image(&both), Some(ContainerImage::Docker));
        assert_eq!(image(&["oci-layout", "index.json", &blob]), Some(ContainerImage::Oci));
        assert_eq!(image(&["0/layer.tar", "config.json", "manifest.json"]), Some(ContainerImage::Docker));
        assert_eq!(image(&["manifest.json", "index.html"]), None);
        assert_eq!(image(&["manifest.json", "config.json", "README"]), None);
        assert_eq!(image(&["manifest.json", &layer, "src/main.c"]), None);
        assert_eq!(image(&[]), None);
    }
}
