//! `uname`, `hostname` and `id`.

use super::super::Shell;
use super::super::expand::{Expanded, Obstacle};
use super::{Done, Options, Outcome, unsupported};

pub(super) fn uname(shell: &Shell<'_>, arguments: &[&str]) -> Done {
    let machine = shell.machine;
    let options = Options::parse("uname", arguments, "snrvmo", "")?;
    if !options.operands.is_empty() {
        return Ok(Outcome { output: String::new(), code: 1 });
    }
    let parts = [
        ('s', "Linux"),
        ('n', &machine.host),
        ('r', &machine.release),
        ('v', &machine.version),
        ('m', &machine.architecture),
        ('o', "GNU/Linux"),
    ];
    let wanted = |letter: char| options.has(letter) || options.letters.is_empty() && letter == 's';
    let parts: Vec<&str> =
        parts.iter().filter(|(letter, _)| wanted(*letter)).map(|(_, part)| *part).collect();
    Ok(Outcome::line(parts.join(" ")))
}

pub(super) fn hostname(shell: &mut Shell<'_>, arguments: &[&str]) -> Done {
    let host = &shell.machine.host;
    Ok(Outcome::line(match arguments {
        [] => host.clone(),
        ["-s"] => host.split('.').next().unwrap_or_default().to_owned(),
        ["-f"] => full_name(shell)?,
        ["-d"] => full_name(shell)?.split_once('.').map(|(_, domain)| domain.to_owned()).unwrap_or_default(),
        ["-i"] => addresses(shell)?,
        _ => return Err(unsupported("hostname", arguments)),
    }))
}

/// Returns the lines of `/etc/hosts` that have the name of this host: its addresses, and its first name.
fn hosts(shell: &mut Shell<'_>) -> Expanded<Vec<(String, String)>> {
    let text = shell.content("/etc/hosts")?.unwrap_or_default();
    let host = &shell.machine.host;
    let mut found = Vec::new();
    for line in text.lines() {
        let mut words = line.split('#').next().unwrap_or_default().split_whitespace();
        let (Some(address), Some(first)) = (words.next(), words.next()) else { continue };
        if std::iter::once(first).chain(words).any(|name| name.eq_ignore_ascii_case(host)) {
            found.push((address.to_owned(), first.to_owned()));
        }
    }
    Ok(found)
}

/// Evaluates `hostname -f`: the first name of the host in `/etc/hosts`, else that of the resolver.
fn full_name(shell: &mut Shell<'_>) -> Expanded<String> {
    if let Some((_, name)) = hosts(shell)?.into_iter().next() {
        return Ok(name);
    }
    let host = shell.machine.host.clone();
    if host.contains('.') {
        return Ok(host);
    }
    let found = shell.machine.full_name.and_then(|ask| ask(&host));
    found.ok_or_else(|| {
        Obstacle::new("`hostname -f`, since the full name of this machine can't be found out,")
    })
}

fn addresses(shell: &mut Shell<'_>) -> Expanded<String> {
    let found: Vec<String> = hosts(shell)?.into_iter().map(|(address, _)| address).collect();
    if found.is_empty() {
        return Err(Obstacle::new("`hostname -i` of a machine that is not in /etc/hosts"));
    }
    Ok(found.join(" "))
}

pub(super) fn id(shell: &mut Shell<'_>, arguments: &[&str]) -> Done {
    let options = Options::parse("id", arguments, "ugn", "")?;
    let unknown = || unsupported("id", arguments);
    let group = options.has('g');
    if !options.operands.is_empty() || options.has('u') == group {
        return Err(unknown());
    }
    let (number, file) = match group {
        true => (shell.machine.group, "/etc/group"),
        false => (shell.machine.user, "/etc/passwd"),
    };
    if !options.has('n') {
        return Ok(Outcome::line(number.to_string()));
    }
    let text = shell.content(file)?.unwrap_or_default();
    let named = text.lines().find_map(|line| {
        let mut fields = line.split(':');
        let name = fields.next()?;
        (fields.nth(1)?.parse() == Ok(number)).then(|| name.to_owned())
    });
    named.map(Outcome::line).ok_or_else(unknown)
}
