//! Tar headers: blocks of 512 bytes.
//!
//! ```text
//!  all      name 0+100   mode 100+8   uid 108+8   gid 116+8   size 124+12   mtime 136+12   sum 148+8   type 156   link 157+100
//!  ustar    magic 257+6 ("ustar\0")   major 329+8   minor 337+8   prefix 345+155
//!  GNU      magic 257+8 ("ustar  \0")   major 329+8   minor 337+8   regions 386+4*24   more 482   real size 483+12
//!  star     magic and prefix of ustar, the prefix at most 130 long   more 355   regions 356+4*24   real size 452+12
//!           atime 476+12   ctime 488+12
//!  more     regions 0+21*24   more 504        (a block behind a header of GNU or star that has too few regions)
//! ```

use crate::entry::{Device, Time};
use crate::number::{Number, NumberError, number, octal};

/// Length of a block: the unit of an archive.
pub(crate) const BLOCK: usize = 512;
/// A block.
pub(crate) type Block = [u8; BLOCK];

/// Maximum major device number of Linux.
const MAJOR_MAX: u32 = (1 << 12) - 1;
const MINOR_MAX: u32 = (1 << 20) - 1;
/// Maximum owner number: the kernel reserves 2^32 - 1 for "leave the owner as it is".
const OWNER_MAX: Number = u32::MAX as Number - 1;

/// Format of a header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Format {
    V7,
    Ustar,
    Gnu,
    Star,
}

/// A header with a valid checksum.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Header<'b>(&'b Block);

impl<'b> Header<'b> {
    /// Returns the header in a block; none if its checksum is wrong with both unsigned and signed bytes.
    pub(crate) fn of(block: &'b Block) -> Option<Self> {
        let is_sum = |at: &usize| (148..156).contains(at);
        let bytes = || block.iter().enumerate().map(|(at, byte)| if is_sum(&at) { b' ' } else { *byte });
        let sum: Number = bytes().map(Number::from).sum();
        let signed: Number = bytes().map(|byte| Number::from(byte.cast_signed())).sum();
        let recorded = octal(block.get(148..156)?).ok()?;
        (recorded == sum || recorded == signed).then_some(Self(block))
    }

    pub(crate) fn field(&self, at: usize, len: usize) -> &'b [u8] {
        self.0.get(at..at + len).unwrap_or_default()
    }

    /// Returns the text of a field, which ends at its first zero byte.
    fn text(&self, at: usize, len: usize) -> &'b [u8] {
        until_zero(self.field(at, len))
    }

    /// Returns the type byte of the header.
    pub(crate) fn kind(&self) -> u8 {
        self.field(156, 1).first().copied().unwrap_or_default()
    }

    pub(crate) fn format(&self) -> Format {
        let is_octal = |byte: Option<&u8>| matches!(byte, Some(b'0'..=b'7'));
        let is_time = |at| {
            let field = self.field(at, 12);
            is_octal(field.first()) && field.last() == Some(&b' ')
        };
        if self.field(257, 8) == b"ustar  \0" {
            Format::Gnu
        } else if self.field(257, 6) != b"ustar\0" {
            Format::V7
        } else if self.field(475, 1) == b"\0" && is_time(476) && is_time(488) {
            Format::Star
        } else {
            Format::Ustar
        }
    }

    pub(crate) fn name(&self) -> Vec<u8> {
        let name = self.text(0, 100);
        let prefix = match self.format() {
            Format::Ustar | Format::Star => self.text(345, 155),
            Format::V7 | Format::Gnu => b"",
        };
        if prefix.is_empty() { name.to_vec() } else { [prefix, name].join(&b'/') }
    }

    pub(crate) fn link(&self) -> &'b [u8] {
        self.text(157, 100)
    }

    pub(crate) fn mode(&self) -> Result<u32, String> {
        let range = Number::from(i64::MIN)..=Number::from(u64::MAX);
        let mode = within("mode", self.field(100, 8), range)?;
        Ok(u32::try_from(mode & 0o7777).unwrap_or_default())
    }

    pub(crate) fn uid(&self) -> Result<u32, String> {
        owner("owner", read("owner", self.field(108, 8))?)
    }

    pub(crate) fn gid(&self) -> Result<u32, String> {
        owner("group", read("group", self.field(116, 8))?)
    }

    pub(crate) fn size(&self) -> Result<u64, String> {
        size("size", self.field(124, 12))
    }

    pub(crate) fn mtime(&self) -> Result<Time, String> {
        let range = Number::from(i64::MIN)..=Number::from(i64::MAX);
        let seconds = within("time", self.field(136, 12), range)?;
        Ok(Time { seconds: i64::try_from(seconds).unwrap_or_default(), nanoseconds: 0 })
    }

    pub(crate) fn device(&self) -> Result<Device, String> {
        if self.format() == Format::V7 {
            return Ok(Device::default());
        }
        let part = |name, at, max: u32| {
            let number = within(name, self.field(at, 8), 0..=Number::from(max))?;
            Ok::<u32, String>(u32::try_from(number).unwrap_or_default())
        };
        Ok(Device {
            major: part("major device number", 329, MAJOR_MAX)?,
            minor: part("minor device number", 337, MINOR_MAX)?,
        })
    }
}

/// Returns the bytes before the first zero byte.
pub(crate) fn until_zero(bytes: &[u8]) -> &[u8] {
    let end = bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len());
    bytes.get(..end).unwrap_or_default()
}

fn read(name: &str, field: &[u8]) -> Result<Number, String> {
    number(field).map_err(|fault| match fault {
        NumberError::Blank => format!("its {name} is blank"),
        NumberError::NoNumber => format!("its {name} is no number"),
    })
}

fn within(name: &str, field: &[u8], range: std::ops::RangeInclusive<Number>) -> Result<Number, String> {
    let value = read(name, field)?;
    if range.contains(&value) {
        return Ok(value);
    }
    Err(format!("its {name} is {value}, which is not between {} and {}", range.start(), range.end()))
}

/// Returns the size or offset in a field.
pub(crate) fn size(name: &str, field: &[u8]) -> Result<u64, String> {
    let value = within(name, field, 0..=Number::from(i64::MAX))?;
    Ok(u64::try_from(value).unwrap_or_default())
}

/// Returns the owner or group in a field, if files can have it.
pub(crate) fn owner(name: &str, value: Number) -> Result<u32, String> {
    u32::try_from(value).ok().filter(|_| value <= OWNER_MAX).ok_or_else(|| {
        format!("its {name} is {value}, which no file can have: they are between 0 and {OWNER_MAX}")
    })
}
