//! Configuration of a container image: how its author wants it to be run.

use serde::Deserialize;

/// Fields of an image's configuration that Esker uses.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Config {
    /// Program, with the arguments that every command line has.
    pub entrypoint: Vec<String>,
    /// Default arguments of the command.
    pub cmd: Vec<String>,
    /// Environment variables with their values.
    pub env: Vec<(String, String)>,
    /// Working directory of the command.
    pub working_dir: Option<String>,
    /// User of the command.
    pub user: Option<String>,
}

impl Config {
    /// Path of the configuration in an image that Esker built, as the registry or archive had it.
    pub const PATH: &'static str = "/.esker/config.json";
    /// Maximum length of a configuration in bytes; real images have a few kilobytes, mostly history.
    pub const LEN_MAX: u64 = 8 << 20;

    /// Parses a configuration in the format of OCI and Docker.
    pub fn parse(json: &[u8]) -> Result<Self, serde_json::Error> {
        let file: File = serde_json::from_slice(json)?;
        let run = file.config.unwrap_or_default();
        let pair = |line: String| match line.split_once('=') {
            Some((name, value)) => (name.to_owned(), value.to_owned()),
            None => (line, String::new()),
        };
        let said = |text: Option<String>| text.filter(|text| !text.is_empty());
        Ok(Self {
            entrypoint: run.entrypoint.unwrap_or_default(),
            cmd: run.cmd.unwrap_or_default(),
            // A name can't contain `=`, and a zero byte would make every program start fail.
            env: run
                .env
                .unwrap_or_default()
                .into_iter()
                .map(pair)
                .filter(|(name, value)| !name.is_empty() && !name.contains('\0') && !value.contains('\0'))
                .collect(),
            working_dir: said(run.working_dir),
            user: said(run.user),
        })
    }
}

#[derive(Deserialize)]
struct File {
    #[serde(default)]
    config: Option<Run>,
}

/// Docker writes null for empty values.
#[derive(Default, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
struct Run {
    entrypoint: Option<Vec<String>>,
    cmd: Option<Vec<String>>,
    env: Option<Vec<String>>,
    working_dir: Option<String>,
    user: Option<String>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entrypoint_variables_directory_and_user_are_parsed() {
        let json = br#"{"architecture":"amd64","config":{"Entrypoint":["/init"],"Cmd":null,
            "Env":["PATH=/a:/b","EMPTY","=x"],"WorkingDir":"/w","User":""},"rootfs":{}}"#;
        let config = Config::parse(json).expect("a configuration");
        assert_eq!(config.entrypoint, ["/init"]);
        assert!(config.cmd.is_empty() && config.user.is_none());
        assert_eq!(config.env, [("PATH".into(), "/a:/b".into()), ("EMPTY".into(), String::new())]);
        assert_eq!(config.working_dir.as_deref(), Some("/w"));
        assert_eq!(Config::parse(b"{}").expect("none"), Config::default());
        assert!(Config::parse(b"[1]").is_err() && Config::parse(b"").is_err());
    }
}
