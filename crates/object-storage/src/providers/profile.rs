//! Reads profiles of `~/.aws/credentials` and `~/.aws/config`.

use esker_store::StorageProblem;
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use crate::settings::Environment;

/// Maximum size of a file of profiles.
const FILE_MAX: u64 = 1 << 20;
/// Profile that is used if none is named.
const DEFAULT: &str = "default";
/// Settings that other programs turn into credentials.
const FOREIGN: [&str; 3] = ["credential_process", "sso_session", "sso_start_url"];

/// Settings of a profile.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Profile(BTreeMap<String, String>);

impl Profile {
    /// Reads the profile that a setting or `AWS_PROFILE` names. One that is named must exist.
    pub(super) fn read(named: Option<&str>, environment: &Environment) -> Result<Self, StorageProblem> {
        let named = named.or_else(|| environment.get("AWS_PROFILE"));
        let name = named.unwrap_or(DEFAULT);
        let mut found = BTreeMap::new();
        let mut exists = false;
        for path in Self::files(environment).into_iter().flatten() {
            let text = read_text(&path).map_err(|error| {
                StorageProblem::NoCredentials(format!("reading {} failed: {error}", path.display()))
            })?;
            if let Some(settings) = section(&text, name) {
                exists = true;
                found.extend(settings);
            }
        }
        match named {
            Some(name) if !exists => {
                Err(StorageProblem::NoCredentials(format!("the profile `{name}` is in no file of profiles")))
            }
            _ => Ok(Self(found)),
        }
    }

    /// Returns the files of profiles. Credentials are last, and win over the configuration.
    pub(super) fn files(environment: &Environment) -> [Option<PathBuf>; 2] {
        let home = environment.get("HOME").map(PathBuf::from);
        [("AWS_CONFIG_FILE", "config"), ("AWS_SHARED_CREDENTIALS_FILE", "credentials")].map(
            |(variable, file)| {
                let own = environment.get(variable).map(PathBuf::from);
                own.or_else(|| Some(home.as_ref()?.join(".aws").join(file)))
            },
        )
    }

    /// Returns a setting.
    pub(super) fn get(&self, name: &str) -> Option<&str> {
        self.0.get(name).map(String::as_str).filter(|value| !value.is_empty())
    }

    /// Returns key and secret, if the profile has them.
    pub(super) fn key(&self) -> Option<(&str, &str)> {
        Some((self.get("aws_access_key_id")?, self.get("aws_secret_access_key")?))
    }

    /// Returns the setting for which another program is needed.
    pub(super) fn needs_program(&self) -> Option<&str> {
        FOREIGN.into_iter().find(|name| self.get(name).is_some())
    }
}

/// Returns the text of a file, which is empty if it is missing.
fn read_text(path: &Path) -> io::Result<String> {
    let mut text = String::new();
    match File::open(path) {
        Ok(file) => file.take(FILE_MAX).read_to_string(&mut text)?,
        Err(error) if error.kind() == io::ErrorKind::NotFound => 0,
        Err(error) => return Err(error),
    };
    Ok(text)
}

/// Returns the settings of a profile in a text; indented ones belong to the setting above, and have its name as a prefix.
fn section(text: &str, profile: &str) -> Option<BTreeMap<String, String>> {
    let mut found: Option<BTreeMap<String, String>> = None;
    let mut is_wanted = false;
    let mut above = String::new();
    for line in text.lines() {
        let content = line.trim();
        if content.is_empty() || content.starts_with(['#', ';']) {
            continue;
        }
        if let Some(name) = content.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
            let name = name.0.trim();
            is_wanted = name.strip_prefix("profile ").unwrap_or(name).trim() == profile;
            if is_wanted {
                found.get_or_insert_default();
            }
            continue;
        }
        let Some((name, value)) = content.split_once('=') else { continue };
        let (name, value) = (name.trim().to_ascii_lowercase(), value.trim().to_owned());
        let is_nested = line.starts_with([' ', '\t']);
        let name = if is_nested { format!("{above}.{name}") } else { name };
        if !is_nested {
            above.clone_from(&name);
        }
        if is_wanted && let Some(found) = &mut found {
            found.insert(name, value);
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn environment(folder: &Path, more: &[(&str, &str)]) -> Environment {
        let home = folder.display().to_string();
        let all = more.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
        all.chain([("HOME".to_owned(), home)]).collect()
    }

    #[test]
    fn a_profile_has_the_settings_of_both_files() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::create_dir(folder.path().join(".aws")).unwrap();
        let write =
            |name: &str, text: &str| std::fs::write(folder.path().join(".aws").join(name), text).unwrap();
        write(
            "config",
            "[default]\nregion=here\n[profile lab] ; a comment\nregion = there\ns3 =\n  addressing_style = path\n\
             endpoint_url = http://lab\n",
        );
        write(
            "credentials",
            "[default]\naws_access_key_id=D\n[lab]\nAWS_ACCESS_KEY_ID = L\naws_secret_access_key=a=b\n",
        );
        let of_default = Profile::read(None, &environment(folder.path(), &[])).unwrap();
        assert_eq!((of_default.get("region"), of_default.key()), (Some("here"), None));
        for (named, variable) in [(Some("lab"), ""), (None, "lab"), (Some("lab"), "other")] {
            let profile =
                Profile::read(named, &environment(folder.path(), &[("AWS_PROFILE", variable)])).unwrap();
            assert_eq!(profile.key(), Some(("L", "a=b")));
            assert_eq!(profile.get("s3.addressing_style"), Some("path"));
            assert_eq!(profile.get("endpoint_url"), Some("http://lab"));
        }
        let missing = Profile::read(Some("none"), &environment(folder.path(), &[])).unwrap_err();
        assert!(missing.to_string().contains("`none`"), "{missing}");
    }

    #[test]
    fn a_profile_that_another_program_serves_is_recognised() {
        let text = "[default]\ncredential_process = /bin/x\n";
        let profile = Profile(section(text, "default").unwrap());
        assert_eq!(profile.needs_program(), Some("credential_process"));
    }

    #[test]
    fn missing_files_are_an_empty_profile() {
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(Profile::read(None, &environment(folder.path(), &[])), Ok(Profile::default()));
    }

    proptest::proptest! {
        #[test]
        fn any_text_is_read(text in "\\PC*(\n\\PC*)*") {
            section(&text, "default");
        }
    }
}
