//! Metrics of all mounts of a node, in the forms that monitoring systems read.
//!
//! ```text
//!  control sockets ─► scrape ─► families (our names) or cvmfs (names of the exporter that sites have)
//!                                   └─► text (Prometheus) or otlp (OpenTelemetry)
//! ```
//!
//! The daemons only count; each scrape asks them all at once, each within a deadline.

mod affairs;
mod cvmfs;
mod family;
mod otlp;
mod ours;
mod scrape;
mod text;

pub use affairs::{ReferenceCounter, affairs};
pub use cvmfs::of_exporter;
pub use family::{Family, Histogram, Kind, Sample, Value};
pub use otlp::otlp;
pub use ours::families;
pub use scrape::{Scrape, ScrapedMount, scrape};
pub use text::{CONTENT_TYPE, text};
