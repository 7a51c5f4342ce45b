//! Connections without sockets: bytes and time in, messages and bytes out.
//!
//! The worker that owns a socket reads and writes it; everything between the bytes and the messages is here.
#![forbid(unsafe_code)]
