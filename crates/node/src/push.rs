//! Push notifications of new revisions: from an Esker server that has the repository, or from a notification server of
//! CernVM-FS. A notification only triggers a refresh of the head, which is verified as always.

use std::sync::{Arc, Weak};
use std::time::Duration;

use esker_format::manifest::Manifest;
use esker_format::{base64, name::RepositoryName};
use esker_store::{Proxies, Servers, SseListener, SseOptions, StoreError};
use esker_view::View;
use serde::{Deserialize, Serialize};
use serde_json::json;

/// Timeout for a silent Esker server: three of its heartbeats.
const SILENCE: Duration = Duration::from_secs(45);
/// Timeout for a silent notification server, which ends a stream after two hours without events.
const SILENCE_OF_NOTIFICATIONS: Duration = Duration::from_secs(7_500);

/// Source of push notifications.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Push {
    /// From the repository's own server, if it is used without a proxy and supports it. Not through proxies: a stream
    /// takes one of their connections for each node.
    #[default]
    Server,
    /// From a notification server of CernVM-FS, by its URL.
    Notifications(String),
    /// No push notifications.
    Off,
}

/// Event of an Esker server.
#[derive(Deserialize)]
struct PublishedEvent {
    repository: String,
    revision: u64,
}

/// Event of a notification server, made by the publisher.
#[derive(Deserialize)]
struct Notified {
    repository: String,
    /// Content of `.cvmfspublished` in base64.
    manifest: String,
}

impl Push {
    /// Returns the source of notifications for a repository on these servers.
    pub(crate) fn listen(&self, name: &RepositoryName, servers: &Servers) -> Option<SseOptions> {
        match self {
            Self::Off => None,
            Self::Notifications(server) => Some(SseOptions {
                url: format!("{}/notifications/subscribe", server.trim_end_matches('/')),
                body: json!({ "version": 1, "repository": name.as_str() }).to_string(),
                silence: SILENCE_OF_NOTIFICATIONS,
                authorities: servers.authorities.clone(),
            }),
            Self::Server => {
                let url = servers.url().trim_end_matches('/');
                let direct = servers.proxies == Proxies::direct() && servers.fallback.is_empty();
                (direct && url.starts_with("http")).then(|| SseOptions {
                    url: format!("{url}/.esker/revisions"),
                    body: String::new(),
                    silence: SILENCE,
                    authorities: servers.authorities.clone(),
                })
            }
        }
    }
}

/// Forwards notifications to a view during its lifetime.
pub(crate) fn start(listen: SseOptions, view: &Arc<View>) -> Result<SseListener, StoreError> {
    let (name, view): (_, Weak<View>) = (view.name().clone(), Arc::downgrade(view));
    let heard = Arc::new(move |event: &[u8]| {
        if let (Some(revision), Some(view)) = (revision(event, &name), view.upgrade()) {
            view.hint_revision(Some(revision));
        }
    });
    SseListener::start(listen, heard)
}

/// Returns the revision in an event; `None` if it has none of this repository.
fn revision(event: &[u8], name: &RepositoryName) -> Option<u64> {
    if let Ok(told) = serde_json::from_slice::<PublishedEvent>(event) {
        return (told.repository == name.as_str()).then_some(told.revision);
    }
    let notified: Notified = serde_json::from_slice(event).ok()?;
    let manifest =
        base64::decode(notified.manifest.as_bytes()).filter(|_| notified.repository == name.as_str())?;
    Some(Manifest::parse(&manifest).ok()?.revision)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_of_both_kinds_of_servers_are_parsed_and_nonsense_is_ignored() {
        let name = RepositoryName::parse("a.test").expect("a name");
        let heard = |event: &str| revision(event.as_bytes(), &name);
        assert_eq!(heard(r#"{"repository":"a.test","revision":13,"root_hash":"x"}"#), Some(13));
        // "C" and a hash, "R", "D", "S42", "T" and the name, then the end of the signed part.
        let manifest = "QzAxMjM0NTY3ODlhYmNkZWYwMTIzNDU2Nzg5YWJjZGVmMDEyMzQ1NjcKQjE1ClJkNDFkOGNkOThmMDBiMjA0ZTk4MDA5OThlY2Y4NDI3ZQpEMjQwClM0MgpHbm8KTmEudGVzdApUMTcwMDAwMDAwMAotLQo=";
        let notified = |repository: &str, manifest: &str| {
            heard(&format!(
                r#"{{"version":1,"timestamp":"t","type":"activity","repository":"{repository}","manifest":"{manifest}"}}"#
            ))
        };
        assert_eq!(notified("a.test", manifest), Some(42));
        for nonsense in [
            notified("b.test", manifest),
            notified("a.test", "QzAx"),
            notified("a.test", "%"),
            heard(r#"{"repository":"b.test","revision":13}"#),
            heard(r#"{"status":"timeout"}"#),
            heard(""),
        ] {
            assert_eq!(nonsense, None);
        }
    }

    #[test]
    fn push_is_used_for_servers_without_a_proxy() {
        let name = RepositoryName::parse("a.test").expect("a name");
        let url = |push: &Push, servers: &Servers| push.listen(&name, servers).map(|listen| listen.url);
        let direct = Servers::direct("http://s:8000/cvmfs/a.test/");
        assert_eq!(
            url(&Push::Server, &direct).as_deref(),
            Some("http://s:8000/cvmfs/a.test/.esker/revisions")
        );
        let proxies = Proxies::parse("http://p:3128;DIRECT", None).expect("proxies");
        let behind = Servers { proxies, ..direct.clone() };
        assert_eq!(url(&Push::Server, &behind), None);
        assert_eq!(url(&Push::Server, &Servers::direct("file:///srv/a.test")), None);
        let named = Push::Notifications("http://n:80/api/v1/".into());
        assert_eq!(url(&named, &behind).as_deref(), Some("http://n:80/api/v1/notifications/subscribe"));
        assert_eq!(url(&Push::Off, &direct), None);
    }
}
