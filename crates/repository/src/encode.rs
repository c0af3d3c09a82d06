//! Encodes content into stored bytes.

use esker_format::compress::Compression;
use esker_format::write::deflate::ExactZlib;
use esker_format::write::encode::{FastZlib, Zstd};
use esker_store::StockZlib;

use crate::error::RepositoryError;

/// The zlib encoder of the content of files, which names their objects.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Deflate {
    /// Writes the same bytes as CernVM-FS, whose tools compress content again and compare names.
    #[default]
    Stock,
    /// libdeflate, which is faster. Clients of the reference implementation read it, `cvmfs_fsck` calls it corrupt.
    Fast,
    /// zlib itself, whose output is that of `Stock`: for measurements.
    Zlib,
}

/// Encoder of one thread.
#[derive(Debug)]
pub struct Encoder(Method);

#[derive(Debug)]
enum Method {
    Stored,
    Exact(ExactZlib),
    Fast(FastZlib),
    Zlib(StockZlib),
    Zstd(Zstd),
}

impl Encoder {
    /// Returns an encoder for the content of files.
    pub fn new(compression: Compression, deflate: Deflate) -> Result<Self, RepositoryError> {
        Ok(Self(match (compression, deflate) {
            (Compression::Stored, _) => Method::Stored,
            (Compression::Zlib, Deflate::Stock) => Method::Exact(ExactZlib::new()),
            (Compression::Zlib, Deflate::Fast) => Method::Fast(FastZlib::new()),
            (Compression::Zlib, Deflate::Zlib) => {
                Method::Zlib(StockZlib::new().map_err(RepositoryError::Encoder)?)
            }
            (Compression::Zstd, _) => Method::Zstd(Zstd::new().map_err(RepositoryError::Encoder)?),
        }))
    }

    /// Returns an encoder for catalogs, history, certificate and metainfo.
    ///
    /// `cvmfs_swissknife pull` stores certificate and metainfo compressed anew under the names that they had, so whatever
    /// the settings say these are written as the reference implementation writes them.
    pub fn for_metadata() -> Self {
        Self(Method::Exact(ExactZlib::new()))
    }

    /// Returns the stored form of plain bytes; `room` is the buffer for it if the two differ.
    pub fn encode<'b>(
        &mut self,
        plain: &'b [u8],
        room: &'b mut Vec<u8>,
    ) -> Result<&'b [u8], RepositoryError> {
        match &mut self.0 {
            Method::Stored => return Ok(plain),
            Method::Exact(exact) => exact.encode(plain, room),
            Method::Fast(fast) => fast.encode(plain, room),
            Method::Zlib(zlib) => zlib.encode(plain, room).map_err(RepositoryError::Encoder)?,
            Method::Zstd(zstd) => zstd.encode(plain, room).map_err(RepositoryError::Encoder)?,
        }
        Ok(room)
    }
}
