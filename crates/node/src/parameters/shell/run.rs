//! What statements do.

use super::expand::Obstacle;
use super::parse::{is_variable, literal, parse};
use super::syntax::{Assignment, Simple, Statement, What, assigned};
use super::{DEPTH_MAX, Shell};
use crate::parameters::problem::ProblemKind;

/// How a command ended, as far as that is known.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Status {
    True,
    False,
    /// It was not run.
    Unknown,
}

/// Nothing that follows in this file is looked at.
pub(super) struct Stop;

type Ran = Result<Status, Stop>;

impl From<bool> for Status {
    fn from(it: bool) -> Self {
        if it { Status::True } else { Status::False }
    }
}

impl Shell<'_> {
    pub(super) fn statements(&mut self, statements: &[Statement]) -> Ran {
        let mut status = Status::True;
        for statement in statements {
            status = self.statement(statement)?;
        }
        Ok(status)
    }

    fn statement(&mut self, statement: &Statement) -> Ran {
        self.line = statement.line;
        self.steps = self.steps.checked_sub(1).ok_or_else(|| {
            self.report(statement.line, ProblemKind::Endless);
            Stop
        })?;
        match &statement.what {
            What::Simple(simple) => self.simple(simple, statement.line),
            What::Chain(first, rest) => self.chain(first, rest),
            What::Not(inner) => Ok(match self.statement(inner)? {
                Status::True => Status::False,
                Status::False => Status::True,
                Status::Unknown => Status::Unknown,
            }),
            What::If { branches, otherwise } => self.choose(branches, otherwise),
            What::Case { word, arms } => self.case(word, arms, statement),
            What::For { name, words, body } => match self.fields_of(words) {
                Ok(fields) => {
                    for field in fields {
                        self.set(name, Some(field), statement.line);
                        self.statements(body)?;
                    }
                    Ok(Status::True)
                }
                Err(obstacle) => Ok(self.left_out(obstacle, std::slice::from_ref(statement))),
            },
            What::Group(inner) => self.statements(inner),
            What::Subshell(inner) => {
                // What is set in there is gone behind it.
                let before = self.variables.clone();
                let outcome = self.statements(inner);
                self.variables = before;
                Ok(outcome.unwrap_or(Status::Unknown))
            }
            What::Condition(tokens) => match self.condition(tokens) {
                Ok(it) => Ok(it.into()),
                Err(obstacle) => Ok(self.left_out(obstacle, &[])),
            },
            What::Beyond { what, inner } => Ok(self.left_out(Obstacle((*what).to_owned()), inner)),
        }
    }

    /// Reports what is not done, with the names that it would set.
    fn left_out(&mut self, obstacle: Obstacle, statements: &[Statement]) -> Status {
        let mut names = Vec::new();
        assigned(statements, &mut names);
        self.report(self.line, ProblemKind::NotEvaluated { what: obstacle.0, names });
        Status::Unknown
    }

    fn chain(&mut self, first: &Statement, rest: &[(bool, Statement)]) -> Ran {
        let mut status = self.statement(first)?;
        for (and, next) in rest {
            match (status, and) {
                (Status::Unknown, _) => {
                    let what = "what depends on a command that is not run".to_owned();
                    self.left_out(Obstacle(what), std::slice::from_ref(next));
                }
                (Status::True, true) | (Status::False, false) => status = self.statement(next)?,
                _ => {}
            }
        }
        Ok(status)
    }

    fn choose(&mut self, branches: &[(Vec<Statement>, Vec<Statement>)], otherwise: &[Statement]) -> Ran {
        for (at, (condition, body)) in branches.iter().enumerate() {
            match self.statements(condition)? {
                Status::True => return self.statements(body),
                Status::False => {}
                Status::Unknown => {
                    let mut names = Vec::new();
                    branches[at..].iter().for_each(|(_, body)| assigned(body, &mut names));
                    assigned(otherwise, &mut names);
                    let what = "an `if` whose condition is not known".to_owned();
                    self.report(self.line, ProblemKind::NotEvaluated { what, names });
                    return Ok(Status::Unknown);
                }
            }
        }
        self.statements(otherwise)
    }

    fn case(
        &mut self,
        word: &super::syntax::Word,
        arms: &[(Vec<super::syntax::Word>, Vec<Statement>)],
        whole: &Statement,
    ) -> Ran {
        let fits = |shell: &mut Self, text: &[char], patterns: &[super::syntax::Word]| {
            for pattern in patterns {
                if shell.pattern_of(pattern)?.fits(text) {
                    return Ok(true);
                }
            }
            Ok(false)
        };
        let text: Vec<char> = match self.value_of(word) {
            Ok(text) => text.chars().collect(),
            Err(obstacle) => return Ok(self.left_out(obstacle, std::slice::from_ref(whole))),
        };
        for (patterns, body) in arms {
            match fits(self, &text, patterns) {
                Ok(true) => return self.statements(body),
                Ok(false) => {}
                Err(obstacle) => return Ok(self.left_out(obstacle, std::slice::from_ref(whole))),
            }
        }
        Ok(Status::True)
    }

    fn simple(&mut self, simple: &Simple, line: u32) -> Ran {
        let name = simple.words.first().and_then(literal);
        if simple.redirected {
            let what = Obstacle(format!("`{}` with a redirection", name.unwrap_or("a command")));
            let whole = simple.assignments.iter().chain(&simple.declared).map(|it| it.name.clone()).collect();
            self.report(line, ProblemKind::NotEvaluated { what: what.0, names: whole });
            return Ok(Status::Unknown);
        }
        // What stands before a command is for it alone, except before those that are the shell's own.
        let keeps = name.is_none_or(|name| {
            matches!(name, ":" | "." | "eval" | "export" | "readonly" | "unset" | "set" | "return" | "exit")
        });
        if keeps {
            for assignment in &simple.assignments {
                self.assign(assignment);
            }
        }
        if simple.words.is_empty() {
            return Ok(Status::True);
        }
        match self.fields_of(&simple.words) {
            Ok(words) => self.command(&words, &simple.declared, line),
            Err(obstacle) => {
                let names = simple.declared.iter().map(|assignment| assignment.name.clone()).collect();
                self.report(line, ProblemKind::NotEvaluated { what: obstacle.0, names });
                Ok(Status::Unknown)
            }
        }
    }

    fn command(&mut self, words: &[String], declared: &[Assignment], line: u32) -> Ran {
        let Some((name, arguments)) = words.split_first() else { return Ok(Status::True) };
        match name.as_str() {
            ":" | "true" | "echo" | "printf" => Ok(Status::True),
            "false" => Ok(Status::False),
            "export" | "readonly" | "local" | "declare" | "typeset" => {
                declared.iter().for_each(|assignment| self.assign(assignment));
                if name == "readonly" {
                    let names = declared.iter().map(|assignment| &assignment.name).chain(arguments);
                    names.for_each(|name| self.protect(name));
                }
                Ok(Status::True)
            }
            "unset" => {
                for name in arguments.iter().filter(|name| is_variable(name)) {
                    self.unset(name, line);
                }
                Ok(Status::True)
            }
            "test" => self.tested(arguments),
            "[" => match arguments.split_last() {
                Some((end, arguments)) if end == "]" => self.tested(arguments),
                _ => Ok(self.left_out(Obstacle("a `[` without `]`".into()), &[])),
            },
            "." | "source" => match arguments {
                [path] => self.source(path, line),
                _ => Ok(self.left_out(Obstacle(format!("`{}`", words.join(" "))), &[])),
            },
            "eval" => self.eval(&arguments.join(" "), line),
            "return" | "exit" => Err(Stop),
            "set" if arguments.iter().all(|word| matches!(word.as_str(), "-x" | "+x" | "+e" | "+u")) => {
                Ok(Status::True)
            }
            _ => Ok(self.left_out(Obstacle(format!("the command `{name}`")), &[])),
        }
    }

    fn tested(&mut self, arguments: &[String]) -> Ran {
        match self.test(arguments) {
            Ok(it) => Ok(it.into()),
            Err(obstacle) => Ok(self.left_out(obstacle, &[])),
        }
    }

    fn eval(&mut self, text: &str, line: u32) -> Ran {
        if self.depth >= DEPTH_MAX {
            return Ok(self.left_out(Obstacle("`eval` that evaluates itself".into()), &[]));
        }
        let (statements, error) = parse(text);
        self.depth += 1;
        let outcome = self.statements(&statements);
        self.depth -= 1;
        if let Some(error) = error {
            self.report(line, ProblemKind::Syntax { what: error.what });
        }
        outcome
    }

    fn assign(&mut self, assignment: &Assignment) {
        self.line = assignment.line;
        let Assignment { line, name, append, value } = assignment;
        let value = self.value_of(value).and_then(|value| {
            let before = if *append { self.get(name)?.unwrap_or_default() } else { String::new() };
            Ok(before + &value)
        });
        match value {
            Ok(value) => self.set(name, Some(value), *line),
            Err(obstacle) => {
                self.report(*line, ProblemKind::NotEvaluated { what: obstacle.0, names: vec![name.clone()] });
                self.set(name, None, *line);
            }
        }
    }
}
