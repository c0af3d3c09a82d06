//! Whoever wants to know what is read.

use std::ops::Range;
use std::sync::Arc;

use esker_vfs::Node;

use crate::payload::Notes;
use crate::view::View;

/// Hears of every read that reaches a view. Reads that the kernel answers from its own memory don't.
pub trait Observer: Send + Sync {
    /// A program reads these bytes of a file of this size. Called before they are looked for; must not wait.
    fn read(&self, file: &Node, size: u64, range: Range<u64>);
}

impl View {
    /// Tells `observer` of every read from now on. A view has one observer; later ones hear nothing.
    pub fn observe(&self, observer: Arc<dyn Observer>) {
        let _ = self.observer.set(observer);
    }

    pub(crate) fn observed(&self, file: &Node, offset: u64, len: usize) {
        let Some(observer) = self.observer.get() else { return };
        if let Ok(Notes { size, .. }) = Notes::of(file) {
            let range = offset..offset.saturating_add(len as u64).min(size);
            if !range.is_empty() {
                observer.read(file, size, range);
            }
        }
    }
}
