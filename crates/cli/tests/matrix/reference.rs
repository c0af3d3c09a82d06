//! Programs of the reference implementation, where a build of it is to be had.

use std::path::PathBuf;

use crate::test_user::TestUser;

/// Environment variable with the folder that has the programs and libraries of CernVM-FS beside each other.
pub(crate) const VARIABLE: &str = "ESKER_REFERENCE";

/// Returns the folder, if it has these programs and the tests run as root.
pub(crate) fn folder_with(programs: &[&str]) -> Option<PathBuf> {
    TestUser::root()?;
    let folder = PathBuf::from(std::env::var_os(VARIABLE).filter(|folder| !folder.is_empty())?);
    programs.iter().all(|program| folder.join(program).exists()).then_some(folder)
}
