//! Failures of file operations.

/// Failed file operation: the operation and the file.
#[derive(Debug, thiserror::Error)]
#[error("can't {action} {path}")]
pub struct FileError {
    /// Operation that failed.
    pub action: &'static str,
    /// File or directory of the operation.
    pub path: std::path::PathBuf,
    /// Error of the operating system.
    pub source: std::io::Error,
}

impl FileError {
    /// Returns a function that adds the operation and the path to an error.
    pub fn on(
        action: &'static str,
        path: impl Into<std::path::PathBuf>,
    ) -> impl FnOnce(std::io::Error) -> Self {
        let path = path.into();
        move |source| Self { action, path, source }
    }
}
