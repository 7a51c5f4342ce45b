//! The tests of RFC 5780 §4, one after the other.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use stun::{ChangeRequest, TransactionId};

use super::message::{Mapped, Outcome, RequestedTest, Response, is_request, request, response};
use super::report::{Behaviour, Hairpinning, Lifetime, NatReport};
use super::{Network, ProbeError};

/// RFC 8489 §6.2.1: the first retransmission comes after 500 ms, each further one after twice the time.
const FIRST_RETRANSMISSION: Duration = Duration::from_millis(500);
/// RFC 5780 §5: at most ten new transactions per second.
const TRANSACTION_INTERVAL: Duration = Duration::from_millis(100);
/// Idle times that are tested: this many steps up to the longest.
const LIFETIME_STEPS: u32 = 12;
/// Bindings that have expired in a row until longer idle times are not tested.
const MAX_GONE: u32 = 2;
/// How long a datagram may take through a hairpin and back to this machine.
const HAIRPIN_TIMEOUT: Duration = Duration::from_secs(2);

/// Asks one server.
pub(super) struct Prober<N> {
    network: N,
    server: SocketAddr,
    timeout: Duration,
    /// When the next transaction may begin.
    next: Duration,
}

/// What became of a request.
enum TestOutcome {
    Response(Response),
    NoResponse(turn::client::Timing),
}

impl<N: Network> Prober<N> {
    pub(super) fn new(network: N, server: SocketAddr, timeout: Duration) -> Prober<N> {
        Prober {
            network,
            server,
            timeout,
            next: Duration::ZERO,
        }
    }

    /// Tests mapping, filtering and hairpinning. `lifetime` is the longest idle time after which it also tests whether a
    /// binding still exists; `None` skips this test.
    pub(super) fn probe(mut self, lifetime: Option<Duration>) -> Result<NatReport, ProbeError> {
        let socket = self.open()?;
        let first = self.mapped(socket, self.server)?;
        let server = self.server;
        let other = check_other(server, first.other)?;
        let (mapping, mappings) = mapping_of(server, first.address, other, |to| {
            self.other_mapped(socket, to)
        })?;
        let filtering = self.filtering(other)?;
        let local = self.network.local(socket);
        let hairpinning = if local == first.address {
            Hairpinning::NotNeeded
        } else {
            self.hairpinning(socket, first.address)?
        };
        let lifetime = match lifetime {
            Some(longest) => Some(self.lifetime(longest)?),
            None => None,
        };
        Ok(NatReport {
            server,
            other,
            origin: first.origin.filter(|origin| *origin != server),
            local,
            mapped: first.address,
            mappings,
            mapping,
            filtering: Some(filtering),
            hairpinning,
            lifetime,
            software: first.software,
        })
    }

    /// RFC 5780 §4.4, on a socket that has sent nothing to the other address.
    fn filtering(&mut self, other: SocketAddr) -> Result<Behaviour, ProbeError> {
        let socket = self.open()?;
        self.mapped(socket, self.server)?;
        let same_ip = SocketAddr::new(self.server.ip(), other.port());
        if self.is_let_through(socket, true, other)? {
            Ok(Behaviour::EndpointIndependent)
        } else if self.is_let_through(socket, false, same_ip)? {
            Ok(Behaviour::AddressDependent)
        } else {
            Ok(Behaviour::AddressAndPortDependent)
        }
    }

    /// Whether a response comes from another port and, if wanted, another address.
    fn is_let_through(
        &mut self,
        socket: usize,
        change_ip: bool,
        expected: SocketAddr,
    ) -> Result<bool, ProbeError> {
        let requested_test = RequestedTest {
            change: Some(ChangeRequest {
                change_ip,
                change_port: true,
            }),
            ..RequestedTest::default()
        };
        let server = self.server;
        match self.ask(socket, server, requested_test)? {
            TestOutcome::NoResponse(_) => Ok(false),
            TestOutcome::Response(Response { from, outcome, .. }) => match outcome {
                Outcome::Refused(code, reason) => {
                    Err(ProbeError::refused(server, "Binding", code, &reason))
                }
                // A NAT in front of the server may show another address than the server has. Then the address in the
                // response counts.
                Outcome::Mapped(mapped) if from == server || mapped.origin == Some(server) => {
                    Err(ProbeError::SameOrigin { server, expected })
                }
                Outcome::Mapped(_) => Ok(true),
            },
        }
    }

    /// Two sockets send to each other's mapped addresses, so that neither is kept out by a filter.
    fn hairpinning(&mut self, one: usize, mapped: SocketAddr) -> Result<Hairpinning, ProbeError> {
        let two = self.open()?;
        let mapped_two = self.mapped(two, self.server)?.address;
        let (to_one, to_two) = (self.id()?, self.id()?);
        let end = self.network.now() + self.timeout.min(HAIRPIN_TIMEOUT);
        let mut next = self.network.now();
        let mut wait = FIRST_RETRANSMISSION / 5;
        while self.network.now() < end {
            if self.network.now() >= next {
                self.send(one, mapped_two, &to_two)?;
                self.send(two, mapped, &to_one)?;
                next = self.network.now() + wait;
                wait *= 2;
            }
            let Some(received) = self.receive(next.min(end))? else {
                continue;
            };
            let came = (received.socket == one && is_request(&received, &to_one))
                || (received.socket == two && is_request(&received, &to_two));
            if came {
                return Ok(Hairpinning::Works);
            }
        }
        Ok(Hairpinning::Fails)
    }

    /// Sends a request to a mapped address. That the system refuses is as good as that nothing comes.
    fn send(
        &mut self,
        socket: usize,
        to: SocketAddr,
        id: &TransactionId,
    ) -> Result<(), ProbeError> {
        let bytes = self.request(id, RequestedTest::default())?;
        let _ = self.network.send(socket, to, &bytes);
        Ok(())
    }

    /// RFC 5780 §4.6, on many bindings at once. Each is tested after a different idle time, so the whole test takes as
    /// long as its longest idle time.
    fn lifetime(&mut self, longest: Duration) -> Result<Lifetime, ProbeError> {
        let asking = self.open()?;
        self.mapped(asking, self.server)?;
        let mut bindings = Vec::new();
        for step in 1..=LIFETIME_STEPS {
            let socket = self.open()?;
            let mapped = self.mapped(socket, self.server)?.address;
            let bound = self.network.now();
            bindings.push((
                bound,
                longest * step / LIFETIME_STEPS,
                socket,
                mapped.port(),
            ));
        }
        let (mut alive, mut gone, mut misses) = (Duration::ZERO, None, 0);
        for (bound, idle, socket, port) in bindings {
            self.network.wait(bound + idle);
            // A test before this one may have waited longer for a response.
            let idle = self.network.now() - bound;
            match self.is_bound(asking, socket, port)? {
                None => return Ok(Lifetime::Unsupported),
                // A response that was lost is no end: longer ones are still there.
                Some(true) => (alive, gone, misses) = (idle, None, 0),
                Some(false) => {
                    gone = gone.or(Some(idle));
                    misses += 1;
                }
            }
            if misses == MAX_GONE {
                break;
            }
        }
        Ok(match gone {
            Some(gone) => Lifetime::Between(alive, gone),
            None => Lifetime::AtLeast(alive),
        })
    }

    /// Whether a response to `port` still reaches `socket`; `None` if the server does not support RESPONSE-PORT.
    fn is_bound(
        &mut self,
        asking: usize,
        socket: usize,
        port: u16,
    ) -> Result<Option<bool>, ProbeError> {
        let requested_test = RequestedTest {
            response_port: Some(port),
            ..RequestedTest::default()
        };
        match self.ask(asking, self.server, requested_test)? {
            TestOutcome::NoResponse(_) => Ok(Some(false)),
            TestOutcome::Response(response) => match response.outcome {
                Outcome::Refused(420, _) => Ok(None),
                Outcome::Refused(code, reason) => {
                    Err(ProbeError::refused(self.server, "Binding", code, &reason))
                }
                // The response is for the old binding only if its socket received it.
                Outcome::Mapped(_) => Ok(Some(response.socket == socket)),
            },
        }
    }

    /// The mapped address towards `to`.
    fn mapped(&mut self, socket: usize, to: SocketAddr) -> Result<Box<Mapped>, ProbeError> {
        match self.ask(socket, to, RequestedTest::default())? {
            TestOutcome::NoResponse(timing) => Err(ProbeError::no_answer(to, "Binding", timing)),
            TestOutcome::Response(response) => match response.outcome {
                Outcome::Mapped(mapped) => Ok(mapped),
                Outcome::Refused(code, reason) => {
                    Err(ProbeError::refused(to, "Binding", code, &reason))
                }
            },
        }
    }

    fn other_mapped(&mut self, socket: usize, to: SocketAddr) -> Result<SocketAddr, ProbeError> {
        match self.mapped(socket, to) {
            Ok(mapped) => Ok(mapped.address),
            Err(ProbeError::NoAnswer { .. }) => Err(ProbeError::OtherAddressSilent {
                server: self.server,
                other: to,
            }),
            Err(error) => Err(error),
        }
    }

    /// Sends a request until its response comes, to any of the sockets.
    fn ask(
        &mut self,
        socket: usize,
        to: SocketAddr,
        requested_test: RequestedTest,
    ) -> Result<TestOutcome, ProbeError> {
        let id = self.id()?;
        let bytes = self.request(&id, requested_test)?;
        self.network.wait(self.next);
        let start = self.network.now();
        self.next = start + TRANSACTION_INTERVAL;
        let end = start + self.timeout;
        let (mut next, mut wait) = (start, FIRST_RETRANSMISSION);
        let mut transmissions: u8 = 0;
        while self.network.now() < end {
            if self.network.now() >= next {
                let sent = self.network.send(socket, to, &bytes);
                sent.map_err(|error| ProbeError::local(to, error))?;
                transmissions = transmissions.saturating_add(1);
                next = self.network.now() + wait;
                wait *= 2;
            }
            let Some(received) = self.receive(next.min(end))? else {
                continue;
            };
            if let Some(response) = response(&received, &id) {
                return Ok(TestOutcome::Response(response));
            }
        }
        Ok(TestOutcome::NoResponse(turn::client::Timing {
            transmissions,
            elapsed: self.network.now() - start,
        }))
    }

    fn receive(&mut self, until: Duration) -> Result<Option<super::Received>, ProbeError> {
        let received = self.network.receive(until);
        received.map_err(|error| ProbeError::local(self.server, error))
    }

    fn open(&mut self) -> Result<usize, ProbeError> {
        let opened = self.network.open();
        opened.map_err(|error| ProbeError::local(self.server, error))
    }

    fn id(&mut self) -> Result<TransactionId, ProbeError> {
        let id = self.network.random();
        id.map(TransactionId)
            .map_err(|error| ProbeError::local(self.server, error))
    }

    fn request(
        &self,
        id: &TransactionId,
        requested_test: RequestedTest,
    ) -> Result<Vec<u8>, ProbeError> {
        request(id, requested_test)
            .map_err(|error| ProbeError::local(self.server, io::Error::other(error)))
    }
}

/// Checks that the server's other address differs in IP address and port.
pub(super) fn check_other(
    server: SocketAddr,
    other: Option<SocketAddr>,
) -> Result<SocketAddr, ProbeError> {
    let other = other.ok_or(ProbeError::NoOtherAddress { server })?;
    let differs = other.ip() != server.ip() && other.port() != server.port();
    if !differs || other.is_ipv4() != server.is_ipv4() {
        return Err(ProbeError::WrongOtherAddress { server, other });
    }
    Ok(other)
}

/// RFC 5780 §4.3. Each address that is asked must answer: nothing has been filtered that the client has sent to.
///
/// `ask` says which mapped address the given address of the server sees.
pub(super) fn mapping_of(
    server: SocketAddr,
    first: SocketAddr,
    other: SocketAddr,
    mut ask: impl FnMut(SocketAddr) -> Result<SocketAddr, ProbeError>,
) -> Result<(Behaviour, Vec<(SocketAddr, SocketAddr)>), ProbeError> {
    let other_ip = SocketAddr::new(other.ip(), server.port());
    let second = ask(other_ip)?;
    let mut mappings = vec![(server, first), (other_ip, second)];
    if second == first {
        return Ok((Behaviour::EndpointIndependent, mappings));
    }
    let third = ask(other)?;
    mappings.push((other, third));
    let behaviour = if third == second {
        Behaviour::AddressDependent
    } else {
        Behaviour::AddressAndPortDependent
    };
    Ok((behaviour, mappings))
}
