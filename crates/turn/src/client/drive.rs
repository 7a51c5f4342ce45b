//! The progress of a client: starts requests, and handles their timers.

use std::collections::VecDeque;

use super::Client;
use super::error::RequestError;
use super::event::AllocationLoss;
use super::transaction::{Operation, Schedule, TimeoutAction, Transaction};
use crate::{Mono, Now};

impl Client {
    /// Starts what may start, releases what is empty, and finds the next deadline. The last step of every change.
    pub(super) fn proceed(&mut self, now: Now) {
        // The server does not know the new address before it gets the ticket: other requests from there would get 437.
        while self.transactions.len() < self.config.outstanding.max(1) && !self.is_moving() {
            let Some(operation) = self.waiting.pop_front() else {
                self.waiting = VecDeque::new();
                break;
            };
            self.start(now, operation, 0);
        }
        if self.transactions.is_empty() {
            self.transactions = Vec::new();
        }
        let transactions = self
            .transactions
            .iter()
            .map(|transaction| transaction.deadline)
            .min();
        let allocation = self
            .allocation
            .as_ref()
            .map(|allocation| allocation.refresh_at.min(allocation.expires_at));
        self.deadline = self
            .permissions
            .next_deadline()
            .min(self.channels.next_deadline())
            .min(transactions.unwrap_or(Mono::NEVER))
            .min(allocation.unwrap_or(Mono::NEVER));
    }

    fn is_moving(&self) -> bool {
        let mut under_way = self.transactions.iter();
        under_way.any(|transaction| matches!(transaction.operation, Operation::Move))
    }

    /// Starts a transaction; `challenges` counts the 401 and 438 responses that the operation has had.
    pub(super) fn start(&mut self, now: Now, operation: Operation, challenges: u8) {
        // A Binding needs no credentials unless the server says so: one that ignores them answers without integrity.
        let sign = self.challenge.is_some()
            && (challenges > 0 || !matches!(operation, Operation::Binding));
        let id = self.random.transaction_id();
        match self.encode(&operation, &id, sign) {
            Ok(request) => {
                let settings = &self.config.retransmission;
                let timeout = self.round_trip.timeout(now.mono, settings.timeout);
                let schedule = Schedule::new(settings, timeout, self.config.transport.is_stream());
                let mut transaction =
                    Transaction::start(now.mono, id, operation, request, schedule);
                transaction.signed = sign;
                transaction.challenges = challenges;
                self.transactions.reserve_exact(1);
                self.transactions.push(transaction);
            }
            Err(error) => self.failed(now, operation, error),
        }
    }

    pub(super) fn lapse_transactions(&mut self, now: Now) {
        let mut index = 0;
        while let Some(transaction) = self.transactions.get_mut(index) {
            if transaction.deadline > now.mono
                || transaction.retransmit_or_time_out(now.mono) == TimeoutAction::Repeated
            {
                index += 1;
                continue;
            }
            let transaction = self.transactions.remove(index);
            // RFC 8489 §9.2.5: if all responses were discarded, signal that the integrity protection was violated.
            let error = match transaction.discarded {
                Some(discarded) => RequestError::IntegrityViolated(discarded),
                None => RequestError::TimedOut(transaction.timing(now.mono)),
            };
            self.failed(now, transaction.operation, error);
        }
    }

    pub(super) fn refresh_allocation(&mut self, now: Now) {
        let Some(allocation) = &mut self.allocation else {
            return;
        };
        if allocation.expires_at <= now.mono {
            self.lose(AllocationLoss::Expired);
        } else if allocation.refresh_at <= now.mono {
            allocation.refresh_at = Mono::NEVER;
            let lifetime_s = allocation.options.lifetime_s;
            // RFC 8656 §8.1: without REQUESTED-ADDRESS-FAMILY it is for both addresses of a dual allocation.
            self.waiting.push_front(Operation::Refresh {
                lifetime_s,
                family: None,
            });
        }
    }
}
