//! Sources of an image, as the command line names them.

use std::fs;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use esker_oci::{Config, Image, Limits, OciError, Unpacking};
use esker_squashfs::writer::{Archive, Folder, Input, Subtree, WriteError};
use esker_store::StoreError;
use esker_vfs::Kind as NodeKind;

use super::layers::Layers;
use super::registry;
use super::write_error::of_write;
use crate::error::{Context, Failure, Kind, chain, of_store, warn};
use crate::output::size;
use crate::progress::ProgressMeter;
use crate::settings::SourceSettings;
use crate::trees::browse::Browsed;

/// Source of an image.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum ImageSource {
    /// An archive on standard input.
    Stdin,
    Folder(PathBuf),
    Archive(PathBuf),
    /// A file without a form prefix: an archive of files, not a container image.
    File(PathBuf),
    /// A layout of OCI, in a folder or an archive; perhaps one of several images in it.
    Layout(PathBuf, Option<String>),
    /// An archive written by `docker save`.
    Docker(PathBuf, Option<String>),
    /// An image in a registry: the text behind `docker://`.
    Registry(String),
    /// A folder of a repository.
    Repository(String),
}

/// Constructor of a form that has a path and optionally the name of an image.
type Form = fn(PathBuf, Option<String>) -> ImageSource;

const HINT: &str = "name a folder, a tar archive, - for one on standard input, oci:FOLDER, oci-archive:FILE, \
                    docker-archive:FILE, docker://NAME:TAG or a folder of a repository (URL:/path)";

impl ImageSource {
    /// Parses the argument. A form prefix always counts: a file named like one is written as `./oci:…`.
    pub(super) fn parse(text: &str) -> Result<Self, Failure> {
        if text == "-" {
            return Ok(Self::Stdin);
        }
        let forms: [(&str, Form); 3] =
            [("oci:", Self::Layout), ("oci-archive:", Self::Layout), ("docker-archive:", Self::Docker)];
        for (form, named) in forms {
            if let Some(rest) = text.strip_prefix(form) {
                let (path, tag) = path_and_tag(rest)?;
                return Ok(named(path, tag));
            }
        }
        if let Some(name) = text.strip_prefix("docker://") {
            return Ok(Self::Registry(name.to_owned()));
        }
        if let Some(path) = text.strip_prefix("tar:") {
            return Ok(Self::Archive(path.into()));
        }
        let path = Path::new(text);
        match fs::metadata(path) {
            Ok(meta) if meta.is_dir() => Ok(Self::Folder(path.into())),
            Ok(_) => Ok(Self::File(path.into())),
            Err(_) if text.contains(':') || text.contains('.') && !text.contains('/') => {
                Ok(Self::Repository(text.to_owned()))
            }
            Err(_) => Err(Failure::usage(format!("{text} is not there")).hint(HINT)),
        }
    }
}

/// Splits a path from the name of an image behind it: the longest existing path counts.
fn path_and_tag(text: &str) -> Result<(PathBuf, Option<String>), Failure> {
    let there = |path: &str| !path.is_empty() && Path::new(path).exists();
    if there(text) {
        return Ok((text.into(), None));
    }
    match text.split_once(':') {
        Some((path, tag)) if there(path) && !tag.is_empty() => Ok((path.into(), Some(tag.to_owned()))),
        _ => Err(Failure::usage(format!("{text} is not there")).hint(HINT)),
    }
}

/// Parameters for opening a source.
pub(super) struct Opening<'o> {
    pub(super) sources: SourceSettings,
    pub(super) xattrs: bool,
    /// Folder for unpacked layers: beside the image, where room is needed anyway.
    pub(super) beside: &'o Path,
    pub(super) stop: &'o Arc<AtomicBool>,
    /// True if registries are accessed over http.
    pub(super) insecure: bool,
    pub(super) meter: &'o mut ProgressMeter,
    /// Files that the image omits, because they are its own output.
    pub(super) leave_out: Vec<fs::Metadata>,
}

/// An open input.
pub(super) struct Source {
    input: Box<dyn Input>,
    /// Open repository, needed while the source is read.
    _browsed: Option<Browsed>,
}

impl Source {
    pub(super) fn input(&mut self) -> &mut dyn Input {
        &mut *self.input
    }
}

impl ImageSource {
    pub(super) fn open(&self, opening: Opening<'_>) -> Result<Source, Failure> {
        let of = |input: Box<dyn Input>| Source { input, _browsed: None };
        let refused = |error| of_write("no image was made", &error);
        Ok(match self {
            Self::Stdin => {
                let mut archive = of_stdin().map_err(refused)?;
                archive.refuse_container_images();
                of(Box::new(archive))
            }
            Self::Archive(path) if path.as_os_str() == "-" => of(Box::new(of_stdin().map_err(refused)?)),
            Self::Archive(path) => of(Box::new(Archive::open(path).map_err(refused)?)),
            Self::File(path) => {
                let mut archive = Archive::open(path).map_err(refused)?;
                archive.refuse_container_images();
                of(Box::new(archive))
            }
            Self::Folder(path) => {
                let folder = Folder::open(path, opening.xattrs);
                let mut folder = folder.context(Kind::Usage, format!("can't open {}", path.display()))?;
                opening.leave_out.iter().for_each(|file| folder.leave_out(file));
                of(Box::new(folder))
            }
            Self::Layout(path, tag) => {
                of(Box::new(merged(&Image::in_layout(path, tag.as_deref()).map_err(of_oci)?, opening)?))
            }
            Self::Docker(path, tag) => {
                let image = Image::in_docker_archive(path, tag.as_deref()).map_err(of_oci)?;
                of(Box::new(merged(&image, opening)?))
            }
            Self::Registry(name) => {
                let image = registry::open(name, opening.insecure, &opening)?;
                of(Box::new(merged(&image, opening)?))
            }
            Self::Repository(place) => of_repository(place, &opening)?,
        })
    }
}

fn of_stdin() -> Result<Archive, WriteError> {
    Archive::of_stream("standard input".to_owned(), Box::new(std::io::stdin()))
}

fn of_repository(place: &str, opening: &Opening<'_>) -> Result<Source, Failure> {
    let place = opening.sources.place(place.to_owned());
    let browsed = Browsed::open(&place, opening.sources.user())?;
    let top = browsed.walk().resolve(browsed.path(), true)?;
    if top.attr.kind != NodeKind::Directory {
        return Err(Failure::usage(format!("{} is not a directory", browsed.describe())));
    }
    let input = Box::new(Subtree::new(browsed.tree(), top));
    Ok(Source { input, _browsed: Some(browsed) })
}

/// Unpacks the layers and merges them in order.
fn merged(image: &Image, opening: Opening<'_>) -> Result<Layers, Failure> {
    let Opening { beside, stop, meter, .. } = opening;
    let config = Config::parse(&image.config);
    let config = config.context(Kind::Damaged, "can't read the configuration of the container image")?;
    let mut told = |now: Unpacking| {
        meter.say(|| format!("layer {} of {}: {} read", now.layer, now.layers, size(now.bytes)));
        if stop.load(Ordering::Relaxed) { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    };
    let merged = image.merge(beside, &Limits::default(), &mut told).map_err(of_oci)?;
    if let Some(user) = config.user.filter(|user| !["0", "root", "0:0", "root:root"].contains(&user.as_str()))
    {
        warn(Some(&format!("the image wants to run as {user}: `esker run` runs it as the calling user")));
    }
    Ok(Layers::new(merged, image.config.clone()))
}

pub(super) fn of_oci(error: OciError) -> Failure {
    let what = "no image was made";
    if let OciError::Io { what: doing, source } = &error
        && let Some(error) = source.get_ref().and_then(|source| source.downcast_ref::<StoreError>())
    {
        return of_store(&format!("{what}: can't {doing}"), error);
    }
    if let OciError::Io { what: doing, source } = &error
        && let Some(refused) = source.get_ref().and_then(|source| source.downcast_ref::<registry::Refused>())
    {
        let told = format!("{what}: can't {doing}: {refused}");
        return Failure::new(Kind::Network, told).hint(refused.hint.clone());
    }
    match error {
        OciError::Interrupted => Failure::new(Kind::Interrupted, format!("{what}: interrupted")),
        OciError::Digest { .. } => Failure::new(Kind::Damaged, format!("{what}: {}", chain(&error)))
            .hint("fetch the container image again"),
        OciError::Refused { .. } | OciError::Archive { .. } => {
            Failure::new(Kind::Damaged, format!("{what}: {}", chain(&error)))
        }
        OciError::Io { .. } => Failure::failed(format!("{what}: {}", chain(&error))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_form_of_an_argument_decides_its_kind() {
        let folder = std::env::temp_dir();
        let path = folder.display();
        let is = |text: &str| ImageSource::parse(text).expect(text);
        assert_eq!(is("-"), ImageSource::Stdin);
        assert_eq!(is("tar:-"), ImageSource::Archive("-".into()));
        assert_eq!(is("tar:a.tar"), ImageSource::Archive("a.tar".into()));
        assert_eq!(is(&path.to_string()), ImageSource::Folder(folder.clone()));
        assert_eq!(is(&format!("oci:{path}")), ImageSource::Layout(folder.clone(), None));
        assert_eq!(is(&format!("oci:{path}:v1")), ImageSource::Layout(folder.clone(), Some("v1".into())));
        let named = ImageSource::Docker(folder.clone(), Some("it:v1".into()));
        assert_eq!(is(&format!("docker-archive:{path}:it:v1")), named);
        assert_eq!(is("sw.example.org:/gcc"), ImageSource::Repository("sw.example.org:/gcc".into()));
        assert_eq!(is("docker://h.example/a:1"), ImageSource::Registry("h.example/a:1".into()));
        for wrong in ["oci:", "oci:./none", "docker-archive:./none:it", "./none"] {
            assert!(ImageSource::parse(wrong).is_err(), "{wrong}");
        }
    }
}
