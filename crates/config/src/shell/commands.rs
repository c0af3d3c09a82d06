//! Implements the built-in commands of a shell.

use std::path::Path;

use super::Shell;
use super::expand::NoValue;
use super::parse::is_variable;
use super::programs;
use super::run::{ShellResult, Status, Stop};
use super::syntax::Assignment;
use crate::files::Probe;

/// Folders of programs without a `PATH`.
const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// Commands that every shell has, for `command -v`.
const BUILT_IN: [&str; 21] = [
    ":", ".", "[", "break", "command", "continue", "echo", "eval", "exit", "export", "false", "local",
    "printf", "read", "readonly", "return", "set", "shift", "test", "true", "unset",
];

/// Options of `set` without an effect on the evaluation.
const HARMLESS_OPTIONS: [&str; 6] = ["-x", "+x", "+e", "+u", "-a", "+a"];

/// Commands that set variables in ways that are not evaluated.
const SETTERS: [&str; 6] = ["declare", "eval", "let", "local", "read", "typeset"];

impl Shell<'_> {
    pub(super) fn command(&mut self, words: &[String], declared: &[Assignment], line: u32) -> ShellResult {
        let Some((name, arguments)) = words.split_first() else { return Ok(Status::TRUE) };
        match name.as_str() {
            ":" | "true" | "umask" | "trap" | "hash" | "sleep" | "wait" => Ok(Status::TRUE),
            "false" => Ok(Status::FALSE),
            "export" | "readonly" => {
                self.declare(name, arguments, declared);
                Ok(Status::TRUE)
            }
            "unset" if arguments.first().is_some_and(|option| option == "-f") => Ok(Status::TRUE),
            "unset" => {
                arguments.iter().filter(|name| is_variable(name)).for_each(|name| self.unset(name, line));
                Ok(Status::TRUE)
            }
            "test" => self.tested(arguments),
            "[" => match arguments.split_last() {
                Some((end, arguments)) if end == "]" => self.tested(arguments),
                _ => Ok(self.left_out(NoValue::new("a `[` without `]`"), [])),
            },
            "." | "source" => match arguments {
                [path, ..] => self.source(path, line),
                [] => Ok(self.left_out(NoValue::new(format!("`{name}`")), [])),
            },
            "return" | "exit" => {
                let code: Option<u32> = arguments.first().and_then(|text| text.parse().ok());
                let code = code.unwrap_or(u32::from(self.last));
                self.last = u8::try_from(code & 0xff).unwrap_or_default();
                Err(if name == "exit" { Stop::Exit } else { Stop::Return })
            }
            "set" if arguments.iter().all(|option| HARMLESS_OPTIONS.contains(&option.as_str())) => {
                Ok(Status::TRUE)
            }
            name if SETTERS.contains(&name) => {
                let words = arguments.iter().flat_map(|text| text.split_whitespace());
                let words = words.filter(|word| name == "read" || word.contains('='));
                let names = words.filter_map(|word| word.split(['=', '+']).next());
                let names = names.filter(|name| is_variable(name)).map(str::to_owned).collect();
                Ok(self.not_evaluated(NoValue::new(format!("the command `{name}`")), line, names))
            }
            "command" => self.look_up(arguments, line),
            _ => self.program(name, arguments),
        }
    }

    /// Emulates a program whose effect is known.
    fn program(&mut self, name: &str, arguments: &[String]) -> ShellResult {
        let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
        let ran = programs::run(self, name, &words).and_then(|outcome| {
            self.print(&outcome.output)?;
            Ok(outcome.code)
        });
        match ran {
            Ok(code) => Ok(Status::Known(code)),
            Err(obstacle) => Ok(self.left_out(obstacle, [])),
        }
    }

    fn declare(&mut self, command: &str, arguments: &[String], declared: &[Assignment]) {
        let names = declared.iter().map(|assignment| &assignment.name).chain(arguments);
        let names: Vec<String> = names.filter(|name| is_variable(name)).cloned().collect();
        declared.iter().for_each(|assignment| self.assign(assignment));
        if command == "readonly" {
            names.iter().for_each(|name| self.protect(name));
        }
    }

    fn tested(&mut self, arguments: &[String]) -> ShellResult {
        match self.test(arguments) {
            Ok(Some(it)) => Ok(it.into()),
            // Status of a shell for an illegal number.
            Ok(None) => Ok(Status::Known(2)),
            Err(obstacle) => Ok(self.left_out(obstacle, [])),
        }
    }

    /// Runs `command`: another command, or with `-v` a look-up of names.
    fn look_up(&mut self, arguments: &[String], line: u32) -> ShellResult {
        let names = match arguments {
            [option, names @ ..] if option == "-v" => names,
            _ => return self.command(arguments, &[], line),
        };
        let mut all = !names.is_empty();
        for name in names {
            let found =
                if BUILT_IN.contains(&name.as_str()) { Some(name.clone()) } else { self.in_path(name) };
            all &= found.is_some();
            if let Some(found) = found
                && let Err(obstacle) = self.print(&format!("{found}\n"))
            {
                return Ok(self.left_out(obstacle, []));
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
}
