//! Where calls go that users do not take, as an administrator writes it.

use server::sip::routes::Forward;

use super::diagnostics::{Diagnostic, Report};
use super::node::Node;
use super::schema::Settings;
use super::setting::{FromText, List, Mistake, Seconds, Setting};
use super::sip_domains::{self, Host};
use super::sip_routes::User;
use super::source::{Located, Location};
use super::table::{self, Table};

/// One forward, each value with its place.
#[derive(Clone, Debug, Default)]
pub(crate) struct RawForward {
    users: List<User>,
    domains: List<Host>,
    on_busy: Option<Located<ForwardTarget>>,
    on_no_answer: Option<Located<ForwardTarget>>,
    on_unreachable: Option<Located<ForwardTarget>>,
    on_not_registered: Option<Located<ForwardTarget>>,
    ring_time: Option<RingTime>,
}

type RingTime = Seconds<1, 180>;

const FIELDS: [&str; 7] = [
    "users",
    "domains",
    "on_busy",
    "on_no_answer",
    "on_unreachable",
    "on_not_registered",
    "ring_time",
];

const EXAMPLE: &str =
    "write it like { users = [\"alice\"], on_busy = \"sip:voicemail@192.0.2.5\" }";

impl Setting for RawForward {
    fn read(node: &Node<'_>, report: &mut Report) -> Option<Self> {
        table::read(node, report)
    }

    fn write(&self, reveal: bool) -> String {
        fn to(to: &Option<Located<ForwardTarget>>) -> Option<&ForwardTarget> {
            to.as_ref().map(|to| &to.value)
        }
        table::Writer::new(reveal)
            .some("users", &self.users)
            .some("domains", &self.domains)
            .one("on_busy", to(&self.on_busy))
            .one("on_no_answer", to(&self.on_no_answer))
            .one("on_unreachable", to(&self.on_unreachable))
            .one("on_not_registered", to(&self.on_not_registered))
            .one("ring_time", self.ring_time.as_ref())
            .finish()
    }
}

impl Table for RawForward {
    const WHAT: &'static str = "a forward";
    const FIELDS: &'static [&'static str] = &FIELDS;
    const EXAMPLE: &'static str = EXAMPLE;

    fn set(&mut self, name: &str, value: &Node<'_>, report: &mut Report) -> bool {
        let to = |report: &mut Report| {
            ForwardTarget::read(value, report).map(|to| Located {
                value: to,
                at: value.at.clone(),
            })
        };
        match name {
            "users" => self.users = List::read(value, report).unwrap_or_default(),
            "domains" => self.domains = List::read(value, report).unwrap_or_default(),
            "on_busy" => self.on_busy = to(report),
            "on_no_answer" => self.on_no_answer = to(report),
            "on_unreachable" => self.on_unreachable = to(report),
            "on_not_registered" => self.on_not_registered = to(report),
            "ring_time" => self.ring_time = RingTime::read(value, report),
            _ => return false,
        }
        true
    }

    fn check(&self, at: &Location, report: &mut Report) {
        if self.all().next().is_none() {
            report.push(Diagnostic::error(at, "the forward leads nowhere").help(EXAMPLE));
        }
        if self.ring_time.is_some() && self.on_no_answer.is_none() {
            let message = "`ring_time` has no effect without `on_no_answer`";
            report.push(Diagnostic::error(at, message).help("remove it, or add on_no_answer"));
        }
    }
}

impl RawForward {
    fn all(&self) -> impl Iterator<Item = &Located<ForwardTarget>> {
        let all = [
            &self.on_busy,
            &self.on_no_answer,
            &self.on_unreachable,
            &self.on_not_registered,
        ];
        all.into_iter().flatten()
    }

    fn resolve(self) -> Forward {
        let texts = |list: List<Host>| -> Vec<String> {
            super::values(list).iter().map(FromText::to_text).collect()
        };
        let to = |to: Option<Located<ForwardTarget>>| to.map(|to| to.value.0);
        let users = super::values(self.users);
        Forward {
            users: users.iter().map(FromText::to_text).collect(),
            domains: texts(self.domains),
            busy: to(self.on_busy),
            no_answer: to(self.on_no_answer),
            unreachable: to(self.on_unreachable),
            not_registered: to(self.on_not_registered),
            ring_time: self
                .ring_time
                .map_or(Forward::default().ring_time, |time| time.0),
        }
    }
}

/// Where a call goes on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ForwardTarget(String);

impl FromText for ForwardTarget {
    const EXPECTED: &'static str = "a URI with a user, like \"sip:voicemail@192.0.2.5\"";

    fn from_text(text: &str) -> Result<Self, Mistake> {
        match Forward::is_valid(text) {
            true => Ok(Self(text.to_owned())),
            false => Err(
                Mistake::new(format!("`{text}` is not a SIP URI with a user"))
                    .help("write it like \"sip:voicemail@192.0.2.5\" or \"tel:+4930123\""),
            ),
        }
    }

    fn to_text(&self) -> String {
        self.0.clone()
    }
}

/// The plain values.
pub(super) fn resolve(settings: &Settings) -> Option<Vec<Forward>> {
    let forwards = super::values(settings.sip_forward.clone()?.value);
    Some(forwards.into_iter().map(RawForward::resolve).collect())
}

/// Reports forwards that have no effect. They are without a domain, to the same user, or to a telephone number without
/// a route. Or they are to a user of this server, by a SIPS URI or without `sip.listen`.
pub(super) fn check(settings: &Settings, report: &mut Report) {
    let all = settings.sip_forward.as_ref();
    let all = all.map_or(&[][..], |list| &list.value);
    let Some(first) = all.first() else {
        return;
    };
    let domains = sip_domains::resolve(settings).unwrap_or_default();
    if domains.is_empty() {
        report.push(
            Diagnostic::warning(&first.at, "the forward has no effect: there is no domain")
                .help("add a [[sip.domain]]"),
        );
        return;
    }
    let has_routes = settings
        .sip_route
        .as_ref()
        .is_some_and(|it| !it.value.is_empty());
    let known = server::sip::Domains::new(domains).unwrap_or_default();
    let listens = settings.sip_listen.as_ref();
    let listens = listens.is_some_and(|list| !list.value.is_empty());
    let all = all.iter().map(|forward| &forward.value);
    for (forward, to) in all.flat_map(|forward| forward.all().map(move |to| (forward, to))) {
        let text = &to.value.0;
        let host = text.rsplit_once('@').map(|(_, host)| host);
        let host = host.and_then(|host| host.split([';', '?', ':']).next());
        let host = host.and_then(|host| server::sip::Host::new(host.as_bytes()));
        // With routes, a route may take the call: it is looked for before users of this server.
        let is_here = host.and_then(|host| known.of(host)).is_some() && !has_routes;
        let name = text.strip_prefix("sip:").unwrap_or(text);
        let is_same = forward.users.iter().any(|user| user.value.0 == name);
        let (message, help) = match () {
            () if text.starts_with("tel:") && !has_routes => (
                format!("no call is forwarded to `{text}`: there is no route for it"),
                "add a [[sip.route]] to a trunk for it, or write the address of another server",
            ),
            () if is_here && is_same => (
                format!("no call is forwarded to `{text}`: the forward is of the same user"),
                "name another user",
            ),
            () if is_here && text.starts_with("sips:") => (
                format!(
                    "no call is forwarded to `{text}`: the server reaches its own users by sip URIs"
                ),
                "write a sip URI; the phones of the user may use TLS",
            ),
            () if is_here && !listens => (
                format!(
                    "no call is forwarded to `{text}`: the server sends it to itself over UDP or TCP"
                ),
                "set sip.listen, for example to [\"127.0.0.1:5060\"]",
            ),
            () => continue,
        };
        report.push(Diagnostic::error(&to.at, message).help(help));
    }
}
