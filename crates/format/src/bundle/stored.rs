//! JSON format of a specification.

use std::fmt;
use std::ops::Range;

use serde::Deserialize;
use serde::de::{Deserializer, IgnoredAny, SeqAccess, Visitor};

use super::{FILES_MAX, READS_MAX};

/// A specification as stored in JSON.
#[derive(Deserialize)]
pub(super) struct Stored {
    pub(super) name: String,
    pub(super) version: String,
    pub(super) encoding: String,
    pub(super) dependencies: FirstTexts<FILES_MAX>,
    #[serde(default, rename = "esker-reads")]
    pub(super) reads: Steps,
}

pub(super) type Steps = FirstTexts<READS_MAX>;

/// Up to `MAX` texts of a list of any length.
#[derive(Default)]
pub(super) struct FirstTexts<const MAX: usize> {
    pub(super) items: Vec<String>,
    pub(super) left_out: usize,
}

impl<'de, const MAX: usize> Deserialize<'de> for FirstTexts<MAX> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Visit<const MAX: usize>;

        impl<'de, const MAX: usize> Visitor<'de> for Visit<MAX> {
            type Value = FirstTexts<MAX>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a list of texts")
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<FirstTexts<MAX>, A::Error> {
                let mut texts = FirstTexts::default();
                while texts.items.len() < MAX {
                    match list.next_element()? {
                        Some(text) => texts.items.push(text),
                        None => return Ok(texts),
                    }
                }
                while list.next_element::<IgnoredAny>()?.is_some() {
                    texts.left_out += 1;
                }
                Ok(texts)
            }
        }

        deserializer.deserialize_seq(Visit)
    }
}

/// Parses `DEPENDENCY` or `DEPENDENCY:START-END`.
pub(super) fn parse_step(text: &str) -> Option<(usize, Option<Range<u64>>)> {
    let number = |text: &str| {
        let digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
        digits.then(|| text.parse::<u64>().ok()).flatten()
    };
    let (dependency, range) = match text.split_once(':') {
        None => (text, None),
        Some((dependency, range)) => {
            let (start, end) = range.split_once('-')?;
            let range = number(start)?..number(end)?;
            (dependency, Some(range).filter(|range| !range.is_empty()).map(Some)?)
        }
    };
    Some((usize::try_from(number(dependency)?).ok()?, range))
}
