//! The members of a tar archive: ustar with the extensions of GNU and pax.
//!
//! ```text
//!  header (512 bytes)   name 0+100   mode 100+8   uid 108+8   gid 116+8   size 124+12   mtime 136+12   sum 148+8
//!                       type 156     link 157+100  magic 257+6   major 329+8   minor 337+8   prefix 345+155
//!  content              `size` bytes, filled up to 512
//! ```
//!
//! A number is octal text, or binary with the first bit set. A member of type `L` or `K` is the long name or link of the next one, of
//! type `x` key and value pairs for it, of type `g` for all that follow. Two empty headers end the archive.

use std::io::{self, Read};

/// The unit of everything.
const RECORD: u64 = 512;
/// Names and links that Linux could not use anyway are longer.
const NAME_MAX: u64 = 64 << 10;
/// All extended attributes of a file, at most as large as Linux allows, and some more.
const PAX_MAX: u64 = 1 << 20;

/// What a member is, without its content.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Member {
    pub(crate) path: Vec<u8>,
    pub(crate) kind: u8,
    pub(crate) mode: u32,
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    pub(crate) size: u64,
    pub(crate) mtime: i64,
    pub(crate) link: Vec<u8>,
    pub(crate) major: u32,
    pub(crate) minor: u32,
    pub(crate) xattrs: Vec<(Vec<u8>, Vec<u8>)>,
    /// Where the content begins in the archive.
    pub(crate) offset: u64,
}

/// Reads the members of an archive, one after the other.
pub(crate) struct Members<R> {
    inner: R,
    position: u64,
    /// Where the next header is.
    next: u64,
}

fn bad(reason: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, reason)
}

impl<R: Read> Members<R> {
    pub(crate) fn new(inner: R) -> Self {
        Self { inner, position: 0, next: 0 }
    }

    /// The next member; its content is passed over.
    pub(crate) fn next(&mut self) -> io::Result<Option<Member>> {
        let (mut long_name, mut long_link, mut pax) = (None, None, Pax::default());
        loop {
            self.skip_to(self.next)?;
            let mut header = [0; RECORD as usize];
            if !self.fill(&mut header)? {
                return Ok(None);
            }
            if header.iter().all(|byte| *byte == 0) {
                return Ok(None);
            }
            let mut member = parse(&header)?;
            match member.kind {
                b'L' => long_name = Some(trimmed(self.content(member.size, NAME_MAX)?)),
                b'K' => long_link = Some(trimmed(self.content(member.size, NAME_MAX)?)),
                b'x' => pax = Pax::parse(&self.content(member.size, PAX_MAX)?)?,
                // What is for all members says nothing that is used here.
                b'g' => drop(self.content(member.size, PAX_MAX)?),
                _ => {
                    member.path = long_name.unwrap_or(member.path);
                    member.link = long_link.unwrap_or(member.link);
                    pax.apply_to(&mut member)?;
                    member.offset = self.position;
                    self.set_next(member.size)?;
                    return Ok(Some(member));
                }
            }
        }
    }

    fn content(&mut self, size: u64, limit: u64) -> io::Result<Vec<u8>> {
        if size > limit {
            return Err(bad("a name or a list of attributes is too long"));
        }
        self.set_next(size)?;
        let mut content = vec![0; usize::try_from(size).map_err(io::Error::other)?];
        if !content.is_empty() && !self.fill(&mut content)? {
            return Err(io::Error::from(io::ErrorKind::UnexpectedEof));
        }
        Ok(content)
    }

    fn set_next(&mut self, size: u64) -> io::Result<()> {
        let padded = size.checked_next_multiple_of(RECORD).and_then(|len| self.position.checked_add(len));
        self.next = padded.ok_or_else(|| bad("a member is larger than any file"))?;
        Ok(())
    }

    /// Fills the room; false if the archive has ended before.
    fn fill(&mut self, room: &mut [u8]) -> io::Result<bool> {
        let mut filled = 0;
        while let Some(rest) = room.get_mut(filled..).filter(|rest| !rest.is_empty()) {
            match self.inner.read(rest) {
                Ok(0) if filled == 0 => return Ok(false),
                Ok(0) => return Err(io::Error::from(io::ErrorKind::UnexpectedEof)),
                Ok(len) => filled += len,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        self.position += filled as u64;
        Ok(true)
    }

    fn skip_to(&mut self, place: u64) -> io::Result<()> {
        let len = place.saturating_sub(self.position);
        let passed = io::copy(&mut self.inner.by_ref().take(len), &mut io::sink())?;
        self.position += passed;
        if passed < len { Err(io::Error::from(io::ErrorKind::UnexpectedEof)) } else { Ok(()) }
    }
}

fn trimmed(mut text: Vec<u8>) -> Vec<u8> {
    let end = text.iter().position(|byte| *byte == 0).unwrap_or(text.len());
    text.truncate(end);
    text
}

fn parse(header: &[u8]) -> io::Result<Member> {
    let field = |at: usize, len: usize| header.get(at..at + len).unwrap_or_default();
    let told = number(field(148, 8))?;
    let sum: u64 = (0..)
        .zip(header)
        .map(|(at, byte)| if (148..156).contains(&at) { 32 } else { u64::from(*byte) })
        .sum();
    if told != sum {
        return Err(bad("it is no tar archive, or a damaged one"));
    }
    let text = |at, len| trimmed(field(at, len).to_vec());
    let mut path = text(0, 100);
    // GNU's own format has other things there.
    let prefix = if field(257, 6) == b"ustar\0" { text(345, 155) } else { Vec::new() };
    if !prefix.is_empty() {
        path = [prefix, path].join(&b'/');
    }
    let small = |at, len| number(field(at, len)).map(|number| u32::try_from(number).unwrap_or(u32::MAX));
    let kind = header.get(156).copied().unwrap_or_default();
    let is_device = matches!(kind, b'3' | b'4');
    // Links say how large their target is; it doesn't follow.
    let size = if matches!(kind, b'1'..=b'6') { 0 } else { number(field(124, 12))? };
    Ok(Member {
        path,
        kind,
        mode: small(100, 8)? & 0o7777,
        uid: small(108, 8)?,
        gid: small(116, 8)?,
        size,
        mtime: i64::try_from(number(field(136, 12))?).unwrap_or(i64::MAX),
        link: text(157, 100),
        major: if is_device { small(329, 8)? } else { 0 },
        minor: if is_device { small(337, 8)? } else { 0 },
        xattrs: Vec::new(),
        offset: 0,
    })
}

/// A number of a header. Negative ones, which some write for times before 1970, count as 0.
fn number(field: &[u8]) -> io::Result<u64> {
    match field.first() {
        Some(0xff) => Ok(0),
        Some(first) if first & 0x80 != 0 => {
            let rest = field.get(1..).unwrap_or_default().iter();
            let start = Some(u64::from(first & 0x7f));
            let value =
                rest.fold(start, |value, byte| value?.checked_mul(256)?.checked_add(u64::from(*byte)));
            value.ok_or_else(|| bad("a number in a header is too large"))
        }
        _ => {
            let digits =
                field.iter().skip_while(|byte| **byte == b' ').take_while(|byte| !matches!(byte, 0 | b' '));
            let step = |value: Option<u64>, byte: &u8| match byte {
                b'0'..=b'7' => value?.checked_mul(8)?.checked_add(u64::from(byte - b'0')),
                _ => None,
            };
            digits.fold(Some(0), step).ok_or_else(|| bad("a number in a header is damaged"))
        }
    }
}

/// What a pax header says of the next member.
#[derive(Default)]
struct Pax(Vec<(Vec<u8>, Vec<u8>)>);

impl Pax {
    /// Lines of `length key=value`, where the length counts the whole line.
    fn parse(mut text: &[u8]) -> io::Result<Self> {
        let damaged = || bad("a pax header is damaged");
        let mut pairs = Vec::new();
        while !text.is_empty() {
            let space = text.iter().position(|byte| *byte == b' ').ok_or_else(damaged)?;
            let digits =
                text.get(..space).and_then(|digits| std::str::from_utf8(digits).ok()).ok_or_else(damaged)?;
            let len: usize = digits.parse().map_err(|_| damaged())?;
            let line =
                text.get(space + 1..len).and_then(|line| line.strip_suffix(b"\n")).ok_or_else(damaged)?;
            let equals = line.iter().position(|byte| *byte == b'=').ok_or_else(damaged)?;
            let (key, value) = line.split_at(equals);
            pairs.push((key.to_vec(), value.get(1..).unwrap_or_default().to_vec()));
            text = text.get(len..).unwrap_or_default();
        }
        Ok(Self(pairs))
    }

    fn apply_to(self, member: &mut Member) -> io::Result<()> {
        for (key, value) in self.0 {
            let text = || std::str::from_utf8(&value).ok();
            let number = || text().and_then(|text| text.parse::<u64>().ok());
            match key.as_slice() {
                b"path" => member.path = value,
                b"linkpath" => member.link = value,
                b"size" if !matches!(member.kind, b'1'..=b'6') => {
                    member.size = number().ok_or_else(|| bad("a pax header has a damaged size"))?;
                }
                b"uid" => member.uid = number().and_then(|id| u32::try_from(id).ok()).unwrap_or(u32::MAX),
                b"gid" => member.gid = number().and_then(|id| u32::try_from(id).ok()).unwrap_or(u32::MAX),
                b"mtime" => {
                    let whole = text().and_then(|text| text.split('.').next()?.parse().ok());
                    member.mtime = whole.unwrap_or(member.mtime);
                }
                key if key.starts_with(b"GNU.sparse.") => {
                    return Err(bad("it has a sparse file, which layers don't"));
                }
                key => {
                    if let Some(name) = key.strip_prefix(b"SCHILY.xattr.") {
                        let name = name.to_vec();
                        member.xattrs.push((name, value));
                    }
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn archive(add: impl FnOnce(&mut ::tar::Builder<Vec<u8>>)) -> Vec<u8> {
        let mut builder = ::tar::Builder::new(Vec::new());
        add(&mut builder);
        builder.into_inner().expect("an archive")
    }

    fn all(bytes: &[u8]) -> io::Result<Vec<Member>> {
        let mut members = Members::new(bytes);
        let mut found = Vec::new();
        while let Some(member) = members.next()? {
            found.push(member);
        }
        Ok(found)
    }

    fn sample() -> Vec<u8> {
        archive(|builder| {
            let mut header = ::tar::Header::new_gnu();
            header.set_mode(0o4755);
            header.set_uid(1 << 22);
            header.set_mtime(12);
            header.set_size(5);
            let long = format!("{}/name", "long".repeat(60));
            builder.append_data(&mut header, &long, &b"hello"[..]).expect("a file");
            let pax = [("SCHILY.xattr.user.a", &b"x\0y"[..]), ("mtime", b"99.5")];
            builder.append_pax_extensions(pax).expect("attributes");
            header.set_size(1);
            builder.append_data(&mut header, "b", &b"1"[..]).expect("a file");
            header.set_entry_type(::tar::EntryType::Symlink);
            header.set_size(0);
            builder.append_link(&mut header, "c", "t".repeat(200)).expect("a link");
        })
    }

    #[test]
    fn members_are_read_with_their_extensions() {
        let bytes = sample();
        let found = all(&bytes).expect("members");
        let [file, small, link] = &found[..] else { panic!("{found:?}") };
        assert!(file.path.ends_with(b"longlong/name") && file.path.len() == 245);
        assert_eq!((file.mode, file.uid, file.mtime, file.size), (0o4755, 1 << 22, 12, 5));
        let start = usize::try_from(file.offset).expect("small");
        assert_eq!(&bytes[start..start + 5], b"hello");
        assert_eq!(small.xattrs, [(b"user.a".to_vec(), b"x\0y".to_vec())]);
        assert_eq!((small.mtime, link.kind, link.link.len()), (99, b'2', 200));
    }

    #[test]
    fn damage_is_an_error_or_harmless_and_never_more() {
        let bytes = sample();
        for at in 0..bytes.len() {
            for value in [0, 0x80, 0xff, b'7'] {
                let mut damaged = bytes.clone();
                damaged[at] = value;
                let _ = all(&damaged);
            }
        }
        for end in 1..bytes.len() {
            let _ = all(&bytes[..end]);
        }
        assert!(all(&bytes[..700]).is_err(), "it ends within a member");
        assert!(all(&[b'x'; 2000]).is_err());
    }
}
