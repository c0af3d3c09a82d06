//! State that all hosts share on the network thread.

use std::sync::Arc;

use super::dns::Names;
use super::options::HttpOptions;
use super::tls::Tls;
use crate::memory_budget::MemoryBudget;

/// State that all hosts share on the network thread.
pub(super) struct NetworkContext {
    pub(super) options: HttpOptions,
    pub(super) budget: Arc<MemoryBudget>,
    pub(super) names: Names,
    pub(super) tls: Tls,
}
