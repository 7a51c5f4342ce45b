//! One cycle: the life of one allocation.

use std::io::ErrorKind;

use ::io::Flushed;
use client::Endpoint;
use turn::Now;
use turn::client::{Event, RequestError};

use super::{CycleSettings, Kind};
use crate::Socket;

/// What a cycle waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    Allocate,
    /// The number of datagrams that follow.
    Refresh(u32),
    Release,
    /// The only one of a cycle that makes a connection.
    Binding,
}

impl Step {
    /// Its place among [`Churn::STEPS`](super::Churn::STEPS).
    pub(super) fn part(self) -> usize {
        match self {
            Step::Allocate | Step::Binding => 0,
            Step::Refresh(_) => 1,
            Step::Release => 2,
        }
    }
}

/// A client from its socket to its deletion.
#[derive(Debug)]
pub(super) struct Cycle {
    pub(super) socket: Socket,
    pub(super) endpoint: Endpoint,
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
        recipe: &CycleSettings,
        socket: Socket,
        seed: [u8; 32],
        intended_ns: u64,
        now: Now,
    ) -> Cycle {
        let mut cycle = Cycle {
            socket,
            endpoint: Endpoint::new(recipe.turn.server.address(), recipe.config.clone(), seed),
            step: match recipe.kind {
                Kind::Allocate { .. } => Step::Allocate,
                Kind::Connect => Step::Binding,
            },
            intended_ns,
            // The first step counts from when it should have begun, as the whole does.
            step_ns: intended_ns,
        };
        cycle.endpoint.with(now, |client, now| match recipe.kind {
            // A new client has no allocation that this one could collide with.
            Kind::Allocate { .. } => _ = client.allocate(now, recipe.allocation),
            Kind::Connect => client.binding(now),
        });
        cycle
    }

    /// Sends what the client wants sent. What does not leave is repeated by the client's own timer.
    pub(super) fn transmit(&mut self, flushed: &mut Flushed) {
        let (server, socket) = (self.endpoint.server(), &self.socket);
        self.endpoint.transmit(|request| {
            flushed.syscalls += 1;
            match socket.send(request, server) {
                Ok(()) => {
                    flushed.sent += 1;
                    flushed.sent_bytes += request.len() as u64;
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => flushed.would_block += 1,
                Err(_) => flushed.other_errors += 1,
            }
        });
    }

    /// Takes note of the client's next event that ends a step, and begins the next one.
    pub(super) fn poll(&mut self, recipe: &CycleSettings, now: Now) -> Option<Stepped> {
        loop {
            let event = self.endpoint.event()?;
            let failed = match (event, self.step) {
                (Event::Allocated(_), Step::Allocate)
                | (Event::Refreshed { .. }, Step::Refresh(_))
                | (Event::Released { .. }, Step::Release)
                | (Event::Mapped(_), Step::Binding) => None,
                (Event::BindingFailed(error), _) => Some(code(&error)),
                (Event::AllocateFailed { error, .. }, _) | (Event::RefreshFailed(error), _) => {
                    Some(code(&error))
                }
                // RFC 8656 §8.1: the server does not have the allocation any more (437).
                (Event::Lost(_), _) => Some(437),
                _ => continue,
            };
            return Some(self.stepped(recipe, now, failed));
        }
    }

    /// The connection is lost: nothing more is to be had, and the server deletes what there was.
    pub(super) fn disconnected(&self, now: Now) -> Stepped {
        Stepped {
            step: self.step,
            latency_ns: now.mono.0.saturating_sub(self.step_ns),
            failed: Some(0),
            end: true,
        }
    }

    fn stepped(&mut self, recipe: &CycleSettings, now: Now, failed: Option<u16>) -> Stepped {
        let step = self.step;
        let latency_ns = now.mono.0.saturating_sub(self.step_ns);
        self.step_ns = now.mono.0;
        let refreshes = match recipe.kind {
            Kind::Allocate { refreshes } => refreshes,
            Kind::Connect => 0,
        };
        let next = match step {
            Step::Allocate if refreshes > 0 => Step::Refresh(refreshes - 1),
            Step::Refresh(more) if more > 0 => Step::Refresh(more - 1),
            _ => Step::Release,
        };
        // The allocation is deleted once, regardless of the failure.
        let begun = match (step, failed, next) {
            (Step::Release | Step::Binding, ..) => false,
            (_, None, Step::Refresh(_)) => self.refresh(now),
            _ => {
                self.step = Step::Release;
                self.release(now)
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

    fn refresh(&mut self, now: Now) -> bool {
        let asked = self
            .endpoint
            .with(now, |client, now| client.refresh(now, None));
        asked.is_ok()
    }

    fn release(&mut self, now: Now) -> bool {
        let asked = self
            .endpoint
            .with(now, |client, now| client.release(now, None));
        asked.is_ok()
    }

    /// Asks for deletion out of turn; false if there is nothing to delete.
    pub(super) fn abandon(&mut self, now: Now) -> bool {
        match self.step {
            Step::Release => return true,
            Step::Binding => return false,
            Step::Allocate | Step::Refresh(_) => {}
        }
        self.step = Step::Release;
        self.release(now)
    }
}

fn code(error: &RequestError) -> u16 {
    error.code().unwrap_or(0)
}
