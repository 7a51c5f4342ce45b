//! A new server that takes over from a running one, both in this process.

use hairpin_server::handover::{Joining, Offer, TakeOver};
use hairpin_server::{Builder, InheritedSockets, Running, StartError};
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::{Arc, mpsc};

fn copies(fds: &[BorrowedFd<'_>]) -> Vec<OwnedFd> {
    let copy = |fd: &BorrowedFd<'_>| fd.try_clone_to_owned().expect("a descriptor");
    fds.iter().map(copy).collect()
}

/// Starts the server of `builder`, which takes over from `old`. What travels between two processes travels here as
/// well.
pub(crate) fn take_over(old: &Arc<Running>, builder: Builder) -> Result<Running, StartError> {
    let offer = old.offer()?;
    let (bytes, fds) = offer.encode();
    let mut offer = Offer::decode(&bytes, copies(&fds)).expect("the same release");
    let others = offer.take_other_sockets();
    let (sender, messages) = mpsc::sync_channel(16);
    let holder = Arc::clone(old);
    let hold = move |joining: &Joining| {
        let (bytes, fds) = joining.encode();
        let joining = Joining::decode(&bytes, copies(&fds)).expect("the same release");
        holder
            .hold_clients(joining)
            .map_err(|error| error.to_string())
    };
    let receiver = Arc::clone(old);
    std::thread::spawn(move || {
        for message in messages {
            receiver
                .receive_foreign(message)
                .expect("the worker is there");
        }
    });
    builder
        .inherited_sockets(InheritedSockets::of_predecessor(others))
        .take_over(TakeOver::new(offer, hold, sender))
        .start()
}
