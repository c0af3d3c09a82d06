//! SECURITY.md against the lists in the code.

/// `ESKER_WRITE_TABLES=1` writes the tables into the page.
#[test]
fn the_tables_of_the_security_page_are_those_of_the_code() {
    const START: &str = "<!-- esker-confine: begin -->\n";
    const END: &str = "<!-- esker-confine: end -->";
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../SECURITY.md");
    let page = std::fs::read_to_string(path).unwrap();
    let (before, rest) = page.split_once(START).expect("the beginning of the tables");
    let (written, after) = rest.split_once(END).expect("the end of the tables");
    let table = esker_confine::table();
    if std::env::var_os("ESKER_WRITE_TABLES").is_some() {
        std::fs::write(path, format!("{before}{START}{table}{END}{after}")).unwrap();
    } else {
        assert!(written == table, "run this test with ESKER_WRITE_TABLES=1");
    }
}
