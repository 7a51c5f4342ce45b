//! Trains: consecutive frames of one lane that leave by one UDP_SEGMENT send, without a queue.
//!
//! It is the shortest way that the generator has. The [`SendQueue`](io::SendQueue) handles the refusals of the kernel:
//! it has the fallback. After a refusal, this path is closed for the destination or for the length.

use std::collections::HashSet;
use std::io::ErrorKind;
use std::net::IpAddr;

use io::{Flushed, GsoRefusal};

use super::Lane;
use super::sender::Run;
use crate::Socket;

/// Most payload in one send over IPv6, and a little less than over IPv4: 65,535 less the headers.
const MAX_BYTES: usize = 65_487;

/// Sends trains, and keeps a list of those that cannot be sent.
#[derive(Debug)]
pub(super) struct Trains {
    max_segments: usize,
    /// Lengths of frames that were refused.
    refused: HashSet<usize>,
    /// Destinations whose path takes no trains: as few as there are targets.
    without: HashSet<IpAddr>,
}

impl Trains {
    /// Trains of at most this many segments.
    pub(super) fn new(max_segments: usize) -> Trains {
        Trains {
            max_segments: max_segments.max(1),
            refused: HashSet::new(),
            without: HashSet::new(),
        }
    }

    /// Sends the beginning of a run in trains, as far as possible. Returns how many datagrams were sent, or dropped for
    /// a reason that has nothing to do with trains.
    pub(super) fn send(&mut self, lane: &Lane, run: &Run, flushed: &mut Flushed) -> usize {
        let (Some((bytes, length)), Socket::Udp(socket)) =
            (lane.train(run.place, run.count), &lane.socket)
        else {
            return 0;
        };
        let Ok(segment) = u16::try_from(length) else {
            return 0;
        };
        let most = self.max_segments.min(MAX_BYTES / length);
        let without = !self.without.is_empty() && self.without.contains(&lane.to.ip());
        if most <= 1 || without || (!self.refused.is_empty() && self.refused.contains(&length)) {
            return 0;
        }
        // Equal parts: a long train and a short rest would cost as many system calls and more of everything else.
        let most = run.count.div_ceil(run.count.div_ceil(most));
        let mut done = 0;
        for train in bytes.chunks(most * length) {
            let count = train.len() / length;
            if count == 1 {
                break;
            }
            flushed.syscalls += 1;
            match socket.send_train(train, segment, lane.to) {
                Ok(()) => {
                    flushed.sent += count as u64;
                    flushed.sent_bytes += train.len() as u64;
                    flushed.gso_runs += 1;
                    flushed.gso_segments += count as u64;
                }
                // The send buffer is full: what follows would not leave either.
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    flushed.would_block += (run.count - done) as u64;
                    return run.count;
                }
                Err(error) => {
                    match GsoRefusal::of(&error) {
                        Some(GsoRefusal::Size) => {
                            self.refused.insert(length);
                        }
                        Some(GsoRefusal::Path) => {
                            self.without.insert(lane.to.ip());
                        }
                        None => {}
                    }
                    return done;
                }
            }
            done += count;
        }
        done
    }
}
