//! Indexes and manifests in the formats of OCI and Docker.

use serde::Deserialize;

use crate::OciError;
use crate::digest::Digest;

/// Maximum length of a manifest or index in bytes; registries reject those above 4 MiB.
pub(crate) const LEN_MAX: u64 = 4 << 20;
/// Maximum nesting of indexes.
pub(crate) const DEPTH: usize = 4;

/// Reference to a blob by its digest.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Descriptor {
    pub(crate) digest: String,
    pub(crate) size: u64,
    #[serde(default)]
    platform: Option<Platform>,
    #[serde(default)]
    annotations: std::collections::BTreeMap<String, String>,
}

impl Descriptor {
    pub(crate) fn digest(&self) -> Result<Digest, OciError> {
        Digest::parse(&self.digest)
    }
}

#[derive(Clone, Debug, Deserialize)]
struct Platform {
    #[serde(default)]
    os: String,
    #[serde(default)]
    architecture: String,
    #[serde(default)]
    variant: String,
}

/// An image for one platform: its configuration and its layers, lowest first.
#[derive(Clone, Debug)]
pub(crate) struct Manifest {
    pub(crate) config: Descriptor,
    pub(crate) layers: Vec<Descriptor>,
}

/// Parsed content of a tag or digest.
pub(crate) enum Document {
    Manifest(Manifest),
    /// Images for several platforms, or with several names.
    Index(Vec<Descriptor>),
}

#[derive(Deserialize)]
struct Raw {
    #[serde(default)]
    config: Option<Descriptor>,
    #[serde(default)]
    layers: Option<Vec<Descriptor>>,
    #[serde(default)]
    manifests: Option<Vec<Descriptor>>,
}

impl Document {
    pub(crate) fn parse(what: &str, json: &[u8]) -> Result<Self, OciError> {
        let raw: Raw =
            serde_json::from_slice(json).map_err(|error| OciError::refused(what, error.to_string()))?;
        match raw {
            Raw { manifests: Some(manifests), .. } => Ok(Self::Index(manifests)),
            Raw { config: Some(config), layers: Some(layers), .. } => {
                Ok(Self::Manifest(Manifest { config, layers }))
            }
            _ => Err(OciError::refused(what, "it is neither an index nor a manifest of an image")),
        }
    }
}

/// Returns the architecture of this machine, as OCI names it.
pub(crate) fn own_architecture() -> &'static str {
    match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        "powerpc64" => "ppc64le",
        other => other,
    }
}

/// Selects the image of an index by tag, if one is given, and by architecture, where the index has one.
pub(crate) fn choose<'a>(
    what: &str,
    index: &'a [Descriptor],
    tag: Option<&str>,
    architecture: &str,
) -> Result<&'a Descriptor, OciError> {
    const NAME: &str = "org.opencontainers.image.ref.name";
    let named = |image: &&Descriptor| {
        tag.is_none_or(|tag| image.annotations.get(NAME).is_some_and(|name| name == tag))
    };
    let mut found: Vec<(u8, &Descriptor)> =
        index.iter().filter(named).filter_map(|image| Some((rank(image, architecture)?, image))).collect();
    // The sort is stable: the first of equally good images wins.
    found.sort_by_key(|(rank, _)| *rank);
    let best = found.first().map(|(rank, _)| *rank);
    let mut found = found.into_iter().filter(|(rank, _)| Some(*rank) == best).map(|(_, image)| image);
    let Some(first) = found.next() else {
        let all = index.iter().map(|image| {
            let name = image.annotations.get(NAME).map_or("", String::as_str);
            let platform = image.platform.as_ref().map_or("", |wanted| wanted.architecture.as_str());
            format!("{name} {platform}").trim().to_owned()
        });
        let all = all.collect::<Vec<_>>().join(", ");
        let tag = tag.unwrap_or("any");
        return Err(OciError::refused(
            what,
            format!("it has no image {tag} for linux/{architecture}, only: {all}"),
        ));
    };
    // Several images for one platform are distinguished by their names, if they have any.
    let is_another =
        |image: &Descriptor| image.digest != first.digest && image.annotations.contains_key(NAME);
    if tag.is_none() && found.any(is_another) {
        return Err(OciError::refused(what, "it has several images: name one of them, as in oci:FOLDER:TAG"));
    }
    Ok(first)
}

/// Returns how well an image fits this architecture, 0 is best; `None` if it doesn't fit.
fn rank(image: &Descriptor, architecture: &str) -> Option<u8> {
    // An image without a platform may be for any, so it is used only if no other fits.
    let Some(wanted) = &image.platform else { return Some(3) };
    if wanted.os != "linux" || wanted.architecture != architecture {
        return None;
    }
    match (architecture, wanted.variant.as_str()) {
        (_, "") | ("arm64", "v8") | ("amd64", "v1") => Some(0),
        // For newer processors than this machine may have.
        ("amd64", _) => None,
        _ => Some(1),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const INDEX: &str = r#"{"manifests":[
        {"digest":"sha256:a","size":1,"platform":{"os":"linux","architecture":"amd64"}},
        {"digest":"sha256:b","size":1,"platform":{"os":"linux","architecture":"arm64"}},
        {"digest":"sha256:c","size":1,"platform":{"os":"unknown","architecture":"unknown"}}]}"#;

    #[test]
    fn an_image_is_selected_by_platform_and_name() {
        let Document::Index(index) = Document::parse("it", INDEX.as_bytes()).expect("an index") else {
            panic!()
        };
        assert_eq!(choose("it", &index, None, "arm64").expect("one").digest, "sha256:b");
        let error = choose("it", &index, None, "riscv64").expect_err("none").to_string();
        assert!(error.contains("linux/riscv64") && error.contains("amd64, arm64"), "{error}");
        let names = r#"{"manifests":[
            {"digest":"sha256:a","size":1,"annotations":{"org.opencontainers.image.ref.name":"one"}},
            {"digest":"sha256:b","size":1,"annotations":{"org.opencontainers.image.ref.name":"two"}}]}"#;
        let Document::Index(index) = Document::parse("it", names.as_bytes()).expect("an index") else {
            panic!()
        };
        assert_eq!(choose("it", &index, Some("two"), "amd64").expect("one").digest, "sha256:b");
        choose("it", &index, None, "amd64").expect_err("which one");
    }

    #[test]
    fn variants_and_attestations_in_an_index_are_handled() {
        let chosen = |entries: &[(&str, &str)], architecture: &str| {
            let entry =
                |(digest, more): &(&str, &str)| format!(r#"{{"digest":"sha256:{digest}","size":1{more}}}"#);
            let entries = entries.iter().map(entry).collect::<Vec<_>>().join(",");
            let json = format!(r#"{{"manifests":[{entries}]}}"#);
            let Ok(Document::Index(index)) = Document::parse("it", json.as_bytes()) else { panic!("{json}") };
            choose("it", &index, None, architecture)
                .map(|found| found.digest.clone())
                .map_err(|error| error.to_string())
        };
        let of = |variant: &str, architecture: &str| {
            format!(r#","platform":{{"os":"linux","architecture":"{architecture}","variant":"{variant}"}}"#)
        };
        let (plain, third, eighth) = (of("", "amd64"), of("v3", "amd64"), of("v8", "arm64"));
        let both = [("a", third.as_str()), ("b", plain.as_str()), ("c", eighth.as_str()), ("d", "")];
        assert_eq!(chosen(&both, "amd64").expect("one"), "sha256:b");
        assert_eq!(chosen(&both, "arm64").expect("one"), "sha256:c");
        assert_eq!(chosen(&both, "s390x").expect("what doesn't say"), "sha256:d");
        assert_eq!(chosen(&[("a", &plain), ("b", &plain)], "amd64").expect("the first"), "sha256:a");
        assert!(chosen(&[("a", &third)], "amd64").expect_err("too new").contains("linux/amd64"));
        let windows = r#","platform":{"os":"windows","architecture":"amd64"}"#;
        assert!(chosen(&[("a", windows)], "amd64").is_err());
    }

    #[test]
    fn invalid_manifests_are_rejected() {
        for wrong in ["", "{}", "[]", r#"{"config":{"digest":"x"}}"#, r#"{"layers":[]}"#] {
            assert!(Document::parse("it", wrong.as_bytes()).is_err(), "{wrong}");
        }
    }
}
