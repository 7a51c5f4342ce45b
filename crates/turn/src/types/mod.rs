//! What both state machines share: addresses, runs of datagrams and keys.

pub(crate) mod address;
pub(crate) mod attribute;
pub(crate) mod key;
pub(crate) mod run;
