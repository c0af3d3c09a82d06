//! Finds the calling user's account, and makes account files for the container.

use std::fs;
use std::path::Path;

use rustix::process::{getegid, geteuid, getgroups};

use crate::container::accounts::{self, Account, Group};
use crate::container::{Mount, Stage, What};
use crate::namespaces::Identity;

/// Maximum size of an account file in bytes.
const LONGEST: u64 = 16 << 20;
const PASSWD: &str = "/etc/passwd";
const GROUP: &str = "/etc/group";

/// The calling user's account.
pub(super) struct User {
    pub(super) account: Account,
    groups: Vec<Group>,
}

impl User {
    /// Reads the host's account files. Accounts that are not there (but in a directory server) are taken from the
    /// environment.
    pub(super) fn of_host(identity: Identity) -> Self {
        let (uid, gid) = (geteuid().as_raw(), getegid().as_raw());
        let passwd = fs::read(PASSWD).unwrap_or_default();
        let entry = accounts::entry(&passwd, uid).unwrap_or_default();
        let from = |variable: &str, field: usize, otherwise: String| {
            let told = std::env::var(variable).ok().filter(|value| !value.is_empty());
            let field = entry.get(field).filter(|value| !value.is_empty()).cloned();
            match variable {
                // Which home is wanted is for the environment to say, which name one has is not.
                "HOME" => told.or(field),
                _ => field.or(told),
            }
            .unwrap_or(otherwise)
        };
        let mut account = Account {
            name: from("USER", 0, format!("user{uid}")),
            uid,
            gid,
            home: from("HOME", 5, "/".into()),
            shell: from("SHELL", 6, "/bin/sh".into()),
        };
        let mut groups = groups(gid);
        if identity == Identity::Root {
            (account.name, account.uid, account.gid) = ("root".into(), 0, 0);
            // Numbers of the host mean other groups in the namespace, or none.
            groups = vec![Group { gid: 0, name: "root".into() }];
        }
        Self { account, groups }
    }

    /// Returns the account files for the container: the image's, with this user.
    pub(super) fn files(&self, stage: &Stage) -> Vec<Mount> {
        let of_image = |path: &str| stage.read(Path::new(path), LONGEST).ok().flatten().unwrap_or_default();
        let passwd = accounts::passwd(&of_image(PASSWD), &self.account);
        let group = accounts::group(&of_image(GROUP), &self.groups);
        let file = |path: &str, content| Mount::usual(path, What::File(content));
        vec![file(PASSWD, passwd), file(GROUP, group)]
    }
}

fn groups(first: u32) -> Vec<Group> {
    let file = fs::read(GROUP).unwrap_or_default();
    let mut numbers = vec![first];
    for gid in getgroups().unwrap_or_default() {
        if !numbers.contains(&gid.as_raw()) {
            numbers.push(gid.as_raw());
        }
    }
    let named = |gid: u32| accounts::entry(&file, gid).and_then(|fields| fields.into_iter().next());
    let group = |gid: u32| Group { gid, name: named(gid).unwrap_or_else(|| format!("group{gid}")) };
    numbers.into_iter().map(group).collect()
}
