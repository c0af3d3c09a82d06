//! The site proxy between clients and a server that misbehaves on command.

mod full_disk;
mod heads;
mod hostile;
mod objects;
mod peers;
mod requests;
mod site;
