//! Finds the revision to open: the head, or one that the signed history or the user names.

use esker_format::history::Tag;
use esker_format::name::RepositoryName;
use esker_format::time::UnixTime;
use esker_store::{HeadKeeper, ObjectStore};
use esker_vfs::{ErrorKind, TreeError};

use crate::catalogs::WantedCatalog;
use crate::head::Head;
use crate::options::Pin;
use crate::published::history;

/// Number of known tags that an error for an unknown tag names.
const TAGS_NAMED: usize = 8;

/// Revision to open.
pub(crate) struct Start {
    pub(crate) root: WantedCatalog,
    /// Number of the revision; `None` if only the catalog itself has it.
    pub(crate) number: Option<u64>,
    pub(crate) published: Option<u64>,
    pub(crate) tag: Option<String>,
    pub(crate) head: Option<Head>,
}

impl Start {
    /// Finds the revision to open.
    pub(crate) fn find(
        pin: Option<&Pin>,
        store: &dyn ObjectStore,
        heads: &HeadKeeper,
    ) -> Result<Self, TreeError> {
        let name = heads.name();
        match pin {
            None | Some(Pin::Head) => Ok(Self::at_head(Head::look(heads)?)),
            Some(Pin::Tag(tag)) => Self::at_tag(name, store, &Head::look(heads)?, tag),
            Some(Pin::Date(date)) => Self::at_date(name, store, Head::look(heads)?, *date),
            // The hash was given by the user; the catalog itself has the rest.
            Some(Pin::Root(hash)) => Ok(Self {
                root: WantedCatalog::new(*hash, None, b""),
                number: None,
                published: None,
                tag: None,
                head: None,
            }),
        }
    }

    fn at_head(head: Head) -> Self {
        Self {
            root: head.root_catalog(),
            number: Some(head.revision),
            published: head.published,
            tag: None,
            head: Some(head),
        }
    }

    fn at_tag(
        name: &RepositoryName,
        store: &dyn ObjectStore,
        head: &Head,
        tag: &str,
    ) -> Result<Self, TreeError> {
        let history = history(name, store, head)?;
        let Some(found) = history.find(tag) else {
            let known: Vec<&str> = history.tags().iter().take(TAGS_NAMED).map(|tag| &*tag.name).collect();
            let reason =
                format!("the history of {name} has no such tag; its newest are {}", known.join(", "));
            return Err(TreeError::on(ErrorKind::NotFound, format!("tag `{tag}`")).because(reason));
        };
        Ok(Self::tagged(head, found))
    }

    /// Finds the newest revision at a date: the head if it was signed by then, otherwise one of the history.
    fn at_date(
        name: &RepositoryName,
        store: &dyn ObjectStore,
        head: Head,
        date: UnixTime,
    ) -> Result<Self, TreeError> {
        if head.published.and_then(|published| i64::try_from(published).ok()).is_some_and(|at| at <= date.0) {
            return Ok(Self::at_head(head));
        }
        let history = history(name, store, &head)?;
        let Some(found) = history.at(date) else {
            let reason = match history.tags().iter().map(|tag| tag.timestamp).min() {
                Some(oldest) => format!("the oldest that the history of {name} names is of {oldest}"),
                None => format!("the history of {name} names none"),
            };
            return Err(TreeError::on(ErrorKind::NotFound, format!("a revision of {date}")).because(reason));
        };
        Ok(Self::tagged(&head, found))
    }

    fn tagged(head: &Head, found: &Tag) -> Self {
        let Tag { name, root_catalog, size, revision, timestamp, .. } = found;
        Self {
            root: WantedCatalog::new(*root_catalog, *size, b""),
            number: Some(*revision),
            published: u64::try_from(timestamp.0).ok(),
            tag: Some(name.clone()),
            head: Some(head.clone()),
        }
    }
}
