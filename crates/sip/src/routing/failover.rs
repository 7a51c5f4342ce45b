//! Trying one server after the other (RFC 3263 §4.3).

use std::time::Duration;

use super::locate::Candidate;
use super::penalties::Penalties;
use crate::Mono;

/// How an attempt at a server ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// A final response but 503.
    Answered,
    /// A 503, with its Retry-After in seconds if it has one.
    Unavailable {
        /// Seconds.
        retry_after_s: Option<u32>,
    },
    /// No response in time.
    TimedOut,
    /// The request could not be sent.
    TransportFailed,
}

/// The servers of one request that are left. Each attempt is a client transaction of its own, with a branch of its own.
#[derive(Clone, Debug)]
pub struct Failover {
    servers: Vec<Candidate>,
    next: usize,
    until: Mono,
}

impl Failover {
    /// These servers, in this order, until this time has passed: a TU that waits has other plans after 64*T1.
    #[must_use]
    pub fn new(servers: Vec<Candidate>, now: Mono, failover_time: Duration) -> Failover {
        Failover {
            servers,
            next: 0,
            until: now.plus(failover_time),
        }
    }

    /// The next server to try.
    pub fn next_server(&mut self, now: Mono) -> Option<Candidate> {
        if now >= self.until {
            return None;
        }
        let server = self.servers.get(self.next).copied();
        self.next += 1;
        server
    }

    /// Notes how the last attempt ended and says whether another one makes sense.
    pub fn ended(&mut self, now: Mono, outcome: Outcome, penalties: &mut Penalties) -> bool {
        let tried = self
            .next
            .checked_sub(1)
            .and_then(|last| self.servers.get(last));
        let Some(Candidate { transport, remote }) = tried.copied() else {
            return false;
        };
        match outcome {
            Outcome::Answered => {
                penalties.answered(transport, remote);
                return false;
            }
            Outcome::Unavailable { retry_after_s } => {
                penalties.unavailable(now, transport, remote, retry_after_s.unwrap_or(0));
            }
            Outcome::TimedOut | Outcome::TransportFailed => {
                penalties.silent(now, transport, remote)
            }
        }
        self.next < self.servers.len() && now < self.until
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::HashKey;
    use crate::flow::Transport;

    fn server(last: u8) -> Candidate {
        Candidate {
            transport: Transport::Udp,
            remote: ([192, 0, 2, last], 5060).into(),
        }
    }

    #[test]
    fn servers_are_tried_in_order_until_one_answers() {
        let mut penalties = Penalties::new(HashKey::new([1; 16]));
        let servers = vec![server(1), server(2), server(3)];
        let mut failover = Failover::new(servers, Mono(0), Duration::from_secs(32));
        assert_eq!(failover.next_server(Mono(0)), Some(server(1)));
        let unavailable = Outcome::Unavailable {
            retry_after_s: Some(9),
        };
        assert!(failover.ended(Mono(0), unavailable, &mut penalties));
        assert_eq!(failover.next_server(Mono(0)), Some(server(2)));
        assert!(failover.ended(Mono(0), Outcome::TransportFailed, &mut penalties));
        assert_eq!(failover.next_server(Mono(0)), Some(server(3)));
        assert!(!failover.ended(Mono(0), Outcome::Answered, &mut penalties));
        let listed = [1, 2, 3].map(|last| {
            let Candidate { transport, remote } = server(last);
            penalties.is_listed(Mono(0), transport, remote)
        });
        assert_eq!(listed, [true, true, false]);
    }

    #[test]
    fn the_last_server_and_the_time_limit_end_it() {
        let mut penalties = Penalties::new(HashKey::new([1; 16]));
        let mut failover = Failover::new(vec![server(1)], Mono(0), Duration::from_secs(32));
        assert!(!failover.ended(Mono(0), Outcome::TimedOut, &mut penalties));
        let _ = failover.next_server(Mono(0));
        assert!(!failover.ended(Mono(0), Outcome::TimedOut, &mut penalties));
        let servers = vec![server(1), server(2)];
        let mut failover = Failover::new(servers, Mono(0), Duration::from_secs(32));
        let _ = failover.next_server(Mono(0));
        let late = Mono::default().plus_secs(32);
        assert!(!failover.ended(late, Outcome::TimedOut, &mut penalties));
        assert_eq!(failover.next_server(late), None);
    }
}
