//! The dashboard in a browser: without errors, without requests to elsewhere, by keyboard, without scripts, and as
//! axe-core judges it.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use base64ct::{Base64, Encoding as _};
use esker_testkit::fixture::{FULL, RMD, Repository, SHAKE};
use esker_testkit::skip_optional;
use serde_json::{Value, json};

use crate::chromium::Chromium;
use crate::client::Running;

/// Folder for screenshots; without it they are not kept.
const SCREENSHOTS: &str = "ESKER_SCREENSHOTS";

/// Pages that are looked at, and names of their screenshots.
const PAGES: [(&str, &str); 9] = [
    ("/", "repositories"),
    ("/dashboard/repo/full.test", "repository"),
    ("/dashboard/repo/full.test/revisions", "revisions"),
    ("/dashboard/repo/full.test/tree", "tree"),
    ("/dashboard/repo/full.test/catalogs", "catalogs"),
    ("/dashboard/repo/full.test/compare?from=v1&to=v3", "compare"),
    ("/dashboard/repo/full.test/search?q=f", "search"),
    ("/dashboard/repo/rmd.test/tree?path=/many", "directory"),
    ("/dashboard/site", "site"),
];

/// Screenshots that documents show.
const SHOWN: [&str; 4] = ["repositories", "repository", "compare", "catalogs"];

/// Several repositories in one folder: one published, one replica, one that failed its check.
struct Scene {
    first: Repository,
    _others: [Repository; 2],
    server: Running,
}

impl Scene {
    fn new() -> Self {
        let (first, rmd, shake) = (FULL.unpack(), RMD.unpack(), SHAKE.unpack());
        let status = json!({
            "last_snapshot": date("20 minutes ago"),
            "last_gc": date("2 days ago"),
            "last_check": date("5 hours ago"),
            "check_status": "succeeded",
            "source": "http://stratum0.example.org:8000/cvmfs/rmd.test",
        });
        rmd.write(".cvmfs_status.json", status.to_string().as_bytes());
        let status = json!({ "last_check": date("3 hours ago"), "check_status": "failed" });
        shake.write(".cvmfs_status.json", status.to_string().as_bytes());
        for other in [&rmd, &shake] {
            let name = other.fixture().name();
            fs::rename(other.path(), first.document_root().join(name)).expect("moving a repository");
        }
        let broken = first.document_root().join("broken.test");
        fs::create_dir(&broken).expect("a folder");
        fs::write(broken.join(".cvmfspublished"), b"nonsense<script>alert(1)</script>").expect("a file");
        let server = Running::of(&[first.document_root().to_owned()]);
        Self { first, _others: [rmd, shake], server }
    }

    fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.server.address)
    }
}

/// Returns a time as status files have it.
fn date(words: &str) -> String {
    let output = Command::new("date").args(["--utc", "--date", words]).env("LC_ALL", "C").output();
    String::from_utf8(output.expect("running date").stdout).expect("text").trim().to_owned()
}

/// Returns the file of axe-core that `scripts/needs.sh` fetched.
fn axe() -> Option<String> {
    let target = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target");
    fs::read_to_string(target.join("tools/axe-core/package/axe.min.js")).ok()
}

#[test]
fn pages_have_no_errors_and_ask_no_other_server() {
    let Some(program) = Chromium::program() else {
        skip_optional!("Chromium is not installed");
        return;
    };
    let scene = Scene::new();
    assert!(scene.first.path().exists());
    let mut browser = Chromium::start(program);
    for (path, _) in PAGES {
        browser.open(&scene.url(path));
        let errors = browser.errors();
        assert!(errors.is_empty(), "{path}: {errors:?}");
        let requests = browser.take(&["Network.requestWillBeSent"]);
        assert!(!requests.is_empty(), "{path} sent no request");
        for request in requests {
            let url = request["params"]["request"]["url"].as_str().unwrap_or_default().to_owned();
            assert!(url.starts_with(&scene.url("/")), "{path} asks for {url}");
        }
        // The script has run: it adds its button where there are live numbers.
        let is_live = browser.value("document.querySelectorAll('[data-live]').length > 0") == true;
        let has_button = browser.value("document.querySelector('header button') !== null") == true;
        assert!(has_button == is_live, "{path}: {is_live} {has_button}");
    }
    // A number is renewed by the script without a new page.
    browser.open(&scene.url("/"));
    let cell = "document.querySelector('[data-live=\"full.test revision\"]').textContent";
    let before = browser.value(cell);
    browser.value("document.querySelector('[data-live=\"full.test revision\"]').textContent = 'old'");
    // Stopped and started again, the script renews at once.
    let press = "document.querySelector('header button').click()";
    browser.value(&format!("{press}; {press}"));
    let renewed = format!(
        "new Promise((done) => {{ const look = () => {cell} === 'old' ? requestAnimationFrame(look) : done({cell}); look(); }})"
    );
    assert_eq!(browser.value(&renewed), before);
    assert!(browser.errors().is_empty());
}

/// What can be followed, typed into or opened gets the focus of the tabulator key, visibly, and the first is the link
/// to the content.
#[test]
fn everything_is_reached_by_keyboard() {
    let Some(program) = Chromium::program() else {
        skip_optional!("Chromium is not installed");
        return;
    };
    let scene = Scene::new();
    let mut browser = Chromium::start(program);
    for path in ["/", "/dashboard/repo/full.test", "/dashboard/repo/full.test/compare", "/dashboard/site"] {
        browser.open(&scene.url(path));
        let wanted = "document.querySelectorAll('a[href], button, input:not([type=hidden]), summary, [tabindex=\"0\"]')";
        // What a closed part hides can't be reached, rightly.
        let count = browser.value(&format!(
            "window.wanted = [...{wanted}].filter((element) => element.checkVisibility()); wanted.length"
        ));
        let count = count.as_u64().expect("a number");
        let mut reached = BTreeSet::new();
        for step in 0..count {
            browser.press("Tab", 9);
            let focus = browser.value(
                "({ at: wanted.indexOf(document.activeElement), text: document.activeElement.textContent, \
                   line: getComputedStyle(document.activeElement).outlineStyle })",
            );
            assert!(step > 0 || focus["text"] == "Skip to the content", "{path}: {focus}");
            assert_eq!(focus["line"], "solid", "{path}: the focus is not seen: {focus}");
            reached.insert(focus["at"].as_i64().expect("a number"));
        }
        assert!(!reached.contains(&-1), "{path}: {reached:?}");
        assert_eq!(reached.len() as u64, count, "{path}: {reached:?}");
    }
    // The first link leads past the navigation.
    browser.open(&scene.url("/"));
    browser.press("Tab", 9);
    browser.press("Enter", 13);
    assert_eq!(browser.value("location.hash"), "#main");
}

#[test]
fn tables_fit_a_window_of_1280_pixels() {
    let Some(program) = Chromium::program() else {
        skip_optional!("Chromium is not installed");
        return;
    };
    let scene = Scene::new();
    let mut browser = Chromium::start(program);
    let size = json!({ "width": 1280, "height": 800, "deviceScaleFactor": 1, "mobile": false });
    browser.call("Emulation.setDeviceMetricsOverride", &size);
    for path in ["/", "/?sort=whitelist", "/dashboard/repo/rmd.test", "/dashboard/site"] {
        browser.open(&scene.url(path));
        let over = "[...document.querySelectorAll('.wide, body')].filter(e => e.scrollWidth > e.clientWidth).map(e => e.scrollWidth)";
        assert_eq!(browser.value(over), json!([]), "{path}");
    }
}

#[test]
fn pages_are_whole_without_scripts() {
    let Some(program) = Chromium::program() else {
        skip_optional!("Chromium is not installed");
        return;
    };
    let scene = Scene::new();
    let mut browser = Chromium::start(program);
    browser.call("Emulation.setScriptExecutionDisabled", &json!({ "value": true }));
    for (path, _) in PAGES {
        browser.open(&scene.url(path));
        let document = browser.call("DOM.getDocument", &json!({ "depth": 0 }));
        let html = browser.call("DOM.getOuterHTML", &json!({ "nodeId": document["root"]["nodeId"] }));
        let html = html["outerHTML"].as_str().expect("text").to_owned();
        assert!(html.contains("<h1>") && html.contains("</table>"), "{path}: {html}");
        assert!(!html.contains("Stop renewing"), "{path}: a button that does nothing");
        let errors = browser.errors();
        assert!(errors.is_empty(), "{path}: {errors:?}");
    }
}

#[test]
fn axe_finds_nothing_serious() {
    let Some(program) = Chromium::program() else {
        skip_optional!("Chromium is not installed");
        return;
    };
    let Some(axe) = axe() else {
        skip_optional!("axe-core is not there; scripts/needs.sh fetches it");
        return;
    };
    let scene = Scene::new();
    let mut browser = Chromium::start(program);
    let mut rules = 0;
    for colours in ["light", "dark"] {
        let feature = json!([{ "name": "prefers-color-scheme", "value": colours }]);
        browser.call("Emulation.setEmulatedMedia", &json!({ "features": feature }));
        for (path, _) in PAGES {
            browser.open(&scene.url(path));
            browser.value(&format!("{axe}; true"));
            let judged = browser.value("axe.run(document, { resultTypes: ['violations'] })");
            let violations = judged["violations"].as_array().expect("violations");
            let serious: Vec<&Value> = violations
                .iter()
                .filter(|found| found["impact"] == "serious" || found["impact"] == "critical")
                .collect();
            assert!(serious.is_empty(), "{path} in {colours}: {serious:#?}");
            rules += judged["passes"].as_array().map_or(0, Vec::len);
        }
    }
    assert!(rules > 100, "only {rules} rules were judged");
}

/// The pictures of the documents are made by this test, in the folder that `scripts/screenshots.sh` gives.
#[test]
fn screenshots_of_a_real_run_are_small() {
    let Some(program) = Chromium::program() else {
        skip_optional!("Chromium is not installed");
        return;
    };
    let temporary = tempfile::tempdir().expect("a folder");
    let folder = std::env::var_os(SCREENSHOTS).map_or(temporary.path().to_owned(), PathBuf::from);
    let scene = Scene::new();
    let mut browser = Chromium::start(program);
    let size = json!({ "width": 1280, "height": 800, "deviceScaleFactor": 1, "mobile": false });
    browser.call("Emulation.setDeviceMetricsOverride", &size);
    for colours in ["light", "dark"] {
        let feature = json!([{ "name": "prefers-color-scheme", "value": colours }]);
        browser.call("Emulation.setEmulatedMedia", &json!({ "features": feature }));
        for (path, name) in PAGES.into_iter().filter(|(_, name)| SHOWN.contains(name)) {
            browser.open(&scene.url(path));
            let shot = browser.call("Page.captureScreenshot", &json!({ "format": "png" }));
            let bytes = Base64::decode_vec(shot["data"].as_str().expect("text")).expect("base64");
            assert!(bytes.len() <= 150 << 10, "{name} has {} bytes", bytes.len());
            fs::write(folder.join(format!("dashboard-{name}-{colours}.png")), bytes).expect("a file");
        }
    }
}
