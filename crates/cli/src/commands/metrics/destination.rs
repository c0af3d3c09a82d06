//! Defines the destinations of metrics.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use esker_store::{Authorities, Poster, RealDisk};

use super::asker::Wish;
use super::{Source, of_store};
use crate::error::{Context, Failure, Kind};

/// Destination of metrics.
pub(super) enum Destination {
    /// A file in the text form of Prometheus, which is replaced as a whole.
    File(PathBuf),
    /// An OpenTelemetry collector.
    Collector(Box<Poster>),
}

impl Destination {
    /// Returns the destination of a file. node_exporter reads only names that end with `.prom`.
    pub(super) fn file(path: &Path) -> Result<Self, Failure> {
        if path.extension().is_none_or(|extension| extension != "prom") {
            return Err(Failure::usage(format!(
                "--textfile {}: the name doesn't end with .prom",
                path.display()
            ))
            .hint("node_exporter reads no other file of its folder: name it esker.prom"));
        }
        let path = std::path::absolute(path)
            .context(Kind::Usage, format!("--textfile {} can't be used", path.display()))?;
        Ok(Self::File(path))
    }

    /// Returns the destination of a collector, which is trusted by these certificates, too.
    pub(super) fn collector(url: &str, authorities: &[String]) -> Result<Self, Failure> {
        let authorities = Authorities { paths: authorities.to_vec(), ..Authorities::default() };
        let poster = Poster::new(url, authorities).map_err(|error| {
            of_store(&error).hint("name the whole URL, such as http://collector:4318/v1/metrics")
        })?;
        Ok(Self::Collector(Box::new(poster)))
    }

    pub(super) fn write(&self, source: &Source) -> Result<(), Failure> {
        match (self, source) {
            // The folder is one of the asker's user.
            (Self::File(_), Source::Asked(asker)) => asker.ask(Wish::File).map(drop),
            (Self::File(path), Source::Here(_)) => replace_file(path, source.text()?.as_bytes())
                .context(Kind::Failed, format!("can't write {}", path.display())),
            (Self::Collector(poster), _) => {
                poster.post("application/json", source.message()?).map_err(|error| of_store(&error))
            }
        }
    }
}

/// Replaces a file that other users read. No name that node_exporter reads is incomplete at any time, also not that of
/// an unfinished file.
fn replace_file(path: &Path, text: &[u8]) -> io::Result<()> {
    let new = path.with_extension("prom.new");
    esker_store::replace(&RealDisk::SERVED, &new, text)?;
    fs::rename(&new, path).inspect_err(|_| drop(fs::remove_file(&new)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_replaced_and_nothing_is_left_beside_it() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("esker.prom");
        let destination = Destination::file(&path).expect("a file");
        let settings = crate::settings::Settings::for_tests(folder.path());
        let names = super::super::Names::Esker;
        let patience = std::time::Duration::from_secs(1);
        let source = Source::Here(super::super::Reader::new(names, patience, &settings));
        for _ in 0..2 {
            destination.write(&source).expect("written");
        }
        let names: Vec<_> = fs::read_dir(folder.path()).expect("a folder").collect();
        assert_eq!(names.len(), 1, "{names:?}");
        assert!(Destination::file(&folder.path().join("esker.txt")).is_err());
    }
}
