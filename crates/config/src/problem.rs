//! Problems of a configuration file.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// A line of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SourceLine {
    /// Path of the file.
    pub path: Arc<Path>,
    /// The line, from 1.
    pub line: u32,
}

impl fmt::Display for SourceLine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.path.display(), self.line)
    }
}

/// A statement in the configuration without the effect it seems to have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// Location, if the problem is in a file.
    pub place: Option<SourceLine>,
    /// Kind of the problem.
    pub kind: ProblemKind,
}

/// The kinds of problems.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ProblemKind {
    /// An existing file can't be read.
    Unreadable {
        /// Path.
        path: PathBuf,
        /// Reason why the file can't be read.
        why: String,
    },
    /// The file is not UTF-8.
    NotText,
    /// The lines of the file end with carriage returns.
    CarriageReturn,
    /// Invalid shell syntax; the rest was not read.
    Syntax {
        /// Description of the problem.
        what: String,
    },
    /// The statement would run a program.
    NotEvaluated {
        /// Description of the problem.
        what: String,
        /// Names that the statement would set.
        names: Vec<String>,
    },
    /// A sourced file can't be read.
    Unsourced {
        /// Path.
        path: PathBuf,
        /// Reason why the file can't be read.
        why: String,
    },
    /// Parameters that only a sourced file sets, which CernVM-FS and Esker ignore.
    OnlySourced {
        /// Names of the parameters.
        names: Vec<String>,
    },
    /// A file of Esker's own is not TOML with values; nothing of it counts.
    BadToml {
        /// Description of the problem.
        what: String,
    },
    /// The evaluation takes too many steps.
    Endless,
    /// The statement changes a read-only variable.
    ReadOnly {
        /// Name of the variable.
        name: String,
    },
    /// The file changes the configuration repository after it was used.
    Protected {
        /// Ignored value.
        value: String,
    },
    /// The configuration repository sets a parameter that only files of this machine may set.
    NotForOthers {
        /// Name of the parameter.
        name: String,
    },
    /// The configuration repository is not available.
    ConfigRepository {
        /// Folder of the configuration repository.
        path: PathBuf,
        /// Reason why it is not available.
        why: String,
        /// True if the configuration requires it.
        required: bool,
    },
}

impl Problem {
    /// Returns the advice.
    pub fn mend(&self) -> String {
        match &self.kind {
            ProblemKind::Unreadable { path, .. } => {
                format!("let everyone read it: `chmod a+r {}`", path.display())
            }
            ProblemKind::NotText => "save it as UTF-8".into(),
            ProblemKind::CarriageReturn => "end its lines as Unix does: `sed -i 's/\\r$//' FILE`".into(),
            ProblemKind::Syntax { .. } => "try it with `sh -n FILE`".into(),
            ProblemKind::NotEvaluated { .. } => {
                "write the value itself, or generate a file with the value beside this one and source it".into()
            }
            ProblemKind::Unsourced { .. } => "create the file, or remove the line".into(),
            ProblemKind::OnlySourced { names } => {
                let name = names.first().map_or("NAME", String::as_str);
                format!("add a line `{name}=\"${name}\"` behind the one that sources the file")
            }
            ProblemKind::BadToml { .. } => "write lines like `http_proxy = \"http://proxy:3128\"`".into(),
            ProblemKind::Endless => "source fewer files, and none from itself".into(),
            ProblemKind::ReadOnly { name } => format!("remove the line: {name} is set where it was made read-only"),
            ProblemKind::Protected { .. } => {
                "set CVMFS_CONFIG_REPOSITORY in /etc/cvmfs/default.d/NAME.conf, which is read before it is used".into()
            }
            ProblemKind::NotForOthers { name } => format!("set {name} in /etc/cvmfs/default.local if you want it"),
            ProblemKind::ConfigRepository { .. } => {
                "mount the configuration repository, or unset CVMFS_CONFIG_REPOSITORY".into()
            }
        }
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(place) = &self.place {
            write!(f, "{place}: ")?;
        }
        self.kind.fmt(f)
    }
}

impl fmt::Display for ProblemKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ProblemKind::Unreadable { path, why } => write!(f, "can't read {}: {why}", path.display()),
            ProblemKind::NotText => f.write_str("the file is not UTF-8"),
            ProblemKind::CarriageReturn => f.write_str("the line ends with a carriage return"),
            ProblemKind::Syntax { what } => write!(f, "{what}; the rest of this file is not read"),
            ProblemKind::NotEvaluated { what, names } => {
                write!(f, "{what} is not evaluated, because no shell is run")?;
                if names.is_empty() { Ok(()) } else { write!(f, "; not set by it: {}", names.join(", ")) }
            }
            ProblemKind::Unsourced { path, why } => write!(f, "can't source {}: {why}", path.display()),
            ProblemKind::OnlySourced { names } => {
                let names = names.join(", ");
                write!(
                    f,
                    "only a file that this one sources sets {names}, which has no effect, as with CernVM-FS"
                )
            }
            ProblemKind::BadToml { what } => write!(f, "{}; nothing of this file counts", what.trim()),
            ProblemKind::Endless => f.write_str("evaluating the configuration takes too many steps"),
            ProblemKind::ReadOnly { name } => write!(f, "{name} is read-only here and keeps its value"),
            ProblemKind::Protected { value } => {
                write!(f, "CVMFS_CONFIG_REPOSITORY={value} comes too late and is ignored")
            }
            ProblemKind::NotForOthers { name } => {
                write!(f, "{name} is for files of this machine only, and keeps the value that they give it")
            }
            ProblemKind::ConfigRepository { path, why, .. } => {
                write!(f, "can't read the configuration repository at {}: {why}", path.display())
            }
        }
    }
}
