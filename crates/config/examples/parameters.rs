//! Writes docs/parameters.md to standard output.
#![allow(clippy::print_stdout, reason = "it is what it is for")]

fn main() {
    print!("{}", esker_config::table::page());
}
