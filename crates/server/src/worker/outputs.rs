//! The cold path: what the engine has queued for the worker to do.

use super::letters::Letter;
use super::open::{MOST_RELAYS, Results};
use super::session::{Change, Session};
use std::net::SocketAddr;
use turn::server::{Output, PortRequest, RelayRequest, RelayedAddresses, Traffic};
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
        Some(match self.core.engine.poll_output()? {
            Output::Send { path, bytes } => {
                // `client_at` would borrow all of the session while `bytes` borrows the engine.
                if let Some(listener) = self.sockets.listeners.get(path.listener.0 as usize) {
                    let from_ip = listener
                        .local
                        .ip()
                        .is_unspecified()
                        .then_some(path.five_tuple.local.ip());
                    let to = io::SendTo {
                        from_ip,
                        ..io::SendTo::new(&listener.socket, path.five_tuple.remote)
                    };
                    self.out.push_copied(&to, bytes);
                }
                Todo::Done
            }
            Output::OpenRelays { request, relays } => open_todo(request, relays),
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
                if other != worker && self.core.courier.post(other, letter).is_ok() {
                    Todo::Done
                } else {
                    Todo::NoReservation(request)
                }
            }
            Output::CloseRelay { relay } => {
                self.core.changes.push(Change::Close(relay));
                Todo::Done
            }
            Output::AllocationOpened {
                user,
                path,
                relayed,
                lifetime_s,
            } => {
                self.core.opener.allocated(relayed);
                let client = path.five_tuple.remote;
                tracing::info!(worker, user, %client, relayed = %Relayed(relayed), lifetime_s, "allocation opened");
                Todo::Done
            }
            Output::AllocationClosed {
                user,
                path,
                relayed,
                to_peers,
                to_client,
                duration,
                reason,
            } => {
                log_closed(
                    worker,
                    user,
                    path.five_tuple.remote,
                    relayed,
                    (to_peers, to_client),
                    duration,
                    reason.name(),
                );
                Todo::Done
            }
            _ => Todo::Done,
        })
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

fn log_closed(
    worker: u16,
    user: &str,
    client: SocketAddr,
    relayed: RelayedAddresses,
    (to_peers, to_client): (Traffic, Traffic),
    duration: std::time::Duration,
    reason: &'static str,
) {
    tracing::info!(
        worker,
        user,
        %client,
        relayed = %Relayed(relayed),
        to_peers_bytes = to_peers.bytes,
        to_peers_packets = to_peers.packets,
        to_client_bytes = to_client.bytes,
        to_client_packets = to_client.packets,
        duration_ms = u64::try_from(duration.as_millis()).unwrap_or(u64::MAX),
        reason,
        "allocation closed"
    );
}

/// `192.0.2.1:50000`, `[2001:db8::1]:50000`, or both with a comma.
struct Relayed(RelayedAddresses);

impl std::fmt::Display for Relayed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match (self.0.v4, self.0.v6) {
            (Some(v4), Some(v6)) => write!(f, "{v4},{v6}"),
            (Some(one), None) | (None, Some(one)) => write!(f, "{one}"),
            (None, None) => f.write_str("-"),
        }
    }
}
