//! Executes statements.

use std::rc::Rc;

use super::expand::{Expanded, Obstacle};
use super::syntax::{Assignment, Redirection, Simple, Statement, What, Word, assigned};
use super::{INPUT_MAX, Shell, VALUE_MAX};
use crate::problem::ProblemKind;

/// Exit status of a command, as far as it is known.
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
    /// `return`: ends the function or the sourced file.
    Return,
    /// `exit`: ends the file or the subshell.
    Exit,
    /// `break` with the number of loops to leave.
    Break(u32),
    /// `continue` with the number of loops to leave before the next iteration.
    Continue(u32),
    /// A limit was reached.
    Bound,
}

pub(super) type Ran = Result<Status, Stop>;

impl From<bool> for Status {
    fn from(it: bool) -> Self {
        if it { Status::TRUE } else { Status::FALSE }
    }
}

/// The input of commands.
#[derive(Clone, Debug, Default)]
pub(super) struct Input {
    text: String,
    at: usize,
}

impl Input {
    pub(super) fn new(text: String) -> Self {
        Self { text, at: 0 }
    }

    /// Returns the next line, and whether it ends with a newline; `None` at the end.
    pub(super) fn line(&mut self) -> Option<(String, bool)> {
        let rest = self.text.get(self.at..).filter(|rest| !rest.is_empty())?;
        let (line, whole) = match rest.find('\n') {
            Some(end) => (&rest[..end], true),
            None => (rest, false),
        };
        let line = line.to_owned();
        self.at += line.len() + usize::from(whole);
        Some((line, whole))
    }

    pub(super) fn rest(&mut self) -> String {
        let rest = self.text.get(self.at..).unwrap_or_default().to_owned();
        self.at = self.text.len();
        rest
    }
}

impl Shell<'_> {
    pub(super) fn statements(&mut self, statements: &[Statement]) -> Ran {
        let mut status = Status::TRUE;
        for statement in statements {
            status = self.statement(statement)?;
        }
        Ok(status)
    }

    fn statement(&mut self, statement: &Statement) -> Ran {
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

    fn what(&mut self, statement: &Statement) -> Ran {
        match &statement.what {
            What::Simple(simple) => self.simple(simple, statement.line),
            What::Chain(first, rest) => self.chain(first, rest),
            What::Not(inner) => Ok(match self.statement(inner)? {
                Status::Known(code) => Status::from(code != 0),
                Status::Unknown => Status::Unknown,
            }),
            What::Pipeline(stages) => self.pipeline(stages),
            What::If { branches, otherwise } => self.choose(branches, otherwise),
            What::Case { word, arms } => self.case(word, arms, statement),
            What::For { name, words, body } => self.for_each(name, words.as_deref(), body, statement),
            What::Loop { until, condition, body } => self.repeat(*until, condition, body, statement),
            What::Function { name, body } => {
                self.functions.insert(name.clone(), Rc::clone(body));
                Ok(Status::TRUE)
            }
            What::Redirected(inner, redirections) => {
                let outcome = self.redirected(redirections, |shell| shell.statement(inner));
                outcome.unwrap_or_else(|obstacle| Ok(self.left_out(obstacle, std::slice::from_ref(inner))))
            }
            What::Group(inner) => self.statements(inner),
            What::Subshell(inner) => self.subshell(|shell| shell.statements(inner)),
            What::Beyond { what, inner } => Ok(self.left_out(Obstacle::new(*what), inner)),
        }
    }

    /// Evaluates a subshell, of which only output and status remain.
    fn subshell(&mut self, inner: impl FnOnce(&mut Self) -> Ran) -> Ran {
        if let Err(obstacle) = self.charge(self.held) {
            return Ok(self.left_out(obstacle, &[]));
        }
        let before = (
            self.variables.clone(),
            self.held,
            self.functions.clone(),
            self.arguments.clone(),
            self.folder.clone(),
            (self.changed.clone(), self.changed_below.clone()),
        );
        let outcome = inner(self);
        (
            self.variables,
            self.held,
            self.functions,
            self.arguments,
            self.folder,
            (self.changed, self.changed_below),
        ) = before;
        match outcome {
            Err(Stop::Bound) => Err(Stop::Bound),
            Err(_) => Ok(Status::Known(self.last)),
            Ok(status) => Ok(status),
        }
    }

    /// Returns the output of statements. An obstacle if something in them was not run.
    fn captured(&mut self, inner: impl FnOnce(&mut Self) -> Ran) -> Expanded<(String, Status)> {
        let output = self.output.replace(String::new());
        let tainted = self.tainted.take();
        let outcome = self.subshell(inner);
        let text = std::mem::replace(&mut self.output, output).unwrap_or_default();
        let cause = std::mem::replace(&mut self.tainted, tainted);
        match (outcome, cause) {
            (Ok(status), None) => Ok((text, status)),
            (_, cause) => Err(Obstacle { what: "the output of commands".into(), cause }),
        }
    }

    /// Returns the value of a command substitution.
    pub(super) fn output_of(&mut self, body: &[Statement]) -> Expanded<String> {
        let (depth, line) = (self.depth, self.line);
        self.depth += 1;
        let outcome = match self.depth > super::DEPTH_MAX {
            true => Err(Obstacle::new("commands that are nested so deeply")),
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
                return Err(Obstacle::new(format!("output of more than {INPUT_MAX} bytes")));
            }
            output.push_str(text);
        }
        Ok(())
    }

    fn pipeline(&mut self, stages: &[Statement]) -> Ran {
        let Some((last, before)) = stages.split_last() else { return Ok(Status::TRUE) };
        let outer = self.input.take();
        self.input.clone_from(&outer);
        let fed: Expanded<()> = before.iter().try_for_each(|stage| {
            let (text, _) = self.captured(|shell| shell.statement(stage))?;
            self.input = Some(Input::new(text));
            Ok(())
        });
        let outcome = match fed {
            Ok(()) => self.subshell(|shell| shell.statement(last)),
            Err(obstacle) => Ok(self.left_out(obstacle, &[])),
        };
        self.input = outer;
        outcome
    }

    /// Evaluates a command with redirections. Returns an obstacle if a redirection would have an effect.
    fn redirected(
        &mut self,
        redirections: &[Redirection],
        inner: impl FnOnce(&mut Self) -> Ran,
    ) -> Expanded<Ran> {
        let mut discards = false;
        let mut input = None;
        for redirection in redirections {
            match redirection {
                Redirection::Harmless => {}
                Redirection::Discard => discards = true,
                Redirection::Beyond => return Err(Obstacle::new("a redirection")),
                Redirection::Input(path) => {
                    let path = self.value_of(path)?;
                    match self.content(&path)? {
                        Some(text) => input = Some(Input::new(text)),
                        // A shell does not run the command.
                        None => return Ok(Ok(Status::FALSE)),
                    }
                }
                Redirection::Text(word) => {
                    let text = match word.get() {
                        Some(word) => self.value_of(word)?,
                        None => String::new(),
                    };
                    input = Some(Input::new(text));
                }
            }
        }
        let outer = input.is_some().then(|| std::mem::replace(&mut self.input, input));
        let outcome = if discards {
            let output = self.output.take();
            let tainted = self.tainted;
            let outcome = inner(self);
            self.output = output;
            if outcome != Err(Stop::Bound) {
                // Whatever was not printed in there would have gone nowhere.
                self.tainted = tainted;
            }
            outcome
        } else {
            inner(self)
        };
        if let Some(outer) = outer {
            self.input = outer;
        }
        Ok(outcome)
    }

    /// Reports a statement that is not run, with the names that it would set.
    pub(super) fn left_out(&mut self, obstacle: Obstacle, statements: &[Statement]) -> Status {
        let mut names = Vec::new();
        assigned(statements, &mut names);
        self.not_evaluated(obstacle, self.line, names)
    }

    /// Adds the names that depend on a skipped command to its report.
    fn depends(&mut self, statements: &[&[Statement]]) -> Status {
        let mut names = Vec::new();
        statements.iter().for_each(|statements| assigned(statements, &mut names));
        let obstacle = Obstacle { what: "a command".into(), cause: self.unknown };
        self.not_evaluated(obstacle, self.line, names)
    }

    fn chain(&mut self, first: &Statement, rest: &[(bool, Statement)]) -> Ran {
        let mut status = self.statement(first)?;
        for (and, next) in rest {
            match (status, and) {
                (Status::Unknown, _) => {
                    self.depends(&[std::slice::from_ref(next)]);
                }
                (Status::Known(0), true) => status = self.statement(next)?,
                (Status::Known(code), false) if code != 0 => status = self.statement(next)?,
                _ => {}
            }
        }
        Ok(status)
    }

    fn choose(&mut self, branches: &[(Vec<Statement>, Vec<Statement>)], otherwise: &[Statement]) -> Ran {
        for (at, (condition, body)) in branches.iter().enumerate() {
            match self.statements(condition)? {
                Status::Known(0) => return self.statements(body),
                Status::Known(_) => {}
                Status::Unknown => {
                    let mut all: Vec<&[Statement]> =
                        branches[at..].iter().map(|(_, body)| body.as_slice()).collect();
                    all.push(otherwise);
                    return Ok(self.depends(&all));
                }
            }
        }
        self.statements(otherwise)
    }

    fn case(&mut self, word: &Word, arms: &[(Vec<Word>, Vec<Statement>)], whole: &Statement) -> Ran {
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
            Err(obstacle) => return Ok(self.left_out(obstacle, std::slice::from_ref(whole))),
        };
        for (patterns, body) in arms {
            match fits(self, &text, patterns) {
                Ok(true) => return self.statements(body),
                Ok(false) => {}
                Err(obstacle) => return Ok(self.left_out(obstacle, std::slice::from_ref(whole))),
            }
        }
        Ok(Status::TRUE)
    }

    fn for_each(&mut self, name: &str, words: Option<&[Word]>, body: &[Statement], whole: &Statement) -> Ran {
        let fields = match words {
            None => Ok(self.arguments.clone()),
            Some(words) => self.fields_of(words),
        };
        let fields = match fields {
            Ok(fields) => fields,
            Err(obstacle) => return Ok(self.left_out(obstacle, std::slice::from_ref(whole))),
        };
        let mut status = Status::TRUE;
        for field in fields {
            self.set(name, Some(field), whole.line);
            match self.round(body)? {
                Some(ran) => status = ran,
                None => break,
            }
        }
        Ok(status)
    }

    fn repeat(&mut self, until: bool, condition: &[Statement], body: &[Statement], whole: &Statement) -> Ran {
        let mut status = Status::TRUE;
        loop {
            // Also a loop with nothing in it ends.
            self.steps = self.steps.checked_sub(1).ok_or_else(|| self.bound())?;
            match self.statements(condition)? {
                Status::Known(code) if (code == 0) == until => return Ok(status),
                Status::Known(_) => {}
                Status::Unknown => return Ok(self.depends(&[std::slice::from_ref(whole)])),
            }
            match self.round(body)? {
                Some(ran) => status = ran,
                None => return Ok(status),
            }
        }
    }

    /// Runs one iteration of a loop; `None` after the last.
    fn round(&mut self, body: &[Statement]) -> Result<Option<Status>, Stop> {
        match self.statements(body) {
            Ok(status) => Ok(Some(status)),
            Err(Stop::Break(1)) => Ok(None),
            Err(Stop::Break(levels)) => Err(Stop::Break(levels - 1)),
            Err(Stop::Continue(1)) => Ok(Some(Status::TRUE)),
            Err(Stop::Continue(levels)) => Err(Stop::Continue(levels - 1)),
            Err(stop) => Err(stop),
        }
    }

    fn simple(&mut self, simple: &Simple, line: u32) -> Ran {
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
            let all = simple.assignments.iter().chain(&simple.declared);
            let names = all.map(|it| it.name.clone()).collect();
            Ok(self.not_evaluated(Obstacle { what, cause: obstacle.cause }, line, names))
        })
    }

    fn plain(&mut self, simple: &Simple, line: u32) -> Ran {
        let name = simple.words.first().and_then(super::parse::literal);
        // Assignments before a command are for it alone, except before special built-ins.
        let keeps = name.is_none_or(|name| {
            matches!(name, ":" | "." | "eval" | "export" | "readonly" | "unset" | "set" | "return" | "exit")
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
            let before = if *append { self.get(name)?.unwrap_or_default() } else { String::new() };
            if before.len() + value.len() > VALUE_MAX {
                return Err(Obstacle::new(format!("a value of more than {VALUE_MAX} bytes")));
            }
            Ok(before + &value)
        });
        match value {
            Ok(value) => self.set(name, Some(value), *line),
            Err(obstacle) => {
                self.not_evaluated(obstacle, *line, vec![name.clone()]);
                let cause = self.unknown;
                self.set(name, None, *line);
                if let Some(variable) = self.variables.get_mut(name) {
                    variable.cause = cause;
                }
            }
        }
    }
}
