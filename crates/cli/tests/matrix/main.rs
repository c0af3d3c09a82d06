//! The whole of Esker from outside: the binary, a web server, the kernel, and a reader.
//!
//! Each test starts the `esker` binary, as root and as an ordinary user where it is run by root, as this user
//! otherwise; nothing is skipped silently, and nothing stays mounted.
#![allow(clippy::print_stdout, reason = "measurements, and who is left out")]

mod administration;
mod broker;
mod browsing;
mod caring;
mod collecting;
mod comparing;
mod configuring;
mod container_images;
mod containers;
mod daemons;
mod damage;
mod demo;
mod deploy;
mod doctor;
mod eessi;
mod elsewhere;
mod erofs;
mod exclusive;
mod faults;
mod fixed;
mod fstab;
mod guides;
mod hot;
mod image_mounts;
mod images;
mod importing;
mod logs;
mod machine;
mod namespaces;
mod neighbours;
mod object_storage;
mod passphrases;
mod pins;
mod profiles;
mod publication;
mod publishing;
mod push;
mod reading;
mod release_week;
mod remote_images;
mod replays;
mod revisions;
mod running;
mod serve;
mod served;
mod server_kill;
mod setup;
mod sharing;
mod slow;
mod status_of_users;
mod stuck;
mod sys;
mod test_env;
mod test_user;
mod tiers;
mod time_travel;
mod transactions;
mod units;
mod usage;
mod waiting;
