//! Encodes records: the columns of a row.

use std::borrow::Cow;

/// The value of one column.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Value<'a> {
    /// No value.
    Null,
    /// An integer.
    Integer(i64),
    /// A text; need not be UTF-8, since file names need not be.
    Text(Cow<'a, [u8]>),
    /// Bytes.
    Blob(Cow<'a, [u8]>),
}

impl<'a> Value<'a> {
    /// Creates a text value.
    pub fn text(text: impl Into<Cow<'a, [u8]>>) -> Self {
        Self::Text(text.into())
    }

    /// Creates a blob value.
    pub fn blob(bytes: impl Into<Cow<'a, [u8]>>) -> Self {
        Self::Blob(bytes.into())
    }

    /// Returns the number that encodes type and length in the header of a record.
    fn serial_type(&self) -> u64 {
        match self {
            Self::Null => 0,
            Self::Integer(number) => IntegerForm::of(*number).serial_type,
            Self::Blob(bytes) => 12 + 2 * bytes.len() as u64,
            Self::Text(text) => 13 + 2 * text.len() as u64,
        }
    }
}

/// Shortest encoding of an integer.
struct IntegerForm {
    serial_type: u64,
    len: usize,
}

impl IntegerForm {
    fn of(number: i64) -> Self {
        // The sign bit has to fit too, so the magnitude is taken in one's complement.
        let magnitude = if number < 0 { !number } else { number };
        let (serial_type, len) = match magnitude {
            _ if number == 0 => (8, 0),
            _ if number == 1 => (9, 0),
            0..=0x7f => (1, 1),
            0x80..=0x7fff => (2, 2),
            0x8000..=0x7f_ffff => (3, 3),
            0x80_0000..=0x7fff_ffff => (4, 4),
            0x8000_0000..=0x7fff_ffff_ffff => (5, 6),
            _ => (6, 8),
        };
        Self { serial_type, len }
    }
}

/// Appends a variable-length integer.
pub(super) fn push_varint(out: &mut Vec<u8>, number: u64) {
    if number >> 56 != 0 {
        // Nine bytes: eight groups of seven bits, then the low eight bits.
        for group in (0..8).rev() {
            out.push(low_byte(number >> (8 + 7 * group)) | 0x80);
        }
        out.push(low_byte(number));
        return;
    }
    let groups = (64 - number.leading_zeros()).div_ceil(7).max(1);
    for group in (0..groups).rev() {
        let continued = if group > 0 { 0x80 } else { 0 };
        out.push(low_byte(number >> (7 * group)) & 0x7f | continued);
    }
}

fn low_byte(number: u64) -> u8 {
    number.to_be_bytes()[7]
}

/// Returns the encoded length of a variable-length integer in bytes.
pub(super) fn varint_len(number: u64) -> usize {
    if number >> 56 != 0 { 9 } else { (64 - number.leading_zeros()).div_ceil(7).max(1) as usize }
}

/// Appends a record with these columns.
pub(super) fn encode(columns: &[Value<'_>], out: &mut Vec<u8>) {
    let types: usize = columns.iter().map(|column| varint_len(column.serial_type())).sum();
    // The header length includes itself, so one more byte may lengthen it by a byte.
    let mut header = types + 1;
    while types + varint_len(header as u64) > header {
        header += 1;
    }
    push_varint(out, header as u64);
    for column in columns {
        push_varint(out, column.serial_type());
    }
    for column in columns {
        match column {
            Value::Null => {}
            Value::Integer(number) => {
                let bytes = number.to_be_bytes();
                let skip = bytes.len() - IntegerForm::of(*number).len;
                out.extend(bytes.iter().skip(skip));
            }
            Value::Text(bytes) | Value::Blob(bytes) => out.extend_from_slice(bytes),
        }
    }
}
