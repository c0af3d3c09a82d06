//! Names of servers to addresses, without the C library: a static binary can't load its modules.

use std::cell::RefCell;
use std::net::{IpAddr, SocketAddr};
use std::rc::Rc;

use hickory_resolver::TokioResolver;

use crate::error::Cause;

/// Asks `/etc/hosts`, then the servers of `/etc/resolv.conf`; remembers answers as long as they allow.
#[derive(Default)]
pub(super) struct Names {
    resolver: RefCell<Option<Rc<TokioResolver>>>,
}

impl Names {
    /// The addresses of a server, in the order to try them.
    pub(super) async fn resolve(&self, host: &str, port: u16) -> Result<Vec<SocketAddr>, Cause> {
        if let Ok(address) = host.parse::<IpAddr>() {
            return Ok(vec![SocketAddr::new(address, port)]);
        }
        let failed = |reason: String| Cause::Unresolved { host: host.to_owned(), reason };
        let resolver = self.resolver().map_err(failed)?;
        match resolver.lookup_ip(host).await {
            Ok(found) => {
                let found: Vec<_> = found.iter().map(|address| SocketAddr::new(address, port)).collect();
                if found.is_empty() { Err(failed("it has no address".to_owned())) } else { Ok(found) }
            }
            Err(error) => {
                // The network may have changed, and with it /etc/resolv.conf: read it again next time.
                *self.resolver.borrow_mut() = None;
                Err(failed(error.to_string()))
            }
        }
    }

    fn resolver(&self) -> Result<Rc<TokioResolver>, String> {
        if let Some(resolver) = &*self.resolver.borrow() {
            return Ok(resolver.clone());
        }
        let built = TokioResolver::builder_tokio().and_then(|builder| builder.build());
        let built = Rc::new(built.map_err(|error| format!("reading /etc/resolv.conf: {error}"))?);
        *self.resolver.borrow_mut() = Some(built.clone());
        Ok(built)
    }
}
