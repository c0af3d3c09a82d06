//! Entry points for mount(8), umount(8), fstab, systemd and automounters.
//!
//! ```text
//!  mount.esker  SPEC DIR [-sfnv] [-o OPTIONS]     SPEC as for `esker mount`: a URL, a name
//!  mount.cvmfs  [PATH/]NAME DIR [-sfnv] [-o …]    like the helper of CernVM-FS
//!  umount.esker DIR [-flnrv]
//! ```
//!
//! Each becomes the command line of `esker mount` or `esker umount`, and ends with the codes of mount(8).

mod options;

use std::ffi::{OsStr, OsString};
use std::path::Path;
use std::process::ExitCode;

use clap::{CommandFactory, Parser};
use esker_format::name::RepositoryName;
use esker_node::mounts;

use crate::Esker;
use crate::error::{Context, Failure, Kind, warn};
use crate::output::Output;
use crate::suggest;
use options::Translated;

/// Helper by the program's name.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Helper {
    Mount(HelperKind),
    Umount,
}

/// Program whose mount helper is called.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum HelperKind {
    Esker,
    CernVmFs,
}

/// The codes of mount(8).
const WRONG_CALL: u8 = 1;
const INTERRUPTED: u8 = 8;
const MOUNT_FAILED: u8 = 32;

impl Helper {
    /// Returns the helper for a program's name.
    pub(crate) fn called_as(program: &OsStr) -> Option<Self> {
        match Path::new(program).file_name()?.to_str()? {
            "mount.esker" | "mount.fuse.esker" => Some(Helper::Mount(HelperKind::Esker)),
            "mount.cvmfs" => Some(Helper::Mount(HelperKind::CernVmFs)),
            "umount.esker" | "umount.fuse.esker" => Some(Helper::Umount),
            _ => None,
        }
    }

    /// Runs the mount helper.
    pub(crate) fn run(self, arguments: Vec<OsString>) -> ExitCode {
        let outcome = match self {
            Helper::Mount(flavour) => mount(flavour, arguments),
            Helper::Umount => umount(arguments),
        };
        match outcome {
            Ok(()) => ExitCode::SUCCESS,
            Err(failure) => {
                let code = match failure.kind {
                    Kind::Usage => WRONG_CALL,
                    Kind::Interrupted => INTERRUPTED,
                    _ => MOUNT_FAILED,
                };
                failure.with_code(code).report()
            }
        }
    }
}

/// Arguments of mount(8) and umount(8) for their helpers.
#[derive(Debug, Default, PartialEq, Eq)]
struct Call {
    places: Vec<OsString>,
    options: Vec<String>,
    sloppy: bool,
    fake: bool,
    verbose: bool,
    lazy: bool,
    help: bool,
}

impl Call {
    fn parse(arguments: Vec<OsString>) -> Result<Self, Failure> {
        let mut call = Self::default();
        let mut rest = arguments.into_iter();
        while let Some(argument) = rest.next() {
            let Some(flags) = argument.to_str().and_then(|text| text.strip_prefix('-')) else {
                call.places.push(argument);
                continue;
            };
            match flags {
                "" => call.places.push(argument),
                "-help" => call.help = true,
                _ => call.take_flags(flags, &mut rest)?,
            }
        }
        Ok(call)
    }

    /// Parses letters after one dash; the last may have a value in the same or the next argument.
    fn take_flags(&mut self, flags: &str, rest: &mut impl Iterator<Item = OsString>) -> Result<(), Failure> {
        for (at, flag) in flags.char_indices() {
            match flag {
                's' => self.sloppy = true,
                'f' => self.fake = true,
                'v' => self.verbose = true,
                'l' => self.lazy = true,
                'h' => self.help = true,
                // Nothing is written to /etc/mtab, and nothing is ever writable.
                'n' | 'r' | 'w' => {}
                'o' | 't' | 'N' => {
                    let here = &flags[at + 1..];
                    let value = if here.is_empty() {
                        let next = rest.next().and_then(|value| value.into_string().ok());
                        next.ok_or_else(|| Failure::usage(format!("-{flag} needs a value in UTF-8")))?
                    } else {
                        here.to_owned()
                    };
                    if flag == 'o' {
                        self.options.push(value);
                    }
                    return Ok(());
                }
                _ => return Err(Failure::usage(format!("-{flag} is not an option of a mount helper"))),
            }
        }
        Ok(())
    }

    fn places<const N: usize>(self, usage: &str) -> Result<[OsString; N], Failure> {
        let found = self.places.len();
        self.places.try_into().map_err(|_| {
            Failure::usage(format!("a mount helper takes {N} arguments, not {found}"))
                .hint(format!("usage: {usage}"))
        })
    }
}

fn mount(flavour: HelperKind, arguments: Vec<OsString>) -> Result<(), Failure> {
    let usage = match flavour {
        HelperKind::Esker => "mount.esker URL|NAME DIR [-sfnv] [-o OPTIONS]",
        HelperKind::CernVmFs => "mount.cvmfs NAME DIR [-sfnv] [-o OPTIONS]",
    };
    let mut call = Call::parse(arguments)?;
    if call.help {
        return say(&format!("usage: {usage}\nOPTIONS are those of `esker mount` without their dashes"));
    }
    let command = Esker::command();
    let known = command.find_subcommand("mount").expect("a subcommand because it is one of the enum's");
    let translated =
        options::translate(known, &std::mem::take(&mut call.options), call.sloppy, options::has_selinux())?;
    for warning in &translated.warnings {
        warn(Some(warning));
    }
    let (fake, verbose) = (call.fake, call.verbose);
    let [spec, dir] = call.places(usage)?;
    let spec = match flavour {
        HelperKind::Esker => spec,
        HelperKind::CernVmFs => repository_name(&spec)?.into(),
    };
    if translated.remount && is_ours(&dir)? {
        // A remount changes nothing.
        return Ok(());
    }
    let line = mount_line(spec, dir, translated);
    if verbose || fake {
        let words: Vec<_> = line.iter().map(|word| word.to_string_lossy()).collect();
        say(&format!("esker {}", words.join(" ")))?;
    }
    // Wrong values of options are wrong usage here as well, but in clap's words and with mount's code.
    let parsed = parse(&line)?;
    if fake { Ok(()) } else { crate::run(parsed.called, &line).map(drop) }
}

/// Parses the equivalent arguments of `esker`.
fn parse(line: &[OsString]) -> Result<Esker, Failure> {
    let line: Vec<OsString> = std::iter::once("esker".into()).chain(line.iter().cloned()).collect();
    Esker::try_parse_from(&line).map_err(|error| {
        let error = suggest::without_hidden(error, &line).to_string();
        Failure::usage(error.trim().trim_start_matches("error: "))
    })
}

fn say(text: &str) -> Result<(), Failure> {
    let mut out = Output::new();
    out.line(text)?;
    out.finish()
}

/// Returns the equivalent arguments of `esker`. `mount` shows the source of fstab, so that mount(8) finds it there.
fn mount_line(spec: OsString, dir: OsString, translated: Translated) -> Vec<OsString> {
    let mut source = OsString::from("--source=");
    source.push(&spec);
    let mut line = vec![OsString::from("mount"), source];
    line.extend(translated.arguments.into_iter().map(OsString::from));
    line.extend(["--".into(), spec, dir]);
    line
}

/// Returns the name in the source of `mount.cvmfs`: it may have a path before it.
fn repository_name(spec: &OsStr) -> Result<String, Failure> {
    let text = spec.to_string_lossy();
    let name = text.rsplit('/').next().unwrap_or_default();
    RepositoryName::parse(name)
        .map_err(|error| Failure::usage(error.to_string()))
        .map(|name| name.to_string())
}

fn is_ours(dir: &OsStr) -> Result<bool, Failure> {
    let what = || format!("can't look at {}", Path::new(dir).display());
    let place = mounts::canonical(Path::new(dir)).context(Kind::Failed, what())?;
    let line = mounts::at(&place).context(Kind::Failed, "can't read the list of mounts")?;
    Ok(line.is_some_and(|line| line.is_ours()))
}

fn umount(arguments: Vec<OsString>) -> Result<(), Failure> {
    let usage = "umount.esker DIR [-flnrv]";
    let call = Call::parse(arguments)?;
    if call.help {
        return say(&format!("usage: {usage}"));
    }
    let lazy = call.lazy.then(|| OsString::from("--lazy"));
    let [dir] = call.places(usage)?;
    let mut line = vec![OsString::from("umount")];
    line.extend(lazy);
    line.extend(["--".into(), dir]);
    let parsed = parse(&line)?;
    crate::run(parsed.called, &line).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn call(arguments: &[&str]) -> Result<Call, Failure> {
        Call::parse(arguments.iter().map(OsString::from).collect())
    }

    #[test]
    fn the_name_of_the_program_selects_the_helper() {
        let helper = |name: &str| Helper::called_as(OsStr::new(name));
        assert_eq!(helper("/sbin/mount.esker"), Some(Helper::Mount(HelperKind::Esker)));
        assert_eq!(helper("mount.cvmfs"), Some(Helper::Mount(HelperKind::CernVmFs)));
        assert_eq!(helper("/sbin/umount.fuse.esker"), Some(Helper::Umount));
        for other in ["esker", "/usr/bin/mount", "mount.cvmfs2", ""] {
            assert_eq!(helper(other), None, "{other}");
        }
    }

    #[test]
    fn helper_calls_of_mount_and_automount_are_parsed() {
        let by_mount = call(&["a.test", "/cvmfs/a.test", "-sv", "-o", "rw,fixed"]).expect("a call");
        assert_eq!(by_mount.places, ["a.test", "/cvmfs/a.test"]);
        assert_eq!(by_mount.options, ["rw,fixed"]);
        assert!(by_mount.sloppy && by_mount.verbose && !by_mount.fake);
        let before = call(&["-n", "-t", "fuse.esker", "-oro", "a.test", "/mnt"]).expect("a call");
        assert_eq!((before.places.len(), before.options), (2, vec!["ro".to_owned()]));
        for wrong in [&["-x", "a", "b"][..], &["a", "b", "-o"]] {
            assert_eq!(call(wrong).expect_err("wrong").kind, Kind::Usage, "{wrong:?}");
        }
        let alone = call(&["a.test"]).expect("a call").places::<2>("usage").expect_err("one place");
        assert!(alone.message.contains("not 1"), "{alone:?}");
    }

    #[test]
    fn a_path_before_a_name_is_removed() {
        let name = |spec: &str| repository_name(OsStr::new(spec)).ok();
        assert_eq!(name("sw.example.org"), Some("sw.example.org".into()));
        assert_eq!(name("/etc/auto.cvmfs/sw.example.org"), Some("sw.example.org".into()));
        for wrong in ["", "a b.test", "x/", "a.test;id"] {
            assert_eq!(name(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn the_mount_source_equals_the_one_in_fstab() {
        let translated = Translated { arguments: vec!["--fixed".into()], ..Translated::default() };
        let line = mount_line("a.test".into(), "/mnt".into(), translated);
        assert_eq!(line, ["mount", "--source=a.test", "--fixed", "--", "a.test", "/mnt"]);
    }
}
