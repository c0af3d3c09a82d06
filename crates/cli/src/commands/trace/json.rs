//! Writes a trace as JSON. Field names are an interface.

use serde::Serialize;
use serde_json::{Map, Value, json};

use super::blocked::{Blocked, CAUSES};
use super::collected::FileUse;
use super::report::Report;
use crate::error::Failure;
use crate::output::json_text;

#[derive(Serialize)]
struct Trace<'r> {
    command: &'r str,
    pid: u32,
    wall_us: u64,
    blocked: Value,
    main_thread: Value,
    requests: u64,
    processes: Vec<Value>,
    mounts: Vec<Value>,
    files: Vec<Value>,
    notes: Vec<String>,
}

/// Returns the report: one object and a line break.
pub(super) fn write(report: &Report) -> Result<Vec<u8>, Failure> {
    let collected = &report.collected;
    let micros = |time: std::time::Duration| u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
    let blocked = Blocked::of(&collected.waits);
    let by_cause: Map<String, Value> = CAUSES
        .iter()
        .zip(blocked.by_cause)
        .map(|(cause, time)| (cause.replace('-', "_"), micros(time).into()))
        .collect();
    let trace = Trace {
        command: &report.watched.name,
        pid: report.watched.pid,
        wall_us: micros(report.watched.wall),
        blocked: json!({
            "wall_us": micros(blocked.wall),
            "sum_us": micros(blocked.sum),
            "share": blocked.share(report.watched.wall),
            "by_cause_us": by_cause,
        }),
        main_thread: report.main_thread().map_or(Value::Null, |division| {
            json!({
                "ran_us": micros(division.ran),
                "waited_for_core_us": micros(division.ready),
                "waited_for_mounts_us": micros(division.mounts),
                "rest_us": micros(division.rest),
            })
        }),
        requests: collected.requests,
        processes: collected
            .processes
            .iter()
            .map(|(pid, command)| json!({ "pid": pid, "command": command }))
            .collect(),
        mounts: collected
            .mounts
            .iter()
            .map(|mount| {
                json!({
                    "mountpoint": mount.start.mountpoint,
                    "repository": mount.start.repository,
                    "revision": mount.start.revision,
                    "image": mount.start.image,
                    "shown_with": mount.start.shown_with,
                    "requests": mount.requests,
                    "hand_over_ns": mount.hand_over.map(|time| time.as_nanos() as u64),
                    "dropped": mount.dropped,
                    "complete": mount.complete,
                })
            })
            .collect(),
        files: collected
            .files
            .iter()
            .map(|((mount, path), file)| of_file(collected.full_path(*mount, path), (*mount, path), file))
            .collect(),
        notes: report.notes(),
    };
    Ok(format!("{}\n", json_text(&trace)?).into_bytes())
}

fn of_file(full: String, (mount, path): (usize, &str), file: &FileUse) -> Value {
    let operations: Map<String, Value> =
        file.operations.iter().map(|(kind, count)| (kind.name().to_owned(), (*count).into())).collect();
    let sources: Map<String, Value> =
        file.sources.iter().map(|(source, bytes)| (source.name().to_owned(), (*bytes).into())).collect();
    let error = (file.errors > 0).then_some(file.errno);
    json!({
        "path": full,
        "mount": mount,
        "path_in_mount": path,
        "use": file.found().name(),
        "operations": operations,
        "first_ns": file.first_ns,
        "took_us": file.took_ns / 1_000,
        "network_us": file.network_ns / 1_000,
        "disk_us": file.disk_ns / 1_000,
        "decompression_us": file.processing_ns / 1_000,
        "bytes": file.bytes,
        "source": file.farthest().name(),
        "bytes_by_source": sources,
        "places": file.places,
        "pids": file.pids,
        "errno": error,
    })
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use esker_node::trace::{Operation, TraceStart};

    use super::super::collected::Collected;
    use super::super::main_thread::Scheduled;
    use super::super::program::Watched;
    use super::super::tests::call;
    use super::*;

    /// Scripts read these names.
    #[test]
    fn the_json_of_a_trace_keeps_its_field_names() {
        let mut collected = Collected::new(vec![TraceStart::default()], Vec::new());
        collected.add(0, &call("/a", Operation::Read));
        let mut watched = Watched::of_test("true", Duration::from_secs(1));
        watched.scheduled = Scheduled::parse("1000 1000 1");
        let text = write(&Report { watched, collected, top: 0 }).expect("JSON");
        let json: Value = serde_json::from_slice(&text).expect("JSON");
        let names = |value: &Value| {
            value.as_object().expect("an object").keys().cloned().collect::<Vec<_>>().join(" ")
        };
        assert_eq!(
            names(&json),
            "blocked command files main_thread mounts notes pid processes requests wall_us"
        );
        assert_eq!(names(&json["main_thread"]), "ran_us rest_us waited_for_core_us waited_for_mounts_us");
        assert_eq!(names(&json["blocked"]), "by_cause_us share sum_us wall_us");
        assert_eq!(names(&json["blocked"]["by_cause_us"]), "decompression disk hand_over network other");
        assert_eq!(
            names(&json["mounts"][0]),
            "complete dropped hand_over_ns image mountpoint repository requests revision shown_with"
        );
        assert_eq!(
            names(&json["files"][0]),
            "bytes bytes_by_source decompression_us disk_us errno first_ns mount network_us operations path \
             path_in_mount pids places source took_us use"
        );
    }
}
