//! Where the sieve is: before the sockets' queues, in the kernel, or here, as the first look at a datagram.
//!
//! In the kernel ([`bpf::sieve`]) a datagram that is held back costs a few hundred nanoseconds, is never queued, and takes none of
//! the worker's time; the worker writes thresholds when they change, and until when they hold, so that a worker that hangs holds
//! nothing back. Without CAP_BPF everything is read first.

use crate::privileges::can_do_without;
use crate::verifier;
use bpf::sieve::{Rules, Sieve as Program};
use io::UdpSocket;
use sip::engine::Engine;
use sip::{Mono, Now};
use std::time::Duration;

/// For so long what is written to the kernel holds; it is written anew when half of that is over.
const HOLDS: Duration = Duration::from_secs(1);
/// How often the kernel is asked for what it has dropped, and how full its memory is.
const COUNTS: Duration = Duration::from_millis(50);

/// The sieve of one worker's sockets.
#[derive(Debug, Default)]
pub(super) struct Front {
    program: Option<Program>,
    /// What the kernel was told last, and when.
    version: u64,
    generation: bool,
    written_at: Mono,
    closed: bool,
    counted_at: Mono,
    /// Dropped by the program.
    held_back: u64,
    /// Dropped before the sockets' queues in all, as the sockets say: by the program, and for want of room.
    lost: u64,
    /// The most that were known to be dropped for want of room.
    overflow: u64,
}

impl Front {
    /// Puts the program before these sockets' queues if that can be had.
    pub(super) fn new<'a>(sockets: impl Iterator<Item = &'a UdpSocket>) -> Front {
        let attached = Program::load().and_then(|mut program| {
            for socket in sockets {
                program.attach(socket)?;
            }
            Ok(program)
        });
        let program = attached
            .inspect_err(|error| {
                verifier::log_at_debug(error);
                tracing::debug!(
                    reason = %error,
                    "in an overload, SIP requests are read before they are held back; \
                     grant CAP_BPF to have the kernel do that, for a tenth of the cost"
                );
            })
            .ok();
        Front {
            program,
            ..Front::default()
        }
    }

    /// Whether the kernel can be told without any capability.
    pub(super) fn can_write_unprivileged(&mut self) -> bool {
        let Some(program) = &mut self.program else {
            return true;
        };
        can_do_without(|| program.set(None).is_ok() && program.dropped().is_ok())
    }

    /// Whether datagrams have to be looked at here.
    pub(super) fn is_here(&self) -> bool {
        self.program.is_none()
    }

    /// Tells the kernel what has changed.
    pub(super) fn follow(&mut self, now: Now, engine: &mut Engine) {
        let Some(program) = &mut self.program else {
            return;
        };
        let now = now.mono;
        if self.closed && now.since(self.counted_at) >= COUNTS {
            self.counted_at = now;
            self.held_back = program.dropped().unwrap_or(self.held_back);
            self.overflow = self.overflow.max(self.lost.saturating_sub(self.held_back));
            engine.observe_held_back(now, self.held_back, program.fill_percent());
        }
        let sieve = engine.sieve();
        let is_old = sieve.is_closed() && now.since(self.written_at) >= HOLDS / 2;
        if sieve.version() == self.version && !is_old {
            return;
        }
        if sieve.generation() != self.generation {
            self.generation = sieve.generation();
            program.age();
        }
        let rules = sieve.is_closed().then(|| Rules {
            keys: sieve.keys(),
            thresholds: sieve.thresholds(),
            stale: sieve.stale(),
            until_ns: now.plus(HOLDS).0,
            spare_credentials: true,
            spare_priority: true,
        });
        // What cannot be written ends by itself.
        let _ = program.set(rules.as_ref());
        if self.closed && rules.is_none() {
            // Both generations, the one to be written last.
            program.age();
            program.age();
            self.held_back = program.dropped().unwrap_or(self.held_back);
        }
        self.closed = rules.is_some();
        self.version = sieve.version();
        self.written_at = now;
    }

    /// The sockets say that so many datagrams more were dropped. Returns whether that means that there is no room.
    pub(super) fn lost(&mut self, more: u64) -> bool {
        self.lost += more;
        // While the program drops, the socket counts both, and its own count is newer.
        if self.closed {
            return false;
        }
        let overflow = self.lost.saturating_sub(self.held_back);
        let has_grown = overflow > self.overflow;
        self.overflow = self.overflow.max(overflow);
        has_grown
    }

    /// Datagrams that were held back in the kernel, and those that were dropped for want of room.
    pub(super) fn counts(&self) -> (u64, u64) {
        (self.held_back, self.overflow)
    }
}
