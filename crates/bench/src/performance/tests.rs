use super::*;

/// The page of the project, from its results.
#[test]
fn the_committed_page_is_what_the_results_say() {
    let docs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs");
    let committed = fs::read_to_string(docs.join("performance.md")).expect("a page");
    let made = page(&docs.join("performance.toml")).expect("the results");
    assert!(
        committed == made,
        "docs/performance.md is not what `esker-bench report docs/performance.toml --out docs/performance.md` makes"
    );
}

/// Two roots, hot and cold, of which the second takes 1.1 times as long.
fn results() -> String {
    let run = |seconds: f64, down: u64| {
        format!(
            r#"{{"real": {seconds}, "user": {seconds}, "sys": 0.0, "peak": 1, "mount": null, "daemon": 0.5,
            "callbacks": {{}}, "fetched": null,
            "traffic": {{"connections": 1, "requests": 2, "up": 3, "down": {down}, "losses": 0}}}}"#
        )
    };
    let series = |root: &str, state: &str, factor: f64| {
        let runs: Vec<String> = (0..9).map(|at| run((1.0 + f64::from(at) / 100.0) * factor, 300)).collect();
        format!(
            r#"{{"state": "{state}", "link": null, "processes": 1, "root": "{root}", "runs": [{}]}}"#,
            runs.join(", ")
        )
    };
    let all =
        [("native", "hot", 1.0), ("esker", "hot", 1.1), ("native", "cold", 2.0), ("esker", "cold", 3.0)];
    let all: Vec<String> = all.iter().map(|(root, state, factor)| series(root, state, *factor)).collect();
    format!(
        r#"{{"conditions": {{"date": "now", "kernel": "6.1", "processor": "fast", "cores": 2, "memory": 1, "load": 0.0,
        "versions": [], "commit": null}}, "command": ["run"], "ways": [{{"ratio": 1.5}}],
        "needed": {{"connections": 1, "requests": 2, "up": 3, "down": 200, "losses": 0}}, "series": [{}]}}"#,
        all.join(", ")
    )
}

/// The page of one point with these claims.
fn made(claims: &str) -> Result<String> {
    let folder = tempfile::tempdir().expect("a folder");
    fs::write(folder.path().join("data.json"), results()).expect("results");
    let outline = folder.path().join("outline.toml");
    let point = "intro = 'Intro.'\n[[point]]\ntitle = 'Hot, one'\ngoal = 'fast'\nrepeat = 'esker-bench x'\n";
    fs::write(&outline, format!("{point}{claims}")).expect("an outline");
    page(&outline)
}

const HOT: &str = "[[point.claim]]\nwhat = 'w'\ndata = 'data.json'\nroot = 'esker'\nsetting = 'hot'\n";

#[test]
fn a_promise_is_met_or_missed_and_a_miss_needs_a_reason() {
    let met =
        made(&format!("{HOT}against = 'native'\nat_most = 1.2\nupper_at_most = 1.2\n")).expect("a page");
    assert!(met.contains("| w | ≤ 1.2 ×, upper end ≤ 1.2 × | 1.100 × | 1.100–1.100 | 9 | met |"), "{met}");
    assert!(met.contains("| [Hot, one](#hot-one) | 1 |  |  |"), "{met}");
    let apart = HOT.to_owned() + "against = 'native'\nagainst_setting = 'cold'\nat_most = 0.5501\n";
    assert!(made(&apart).expect("a page").contains("| met by the median, in doubt by the interval |"));
    let missing = format!("{HOT}against = 'native'\nat_most = 1.05\n");
    let error = made(&missing).expect_err("no reason");
    assert!(format!("{error:#}").contains("nothing tells why"), "{error:#}");
    let missed = made(&format!("{missing}why = 'it is slow'\n")).expect("a page");
    assert!(missed.contains("**missed**"), "{missed}");
    assert!(missed.contains("- w: 1.100 × (1.100–1.100), promised ≤ 1.05 ×: it is slow"), "{missed}");
    let upper = format!("{HOT}against = 'native'\nat_most = 1.2\nupper_at_most = 1.05\nwhy = 'noise'\n");
    assert!(made(&upper).expect("a page").contains("**missed**"), "the interval counts");
}

#[test]
fn what_is_slower_is_listed_though_nothing_was_promised() {
    let told = made(&format!("{HOT}against = 'native'\n")).expect("a page");
    assert!(told.contains("- w: 1.100 × (1.100–1.100)\n"), "{told}");
    let faster = HOT.replace("'hot'", "'cold'") + "against = 'native'\nagainst_setting = 'hot'\n";
    let cold = made(&faster).expect("a page");
    assert!(cold.contains("| w |  | 3.000 × | 2.8"), "drawn apart, so with an interval: {cold}");
}

#[test]
fn seconds_processor_time_bytes_and_other_files_can_be_claimed() {
    let of = |more: &str| made(&format!("{HOT}{more}")).expect("a page");
    assert!(of("").contains("| w |  | 1.144 s |"));
    assert!(of("quantity = 'cpu'\n").contains("| w |  | 1.644 s |"), "with the client's 0.5 s");
    assert!(of("quantity = 'bytes'\nat_most = 2.0\n").contains("| 1.500 × | 1.500–1.500 | 9 | met |"));
    let pointed = "[[point.claim]]\nwhat = 'p'\ndata = 'data.json'\npointer = '/ways/0/ratio'\n";
    assert!(made(pointed).expect("a page").contains("| p |  | 1.500 × |"));
    let open = made("[[point.claim]]\nwhat = 'o'\nwhy = 'no machine'\n").expect("a page");
    assert!(open.contains("Not measured: o: no machine") && open.contains("|  |  | 1 |"), "{open}");
}

#[test]
fn claims_about_nothing_are_refused() {
    for (claims, cause) in [
        (HOT.replace("'esker'", "'other'"), "no series"),
        (HOT.replace("data.json", "none.json"), "can't read"),
        (format!("{HOT}pointer = '/nowhere'\n"), "nothing at /nowhere"),
        (format!("{HOT}quantity = 'bytes'\nagainst = 'native'\n"), "those needed"),
        ("[[point.claim]]\nwhat = 'w'\n".into(), "nothing tells why"),
        ("[[point.claim]]\nwhat = 'w'\nmore = 1\n".into(), "no outline"),
    ] {
        let error = made(&claims).expect_err(cause);
        assert!(format!("{error:#}").contains(cause), "{error:#}");
    }
}
