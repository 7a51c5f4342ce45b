//! One cycle: the life of one allocation.

use std::io::ErrorKind;
use std::net::SocketAddr;

use ::io::{Flushed, UdpSocket};
use turn::Now;
use turn::client::{Client, Event, RequestError};

use super::Recipe;

/// What a cycle waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    Allocate,
    /// With so many more to follow.
    Refresh(u32),
    Release,
}

impl Step {
    /// Its place among [`Churn::STEPS`](super::Churn::STEPS).
    pub(super) fn part(self) -> usize {
        match self {
            Step::Allocate => 0,
            Step::Refresh(_) => 1,
            Step::Release => 2,
        }
    }
}

/// A client from its socket to its deletion.
#[derive(Debug)]
pub(super) struct Cycle {
    pub(super) socket: UdpSocket,
    pub(super) client: Client,
    server: SocketAddr,
    step: Step,
    /// When it was meant to begin, and when its current step began.
    pub(super) intended_ns: u64,
    step_ns: u64,
}

/// The end of a step.
#[derive(Clone, Debug)]
pub(super) struct Stepped {
    pub(super) step: Step,
    pub(super) latency_ns: u64,
    /// Why it failed, if it did: a code, or 0 for no response and everything else.
    pub(super) failed: Option<u16>,
    /// It was the last.
    pub(super) end: bool,
}

impl Cycle {
    /// A cycle whose Allocate request leaves at once.
    pub(super) fn begin(
        recipe: &Recipe,
        socket: UdpSocket,
        seed: [u8; 32],
        intended_ns: u64,
        now: Now,
    ) -> Cycle {
        let mut cycle = Cycle {
            socket,
            client: Client::new(recipe.config.clone(), seed),
            server: recipe.turn.server.address(),
            step: Step::Allocate,
            intended_ns,
            // The first step counts from when it should have begun, as the whole does.
            step_ns: intended_ns,
        };
        // A new client has no allocation that this one could collide with.
        let _ = cycle.client.allocate(now, recipe.allocation);
        cycle
    }

    /// Sends what the client wants sent. What does not leave is repeated by the client's own timer.
    pub(super) fn transmit(&mut self, flushed: &mut Flushed) {
        while let Some(request) = self.client.poll_transmit() {
            flushed.syscalls += 1;
            match self.socket.send_to(request, self.server, None) {
                Ok(()) => {
                    flushed.sent += 1;
                    flushed.sent_bytes += request.len() as u64;
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => flushed.would_block += 1,
                Err(_) => flushed.other_errors += 1,
            }
        }
    }

    /// Whether this is where its server answers from.
    pub(super) fn is_server(&self, from: SocketAddr) -> bool {
        from == self.server
    }

    /// Takes note of the client's next event that ends a step, and begins the next one.
    pub(super) fn poll(&mut self, recipe: &Recipe, now: Now) -> Option<Stepped> {
        loop {
            let event = self.client.poll_event()?;
            let failed = match (event, self.step) {
                (Event::Allocated(_), Step::Allocate)
                | (Event::Refreshed { .. }, Step::Refresh(_))
                | (Event::Released { .. }, Step::Release) => None,
                (Event::AllocateFailed { error, .. }, _) | (Event::RefreshFailed(error), _) => {
                    Some(code(&error))
                }
                // RFC 8656 §8.1: the server does not know the allocation any more (437).
                (Event::Lost(_), _) => Some(437),
                _ => continue,
            };
            return Some(self.stepped(recipe, now, failed));
        }
    }

    fn stepped(&mut self, recipe: &Recipe, now: Now, failed: Option<u16>) -> Stepped {
        let step = self.step;
        let latency_ns = now.mono.0.saturating_sub(self.step_ns);
        self.step_ns = now.mono.0;
        let next = match step {
            Step::Allocate if recipe.refreshes > 0 => Step::Refresh(recipe.refreshes - 1),
            Step::Refresh(more) if more > 0 => Step::Refresh(more - 1),
            _ => Step::Release,
        };
        // What exists is deleted, whatever went wrong with it; once is enough.
        let begun = match (step, failed, next) {
            (Step::Release, ..) => false,
            (_, None, Step::Refresh(_)) => self.client.refresh(now, None).is_ok(),
            _ => {
                self.step = Step::Release;
                self.client.release(now, None).is_ok()
            }
        };
        if failed.is_none() && begun {
            self.step = next;
        }
        Stepped {
            step,
            latency_ns,
            failed,
            end: !begun,
        }
    }

    /// Asks for deletion out of turn; false if there is nothing to delete.
    pub(super) fn abandon(&mut self, now: Now) -> bool {
        if self.step == Step::Release {
            return true;
        }
        self.step = Step::Release;
        self.client.release(now, None).is_ok()
    }
}

fn code(error: &RequestError) -> u16 {
    error.code().unwrap_or(0)
}
