//! The embedding program decides where a request goes that names no user here.

use sip::flow::{Flow, Transport};
use sip::{Message, Mono};
use sip_server::routes::{Call, CallSender, Decision, Table, TrunkChoice, can_reject_with};
use std::borrow::Cow;
use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

/// Decides where a request goes. Called on a worker, so it must not block.
pub type ChooseRoute = dyn Fn(&RouteRequest<'_>) -> RouteChoice + Send + Sync;

/// Where a request goes.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum RouteChoice {
    /// Where [`SipSettings::routes`](super::SipSettings::routes) say.
    Tables,
    /// To these of [`SipSettings::trunks`](super::SipSettings::trunks), one after the other. If none of their addresses
    /// is available, the response is 503.
    Trunks(TrunkChoice),
    /// Nowhere: this code and this reason phrase. A code that [`can_reject_with`](super::routes::can_reject_with)
    /// excludes becomes 500. An empty phrase stands for that of the RFC.
    Reject(u16, String),
}

/// Who has sent a request.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum RouteSender<'a> {
    /// The trunk of this name, which is empty if the trunk has none.
    Trunk(&'a str),
    /// The user here whom From names, such as `alice@example.org`. Empty if From names nobody here, for example because
    /// the user is anonymous. The request is forwarded only after a digest of this user.
    User(String),
    /// Anybody, for a domain that accepts requests from everybody. Such a request cannot go to a trunk.
    Anyone,
}

/// A request that [`RouteHook`] decides about.
#[derive(Debug)]
pub struct RouteRequest<'a> {
    call: &'a Call<'a>,
    called: Box<[u8]>,
    trunk: &'a str,
}

impl<'a> RouteRequest<'a> {
    /// The method, such as `INVITE`.
    #[must_use]
    pub fn method(&self) -> Cow<'a, str> {
        let method = self.call.message.method();
        text(method.map_or(&b""[..], |method| method.as_bytes()))
    }

    /// The Request-URI. For an [alias](super::SipSettings::aliases) it is its address.
    #[must_use]
    pub fn uri(&self) -> Cow<'a, str> {
        text(self.call.uri)
    }

    /// The user part of the Request-URI without escapes; of a telephone number without visual separators.
    #[must_use]
    pub fn called(&self) -> Cow<'_, str> {
        text(&self.called)
    }

    /// The URI in From. Only [`RouteRequest::sender`] says who has sent the request.
    #[must_use]
    pub fn from(&self) -> Cow<'a, str> {
        text(self.call.message.from().map_or(&b""[..], |from| from.uri))
    }

    /// The URI in To.
    #[must_use]
    pub fn to(&self) -> Cow<'a, str> {
        text(self.call.message.to().map_or(&b""[..], |to| to.uri))
    }

    /// The Call-ID.
    #[must_use]
    pub fn call_id(&self) -> Cow<'a, str> {
        text(self.call.message.call_id().unwrap_or_default())
    }

    /// The values of all header fields of this name, in their order. A value may be a list with commas.
    #[must_use]
    pub fn headers(&self, name: &str) -> Vec<Cow<'a, str>> {
        let values = self.call.headers(name);
        values.into_iter().map(text).collect()
    }

    /// Who has sent it.
    #[must_use]
    pub fn sender(&self) -> RouteSender<'a> {
        match self.call.sender {
            CallSender::Trunk(_) => RouteSender::Trunk(self.trunk),
            CallSender::User(b"", b"") => RouteSender::User(String::new()),
            CallSender::User(user, domain) => {
                RouteSender::User(format!("{}@{}", text(user), text(domain)))
            }
            CallSender::Anyone => RouteSender::Anyone,
        }
    }

    /// The address that it came from.
    #[must_use]
    pub fn source(&self) -> SocketAddr {
        self.call.source
    }

    /// The transport by which it came.
    #[must_use]
    pub fn transport(&self) -> Transport {
        self.call.transport
    }
}

fn text(bytes: &[u8]) -> Cow<'_, str> {
    String::from_utf8_lossy(bytes)
}

/// A function of the embedding program that decides where requests go: to trunks, nowhere, or where the routes say.
///
/// The proxy calls it for the requests that [`SipSettings::routes`](super::SipSettings::routes) would apply to. These
/// are outside of dialogs, have a user part in the Request-URI, and are for no user here. It also calls it for each URI
/// of [`SipSettings::forwards`](super::SipSettings::forwards). Then the sender is the user who has not taken the call.
///
/// - It runs on a worker, and must return at once: keep what it needs in memory.
/// - It may be called several times for one request: again with the credentials after a 407, and again when a lookup is
///   complete. So it must not count calls. [`Hooks::set_on_sip_event`](crate::hooks::Hooks::set_on_sip_event) reports
///   them.
/// - Digest, limits of calls, `forbidden_prefixes`, probes and slow start apply as with routes.
/// - [`Previewer`](super::Previewer) calls it, too.
///
/// ```
/// use hairpin_server::sip::routes::{NextHop, TrunkChoice};
/// use hairpin_server::sip::{
///     Domain, Preview, PreviewRequest, Previewer, RouteChoice, RouteHook, RouteSender, SipSettings, Transport,
///     Trunk,
/// };
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let carrier = |name: &str, to: &str| -> Result<Trunk, Box<dyn std::error::Error>> {
///     Ok(Trunk {
///         name: name.to_owned(),
///         to: vec![NextHop::new(to)?],
///         ..Trunk::default()
///     })
/// };
/// let mut sip = SipSettings::default();
/// sip.domains = vec![Domain {
///     name: "example.org".to_owned(),
///     ..Domain::default()
/// }];
/// sip.trunks = vec![
///     carrier("cheap", "sip:192.0.2.7:5060")?,
///     carrier("good", "sip:192.0.2.8:5060")?,
/// ];
/// sip.route_hook = Some(RouteHook::new(|request| {
///     let called = request.called();
///     match called.strip_prefix("+49") {
///         Some(rest) if rest.starts_with("900") => RouteChoice::Reject(603, String::new()),
///         // The carriers require national numbers.
///         Some(rest) if matches!(request.sender(), RouteSender::User(_)) => {
///             RouteChoice::Trunks(TrunkChoice {
///                 user: Some(format!("0{rest}")),
///                 ..TrunkChoice::new(["cheap", "good"])
///             })
///         }
///         _ => RouteChoice::Tables,
///     }
/// }));
///
/// // What a server with these settings does.
/// let previewer = Previewer::new(&sip, &["alice"], &["192.0.2.1:5060".parse()?])?;
/// let previewed = previewer.preview(&PreviewRequest {
///     method: "INVITE",
///     from: "sip:alice@example.org",
///     to: "sip:+4930123@example.org",
///     source: "198.51.100.9:5060".parse()?,
///     transport: Transport::Udp,
///     certificate: None,
///     headers: &[],
///     call_id: "1",
///     draw: 0,
/// })?;
/// assert_eq!(previewed.steps[0], "the program chooses trunks");
/// let Preview::Forwarded(targets) = previewed.outcome else {
///     return Err("it is not forwarded".into());
/// };
/// assert_eq!(targets[0].uri, "sip:030123@192.0.2.7:5060");
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct RouteHook {
    choose: Arc<ChooseRoute>,
    headers: Vec<String>,
}

impl RouteHook {
    /// A hook that calls this function.
    pub fn new(
        choose: impl Fn(&RouteRequest<'_>) -> RouteChoice + Send + Sync + 'static,
    ) -> RouteHook {
        RouteHook {
            choose: Arc::new(choose),
            headers: Vec::new(),
        }
    }

    /// Declares that the function reads header fields of this name. A request that comes back with other values of
    /// declared fields is no loop (RFC 5393 §4.2.1). Other values of fields that are not declared change nothing: the
    /// request gets 482. From, To, the sender, its IP address and its transport always count as declared.
    #[must_use]
    pub fn reads_header(mut self, name: &str) -> RouteHook {
        self.headers.push(name.to_owned());
        self
    }

    /// Adds the values by which the loop check compares two requests, besides the Request-URI.
    pub(super) fn inputs(
        &self,
        message: &Message<'_>,
        (flow, trunk): (&Flow, Option<u16>),
        to: &mut Vec<u8>,
    ) {
        let call = Call {
            message,
            uri: b"",
            sender: trunk.map_or(CallSender::Anyone, CallSender::Trunk),
            source: flow.remote,
            transport: flow.transport,
            draw: 0,
        };
        to.extend_from_slice(&trunk.map_or(0, |trunk| u32::from(trunk) + 1).to_be_bytes());
        let source = match flow.remote.ip() {
            IpAddr::V4(address) => address.to_ipv6_mapped(),
            IpAddr::V6(address) => address,
        };
        to.extend_from_slice(&source.octets());
        to.push(flow.transport as u8);
        for name in ["From", "To"]
            .into_iter()
            .chain(self.headers.iter().map(String::as_str))
        {
            let values = call.headers(name);
            to.extend_from_slice(&(values.len() as u32).to_be_bytes());
            for value in values {
                to.extend_from_slice(&(value.len() as u32).to_be_bytes());
                to.extend_from_slice(value);
            }
        }
    }

    fn choose(&self, table: &Table, call: &Call<'_>) -> RouteChoice {
        // Without a user part, or with one of more than 255 bytes, no route applies.
        let Some(called) = call.called_user() else {
            return RouteChoice::Tables;
        };
        let trunk = match call.sender {
            CallSender::Trunk(number) => table.trunk(number),
            _ => None,
        };
        (self.choose)(&RouteRequest {
            call,
            called,
            trunk: trunk.map_or("", |(trunk, _)| trunk.name.as_str()),
        })
    }
}

impl fmt::Debug for RouteHook {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut fields = f.debug_struct("RouteHook");
        fields
            .field("headers", &self.headers)
            .finish_non_exhaustive()
    }
}

/// Two hooks are equal if they share one function, and read the same header fields.
impl PartialEq for RouteHook {
    fn eq(&self, other: &RouteHook) -> bool {
        Arc::ptr_eq(&self.choose, &other.choose) && self.headers == other.headers
    }
}

impl Eq for RouteHook {}

/// Where a request goes now: the hook decides, if there is one, or the table.
pub(super) fn decide(
    hook: Option<&RouteHook>,
    table: &Table,
    now: Mono,
    call: &Call<'_>,
) -> Decision {
    match hook.map_or(RouteChoice::Tables, |hook| hook.choose(table, call)) {
        RouteChoice::Tables => table.decide(now, call),
        RouteChoice::Trunks(choice) => table.decide_choice(now, call, &choice),
        RouteChoice::Reject(code, reason) => rejection(code, &reason),
    }
}

/// The same, with each step of the decision as a sentence.
pub(super) fn explain(
    hook: Option<&RouteHook>,
    table: &Table,
    now: Mono,
    call: &Call<'_>,
    mut say: impl FnMut(String),
) -> Decision {
    match hook.map_or(RouteChoice::Tables, |hook| hook.choose(table, call)) {
        RouteChoice::Tables => table.explain(now, call, say),
        RouteChoice::Trunks(choice) => {
            say("the program chooses trunks".to_owned());
            table.explain_choice(now, call, &choice, say)
        }
        RouteChoice::Reject(code, reason) => {
            let rejection = rejection(code, &reason);
            if let Decision::Reject(code, reason) = &rejection {
                let response = format!("{code} {reason}");
                say(format!(
                    "the program rejects it: the response is {}",
                    response.trim_end()
                ));
            }
            rejection
        }
    }
}

/// A reason phrase is one line (RFC 3261 §7.2).
fn rejection(code: u16, reason: &str) -> Decision {
    let is_error = can_reject_with(code);
    let reason: String = reason.chars().filter(|it| !it.is_control()).collect();
    Decision::Reject(if is_error { code } else { 500 }, reason.into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use sip::Spans;
    use sip::flow::ListenerKey;

    fn inputs(hook: &RouteHook, headers: &str, port: u16) -> Vec<u8> {
        let text = format!(
            "INVITE sip:+4930@example.com SIP/2.0\r\nVia: SIP/2.0/UDP h;branch=z9hG4bK1\r\n\
             From: <sip:alice@example.com>;tag=1\r\nTo: <sip:+4930@example.com>\r\nCall-ID: 1\r\nCSeq: 1 INVITE\r\n\
             Max-Forwards: 70\r\n{headers}Content-Length: 0\r\n\r\n"
        );
        let mut spans = Spans::new();
        let message = Message::parse(text.as_bytes(), &mut spans).unwrap();
        let flow = Flow {
            transport: Transport::Udp,
            listener: ListenerKey(0),
            connection: None,
            local: SocketAddr::from(([127, 0, 0, 1], 5060)),
            remote: SocketAddr::from(([127, 0, 0, 2], port)),
        };
        let mut to = Vec::new();
        hook.inputs(&message, (&flow, None), &mut to);
        to
    }

    #[test]
    fn only_header_fields_that_the_hook_reads_tell_a_spiral_from_a_loop_rfc5393_4_2_1() {
        let hook = RouteHook::new(|_| RouteChoice::Tables).reads_header("x-region");
        let north = inputs(&hook, "X-Region: north\r\n", 5060);
        assert_eq!(
            north,
            inputs(&hook, "X-Region: north\r\nX-Hops: 1\r\n", 5070)
        );
        assert_ne!(north, inputs(&hook, "X-Region: south\r\n", 5060));
        assert_ne!(north, inputs(&hook, "", 5060));
    }

    #[test]
    fn a_rejection_has_an_error_code_and_a_reason_of_one_line_rfc3261_7_2() {
        let rejected = |code, reason: &str| match rejection(code, reason) {
            Decision::Reject(code, reason) => (code, reason.into_string()),
            other => panic!("{other:?}"),
        };
        assert_eq!(
            rejected(603, "No\r\nEvil: 1"),
            (603, "NoEvil: 1".to_owned())
        );
        for code in [0, 200, 302, 399, 401, 405, 407, 423, 700] {
            assert_eq!(rejected(code, "").0, 500);
        }
    }
}
