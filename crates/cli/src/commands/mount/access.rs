use esker_kernel_mount::Label;
use esker_node::status::Presentation;

use crate::error::Failure;
use crate::output::choice;

/// Options for access to a mount and for its labels.
#[derive(clap::Args, Debug)]
pub(super) struct AccessArgs {
    /// Allow other users to access the mount; always on for root, for others where /etc/fuse.conf allows it
    #[arg(long, help_heading = "Access")]
    pub(super) allow_other: bool,

    /// Forbid executing programs from the mount
    #[arg(long, help_heading = "Access")]
    pub(super) noexec: bool,

    /// SELinux context of all files, for instance system_u:object_r:httpd_sys_content_t:s0
    #[arg(long, value_name = "CONTEXT", help_heading = "Access")]
    context: Option<String>,

    #[arg(long, value_name = "CONTEXT", hide = true)]
    fscontext: Option<String>,

    #[arg(long, value_name = "CONTEXT", hide = true)]
    defcontext: Option<String>,

    #[arg(long, value_name = "CONTEXT", hide = true)]
    rootcontext: Option<String>,

    /// Kernel file system that presents the mount [default for root: erofs for images, overlay for fixed revisions]
    #[arg(long, value_name = "FILE SYSTEM", value_parser = choice(FILE_SYSTEMS), help_heading = "Access")]
    show_with: Option<Presentation>,

    /// Source that `mount` and `df` show [default: the URL]
    #[arg(long, value_name = "TEXT", hide = true)]
    pub(super) source: Option<String>,
}

const FILE_SYSTEMS: &[(&str, Presentation)] =
    &[("erofs", Presentation::Erofs), ("overlay", Presentation::Overlay), ("fuse", Presentation::Fuse)];

impl AccessArgs {
    /// Returns the labels for SELinux.
    pub(super) fn labels(&self) -> Result<Vec<Label>, Failure> {
        let all = [
            ("context", &self.context),
            ("fscontext", &self.fscontext),
            ("defcontext", &self.defcontext),
            ("rootcontext", &self.rootcontext),
        ];
        let given = all.iter().filter_map(|(kind, context)| Some((kind, context.as_ref()?)));
        given
            .map(|(kind, context)| {
                Label::new(kind, context).ok_or_else(|| {
                    Failure::usage(format!("{kind}={context} is not an SELinux context"))
                        .hint("write one like system_u:object_r:usr_t:s0")
                })
            })
            .collect()
    }

    /// Returns the presentation of a tree that never changes; `usual` without an option.
    pub(super) fn shown_with(&self, usual: Presentation) -> Presentation {
        let labelled = self.labels().is_ok_and(|labels| !labels.is_empty());
        match self.show_with {
            // The labels belong to the FUSE mount, which a file system above it would hide.
            None if labelled => Presentation::Fuse,
            None => usual,
            Some(named) => named,
        }
    }
}
