//! Makes the plan of a mount from its resolved options.

use std::sync::Arc;

use esker_fuse::SessionOptions;
use esker_prefetch::StartReplayer;

use super::MountPlan;
use crate::helper_process::Helper;
use crate::mount_spec::{ContentSpec, MountSpec, session};
use crate::push::Push;
use crate::supervisor::Supervision;

impl MountPlan {
    /// Returns true if the mount of an earlier daemon goes on.
    pub(super) fn inherits(&self) -> bool {
        self.supervision.as_ref().is_some_and(|supervision| supervision.inherited().is_some())
    }

    /// Returns the plan of a mount with these options.
    pub fn of(spec: &MountSpec, helper: Arc<Helper>, supervision: Option<Arc<Supervision>>) -> Self {
        let plan = Self {
            mountpoint: spec.mountpoint.clone(),
            runtime: spec.runtime.clone(),
            options: spec.options.mount_options(),
            session: SessionOptions { helper: Some(helper.clone()), ..session(spec.kernel, spec.deadline) },
            command: None,
            push: Push::Off,
            telemetry: None,
            talk: None,
            shown_with: spec.shown_with,
            replayer: spec.replay.then(|| helper.clone() as Arc<dyn StartReplayer>),
            helper: Some(helper),
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
