//! Encodes what the allocator records for a process that takes over: numbers, nodes and attributes.

use esker_vfs::{Attr, Device, Ino, Kind, Node, NodeKey, PAYLOAD_LEN, Payload, Time};

/// A record that is being written.
pub(crate) struct Writer(pub(crate) Vec<u8>);

impl Writer {
    /// Begins a record of this kind.
    pub(crate) fn new(kind: u8) -> Self {
        Self(vec![kind])
    }

    pub(crate) fn number(mut self, number: u64) -> Self {
        self.0.extend_from_slice(&number.to_le_bytes());
        self
    }

    pub(crate) fn node(mut self, node: &Node) -> Self {
        self.0.extend_from_slice(&node.key.0);
        self.0.extend_from_slice(&node.payload.0);
        self.number(node.ino.0).number(node.kind as u64)
    }

    pub(crate) fn attr(self, attr: &Attr) -> Self {
        let Attr { ino, size, mtime, permissions, kind, nlink, uid, gid, rdev } = *attr;
        let numbers = [u64::from(permissions), kind as u64, nlink.into(), uid.into(), gid.into()];
        let time =
            self.number(ino.0).number(size).number(mtime.secs.cast_unsigned()).number(mtime.nanos.into());
        let rest = numbers.into_iter().fold(time, Self::number);
        rest.number(rdev.major.into()).number(rdev.minor.into())
    }

    /// Ends the record with bytes.
    pub(crate) fn bytes(mut self, bytes: &[u8]) -> Vec<u8> {
        self.0.extend_from_slice(bytes);
        self.0
    }
}

/// The rest of a record that is being read.
pub(crate) struct Reader<'a>(pub(crate) &'a [u8]);

impl Reader<'_> {
    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (array, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(*array)
    }

    pub(crate) fn number(&mut self) -> Option<u64> {
        self.array().map(u64::from_le_bytes)
    }

    fn small<T: TryFrom<u64>>(&mut self) -> Option<T> {
        T::try_from(self.number()?).ok()
    }

    fn kind(&mut self) -> Option<Kind> {
        let number = self.number()?;
        let all = [Kind::Directory, Kind::File, Kind::Symlink, Kind::Fifo, Kind::Socket, Kind::CharDevice];
        all.into_iter().chain([Kind::BlockDevice]).find(|kind| *kind as u64 == number)
    }

    pub(crate) fn node(&mut self) -> Option<Node> {
        let key = NodeKey(self.array()?);
        let payload = Payload(self.array::<PAYLOAD_LEN>()?);
        Some(Node { key, payload, ino: Ino(self.number()?), kind: self.kind()? })
    }

    pub(crate) fn attr(&mut self) -> Option<Attr> {
        Some(Attr {
            ino: Ino(self.number()?),
            size: self.number()?,
            mtime: Time { secs: self.number()?.cast_signed(), nanos: self.small()? },
            permissions: self.small()?,
            kind: self.kind()?,
            nlink: self.small()?,
            uid: self.small()?,
            gid: self.small()?,
            rdev: Device { major: self.small()?, minor: self.small()? },
        })
    }
}
