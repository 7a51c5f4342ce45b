//! The user agent, without a socket: what it sends, what it tells its program, and when.

mod bed;
mod calls;
mod incoming;
mod registration;
mod reliable;
