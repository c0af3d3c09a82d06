//! Builds whose results a release manager installs: a project with a makefile, and a wheel.

use std::path::Path;

use esker_testkit::skip_part;

use crate::test_env::words;
use crate::test_user::TestUser;
use crate::transactions::Publisher;

/// A project as upstream ships it: a library, a program that uses it, a manual page, and a link.
const PROJECT: &str = r##"
mkdir -p "$0"; cd "$0"
cat >hello.c <<'C'
#include <stdio.h>
const char *word(void);
int main(void) { puts(word()); return 0; }
C
cat >word.c <<'C'
const char *word(void) { return WORD; }
C
cat >Makefile <<'M'
hello: hello.c libword.a
	$(CC) -o $@ hello.c libword.a
libword.a: word.c
	$(CC) -DWORD='"$(WORD)"' -c word.c
	$(AR) rcs $@ word.o
install: hello libword.a
	mkdir -p $(PREFIX)/bin $(PREFIX)/lib $(PREFIX)/share/man/man1
	install -m 755 hello $(PREFIX)/bin/hello-1
	ln -sf hello-1 $(PREFIX)/bin/hello
	install -m 644 libword.a $(PREFIX)/lib
	echo .TH HELLO 1 >$(PREFIX)/share/man/man1/hello.1
M
"##;

/// Writes a wheel without any tool of Python's.
const WHEEL: &str = r#"
import sys, zipfile
with zipfile.ZipFile(sys.argv[1] + "/demo-1.0-py3-none-any.whl", "w") as wheel:
    wheel.writestr("demo/__init__.py", "def word():\n    return 'from a wheel'\n")
    wheel.writestr("demo-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: demo\nVersion: 1.0\n")
    wheel.writestr("demo-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nGenerator: x\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
    wheel.writestr("demo-1.0.dist-info/RECORD", "demo/__init__.py,,\ndemo-1.0.dist-info/METADATA,,\ndemo-1.0.dist-info/WHEEL,,\ndemo-1.0.dist-info/RECORD,,\n")
"#;

fn has(person: TestUser, line: &[&str]) -> bool {
    person.command(line[0]).args(&line[1..]).output().is_ok_and(|output| output.status.success())
}

/// `make install` of two versions, each a revision with a tag.
pub(super) fn install_a_project(publisher: &Publisher) {
    let person = publisher.workshop.world.person;
    if !has(person, &["make", "--version"]) || !has(person, &["cc", "--version"]) {
        skip_part!("there is no make or no C compiler");
        return;
    }
    let build = publisher.workshop.home("build");
    for (version, word) in [("1.0", "first"), ("2.0", "second")] {
        let made = person.command("sh").args(["-ec", PROJECT, &build]).output().expect("a shell");
        assert!(made.status.success(), "{}", words(&made));
        let script = format!(
            "make -C {build} clean 2>/dev/null || rm -f {build}/*.a {build}/*.o {build}/hello; \
             make -C {build} WORD={word} PREFIX=\"$PWD\" install; bin/hello | grep -qx {word}"
        );
        let tag = format!("hello-{version}");
        let output =
            publisher.begin(&["/hello", "--create", "--tag", &tag, "--message", word], &script).output();
        let output = output.expect("esker");
        assert!(output.status.success(), "{}", words(&output));
        assert_eq!(
            publisher.reads("hello/bin/hello; ls -l hello/bin | grep -c -- '-> hello-1'"),
            format!("{word}\n1\n")
        );
    }
    let again = publisher.begin_with_report(&["/hello"], "true").output().expect("esker");
    assert!(String::from_utf8_lossy(&again.stdout).contains("nothing changed"), "{}", words(&again));
}

/// `pip install` of a wheel from disk.
pub(super) fn install_a_wheel(publisher: &Publisher) {
    let person = publisher.workshop.world.person;
    if !has(person, &["python3", "-m", "pip", "--version"]) {
        skip_part!("{person:?} has no Python with pip");
        return;
    }
    let folder = publisher.workshop.home("wheels");
    person.does(|| std::fs::create_dir(Path::new(&folder))).expect("a folder");
    let made = person.command("python3").args(["-c", WHEEL, &folder]).output().expect("python");
    assert!(made.status.success(), "{}", words(&made));
    let script = format!(
        "python3 -m pip install --quiet --no-index --no-cache-dir --disable-pip-version-check --find-links {folder} \
         --target \"$PWD\" demo"
    );
    let output = publisher.begin(&["/python", "--create"], &script).output().expect("esker");
    assert!(output.status.success(), "{}", words(&output));
    let script = "PYTHONPATH=python python3 -c 'import demo; print(demo.word())'; ls python/demo";
    let shown = publisher.reads(script);
    assert!(shown.starts_with("from a wheel\n__init__.py\n__pycache__"), "{shown}");
}
