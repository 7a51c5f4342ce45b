//! Whether it pays to let the kernel join datagrams on a socket.
//!
//! UDP_GRO makes the kernel hold every datagram back for a moment and compare it with those of other flows. A *train*
//! is a sequence of datagrams of one flow. If trains arrive (video, file transfer), one receive returns up to 64
//! datagrams, for a third of the cost. If single datagrams of many flows alternate (calls), the kernel joins none. Then
//! GRO costs a tenth of all work. So a [`GroWatch`] decides by the datagrams that have arrived:
//!
//! ```text
//!                       a window of messages, hardly a train among them
//!             Joining ───────────────────────────────────────────────────> Separate
//!                ^                                                            │
//!                '── sixteen windows later, or neighbours with one source ────'
//! ```
//! It counts messages, not time: a busy socket adapts within milliseconds, an idle one does nothing.
//!
//! **A train that was joined must be received with GRO on**, or it looks like one long datagram. So GRO is turned off
//! only when everything has been read, and on again at once if something arrived meanwhile.

use std::io;

use crate::UdpSocket;

/// Messages after which to judge.
const WINDOW_MESSAGES: u32 = 512;

/// With fewer than one train in this many messages, GRO costs more than it saves.
const ONE_TRAIN_IN: u32 = 16;

/// Windows without GRO after which it is tried again: trials cost a sixteenth of what GRO does.
const WINDOWS_APART: u32 = 16;

/// The datagrams of one receive call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReceiveSummary {
    /// Messages.
    pub messages: usize,
    /// Messages that had several datagrams.
    pub trains: u64,
    /// Nothing was left in the socket.
    pub drained: bool,
    /// Most messages had the source of the one before.
    pub neighbours: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// GRO stays off: the kernel lacks it, or the caller has forbidden it.
    Never,
    /// GRO is off.
    Separate,
    /// GRO is on.
    Joining,
}

/// Turns UDP_GRO of one socket on and off, by what it has received.
#[derive(Debug)]
pub struct GroWatch {
    state: State,
    /// Trains in this window.
    trains: u32,
    /// Messages until the next decision.
    left: u32,
    /// The caller has forbidden GRO.
    forbidden: bool,
}

impl GroWatch {
    /// A watch on an opened socket. If the socket was opened without GRO, the watch never turns it on.
    #[must_use]
    pub fn new(socket: &UdpSocket) -> GroWatch {
        let state = if socket.gro() {
            State::Joining
        } else {
            State::Never
        };
        GroWatch {
            state,
            trains: 0,
            left: WINDOW_MESSAGES,
            forbidden: false,
        }
    }

    /// Turns GRO off when the socket is drained the next time, and never on again.
    pub fn forbid(&mut self) {
        if self.state == State::Separate {
            self.state = State::Never;
        }
        self.forbidden = true;
        self.left = 0;
    }

    /// Whether GRO is off for now. Then [`GroWatch::note`] needs to know whether neighbouring messages have one source.
    #[must_use]
    pub fn is_separate(&self) -> bool {
        self.state == State::Separate
    }

    /// Notes the datagrams of a receive call. Now and then this turns GRO on or off.
    ///
    /// # Errors
    /// What the system calls return; GRO stays as it was.
    #[inline]
    pub fn note(&mut self, socket: &UdpSocket, received: &ReceiveSummary) -> io::Result<()> {
        self.left = self.left.saturating_sub(received.messages as u32);
        self.trains = self.trains.saturating_add(received.trains as u32);
        if self.left > 0 && !received.neighbours {
            return Ok(());
        }
        self.decide(socket, received)
    }

    #[cold]
    fn decide(&mut self, socket: &UdpSocket, received: &ReceiveSummary) -> io::Result<()> {
        let paid = self.trains * ONE_TRAIN_IN >= WINDOW_MESSAGES;
        match self.state {
            State::Separate if received.neighbours || received.drained => {
                socket.set_gro(true)?;
                self.enter(State::Joining, WINDOW_MESSAGES);
            }
            // GRO can be turned off again only when the socket is drained. So it stays off until then.
            State::Separate => {}
            State::Joining if self.left > 0 => {}
            State::Joining if (!paid || self.forbidden) && received.drained => {
                let state = match stop_joining(socket)? {
                    true if self.forbidden => State::Never,
                    true => State::Separate,
                    false => State::Joining,
                };
                self.enter(state, WINDOW_MESSAGES * WINDOWS_APART);
            }
            state => self.enter(state, WINDOW_MESSAGES),
        }
        Ok(())
    }

    fn enter(&mut self, state: State, messages: u32) {
        *self = GroWatch {
            state,
            trains: 0,
            // If GRO is forbidden, each call of `note` tries to turn it off.
            left: if self.forbidden { 0 } else { messages },
            forbidden: self.forbidden,
        };
    }
}

/// Turns GRO off, unless a datagram is there already: it may be a train. Returns whether GRO is off.
///
/// # Errors
/// What the system calls return.
pub fn stop_joining(socket: &UdpSocket) -> io::Result<bool> {
    socket.set_gro(false)?;
    let empty = socket.memory()?.recv_used == 0;
    if !empty {
        socket.set_gro(true)?;
    }
    Ok(empty)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::UdpOptions;

    fn socket(gro: bool) -> UdpSocket {
        let options = UdpOptions {
            gro,
            ..UdpOptions::default()
        };
        UdpSocket::bind("127.0.0.1:0".parse().unwrap(), &options).unwrap()
    }

    const SINGLE: ReceiveSummary = ReceiveSummary {
        messages: 1,
        trains: 0,
        drained: true,
        neighbours: false,
    };

    fn feed(watch: &mut GroWatch, socket: &UdpSocket, count: u32, received: ReceiveSummary) {
        for _ in 0..count {
            watch.note(socket, &received).unwrap();
        }
    }

    #[test]
    fn singles_turn_it_off_and_one_window_in_sixteen_tries_again() {
        let socket = socket(true);
        let mut watch = GroWatch::new(&socket);
        feed(&mut watch, &socket, WINDOW_MESSAGES - 1, SINGLE);
        assert!(socket.gro());
        feed(&mut watch, &socket, 1, SINGLE);
        assert!(!socket.gro());
        feed(
            &mut watch,
            &socket,
            WINDOW_MESSAGES * WINDOWS_APART - 1,
            SINGLE,
        );
        assert!(!socket.gro());
        feed(&mut watch, &socket, 1, SINGLE);
        assert!(socket.gro());
    }

    #[test]
    fn forbidden_gro_ends_when_the_socket_is_empty_and_stays_off() {
        let socket = socket(true);
        let mut watch = GroWatch::new(&socket);
        watch.forbid();
        let behind = ReceiveSummary {
            drained: false,
            ..SINGLE
        };
        feed(&mut watch, &socket, 3, behind);
        assert!(socket.gro());
        feed(&mut watch, &socket, 1, SINGLE);
        assert!(!socket.gro());
        feed(&mut watch, &socket, 100 * WINDOW_MESSAGES, SINGLE);
        assert!(!socket.gro());
    }

    #[test]
    fn trains_keep_it_on() {
        let socket = socket(true);
        let mut watch = GroWatch::new(&socket);
        let train = ReceiveSummary {
            trains: 1,
            ..SINGLE
        };
        for _ in 0..100 {
            feed(&mut watch, &socket, 15, SINGLE);
            feed(&mut watch, &socket, 1, train);
            assert!(socket.gro());
        }
    }

    #[test]
    fn it_stays_as_it_is_while_the_socket_is_not_drained() {
        let socket = socket(true);
        let mut watch = GroWatch::new(&socket);
        let behind = ReceiveSummary {
            drained: false,
            ..SINGLE
        };
        feed(&mut watch, &socket, 10 * WINDOW_MESSAGES, behind);
        assert!(socket.gro());
        feed(&mut watch, &socket, WINDOW_MESSAGES, SINGLE);
        assert!(!socket.gro());
        feed(&mut watch, &socket, 100 * WINDOW_MESSAGES, behind);
        assert!(!socket.gro());
        feed(&mut watch, &socket, 1, SINGLE);
        assert!(socket.gro());
    }

    #[test]
    fn neighbours_with_one_source_turn_it_on_at_once() {
        let socket = socket(true);
        let mut watch = GroWatch::new(&socket);
        feed(&mut watch, &socket, WINDOW_MESSAGES, SINGLE);
        let alike = ReceiveSummary {
            neighbours: true,
            drained: false,
            ..SINGLE
        };
        feed(&mut watch, &socket, 1, alike);
        assert!(socket.gro());
        feed(&mut watch, &socket, 10, alike);
        assert!(
            socket.gro(),
            "neighbours alone decide nothing while it is on"
        );
    }

    #[test]
    fn a_datagram_that_waits_keeps_it_on() {
        let socket = socket(true);
        let mut watch = GroWatch::new(&socket);
        feed(&mut watch, &socket, WINDOW_MESSAGES - 1, SINGLE);
        socket.send_to(b"waits", socket.local_addr(), None).unwrap();
        feed(&mut watch, &socket, 1, SINGLE);
        assert!(socket.gro());
        assert!(!watch.is_separate());
    }

    #[test]
    fn a_socket_without_stays_without() {
        let socket = socket(false);
        let mut watch = GroWatch::new(&socket);
        feed(&mut watch, &socket, 100 * WINDOW_MESSAGES, SINGLE);
        assert!(!socket.gro());
    }
}
