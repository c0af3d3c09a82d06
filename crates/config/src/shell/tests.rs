use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

use proptest::prelude::*;

use super::*;
use crate::files::Root;

fn machine() -> Machine {
    Machine {
        architecture: "riscv64".into(),
        release: "6.1".into(),
        host: "wn12.cluster.example.org".into(),
        process: 4711,
        ..Machine::default()
    }
}

/// Returns the variables after a file, and its problems.
fn evaluated(folder: &Path, text: &str) -> (BTreeMap<String, String>, Vec<String>) {
    let (files, machine) = (Root::new("/"), machine());
    let mut shell = Shell::new(&files, &machine);
    shell.variables.insert("HOME".into(), Variable::inherited("/h".into()));
    shell.file(&folder.join("file"), text.as_bytes());
    let values = shell.variables.into_iter().filter_map(|(name, variable)| Some((name, variable.value?)));
    (values.collect(), shell.problems.iter().map(ToString::to_string).collect())
}

#[track_caller]
fn value(text: &str) -> String {
    let (mut values, problems) = evaluated(Path::new("/etc"), text);
    assert_eq!(problems, Vec::<String>::new(), "{text}");
    values.remove("A").unwrap_or_else(|| "(unset)".into())
}

#[test]
fn words_are_expanded_as_in_a_shell() {
    for (text, expected) in [
        ("A=plain # comment", "plain"),
        ("A=a#b", "a#b"),
        ("A='single $X' ", "single $X"),
        ("A=\"double \\$X \\\" \\x\"", "double $X \" \\x"),
        ("A=a\\ b\\;c", "a b;c"),
        ("A=one\\\ntwo", "onetwo"),
        ("A=\"one\ntwo\"", "one\ntwo"),
        ("X=1\nA=$X.${X}", "1.1"),
        ("A=${X:-d}${X-e}${X:+f}", "de"),
        ("X=\nA=${X:-d}${X-e}${X+f}", "df"),
        ("A=${X:=d}$X", "dd"),
        ("A=${HOSTS:-'a b' \"c d\"}", "a b c d"),
        ("A=\"${X:-\"q\"}\"", "q"),
        ("X=abc; A=${#X}", "3"),
        ("X=wn12.cl.org; A=${X%%.*}-${X#*.}", "wn12-cl.org"),
        ("A=~/x:~", "/h/x:/h"),
        ("A=\"~/x\"", "~/x"),
        ("A=$(uname -m)-`hostname -s`", "riscv64-wn12"),
        ("A=\"$(echo a  b)\"", "a b"),
        ("A=$((20 * 1024))", "20480"),
        ("A=a$", "a$"),
        ("A=1 A=2", "2"),
        ("A=1; A+=2", "12"),
        ("export A=\"x y\"", "x y"),
        ("readonly A=x", "x"),
        ("A=1; unset A", "(unset)"),
        ("A=1; unset -v A", "(unset)"),
        ("A=1; unset -f A", "1"),
        ("A=1 : nothing", "1"),
        ("A=1 echo nothing", "(unset)"),
        ("A=$$", "4711"),
        ("A=${UNSET:-$((UNSET + 1))}", "1"),
        ("A=\"$#:$2:${3:-none}:$@\"", "0::none:"),
        ("A=$(hostname -f) A=${A#*.}", "cluster.example.org"),
        ("A=$(hostname -d)", "cluster.example.org"),
        ("A=$(uname -sm)", "Linux riscv64"),
        ("false; A=$?", "1"),
        ("A=$(false) || A=failed", "failed"),
        ("A=$(cat /no/such/file)x", "x"),
        ("A=[x]", "[x]"),
        ("A=$(command -v echo)$(command -v no-such-program)", "echo"),
        ("if [ -gt 5 ]; then A=1; else A=2; fi", "2"),
        ("if [ x -eq 5 ]; then A=1; else A=2; fi", "2"),
    ] {
        assert_eq!(value(text), expected, "{text}");
    }
}

#[test]
fn conditions_select_statements() {
    for (text, expected) in [
        ("if [ \"x$X\" = \"x\" ]; then A=1; fi", "1"),
        ("if [ -n \"$X\" ]; then A=1; elif test 2 -gt 1; then A=2; else A=3; fi", "2"),
        ("if ! [ -z \"$X\" ]\nthen\n A=1\nelse\n A=2\nfi", "2"),
        ("[ 1 = 1 -a 2 != 3 ] && A=1 || A=2", "1"),
        ("[ ! -e /no/such -o -f x ] && A=1", "1"),
        ("case wn12.a in wn[0-9]*.a|x) A=1;; *) A=2;; esac", "1"),
        ("case x in (a) A=1;; (*) A=2\nesac", "2"),
        ("X='a b'; A=\"$(echo $X \"c  d\")\"", "a b c  d"),
        ("{ A=1; }", "1"),
        ("A=1; ( A=2 )", "1"),
        ("if [ -f x ] 2>/dev/null; then A=1; else A=2; fi >/dev/null 2>&1", "2"),
        ("A=1\nreturn\nA=2", "1"),
        ("false || { true && A=1; }", "1"),
    ] {
        assert_eq!(value(text), expected, "{text}");
    }
}

/// A statement that needs a process changes nothing, and is reported with its line and the names that depend on it.
#[test]
fn statements_that_are_not_evaluated_are_reported() {
    for (text, told) in [
        (
            "A=old\nA=$(curl http://x)",
            "/etc/file:2: the command `curl` is not evaluated, because no shell is run; not set by it: A",
        ),
        (
            "P=$(date)\nA=http://$P:1",
            "/etc/file:1: the command `date` is not evaluated, because no shell is run; not set by it: P, A",
        ),
        (
            "if ping -c1 x; then A=1; else B=2; fi",
            "/etc/file:1: the command `ping` is not evaluated, because no shell is run; not set by it: A, B",
        ),
        ("ping x && A=1", "the command `ping` is not evaluated, because no shell is run; not set by it: A"),
        (
            "curl x | while read x; do A=1; done",
            "/etc/file:1: a pipeline is not evaluated, because no shell is run",
        ),
        (
            "A=old\nA=$(uname -r | cut -d. -f1)",
            "/etc/file:2: a pipeline is not evaluated, because no shell is run; not set by it: A",
        ),
        ("while true; do A=1; done", "a loop is not evaluated, because no shell is run; not set by it: A"),
        (
            "A=\nfor A in *.conf; do B=$A; done",
            "/etc/file:2: a loop is not evaluated, because no shell is run; not set by it: A, B",
        ),
        (
            "f() {\nA=1\n}",
            "/etc/file:1: a function is not evaluated, because no shell is run; not set by it: A",
        ),
        (
            "A=old\neval \"A=$X\"",
            "/etc/file:2: the command `eval` is not evaluated, because no shell is run; not set by it: A",
        ),
        ("read A B", "the command `read` is not evaluated, because no shell is run; not set by it: A, B"),
        ("IFS=:", "`IFS` is not evaluated, because no shell is run; not set by it: IFS"),
        ("A=$(echo /etc/*.conf)", "the file name pattern `/etc/*.conf` is not evaluated"),
        ("A=$(cat <<END\n$X\nEND\n)", "`cat` with a redirection is not evaluated"),
        (
            "A=old\nif ping x; then A=1; fi",
            "/etc/file:2: the command `ping` is not evaluated, because no shell is run; not set by it: A",
        ),
        ("A=${X/a/b}", "`${X…}` is not evaluated"),
        ("A=(a b)", "a list in parentheses is not evaluated"),
        ("A=$(grep '\\(a\\)\\1' /dev/null)", "the regular expression `\\(a\\)\\1` is not evaluated"),
        (
            "A=$(echo 'a\\n')",
            "`echo` with a backslash, which shells understand differently, is not evaluated",
        ),
        ("A=$(sed s/a/b/ x)", "the command `sed` is not evaluated"),
        ("A=$(grep --quiet x y)", "`grep --quiet x y` is not evaluated"),
        ("cd /x", "the command `cd` is not evaluated"),
        (
            "[[ x == y ]] && A=1",
            "the command `[[` is not evaluated, because no shell is run; not set by it: A",
        ),
        ("cat > /x <<END\nA=1\nEND\nB=2", "`cat` with a redirection is not evaluated"),
        ("{ A=1; } >/x", "a redirection is not evaluated, because no shell is run; not set by it: A"),
        ("A=\"x\nB=1", "a closing quote is missing; the rest of this file is not read"),
        ("fi", "`fi` does not belong here"),
        ("if true; then A=1", "`fi` is missing"),
        ("A=1\r\n", "the line ends with a carriage return"),
        ("readonly B=1; B=2", "B is read-only here and keeps its value"),
        (". ./absent.conf", "can't source /etc/./absent.conf"),
        ("sleep 1 &", "a command in the background is not evaluated"),
        ("set -e", "the command `set` is not evaluated"),
    ] {
        let (values, problems) = evaluated(Path::new("/etc"), text);
        assert!(problems.iter().any(|problem| problem.contains(told)), "{text}: {problems:?}");
        assert_eq!(problems.len(), 1, "{text}: {problems:?}");
        assert!(!values.contains_key("A") || text.contains('\r'), "{text}: {values:?}");
    }
}

/// A command that is not evaluated is reported once for a file, with all names that are not set because of it.
#[test]
fn a_statement_that_is_not_evaluated_is_reported_once() {
    let (_, problems) = evaluated(
        Path::new("/etc"),
        "A=$(dig a)\nB=$(dig b)\nif dig c; then C=1; elif dig d; then D=1; fi\nE=$A-$B\ndig e >/dev/null || F=2",
    );
    let expected = "/etc/file:1: the command `dig` is not evaluated, because no shell is run; not set by it: A, B, C, D, E, F";
    assert_eq!(problems, [expected]);
}

#[test]
fn files_are_sourced_relative_to_their_folder_and_without_endless_loops() {
    let folder = tempfile::tempdir().expect("a folder");
    let write = |name: &str, text: &str| std::fs::write(folder.path().join(name), text).expect("writing");
    write("common.conf", "A=$B-common\nreturn\nA=no");
    write("self.conf", "N=$N.\n. ./self.conf");
    let (values, problems) = evaluated(folder.path(), "B=1\n. ./common.conf\nC=$A");
    assert_eq!((values["C"].as_str(), problems.len()), ("1-common", 0));
    let (values, problems) = evaluated(folder.path(), "N=\n. ./self.conf");
    assert_eq!(values["N"], ".".repeat(DEPTH_MAX as usize));
    assert!(problems[0].contains("too many steps"), "{problems:?}");
    write("many.conf", &": ;".repeat(STEPS_MAX as usize / 2));
    let (_, problems) = evaluated(folder.path(), &". ./many.conf\n".repeat(3));
    assert!(problems[0].contains("too many steps"), "{problems:?}");
    let grows = format!("A=xxxxxxxxxxxxxxxx\n{}", "A=$A$A\n".repeat(40));
    let (values, problems) = evaluated(folder.path(), &grows);
    assert!(!values.contains_key("A") && problems[0].contains("more than"), "{problems:?}");
}

/// Makes random files from all supported constructs, also meaningless ones.
struct Author {
    random: rand::rngs::StdRng,
}

impl Author {
    fn pick<'a>(&mut self, from: &[&'a str]) -> &'a str {
        use rand::Rng;
        from[self.random.random_range(0..from.len())]
    }

    fn word(&mut self, depth: u32) -> String {
        let mut word = String::new();
        for _ in 0..self.pick(&["1", "2", "3"]).len() + 1 {
            let name = self.pick(&["V", "W", "X", "Y"]);
            let kind = if depth == 0 {
                self.pick(&["t", "s", "v"])
            } else {
                self.pick(&["t", "s", "d", "v", "o", "c", "e", "l", "a"])
            };
            word.push_str(&match kind {
                "t" => self
                    .pick(&["a", "b/c", "http:", "x=y", "\\;", "\\\\", "\\\n", "@fqrn@", ",", "1.2"])
                    .to_owned(),
                "s" => self.pick(&["'a b'", "'$V'", "''", "'\\'", "'|;&'"]).to_owned(),
                "d" => {
                    let text = self.pick(&["a b", "\\$V", "\\\"", "|", "'", "\\x", ""]);
                    format!(
                        "\"{text}${name}${{{}:-{}}}\"",
                        self.pick(&["V", "Z"]),
                        self.pick(&["q", "'q'", "$W", ""])
                    )
                }
                "v" => format!("${{{name}}}"),
                "o" => {
                    let operator = self.pick(&[":-", "-", ":+", "+", ":=", "="]);
                    format!("${{{name}{operator}{}}}", self.word(depth - 1))
                }
                "c" => format!(
                    "${{{name}{}{}}}",
                    self.pick(&["%", "%%", "#", "##"]),
                    self.pick(&["*b", "b*", "?", "[a-c]*", "'*'", "$V", ""])
                ),
                "e" => format!("$(echo {})", self.pick(&["a  b", "\"a  b\"", "'x;y'", "\"$(echo n)\""])),
                "l" => format!("${{#{name}}}"),
                _ => format!("$(({}))", self.pick(&["1+2*3", "(7-9)/2", "10 % 4", "-3*-2"])),
            });
        }
        word
    }

    fn condition(&mut self) -> String {
        let right = self.word(1);
        match self.pick(&["=", "!", "n", "z", "c", "g"]) {
            "=" => format!("[ \"x$V\" = {} ]", self.pick(&["xa", "'xa b'", "\"x$W\"", "x\"\""])),
            "!" => format!("X={right}; ! [ \"${{V}}\" != \"$X\" ]"),
            "n" => "test -n \"$V\" -a ! \"$V\" = b".into(),
            "z" => "[ -z \"$Y\" ]".into(),
            "c" => "[ \"$V\" = \"$W\" ] && [ \"$X\" ]".into(),
            _ => format!("[ {} -gt 2 ]", self.pick(&["1", "2", "3", "-4"])),
        }
    }

    fn statement(&mut self, depth: u32) -> String {
        let name = self.pick(&["V", "W", "X", "Y"]);
        let kind =
            if depth == 0 { "a" } else { self.pick(&["a", "a", "a", "i", "c", "g", "s", "x", "u", "h"]) };
        match kind {
            "a" => format!("{name}={}\n", self.word(2)),
            "x" => format!("export {name}=\"$V\"'{}'; # comment 'unclosed\n", self.pick(&["a", "b c"])),
            "u" => format!("unset {name}\n"),
            "h" => format!("{} && {name}={} || {name}=no\n", self.condition(), self.word(1)),
            "i" => {
                let (one, two) = (self.statement(depth - 1), self.statement(depth - 1));
                let (first, second) = (self.condition(), self.condition());
                format!("if {first}; then\n{one}elif {second}\nthen {two}else\n  {}fi\n", self.statement(0))
            }
            "c" => {
                let patterns = self.pick(&["a*", "*b*|x", "'*'", "[!a]*", "\"$W\"", "?"]);
                format!(
                    "case {} in {patterns}) {} ;; *) {} esac\n",
                    self.word(1),
                    self.statement(0),
                    self.statement(depth - 1)
                )
            }
            "g" => format!("{{ {}}}\n", self.statement(depth - 1)),
            _ => format!("( {})\n", self.statement(depth - 1)),
        }
    }
}

/// A shell has the same variables after each of many random files.
#[test]
fn random_files_have_the_variables_of_a_shell() {
    use rand::SeedableRng;
    const FILES: usize = 600;
    let folder = tempfile::tempdir().expect("a folder");
    let mut author = Author { random: rand::rngs::StdRng::seed_from_u64(20_261_122) };
    let texts: Vec<String> =
        (0..FILES).map(|_| (0..5).map(|_| author.statement(3)).collect::<String>()).collect();
    let mut script = String::from("HOME=/h\n");
    for (at, text) in texts.iter().enumerate() {
        std::fs::write(folder.path().join(format!("f{at}")), text).expect("writing");
        script.push_str(&format!(
            "( unset V W X Y; . ./f{at}; printf '%s\\0' \"${{V-.}}\" \"${{W-.}}\" \"${{X-.}}\" \"${{Y-.}}\" )\n"
        ));
    }
    let output = Command::new("/bin/sh")
        .args(["-c", &script])
        .env("LC_ALL", "C")
        .current_dir(folder.path())
        .output()
        .expect("running sh");
    assert!(
        output.status.success() && output.stderr.is_empty(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    let said = String::from_utf8(output.stdout).expect("text");
    let said: Vec<&str> = said.split_terminator('\0').collect();
    assert_eq!(said.len(), 4 * FILES, "sh gave up on a file");
    let mut different = std::collections::BTreeSet::new();
    for (text, said) in texts.iter().zip(said.chunks(4)) {
        let (values, problems) = evaluated(folder.path(), text);
        assert_eq!(problems, Vec::<String>::new(), "{text}");
        let ours = ["V", "W", "X", "Y"].map(|name| values.get(name).map_or(".", String::as_str));
        assert_eq!(ours.as_slice(), said, "{text}");
        different.insert(ours.join("\n"));
    }
    assert!(different.len() > FILES / 2, "the files hardly differ: {}", different.len());
}

const SOUP: &[&str] = &[
    "A",
    "=",
    "$",
    "{",
    "}",
    "(",
    ")",
    "((",
    "))",
    "'",
    "\"",
    "`",
    "\\",
    "\n",
    " ",
    ";",
    ";;",
    "&",
    "&&",
    "|",
    "||",
    "<",
    ">",
    "<<",
    "EOF",
    "if",
    "then",
    "else",
    "elif",
    "fi",
    "case",
    "in",
    "esac",
    "for",
    "do",
    "done",
    "while",
    "[",
    "]",
    "[[",
    "]]",
    "!",
    "-n",
    "-eq",
    "-a",
    "~",
    "*",
    "?",
    "%",
    "#",
    ":-",
    ":=",
    "+=",
    "export ",
    ".",
    "eval ",
    "return",
    "é",
    "\r\n",
    "$(",
    "${",
    "${#",
    "0",
    "9",
    "true",
    "{ ",
    "function f",
];

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, ..ProptestConfig::default() })]

    /// Reading ends for any content of a file, and never in a panic.
    #[test]
    fn any_file_is_evaluated_without_a_panic(parts in prop::collection::vec(prop::sample::select(SOUP), 0..80)) {
        evaluated(Path::new("/no/such/folder"), &parts.concat());
    }

    #[test]
    fn any_bytes_are_parsed_without_a_panic(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        let (files, machine) = (Root::new("/no/such/root"), machine());
        Shell::new(&files, &machine).file(Path::new("/file"), &bytes);
    }
}

/// Expensive files of a configuration repository are given up, and the files after them are evaluated.
#[test]
fn hostile_files_are_bounded() {
    let grown = format!("V=aaaaaaaaaaaaaaaa\n{}A=1\n", "V=$V$V\n".repeat(10));
    let held: String = (0..260).map(|at| format!("V{at}=$V\n")).collect();
    for text in [
        held.as_str(),
        &"echo \"$V\" >/dev/null\n".repeat(2000),
        &"W=${V##*a*a*a*b}; case $V in *a*a*a*a*b) ;; esac\n".repeat(100),
        &"( : )\n".repeat(10_000),
        &format!("grep -Eq '{}b' /etc/passwd\n", "(a+|b)*".repeat(50)).repeat(10_000),
    ] {
        let text = format!("{grown}{text}");
        let (files, machine) = (Root::new("/"), machine());
        let mut shell = Shell::new(&files, &machine);
        shell.file(Path::new("/etc/hostile"), text.as_bytes());
        assert!(!shell.problems.is_empty(), "{text}");
        let held: usize = shell.variables.values().filter_map(|it| it.value.as_ref()).map(String::len).sum();
        assert!(held <= HELD_MAX, "{text}: {held}");
        let before = shell.problems.len();
        shell.file(Path::new("/etc/next"), b"B=$A$(echo 2)");
        assert_eq!(shell.problems.len(), before, "{text}");
        let value = shell.variables["B"].value.clone();
        assert_eq!(value.as_deref(), Some("12"), "{text}");
    }
}

/// Deep nesting is refused before it exhausts the stack.
#[test]
fn deep_nesting_is_refused() {
    for deep in ["${A:-", "$(", "$((", "\"${A:-", "{ ", "( ", "if ", "! ", "f() "] {
        let text = format!("A={}", deep.repeat(20_000));
        let (_, problems) = evaluated(Path::new("/etc"), &text);
        assert!(!problems.is_empty(), "{deep}");
        let (_, problems) = evaluated(Path::new("/etc"), &deep.repeat(20_000));
        assert!(!problems.is_empty(), "{deep}");
    }
    let sum = format!("A=$(({}1{}))", "(".repeat(30_000), ")".repeat(30_000));
    assert!(!evaluated(Path::new("/etc"), &sum).1.is_empty());
    let test = format!("[ {}x ] && A=1", "! ".repeat(20_000));
    evaluated(Path::new("/etc"), &test);
    evaluated(Path::new("/etc"), &format!("[ {}x ] && A=1", "x -a ".repeat(20_000)));
}
