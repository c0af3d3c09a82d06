//! Executes statements.

use super::expand::{Expanded, NoValue};
use super::syntax::{Assignment, Redirection, Simple, Statement, What, Word, assigned};
use super::{INPUT_MAX, Shell, VALUE_MAX};
use crate::problem::ProblemKind;

/// Exit status of a command, if it is known.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Status {
    Known(u8),
    /// The command was not run.
    Unknown,
}

impl Status {
    pub(super) const TRUE: Self = Self::Known(0);
    pub(super) const FALSE: Self = Self::Known(1);
}

/// Reason why the following statements are not evaluated.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Stop {
    /// `return`: ends the sourced file.
    Return,
    /// `exit`: ends the file or the subshell.
    Exit,
    /// A limit was reached.
    Bound,
}

pub(super) type ShellResult = Result<Status, Stop>;

impl From<bool> for Status {
    fn from(it: bool) -> Self {
        if it { Status::TRUE } else { Status::FALSE }
    }
}

impl Shell<'_> {
    pub(super) fn statements(&mut self, statements: &[Statement]) -> ShellResult {
        let mut status = Status::TRUE;
        for statement in statements {
            status = self.statement(statement)?;
        }
        Ok(status)
    }

    fn statement(&mut self, statement: &Statement) -> ShellResult {
        self.line = statement.line;
        self.steps = self.steps.checked_sub(1).ok_or_else(|| self.bound())?;
        let status = self.what(statement)?;
        self.line = statement.line;
        if let Status::Known(code) = status {
            self.last = code;
        }
        Ok(status)
    }

    /// Reports that a limit was reached.
    fn bound(&mut self) -> Stop {
        self.report(self.line, ProblemKind::Endless);
        self.tainted.get_or_insert(usize::MAX);
        Stop::Bound
    }

    fn what(&mut self, statement: &Statement) -> ShellResult {
        match &statement.what {
            What::Simple(simple) => self.simple(simple, statement.line),
            What::Chain(first, rest) => self.chain(first, rest),
            What::Not(inner) => Ok(match self.statement(inner)? {
                Status::Known(code) => Status::from(code != 0),
                Status::Unknown => Status::Unknown,
            }),
            What::If { branches, otherwise } => self.choose(branches, otherwise),
            What::Case { word, arms } => self.case(word, arms, statement),
            What::Redirected(inner, redirections) => {
                let outcome = self.redirected(redirections, |shell| shell.statement(inner));
                outcome.unwrap_or_else(|obstacle| Ok(self.left_out(obstacle, [&**inner])))
            }
            What::Group(inner) => self.statements(inner),
            What::Subshell(inner) => self.subshell(|shell| shell.statements(inner)),
            What::Beyond { what, inner } => Ok(self.left_out(NoValue::new(*what), inner)),
        }
    }

    /// Evaluates a subshell, of which only output and status remain.
    fn subshell(&mut self, inner: impl FnOnce(&mut Self) -> ShellResult) -> ShellResult {
        if let Err(obstacle) = self.charge(self.held) {
            return Ok(self.left_out(obstacle, []));
        }
        let before = (self.variables.clone(), self.held, (self.changed.clone(), self.changed_below.clone()));
        let outcome = inner(self);
        (self.variables, self.held, (self.changed, self.changed_below)) = before;
        match outcome {
            Err(Stop::Bound) => Err(Stop::Bound),
            Err(_) => Ok(Status::Known(self.last)),
            Ok(status) => Ok(status),
        }
    }

    /// Returns the output of statements. An obstacle if something in them was not run.
    fn captured(&mut self, inner: impl FnOnce(&mut Self) -> ShellResult) -> Expanded<(String, Status)> {
        let output = self.output.replace(String::new());
        let tainted = self.tainted.take();
        let outcome = self.subshell(inner);
        let text = std::mem::replace(&mut self.output, output).unwrap_or_default();
        let cause = std::mem::replace(&mut self.tainted, tainted);
        match (outcome, cause) {
            (Ok(status), None) => Ok((text, status)),
            (_, cause) => Err(NoValue { what: "the output of commands".into(), cause }),
        }
    }

    /// Returns the value of a command substitution.
    pub(super) fn output_of(&mut self, body: &[Statement]) -> Expanded<String> {
        let (depth, line) = (self.depth, self.line);
        self.depth += 1;
        let outcome = match self.depth > super::DEPTH_MAX {
            true => Err(NoValue::new("commands that are nested so deeply")),
            false => self.captured(|shell| shell.statements(body)),
        };
        (self.depth, self.line) = (depth, line);
        let (text, status) = outcome?;
        if let Status::Known(code) = status {
            self.last = code;
        }
        self.substituted = Some(status);
        Ok(text)
    }

    /// Adds to the output.
    pub(super) fn print(&mut self, text: &str) -> Expanded<()> {
        self.charge(text.len())?;
        if let Some(output) = &mut self.output {
            if output.len() + text.len() > INPUT_MAX {
                return Err(NoValue::new(format!("output of more than {INPUT_MAX} bytes")));
            }
            output.push_str(text);
        }
        Ok(())
    }

    /// Evaluates a command with redirections. Returns an obstacle if a redirection would have an effect.
    fn redirected(
        &mut self,
        redirections: &[Redirection],
        inner: impl FnOnce(&mut Self) -> ShellResult,
    ) -> Expanded<ShellResult> {
        if redirections.iter().any(|it| matches!(it, Redirection::Beyond)) {
            return Err(NoValue::new("a redirection"));
        }
        if !redirections.iter().any(|it| matches!(it, Redirection::Discard)) {
            return Ok(inner(self));
        }
        let output = self.output.take();
        let tainted = self.tainted;
        let outcome = inner(self);
        self.output = output;
        if outcome != Err(Stop::Bound) {
            // Whatever was not printed would have gone nowhere.
            self.tainted = tainted;
        }
        Ok(outcome)
    }

    /// Reports a statement that is not run, with the names that it would set.
    pub(super) fn left_out<'s>(
        &mut self,
        obstacle: NoValue,
        statements: impl IntoIterator<Item = &'s Statement>,
    ) -> Status {
        self.not_evaluated(obstacle, self.line, assigned(statements))
    }

    /// Adds the names that depend on a skipped command to its report.
    fn depends<'s>(&mut self, statements: impl IntoIterator<Item = &'s Statement>) -> Status {
        let obstacle = NoValue { what: "a command".into(), cause: self.unknown };
        self.left_out(obstacle, statements)
    }

    fn chain(&mut self, first: &Statement, rest: &[(bool, Statement)]) -> ShellResult {
        let mut status = self.statement(first)?;
        for (and, next) in rest {
            match (status, and) {
                (Status::Unknown, _) => {
                    self.depends([next]);
                }
                (Status::Known(0), true) => status = self.statement(next)?,
                (Status::Known(code), false) if code != 0 => status = self.statement(next)?,
                _ => {}
            }
        }
        Ok(status)
    }

    fn choose(
        &mut self,
        branches: &[(Vec<Statement>, Vec<Statement>)],
        otherwise: &[Statement],
    ) -> ShellResult {
        for (at, (condition, body)) in branches.iter().enumerate() {
            match self.statements(condition)? {
                Status::Known(0) => return self.statements(body),
                Status::Known(_) => {}
                Status::Unknown => {
                    let bodies = branches[at..].iter().flat_map(|(_, body)| body);
                    return Ok(self.depends(bodies.chain(otherwise)));
                }
            }
        }
        self.statements(otherwise)
    }

    fn case(&mut self, word: &Word, arms: &[(Vec<Word>, Vec<Statement>)], whole: &Statement) -> ShellResult {
        let fits = |shell: &mut Self, text: &[char], patterns: &[Word]| {
            for pattern in patterns {
                let pattern = shell.pattern_of(pattern)?;
                shell.charge(text.len().saturating_mul(pattern.part_count()) / 64)?;
                if pattern.fits(text) {
                    return Ok(true);
                }
            }
            Ok(false)
        };
        let text: Vec<char> = match self.value_of(word) {
            Ok(text) => text.chars().collect(),
            Err(obstacle) => return Ok(self.left_out(obstacle, [whole])),
        };
        for (patterns, body) in arms {
            match fits(self, &text, patterns) {
                Ok(true) => return self.statements(body),
                Ok(false) => {}
                Err(obstacle) => return Ok(self.left_out(obstacle, [whole])),
            }
        }
        Ok(Status::TRUE)
    }

    fn simple(&mut self, simple: &Simple, line: u32) -> ShellResult {
        let outcome = match simple.redirections.is_empty() {
            true => Ok(self.plain(simple, line)),
            false => self.redirected(&simple.redirections, |shell| shell.plain(simple, line)),
        };
        outcome.unwrap_or_else(|obstacle| {
            let name = simple.words.first().and_then(super::parse::literal).unwrap_or("a command");
            let what = match obstacle.what.as_str() {
                "a redirection" => format!("`{name}` with a redirection"),
                _ => obstacle.what,
            };
            let own = if simple.words.is_empty() { simple.assignments.as_slice() } else { &[] };
            let all = own.iter().chain(&simple.declared);
            let names = all.map(|it| it.name.clone()).collect();
            Ok(self.not_evaluated(NoValue { what, cause: obstacle.cause }, line, names))
        })
    }

    fn plain(&mut self, simple: &Simple, line: u32) -> ShellResult {
        let name = simple.words.first().and_then(super::parse::literal);
        // Assignments before a command are for it alone, except before special built-ins.
        let keeps = name.is_none_or(|name| {
            matches!(name, ":" | "." | "export" | "readonly" | "unset" | "set" | "return" | "exit")
        });
        self.substituted = None;
        let mut before = Vec::new();
        for assignment in &simple.assignments {
            if !keeps {
                before.push((assignment.name.clone(), self.variables.get(&assignment.name).cloned()));
            }
            self.assign(assignment);
        }
        if simple.words.is_empty() {
            return Ok(self.substituted.take().unwrap_or(Status::TRUE));
        }
        let ran = match self.fields_of(&simple.words) {
            Ok(words) if words.is_empty() => Ok(self.substituted.take().unwrap_or(Status::TRUE)),
            Ok(words) => self.command(&words, &simple.declared, line),
            Err(obstacle) => {
                let names = simple.declared.iter().map(|assignment| assignment.name.clone()).collect();
                Ok(self.not_evaluated(obstacle, line, names))
            }
        };
        for (name, variable) in before.into_iter().rev() {
            self.restore(&name, variable);
        }
        ran
    }

    pub(super) fn assign(&mut self, assignment: &Assignment) {
        self.line = assignment.line;
        let Assignment { line, name, append, value } = assignment;
        let value = self.value_of(value).and_then(|value| {
            // Words are split at blanks only.
            if name == "IFS" {
                return Err(NoValue::new("`IFS`"));
            }
            let before = if *append { self.get(name)?.unwrap_or_default() } else { String::new() };
            if before.len() + value.len() > VALUE_MAX {
                return Err(NoValue::new(format!("a value of more than {VALUE_MAX} bytes")));
            }
            Ok(before + &value)
        });
        match value {
            Ok(value) => self.set(name, value, *line),
            Err(obstacle) => {
                self.not_evaluated(obstacle, *line, vec![name.clone()]);
            }
        }
    }
}
