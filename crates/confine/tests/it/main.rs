//! Tries, in a child process of each role, what it may do and what it may not.
#![allow(clippy::print_stdout, clippy::unwrap_used, reason = "a test's child reports on standard output")]

mod allowed;
mod exchanged;
mod forbidden;
mod security_page;
mod sys;
mod trial;
