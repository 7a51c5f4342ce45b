//! The cold path: what the engine has queued for the worker to do.

use super::flows::Carried;
use super::log;
use super::messages::{PlacedRequest, WorkerMessage};
use super::open::{MOST_RELAYS, Results};
use super::session::{Change, Core, Session};
use crate::steering::Target;
use turn::server::{OffloadedChannel, Output, PortRequest, RelayRequest};
use turn::{ClientPath, Mono, RelayKey, RequestKey, Run};

/// What cannot be done while the output still borrows the engine.
enum Todo {
    Open(RequestKey, [RelayRequest; MOST_RELAYS], usize),
    Forward(u16),
    NoReservation(RequestKey),
    Done,
}

/// What the outputs are the answer to.
#[derive(Clone, Copy)]
pub(crate) enum Origin<'a> {
    /// A datagram that a client sent to this worker.
    Client(&'a ClientPath, &'a [u8]),
    /// A request that another worker took here.
    Placed,
    /// Anything else.
    Other,
}

impl Session<'_, '_, '_> {
    /// Does everything the engine has queued. After every `handle_*` this runs before the engine gets anything else.
    pub(crate) fn drain_outputs(&mut self) {
        self.drain_outputs_of(Origin::Other);
    }

    /// The same, where it matters what the outputs come of.
    #[inline]
    pub(crate) fn drain_outputs_of(&mut self, origin: Origin<'_>) {
        if self.core.engine.has_outputs() {
            self.do_outputs(origin);
        }
    }

    #[inline(never)]
    fn do_outputs(&mut self, origin: Origin<'_>) {
        while let Some(todo) = self.next_output(origin) {
            match todo {
                Todo::Open(request, relays, count) => {
                    if !self.place(request, origin) {
                        self.open_relays(request, &relays[..count]);
                    }
                }
                Todo::Forward(to) => self.forward(to, origin),
                Todo::NoReservation(request) => {
                    self.core
                        .engine
                        .reservation_claimed(self.core.now, request, None);
                }
                Todo::Done => {}
            }
        }
    }

    /// A request that another worker took here: handled as if it had arrived here, and finally.
    pub(crate) fn request_placed(&mut self, placed: &PlacedRequest) {
        let PlacedRequest {
            path,
            bytes,
            is_new,
        } = placed;
        // The verdict can only be that it has been handled, or was no request: it is one that the other engine knew.
        let _ = self
            .core
            .engine
            .handle_client(self.core.now, path, Run::single(bytes));
        self.drain_outputs_of(Origin::Placed);
        // Before the answer leaves, which is when this session ends.
        let alive = self.core.engine.has_allocation(&path.five_tuple);
        self.core.placement.settle(path, *is_new, alive);
        self.core.counters.requests_taken += 1;
    }

    fn next_output(&mut self, origin: Origin<'_>) -> Option<Todo> {
        let worker = self.core.opener.worker;
        let output = self.core.engine.poll_output()?;
        log::allocation(worker, &output);
        match output {
            Output::Send { path, bytes } => {
                if let Some(to) = self.sockets.client_at(&path, 0) {
                    self.out.push_copied(&to, bytes);
                }
            }
            Output::OpenRelays { request, relays } => return Some(open_todo(request, relays)),
            Output::Forward { to } => return Some(Todo::Forward(to)),
            Output::ClaimReservation {
                request,
                token,
                user,
                key,
            } => {
                let message = WorkerMessage::Claim {
                    from: worker,
                    request,
                    token,
                    user: user.into(),
                    key,
                };
                let other = u16::from(token[0]);
                // What another worker took here is answered at once, so that the flow's entry stays or goes with it.
                let is_placed = matches!(origin, Origin::Placed);
                if is_placed || other == worker || self.core.mailboxes.post(other, message).is_err()
                {
                    return Some(Todo::NoReservation(request));
                }
            }
            Output::CloseRelay { relay } => self.core.changes.push(Change::Close(relay)),
            Output::Offload {
                channel,
                own_relay,
                deadline,
            } => self.core.offload(&channel, own_relay, deadline),
            Output::Onload { channel } => self.core.onload(&channel),
            Output::AllocationOpened { relayed, path, .. } => {
                self.core.opener.allocated(relayed);
                self.core.placement.opened(self.core.now.mono, &path);
            }
            Output::AllocationClosed { path, .. } => {
                self.core.placement.closed(self.core.now.mono, &path);
            }
            _ => {}
        }
        Some(Todo::Done)
    }

    /// Takes a request to a worker that has less to do, if there is one.
    fn place(&mut self, request: RequestKey, origin: Origin<'_>) -> bool {
        let Origin::Client(path, bytes) = origin else {
            return false;
        };
        let core = &mut *self.core;
        let now = core.now;
        let Some(target) = core.placement.elsewhere(now.mono, path, bytes.len()) else {
            return false;
        };
        // The engine gives back the request's quota before the other worker asks for it.
        if !core.mailboxes.keeps_up(target.worker)
            || !core.engine.taken_elsewhere(now, request, target.worker)
        {
            core.placement.give_up(path, target);
            return false;
        }
        self.hand_request_over(path, bytes, target);
        true
    }

    /// What comes late from a client whose request went to another worker.
    fn forward(&mut self, to: u16, origin: Origin<'_>) {
        if let Origin::Client(path, bytes) = origin {
            let target = Target {
                worker: to,
                is_new: false,
            };
            self.hand_request_over(path, bytes, target);
        }
    }

    /// If it finds no room, it is lost like a datagram, and the client sends it again.
    fn hand_request_over(&mut self, path: &ClientPath, bytes: &[u8], target: Target) {
        let message = WorkerMessage::Request(Box::new(PlacedRequest {
            path: *path,
            bytes: bytes.into(),
            is_new: target.is_new,
        }));
        let core = &mut *self.core;
        match core.mailboxes.post(target.worker, message) {
            Ok(()) => core.counters.requests_given += 1,
            Err(_) => {
                core.counters.mailbox_full += 1;
                core.placement.give_up(path, target);
            }
        }
    }

    fn open_relays(&mut self, request: RequestKey, relays: &[RelayRequest]) {
        let core = &mut *self.core;
        let now_s = core.now.mono.0 / 1_000_000_000;
        let changes = &mut core.changes;
        let (results, count): Results = core.opener.open(
            relays,
            now_s,
            &core.poller,
            &mut core.counters,
            &mut |relay| changes.push(Change::Open(relay)),
        );
        if !self
            .core
            .engine
            .relays_opened(self.core.now, request, &results[..count])
        {
            // The request is gone, and with it whoever would have closed what was opened.
            let opened = relays
                .iter()
                .zip(&results)
                .filter(|(_, result)| result.is_ok());
            self.core
                .changes
                .extend(opened.map(|(relay, _)| Change::Close(relay.key)));
        }
    }
}

impl Core {
    /// Has the kernel relay a channel, if it takes it.
    fn offload(&mut self, channel: &OffloadedChannel, own_relay: bool, deadline: Mono) {
        if let Some(flows) = &mut self.flows {
            let carried = flows.offload(channel, own_relay, deadline, &mut self.counters);
            self.fold(channel, carried);
        }
    }

    /// Has the kernel relay a channel no more.
    fn onload(&mut self, channel: &OffloadedChannel) {
        if let Some(flows) = &mut self.flows {
            let carried = flows.onload(channel);
            self.fold(channel, carried);
        }
    }

    /// Counts for the allocation what the kernel has relayed.
    fn fold(&mut self, channel: &OffloadedChannel, carried: Carried) {
        if carried != Carried::default() {
            let Carried { to_peer, to_client } = carried;
            self.engine
                .offload_counters(channel.allocation, to_peer, to_client);
        }
    }
}

fn open_todo(request: RequestKey, relays: &[RelayRequest]) -> Todo {
    const NOBODY: RelayKey = RelayKey {
        index: 0,
        generation: 0,
    };
    let unused = RelayRequest {
        key: NOBODY,
        family: stun::AddressFamily::V4,
        port: PortRequest::Any,
    };
    let mut copy = [unused; MOST_RELAYS];
    let count = relays.len().min(MOST_RELAYS);
    copy[..count].copy_from_slice(&relays[..count]);
    Todo::Open(request, copy, count)
}
