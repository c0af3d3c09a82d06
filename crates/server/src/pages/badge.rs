//! Short judgements: a word and a colour.

use maud::{Markup, html};

/// Severity of a judgement.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Level {
    Good,
    Warning,
    Bad,
    Plain,
}

/// Returns a judgement. The words say all; the colour repeats it.
pub(crate) fn badge(level: Level, words: &str) -> Markup {
    let class = match level {
        Level::Good => "badge good",
        Level::Warning => "badge warning",
        Level::Bad => "badge bad",
        Level::Plain => "badge",
    };
    html! { span class=(class) { (words) } }
}

/// Returns the level of an age with two limits.
pub(crate) fn by_age(seconds: i64, warning: i64, bad: i64) -> Level {
    match seconds {
        _ if seconds >= bad => Level::Bad,
        _ if seconds >= warning => Level::Warning,
        _ => Level::Good,
    }
}
