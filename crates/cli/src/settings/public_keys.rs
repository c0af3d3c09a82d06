//! Reads the public keys of repositories, which the command line or the configuration names.

use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};

use esker_config::{Parameters, Root};
use esker_format::master_keys::MasterKeys;
use esker_format::name::RepositoryName;
use esker_store::open_named;

use super::args::RepositoryArgs;
use super::configuration::of_parameter;
use super::folders::Settings;
use crate::error::{Context, Failure, Kind};

/// Maximum number of public keys read from a folder.
const KEYS_MAX: usize = 100;
/// Longest public key file.
const KEY_LEN_MAX: u64 = 64 * 1024;

/// Reads the master keys for a repository as PEM texts.
pub(crate) fn public_keys(
    named: &[PathBuf],
    repository: &str,
    settings: &Settings,
) -> Result<Vec<(PathBuf, Vec<u8>)>, Failure> {
    let mut files = Vec::new();
    if named.is_empty() {
        if !settings.keys.is_dir() {
            return Err(Failure::usage(format!("there is no public key for {repository}"))
                .hint("name the repository's master key with --public-key FILE"));
        }
        collect_keys(&settings.keys, repository, &mut files)?;
    }
    for path in named {
        if path.is_dir() {
            collect_keys(path, repository, &mut files)?;
        } else {
            files.push(path.clone());
        }
    }
    files.into_iter().map(|path| read_key(&path).map(|text| (path, text))).collect()
}

fn read_key(path: &Path) -> Result<Vec<u8>, Failure> {
    let failed = |why: String| {
        Failure::usage(format!("can't read the public key {}: {why}", path.display()))
            .hint("name the repository's master key with --public-key FILE")
    };
    let mut text = Vec::new();
    open_named(path)
        .and_then(|file| file.take(KEY_LEN_MAX + 1).read_to_end(&mut text))
        .map_err(|error| failed(error.to_string()))?;
    if text.len() as u64 > KEY_LEN_MAX {
        return Err(failed("it is too large for a key".into()));
    }
    Ok(text)
}

/// Collects the keys in a folder: those of the repository's domain if it has a folder for it (as CernVM-FS arranges
/// them), otherwise all.
fn collect_keys(folder: &Path, repository: &str, files: &mut Vec<PathBuf>) -> Result<(), Failure> {
    let domain = repository.split_once('.').map(|(_, domain)| folder.join(domain));
    let own = folder.join(format!("{repository}.pub"));
    let before = files.len();
    if own.is_file() {
        files.push(own);
    }
    for folder in domain.iter().map(PathBuf::as_path).chain([folder]) {
        if files.len() == before && folder.is_dir() {
            list_keys(folder, files)?;
        }
    }
    if files.len() == before {
        return Err(Failure::usage(format!("{} has no public key (*.pub) in it", folder.display()))
            .hint("name the repository's master key with --public-key FILE"));
    }
    files.truncate(before + KEYS_MAX);
    Ok(())
}

fn list_keys(folder: &Path, files: &mut Vec<PathBuf>) -> Result<(), Failure> {
    let failed = |error: std::io::Error| {
        Failure::new(Kind::Usage, format!("can't read the keys folder {}: {error}", folder.display()))
    };
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).map_err(failed)? {
        let path = entry.map_err(failed)?.path();
        if path.extension().is_some_and(|extension| extension == "pub") && path.is_file() {
            found.push(path);
        }
    }
    found.sort();
    files.append(&mut found);
    Ok(())
}

/// Reads the keys of a configured repository; keys on the command line replace those of the configuration.
pub(super) fn configured(
    parameters: &Parameters,
    args: &RepositoryArgs,
    name: &RepositoryName,
    settings: &Settings,
    root: &Root,
) -> Result<Vec<(PathBuf, Vec<u8>)>, Failure> {
    if !args.public_key.is_empty() {
        return public_keys(&args.public_key, name.as_str(), settings);
    }
    let keys = parameters.keys().map_err(of_parameter)?;
    let paths: Vec<PathBuf> = keys.paths.iter().map(|path| root.place(path)).collect();
    public_keys(&paths, name.as_str(), settings).map_err(|failure| {
        let from = keys.from.map(|(parameter, origin)| format!("{parameter} is set in {origin}; "));
        let from = from.unwrap_or_else(|| "neither CVMFS_PUBLIC_KEY nor CVMFS_KEYS_DIR is set; ".into());
        let message = format!("there is no public key for {name}: {}", failure.message);
        Failure::usage(message)
            .hint(format!("{from}put the key there (its publisher has it), or use --public-key FILE"))
    })
}

/// Joins the keys that may sign a repository.
pub(crate) fn master_keys(texts: Vec<(PathBuf, Vec<u8>)>) -> Result<MasterKeys, Failure> {
    let mut keys: Option<MasterKeys> = None;
    for (path, text) in texts {
        let added = match &mut keys {
            Some(keys) => keys.add(&text),
            None => MasterKeys::parse(&text).map(|first| keys = Some(first)),
        };
        added.context(Kind::Usage, format!("{} can't be used as a public key", path.display()))?;
    }
    keys.ok_or_else(|| Failure::usage("there is no public key"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_come_from_a_file_a_folder_or_the_folder_of_the_domain() {
        let base = tempfile::tempdir().expect("a directory");
        let settings = Settings::for_tests(base.path());
        let write = |name: &str, text: &str| {
            let path = base.path().join(name);
            fs::create_dir_all(path.parent().expect("a parent")).expect("mkdir");
            fs::write(&path, text).expect("write");
            path
        };
        let file = write("alone.key", "alone");
        write("keys/b.pub", "b");
        write("keys/a.pub", "a");
        write("keys/notes.txt", "no key");
        write("keys/example.org/x.pub", "x");
        write("keys/mine.test.pub", "mine");
        let keys = |path: &Path, name: &str| {
            let keys = public_keys(&[path.to_owned()], name, &settings).expect("keys");
            keys.iter().map(|(_, key)| String::from_utf8_lossy(key).into_owned()).collect::<Vec<_>>()
        };
        let folder = base.path().join("keys");
        assert_eq!(keys(&file, "sw.example.org"), ["alone"]);
        assert_eq!(keys(&folder, "sw.example.org"), ["x"]);
        assert_eq!(keys(&folder, "mine.test"), ["mine"]);
        assert_eq!(keys(&folder, "other.test"), ["a", "b", "mine"]);
        let none = public_keys(&[base.path().join("absent")], "a.test", &settings);
        assert_eq!(none.expect_err("absent").kind, Kind::Usage);
    }
}
