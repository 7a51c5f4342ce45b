//! The types of values that have a range, each with the reason for its limits.

use super::microseconds::Microseconds;
use super::setting::{Bounded, Seconds};
use super::size::{Rate, Size};

/// RFC 8656 §7.2: an allocation lasts 10 minutes by default. Clients refresh one minute before the end, so less than 2
/// minutes is too short. More than a day would occupy the port of a vanished client for too long.
pub(crate) type AllocationLifetime = Seconds<120, 86_400>;
/// RFC 8656 §5: a nonce expires at least once an hour. With less than a minute, the server would challenge nearly every
/// request.
pub(crate) type NonceLifetime = Seconds<60, 3_600>;
/// Allocations. Each has a relay port, and there are 65,535 ports on each of a few addresses.
pub(crate) type Allocations = Bounded<1, 10_000_000>;
/// Permissions of one relayed address. A client makes each of them with one request.
pub(crate) type Permissions = Bounded<1, 1_024>;
/// Channels of one relayed address. There are 4,096 channel numbers (RFC 8656 §12).
pub(crate) type Channels = Bounded<1, 4_096>;

/// A receive buffer. The kernel makes no smaller one than 4 KiB. Half a gigabyte would hold datagrams for a minute.
pub(crate) type ReceiveBuffer = Size<4_096, 536_870_912>;
/// A send buffer. It must have room for the datagrams that the kernel queues for one neighbour without a response: 208
/// KiB by default.
pub(crate) type SendBuffer = Size<262_144, 536_870_912>;
/// Busy polling. Above a millisecond, polling is no better than sleeping.
pub(crate) type BusyPoll = Microseconds<0, 1_000>;

/// Connections with peers of one TCP relayed address. Each uses a descriptor, and a second one when it is bound.
pub(crate) type PeerConnections = Bounded<1, 1_024>;

/// Channels in the kernel. Each has two entries, so the highest number uses a gigabyte of kernel memory.
pub(crate) type OffloadChannels = Bounded<1, { server::offload::Offload::MAX_CHANNELS }>;
/// Error responses per second and source. With 0, no client could get a challenge.
pub(crate) type UnverifiedResponses = Bounded<1, 100_000_000>;
/// Binding requests per second and source prefix. No link carries 100 million.
pub(crate) type BindingRate = Bounded<0, 100_000_000>;

/// Application data of one allocation, in bytes per second. A call does not fit in less than 1 KiB/s, and more than
/// 1 GiB/s is no limit.
pub(crate) type AllocationRate = Rate<1_024, 1_073_741_824>;
/// Application data of a user, a source, a realm or all allocations, in bytes per second.
pub(crate) type GroupRate = Rate<1_024, 8_589_934_592>;

/// Connections. Each uses a file descriptor.
pub(crate) type Connections = Bounded<1, 1_000_000>;
/// The time for the first message, and for a message that has begun. With less than a second, distant clients would
/// fail: TLS requires three round trips.
pub(crate) type MessageDeadline = Seconds<1, 600>;
/// How long a connection without an allocation may have no traffic.
pub(crate) type ConnectionIdle = Seconds<5, 86_400>;
/// The age at which relayed data is dropped. With less than 50 ms, a retransmitted TCP segment would
/// be too late.
pub(crate) type QueueAge = Microseconds<50_000, 60_000_000>;
/// Bytes that wait on one connection. The longest message fits twice.
pub(crate) type QueueSize = Size<131_072, 268_435_456>;
/// Bytes that wait on all connections.
pub(crate) type QueueTotal = Size<1_048_576, 4_294_967_295>;

/// The share of `limits.allocations`, in percent, above which the server sends clients to other servers.
pub(crate) type OverloadPercent = Bounded<1, 100>;
/// The time between two checks of another server; 0: no checks.
pub(crate) type CheckInterval = Seconds<0, 3_600>;

/// The time of a drain. No call lasts longer than a day.
pub(crate) type Drain = Seconds<0, 86_400>;

/// How long a SIP message may wait. After ten seconds, its sender has given up. 0 turns overload
/// control off.
pub(crate) type Tolerance = Microseconds<0, 10_000_000>;
/// The processor time that the test user agent server adds to each request: at most a second.
pub(crate) type ServiceTime = Microseconds<0, 1_000_000>;
/// SIP transactions. Each uses about a kilobyte.
pub(crate) type SipTransactions = Bounded<1, 10_000_000>;
/// SIP connections. Each uses a file descriptor.
pub(crate) type SipConnections = Bounded<1, 1_000_000>;
/// Requests per second of one source; 0: any number. A million is more than a server can handle.
pub(crate) type SipRequests = Bounded<0, 1_000_000>;
/// Header fields of a SIP message. The table of them has at most 254 entries.
pub(crate) type SipHeaders = Bounded<8, 254>;
/// Bytes of the header of a SIP message. Positions in it have 16 bits.
pub(crate) type SipHead = Size<512, 65_535>;
/// Bytes of the body of a SIP message.
pub(crate) type SipBody = Size<0, 1_048_576>;
/// How long a call waits for a phone that is woken.
pub(crate) type SipPushTimeout = Seconds<1, 60>;
/// Calls that wait for phones. Each of them is a transaction.
pub(crate) type SipPushCalls = Bounded<1, 100_000>;
/// How long before its registration ends a phone is woken (RFC 8599 §5.6.1.1).
pub(crate) type SipPushRefresh = Seconds<121, 3600>;
/// The time for a SIP message that has begun.
pub(crate) type SipMessageDeadline = Seconds<1, 600>;
/// How long a SIP connection may have no traffic. With less than 64 * T1 = 32 s, a transaction would lose its
/// connection.
pub(crate) type SipIdle = Seconds<32, 86_400>;

/// The shortest SIP registration. RFC 3261 §10.3 does not allow a registrar to refuse an hour.
pub(crate) type SipShortest = Seconds<1, 3600>;
/// How long a source that guesses SIP passwords is banned; 0: no ban.
pub(crate) type SipBan = Seconds<0, 86_400>;
/// SIP calls, and SIP calls per second; 0: no limit.
pub(crate) type SipCalls = Bounded<0, 1_000_000>;
/// Bytes of memory for the latest SIP messages; 0: no messages are stored.
pub(crate) type SipTraceMemory = Size<0, 1_073_741_824>;
/// The capture agent ID of HEP packets. The field has 32 bits.
pub(crate) type SipTraceId = Bounded<0, { u32::MAX }>;
/// How long a SIP call without a BYE counts.
pub(crate) type SipCallDuration = Seconds<60, 604_800>;
/// The session interval that the SIP proxy requests; 0: none.
pub(crate) type SipSession = Seconds<0, 86_400>;
/// The shortest session interval. RFC 4028 §5 requires at least 90 seconds.
pub(crate) type SipShortestSession = Seconds<90, 86_400>;
/// The duration of a SIP registration.
pub(crate) type SipRegistration = Seconds<1, 2_592_000>;
/// How long a SIP flow with keep-alives may have no traffic; 0: only `sip.idle` applies.
pub(crate) type SipFlowTimer = Seconds<0, 3600>;
/// SIP registration bindings. Each uses half a kilobyte.
pub(crate) type SipBindings = Bounded<1, 100_000_000>;
/// SIP registration bindings of a user. Each response to a REGISTER lists all of them.
pub(crate) type SipUserBindings = Bounded<1, 30>;

/// T1 of SIP. With less than 10 ms, a busy machine repeats requests that have a response. With 5 s, a
/// lost request is repeated for minutes.
pub(crate) type SipT1 = Microseconds<10_000, 5_000_000>;
