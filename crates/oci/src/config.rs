//! The configuration of an image: how whoever made it wants it to be run.

use serde::Deserialize;

/// What is read of an image's configuration.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Config {
    /// The program, and arguments that every command line has.
    pub entrypoint: Vec<String>,
    /// What follows unless the user names something else.
    pub cmd: Vec<String>,
    /// Variables with their values.
    pub env: Vec<(String, String)>,
    /// Where the command starts.
    pub working_dir: Option<String>,
    /// Who the command would be.
    pub user: Option<String>,
}

impl Config {
    /// Where an image that Esker has built keeps its configuration, as it came from the registry or archive.
    pub const PATH: &'static str = "/.esker/config.json";
    /// No configuration is longer; those of real images have a few kilobytes, most of it history.
    pub const LONGEST: u64 = 8 << 20;

    /// Reads a configuration in the form of OCI and Docker.
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
            // A name can't hold what separates it, and no program could be started with a zero byte.
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

/// Docker writes null where it means nothing.
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
    fn a_configuration_says_how_to_run() {
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
