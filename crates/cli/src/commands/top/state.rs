//! State of the live view: order, filter, pause and help, changed by keys.

use std::cmp::Ordering;

use super::snapshot::{MountRow, Snapshot};

/// Order of the mounts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Sort {
    #[default]
    Requests,
    Bytes,
    HitRate,
    Waiting,
    Name,
}

impl Sort {
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Requests => "requests",
            Self::Bytes => "bytes",
            Self::HitRate => "hit rate",
            Self::Waiting => "waiting",
            Self::Name => "name",
        }
    }

    const fn next(self) -> Self {
        match self {
            Self::Requests => Self::Bytes,
            Self::Bytes => Self::HitRate,
            Self::HitRate => Self::Waiting,
            Self::Waiting => Self::Name,
            Self::Name => Self::Requests,
        }
    }

    fn compare(self, a: &MountRow, b: &MountRow) -> Ordering {
        let by_name = a.mountpoint.cmp(&b.mountpoint);
        let busiest_first = match self {
            Self::Requests => b.requests_per_second.total_cmp(&a.requests_per_second),
            Self::Bytes => b.bytes_per_second.total_cmp(&a.bytes_per_second),
            Self::HitRate => a.hit_rate.unwrap_or(1.0).total_cmp(&b.hit_rate.unwrap_or(1.0)),
            Self::Waiting => b.waiting.cmp(&a.waiting),
            Self::Name => Ordering::Equal,
        };
        busiest_first.then(by_name)
    }
}

/// A key that the view knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Key {
    Character(char),
    Enter,
    Escape,
    Backspace,
    Up,
    Down,
}

/// State of the live view.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct State {
    pub(super) snapshot: Snapshot,
    pub(super) sort: Sort,
    pub(super) reverse: bool,
    /// Text that the path, server or process of a row must contain.
    pub(super) filter: String,
    /// True while the filter is being typed.
    pub(super) types_filter: bool,
    pub(super) paused: bool,
    pub(super) help: bool,
    /// Number of mounts that are scrolled out of view.
    pub(super) scroll: usize,
}

impl State {
    /// Handles a key; returns false if the view has to end.
    pub(super) fn press(&mut self, key: Key) -> bool {
        if self.types_filter {
            match key {
                Key::Character(c) => self.filter.push(c),
                Key::Backspace => _ = self.filter.pop(),
                Key::Enter => self.types_filter = false,
                Key::Escape => {
                    self.types_filter = false;
                    self.filter.clear();
                }
                Key::Up | Key::Down => {}
            }
            return true;
        }
        match key {
            Key::Escape if self.help => self.help = false,
            Key::Character('q') | Key::Escape => return false,
            Key::Character('s') => self.sort = self.sort.next(),
            Key::Character('r') => self.reverse = !self.reverse,
            Key::Character('p' | ' ') => self.paused = !self.paused,
            Key::Character('/' | 'f') => self.types_filter = true,
            Key::Character('h' | '?') => self.help = !self.help,
            Key::Up => self.scroll = self.scroll.saturating_sub(1),
            Key::Down => self.scroll = (self.scroll + 1).min(self.snapshot.mounts.len().saturating_sub(1)),
            Key::Character(_) | Key::Enter | Key::Backspace => {}
        }
        true
    }

    /// Takes a new snapshot, unless the view is paused.
    pub(super) fn update(&mut self, snapshot: Snapshot) {
        if !self.paused {
            self.snapshot = snapshot;
        }
        self.scroll = self.scroll.min(self.snapshot.mounts.len().saturating_sub(1));
    }

    /// Returns the snapshot as it is to be shown: filtered and sorted.
    pub(super) fn shown(&self) -> Snapshot {
        let mut shown = self.snapshot.clone();
        let filter = self.filter.to_lowercase();
        let has = |texts: &[&str]| texts.iter().any(|text| text.to_lowercase().contains(&filter));
        shown.mounts.retain(|row| has(&[&row.mountpoint, &row.repository]));
        shown.servers.retain(|row| has(&[&row.server, &row.oldest]));
        shown.waiting.retain(|row| has(&[&row.path, &row.command]));
        shown.slowest.retain(|row| has(&[&row.path, &row.command]));
        shown.mounts.sort_by(|a, b| self.sort.compare(a, b));
        if self.reverse {
            shown.mounts.reverse();
        }
        shown
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::example;
    use super::*;

    fn press(state: &mut State, keys: &str) {
        for key in keys.chars() {
            assert!(state.press(Key::Character(key)), "{key}");
        }
    }

    #[test]
    fn keys_sort_filter_and_pause() {
        let mut state = State::default();
        state.update(example());
        let names =
            |state: &State| state.shown().mounts.iter().map(|row| row.repository.clone()).collect::<Vec<_>>();
        assert_eq!(names(&state), ["a.test", "b.test"], "the busy one is first");
        press(&mut state, "r");
        assert_eq!(names(&state), ["b.test", "a.test"]);
        press(&mut state, "ssss");
        assert_eq!((state.sort, state.reverse), (Sort::Name, true));
        press(&mut state, "/B.T");
        assert_eq!(names(&state), ["b.test"]);
        assert!(state.shown().slowest.is_empty());
        assert!(state.press(Key::Enter) && state.press(Key::Character('p')));
        state.update(Snapshot::default());
        assert_eq!(names(&state), ["b.test"], "a paused view stays");
        assert!(state.press(Key::Character('/')) && state.press(Key::Escape));
        assert_eq!(names(&state).len(), 2);
    }

    #[test]
    fn escape_closes_the_help_before_it_ends_the_view() {
        let mut state = State::default();
        press(&mut state, "h");
        assert!(state.press(Key::Escape) && !state.help);
        assert!(!state.press(Key::Escape));
        assert!(!State::default().press(Key::Character('q')));
    }

    #[test]
    fn scrolling_ends_at_the_last_mount() {
        let mut state = State::default();
        state.update(example());
        for _ in 0..5 {
            state.press(Key::Down);
        }
        assert_eq!(state.scroll, 1);
        state.press(Key::Up);
        assert_eq!(state.scroll, 0);
    }
}
