//! Syntax tree of a configuration file: statements and words.

/// A statement and the line it begins on.
#[derive(Debug)]
pub(super) struct Statement {
    pub(super) line: u32,
    pub(super) what: What,
}

#[derive(Debug)]
pub(super) enum What {
    Simple(Simple),
    /// A pipeline, and others after `&&` (true) or `||` (false).
    Chain(Box<Statement>, Vec<(bool, Statement)>),
    Not(Box<Statement>),
    If {
        /// Conditions and their bodies.
        branches: Vec<(Vec<Statement>, Vec<Statement>)>,
        otherwise: Vec<Statement>,
    },
    Case {
        word: Word,
        arms: Vec<(Vec<Word>, Vec<Statement>)>,
    },
    /// A block with redirections.
    Redirected(Box<Statement>, Vec<Redirection>),
    Group(Vec<Statement>),
    Subshell(Vec<Statement>),
    /// A statement that Esker does not evaluate.
    Beyond {
        what: &'static str,
        inner: Vec<Statement>,
    },
}

/// `A=1 B=2 command words >/dev/null`.
#[derive(Debug, Default)]
pub(super) struct Simple {
    pub(super) assignments: Vec<Assignment>,
    pub(super) words: Vec<Word>,
    /// Assignments among the arguments of `export` and similar commands.
    pub(super) declared: Vec<Assignment>,
    pub(super) redirections: Vec<Redirection>,
}

/// Redirections that matter without a process.
#[derive(Debug)]
pub(super) enum Redirection {
    /// Discards the output: `>/dev/null`, `>&2`.
    Discard,
    /// Has no effect on the evaluation: `2>/dev/null`, `2>&1`.
    Harmless,
    /// Reads or writes a file, reads a here-document, or uses a descriptor other than the first three.
    Beyond,
}

#[derive(Debug)]
pub(super) struct Assignment {
    pub(super) line: u32,
    pub(super) name: String,
    /// True for `+=`.
    pub(super) append: bool,
    pub(super) value: Word,
}

pub(super) type Word = Vec<Piece>;

/// A part of a word. Quoted parts are neither split nor patterns.
#[derive(Debug)]
pub(super) enum Piece {
    Text { text: String, quoted: bool },
    Parameter { name: String, change: Change, quoted: bool },
    Command { body: Vec<Statement>, quoted: bool },
    Arithmetic { term: Word },
    Beyond(String),
}

/// Modification of the value in `${NAME…}`.
#[derive(Debug)]
pub(super) enum Change {
    None,
    Length,
    /// `-`, `=`, `+` or `?`; with a colon, empty counts as unset.
    Otherwise {
        operator: char,
        colon: bool,
        word: Word,
    },
    /// `%` or `#` with a pattern; doubled, for the longest match.
    Cut {
        operator: char,
        longest: bool,
        word: Word,
    },
}

/// Returns the names that these statements would set, at any depth.
pub(super) fn assigned<'s>(statements: impl IntoIterator<Item = &'s Statement>) -> Vec<String> {
    let mut names = Vec::new();
    statements.into_iter().for_each(|statement| collect(statement, &mut names));
    names
}

fn collect(statement: &Statement, names: &mut Vec<String>) {
    let mut all = |statements: &[Statement]| statements.iter().for_each(|inner| collect(inner, names));
    match &statement.what {
        What::Simple(simple) => {
            for Assignment { name, .. } in simple.assignments.iter().chain(&simple.declared) {
                if !names.contains(name) {
                    names.push(name.clone());
                }
            }
        }
        What::Chain(first, rest) => {
            collect(first, names);
            rest.iter().for_each(|(_, next)| collect(next, names));
        }
        What::Not(inner) | What::Redirected(inner, _) => collect(inner, names),
        What::If { branches, otherwise } => {
            branches.iter().for_each(|(_, body)| all(body));
            all(otherwise);
        }
        What::Case { arms, .. } => arms.iter().for_each(|(_, body)| all(body)),
        What::Group(inner) | What::Beyond { inner, .. } => all(inner),
        What::Subshell(_) => {}
    }
}
