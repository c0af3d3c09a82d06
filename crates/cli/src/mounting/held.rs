//! Texts about the processes that hold a mount whose place is gone here.

use esker_node::mounts::holders::Holder;

use crate::output::plain;

/// Describes a namespace that holds a mount.
pub(crate) fn text(holder: &Holder) -> String {
    let place = place(holder);
    if holder.here {
        return format!("it is mounted at {place}, too");
    }
    let mut processes: Vec<String> = Vec::new();
    for process in &holder.processes {
        let user = process.user.map(|user| format!(", user {user}")).unwrap_or_default();
        processes.push(format!("{} ({}{user})", process.pid, plain(&process.program)));
    }
    if holder.further > 0 {
        processes.push(format!("and {} more", holder.further));
    }
    let number = holder.namespace.map(|number| format!(" {number}")).unwrap_or_default();
    format!("the mount namespace{number} holds it at {place}; its processes: {}", processes.join(", "))
}

/// Returns what ends the hold of a namespace.
pub(crate) fn advice(holder: &Holder) -> String {
    let place = place(holder);
    match holder.processes.first() {
        None => format!("`umount {place}`"),
        Some(_) if holder.locked => {
            "end these processes, or wait until they end: the kernel doesn't let them unmount it".to_owned()
        }
        Some(first) => format!(
            "as root `nsenter --target {} --mount umount {place}`; or end these processes, or wait until they end",
            first.pid
        ),
    }
}

/// Description of a mount without a place of which no holder is found, and advice.
pub(crate) const UNSEEN: [&str; 2] = [
    "a program that opened it before uses it, or a mount namespace that this user can't see",
    "it ends with the last of them; `esker status` of root sees more namespaces",
];

/// Returns the mount point without control characters: any user may have made it.
fn place(holder: &Holder) -> String {
    plain(&holder.mountpoint.to_string_lossy())
}
