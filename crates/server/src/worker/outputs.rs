//! The cold path: what the engine has queued for the worker to do.

use super::letters::Letter;
use super::log;
use super::open::{MOST_RELAYS, Results};
use super::session::{Change, Session};
use turn::server::{Output, PortRequest, RelayRequest};
use turn::{RelayKey, RequestKey};

/// What cannot be done while the output still borrows the engine.
enum Todo {
    Open(RequestKey, [RelayRequest; MOST_RELAYS], usize),
    NoReservation(RequestKey),
    Done,
}

impl Session<'_, '_, '_> {
    /// Does everything the engine has queued. After every `handle_*` this runs before the engine gets anything else.
    pub(crate) fn drain_outputs(&mut self) {
        while let Some(todo) = self.next_output() {
            match todo {
                Todo::Open(request, relays, count) => self.open_relays(request, &relays[..count]),
                Todo::NoReservation(request) => {
                    self.core
                        .engine
                        .reservation_claimed(self.core.now, request, None);
                }
                Todo::Done => {}
            }
        }
    }

    fn next_output(&mut self) -> Option<Todo> {
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
            Output::ClaimReservation {
                request,
                token,
                user,
                key,
            } => {
                let letter = Letter::Claim {
                    from: worker,
                    request,
                    token,
                    user: user.into(),
                    key,
                };
                let other = u16::from(token[0]);
                if other == worker || self.core.courier.post(other, letter).is_err() {
                    return Some(Todo::NoReservation(request));
                }
            }
            Output::CloseRelay { relay } => self.core.changes.push(Change::Close(relay)),
            Output::AllocationOpened { relayed, .. } => self.core.opener.allocated(relayed),
            _ => {}
        }
        Some(Todo::Done)
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
