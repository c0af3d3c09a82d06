//! Syntax tree of a configuration file: statements and words.

use std::cell::OnceCell;
use std::rc::Rc;

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
    /// `a | b | c`.
    Pipeline(Vec<Statement>),
    If {
        /// Conditions and their bodies.
        branches: Vec<(Vec<Statement>, Vec<Statement>)>,
        otherwise: Vec<Statement>,
    },
    Case {
        word: Word,
        arms: Vec<(Vec<Word>, Vec<Statement>)>,
    },
    For {
        name: String,
        /// Words to iterate over; `None` for the positional parameters.
        words: Option<Vec<Word>>,
        body: Vec<Statement>,
    },
    /// `while` or `until`.
    Loop {
        until: bool,
        condition: Vec<Statement>,
        body: Vec<Statement>,
    },
    Function {
        name: String,
        body: Rc<Statement>,
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
    /// Reads input from a file: `<FILE`.
    Input(Word),
    /// `<<END`; the text is known once its lines are read.
    Text(Rc<OnceCell<Word>>),
    /// Writes a file, or uses a descriptor other than the first three.
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

/// Adds the names that these statements would set, at any depth.
pub(super) fn assigned(statements: &[Statement], names: &mut Vec<String>) {
    for statement in statements {
        match &statement.what {
            What::Simple(simple) => {
                for Assignment { name, .. } in simple.assignments.iter().chain(&simple.declared) {
                    if !names.contains(name) {
                        names.push(name.clone());
                    }
                }
            }
            What::Chain(first, rest) => {
                assigned(std::slice::from_ref(first), names);
                rest.iter().for_each(|(_, next)| assigned(std::slice::from_ref(next), names));
            }
            What::Not(inner) => assigned(std::slice::from_ref(inner), names),
            What::If { branches, otherwise } => {
                branches.iter().for_each(|(_, body)| assigned(body, names));
                assigned(otherwise, names);
            }
            What::Case { arms, .. } => arms.iter().for_each(|(_, body)| assigned(body, names)),
            What::For { body, .. } => assigned(body, names),
            What::Loop { condition, body, .. } => {
                assigned(condition, names);
                assigned(body, names);
            }
            What::Function { body, .. } => assigned(std::slice::from_ref(body), names),
            What::Redirected(inner, _) => assigned(std::slice::from_ref(inner), names),
            What::Group(inner) | What::Pipeline(inner) | What::Beyond { inner, .. } => assigned(inner, names),
            What::Subshell(_) => {}
        }
    }
}
