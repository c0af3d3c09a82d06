mod build;
mod diff;
mod digest;
mod extract;
mod inspect;
mod learn;
mod look;
mod verify;

commands! {
    /// Builds, reads, verifies and compares squashfs images without mounting them.
    ///
    /// Example: esker image inspect stack.sqfs
    args, call;
    Build(Box<build::Args>) => build::run(*args, call.settings);
    Inspect(inspect::Args) => inspect::run(&args, call.settings);
    Ls(look::LsArgs) => look::ls(&args, call.settings);
    Cat(look::CatArgs) => look::cat(&args, call.settings);
    Extract(extract::Args) => extract::run(&args, call.settings);
    Diff(diff::Args) => diff::run(&args);
    Verify(verify::Args) => verify::run(&args, call.settings);
    Digest(digest::Args) => digest::run(&args, call.settings);
    Learn(learn::Args) => learn::run(&args, call.settings);
}
