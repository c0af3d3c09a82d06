//! Values of the options for containers: paths of this host, mounts and variables.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::os::unix::ffi::OsStringExt;
use std::path::{Component, Path, PathBuf};

use esker_run::container::{Mount, What};
use esker_run::launch::{LaunchOptions, WantedRules};

use super::ContainerArgs;
use super::binds::{self, Bind};
use crate::error::{Context, Failure, Kind};

/// Directories of the host that the kernel fills, where nothing can be shown.
const OF_THE_KERNEL: [&str; 3] = ["proc", "sys", "dev"];

impl ContainerArgs {
    /// Returns the options of a command, which is that of the image if `is_default`.
    pub(super) fn options(&self, is_default: bool) -> Result<LaunchOptions, Failure> {
        if let Some(at) = &self.at {
            self.check_at(at, is_default)?;
        }
        Ok(LaunchOptions {
            home: self.home.as_deref().map(home).transpose()?,
            mounts: asked(&self.bind)?,
            at: self.at.clone(),
            writable: self.writable_tmpfs,
            variables: self.asked_variables()?,
            clean: self.cleanenv,
            no_home: self.no_home,
            no_bind: self.no_bind,
            contained: self.contained(),
            ids: self.ids(),
            directory: self.pwd.clone(),
            fakeroot: self.fakeroot,
            entrypoint: self.entrypoint,
            rules: self.rules(),
        })
    }

    fn rules(&self) -> Vec<WantedRules> {
        let gpu = self.gpu.then(|| ("gpu".to_owned(), "--gpu"));
        let mpi = self.mpi.then(|| ("mpi".to_owned(), "--mpi"));
        let hooks = self.hook.iter().map(|name| (name.clone(), "--hook"));
        let all = gpu.into_iter().chain(mpi).chain(hooks);
        all.map(|(name, option)| WantedRules { name, option }).collect()
    }

    fn check_at(&self, at: &Path, is_default: bool) -> Result<(), Failure> {
        let wrong = |reason: &str| Failure::usage(format!("--at {}: {reason}", at.display()));
        if let Some(option) = self.for_own_root() {
            return Err(Failure::usage(format!(
                "{option} is for an image as the root directory, and --at shows it in the host's"
            ))
            .hint("leave out one of them; --bind, --env, --cleanenv, --pwd and --fakeroot work with --at"));
        }
        if !at.is_absolute() || at.components().any(|part| part == Component::ParentDir) {
            return Err(wrong("it is not an absolute path without ..").hint("as in --at /opt/stack"));
        }
        match at.components().nth(1) {
            None => Err(wrong("that is the root directory")
                .hint("leave out --at to have the image as the root directory")),
            Some(Component::Normal(first)) if OF_THE_KERNEL.iter().any(|name| OsStr::new(name) == first) => {
                Err(wrong("the kernel has that directory").hint("as in --at /opt/stack"))
            }
            _ if is_default => Err(Failure::usage("a COMMAND is missing")
                .hint("as in: esker run IMAGE --at /opt/stack -- /opt/stack/bin/tool")),
            _ => Ok(()),
        }
    }

    /// Returns the variables that `--env` sets.
    fn asked_variables(&self) -> Result<Vec<(OsString, OsString)>, Failure> {
        let pair = |text: &OsString| {
            let bytes = text.clone().into_vec();
            let at = bytes.iter().position(|byte| *byte == b'=').filter(|at| *at > 0)?;
            let (name, value) = bytes.split_at(at);
            Some((OsString::from_vec(name.to_vec()), OsString::from_vec(value.get(1..)?.to_vec())))
        };
        let wrong = |text: &OsString| {
            Failure::usage(format!("--env {}: it is not NAME=VALUE", text.display()))
                .hint("as in --env LANG=C.UTF-8")
        };
        self.env.iter().map(|text| pair(text).ok_or_else(|| wrong(text))).collect()
    }
}

/// Returns the mounts that the user requested.
fn asked(values: &[OsString]) -> Result<Vec<Mount>, Failure> {
    let mut mounts = Vec::new();
    for value in values {
        for bind in binds::parse(value)? {
            mounts.push(mount(bind, value)?);
        }
    }
    Ok(mounts)
}

/// Reads the value of `--home`: a directory of this host, and its target.
fn home(value: &OsStr) -> Result<(PathBuf, Option<PathBuf>), Failure> {
    let (from, target) = binds::source_and_target("--home", value)?;
    Ok((existing("--home", &from)?, target))
}

fn mount(bind: Bind, value: &OsStr) -> Result<Mount, Failure> {
    let Bind { source, target, options } = bind;
    let from = existing("--bind", &source).map_err(|failure| {
        let has_comma = value.as_encoded_bytes().contains(&b',');
        if has_comma {
            failure.hint(
                "name a file or directory of this host; a comma that belongs to a path is written as \\,",
            )
        } else {
            failure
        }
    })?;
    let target = match target {
        Some(target) => target,
        None => std::path::absolute(&source).context(Kind::Usage, format!("--bind {}", source.display()))?,
    };
    if target == Path::new("/") {
        return Err(Failure::usage(format!("--bind {}: the root directory is the image", value.display()))
            .hint("name a directory for it, as in --bind /:/host"));
    }
    Ok(Mount::asked(target, What::Bind { from, options }))
}

fn existing(option: &str, path: &Path) -> Result<PathBuf, Failure> {
    fs::canonicalize(path).map_err(|error| {
        Failure::failed(format!("{option} {}: {error}", path.display()))
            .hint("name a file or directory of this host")
    })
}

#[cfg(test)]
mod tests {
    use esker_run::container::BindOptions;

    use super::*;

    #[test]
    fn binds_become_mounts() {
        let read = |text: &str| asked(&[text.into()]);
        let mount = |from: &str, target: &str, options| {
            Mount::asked(target, What::Bind { from: from.into(), options })
        };
        let (plain, read_only) = (BindOptions::default(), BindOptions::READ_ONLY);
        assert_eq!(read("/proc").expect("a bind"), [mount("/proc", "/proc", plain)]);
        assert_eq!(read("/proc/../proc:/p:ro").expect("a bind"), [mount("/proc", "/p", read_only)]);
        let two = [mount("/proc", "/p", read_only), mount("/sys", "/sys", plain)];
        assert_eq!(read("/proc:/p:ro,z,/sys").expect("two binds"), two);
        let relative = std::path::absolute("src").expect("a path");
        let from = fs::canonicalize("src").expect("this crate's folder");
        assert_eq!(
            read("src").expect("a bind"),
            [Mount::asked(relative, What::Bind { from, options: plain })]
        );
        assert_eq!(read("/").expect_err("the root").code(), 2);
        assert!(read("/no/such/place").expect_err("missing").message.contains("/no/such/place"));
        let told = read("/no/such,place").expect_err("missing");
        assert!(told.hint.expect("a hint").contains("\\,"), "{}", told.message);
    }
}
