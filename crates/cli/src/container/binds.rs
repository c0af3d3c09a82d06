//! `--bind SRC[:DST[:OPT]]`, as Apptainer and podman have it.
//!
//! ```text
//!  bind    = SRC [":" DST [":" option {"," option}]]      and, for short, SRC ":" option {"," option}
//!  value   = bind {"," bind}
//! ```
//!
//! A backslash before a colon or a comma makes it part of a path. A word that stands where an option may stand is an option
//! that is known, or is refused: it never becomes part of a path.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Component, Path, PathBuf};

use esker_run::container::{BindOptions, Propagation};

use crate::error::Failure;

/// Bind of a part of the host, with its options.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Bind {
    pub(super) source: PathBuf,
    /// Target, if the option names one.
    pub(super) target: Option<PathBuf>,
    pub(super) options: BindOptions,
}

/// Group of mutually exclusive options.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Group {
    Writing,
    Executing,
    Identities,
    Devices,
    Label,
    Owners,
    Mounts,
    Propagation,
    Consistency,
}

type Set = fn(&mut BindOptions);

/// Known options and their effects. Several have no effect, because they are the default or meant for other
/// systems.
const KNOWN: [(&str, Group, Set); 22] = [
    ("ro", Group::Writing, |options| options.read_only = true),
    ("rw", Group::Writing, |_| ()),
    ("noexec", Group::Executing, |options| options.no_exec = true),
    ("exec", Group::Executing, |_| ()),
    ("nosuid", Group::Identities, |options| options.no_suid = true),
    ("suid", Group::Identities, |_| ()),
    ("nodev", Group::Devices, |options| options.no_dev = true),
    ("dev", Group::Devices, |_| ()),
    // Commands keep the SELinux label of their user, so files need no other.
    ("z", Group::Label, |_| ()),
    ("Z", Group::Label, |_| ()),
    ("rbind", Group::Mounts, |_| ()),
    ("bind", Group::Mounts, |options| options.single = true),
    ("slave", Group::Propagation, |_| ()),
    ("rslave", Group::Propagation, |_| ()),
    ("private", Group::Propagation, |options| options.propagation = Propagation::Private),
    ("rprivate", Group::Propagation, |options| options.propagation = Propagation::Private),
    ("unbindable", Group::Propagation, |options| options.propagation = Propagation::Unbindable),
    ("runbindable", Group::Propagation, |options| options.propagation = Propagation::Unbindable),
    ("idmap", Group::Owners, |options| options.mapped = true),
    ("consistent", Group::Consistency, |_| ()),
    ("cached", Group::Consistency, |_| ()),
    ("delegated", Group::Consistency, |_| ()),
];

/// Options of other programs that are refused, with the reason; those that end in `=` have a value.
const REFUSED: [(&str, &str); 12] = [
    ("shared", "mounts of a command can't reach the host; rslave shows it those of the host"),
    ("rshared", "mounts of a command can't reach the host; rslave shows it those of the host"),
    ("U", "esker changes no owners on the host; the command runs as the calling user, also with --fakeroot"),
    ("O", "esker puts no overlay above a bind; --writable-tmpfs puts one above the image"),
    ("upperdir=", "esker puts no overlay above a bind; --writable-tmpfs puts one above the image"),
    ("workdir=", "esker puts no overlay above a bind; --writable-tmpfs puts one above the image"),
    ("idmap=", "esker knows one map, that of the container: idmap"),
    ("copy", "it is for volumes, and a bind is a part of the host"),
    ("nocopy", "it is for volumes, and a bind is a part of the host"),
    ("image-src=", "esker binds no images; mount it with `esker mount`, and bind the mount point"),
    ("id=", "esker binds no images; mount it with `esker mount`, and bind the mount point"),
    ("tmpcopyup", "it is for file systems in memory, and a bind is a part of the host"),
];

/// Meaning of a word in the position of an option.
enum Word {
    Known(Group, Set),
    Refused(&'static str),
    Unknown,
}

impl Word {
    fn of(text: &[u8]) -> Self {
        if let Some((_, group, set)) = KNOWN.iter().find(|(name, ..)| name.as_bytes() == text) {
            return Self::Known(*group, *set);
        }
        let is =
            |name: &str| name.as_bytes() == text || name.ends_with('=') && text.starts_with(name.as_bytes());
        match REFUSED.iter().find(|(name, _)| is(name)) {
            Some((_, reason)) => Self::Refused(reason),
            None => Self::Unknown,
        }
    }

    fn is_option(text: &[u8]) -> bool {
        !matches!(Self::of(text), Self::Unknown)
    }
}

/// Reads the value of a `--bind`.
pub(super) fn parse(value: &OsStr) -> Result<Vec<Bind>, Failure> {
    let mut binds: Vec<Fields> = Vec::new();
    for part in split(value.as_bytes(), b',') {
        let fields = split(part, b':');
        let has_options = binds.last().is_some_and(Fields::has_options);
        // Options of the bind before, unless it can only be another bind.
        let is_path = part.contains(&b'/') || fields.len() > 1;
        let goes_on = !binds.is_empty() && (Word::is_option(part) || has_options && !is_path);
        match binds.last_mut().filter(|_| goes_on) {
            Some(last) => last.go_on(value, part)?,
            None => binds.push(Fields::read(value, &fields)?),
        }
    }
    binds.iter().map(|bind| bind.bind(value)).collect()
}

/// Parses `SRC[:DST]` without options.
pub(super) fn source_and_target(option: &str, value: &OsStr) -> Result<(PathBuf, Option<PathBuf>), Failure> {
    let fields = split(value.as_bytes(), b':');
    let named = |field: &&[u8]| path(field);
    match fields[..] {
        [source] if !source.is_empty() => Ok((named(&source), None)),
        [source, target] if !source.is_empty() && !target.is_empty() => {
            Ok((named(&source), Some(named(&target))))
        }
        _ => Err(Failure::usage(format!("{option} {}: it is not SRC[:DST]", value.display()))
            .hint("a colon that belongs to a path is written as \\:")),
    }
}

/// Fields of one bind argument.
struct Fields<'v> {
    source: &'v [u8],
    target: Option<&'v [u8]>,
    options: Vec<&'v [u8]>,
}

impl<'v> Fields<'v> {
    fn read(value: &OsStr, fields: &[&'v [u8]]) -> Result<Self, Failure> {
        match *fields {
            [source] => Ok(Self { source, target: None, options: Vec::new() }),
            // A destination is absolute; anything else is an option.
            [source, second] if !second.starts_with(b"/") && is_word(second) && !source.is_empty() => {
                let fields = Self { source, target: None, options: vec![second] };
                match Word::of(second) {
                    Word::Unknown => Err(wrong(
                        value,
                        &format!(
                            "{} is neither an absolute destination nor an option",
                            OsStr::from_bytes(second).display()
                        ),
                    )
                    .hint(OPTIONS)),
                    _ => Ok(fields),
                }
            }
            [source, target] => Ok(Self { source, target: Some(target), options: Vec::new() }),
            [source, target, options] => Ok(Self { source, target: Some(target), options: vec![options] }),
            _ => Err(wrong(value, "it has more than SRC:DST:OPTIONS").hint(
                "separate options by commas, as in /data:/data:ro,noexec; a colon that belongs to a path is written as \\:",
            )),
        }
    }

    fn has_options(&self) -> bool {
        !self.options.is_empty()
    }

    fn go_on(&mut self, value: &OsStr, option: &'v [u8]) -> Result<(), Failure> {
        if !self.has_options() {
            let told = OsStr::from_bytes(option).display();
            return Err(wrong(value, &format!("{told} is an option, which must follow a comma"))
                .hint(format!("write SRC:DST:{told}, or ./{told} for a file of that name")));
        }
        self.options.push(option);
        Ok(())
    }

    fn bind(&self, value: &OsStr) -> Result<Bind, Failure> {
        if self.source.is_empty() {
            return Err(wrong(value, "the source is empty").hint("as in --bind /scratch/data:/data:ro"));
        }
        let target = self.target.map(path);
        if let Some(target) = &target {
            check_target(value, target)?;
        }
        Ok(Bind { source: path(self.source), target, options: options(value, &self.options)? })
    }
}

/// Refuses a target that can't be a mount point.
fn check_target(value: &OsStr, target: &Path) -> Result<(), Failure> {
    if target.as_os_str().is_empty() {
        return Err(
            wrong(value, "the destination is empty").hint("leave it out to use the path of the source")
        );
    }
    if !target.is_absolute() {
        return Err(wrong(value, &format!("the destination {} is not absolute", target.display()))
            .hint("as in --bind /scratch/data:/data:ro"));
    }
    let mut depth = 0usize;
    for component in target.components() {
        match component {
            Component::Normal(_) => depth += 1,
            Component::ParentDir => depth = depth.saturating_sub(1),
            _ => {}
        }
    }
    if depth == 0 {
        return Err(wrong(value, "the destination is the root directory, which is the image").hint(
            "name a directory in it; to run a command with another root directory name that as the image",
        ));
    }
    Ok(())
}

const OPTIONS: &str = "options are ro, rw, exec, noexec, suid, nosuid, dev, nodev, z, Z, rbind, bind, rslave, slave, rprivate, \
                       private, runbindable, unbindable, idmap";

fn options(value: &OsStr, words: &[&[u8]]) -> Result<BindOptions, Failure> {
    let mut options = BindOptions::default();
    let mut given: Vec<(Group, &[u8])> = Vec::new();
    for word in words {
        let told = OsStr::from_bytes(word).display();
        match Word::of(word) {
            Word::Unknown if word.is_empty() => {
                return Err(wrong(value, "an option is empty").hint(OPTIONS));
            }
            Word::Unknown => {
                return Err(wrong(value, &format!("there is no option {told}")).hint(OPTIONS));
            }
            Word::Refused(reason) => {
                return Err(wrong(value, &format!("the option {told} is not supported")).hint(reason));
            }
            Word::Known(group, set) => {
                if let Some((_, other)) = given.iter().find(|(known, other)| *known == group && other != word)
                {
                    let other = OsStr::from_bytes(other).display();
                    return Err(wrong(value, &format!("the options {other} and {told} exclude each other"))
                        .hint("leave out one of them"));
                }
                given.push((group, word));
                set(&mut options);
            }
        }
    }
    Ok(options)
}

fn wrong(value: &OsStr, reason: &str) -> Failure {
    Failure::usage(format!("--bind {}: {reason}", value.display()))
}

/// Returns true if a word may be an option, and is no path.
fn is_word(text: &[u8]) -> bool {
    !text.is_empty() && !text.contains(&b'/')
}

/// Splits a text at each separator that has no backslash before it.
fn split(text: &[u8], separator: u8) -> Vec<&[u8]> {
    let mut parts = Vec::new();
    let mut begin = 0;
    for (at, byte) in text.iter().enumerate() {
        let is_escaped = at.checked_sub(1).and_then(|before| text.get(before)) == Some(&b'\\');
        if *byte == separator && !is_escaped {
            parts.push(text.get(begin..at).unwrap_or_default());
            begin = at + 1;
        }
    }
    parts.push(text.get(begin..).unwrap_or_default());
    parts
}

/// Returns a path without the backslashes before separators.
fn path(text: &[u8]) -> PathBuf {
    let mut plain = Vec::with_capacity(text.len());
    for (at, byte) in text.iter().enumerate() {
        let escapes = *byte == b'\\' && matches!(text.get(at + 1), Some(b':' | b','));
        if !escapes {
            plain.push(*byte);
        }
    }
    OsString::from_vec(plain).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns `SRC→DST[options]`, as tests name the parsed bind.
    fn shown(value: &str) -> Result<String, Failure> {
        let all = parse(OsStr::new(value))?;
        let one = |bind: &Bind| {
            let BindOptions { read_only, no_exec, no_suid, no_dev, mapped, single, propagation } =
                bind.options;
            let mut words = Vec::new();
            for (given, word) in [
                (read_only, "ro"),
                (no_exec, "noexec"),
                (no_suid, "nosuid"),
                (no_dev, "nodev"),
                (mapped, "idmap"),
                (single, "single"),
                (propagation == Propagation::Private, "private"),
                (propagation == Propagation::Unbindable, "unbindable"),
            ] {
                words.extend(given.then_some(word));
            }
            let target = bind.target.as_ref().map_or("same".into(), |target| target.display().to_string());
            format!("{}→{target}[{}]", bind.source.display(), words.join(" "))
        };
        Ok(all.iter().map(one).collect::<Vec<_>>().join(" "))
    }

    #[test]
    fn binds_are_parsed_as_by_apptainer_and_podman() {
        for (value, expected) in [
            ("/a", "/a→same[]"),
            ("a", "a→same[]"),
            ("/a:/b", "/a→/b[]"),
            ("/a:/b:ro", "/a→/b[ro]"),
            ("/a:/b:rw", "/a→/b[]"),
            ("/a:ro", "/a→same[ro]"),
            ("/a:ro,noexec", "/a→same[ro noexec]"),
            ("/a:/b:ro,z", "/a→/b[ro]"),
            ("/a:/b:Z,ro", "/a→/b[ro]"),
            ("/a:/b:z,rw,exec,suid,dev,rbind,rslave", "/a→/b[]"),
            ("/a:/b:noexec,nosuid,nodev", "/a→/b[noexec nosuid nodev]"),
            ("/a:/b:bind,private", "/a→/b[single private]"),
            ("/a:/b:rprivate", "/a→/b[private]"),
            ("/a:/b:slave,consistent", "/a→/b[]"),
            ("/a:/b:runbindable", "/a→/b[unbindable]"),
            ("/a:/b:idmap,nosuid", "/a→/b[nosuid idmap]"),
            ("/a:/b:ro,ro", "/a→/b[ro]"),
            // Several binds in one option.
            ("/a,/b", "/a→same[] /b→same[]"),
            ("/a:/b:ro,/c:/d", "/a→/b[ro] /c→/d[]"),
            ("/a:/b:ro,z,/c:/d:noexec,/e", "/a→/b[ro] /c→/d[noexec] /e→same[]"),
            ("/a:/b,c:/d:ro", "/a→/b[] c→/d[ro]"),
            ("a,b", "a→same[] b→same[]"),
            ("/a:ro,/b:ro", "/a→same[ro] /b→same[ro]"),
            ("/a:/b:ro,./nosuch", "/a→/b[ro] ./nosuch→same[]"),
            // Paths with separators in them.
            (r"/a\:b:/c\,d:ro", "/a:b→/c,d[ro]"),
            (r"/a\,b,/c", "/a,b→same[] /c→same[]"),
            (r"/a\b:/c\d", r"/a\b→/c\d[]"),
            ("/a:/b/../c", "/a→/b/../c[]"),
            ("/a:/ro", "/a→/ro[]"),
            ("/ro:/rw:ro", "/ro→/rw[ro]"),
        ] {
            assert_eq!(shown(value).expect(value), expected, "{value}");
        }
    }

    #[test]
    fn unknown_options_are_refused_by_name() {
        for (value, word) in [
            ("/a:/b:nosuch", "no option nosuch"),
            ("/a:/b:ro,nosuch", "no option nosuch"),
            ("/a:/b:nosuch,ro", "no option nosuch"),
            ("/a:/b:RO", "no option RO"),
            ("/a:/b:ro ", "no option ro "),
            ("/a:/b: ro", "no option  ro"),
            ("/a:/b:ro,", "an option is empty"),
            ("/a:/b:", "an option is empty"),
            ("/a:/b:ro,,z", "an option is empty"),
            ("/a:/b:ro,size=1", "no option size=1"),
            ("/a:/b:/c", "no option /c"),
            ("/a:/b:ro:z", "more than SRC:DST:OPTIONS"),
            ("/a:/b:ro,rw", "ro and rw exclude each other"),
            ("/a:/b:exec,noexec", "exec and noexec exclude"),
            ("/a:/b:z,Z", "z and Z exclude"),
            ("/a:/b:rslave,rprivate", "rslave and rprivate exclude"),
            ("/a:/b:rshared", "rshared is not supported"),
            ("/a:/b:shared", "shared is not supported"),
            ("/a:/b:U", "U is not supported"),
            ("/a:/b:ro,O", "O is not supported"),
            ("/a:/b:O,upperdir=/u", "O is not supported"),
            ("/a:/b:idmap=uids=0-1-10;gids=0-1-10", "idmap=uids=0-1-10;gids=0-1-10 is not supported"),
            ("/a:/b:copy", "copy is not supported"),
            ("/a:/b:nocopy", "nocopy is not supported"),
            ("/a.sqfs:/b:image-src=/x,id=2", "image-src=/x is not supported"),
            ("/a:/b,ro", "ro is an option, which must follow a comma"),
            ("/a,ro", "ro is an option, which must follow a comma"),
            ("/a:b", "b is neither an absolute destination nor an option"),
            ("/a:roo", "roo is neither"),
            ("/a:./b", "./b is not absolute"),
            ("/a:b/c", "b/c is not absolute"),
            ("/a:b:ro", "b is not absolute"),
            ("/a:", "destination is empty"),
            ("/a::ro", "destination is empty"),
            (":/b", "source is empty"),
            ("", "source is empty"),
            (",", "source is empty"),
            ("/a,,/b", "source is empty"),
            ("/a:/", "the root directory"),
            ("/a://", "the root directory"),
            ("/a:/.:ro", "the root directory"),
            ("/a:/b/..", "the root directory"),
            ("/a:/..:ro", "the root directory"),
        ] {
            let failure = shown(value).expect_err(value);
            assert!(failure.message.contains(word), "{value}: {}", failure.message);
            assert!(
                failure.message.contains(value) && failure.hint.is_some(),
                "{value}: {}",
                failure.message
            );
            assert_eq!(failure.code(), 2, "{value}");
        }
    }

    #[test]
    fn no_option_becomes_part_of_a_path() {
        let names = KNOWN.iter().map(|(name, ..)| *name).chain(REFUSED.iter().map(|(name, _)| *name));
        for name in names.chain(["nosuch", "x=y", "ro "]) {
            for value in [format!("/a:/b:{name}"), format!("/a:/b:ro,{name}"), format!("/a:/b:{name},ro")] {
                if let Ok(binds) = parse(OsStr::new(&value)) {
                    assert_eq!(binds.len(), 1, "{value}: {binds:?}");
                    assert_eq!(binds[0].source, Path::new("/a"), "{value}");
                    assert_eq!(binds[0].target.as_deref(), Some(Path::new("/b")), "{value}");
                }
            }
        }
    }

    #[test]
    fn a_home_argument_has_no_options() {
        let read = |value: &str| source_and_target("--home", OsStr::new(value));
        assert_eq!(read("/a").expect("one"), ("/a".into(), None));
        assert_eq!(read(r"/a\:b:/c").expect("two"), ("/a:b".into(), Some("/c".into())));
        for wrong in ["/a:/b:ro", "", ":", "/a:", ":/b", "/a:/b:"] {
            assert!(read(wrong).expect_err(wrong).message.contains("SRC[:DST]"), "{wrong}");
        }
    }
}
