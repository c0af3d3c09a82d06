//! Keeps the objects that were read last: a walk over revisions reads most root catalogs three times.

use std::collections::VecDeque;
use std::sync::Arc;

use esker_format::object::{ObjectKind, ObjectName};
use esker_store::LargeBytes;
use parking_lot::Mutex;

use crate::error::RepositoryError;
use crate::object_source::{ObjectSource, WantedObject};

/// Number of catalogs that are kept.
const KEPT: usize = 3;
/// Maximum number of plain bytes of a kept catalog.
const KEPT_BYTES_MAX: usize = 128 << 20;

/// An object source that keeps the catalogs that were read last.
pub(crate) struct RecentObjects {
    source: Arc<dyn ObjectSource>,
    recent: Mutex<VecDeque<(ObjectName, LargeBytes)>>,
}

impl RecentObjects {
    pub(crate) fn new(source: Arc<dyn ObjectSource>) -> Self {
        Self { source, recent: Mutex::default() }
    }
}

impl ObjectSource for RecentObjects {
    fn object(&self, wanted: &WantedObject<'_>) -> Result<LargeBytes, RepositoryError> {
        if wanted.name.kind != ObjectKind::Catalog {
            return self.source.object(wanted);
        }
        if let Some((_, bytes)) = self.recent.lock().iter().find(|(name, _)| *name == wanted.name) {
            return Ok(bytes.clone());
        }
        let bytes = self.source.object(wanted)?;
        if bytes.len() <= KEPT_BYTES_MAX {
            let mut recent = self.recent.lock();
            recent.push_front((wanted.name, bytes.clone()));
            recent.truncate(KEPT);
        }
        Ok(bytes)
    }
}
