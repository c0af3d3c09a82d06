mod build;
mod diff;
mod digest;
mod extract;
mod inspect;
mod learn;
mod list_and_cat;
mod verify;

commands! {
    /// Builds, reads, verifies and compares squashfs images without mounting them.
    ///
    /// Example: esker image inspect stack.sqfs
    args, call;
    Build(Box<build::Args>) => build::run(*args, call.settings);
    Inspect(inspect::Args) => inspect::run(&args, call.settings);
    Ls(list_and_cat::LsArgs) => list_and_cat::ls(&args, call.settings);
    Cat(list_and_cat::CatArgs) => list_and_cat::cat(&args, call.settings);
    Extract(extract::Args) => extract::run(&args, call.settings);
    Diff(diff::Args) => diff::run(&args);
    Verify(verify::Args) => verify::run(&args, call.settings);
    Digest(digest::Args) => digest::run(&args, call.settings);
    Learn(learn::Args) => learn::run(&args, call.settings);
}
