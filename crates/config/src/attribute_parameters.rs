//! Parameters about attributes of a repository.

use esker_view::{Protected, Visibility, is_magic};

use super::Parameters;
use super::client::Read;

impl Parameters {
    /// Returns where attributes about the repository are listed.
    pub fn visibility(&self) -> Read<Visibility> {
        match self.checked("CVMFS_MAGIC_XATTRS_VISIBILITY")? {
            Some("never") => return Ok(Visibility::Never),
            Some("always") => return Ok(Visibility::Everywhere),
            Some(_) => return Ok(Visibility::Root),
            None => {}
        }
        Ok(match self.switch("CVMFS_HIDE_MAGIC_XATTRS")? {
            Some(true) => Visibility::Never,
            Some(false) => Visibility::Everywhere,
            None => Visibility::default(),
        })
    }

    /// Returns the attributes that only some users may read.
    pub fn protected(&self) -> Read<Protected> {
        const NAMES: &str = "CVMFS_XATTR_PROTECTED_XATTRS";
        const GROUPS: &str = "CVMFS_XATTR_PRIVILEGED_GIDS";
        let names = self.checked(NAMES)?.unwrap_or_default().split(',').map(str::trim);
        let mut protected = Protected::default();
        for name in names.filter(|name| !name.is_empty()) {
            // A misspelt name would leave an attribute readable that should be protected.
            if !is_magic(name) {
                return Err(self.bad(NAMES, format!("{name} is not an attribute of a repository")));
            }
            protected.names.insert(name.to_owned());
        }
        let groups = self.checked(GROUPS)?.unwrap_or_default().split(',').map(str::trim);
        for group in groups.filter(|group| !group.is_empty()) {
            let group = group.parse().map_err(|_| self.bad(GROUPS, format!("{group} is not a group id")))?;
            protected.groups.insert(group);
        }
        Ok(protected)
    }
}
