//! Environment variables of the log.

/// Values of the variables that are set.
#[derive(Clone, Debug, Default)]
pub(crate) struct LogVariables {
    /// Levels of targets, from `ESKER_LOG`.
    pub(crate) levels: Option<String>,
    /// Name of the format, from `ESKER_LOG_FORMAT`.
    pub(crate) format: Option<String>,
}

impl LogVariables {
    pub(crate) fn from_environment() -> Self {
        let text = |name| std::env::var_os(name).filter(|text| !text.is_empty());
        let [levels, format] = ["ESKER_LOG", "ESKER_LOG_FORMAT"]
            .map(|name| text(name).map(|text| text.to_string_lossy().into_owned()));
        Self { levels, format }
    }
}
