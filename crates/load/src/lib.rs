//! placeholder
#![forbid(unsafe_code)]
pub mod garbage;
pub mod generator;
pub mod measure;
pub mod peer;
pub mod report;
