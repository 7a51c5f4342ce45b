//! Who may send, where bindings are, and who the sender is: as the tests want it.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};

use sip::flow::{Flow, ListenerKey, Transport};
use sip::header::Authorization;
use sip::uri::SipUri;
use sip::{HashKey, Host, Message, Mono, Now};
use sip_server::calls::{
    Bye, CallEnd, CallRecord, Counted, Counters, DialogId, DialogLifetime, Dialogs, EndedBy,
    Exceeded, Limit, Numbers, Ticket,
};
use sip_server::flow::FlowId;
use sip_server::location::{Binding, NO_Q, NewBinding};
use sip_server::proxy::{
    AtNodes, Authenticated, Authentication, BindingsLocation, Calls, Denied, Inbound, IsUser,
    LookedUp, Lookup, NewCall, PhoneNames, PushConfig, PushRequest, Pushes, Routing, SessionTimer,
};
use sip_server::routes::Table;
use sip_server::{Aor, AorHash, AorKey};
use std::time::Duration;

pub(crate) const DOMAIN: &str = "example.com";
const CHALLENGE: &[u8] = b"Proxy-Authenticate: Test realm=\"example.com\"\r\n";

/// A policy that does what its fields say.
pub(crate) struct TestPolicy {
    pub(crate) inbound: Inbound,
    pub(crate) bindings: BTreeMap<Vec<u8>, Vec<Binding>>,
    pub(crate) trunks: BTreeSet<IpAddr>,
    pub(crate) own: Vec<SocketAddr>,
    /// The location is asked elsewhere.
    pub(crate) is_location_pending: bool,
    /// Credentials are checked elsewhere.
    pub(crate) is_authentication_pending: bool,
    /// Another worker has all bindings.
    pub(crate) elsewhere: Option<u16>,
    /// Contacts whose flows have failed.
    pub(crate) failed: Vec<String>,
    /// Times that credentials were checked.
    pub(crate) checks: u32,
    /// Calls are counted.
    pub(crate) calls: Option<CallPolicy>,
    /// The records of ended calls, as text.
    pub(crate) ended_calls: Vec<String>,
    pub(crate) table: Table,
    pub(crate) draws: u64,
    /// How often the inputs of routes were asked for.
    pub(crate) inputs_asked: std::cell::Cell<u32>,
    /// The result of `is_user` for users without bindings.
    pub(crate) other_users: IsUser,
    /// At all trunks.
    pub(crate) credentials: Option<sip_server::routes::Credentials>,
    pub(crate) forwards: sip_server::routes::Forwards,
    pub(crate) push: Option<PushConfig>,
    /// Whom the proxy has woken, and how.
    pub(crate) pushes: Vec<(String, sip_server::push::PushParams)>,
    pub(crate) can_push: bool,
    /// The other nodes that have bindings of bob, and how often that was asked.
    pub(crate) nodes: AtNodes,
    pub(crate) has_nodes: bool,
    /// The address by which the proxy sends to itself.
    pub(crate) own_hop: Option<sip_server::proxy::NodeHop>,
    /// Other nodes are accepted over TLS only.
    pub(crate) only_tls: bool,
    pub(crate) nodes_asked: u32,
    /// Tokens have phones.
    pub(crate) follows_phones: bool,
    /// Phones may have other flows than at the beginning of a dialog.
    pub(crate) have_moved: bool,
}

/// Limits of the calls of each user.
#[derive(Default)]
pub(crate) struct CallPolicy {
    pub(crate) limit: Limit,
    pub(crate) timer: Option<SessionTimer>,
    pub(crate) numbers: Numbers,
    pub(crate) users: Counters<Vec<u8>>,
    pub(crate) dialogs: Dialogs,
    pub(crate) records: bool,
}

impl CallPolicy {
    pub(crate) fn calls_of(&self, user: &str) -> u32 {
        self.users.calls(&user.as_bytes().to_vec())
    }
}

fn lifetime(session: Option<Duration>) -> DialogLifetime {
    DialogLifetime {
        session,
        most: Duration::from_secs(3600),
    }
}

impl Calls for TestPolicy {
    fn counts_calls(&self) -> bool {
        self.calls.is_some()
    }

    fn session_timer(&self) -> Option<SessionTimer> {
        self.calls.as_ref()?.timer
    }

    fn admit(&mut self, now: Mono, call: &NewCall<'_>) -> Result<Vec<Ticket>, Denied> {
        let (Some(calls), Some(user)) = (&self.calls, call.user) else {
            return Ok(Vec::new());
        };
        if call.is_forbidden(&calls.numbers) {
            return Err(Denied::Number);
        }
        if call.message.method() != Some(sip::Method::Invite) {
            return Ok(Vec::new());
        }
        match calls.users.begin(now, &user.to_vec(), calls.limit) {
            Ok(ticket) => Ok(vec![ticket]),
            Err(Exceeded::Concurrent) => Err(Denied::Concurrent),
            Err(Exceeded::Rate) => Err(Denied::Rate),
        }
    }

    fn answered(
        &mut self,
        now: Mono,
        dialog: DialogId,
        session: Option<Duration>,
        counted: Counted,
    ) {
        let earlier = self.calls.as_ref();
        let earlier =
            earlier.and_then(|it| it.dialogs.begin(now, dialog, lifetime(session), counted));
        if let Some(record) = earlier {
            self.call_ended(now, &record, EndedBy::Expiry.into());
        }
    }

    fn refreshed(&mut self, now: Mono, dialog: DialogId, session: Option<Duration>) {
        if let Some(calls) = &self.calls {
            calls
                .dialogs
                .refresh(now, dialog, lifetime(session), |_| {});
        }
    }

    fn ended(&mut self, dialog: DialogId, bye: &Bye) -> Option<Box<CallRecord>> {
        self.calls.as_ref()?.dialogs.end(dialog, bye)
    }

    fn records_calls(&self) -> bool {
        self.calls.as_ref().is_some_and(|calls| calls.records)
    }

    fn call_ended(&mut self, now: Mono, record: &CallRecord, end: CallEnd<'_>) {
        let line = record.line(now);
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let (rang, answered) = (line.rang.is_some(), line.answered.is_some());
        let (source, target) = (text(line.source), text(line.target));
        let line = format!(
            "{} {source}>{target} rang {rang} answered {answered} tried {} by {}",
            line.code,
            line.tried,
            end.by.name()
        );
        let line = match line_of_failures(record, now) {
            failed if failed.is_empty() => line,
            failed => format!("{line} failed [{failed}]"),
        };
        let line = match end.reason {
            "" => line,
            reason => format!("{line} ({reason})"),
        };
        self.ended_calls.push(line);
    }
}

/// The attempts that have failed, if a trunk is among them.
fn line_of_failures(record: &CallRecord, now: Mono) -> String {
    let failed = String::from_utf8_lossy(record.line(now).failed).into_owned();
    match failed.contains(':') {
        true => failed,
        false => String::new(),
    }
}

impl Pushes for TestPolicy {
    fn push_config(&self) -> Option<PushConfig> {
        self.push.clone()
    }

    fn push(&mut self, request: &PushRequest<'_>) -> bool {
        let aor = String::from_utf8_lossy(request.aor.as_bytes()).into_owned();
        self.pushes.push((aor, request.params.clone()));
        self.can_push
    }
}

impl TestPolicy {
    pub(crate) fn new(own: SocketAddr) -> TestPolicy {
        TestPolicy {
            inbound: Inbound::Known,
            bindings: BTreeMap::new(),
            trunks: BTreeSet::new(),
            own: vec![own],
            is_location_pending: false,
            is_authentication_pending: false,
            elsewhere: None,
            failed: Vec::new(),
            checks: 0,
            ended_calls: Vec::new(),
            calls: None,
            table: Table::default(),
            other_users: IsUser::No,
            draws: 0,
            inputs_asked: std::cell::Cell::new(0),
            credentials: None,
            forwards: sip_server::routes::Forwards::default(),
            push: None,
            pushes: Vec::new(),
            can_push: true,
            nodes: AtNodes::Known(Vec::new()),
            has_nodes: true,
            own_hop: None,
            only_tls: false,
            nodes_asked: 0,
            follows_phones: true,
            have_moved: false,
        }
    }

    /// A user who exists and has no binding.
    pub(crate) fn user(&mut self, user: &str) -> &mut Vec<Binding> {
        let aor = format!("{user}@{DOMAIN}").into_bytes();
        self.bindings.entry(aor).or_default()
    }

    pub(crate) fn bind(&mut self, user: &str, contact: &Contact) {
        let binding = contact.binding();
        self.user(user).push(binding);
    }
}

/// A contact to be bound.
#[derive(Clone, Debug, Default)]
pub(crate) struct Contact {
    pub(crate) uri: String,
    pub(crate) path: String,
    pub(crate) flow: Option<FlowId>,
    pub(crate) q: Option<u16>,
    pub(crate) instance: String,
    pub(crate) reg_id: u32,
    pub(crate) updated: u64,
    /// The Call-ID of its REGISTER requests.
    pub(crate) call_id: String,
}

impl Contact {
    pub(crate) fn at(uri: &str) -> Contact {
        Contact {
            uri: uri.to_owned(),
            ..Contact::default()
        }
    }

    /// The name of its phone at other nodes.
    pub(crate) fn phone(&self) -> u64 {
        PhoneNames::new(crate::node::key()).of(&self.binding())
    }

    fn binding(&self) -> Binding {
        let params = match &self.instance[..] {
            "" => String::new(),
            instance => format!(";+sip.instance=\"<{instance}>\""),
        };
        Binding::new(&NewBinding {
            uri: self.uri.as_bytes(),
            params: params.as_bytes(),
            instance: self.instance.as_bytes(),
            call_id: match &self.call_id[..] {
                "" => b"1@r",
                call_id => call_id.as_bytes(),
            },
            cseq: 1,
            path: self.path.as_bytes(),
            agent: b"",
            flow: self.flow,
            q: self.q.unwrap_or(NO_Q),
            reg_id: self.reg_id,
            gruu: 0,
            expires: Mono::NEVER,
            updated: Mono(self.updated),
        })
        .unwrap()
    }
}

impl Routing for TestPolicy {
    fn accepts_node(&self, flow: &Flow) -> bool {
        self.has_nodes && (!self.only_tls || flow.transport == Transport::Tls)
    }

    fn domain(&self, host: Host<'_>) -> Option<Inbound> {
        (host == Host::new(DOMAIN.as_bytes()).unwrap()).then_some(self.inbound)
    }

    fn aor(&self, uri: &SipUri<'_>) -> Option<Aor> {
        self.domain(uri.host)?;
        Aor::of(uri, DOMAIN.as_bytes())
    }

    fn is_own(&self, host: Host<'_>, port: Option<u16>) -> bool {
        let port = port.unwrap_or(5060);
        let mut own = self.own.iter();
        own.any(|own| host.ip() == Some(own.ip()) && port == own.port())
    }

    fn is_trunk(&self, flow: &Flow) -> bool {
        self.trunks.contains(&flow.remote.ip())
    }

    fn is_trunk_host(&self, host: Host<'_>) -> bool {
        host.ip().is_some_and(|ip| self.trunks.contains(&ip))
    }

    fn listener_at(&self, local: SocketAddr) -> Option<ListenerKey> {
        self.own.contains(&local).then_some(ListenerKey(0))
    }
}

impl Lookup for TestPolicy {
    fn place(&mut self, uri: &SipUri<'_>) -> BindingsLocation {
        match (self.elsewhere, self.aor(uri)) {
            (Some(worker), Some(_)) => BindingsLocation::Elsewhere(worker),
            (None, Some(aor)) => BindingsLocation::Here(aor, None),
            (_, None) => BindingsLocation::Nowhere,
        }
    }

    fn find(&mut self, _now: Now, aor: &Aor) -> LookedUp<'_> {
        match (self.is_location_pending, self.bindings.get(aor.as_bytes())) {
            (true, _) => LookedUp::Pending,
            (false, Some(bindings)) => LookedUp::Known(bindings),
            (false, None) => LookedUp::Unknown,
        }
    }

    fn nodes(&mut self, _now: Now, aor: &Aor) -> AtNodes {
        self.nodes_asked += 1;
        match aor.user() {
            Some(b"bob") => self.nodes.clone(),
            _ => AtNodes::Known(Vec::new()),
        }
    }

    fn phone_key(&self, aor: &Aor) -> Option<AorKey> {
        let key = AorHash::new(HashKey::new([5; 16])).of(aor);
        self.follows_phones.then_some(key)
    }

    fn moved_phone(&mut self, key: AorKey, _since_unix_s: u64) -> BindingsLocation {
        let aors = self.bindings.keys();
        let mut aors = aors.filter_map(|aor| Aor::from_canonical(aor));
        let aor = aors.find(|aor| self.phone_key(aor) == Some(key));
        match (self.have_moved, self.elsewhere, aor) {
            (false, ..) | (true, None, None) => BindingsLocation::Nowhere,
            (true, Some(worker), _) => BindingsLocation::Elsewhere(worker),
            (true, None, Some(aor)) => BindingsLocation::Here(aor, None),
        }
    }

    fn flow_failed(&mut self, _now: Now, aor: &Aor, flow: &FlowId) {
        let Some(bindings) = self.bindings.get_mut(aor.as_bytes()) else {
            return;
        };
        let failed = &mut self.failed;
        bindings.retain(|binding| {
            let has_failed = binding.flow().as_ref() == Some(flow);
            if has_failed {
                failed.push(String::from_utf8_lossy(binding.uri()).into_owned());
            }
            !has_failed
        });
    }
}

/// The user of `Proxy-Authorization: Test name`.
const USERS: [&str; 3] = ["alice", "bob", "carol"];

impl Authentication for TestPolicy {
    fn authenticate(
        &mut self,
        _now: Now,
        request: &Message<'_>,
        _flow: &Flow,
    ) -> Authenticated<'_> {
        self.checks += 1;
        if self.is_authentication_pending {
            return Authenticated::Pending;
        }
        let credentials = request.authorizations(sip::HeaderKind::ProxyAuthorization);
        let credentials = credentials.filter_map(Result::ok);
        let ours = credentials.filter(|it| it.scheme == b"Test").last();
        let user = ours.and_then(|it| {
            let name = it.params.get(b"user")?;
            USERS.iter().find(|user| user.as_bytes() == name)
        });
        match (user, ours) {
            (Some(user), _) => Authenticated::User(user.as_bytes()),
            (None, Some(_)) => Authenticated::Bad("Unknown User"),
            (None, None) => Authenticated::Challenge(CHALLENGE),
        }
    }

    fn owns(&self, user: &[u8], aor: &Aor) -> bool {
        aor.user() == Some(user)
    }

    fn is_for_us(&self, credentials: &Authorization<'_>) -> bool {
        credentials.scheme == b"Test"
    }
}
