//! Implements the built-in commands of a shell, and functions.

use std::path::Path;

use super::expand::Obstacle;
use super::parse::{is_variable, parse};
use super::programs;
use super::run::{Ran, Status, Stop};
use super::syntax::{Assignment, Statement, assigned};
use super::{DEPTH_MAX, Shell};
use crate::files::Probe;
use crate::problem::ProblemKind;

/// Folders of programs without a `PATH`.
const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// Commands implemented in this file, for `command -v`.
const BUILT_IN: [&str; 21] = [
    ":", ".", "[", "break", "command", "continue", "echo", "eval", "exit", "export", "false", "local",
    "printf", "read", "readonly", "return", "set", "shift", "test", "true", "unset",
];

impl Shell<'_> {
    pub(super) fn command(&mut self, words: &[String], declared: &[Assignment], line: u32) -> Ran {
        let Some((name, arguments)) = words.split_first() else { return Ok(Status::TRUE) };
        if let Some(body) = self.functions.get(name).cloned() {
            return self.call(&body, arguments);
        }
        let number = |default: u32| arguments.first().and_then(|text| text.parse().ok()).unwrap_or(default);
        match name.as_str() {
            ":" | "true" | "umask" | "trap" | "hash" | "sleep" | "wait" => Ok(Status::TRUE),
            "false" => Ok(Status::FALSE),
            "export" | "readonly" | "local" => {
                self.declare(name, arguments, declared);
                Ok(Status::TRUE)
            }
            "unset" => {
                if let [option, names @ ..] = arguments
                    && option == "-f"
                {
                    names.iter().for_each(|name| _ = self.functions.remove(name));
                    return Ok(Status::TRUE);
                }
                arguments.iter().filter(|name| is_variable(name)).for_each(|name| self.unset(name, line));
                Ok(Status::TRUE)
            }
            "test" => self.tested(arguments),
            "[" => match arguments.split_last() {
                Some((end, arguments)) if end == "]" => self.tested(arguments),
                _ => Ok(self.left_out(Obstacle::new("a `[` without `]`"), &[])),
            },
            "." | "source" => match arguments {
                [path, ..] => self.source(path, line),
                [] => Ok(self.left_out(Obstacle::new(format!("`{name}`")), &[])),
            },
            "eval" => self.eval(&arguments.join(" "), line),
            "return" | "exit" => {
                let code = number(u32::from(self.last));
                self.last = u8::try_from(code & 0xff).unwrap_or_default();
                Err(if name == "exit" { Stop::Exit } else { Stop::Return })
            }
            "break" => Err(Stop::Break(number(1).max(1))),
            "continue" => Err(Stop::Continue(number(1).max(1))),
            "shift" => {
                let count = usize::try_from(number(1)).unwrap_or(usize::MAX);
                let enough = count <= self.arguments.len();
                self.arguments.drain(..count.min(self.arguments.len()));
                Ok(enough.into())
            }
            "set" => self.set_options(arguments),
            "read" => self.read(arguments, line),
            "command" => self.look_up(arguments, line),
            _ => self.program(name, arguments),
        }
    }

    /// Emulates a program whose effect is known.
    fn program(&mut self, name: &str, arguments: &[String]) -> Ran {
        let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
        let ran = programs::run(self, name, &words).and_then(|outcome| {
            self.print(&outcome.output)?;
            Ok(outcome.code)
        });
        match ran {
            Ok(code) => Ok(Status::Known(code)),
            Err(obstacle) => Ok(self.left_out(obstacle, &[])),
        }
    }

    fn declare(&mut self, command: &str, arguments: &[String], declared: &[Assignment]) {
        let names = declared.iter().map(|assignment| &assignment.name).chain(arguments);
        let names: Vec<String> = names.filter(|name| is_variable(name)).cloned().collect();
        if command == "local" {
            for name in &names {
                let before = self.variables.get(name).cloned();
                if let Some(locals) = self.locals.last_mut() {
                    locals.push((name.clone(), before));
                }
            }
        }
        declared.iter().for_each(|assignment| self.assign(assignment));
        if command == "readonly" {
            names.iter().for_each(|name| self.protect(name));
        }
    }

    fn call(&mut self, body: &Statement, arguments: &[String]) -> Ran {
        if self.depth >= DEPTH_MAX {
            return Ok(self.left_out(Obstacle::new("a function that calls itself so often"), &[]));
        }
        let outer = std::mem::replace(&mut self.arguments, arguments.to_vec());
        self.locals.push(Vec::new());
        self.depth += 1;
        let outcome = self.statements(std::slice::from_ref(body));
        self.depth -= 1;
        for (name, variable) in self.locals.pop().unwrap_or_default().into_iter().rev() {
            self.restore(&name, variable);
        }
        self.arguments = outer;
        match outcome {
            Err(Stop::Return) => Ok(Status::Known(self.last)),
            outcome => outcome,
        }
    }

    fn tested(&mut self, arguments: &[String]) -> Ran {
        match self.test(arguments) {
            Ok(Some(it)) => Ok(it.into()),
            // Status of a shell for an illegal number.
            Ok(None) => Ok(Status::Known(2)),
            Err(obstacle) => Ok(self.left_out(obstacle, &[])),
        }
    }

    fn eval(&mut self, text: &str, line: u32) -> Ran {
        if self.depth >= DEPTH_MAX {
            return Ok(self.left_out(Obstacle::new("`eval` that evaluates itself"), &[]));
        }
        if let Err(obstacle) = self.charge(text.len()) {
            return Ok(self.left_out(obstacle, &[]));
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

    fn set_options(&mut self, arguments: &[String]) -> Ran {
        let positional = match arguments {
            [first, rest @ ..] if first == "--" => Some(rest),
            [first, ..] if !first.starts_with(['-', '+']) => Some(arguments),
            _ => None,
        };
        if let Some(positional) = positional {
            self.arguments = positional.to_vec();
            return Ok(Status::TRUE);
        }
        if arguments.iter().all(|word| matches!(word.as_str(), "-x" | "+x" | "+e" | "+u" | "-a" | "+a")) {
            return Ok(Status::TRUE);
        }
        Ok(self.left_out(Obstacle::new("the command `set`"), &[]))
    }

    /// Runs `read NAME…`: splits a line of the input.
    fn read(&mut self, arguments: &[String], line: u32) -> Ran {
        let raw = arguments.iter().any(|argument| argument == "-r");
        let names: Vec<&String> = arguments.iter().filter(|name| *name != "-r").collect();
        if names.iter().any(|name| !is_variable(name)) {
            return Ok(self.left_out(Obstacle::new(format!("`read {}`", arguments.join(" "))), &[]));
        }
        let (text, whole) = self.line_of_input(raw);
        let separators = self.separators();
        let separates = |it: &(char, bool)| !it.1 && separators.contains(it.0);
        let blank = |it: &(char, bool)| separates(it) && it.0.is_ascii_whitespace();
        let mut rest = text.as_slice();
        while let [first, others @ ..] = rest
            && blank(first)
        {
            rest = others;
        }
        while let [others @ .., last] = rest
            && blank(last)
        {
            rest = others;
        }
        for (at, name) in names.iter().enumerate() {
            let end = match at + 1 == names.len() {
                true => rest.len(),
                false => rest.iter().position(separates).unwrap_or(rest.len()),
            };
            let value: String = rest[..end].iter().map(|(c, _)| *c).collect();
            rest = &rest[end..];
            // Blanks around one other separator belong to it.
            let pass = |rest: &mut &[(char, bool)]| {
                while let [first, others @ ..] = *rest
                    && blank(first)
                {
                    *rest = others;
                }
            };
            pass(&mut rest);
            if let [first, others @ ..] = rest
                && separates(first)
            {
                rest = others;
                pass(&mut rest);
            }
            self.set(name, Some(value), line);
        }
        Ok(whole.into())
    }

    /// Returns a line of the input, each character with whether it is escaped, and whether the line was complete.
    fn line_of_input(&mut self, raw: bool) -> (Vec<(char, bool)>, bool) {
        let mut all = Vec::new();
        while let Some((line, whole)) = self.input.as_mut().and_then(super::run::Input::line) {
            let mut chars = line.chars();
            let mut goes_on = false;
            while let Some(c) = chars.next() {
                if c != '\\' || raw {
                    all.push((c, false));
                } else if let Some(c) = chars.next() {
                    all.push((c, true));
                } else {
                    goes_on = whole;
                }
            }
            if !goes_on {
                return (all, whole);
            }
        }
        (all, false)
    }

    /// Runs `command`: another command, or with `-v` a look-up of names.
    fn look_up(&mut self, arguments: &[String], line: u32) -> Ran {
        let names = match arguments {
            [option, names @ ..] if option == "-v" => names,
            _ => return self.command(arguments, &[], line),
        };
        let mut all = !names.is_empty();
        for name in names {
            let known = BUILT_IN.contains(&name.as_str()) || self.functions.contains_key(name);
            let found = if known { Some(name.clone()) } else { self.in_path(name) };
            all &= found.is_some();
            if let Some(found) = found
                && let Err(obstacle) = self.print(&format!("{found}\n"))
            {
                return Ok(self.left_out(obstacle, &[]));
            }
        }
        Ok(if all { Status::TRUE } else { Status::Known(127) })
    }

    /// Returns the path of a program.
    fn in_path(&self, name: &str) -> Option<String> {
        let is_program =
            |path: &Path| self.files.probe(path, Probe::File) && self.files.probe(path, Probe::Executable);
        if name.contains('/') {
            return is_program(&self.folder.join(name)).then(|| name.to_owned());
        }
        let path = self.get("PATH").ok().flatten().unwrap_or_else(|| PATH.to_owned());
        let mut found = path.split(':').filter(|folder| folder.starts_with('/')).take(64);
        found
            .find(|folder| is_program(&Path::new(folder).join(name)))
            .map(|folder| format!("{}/{name}", folder.trim_end_matches('/')))
    }

    /// Returns the names that statements assign, as far as this is known without evaluating them.
    pub(super) fn own_names(statements: &[Statement]) -> Vec<String> {
        let mut names = Vec::new();
        assigned(statements, &mut names);
        names
    }
}
