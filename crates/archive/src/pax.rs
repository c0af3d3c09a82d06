//! Extended headers of pax: records of `length keyword=value` and their meaning for an entry.

use crate::entry::Time;
use crate::header::owner;
use crate::number::{Number, digit_64};
use crate::sparse::SparseMap;

/// Names and values of extended attributes.
type Xattrs = Vec<(Vec<u8>, Vec<u8>)>;

/// Properties of an entry that extended headers add or override.
#[derive(Clone, Debug, Default)]
pub(crate) struct Extended {
    pub(crate) path: Option<Vec<u8>>,
    pub(crate) link: Option<Vec<u8>>,
    pub(crate) size: Option<u64>,
    pub(crate) uid: Option<u32>,
    pub(crate) gid: Option<u32>,
    pub(crate) mtime: Option<Time>,
    xattrs: Vec<Xattr>,
    pub(crate) sparse: Sparse,
}

/// An extended attribute under the name in its record.
#[derive(Clone, Debug)]
struct Xattr {
    encoded: Vec<u8>,
    form: XattrForm,
    value: Vec<u8>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum XattrForm {
    /// `SCHILY.xattr.`: plain value; `=` and `%` in the name are encoded.
    Schily,
    /// `LIBARCHIVE.xattr.`: value in base 64; name with URL encoding.
    Libarchive,
}

/// Sparse map properties of extended headers.
#[derive(Clone, Debug, Default)]
pub(crate) struct Sparse {
    /// Version of the format whose map precedes the content.
    pub(crate) version: Option<u64>,
    name: Option<Vec<u8>>,
    pub(crate) real_size: Option<u64>,
    /// Announced number of regions.
    count: Option<u64>,
    regions: Vec<(u64, Option<u64>)>,
}

/// Parses the records of a header and passes each to `take`. Zero bytes after the last record are ignored.
pub(crate) fn records<'t>(
    mut text: &'t [u8],
    mut take: impl FnMut(&'t [u8], &'t [u8]) -> Result<(), String>,
) -> Result<(), String> {
    let damaged = |what: &str| format!("an extended header is damaged: {what}");
    while text.first().is_some_and(|byte| *byte != 0) {
        let digits = text.iter().take_while(|byte| byte.is_ascii_digit()).count();
        let len: usize = decimal(text.get(..digits).unwrap_or_default())
            .and_then(|len| usize::try_from(len).ok())
            .ok_or_else(|| damaged("a record has no length"))?;
        let record = text.get(digits..len).ok_or_else(|| damaged("the length of a record is wrong"))?;
        let record = record.strip_suffix(b"\n").ok_or_else(|| damaged("a record has no end"))?;
        let blanks = record.iter().take_while(|byte| matches!(byte, b' ' | b'\t')).count();
        let record = record.get(blanks..).filter(|_| blanks > 0);
        let record = record.ok_or_else(|| damaged("a record has no keyword"))?;
        let equals = record.iter().position(|byte| *byte == b'=');
        let (key, value) = record.split_at(equals.ok_or_else(|| damaged("a record has no value"))?);
        take(key, value.get(1..).unwrap_or_default())?;
        text = text.get(len..).unwrap_or_default();
    }
    Ok(())
}

impl Extended {
    /// Applies a record to one entry. The last record of a keyword wins.
    pub(crate) fn take(&mut self, key: &[u8], value: &[u8]) -> Result<(), String> {
        if let Some(encoded) = key.strip_prefix(b"SCHILY.xattr.") {
            return self.take_xattr(encoded, XattrForm::Schily, value.to_vec());
        }
        if let Some(encoded) = key.strip_prefix(b"LIBARCHIVE.xattr.") {
            let value = base_64(value).ok_or_else(|| damaged(key, value))?;
            return self.take_xattr(encoded, XattrForm::Libarchive, value);
        }
        if let Some(key) = key.strip_prefix(b"GNU.sparse.") {
            return self.sparse.take(key, value);
        }
        self.take_global(key, value)
    }

    /// Applies a record to all entries that follow.
    pub(crate) fn take_global(&mut self, key: &[u8], value: &[u8]) -> Result<(), String> {
        match key {
            b"path" => self.path = Some(value.to_vec()),
            b"linkpath" => self.link = Some(value.to_vec()),
            b"size" => self.size = Some(number(key, value)?),
            b"uid" => self.uid = Some(owner("owner", signed(key, value)?)?),
            b"gid" => self.gid = Some(owner("group", signed(key, value)?)?),
            b"mtime" => self.mtime = Some(time(value).ok_or_else(|| damaged(key, value))?),
            b"GNU.volume.offset" if value != b"0" => {
                return Err("the archive continues a file of another volume: join the volumes".to_owned());
            }
            key if key.starts_with(b"GNU.sparse.") => {
                return Err("a header for all entries has the holes of one".to_owned());
            }
            // Other records describe the archive, or are available from the entries' own headers.
            _ => {}
        }
        Ok(())
    }

    fn take_xattr(&mut self, encoded: &[u8], form: XattrForm, value: Vec<u8>) -> Result<(), String> {
        if encoded.contains(&0) {
            return Err("the name of an extended attribute has a zero byte".to_owned());
        }
        self.xattrs.push(Xattr { encoded: encoded.to_vec(), form, value });
        Ok(())
    }

    /// Returns the path; one in a record about holes takes precedence.
    pub(crate) fn take_path(&mut self) -> Option<Vec<u8>> {
        self.sparse.name.take().or(self.path.take())
    }

    /// Returns the extended attributes, each name once. Those in the format of libarchive are used only where
    /// no other exists.
    pub(crate) fn take_xattrs(&mut self) -> Result<Xattrs, String> {
        let mut found = std::collections::BTreeMap::new();
        let taken = std::mem::take(&mut self.xattrs);
        let (schily, libarchive): (Vec<_>, Vec<_>) =
            taken.into_iter().partition(|xattr| xattr.form == XattrForm::Schily);
        let known: std::collections::BTreeSet<Vec<u8>> =
            schily.iter().map(|xattr| xattr.encoded.clone()).collect();
        for xattr in libarchive.into_iter().filter(|xattr| !known.contains(&xattr.encoded)) {
            let name = decoded(&xattr.encoded, |_| true);
            if name.contains(&0) {
                return Err("the name of an extended attribute has a zero byte".to_owned());
            }
            found.insert(name, xattr.value);
        }
        for xattr in schily {
            found.insert(decoded(&xattr.encoded, |byte| matches!(byte, b'=' | b'%')), xattr.value);
        }
        Ok(found.into_iter().collect())
    }
}

impl Sparse {
    fn take(&mut self, key: &[u8], value: &[u8]) -> Result<(), String> {
        let number = || number(key, value);
        match key {
            b"major" => self.version = Some(number()?).filter(|version| *version > 0),
            b"name" => self.name = Some(value.to_vec()),
            b"realsize" | b"size" => self.real_size = Some(number()?),
            b"numblocks" => {
                self.count = Some(number()?);
                self.regions.clear();
            }
            b"offset" => self.add(number()?, None)?,
            b"numbytes" => {
                let len = number()?;
                let last = self.regions.last_mut().filter(|(_, len)| len.is_none());
                last.ok_or("its sparse map has a length without an offset")?.1 = Some(len);
            }
            b"map" => {
                let parts: Vec<&[u8]> = value.split(|byte| *byte == b',').collect();
                for pair in parts.chunks(2) {
                    let [offset, len] = pair else {
                        return Err("its sparse map has an odd count of numbers".to_owned());
                    };
                    self.add(self::number(key, offset)?, Some(self::number(key, len)?))?;
                }
            }
            _ => {}
        }
        Ok(())
    }

    fn add(&mut self, offset: u64, len: Option<u64>) -> Result<(), String> {
        if self.regions.len() as u64 >= self.count.unwrap_or(0) {
            return Err("its sparse map has more regions than it announces".to_owned());
        }
        self.regions.push((offset, len));
        Ok(())
    }

    /// Returns the map, if records contain one.
    pub(crate) fn map(&self) -> Result<Option<SparseMap>, String> {
        if self.regions.is_empty() {
            return Ok(None);
        }
        let mut map = SparseMap::default();
        for (offset, len) in &self.regions {
            map.add(*offset, len.ok_or("its sparse map has an offset without a length")?)?;
        }
        Ok(Some(map))
    }
}

fn damaged(key: &[u8], value: &[u8]) -> String {
    let shown = |text: &[u8]| crate::error::shown(text.get(..text.len().min(60)).unwrap_or_default());
    format!("an extended header is damaged: `{}` has the value `{}`", shown(key), shown(value))
}

/// Parses a number that consists of digits only.
pub(crate) fn decimal(digits: &[u8]) -> Option<u64> {
    if digits.is_empty() {
        return None;
    }
    digits.iter().try_fold(0_u64, |value, digit| match digit {
        b'0'..=b'9' => value.checked_mul(10)?.checked_add(u64::from(digit - b'0')),
        _ => None,
    })
}

fn number(key: &[u8], value: &[u8]) -> Result<u64, String> {
    decimal(value).filter(|value| i64::try_from(*value).is_ok()).ok_or_else(|| damaged(key, value))
}

fn signed(key: &[u8], value: &[u8]) -> Result<Number, String> {
    let (sign, digits) = value.strip_prefix(b"-").map_or((1, value), |digits| (-1, digits));
    decimal(digits).map(|value| sign * Number::from(value)).ok_or_else(|| damaged(key, value))
}

/// Parses `seconds.fraction`, which may be negative. Bytes after the number are ignored, as in GNU tar.
fn time(text: &[u8]) -> Option<Time> {
    let (is_negative, text) = text.strip_prefix(b"-").map_or((false, text), |text| (true, text));
    let len = text.iter().take_while(|byte| byte.is_ascii_digit()).count();
    let (whole, rest) = text.split_at(len);
    let mut seconds = Number::from(decimal(whole)?);
    let digits = rest.strip_prefix(b".").unwrap_or_default();
    let digits: Vec<u8> = digits.iter().copied().take_while(u8::is_ascii_digit).collect();
    let padded = digits.iter().copied().chain(std::iter::repeat(b'0')).take(9);
    let mut nanoseconds = padded.fold(0, |value, digit| value * 10 + u32::from(digit - b'0'));
    if is_negative {
        seconds = -seconds;
        // Rounds down, to match the smallest unit.
        nanoseconds += u32::from(digits.iter().skip(9).any(|digit| *digit != b'0'));
        if nanoseconds > 0 {
            seconds -= 1;
            nanoseconds = 1_000_000_000 - nanoseconds;
        }
    }
    Some(Time { seconds: i64::try_from(seconds).ok()?, nanoseconds })
}

/// Decodes `%` and two hexadecimal digits in a name, where `wanted` accepts the byte.
fn decoded(encoded: &[u8], wanted: impl Fn(u8) -> bool) -> Vec<u8> {
    let digit = |byte: &u8| match byte {
        b'0'..=b'9' => Some(byte - b'0'),
        b'A'..=b'F' => Some(byte - b'A' + 10),
        _ => None,
    };
    let mut name = Vec::with_capacity(encoded.len());
    let mut rest = encoded;
    while let [first, tail @ ..] = rest {
        rest = tail;
        let code = match (first, tail) {
            (b'%', [high, low, ..]) => digit(high).zip(digit(low)).map(|(high, low)| high << 4 | low),
            _ => None,
        };
        match code.filter(|code| wanted(*code)) {
            Some(code) => {
                name.push(code);
                rest = tail.get(2..).unwrap_or_default();
            }
            None => name.push(*first),
        }
    }
    name
}

/// Decodes base 64, with or without padding.
fn base_64(text: &[u8]) -> Option<Vec<u8>> {
    let end = text.iter().position(|byte| *byte == b'=').unwrap_or(text.len());
    let (text, filling) = text.split_at(end);
    if filling.iter().any(|byte| *byte != b'=') || text.len() % 4 == 1 {
        return None;
    }
    let mut bytes = Vec::with_capacity(text.len() / 4 * 3 + 2);
    for group in text.chunks(4) {
        let mut bits = 0_u32;
        for byte in group {
            bits = bits << 6 | u32::from(digit_64(*byte)?);
        }
        let bits = bits << (6 * (4 - group.len()));
        bytes.extend_from_slice(bits.to_be_bytes().get(1..group.len())?);
    }
    Some(bytes)
}

#[cfg(test)]
mod tests;
