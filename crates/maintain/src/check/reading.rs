//! Results of reading objects.

/// Result of reading one folder.
#[derive(Default)]
pub(super) struct Folder {
    pub(super) objects: u64,
    pub(super) bytes: u64,
    pub(super) damaged: Vec<(String, String)>,
    pub(super) strange: Vec<String>,
    pub(super) missing: Vec<String>,
}
