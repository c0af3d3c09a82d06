//! Records: the columns of a row or index entry.

use std::borrow::Cow;
use std::cmp::Ordering;

use super::varint;

/// A value of a column.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Value<'a> {
    /// No value.
    Null,
    /// An integer.
    Integer(i64),
    /// A floating-point number.
    Real(f64),
    /// A text, which should be UTF-8 but is not checked.
    Text(&'a [u8]),
    /// Bytes.
    Blob(&'a [u8]),
}

impl<'a> Value<'a> {
    /// Returns the value as an integer; also parses decimal text, since text columns store numbers so.
    pub fn integer(&self) -> Option<i64> {
        match self {
            Self::Integer(value) => Some(*value),
            Self::Text(text) => std::str::from_utf8(text).ok()?.trim().parse().ok(),
            Self::Null | Self::Real(_) | Self::Blob(_) => None,
        }
    }

    /// Returns the bytes of a text or blob.
    pub const fn bytes(&self) -> Option<&'a [u8]> {
        match self {
            Self::Text(bytes) | Self::Blob(bytes) => Some(bytes),
            Self::Null | Self::Integer(_) | Self::Real(_) => None,
        }
    }

    /// Returns the value as text, numbers in decimal.
    pub fn text(&self) -> Option<String> {
        match self {
            Self::Text(bytes) | Self::Blob(bytes) => Some(String::from_utf8_lossy(bytes).into_owned()),
            Self::Integer(value) => Some(value.to_string()),
            Self::Real(value) => Some(value.to_string()),
            Self::Null => None,
        }
    }

    /// Compares as an index without collation does: NULL, numbers, texts, blobs.
    pub fn order(&self, other: &Value<'_>) -> Ordering {
        match (self, other) {
            (Self::Integer(left), Value::Integer(right)) => left.cmp(right),
            (Self::Integer(left), Value::Real(right)) => order_mixed(*left, *right),
            (Self::Real(left), Value::Integer(right)) => order_mixed(*right, *left).reverse(),
            (Self::Real(left), Value::Real(right)) => left.partial_cmp(right).unwrap_or(Ordering::Equal),
            (Self::Text(left), Value::Text(right)) | (Self::Blob(left), Value::Blob(right)) => {
                left.cmp(right)
            }
            (left, right) => left.class().cmp(&right.class()),
        }
    }

    const fn class(&self) -> u8 {
        match self {
            Self::Null => 0,
            Self::Integer(_) | Self::Real(_) => 1,
            Self::Text(_) => 2,
            Self::Blob(_) => 3,
        }
    }
}

/// Compares an integer and a real without losing the low digits of large integers.
fn order_mixed(integer: i64, real: f64) -> Ordering {
    const TWO_TO_63: f64 = 9_223_372_036_854_775_808.0;
    if real >= TWO_TO_63 {
        return Ordering::Less;
    }
    if real < -TWO_TO_63 {
        return Ordering::Greater;
    }
    #[expect(clippy::cast_possible_truncation, reason = "the value is in range and truncation is meant")]
    let whole = real.trunc() as i64;
    integer.cmp(&whole).then_with(|| 0.0.partial_cmp(&real.fract()).unwrap_or(Ordering::Equal))
}

/// Columns of a row or index entry, still encoded.
#[derive(Clone, Debug)]
pub struct Record<'a> {
    payload: Cow<'a, [u8]>,
}

/// Position of a value in a payload, and its encoding.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Slot {
    serial: u64,
    start: usize,
    end: usize,
}

impl<'a> Record<'a> {
    pub(super) const fn new(payload: Cow<'a, [u8]>) -> Self {
        Self { payload }
    }

    /// Returns the encoded bytes.
    pub fn payload(&self) -> &[u8] {
        &self.payload
    }

    /// Copies the record's bytes, so that it can outlive the database.
    pub fn into_owned(self) -> Record<'static> {
        Record { payload: Cow::Owned(self.payload.into_owned()) }
    }

    /// Iterates over the columns in stored order, up to the first one that is invalid.
    pub(crate) fn slots(&self) -> Slots<'_> {
        Slots::new(&self.payload)
    }

    /// Returns the value at a position of this record.
    pub(crate) fn value(&self, slot: Slot) -> Value<'_> {
        slot.read(&self.payload)
    }

    /// Returns all values in stored order.
    pub fn values(&self) -> impl Iterator<Item = Value<'_>> {
        self.slots().map(|slot| self.value(slot))
    }

    /// Returns the value of a column; none if the record has fewer columns.
    pub fn get(&self, column: usize) -> Option<Value<'_>> {
        self.slots().nth(column).map(|slot| self.value(slot))
    }

    /// Returns true if the header describes exactly the bytes that exist.
    pub(crate) fn is_complete(&self) -> bool {
        let mut slots = self.slots();
        let end = slots.by_ref().last().map_or(slots.body, |slot| slot.end);
        slots.types.is_empty() && end == self.payload.len()
    }
}

/// Iterates over the columns of a payload.
pub(crate) struct Slots<'p> {
    types: &'p [u8],
    body: usize,
    len: usize,
}

impl<'p> Slots<'p> {
    #[inline]
    fn new(payload: &'p [u8]) -> Self {
        let parsed = varint::read(payload).and_then(|(header_len, rest)| {
            let header_len = usize::try_from(header_len).ok()?;
            let types = rest.get(..header_len.checked_sub(payload.len() - rest.len())?)?;
            Some(Self { types, body: header_len, len: payload.len() })
        });
        // An unreadable header yields a record without columns that is never complete.
        parsed.unwrap_or(Self { types: &[], body: usize::MAX, len: payload.len() })
    }
}

impl Iterator for Slots<'_> {
    type Item = Slot;

    #[inline]
    fn next(&mut self) -> Option<Slot> {
        let (serial, rest) = varint::read(self.types)?;
        let end = self.body.checked_add(stored_len(serial)?)?;
        if end > self.len {
            return None;
        }
        let slot = Slot { serial, start: self.body, end };
        self.types = rest;
        self.body = end;
        Some(slot)
    }
}

/// Returns the length in bytes of a value of this type; none for reserved types.
#[inline]
fn stored_len(serial: u64) -> Option<usize> {
    Some(match serial {
        0 | 8 | 9 => 0,
        1 => 1,
        2 => 2,
        3 => 3,
        4 => 4,
        5 => 6,
        6 | 7 => 8,
        10 | 11 => return None,
        _ => usize::try_from((serial - 12) / 2).ok()?,
    })
}

impl Slot {
    #[inline]
    fn read(self, payload: &[u8]) -> Value<'_> {
        let Some(bytes) = payload.get(self.start..self.end) else { return Value::Null };
        match self.serial {
            0 | 10 | 11 => Value::Null,
            1..=6 => Value::Integer(integer(bytes)),
            7 => Value::Real(f64::from_bits(integer(bytes).cast_unsigned())),
            8 => Value::Integer(0),
            9 => Value::Integer(1),
            serial if serial % 2 == 0 => Value::Blob(bytes),
            _ => Value::Text(bytes),
        }
    }

    /// Returns the range of this value in the payload.
    pub(crate) const fn range(self) -> (usize, usize) {
        (self.start, self.end)
    }
}

/// Returns the first column of a short index entry, if it is an integer.
///
/// Nearly all comparisons in a catalog end here, so this reads no more than necessary.
#[inline(always)]
pub(super) fn leading_integer(payload: &[u8]) -> Option<i64> {
    let [header_len, serial, ..] = *payload else { return None };
    let body = payload.get(usize::from(header_len)..).filter(|_| header_len < 0x80)?;
    match serial {
        6 => Some(i64::from_be_bytes(*body.first_chunk()?)),
        1..=5 => Some(integer(body.get(..stored_len(u64::from(serial))?)?)),
        8 => Some(0),
        9 => Some(1),
        _ => None,
    }
}

/// Decodes a big-endian signed integer of one to eight bytes.
#[inline]
fn integer(bytes: &[u8]) -> i64 {
    if let Ok(whole) = bytes.try_into() {
        return i64::from_be_bytes(whole);
    }
    let mut value = if bytes.first().is_some_and(|first| *first >= 0x80) { -1 } else { 0 };
    for byte in bytes {
        value = value << 8 | i64::from(*byte);
    }
    value
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_ordered_by_class_and_exactly() {
        use Value::{Blob, Integer, Null, Real, Text};
        let ascending = [
            Null,
            Integer(i64::MIN),
            Real(-1.5),
            Integer(-1),
            Real(-0.5),
            Integer(0),
            Real(0.5),
            Integer(i64::MAX - 1),
            Integer(i64::MAX),
            Real(1e300),
            Text(b""),
            Text(b"a"),
            Text(b"ab"),
            Blob(b""),
            Blob(b"a"),
        ];
        for (i, left) in ascending.iter().enumerate() {
            for (j, right) in ascending.iter().enumerate() {
                assert_eq!(left.order(right), i.cmp(&j), "{left:?} {right:?}");
            }
        }
    }

    #[test]
    fn damaged_records_have_no_additional_columns() {
        for payload in [&b""[..], b"\x05", b"\x02\x0a", b"\x02\x06\x00", b"\x00", b"\xff\xff"] {
            let record = Record::new(Cow::Borrowed(payload));
            assert_eq!(record.values().count(), 0, "{payload:?}");
            assert!(!record.is_complete(), "{payload:?}");
        }
        let record = Record::new(Cow::Borrowed(b"\x03\x01\x08\xff"));
        assert!(record.is_complete());
        assert_eq!(record.values().collect::<Vec<_>>(), [Value::Integer(-1), Value::Integer(0)]);
        assert_eq!(record.get(2), None);
    }
}
