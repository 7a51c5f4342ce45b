//! The in-kernel relay: its programs frame by frame, its tables from user space's side.
//!
//! Without CAP_BPF and CAP_NET_ADMIN these tests say so and do nothing; as root they fail if the programs do not load.

mod binding;
mod cases;
mod front;
mod golden;
mod mutations;
mod partial;
mod rig;
mod settling;
mod sharing;
mod tables;
