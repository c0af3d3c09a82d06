//! The whole of Esker from outside: the binary, a web server, the kernel, and a reader.
//!
//! Each test starts the `esker` binary, as root and as an ordinary user where it is run by root, as this user
//! otherwise; nothing is skipped silently, and nothing stays mounted.

mod damage;
mod hot;
mod person;
mod reading;
mod revisions;
mod running;
mod waiting;
mod world;
