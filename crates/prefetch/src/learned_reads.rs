//! Predicts what follows in the sequences of reads that were recorded on this node.

use std::ops::Range;
use std::time::Instant;

use crate::cluster::{CatalogRequest, Cluster};
use crate::event::{Event, Read};
use crate::predictor::{Context, Predictor};
use crate::sequences::{PART, Prediction, Sequences};

/// Records reads, and predicts the next steps of their sequences.
pub(crate) struct LearnedReads(pub(crate) Sequences);

impl LearnedReads {
    /// Records a read; returns the prediction of its sequence.
    pub(crate) fn record(&mut self, read: &Read) -> Prediction {
        let Some(path) = &read.file.path else { return Prediction::default() };
        self.record_parts(path, &read.range)
    }

    fn record_parts(&mut self, path: &[u8], range: &Range<u64>) -> Prediction {
        let mut all = Prediction::default();
        let now = Instant::now();
        for part in range.start / PART..range.end.div_ceil(PART) {
            let Ok(part) = u32::try_from(part) else { break };
            let Prediction { guided, next } = self.0.read(path, part, now);
            all.guided |= guided;
            all.next.extend(next);
        }
        all
    }
}

impl<C: CatalogRequest> Predictor<C> for LearnedReads {
    fn on(&mut self, event: Event<C>, context: &mut Context<'_, C>) -> Option<Event<C>> {
        let Event::Read(mut read) = event else { return Some(event) };
        let Prediction { guided, next } = self.record(&read);
        read.is_guided = guided;
        if !next.is_empty() {
            context.raise(Event::Cluster(Box::new(Cluster::of_steps(&next))));
        }
        Some(Event::Read(read))
    }
}
