//! Reading and writing of little-endian numbers.

use super::LayoutError;

/// Remaining bytes of a structure that is being parsed.
pub(crate) struct Fields<'a> {
    rest: &'a [u8],
    what: &'static str,
}

impl<'a> Fields<'a> {
    /// Starts to parse the structure named `what` at the start of `bytes`.
    pub(crate) const fn of(what: &'static str, bytes: &'a [u8]) -> Self {
        Self { rest: bytes, what }
    }

    fn take<const N: usize>(&mut self) -> Result<[u8; N], LayoutError> {
        let (first, rest) = self.rest.split_first_chunk().ok_or(LayoutError::Short { what: self.what })?;
        self.rest = rest;
        Ok(*first)
    }

    pub(crate) fn u16(&mut self) -> Result<u16, LayoutError> {
        self.take().map(u16::from_le_bytes)
    }

    pub(crate) fn u32(&mut self) -> Result<u32, LayoutError> {
        self.take().map(u32::from_le_bytes)
    }

    pub(crate) fn u64(&mut self) -> Result<u64, LayoutError> {
        self.take().map(u64::from_le_bytes)
    }
}

/// Appends little-endian numbers to a buffer.
pub(crate) trait Put {
    fn u16(&mut self, value: u16);
    fn u32(&mut self, value: u32);
    fn u64(&mut self, value: u64);
}

impl Put for Vec<u8> {
    fn u16(&mut self, value: u16) {
        self.extend_from_slice(&value.to_le_bytes());
    }

    fn u32(&mut self, value: u32) {
        self.extend_from_slice(&value.to_le_bytes());
    }

    fn u64(&mut self, value: u64) {
        self.extend_from_slice(&value.to_le_bytes());
    }
}
