//! placeholder
#![forbid(unsafe_code)]
pub mod garbage;
