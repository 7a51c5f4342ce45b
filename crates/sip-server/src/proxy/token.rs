//! The token in the user part of a Record-Route URI. It names the flow by which a request with this URI in Route
//! leaves, and proves that this server wrote it for this dialog.
//!
//! ```text
//! d  base64 of: side (4 bits)  has a phone (1 bit)  kind (3 bits)
//!               session (32 bits), unless side is 0
//!               address of record (64 bits)  phone (16 bits)  time (16 bits), if it has a phone
//!               flow, if kind is 1, 2 or 3; time and hash of the request, if kind is 4; trunk (32 bits), if kind is 5
//!               MAC over all of this and the Call-ID (64 bits)
//! ```
//!
//! The side is 0 unless the media of the call go through a relay. A token with a phone says whose flow it names, so
//! that requests find the phone at a later flow ([`super::moved`]). It has keyed hashes of the address of record and of
//! the phone. These hashes differ in each call, so they do not show that two tokens belong to one user. The flow is
//! readable, and shows the address of the phone.
//!
//! So the proxy keeps nothing per dialog, and without the token of a dialog nobody can send a request within it.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use sip::engine::Mark;
use sip::{HashKey, Message, Method};

use super::media::DialogSide;
use crate::AorKey;
use crate::flow::{FLOW_LEN, FlowId, FlowTokens, MAX_TOKEN, TokenKeys};

const MARK: u8 = b'd';
const PASS: u8 = 0;
const FLOW: u8 = 1;
const NEAR: u8 = 2;
const NODE: u8 = 3;
const FROM_NODE: u8 = 4;
const TRUNK: u8 = 5;
/// Beside the kind, if the token has a phone.
const HAS_PHONE: u8 = 8;
/// The side is above the kind.
const SIDE_SHIFT: u32 = 4;
const SESSION_LEN: usize = 4;
const PHONE_LEN: usize = 8 + 2 + 2;
/// The unit of the time in a token, in seconds.
const TIME_UNIT_S: u64 = 16;
const MAC_LEN: usize = 8;
/// Octets before the MAC.
const MAX_SAID: usize = 1 + SESSION_LEN + PHONE_LEN + FLOW_LEN;
const SIGNED: usize = MAX_SAID + MAC_LEN;
/// Characters of the longest user part.
pub(super) const MAX_USER: usize = 1 + SIGNED.div_ceil(3) * 4;

/// Whether a user part has the form of a token: `d` and base64url of more than 8 bytes, or base64url of at least 29
/// bytes. Nothing checks the MAC.
pub(super) fn has_form_of_token(user: &[u8]) -> bool {
    // A token of Path has a flow: at least 21 bytes.
    const SHORTEST_PATH: usize = 21 + MAC_LEN;
    let mut bytes = [0; MAX_USER];
    let mut decoded = |digits| {
        URL_SAFE_NO_PAD
            .decode_slice(digits, &mut bytes)
            .unwrap_or(0)
    };
    match user {
        [MARK, digits @ ..] if decoded(digits) > MAC_LEN => true,
        user => decoded(user) >= SHORTEST_PATH,
    }
}

/// What the user part of a URI of this server says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Token {
    /// The request goes where its Request-URI, or the next Route, leads.
    Pass,
    /// The same, but to no trunk other than the one of this group ([`trunk_group`]).
    Trunk([u8; 4]),
    /// The request uses this flow.
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

/// The phone at the end of a flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Phone {
    /// Of its address of record.
    pub(super) aor: AorKey,
    /// What is known of the phone itself ([`RouteTokens::identity`]); 0 if nothing is known.
    pub(super) identity: u16,
    /// When the request came that began the dialog ([`Phone::time_of`]).
    pub(super) since: u16,
}

impl Phone {
    /// A Unix time as a token has it. It begins anew after 12 days.
    pub(super) const fn time_of(unix_s: u64) -> u16 {
        (unix_s / TIME_UNIT_S) as u16
    }

    /// The Unix time, rounded down to 16 s. Of the times that are 12 days apart, it is the latest that is not in the
    /// future.
    pub(super) const fn since(&self, now_unix_s: u64) -> u64 {
        let now = now_unix_s / TIME_UNIT_S;
        let age = (now as u16).wrapping_sub(self.since) as u64;
        now.saturating_sub(age) * TIME_UNIT_S
    }
}

/// What a token of a dialog says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct TokenContent {
    pub(super) token: Token,
    /// The side that it leads to, if the media of the dialog go through a relay.
    pub(super) side: Option<DialogSide>,
    /// The phone that it leads to, if that is known.
    pub(super) phone: Option<Phone>,
}

impl From<Token> for TokenContent {
    fn from(token: Token) -> TokenContent {
        TokenContent {
            token,
            side: None,
            phone: None,
        }
    }
}

/// A token that was read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Signed {
    pub(super) token: Token,
    /// It is of a Path, and says nothing of a dialog.
    pub(super) is_path: bool,
    /// The side that it leads to, if the media of the dialog go through a relay.
    pub(super) side: Option<DialogSide>,
    /// The phone that it leads to, if that is known.
    pub(super) phone: Option<Phone>,
}

impl Signed {
    /// Whether it shows that the request belongs to a dialog through this server.
    pub(super) const fn is_of_dialog(&self) -> bool {
        !self.is_path && !matches!(self.token, Token::FromNode(_))
    }
}

/// The identifier of a trunk's group of addresses ([`PeerGroups`](sip::dispatch::PeerGroups)) in tokens, never zeros. It
/// depends on the name only, because the order of trunks in the configuration may change while a call lasts. It is a
/// hash, so two names may have the same identifier.
#[must_use]
pub fn trunk_group(name: &[u8]) -> [u8; 4] {
    // The key is known, and need not be secret: the operator chooses the names, and a MAC covers the token.
    (HashKey::new([0; 16]).mac(name) as u32)
        .max(1)
        .to_be_bytes()
}

/// No trunk has this group.
pub(super) const NO_TRUNK: [u8; 4] = [0; 4];

/// Makes and reads tokens.
#[derive(Clone, Copy, Debug)]
pub(super) struct RouteTokens {
    macs: TokenKeys,
    calls: HashKey,
    phones: HashKey,
    /// The tokens of Path, which belong to no dialog.
    paths: FlowTokens,
}

impl RouteTokens {
    /// With the key of all workers and runs.
    pub(super) fn new(key: HashKey) -> RouteTokens {
        let keys = TokenKeys::new(key);
        let own = of_dialogs(key);
        RouteTokens {
            macs: macs(keys),
            calls: own.derive(2),
            phones: own.derive(3),
            paths: FlowTokens::new(keys),
        }
    }

    /// Signs with these keys from now on. The hashes in tokens stay as they are, because they are compared with those
    /// of later requests.
    pub(super) fn set_keys(&mut self, keys: TokenKeys) {
        self.macs = macs(keys);
        self.paths = FlowTokens::new(keys);
    }

    /// The user of a Record-Route URI in a request with this Call-ID.
    pub(super) fn write<'b>(
        &self,
        said: &TokenContent,
        call_id: &[u8],
        buffer: &'b mut [u8; MAX_USER],
    ) -> &'b [u8] {
        let call = self.calls.mac(call_id);
        let mut signed = [0; SIGNED];
        let (mut flow, mut of_node) = ([0; FLOW_LEN], [0; 16]);
        let (kind, flow) = match &said.token {
            Token::Pass => (PASS, &[][..]),
            Token::Trunk(group) => (TRUNK, &group[..]),
            Token::Flow(id) => (FLOW, id.write(&mut flow)),
            Token::Near(id) => (NEAR, id.write(&mut flow)),
            Token::Node(id) => (NODE, id.write(&mut flow)),
            Token::FromNode(from) => {
                of_node[..8].copy_from_slice(&from.unix_s.to_be_bytes());
                of_node[8..].copy_from_slice(&from.request.to_be_bytes());
                (FROM_NODE, &of_node[..])
            }
        };
        let phone = said.phone.map_or(0, |_| HAS_PHONE);
        signed[0] = kind | phone | said.side.map_or(0, |side| side.bits() << SIDE_SHIFT);
        let mut end = 1;
        let mut put = |bytes: &[u8]| {
            signed[end..end + bytes.len()].copy_from_slice(bytes);
            end += bytes.len();
        };
        if let Some(side) = said.side {
            put(&side.session.to_be_bytes());
        }
        if let Some(phone) = said.phone {
            put(&(phone.aor.0 ^ self.mask(call, flow)).to_be_bytes());
            put(&phone.identity.to_be_bytes());
            put(&phone.since.to_be_bytes());
        }
        put(flow);
        let (behind, with_call) = with_call(&signed[..end], call);
        let mac = self.macs.mac(&with_call[..behind]);
        signed[end..end + MAC_LEN].copy_from_slice(&mac.to_be_bytes());
        buffer[0] = MARK;
        // The buffer has room for the longest.
        let written = URL_SAFE_NO_PAD.encode_slice(&signed[..end + MAC_LEN], &mut buffer[1..]);
        &buffer[..=written.unwrap_or_default()]
    }

    /// What hides the address of record in a token. It differs between the two sides of a call, who see both tokens.
    fn mask(&self, call: u64, flow: &[u8]) -> u64 {
        self.phones.mac(&[&call.to_be_bytes(), flow].concat())
    }

    /// What a token of the call with this Call-ID says of a phone with this hash, which is not 0.
    pub(super) fn identity(&self, hash: u64, call_id: &[u8]) -> u16 {
        let call = self.calls.mac(call_id).to_be_bytes();
        let mac = self.phones.mac(&[call, hash.to_be_bytes()].concat()) as u16;
        mac.max(1)
    }

    /// The user part of a Path URI for this flow.
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

    /// What the user part of a Route URI says in a request with this Call-ID; `None` if it is no token of this server.
    pub(super) fn read(&self, user: &[u8], call_id: &[u8]) -> Option<Signed> {
        if let [MARK, digits @ ..] = user
            && let Some(TokenContent { token, side, phone }) = self.read_dialog(digits, call_id)
        {
            return Some(Signed {
                token,
                is_path: false,
                side,
                phone,
            });
        }
        let token = self.paths.read(user).map(Token::Flow)?;
        Some(Signed {
            token,
            is_path: true,
            side: None,
            phone: None,
        })
    }

    fn read_dialog(&self, digits: &[u8], call_id: &[u8]) -> Option<TokenContent> {
        // The decoder asks for room for whole groups of digits.
        let mut signed = [0; MAX_USER];
        let len = URL_SAFE_NO_PAD.decode_slice(digits, &mut signed).ok()?;
        let (bytes, mac) = signed.get(..len)?.split_last_chunk::<MAC_LEN>()?;
        let call = self.calls.mac(call_id);
        let (behind, with_call) = with_call(bytes, call);
        let is_genuine = |mac| self.macs.is_mac(mac, &with_call[..behind]);
        if bytes.len() > MAX_SAID || !is_genuine(u64::from_be_bytes(*mac)) {
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
        let phone = match first & HAS_PHONE {
            0 => None,
            _ => {
                let (aor, behind) = rest.split_first_chunk::<8>()?;
                let (identity, behind) = behind.split_first_chunk::<2>()?;
                let (since, behind) = behind.split_first_chunk::<2>()?;
                rest = behind;
                Some(Phone {
                    aor: AorKey(u64::from_be_bytes(*aor) ^ self.mask(call, behind)),
                    identity: u16::from_be_bytes(*identity),
                    since: u16::from_be_bytes(*since),
                })
            }
        };
        let token = match first & (HAS_PHONE - 1) {
            PASS if rest.is_empty() => Token::Pass,
            FLOW => Token::Flow(FlowId::read(rest)?),
            NEAR => Token::Near(FlowId::read(rest)?),
            NODE => Token::Node(FlowId::read(rest)?),
            TRUNK => Token::Trunk(rest.try_into().ok()?),
            FROM_NODE => {
                let (unix_s, request) = rest.split_first_chunk::<8>()?;
                Token::FromNode(FromNode {
                    unix_s: u64::from_be_bytes(*unix_s),
                    request: u64::from_be_bytes(request.try_into().ok()?),
                })
            }
            _ => return None,
        };
        Some(TokenContent { token, side, phone })
    }
}

fn of_dialogs(key: HashKey) -> HashKey {
    key.derive(u64::from_le_bytes(*b"dialogs."))
}

fn macs(keys: TokenKeys) -> TokenKeys {
    keys.map(|key| of_dialogs(key).derive(1))
}

/// What a MAC covers, and its length: the octets of a token, and the MAC of the Call-ID.
fn with_call(bytes: &[u8], call: u64) -> (usize, [u8; MAX_SAID + 8]) {
    let mut covered = [0; MAX_SAID + 8];
    let end = bytes.len().min(MAX_SAID);
    covered[..end].copy_from_slice(&bytes[..end]);
    covered[end..end + 8].copy_from_slice(&call.to_be_bytes());
    (end + 8, covered)
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

    const PHONE: Phone = Phone {
        aor: AorKey(0x0102_0304_0506_0708),
        identity: 9,
        since: u16::MAX,
    };

    #[test]
    fn a_token_is_read_back_in_its_call_alone() {
        let side = |bits, session| DialogSide::of(bits, session);
        let sides = [None, side(1, 0), side(13, u32::MAX)];
        let said = |token| {
            let phones = [None, Some(PHONE)];
            let both = sides
                .into_iter()
                .flat_map(move |side| phones.map(|it| (side, it)));
            both.map(move |(side, phone)| TokenContent { token, side, phone })
        };
        for said in all().into_iter().flat_map(said) {
            let mut buffer = [0; MAX_USER];
            let user = tokens().write(&said, b"1@a", &mut buffer);
            let TokenContent { token, side, phone } = said;
            let is_path = false;
            let read = Some(Signed {
                token,
                is_path,
                side,
                phone,
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
            let said = TokenContent {
                token,
                side: DialogSide::of(2, 7),
                phone: Some(PHONE),
            };
            let user = tokens().write(&said, b"1@a", &mut buffer);
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
                phone: None,
            });
            assert_eq!(tokens().read(user, call), read);
        }
    }

    #[test]
    fn a_token_is_valid_in_its_own_epoch_and_in_the_ones_around_it() {
        let epoch = |number: u8| {
            let around = [number - 1, number, number + 1].map(|it| HashKey::new([it; 16]));
            let mut tokens = tokens();
            tokens.set_keys(TokenKeys::of_epochs(around));
            tokens
        };
        let phone = Some(PHONE);
        for token in all() {
            let (side, mut buffer) = (None, [0; MAX_USER]);
            let said = TokenContent { token, side, phone };
            let user = epoch(5).write(&said, b"1@a", &mut buffer).to_vec();
            let expected = Signed {
                token,
                is_path: false,
                side,
                phone,
            };
            for (number, is_valid) in [(3, false), (4, true), (5, true), (6, true), (7, false)] {
                let read = epoch(number).read(&user, b"1@a");
                assert_eq!(read, is_valid.then_some(expected), "{number}");
            }
        }
        // The same phone has the same hash in all epochs.
        assert_eq!(epoch(5).identity(7, b"1@a"), epoch(8).identity(7, b"1@a"));
    }

    #[test]
    fn the_hashes_in_the_tokens_of_two_calls_differ() {
        let written = |call: &[u8]| {
            let identity = tokens().identity(7, call);
            let said = TokenContent {
                phone: Some(Phone { identity, ..PHONE }),
                ..Token::Pass.into()
            };
            let mut buffer = [0; MAX_USER];
            let user = tokens().write(&said, call, &mut buffer).to_vec();
            URL_SAFE_NO_PAD.decode(&user[1..]).unwrap()
        };
        let (one, other) = (written(b"1@a"), written(b"2@a"));
        let aor = PHONE.aor.0.to_be_bytes();
        assert!(!one.windows(8).any(|bytes| bytes == aor));
        // Behind the first octet: the address of record and the phone.
        assert_ne!(one[1..5], other[1..5]);
        assert_ne!(one[5..9], other[5..9]);
        assert_ne!(one[9..11], other[9..11]);
    }

    #[test]
    fn the_time_of_a_token_is_known_for_twelve_days() {
        let begun = 1_800_000_007;
        let since = Phone::time_of(begun);
        let phone = Phone { since, ..PHONE };
        for age in [0, 1, 9, 3_600, 12 * 86_400] {
            let known = phone.since(begun + age);
            assert!((begun - 16..=begun).contains(&known), "{age}: {known}");
        }
        // A clock that was set back.
        assert!(phone.since(begun - 100) <= begun - 100);
    }
}
