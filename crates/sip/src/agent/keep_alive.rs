//! Keep-alives of one flow of a phone (RFC 5626 §4.4): when to send which bytes, and whether the flow has failed.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use crate::flow::Transport;
use crate::{HashKey, Mono};

/// The double CRLF of a connection (RFC 5626 §4.4.1).
const PING: &[u8] = b"\r\n\r\n";
/// How long a response may take over a connection (§4.4.1).
const PONG_TIMEOUT: Duration = Duration::from_secs(10);

/// What is used instead of a shorter or longer Flow-Timer. A NAT keeps no flow for a day.
const FLOW_TIMER_MIN: Duration = Duration::from_secs(1);
const FLOW_TIMER_MAX: Duration = Duration::from_secs(86_400);

/// The first retransmission of a Binding request (RFC 8489 §6.2.1).
const RTO: Duration = Duration::from_millis(500);
/// How often a Binding request is sent (`Rc`).
const REQUESTS: u32 = 7;
/// How long the last transmission waits for a response, in multiples of [`RTO`] (`Rm`).
const LAST_WAIT: u32 = 16;

/// The types of STUN's messages (RFC 8489 §5, §18.1).
const BINDING_REQUEST: u16 = 0x0001;
const BINDING_SUCCESS: u16 = 0x0101;
const BINDING_ERROR: u16 = 0x0111;
const MAGIC_COOKIE: [u8; 4] = [0x21, 0x12, 0xa4, 0x42];
const HEADER_BYTES: usize = 20;
const XOR_MAPPED_ADDRESS: u16 = 0x0020;
/// The comprehension-required attributes of RFC 8489 §18.3. A success response with others is a failure of the flow.
const KNOWN_ATTRIBUTES: [u16; 11] = [
    0x0001, 0x0006, 0x0008, 0x0009, 0x000a, 0x0014, 0x0015, 0x001c, 0x001d, 0x001e, 0x0020,
];

/// Why a flow has failed. The phone must open another one and register again (RFC 5626 §4.5).
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FlowFailure {
    /// There was no response: within 10 s over a connection, and after all retransmissions over UDP.
    #[error("there was no response to a keep-alive")]
    NoResponse,
    /// The response to a Binding request was an error.
    #[error("a Binding request has got an error response")]
    ErrorResponse,
    /// The response to a Binding request requires knowledge of this type of attribute (RFC 8489 §6.3.3).
    #[error("a Binding response has the unknown comprehension-required attribute 0x{0:04x}")]
    UnknownAttribute(u16),
    /// A NAT has given the phone another address, so requests to the registered one do not arrive.
    #[error("the address of the phone outside of its NAT has changed")]
    MappedAddressChanged,
}

/// What the program must do now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KeepAliveStep {
    /// Send these bytes by the flow: as a datagram, or between two messages of the connection.
    Send(Box<[u8]>),
    /// Give up the flow: open another one, and register again.
    Failed(FlowFailure),
}

/// The keep-alives of one flow. Over UDP they are STUN Binding requests; over a connection they are double CRLFs.
///
/// Use them only if the server is known to support them (RFC 5626 §4.4). The configuration of the program says so, or
/// the server has answered a REGISTER with `Require: outbound`. hairpin supports them.
///
/// 1. At the time that [`KeepAlive::poll_timeout`] returns, call [`KeepAlive::handle_timeout`].
/// 2. Over UDP, pass each [`Packet::Stun`](crate::frame::Packet::Stun) of the server to [`KeepAlive::handle_stun`].
/// 3. Over a connection, call [`KeepAlive::handle_pong`] for each [`Frame::LineEnd`](crate::frame::Frame::LineEnd).
///
/// ```
/// use hairpin_sip::agent::{KeepAlive, KeepAliveStep};
/// use hairpin_sip::flow::Transport;
/// use hairpin_sip::{HashKey, Mono};
///
/// let key = HashKey::new([7; 16]); // random, in a program
/// let mut flow = KeepAlive::new(Mono(0), Transport::Tcp, None, key);
/// let due = flow.poll_timeout().ok_or("a time")?;
/// let Some(KeepAliveStep::Send(bytes)) = flow.handle_timeout(due) else {
///     return Err("a ping".into());
/// };
/// assert_eq!(&*bytes, b"\r\n\r\n");
/// flow.handle_pong(due);
/// assert!(flow.poll_timeout() > Some(due));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct KeepAlive {
    is_udp: bool,
    key: HashKey,
    count: u64,
    /// The shortest and the longest time between two keep-alives.
    interval: (Duration, Duration),
    /// When to send the next keep-alive or retransmission, or when the wait for a response ends. `None` if the flow has
    /// failed.
    due: Option<Mono>,
    /// When the keep-alive that waits for a response was sent for the first time, and how often it was sent.
    sent: Option<(Mono, u32)>,
    /// The transaction ID of the Binding request.
    id: [u8; 12],
    /// The address in the first Binding response.
    mapped: Option<SocketAddr>,
}

impl KeepAlive {
    /// For a flow that begins now. `flow_timer` is the Flow-Timer in the response to the REGISTER: the interval is 80 %
    /// to 100 % of it. It counts as at least 1 s and at most a day. Without it, the interval is 24 to 29 s over UDP, and
    /// 95 to 120 s over a connection. `key` is random.
    #[must_use]
    pub fn new(
        now: Mono,
        transport: Transport,
        flow_timer: Option<Duration>,
        key: HashKey,
    ) -> KeepAlive {
        let seconds = |least, most| (Duration::from_secs(least), Duration::from_secs(most));
        let is_udp = transport == Transport::Udp;
        let interval = match (flow_timer, is_udp) {
            (Some(most), _) => {
                let most = most.clamp(FLOW_TIMER_MIN, FLOW_TIMER_MAX);
                (most * 4 / 5, most)
            }
            (None, true) => seconds(24, 29),
            (None, false) => seconds(95, 120),
        };
        let mut flow = KeepAlive {
            is_udp,
            key,
            count: 0,
            interval,
            due: None,
            sent: None,
            id: [0; 12],
            mapped: None,
        };
        flow.due = Some(flow.next_after(now));
        flow
    }

    /// When to call [`KeepAlive::handle_timeout`]; `None` if the flow has failed.
    #[must_use]
    pub const fn poll_timeout(&self) -> Option<Mono> {
        self.due
    }

    /// What is due now; `None` if nothing is.
    pub fn handle_timeout(&mut self, now: Mono) -> Option<KeepAliveStep> {
        if self.due.is_none_or(|due| now < due) {
            return None;
        }
        let (begun, count) = self.sent.unwrap_or((now, 0));
        let most = if self.is_udp { REQUESTS } else { 1 };
        if count >= most {
            return Some(KeepAliveStep::Failed(self.fail(FlowFailure::NoResponse)));
        }
        if count == 0 {
            self.choose_id();
        }
        let wait = match (self.is_udp, count + 1 == most) {
            (false, _) => PONG_TIMEOUT,
            (true, true) => RTO * LAST_WAIT,
            (true, false) => RTO * (1 << count),
        };
        self.sent = Some((begun, count + 1));
        self.due = Some(now.plus(wait));
        Some(KeepAliveStep::Send(self.request()))
    }

    /// A single CRLF has come by the connection, between two messages.
    pub fn handle_pong(&mut self, now: Mono) {
        if !self.is_udp {
            self.responded(now);
        }
    }

    /// A STUN message has come from the server. Returns why the flow has failed, if it has.
    ///
    /// # Errors
    /// The flow has failed.
    pub fn handle_stun(&mut self, now: Mono, datagram: &[u8]) -> Result<(), FlowFailure> {
        let (Some(kind), true) = (self.kind_of_response(datagram), self.is_udp) else {
            return Ok(());
        };
        if kind == BINDING_ERROR {
            return Err(self.fail(FlowFailure::ErrorResponse));
        }
        let is_unknown = |kind: &u16| *kind < 0x8000 && !KNOWN_ATTRIBUTES.contains(kind);
        if let Some(kind) = attributes(datagram).map(|(kind, _)| kind).find(is_unknown) {
            return Err(self.fail(FlowFailure::UnknownAttribute(kind)));
        }
        // A response without XOR-MAPPED-ADDRESS does not show whether the address has changed.
        if let Some(mapped) = self.mapped_address(datagram)
            && *self.mapped.get_or_insert(mapped) != mapped
        {
            return Err(self.fail(FlowFailure::MappedAddressChanged));
        }
        self.responded(now);
        Ok(())
    }

    /// The address of the phone as the server sees it; `None` before the first Binding response that has one.
    #[must_use]
    pub const fn mapped(&self) -> Option<SocketAddr> {
        self.mapped
    }

    /// The keep-alive has its response.
    fn responded(&mut self, now: Mono) {
        if let Some((begun, _)) = self.sent.take() {
            // The interval begins with the first transmission, not with the response.
            self.due = Some(self.next_after(begun).max(now));
        }
    }

    fn fail(&mut self, failure: FlowFailure) -> FlowFailure {
        (self.due, self.sent) = (None, None);
        failure
    }

    fn random(&mut self) -> u64 {
        self.count += 1;
        self.key.mac(&self.count.to_be_bytes())
    }

    /// The time of the next keep-alive: another random one each time (§4.4.1, §4.4.2).
    fn next_after(&mut self, begun: Mono) -> Mono {
        let (least, most) = self.interval;
        let spread_ms = (most.saturating_sub(least)).as_millis() as u64;
        let random = Duration::from_millis(self.random() % (spread_ms + 1));
        begun.plus(least + random)
    }

    fn choose_id(&mut self) {
        let random = [self.random(), self.random()].map(u64::to_be_bytes);
        for (place, byte) in self.id.iter_mut().zip(random.as_flattened()) {
            *place = *byte;
        }
    }

    fn request(&self) -> Box<[u8]> {
        if !self.is_udp {
            return PING.into();
        }
        let kind = BINDING_REQUEST.to_be_bytes();
        [&kind[..], &[0, 0], &MAGIC_COOKIE, &self.id]
            .concat()
            .into()
    }

    /// The type of a response to the Binding request in progress.
    fn kind_of_response(&self, datagram: &[u8]) -> Option<u16> {
        self.sent?;
        let (kind, rest) = datagram.split_first_chunk::<2>()?;
        let (length, rest) = rest.split_first_chunk::<2>()?;
        let attributes = rest.strip_prefix(&MAGIC_COOKIE)?.strip_prefix(&self.id)?;
        let is_whole = usize::from(u16::from_be_bytes(*length)) == attributes.len();
        let kind = u16::from_be_bytes(*kind);
        (is_whole && matches!(kind, BINDING_SUCCESS | BINDING_ERROR)).then_some(kind)
    }

    /// XOR-MAPPED-ADDRESS (RFC 8489 §14.2).
    fn mapped_address(&self, datagram: &[u8]) -> Option<SocketAddr> {
        let (_, value) = attributes(datagram).find(|(kind, _)| *kind == XOR_MAPPED_ADDRESS)?;
        self.xored_address(value)
    }

    fn xored_address(&self, value: &[u8]) -> Option<SocketAddr> {
        let mut pad = [0; 16];
        let mask = MAGIC_COOKIE.iter().chain(&self.id);
        for (place, byte) in pad.iter_mut().zip(mask) {
            *place = *byte;
        }
        let (family, rest) = value.split_first_chunk::<2>()?;
        let (port, ip) = rest.split_first_chunk::<2>()?;
        let [first, second, ..] = pad;
        let port = u16::from_be_bytes(*port) ^ u16::from_be_bytes([first, second]);
        let ip = match (family, ip.len()) {
            ([_, 1], 4) => {
                let ip: [u8; 4] = ip.try_into().ok()?;
                let (pad, _) = pad.split_first_chunk::<4>()?;
                let bits = u32::from_be_bytes(ip) ^ u32::from_be_bytes(*pad);
                IpAddr::V4(Ipv4Addr::from_bits(bits))
            }
            ([_, 2], 16) => {
                let ip: [u8; 16] = ip.try_into().ok()?;
                let bits = u128::from_be_bytes(ip) ^ u128::from_be_bytes(pad);
                IpAddr::V6(Ipv6Addr::from_bits(bits))
            }
            _ => return None,
        };
        Some(SocketAddr::new(ip, port))
    }
}

/// The attributes of a STUN message, each with its type, up to one that is cut off.
fn attributes(datagram: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    let mut rest = datagram.get(HEADER_BYTES..).unwrap_or_default();
    std::iter::from_fn(move || {
        let (kind, after) = rest.split_first_chunk::<2>()?;
        let (length, after) = after.split_first_chunk::<2>()?;
        let length = usize::from(u16::from_be_bytes(*length));
        let value = after.get(..length)?;
        rest = after.get(length.next_multiple_of(4)..).unwrap_or_default();
        Some((u16::from_be_bytes(*kind), value))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn flow(transport: Transport, flow_timer: Option<u64>) -> KeepAlive {
        let flow_timer = flow_timer.map(Duration::from_secs);
        KeepAlive::new(at(0), transport, flow_timer, HashKey::new([3; 16]))
    }

    fn at(ms: u64) -> Mono {
        Mono(1_000_000_000_000).plus(Duration::from_millis(ms))
    }

    fn ms(at: Mono) -> u64 {
        at.0 / 1_000_000 - 1_000_000
    }

    /// Lets time pass until something is due. Returns the time and what is sent.
    fn next(flow: &mut KeepAlive) -> (Mono, KeepAliveStep) {
        let due = flow.poll_timeout().unwrap();
        assert_eq!(flow.handle_timeout(Mono(due.0 - 1)), None);
        (due, flow.handle_timeout(due).unwrap())
    }

    fn sent(flow: &mut KeepAlive) -> (Mono, Box<[u8]>) {
        match next(flow) {
            (due, KeepAliveStep::Send(bytes)) => (due, bytes),
            other => panic!("{other:?}"),
        }
    }

    /// The response of this type with these attributes.
    fn response(request: &[u8], kind: u16, attributes: &[u8]) -> Vec<u8> {
        let length = (attributes.len() as u16).to_be_bytes();
        [&kind.to_be_bytes()[..], &length, &request[4..], attributes].concat()
    }

    /// SOFTWARE with padding, then the XOR-MAPPED-ADDRESS of RFC 5769 §2.2: 192.0.2.1, with this port.
    fn mapped(port: u16) -> Vec<u8> {
        let mut attributes = vec![0x80, 0x22, 0, 5, b'o', b't', b'h', b'e', b'r', 0, 0, 0];
        let port = (port ^ 0x2112).to_be_bytes();
        attributes.extend([0, 0x20, 0, 8, 0, 1, port[0], port[1]]);
        attributes.extend([0xe1, 0x12, 0xa6, 0x43]);
        attributes
    }

    #[test]
    fn intervals_are_random_between_the_bounds_of_rfc5626_4_4() {
        for (transport, flow_timer, bounds) in [
            (Transport::Udp, None, 24_000..=29_000),
            (Transport::Tcp, None, 95_000..=120_000),
            (Transport::Wss, None, 95_000..=120_000),
            (Transport::Udp, Some(60), 48_000..=60_000),
            (Transport::Tls, Some(60), 48_000..=60_000),
            (Transport::Tcp, Some(u64::MAX), 69_120_000..=86_400_000),
        ] {
            let mut flow = flow(transport, flow_timer);
            let mut before = at(0);
            let mut all = std::collections::BTreeSet::new();
            for _ in 0..50 {
                let (due, request) = sent(&mut flow);
                let passed = ms(due) - ms(before);
                assert!(bounds.contains(&passed), "{transport:?}: {passed}");
                all.insert(passed);
                before = due;
                // The response takes a while, which does not delay the next keep-alive.
                let later = due.plus(Duration::from_millis(300));
                if transport == Transport::Udp {
                    let success = response(&request, BINDING_SUCCESS, &mapped(5060));
                    flow.handle_stun(later, &success).unwrap();
                } else {
                    assert_eq!(&*request, PING);
                    flow.handle_pong(later);
                }
            }
            assert!(all.len() > 40, "{transport:?}: {all:?}");
        }
    }

    #[test]
    fn a_connection_without_a_pong_within_10_s_has_failed_rfc5626_4_4_1() {
        let mut flow = flow(Transport::Tcp, None);
        let (due, _) = sent(&mut flow);
        // STUN is for UDP.
        let stun = response(&[0; 20], BINDING_ERROR, b"");
        assert_eq!(flow.handle_stun(due, &stun), Ok(()));
        let (failed, step) = next(&mut flow);
        assert_eq!(step, KeepAliveStep::Failed(FlowFailure::NoResponse));
        assert_eq!(failed, due.plus(PONG_TIMEOUT));
        assert_eq!(flow.poll_timeout(), None);
        // What comes later changes nothing.
        flow.handle_pong(failed);
        assert_eq!(
            (flow.poll_timeout(), flow.handle_timeout(failed)),
            (None, None)
        );
    }

    #[test]
    fn a_binding_request_is_sent_seven_times_then_the_flow_has_failed_rfc5626_4_4_2() {
        let mut flow = flow(Transport::Udp, None);
        let (begun, request) = sent(&mut flow);
        let mut times = vec![0];
        for _ in 1..REQUESTS {
            let (due, again) = sent(&mut flow);
            assert_eq!(again, request);
            times.push(ms(due) - ms(begun));
        }
        assert_eq!(times, [0, 500, 1_500, 3_500, 7_500, 15_500, 31_500]);
        // A CRLF is for connections.
        flow.handle_pong(begun);
        let (failed, step) = next(&mut flow);
        assert_eq!(step, KeepAliveStep::Failed(FlowFailure::NoResponse));
        assert_eq!(ms(failed) - ms(begun), 39_500);
        assert_eq!(flow.poll_timeout(), None);
    }

    #[test]
    fn an_error_response_and_another_mapped_address_end_the_flow_rfc5626_4_4_2() {
        let mut refused = flow(Transport::Udp, None);
        let (due, request) = sent(&mut refused);
        let error = response(&request, BINDING_ERROR, b"");
        let failure = refused.handle_stun(due, &error);
        assert_eq!(failure, Err(FlowFailure::ErrorResponse));
        assert_eq!(refused.poll_timeout(), None);

        let mut moved = flow(Transport::Udp, None);
        for (port, outcome) in [
            (5060, Ok(())),
            (5060, Ok(())),
            (5061, Err(FlowFailure::MappedAddressChanged)),
        ] {
            let (due, request) = sent(&mut moved);
            let success = response(&request, BINDING_SUCCESS, &mapped(port));
            assert_eq!(moved.handle_stun(due, &success), outcome);
        }
        assert_eq!(moved.mapped(), Some("192.0.2.1:5060".parse().unwrap()));
        assert_eq!(moved.poll_timeout(), None);
    }

    #[test]
    fn a_response_with_an_unknown_comprehension_required_attribute_is_a_failure_rfc8489_6_3_3() {
        for (kind, outcome) in [
            (0x8055, Ok(())),
            (0x0055, Err(FlowFailure::UnknownAttribute(0x0055))),
        ] {
            let mut flow = flow(Transport::Udp, None);
            let (due, request) = sent(&mut flow);
            let mut attributes = mapped(5060);
            attributes.extend([&u16::to_be_bytes(kind)[..], &[0, 0]].concat());
            let success = response(&request, BINDING_SUCCESS, &attributes);
            assert_eq!(flow.handle_stun(due, &success), outcome);
        }
    }

    #[test]
    fn only_a_response_to_the_own_request_counts() {
        let mut flow = flow(Transport::Udp, None);
        let (due, request) = sent(&mut flow);
        let mut other = request.to_vec();
        other[19] ^= 1;
        let mut short = response(&request, BINDING_SUCCESS, &mapped(5060));
        short.pop();
        for foreign in [
            response(&other, BINDING_SUCCESS, &mapped(1)),
            response(&other, BINDING_ERROR, b""),
            request.to_vec(),
            short,
            Vec::new(),
        ] {
            assert_eq!(flow.handle_stun(due, &foreign), Ok(()));
            assert_eq!(flow.poll_timeout(), Some(due.plus(RTO)));
        }
        // A second response to one request changes nothing either.
        let success = response(&request, BINDING_SUCCESS, &mapped(5060));
        flow.handle_stun(due, &success).unwrap();
        let next = flow.poll_timeout();
        assert!(next > Some(due.plus(RTO)));
        flow.handle_stun(due, &response(&request, BINDING_ERROR, b""))
            .unwrap();
        assert_eq!(flow.poll_timeout(), next);
    }

    #[test]
    fn an_ipv6_address_is_read_rfc5769_2_3() {
        let mut flow = flow(Transport::Udp, None);
        // The transaction ID and the attribute of the test vector.
        flow.id = *b"\xb7\xe7\xa7\x01\xbc\x34\xd6\x86\xfa\x87\xdf\xae";
        let value =
            b"\x00\x02\xa1\x47\x01\x13\xa9\xfa\xa5\xd3\xf1\x79\xbc\x25\xf4\xb5\xbe\xd2\xb9\xd9";
        let expected = "[2001:db8:1234:5678:11:2233:4455:6677]:32853";
        assert_eq!(flow.xored_address(value), Some(expected.parse().unwrap()));
    }
}
