//! Proxies that want a user name and a password.

use esker_store::{Authorities, Cause, Engine, EngineOptions, Proxies, RetryPolicy, Servers, connect};
use esker_testkit::log_lines::LogLines;
use esker_testkit::web::{Authority, Web};

use crate::rig::{Rig, bytes, folder, objects, roomy, serve};

const PASSWORD: &str = "op:en@se|same;%";
/// The same in the form of a URL.
const ESCAPED: &str = "op%3Aen%40se%7Csame%3B%25";

fn rig() -> Rig {
    let retry = RetryPolicy { attempts: 1, ..RetryPolicy::default() };
    Rig::with(Engine::start(EngineOptions { retry, ..EngineOptions::default() }).unwrap(), roomy())
}

#[test]
fn a_login_is_sent_to_the_proxy_only() {
    let objects = objects(4);
    let (proxy, _folder) = serve(&objects);
    let (origin, _folder) = serve(&objects);
    let at = format!("127.0.0.1:{}", proxy.port());
    for (number, (list, sent)) in [
        (format!("http://{at}"), None),
        // The example of RFC 7617.
        (format!("http://Aladdin:open%20sesame@{at}"), Some("Basic QWxhZGRpbjpvcGVuIHNlc2FtZQ==")),
        (format!("Aladdin@{at};DIRECT"), Some("Basic QWxhZGRpbjo=")),
    ]
    .into_iter()
    .enumerate()
    {
        let rig = Rig::new();
        let mut servers = Servers::direct(origin.url("repo"));
        servers.proxies = Proxies::parse(&list, None).unwrap();
        let source = connect(&rig.engine, servers).unwrap();
        bytes(&rig.store(source.clone()), &objects[number].wanted).unwrap();
        let request = proxy.requests().pop().unwrap();
        assert_eq!(request.header("proxy-authorization"), sent, "{list}");
        let shown = format!("{:?}", source.network());
        assert!(!shown.contains("sesame") && !shown.contains("Aladdin"), "{shown}");
    }
    let rig = Rig::new();
    let mut servers = Servers::direct(origin.url("repo"));
    // No process listens there, so that requests go to the server directly.
    servers.proxies = Proxies::parse("http://me:secret@127.0.0.1:1;DIRECT", None).unwrap();
    bytes(&rig.store(connect(&rig.engine, servers).unwrap()), &objects[3].wanted).unwrap();
    let requests = origin.requests();
    assert!(requests.len() == 1 && requests[0].header("proxy-authorization").is_none(), "{requests:?}");
}

#[test]
fn a_proxy_requires_its_password() {
    let objects = objects(4);
    let folder = folder(&objects);
    let authority = Authority::new();
    let (certificate, key) = authority.sign("IP:127.0.0.1", 1);
    let web = Web::nginx(2, |_, ports| {
        let root = folder.path().display();
        format!(
            "server {{ listen 127.0.0.1:{}; root {root}; }}\nserver {{ listen 127.0.0.1:{} ssl; ssl_certificate {}; \
             ssl_certificate_key {}; root {root}; }}",
            ports[0],
            ports[1],
            certificate.display(),
            key.display()
        )
    });
    let squid = Web::squid_for("me", PASSWORD);
    let port = squid.ports()[0];
    for (scheme, server) in [("http", web.ports()[0]), ("https", web.ports()[1])] {
        let mut servers = Servers::direct(format!("{scheme}://127.0.0.1:{server}/repo"));
        let paths = vec![authority.certificate().display().to_string()];
        servers.authorities = Authorities { system: false, paths };
        let lines = LogLines::collect();
        let read = |list: &str, object: usize| {
            let rig = rig();
            let servers = Servers { proxies: Proxies::parse(list, None).unwrap(), ..servers.clone() };
            let source = connect(&rig.engine, servers).unwrap();
            let outcome = bytes(&rig.store(source.clone()), &objects[object].wanted).map(drop);
            (outcome, source.network().route)
        };
        let good = format!("http://me:{ESCAPED}@127.0.0.1:{port}");
        let (outcome, route) = read(&good, 0);
        outcome.unwrap_or_else(|error| panic!("{scheme}: {}", error.full_text()));
        assert_eq!(route.proxies[0][0].name, format!("http://127.0.0.1:{port}"));

        let wrong = format!("http://me:wrong-secret@127.0.0.1:{port}");
        let (outcome, route) = read(&wrong, 1);
        let error = outcome.unwrap_err();
        assert!(matches!(error.cause(), Cause::ProxyLogin { user: Some(user) } if user == "me"), "{error}");
        let text = format!("{} {error:?} {route:?} {:?}", error.full_text(), lines.all());
        assert!(text.contains("407") && text.contains("`me`") && !text.contains("wrong-secret"), "{text}");
        assert!(route.proxies[0][0].out, "{route:?}");

        let (outcome, _) = read(&format!("http://127.0.0.1:{port}"), 1);
        let error = outcome.unwrap_err();
        assert!(matches!(error.cause(), Cause::ProxyLogin { user: None }), "{error}");
        assert!(error.to_string().contains("http://USER:PASSWORD@HOST:PORT"), "{error}");

        // Two logins at one address are two proxies, one after the other or beside each other.
        for list in [format!("{wrong};{good}"), format!("{wrong}|{good}"), format!("{wrong};DIRECT")] {
            let (outcome, route) = read(&list, 2);
            outcome.unwrap_or_else(|error| panic!("{scheme}: {list}: {}", error.full_text()));
            assert!(!list.contains(';') || route.proxies[0][0].out, "{route:?}");
        }
    }
}
