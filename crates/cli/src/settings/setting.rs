//! Typed values of settings, with their origins.

use esker_config::Origin;

/// A value, and the environment variable, line of a file or option that set it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Setting<T> {
    /// The value.
    pub(crate) value: T,
    /// Origin of the value; `None` for the default.
    pub(crate) origin: Option<Origin>,
}

impl<T> Setting<T> {
    /// Returns a default.
    pub(super) fn of_default(value: T) -> Self {
        Self { value, origin: None }
    }

    /// Overrides the value with that of a higher layer, if it is set there.
    pub(super) fn or_higher(self, higher: Option<(T, Origin)>) -> Self {
        higher.map_or(self, |(value, origin)| Self { value, origin: Some(origin) })
    }

    /// True if an option of the command line set the value.
    pub(super) fn is_of_option(&self) -> bool {
        matches!(self.origin, Some(Origin::Option(_)))
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use esker_config::SourceLine;

    use super::*;

    #[test]
    fn the_highest_layer_that_sets_a_value_is_its_origin() {
        let file =
            || Origin::File(SourceLine { path: Path::new("/etc/cvmfs/default.local").into(), line: 1 });
        let option = || Origin::Option("--streaming");
        let default = || Setting::of_default(0);
        assert_eq!(default().or_higher(None).or_higher(None), Setting { value: 0, origin: None });
        let of_file = default().or_higher(Some((1, file()))).or_higher(None);
        assert_eq!((of_file.value, of_file.origin.clone()), (1, Some(file())));
        assert!(!of_file.is_of_option());
        let of_both = default().or_higher(Some((1, file()))).or_higher(Some((2, option())));
        assert_eq!((of_both.value, of_both.is_of_option()), (2, true));
    }
}
