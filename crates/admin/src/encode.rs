//! How content becomes stored bytes.

use esker_format::compress::Compression;
use esker_format::write::encode::{FastZlib, Zstd};
use esker_store::StockZlib;

use crate::error::AdminError;

/// Which zlib encoder names objects.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Deflate {
    /// A fast one.
    #[default]
    Fast,
    /// The one of the reference implementation: its objects get the same names.
    Stock,
}

/// Encodes content, one thread's.
#[derive(Debug)]
pub struct Encoder(Method);

#[derive(Debug)]
enum Method {
    Stored,
    Fast(FastZlib),
    Stock(StockZlib),
    Zstd(Zstd),
}

impl Encoder {
    /// An encoder for a compression.
    pub fn new(compression: Compression, deflate: Deflate) -> Result<Self, AdminError> {
        Ok(Self(match (compression, deflate) {
            (Compression::Stored, _) => Method::Stored,
            (Compression::Zlib, Deflate::Fast) => Method::Fast(FastZlib::new()),
            (Compression::Zlib, Deflate::Stock) => {
                Method::Stock(StockZlib::new().map_err(AdminError::Encoder)?)
            }
            (Compression::Zstd, _) => Method::Zstd(Zstd::new().map_err(AdminError::Encoder)?),
        }))
    }

    /// The stored bytes for plain ones; `room` is used if they differ.
    pub fn encode<'b>(&mut self, plain: &'b [u8], room: &'b mut Vec<u8>) -> Result<&'b [u8], AdminError> {
        match &mut self.0 {
            Method::Stored => return Ok(plain),
            Method::Fast(fast) => fast.encode(plain, room),
            Method::Stock(stock) => stock.encode(plain, room).map_err(AdminError::Encoder)?,
            Method::Zstd(zstd) => zstd.encode(plain, room).map_err(AdminError::Encoder)?,
        }
        Ok(room)
    }
}
