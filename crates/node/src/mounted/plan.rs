//! Makes the plan of a mount from its resolved options.

use std::sync::Arc;

use esker_fuse::MountOptions;
use esker_fuse::mount::Label;
use esker_prefetch::ReplayerCommand;

use super::MountPlan;
use crate::mount_spec::{ContentSpec, MountSpec, session};
use crate::push::Push;
use crate::supervisor::Supervision;

impl MountPlan {
    /// Returns true if the mount of an earlier daemon goes on.
    pub(super) fn inherits(&self) -> bool {
        self.supervision.as_ref().is_some_and(|supervision| supervision.inherited().is_some())
    }

    /// Returns the plan of a mount with these options. `replayer` starts a replayer.
    pub fn of(spec: &MountSpec, replayer: ReplayerCommand, supervision: Option<Arc<Supervision>>) -> Self {
        let labels = spec.options.labels.iter();
        let plan = Self {
            mountpoint: spec.mountpoint.clone(),
            runtime: spec.runtime.clone(),
            options: MountOptions {
                source: spec.options.source.clone(),
                allow_other: spec.options.allow_other,
                noexec: spec.options.noexec,
                labels: labels.filter_map(|(kind, context)| Label::new(kind, context)).collect(),
            },
            session: session(spec.kernel, spec.deadline),
            command: None,
            push: Push::Off,
            telemetry: None,
            talk: None,
            shown_with: spec.shown_with,
            replayer: spec.replay.then_some(replayer),
            spec: supervision.is_some().then(|| Box::new(spec.clone())),
            supervision,
        };
        match &spec.content {
            ContentSpec::Repository(repository) => Self {
                session: repository.session(plan.session),
                push: repository.push.clone(),
                telemetry: repository.telemetry.clone(),
                talk: repository.talk.clone(),
                ..plan
            },
            ContentSpec::Image(_) => plan,
        }
    }
}
