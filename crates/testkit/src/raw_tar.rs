//! Builds tar headers by hand, with valid or invalid fields.

/// Length of a block.
const BLOCK: usize = 512;

/// Magic of ustar, GNU tar and V7.
pub const USTAR: &[u8] = b"ustar\x0000";
/// Magic of GNU tar.
pub const GNU: &[u8] = b"ustar  \0";
/// Magic of the V7 format, which has none.
pub const V7: &[u8] = b"";

/// A header, field by field; its checksum is right.
#[derive(Clone, Debug)]
pub struct Raw {
    block: [u8; BLOCK],
    data: Vec<u8>,
    /// True if the checksum treats bytes as signed, as some old programs do.
    pub signed: bool,
}

impl Raw {
    /// Returns the header of a member of this type and name, with common values.
    pub fn new(kind: u8, name: &[u8]) -> Self {
        let raw = Self { block: [0; BLOCK], data: Vec::new(), signed: false };
        let raw = raw.name(name).kind(kind).magic(USTAR).mode(b"0000644\0").uid(b"0000007\0");
        raw.gid(b"0000010\0")
            .size(b"00000000000\0")
            .mtime(b"13000000000\0")
            .put(329, b"0000000\0")
            .put(337, b"0000000\0")
    }

    /// Returns a regular file with this content.
    pub fn file(name: &[u8], data: &[u8]) -> Self {
        Self::new(b'0', name).data(data)
    }

    /// Returns a directory.
    pub fn directory(name: &[u8]) -> Self {
        Self::new(b'5', name).mode(b"0000755\0")
    }

    /// Returns a link of type `1` or `2`.
    pub fn link(kind: u8, name: &[u8], target: &[u8]) -> Self {
        Self::new(kind, name).put_text(157, 100, target)
    }

    /// Returns a header of type `x` or `g` with these records.
    pub fn pax(kind: u8, records: &[(&[u8], &[u8])]) -> Self {
        let data: Vec<u8> = records.iter().flat_map(|(key, value)| record(key, value)).collect();
        Self::new(kind, b"PaxHeaders/it").data(&data)
    }

    /// Returns a header of type `L` or `K` with this text.
    pub fn long(kind: u8, text: &[u8]) -> Self {
        Self::new(kind, b"././@LongLink").magic(GNU).data(&[text, b"\0"].concat())
    }

    /// Sets bytes at an offset.
    pub fn put(mut self, at: usize, bytes: &[u8]) -> Self {
        self.block[at..at + bytes.len()].copy_from_slice(bytes);
        self
    }

    fn put_text(self, at: usize, len: usize, text: &[u8]) -> Self {
        let mut field = text[..text.len().min(len)].to_vec();
        field.resize(len, 0);
        self.put(at, &field)
    }

    /// Sets the name.
    pub fn name(self, name: &[u8]) -> Self {
        self.put_text(0, 100, name)
    }

    /// Sets the field of the mode.
    pub fn mode(self, field: &[u8]) -> Self {
        self.put_text(100, 8, field)
    }

    /// Sets the field of the owner.
    pub fn uid(self, field: &[u8]) -> Self {
        self.put_text(108, 8, field)
    }

    /// Sets the field of the group.
    pub fn gid(self, field: &[u8]) -> Self {
        self.put_text(116, 8, field)
    }

    /// Sets the field of the size, which follows from the content otherwise.
    pub fn size(self, field: &[u8]) -> Self {
        self.put_text(124, 12, field)
    }

    /// Sets the field of the time.
    pub fn mtime(self, field: &[u8]) -> Self {
        self.put_text(136, 12, field)
    }

    /// Sets the type.
    pub fn kind(self, kind: u8) -> Self {
        self.put(156, &[kind])
    }

    /// Sets the magic and version.
    pub fn magic(self, magic: &[u8]) -> Self {
        self.put_text(257, 8, magic)
    }

    /// Sets the device numbers.
    pub fn device(self, major: &[u8], minor: &[u8]) -> Self {
        self.put_text(329, 8, major).put_text(337, 8, minor)
    }

    /// Sets the prefix of the name.
    pub fn prefix(self, prefix: &[u8]) -> Self {
        self.put_text(345, 155, prefix)
    }

    /// Sets the content, and the size of it.
    pub fn data(mut self, data: &[u8]) -> Self {
        self.data = data.to_vec();
        self.size(&octal12(data.len() as u64))
    }

    /// Sets the content, and leaves the size as it is.
    pub fn unsized_data(mut self, data: &[u8]) -> Self {
        self.data = data.to_vec();
        self
    }

    /// Returns the member: header, content, and zeros up to the next block.
    pub fn bytes(&self) -> Vec<u8> {
        let mut block = self.block;
        block[148..156].fill(b' ');
        let sum: i64 = block
            .iter()
            .map(|byte| if self.signed { i64::from(byte.cast_signed()) } else { i64::from(*byte) })
            .sum();
        block[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
        let mut bytes = [&block[..], &self.data].concat();
        bytes.resize(bytes.len().next_multiple_of(BLOCK), 0);
        bytes
    }
}

/// Returns a record of an extended header.
pub fn record(key: &[u8], value: &[u8]) -> Vec<u8> {
    let rest = key.len() + value.len() + 3;
    let mut len = rest + 1;
    while len.to_string().len() + rest != len {
        len += 1;
    }
    [len.to_string().as_bytes(), b" ", key, b"=", value, b"\n"].concat()
}

/// Returns a number as a field of 12 bytes.
pub fn octal12(number: u64) -> Vec<u8> {
    format!("{number:011o}\0").into_bytes()
}

/// Returns an archive of these members.
pub fn archive(members: &[Raw]) -> Vec<u8> {
    let mut bytes: Vec<u8> = members.iter().flat_map(Raw::bytes).collect();
    bytes.resize(bytes.len() + 2 * BLOCK, 0);
    bytes
}

/// Returns a sparse file in the old form of GNU tar, with blocks of regions behind the header if it has too few.
pub fn old_sparse(name: &[u8], regions: &[(u64, u64)], real: u64, stored: &[u8]) -> Vec<u8> {
    let fields = |regions: &[(u64, u64)], len: usize| {
        let mut bytes: Vec<u8> =
            regions.iter().flat_map(|(offset, len)| [octal12(*offset), octal12(*len)].concat()).collect();
        bytes.resize(len, 0);
        bytes
    };
    let (own, mut rest) = regions.split_at(regions.len().min(4));
    let header =
        Raw::new(b'S', name).magic(GNU).put(386, &fields(own, 96)).put(482, &[u8::from(!rest.is_empty())]);
    let mut bytes = header.put(483, &octal12(real)).size(&octal12(stored.len() as u64)).bytes();
    while !rest.is_empty() {
        let (own, more) = rest.split_at(rest.len().min(21));
        bytes.extend(fields(own, 504));
        bytes.extend([u8::from(!more.is_empty()), 0, 0, 0, 0, 0, 0, 0]);
        rest = more;
    }
    bytes.extend_from_slice(stored);
    bytes.resize(bytes.len().next_multiple_of(BLOCK), 0);
    bytes
}

/// Returns a sparse file of the form 1.0 of pax.
pub fn pax_sparse(name: &[u8], regions: &[(u64, u64)], real: u64, stored: &[u8]) -> Vec<u8> {
    let mut map = format!("{}\n", regions.len());
    for (offset, len) in regions {
        map += &format!("{offset}\n{len}\n");
    }
    let mut content = map.into_bytes();
    content.resize(content.len().next_multiple_of(BLOCK), 0);
    content.extend_from_slice(stored);
    let real = real.to_string();
    let records: [(&[u8], &[u8]); 4] = [
        (b"GNU.sparse.major", b"1"),
        (b"GNU.sparse.minor", b"0"),
        (b"GNU.sparse.name", name),
        (b"GNU.sparse.realsize", real.as_bytes()),
    ];
    [Raw::pax(b'x', &records).bytes(), Raw::file(b"GNUSparseFile.0/it", &content).bytes()].concat()
}
