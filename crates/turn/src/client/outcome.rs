//! What the end of a request changes.

use std::collections::VecDeque;
use std::net::IpAddr;

use stun::{AddressFamily, Lifetime, MappedAddress, Message, XorMappedAddress};

use super::allocation::{self, AllocateOptions, Allocation};
use super::error::{RequestError, Timing};
use super::event::{AllocationLoss, Event, Mapped};
use super::permission::{MAX_PERMITTED_AT_ONCE, RETRY_S};
use super::transaction::{Operation, Transaction};
use super::{ALLOCATION_MISMATCH, Client};
use crate::Now;

impl Client {
    /// The server has done what was asked.
    pub(super) fn succeeded(&mut self, now: Now, transaction: Transaction, response: &Message<'_>) {
        let timing = transaction.timing(now.mono);
        match transaction.operation {
            Operation::Binding => self.reflected(response, timing),
            Operation::Allocate(options) => self.allocated(&transaction, options, response, timing),
            Operation::Refresh {
                lifetime_s: Some(0),
                family,
            } => self.released(family, timing),
            Operation::Refresh { .. } => match response.get() {
                Ok(Some(Lifetime(lifetime_s))) => self.refreshed(&transaction, lifetime_s, timing),
                _ => self.failed(now, transaction.operation, RequestError::Malformed),
            },
            Operation::Move => match response.get() {
                Ok(Some(Lifetime(lifetime_s))) => {
                    self.has_moved(&transaction, lifetime_s, response, timing);
                }
                _ => self.failed(now, transaction.operation, RequestError::Malformed),
            },
            Operation::CreatePermission(peers) => {
                for peer in peers {
                    if self
                        .permissions
                        .granted(peer, transaction.started, self.config.keep_alive)
                    {
                        self.events.push_back(Event::Permitted { peer, timing });
                    }
                }
            }
            Operation::ChannelBind { channel, peer } => {
                // RFC 8656 §12.3: the permission is installed or refreshed too. Nobody has asked for it by name.
                let keep_alive = self.config.keep_alive;
                self.permissions
                    .granted_by_channel(peer.ip(), transaction.started, keep_alive);
                if self
                    .channels
                    .bound(channel, transaction.started, keep_alive)
                {
                    self.events.push_back(Event::ChannelBound {
                        channel,
                        peer,
                        timing,
                    });
                }
            }
            Operation::Connect { peer } => self.connected(now, peer, response, timing),
            Operation::ConnectionBind { id } => {
                self.events.push_back(Event::ConnectionBound { id, timing });
            }
        }
    }

    /// A request failed.
    pub(super) fn failed(&mut self, now: Now, operation: Operation, error: RequestError) {
        // RFC 8656 §5: after 437 to anything but Allocate, the client MUST assume that the allocation does not exist
        // any more.
        let mismatch = error.code() == Some(ALLOCATION_MISMATCH);
        match operation {
            Operation::Binding => self.events.push_back(Event::BindingFailed(error)),
            Operation::Allocate(options) => {
                self.mismatches = if mismatch {
                    self.mismatches.saturating_add(1)
                } else {
                    0
                };
                let advice = options.advice(&error, self.mismatches);
                self.events
                    .push_back(Event::AllocateFailed { error, advice });
            }
            Operation::ConnectionBind { id } => {
                self.events
                    .push_back(Event::ConnectionBindFailed { id, error });
            }
            // RFC 8656 §8.3: the request was to delete the allocation, so 437 is success.
            Operation::Refresh {
                lifetime_s: Some(0),
                family,
            } if mismatch => self.released(family, Timing::default()),
            _ if mismatch => self.lose(AllocationLoss::Forgotten),
            Operation::Refresh { lifetime_s, .. } => {
                self.refresh_failed(now, lifetime_s != Some(0), error)
            }
            Operation::Move => self.events.push_back(Event::MoveFailed(error)),
            Operation::Connect { peer } => {
                self.events.push_back(Event::ConnectFailed { peer, error });
            }
            Operation::CreatePermission(peers) => self.permissions_failed(now, peers, &error),
            Operation::ChannelBind { channel, peer } => {
                if self
                    .channels
                    .failed(channel, now.mono, error.is_transient())
                {
                    self.events.push_back(Event::ChannelFailed {
                        channel,
                        peer,
                        error,
                    });
                }
            }
        }
    }

    fn reflected(&mut self, response: &Message<'_>, timing: Timing) {
        let xored = response
            .get()
            .ok()
            .flatten()
            .map(|XorMappedAddress(address)| address);
        let plain = || {
            response
                .get()
                .ok()
                .flatten()
                .map(|MappedAddress(address)| address)
        };
        self.events.push_back(match xored.or_else(plain) {
            Some(address) => Event::Mapped(Box::new(Mapped {
                address,
                software: allocation::software(response),
                timing,
            })),
            None => Event::BindingFailed(RequestError::Malformed),
        });
    }

    fn allocated(
        &mut self,
        transaction: &Transaction,
        options: AllocateOptions,
        response: &Message<'_>,
        timing: Timing,
    ) {
        self.mismatches = 0;
        match allocation::read_success(response, &options, timing) {
            Ok(allocated) => {
                let keep_alive = self.config.keep_alive;
                let mut allocation =
                    Allocation::new(transaction.started, &allocated, options, keep_alive);
                allocation.ticket = allocation::ticket(response);
                self.allocation = Some(allocation);
                self.events.push_back(Event::Allocated(Box::new(allocated)));
            }
            Err(error) => {
                // RFC 8656 §7.3: an allocation that the client is not prepared to handle MUST be deleted.
                self.waiting.push_front(Operation::Refresh {
                    lifetime_s: Some(0),
                    family: None,
                });
                let advice = options.advice(&error, 0);
                self.events
                    .push_back(Event::AllocateFailed { error, advice });
            }
        }
    }

    fn refreshed(&mut self, transaction: &Transaction, lifetime_s: u32, timing: Timing) {
        let Some(allocation) = &mut self.allocation else {
            return;
        };
        allocation.prolong(transaction.started, lifetime_s, self.config.keep_alive);
        self.events
            .push_back(Event::Refreshed { lifetime_s, timing });
    }

    /// The request for a new ticket was granted.
    fn has_moved(
        &mut self,
        transaction: &Transaction,
        lifetime_s: u32,
        response: &Message<'_>,
        timing: Timing,
    ) {
        let Some(allocation) = &mut self.allocation else {
            return;
        };
        allocation.prolong(transaction.started, lifetime_s, self.config.keep_alive);
        // RFC 8016 §3.2.2: the old one cannot be used again.
        allocation.ticket = allocation::ticket(response);
        self.events.push_back(Event::Moved { lifetime_s, timing });
    }

    fn refresh_failed(&mut self, now: Now, keep: bool, error: RequestError) {
        let Some(allocation) = &mut self.allocation else {
            return;
        };
        if keep && self.config.keep_alive && error.is_transient() {
            allocation.refresh_at = now.mono.plus_secs(RETRY_S);
        }
        self.events.push_back(Event::RefreshFailed(error));
    }

    fn released(&mut self, family: Option<AddressFamily>, timing: Timing) {
        let Some(allocation) = &mut self.allocation else {
            return;
        };
        if allocation.remove_family(family) {
            self.forget(family);
        } else {
            self.allocation = None;
            self.forget(None);
        }
        self.events.push_back(Event::Released { family, timing });
    }

    /// One refused address refuses the whole request: those of a longer one are asked for again one by one.
    fn permissions_failed(&mut self, now: Now, peers: Vec<IpAddr>, error: &RequestError) {
        let transient = error.is_transient();
        if peers.len() > 1 && !transient {
            self.waiting.extend(
                peers
                    .into_iter()
                    .map(|peer| Operation::CreatePermission(vec![peer])),
            );
            return;
        }
        for peer in peers {
            if self.permissions.failed(&peer, now.mono, transient) {
                self.events.push_back(Event::PermissionFailed {
                    peer,
                    error: error.clone(),
                });
            }
        }
    }

    /// The allocation does not exist any more. Its permissions, channels and connections end with it.
    pub(super) fn lose(&mut self, loss: AllocationLoss) {
        if self.allocation.take().is_some() {
            self.forget(None);
            self.events.push_back(Event::Lost(loss));
        }
    }

    /// Drops permissions, channels and the requests about them; `None` means of both families.
    fn forget(&mut self, family: Option<AddressFamily>) {
        self.permissions.remove_family(family);
        self.channels.remove_family(family);
        let hangs_on_it = |operation: &Operation| match operation {
            Operation::Binding | Operation::Allocate(_) | Operation::ConnectionBind { .. } => false,
            Operation::Refresh { .. } | Operation::Move => family.is_none(),
            Operation::CreatePermission(peers) => family
                .is_none_or(|family| peers.iter().all(|peer| AddressFamily::of(peer) == family)),
            Operation::ChannelBind { peer, .. } | Operation::Connect { peer } => {
                family.is_none_or(|family| AddressFamily::of(&peer.ip()) == family)
            }
        };
        self.waiting.retain(|operation| !hangs_on_it(operation));
        self.transactions
            .retain(|transaction| !hangs_on_it(&transaction.operation));
    }
}

/// Queues a CreatePermission for `peer`, with others if they wait anyway.
pub(super) fn queue_permission(waiting: &mut VecDeque<Operation>, peer: IpAddr) {
    if let Some(Operation::CreatePermission(peers)) = waiting.back_mut()
        && peers.len() < MAX_PERMITTED_AT_ONCE
    {
        peers.push(peer);
        return;
    }
    waiting.push_back(Operation::CreatePermission(vec![peer]));
}
