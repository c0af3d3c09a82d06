//! Collects extended attributes into sets that inodes share.

use std::collections::HashMap;

use super::WriteError;
use super::encoder::Encoder;
use super::entry::Head;
use super::error::shown;
use super::image::Image;
use super::metadata::{Metadata, put_table_after};
use crate::layout::{NO_TABLE, Prefix, XATTR_LIST_MAX, XATTR_VALUE_MAX, XattrEntry, XattrId, XattrTable};

/// All distinct sets.
#[derive(Debug, Default)]
pub(super) struct Xattrs {
    known: HashMap<Set, u32>,
    sets: Vec<Set>,
    /// Number of attributes left out because the format can't store their namespace.
    pub(super) left_out: u64,
}

/// Sorted entries of a set: prefix number, rest of the name, value.
type Set = Vec<(u16, Vec<u8>, Vec<u8>)>;

/// Maximum length in bytes of a name that the kernel accepts.
const NAME_LEN_MAX: usize = 255;

fn prefix_len(number: u16) -> usize {
    Prefix::ALL.get(usize::from(number)).map_or(0, |prefix| prefix.text().len())
}

impl Xattrs {
    /// Returns the number of an entry's set; none if it has no attributes.
    pub(super) fn add(&mut self, head: &Head) -> Result<Option<u32>, WriteError> {
        let mut set = Set::new();
        for (name, value) in &head.xattrs {
            let prefix = Prefix::ALL.into_iter().find(|prefix| name.starts_with(prefix.text().as_bytes()));
            let fits = name.len() <= NAME_LEN_MAX && value.len() <= XATTR_VALUE_MAX;
            match prefix.filter(|_| fits) {
                Some(prefix) => {
                    let rest = name.get(prefix.text().len()..).unwrap_or_default();
                    set.push((prefix as u16, rest.to_vec(), value.clone()));
                }
                None => self.left_out += 1,
            }
        }
        if set.is_empty() {
            return Ok(None);
        }
        set.sort_unstable();
        set.dedup_by(|b, a| (a.0, &a.1) == (b.0, &b.1));
        let (mut list, count) = (0, set.len());
        set.retain(|(prefix, rest, _)| {
            list += prefix_len(*prefix) + rest.len() + 1;
            list <= XATTR_LIST_MAX
        });
        self.left_out += (count - set.len()) as u64;
        if let Some(number) = self.known.get(&set) {
            return Ok(Some(*number));
        }
        let number = u32::try_from(self.sets.len()).ok().filter(|number| *number < u32::MAX);
        let number = number.ok_or(WriteError::TooMany("sets of extended attributes"))?;
        self.known.insert(set.clone(), number);
        self.sets.push(set);
        Ok(Some(number))
    }

    /// Appends the tables and returns the position of their description.
    pub(super) fn put(&self, image: &mut Image<'_>, encoder: &mut Encoder) -> Result<u64, WriteError> {
        if self.sets.is_empty() {
            return Ok(NO_TABLE);
        }
        let (mut names, mut ids) = (Metadata::default(), Vec::new());
        for set in &self.sets {
            let place = names.place();
            let mut size = 0;
            for (prefix, name, value) in set {
                let bytes = encoded(*prefix, name, value)?;
                size += prefix_len(*prefix) + name.len() + 1 + value.len();
                names.append(&bytes, encoder)?;
            }
            let count = |number: usize| {
                u32::try_from(number).map_err(|_| WriteError::TooMany("bytes of extended attributes"))
            };
            XattrId { place, count: count(set.len())?, size: count(size)? }.encode(&mut ids);
        }
        let start = image.end();
        image.append(&names.finish(encoder)?)?;
        let sets = u32::try_from(self.sets.len()).expect("counted when they were added");
        let mut head = Vec::new();
        XattrTable { start, sets }.encode(&mut head);
        put_table_after(image, encoder, &ids, &head)
    }
}

fn encoded(prefix: u16, name: &[u8], value: &[u8]) -> Result<Vec<u8>, WriteError> {
    let too_long = || WriteError::Refused { path: shown(name), reason: "the name is too long".to_owned() };
    let known = Prefix::ALL.into_iter().find(|known| *known as u16 == prefix);
    let prefix = known.expect("only known prefixes are taken");
    let name_len = u16::try_from(name.len()).map_err(|_| too_long())?;
    let mut bytes = Vec::with_capacity(name.len() + value.len() + 8);
    XattrEntry { prefix, elsewhere: false, name_len }.encode(&mut bytes);
    bytes.extend_from_slice(name);
    let value_len = u32::try_from(value.len()).map_err(|_| too_long())?;
    bytes.extend_from_slice(&value_len.to_le_bytes());
    bytes.extend_from_slice(value);
    Ok(bytes)
}
