//! The token in the user part of a Record-Route URI. It names the flow by which a request with this URI in Route
//! leaves, and proves that this server wrote it for this dialog.
//!
//! ```text
//! d  base64 of: side (4 bits)  kind (4 bits)  session (32 bits), unless side is 0     MAC over these and Call-ID (64 bits)
//!               flow, if kind is 1, 2 or 3; time and hash of the request, if kind is 4
//! ```
//!
//! The side is 0 unless the media of the call go through a relay.
//!
//! So the proxy keeps nothing per dialog, and without the token of a dialog nobody can send a request within it.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use sip::engine::Mark;
use sip::{HashKey, Message, Method};

use super::media::DialogSide;
use crate::flow::{FLOW_LEN, FlowId, FlowTokens, MAX_TOKEN};

const MARK: u8 = b'd';
const PASS: u8 = 0;
const FLOW: u8 = 1;
const NEAR: u8 = 2;
const NODE: u8 = 3;
const FROM_NODE: u8 = 4;
/// The side is above the kind.
const SIDE_SHIFT: u32 = 4;
const SESSION_LEN: usize = 4;
const MAC_LEN: usize = 8;
/// Octets before the MAC.
const MAX_SAID: usize = 1 + SESSION_LEN + FLOW_LEN;
const SIGNED: usize = MAX_SAID + MAC_LEN;
/// Characters of the longest user.
pub(super) const MAX_USER: usize = 1 + SIGNED.div_ceil(3) * 4;

/// What a user of ours says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Token {
    /// The request goes where its Request-URI, or the next Route, leads.
    Pass,
    /// The request goes by this flow.
    Flow(FlowId),
    /// The request goes where its Request-URI leads, which may be the address of this flow.
    Near(FlowId),
    /// The request goes to another node of the cluster, at the address of this flow: where the next Route leads.
    Node(FlowId),
    /// Another node of the cluster knows the sender of this request, and asks for the phones that are registered here.
    FromNode(FromNode),
}

/// What a node says of a request that it sends to another one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct FromNode {
    /// When, by its clock.
    pub(super) unix_s: u64,
    /// The hash of the request ([`RouteTokens::hash`]).
    pub(super) request: u64,
}

/// A token that was read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Signed {
    pub(super) token: Token,
    /// It is of a Path, and says nothing of a dialog.
    pub(super) is_path: bool,
    /// The side that it leads to, if the media of the dialog go through a relay.
    pub(super) side: Option<DialogSide>,
}

/// Makes and reads them.
#[derive(Clone, Copy, Debug)]
pub(super) struct RouteTokens {
    key: HashKey,
    calls: HashKey,
    /// Those of Path, which belong to no dialog.
    paths: FlowTokens,
}

impl RouteTokens {
    /// With the key of all workers and runs.
    pub(super) fn new(key: HashKey) -> RouteTokens {
        let own = key.derive(u64::from_le_bytes(*b"dialogs."));
        RouteTokens {
            key: own.derive(1),
            calls: own.derive(2),
            paths: FlowTokens::new(key),
        }
    }

    /// The user of a Record-Route URI in a request with this Call-ID.
    pub(super) fn write<'b>(
        &self,
        (token, side): (Token, Option<DialogSide>),
        call_id: &[u8],
        buffer: &'b mut [u8; MAX_USER],
    ) -> &'b [u8] {
        let mut signed = [0; SIGNED];
        let (mut flow, mut said) = ([0; FLOW_LEN], [0; 16]);
        let flow = match &token {
            Token::Pass => &[][..],
            Token::Flow(id) | Token::Near(id) | Token::Node(id) => id.write(&mut flow),
            Token::FromNode(from) => {
                said[..8].copy_from_slice(&from.unix_s.to_be_bytes());
                said[8..].copy_from_slice(&from.request.to_be_bytes());
                &said[..]
            }
        };
        let kind = match token {
            Token::Pass => PASS,
            Token::Flow(_) => FLOW,
            Token::Near(_) => NEAR,
            Token::Node(_) => NODE,
            Token::FromNode(_) => FROM_NODE,
        };
        signed[0] = kind | side.map_or(0, |side| side.bits() << SIDE_SHIFT);
        let mut begin = 1;
        if let Some(side) = side {
            begin += SESSION_LEN;
            signed[1..begin].copy_from_slice(&side.session.to_be_bytes());
        }
        let end = begin + flow.len();
        signed[begin..end].copy_from_slice(flow);
        let mac = self.mac(&signed[..end], call_id);
        signed[end..end + MAC_LEN].copy_from_slice(&mac.to_be_bytes());
        buffer[0] = MARK;
        // The buffer has room for the longest.
        let written = URL_SAFE_NO_PAD.encode_slice(&signed[..end + MAC_LEN], &mut buffer[1..]);
        &buffer[..=written.unwrap_or_default()]
    }

    /// The user of a Path URI for this flow.
    pub(super) fn write_path<'b>(
        &self,
        flow: &FlowId,
        buffer: &'b mut [u8; MAX_TOKEN],
    ) -> &'b [u8] {
        self.paths.write(flow, buffer)
    }

    /// The number of a session at a media relay, of the copy with this mark: it differs for each pass of a call through
    /// this server.
    pub(super) fn session(&self, (worker, run): (u16, u32), mark: Mark) -> u32 {
        let worker = worker.to_be_bytes();
        let all = [
            &b"session "[..],
            &worker,
            &run.to_be_bytes(),
            &mark.0.to_be_bytes(),
        ];
        self.calls.mac(&all.concat()) as u32
    }

    /// The hash of a request with this Request-URI: of its method, CSeq and From tag, too.
    pub(super) fn hash(&self, message: &Message<'_>, uri: &[u8]) -> u64 {
        let method = message.method().map_or(&b""[..], Method::as_bytes);
        let number = message.cseq().map_or(0, |cseq| cseq.number).to_be_bytes();
        let from = message.from().ok();
        let tag = from.and_then(|from| from.tag).unwrap_or_default();
        // Neither a method nor a tag has spaces.
        let all = [method, b" ", tag, b" ", &number, uri].concat();
        self.calls.mac(&all)
    }

    fn mac(&self, bytes: &[u8], call_id: &[u8]) -> u64 {
        let mut signed = [0; MAX_SAID + 8];
        let end = bytes.len().min(MAX_SAID);
        signed[..end].copy_from_slice(&bytes[..end]);
        signed[end..end + 8].copy_from_slice(&self.calls.mac(call_id).to_be_bytes());
        self.key.mac(&signed[..end + 8])
    }

    /// What the user of a Route URI says in a request with this Call-ID; `None` if it is not one of ours.
    pub(super) fn read(&self, user: &[u8], call_id: &[u8]) -> Option<Signed> {
        if let [MARK, digits @ ..] = user
            && let Some((token, side)) = self.read_dialog(digits, call_id)
        {
            return Some(Signed {
                token,
                is_path: false,
                side,
            });
        }
        let token = self.paths.read(user).map(Token::Flow)?;
        Some(Signed {
            token,
            is_path: true,
            side: None,
        })
    }

    fn read_dialog(&self, digits: &[u8], call_id: &[u8]) -> Option<(Token, Option<DialogSide>)> {
        // The decoder asks for room for whole groups of digits.
        let mut signed = [0; MAX_USER];
        let len = URL_SAFE_NO_PAD.decode_slice(digits, &mut signed).ok()?;
        let (bytes, mac) = signed.get(..len)?.split_last_chunk::<MAC_LEN>()?;
        if bytes.len() > MAX_SAID || self.mac(bytes, call_id) != u64::from_be_bytes(*mac) {
            return None;
        }
        let (first, mut rest) = bytes.split_first()?;
        let side = match first >> SIDE_SHIFT {
            0 => None,
            bits => {
                let (session, behind) = rest.split_first_chunk::<SESSION_LEN>()?;
                rest = behind;
                Some(DialogSide::of(bits, u32::from_be_bytes(*session))?)
            }
        };
        let token = match first & ((1 << SIDE_SHIFT) - 1) {
            PASS if rest.is_empty() => Token::Pass,
            FLOW => Token::Flow(FlowId::read(rest)?),
            NEAR => Token::Near(FlowId::read(rest)?),
            NODE => Token::Node(FlowId::read(rest)?),
            FROM_NODE => {
                let (unix_s, request) = rest.split_first_chunk::<8>()?;
                Token::FromNode(FromNode {
                    unix_s: u64::from_be_bytes(*unix_s),
                    request: u64::from_be_bytes(request.try_into().ok()?),
                })
            }
            _ => return None,
        };
        Some((token, side))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use sip::flow::{ConnectionKey, Flow, ListenerKey, Transport};

    fn tokens() -> RouteTokens {
        RouteTokens::new(HashKey::new([1; 16]))
    }

    fn all() -> [Token; 5] {
        let flow = |connection, remote: &str| {
            Token::Flow(FlowId {
                worker: 3,
                run: 7,
                flow: Flow {
                    transport: Transport::Tcp,
                    listener: ListenerKey(1),
                    connection,
                    local: "[2001:db8::1]:5060".parse().unwrap(),
                    remote: remote.parse().unwrap(),
                },
            })
        };
        [
            Token::Pass,
            flow(None, "192.0.2.1:5060"),
            flow(Some(ConnectionKey(u64::MAX)), "[2001:db8::2]:5060"),
            match flow(None, "192.0.2.2:5060") {
                Token::Flow(id) => Token::Node(id),
                other => other,
            },
            Token::FromNode(FromNode {
                unix_s: 1_800_000_000,
                request: u64::MAX - 1,
            }),
        ]
    }

    #[test]
    fn a_token_is_read_back_in_its_call_alone() {
        let side = |bits, session| DialogSide::of(bits, session);
        let sides = [None, side(1, 0), side(13, u32::MAX)];
        for (token, side) in all()
            .into_iter()
            .flat_map(|it| sides.map(|side| (it, side)))
        {
            let mut buffer = [0; MAX_USER];
            let user = tokens().write((token, side), b"1@a", &mut buffer);
            let is_path = false;
            let read = Some(Signed {
                token,
                is_path,
                side,
            });
            assert_eq!(tokens().read(user, b"1@a"), read);
            assert_eq!(tokens().read(user, b"2@a"), None);
            let other = RouteTokens::new(HashKey::new([2; 16]));
            assert_eq!(other.read(user, b"1@a"), None);
            let is_user = |byte: &u8| byte.is_ascii_alphanumeric() || b"-_".contains(byte);
            assert!(user.iter().all(is_user), "no escape is needed");
        }
    }

    #[test]
    fn a_changed_token_is_none_of_ours() {
        for token in all() {
            let mut buffer = [0; MAX_USER];
            let side = DialogSide::of(2, 7);
            let user = tokens().write((token, side), b"1@a", &mut buffer);
            let user = user.to_vec();
            for at in 0..user.len() {
                let mut changed = user.clone();
                changed[at] = if changed[at] == b'B' { b'C' } else { b'B' };
                assert_eq!(tokens().read(&changed, b"1@a"), None, "{at}");
                assert_eq!(tokens().read(&user[..at], b"1@a"), None, "{at}");
            }
        }
        assert_eq!(tokens().read(&[b'A'; 1000], b"1@a"), None);
        assert_eq!(tokens().read(b"alice", b"1@a"), None);
    }

    #[test]
    fn the_token_of_a_path_belongs_to_no_call() {
        let [_, Token::Flow(flow), ..] = all() else {
            panic!("a flow");
        };
        let mut buffer = [0; MAX_TOKEN];
        let user = tokens().write_path(&flow, &mut buffer);
        for call in [&b"1@a"[..], b"2@a"] {
            let read = Some(Signed {
                token: Token::Flow(flow),
                is_path: true,
                side: None,
            });
            assert_eq!(tokens().read(user, call), read);
        }
    }
}
