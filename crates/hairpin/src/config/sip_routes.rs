//! The routes of the SIP proxy, as an administrator writes them.

use server::sip::routes::{
    self, Action, Failures, Finding, HeaderRule, Hunt, Network as RouteNetwork, Next, lint,
};
use stores::SipRouteRow;

use super::diagnostics::{Diagnostic, Report};
use super::network::Network;
use super::node::Node;
use super::schema::Settings;
use super::setting::{Bounded, FromText, List, Mistake, Seconds, Setting, one_of, quote};
use super::sip_domains::{self, Host};
use super::sip_trunks::{self, Name};
use super::source::{Located, Location};
use super::suggest::nearest;
use super::table::{self, Table};

/// One route, each value with its place.
#[derive(Clone, Debug, Default)]
pub(crate) struct RawRoute {
    name: Option<Name>,
    priority: Option<Priority>,
    prefixes: List<Prefix>,
    domains: List<Host>,
    from_trunks: List<Name>,
    from_users: List<User>,
    from_networks: List<Network>,
    headers: List<Header>,
    strip: Option<Strip>,
    replace: Option<UserPart>,
    add: Option<UserPart>,
    trunks: List<Name>,
    to_domain: Option<Located<Host>>,
    reject: Option<Reject>,
    hunt: Option<WrittenHunt>,
    on_busy: Option<WrittenNext>,
    on_no_answer: Option<WrittenNext>,
    on_unreachable: Option<WrittenNext>,
    ring_time: Option<RingTime>,
}

type Priority = Bounded<0, 1000>;
type Strip = Bounded<0, 64>;
type RingTime = Seconds<1, 180>;

/// The name, and the keys that a row of a store has as well.
const FIELDS: [&str; 1 + SipRouteRow::KEYS.len()] = {
    let mut fields = ["name"; 1 + SipRouteRow::KEYS.len()];
    let mut place = 0;
    while place < SipRouteRow::KEYS.len() {
        fields[place + 1] = SipRouteRow::KEYS[place].0;
        place += 1;
    }
    fields
};

const EXAMPLE: &str = "write it like { prefixes = [\"+49\"], trunks = [\"carrier\"] }";

impl Setting for RawRoute {
    fn read(node: &Node<'_>, report: &mut Report) -> Option<Self> {
        table::read(node, report)
    }

    fn write(&self, reveal: bool) -> String {
        let to_domain = self.to_domain.as_ref().map(|domain| &domain.value);
        table::Writer::new(reveal)
            .one("name", self.name.as_ref())
            .one("priority", self.priority.as_ref())
            .some("prefixes", &self.prefixes)
            .some("domains", &self.domains)
            .some("from_trunks", &self.from_trunks)
            .some("from_users", &self.from_users)
            .some("from_networks", &self.from_networks)
            .some("headers", &self.headers)
            .one("strip", self.strip.as_ref())
            .one("replace", self.replace.as_ref())
            .one("add", self.add.as_ref())
            .some("trunks", &self.trunks)
            .one("to_domain", to_domain)
            .one("reject", self.reject.as_ref())
            .one("hunt", self.hunt.as_ref())
            .one("on_busy", self.on_busy.as_ref())
            .one("on_no_answer", self.on_no_answer.as_ref())
            .one("on_unreachable", self.on_unreachable.as_ref())
            .one("ring_time", self.ring_time.as_ref())
            .finish()
    }
}

impl Table for RawRoute {
    const WHAT: &'static str = "a route";
    const FIELDS: &'static [&'static str] = &FIELDS;
    const EXAMPLE: &'static str = EXAMPLE;

    fn set(&mut self, name: &str, value: &Node<'_>, report: &mut Report) -> bool {
        match name {
            "name" => self.name = Name::read(value, report),
            "priority" => self.priority = Priority::read(value, report),
            "prefixes" => self.prefixes = List::read(value, report).unwrap_or_default(),
            "domains" => self.domains = List::read(value, report).unwrap_or_default(),
            "from_trunks" => self.from_trunks = List::read(value, report).unwrap_or_default(),
            "from_users" => self.from_users = List::read(value, report).unwrap_or_default(),
            "from_networks" => self.from_networks = List::read(value, report).unwrap_or_default(),
            "headers" => self.headers = List::read(value, report).unwrap_or_default(),
            "strip" => self.strip = Strip::read(value, report),
            "replace" => self.replace = UserPart::read(value, report),
            "add" => self.add = UserPart::read(value, report),
            "trunks" => self.trunks = List::read(value, report).unwrap_or_default(),
            "to_domain" => {
                let domain = Host::read(value, report);
                self.to_domain = domain.map(|domain| Located {
                    value: domain,
                    at: value.at.clone(),
                });
            }
            "reject" => self.reject = Reject::read(value, report),
            "hunt" => self.hunt = WrittenHunt::read(value, report),
            "on_busy" => self.on_busy = WrittenNext::read(value, report),
            "on_no_answer" => self.on_no_answer = WrittenNext::read(value, report),
            "on_unreachable" => self.on_unreachable = WrittenNext::read(value, report),
            "ring_time" => self.ring_time = RingTime::read(value, report),
            _ => return false,
        }
        true
    }

    fn check(&self, at: &Location, report: &mut Report) {
        let actions = [
            !self.trunks.is_empty(),
            self.to_domain.is_some(),
            self.reject.is_some(),
        ];
        match actions.iter().filter(|is_there| **is_there).count() {
            1 => {}
            0 => report.push(Diagnostic::error(at, "the route leads nowhere").help(EXAMPLE)),
            _ => report.push(
                Diagnostic::error(at, "the route leads to several places")
                    .help("keep one of trunks, to_domain and reject"),
            ),
        }
        if self.replace.is_some() && self.strip.is_some() {
            let message = "`strip` has no effect beside `replace`";
            report.push(Diagnostic::error(at, message).help("remove one of them"));
        }
    }
}

impl RawRoute {
    fn resolve(self, number: usize) -> routes::Route {
        let default = routes::Route::default();
        let texts = |list: List<Host>| -> Vec<String> {
            super::values(list).iter().map(FromText::to_text).collect()
        };
        let names = |list: List<Name>| -> Vec<String> {
            super::values(list).into_iter().map(|name| name.0).collect()
        };
        let network = |network: Network| RouteNetwork {
            address: network.0.addr(),
            prefix: network.0.prefix_len(),
        };
        let failures = Failures::default();
        let next = |next: Option<WrittenNext>, other| next.map_or(other, |next| next.0);
        let action = match (self.to_domain, self.reject) {
            (Some(domain), _) => Action::Domain(domain.value.to_text()),
            (None, Some(reject)) => Action::Reject {
                code: reject.code,
                reason: reject.reason,
            },
            (None, None) => Action::Trunks(names(self.trunks)),
        };
        let name = self.name.map(|name| name.0);
        routes::Route {
            name: name.unwrap_or_else(|| format!("{}", number + 1)),
            priority: self.priority.map_or(0, |priority| priority.0 as u16),
            prefixes: super::values(self.prefixes)
                .into_iter()
                .map(|it| it.0)
                .collect(),
            domains: texts(self.domains),
            from_trunks: names(self.from_trunks),
            from_users: super::values(self.from_users)
                .into_iter()
                .map(|it| it.0)
                .collect(),
            from_networks: super::values(self.from_networks)
                .into_iter()
                .map(network)
                .collect(),
            headers: super::values(self.headers)
                .into_iter()
                .map(|it| it.0)
                .collect(),
            strip: self.strip.map_or(0, |strip| strip.0 as u16),
            replace: self.replace.map(|user| user.0),
            add: self.add.map(|user| user.0).unwrap_or_default(),
            action,
            hunt: self.hunt.map(|hunt| hunt.0).unwrap_or_default(),
            failures: Failures {
                busy: next(self.on_busy, failures.busy),
                no_answer: next(self.on_no_answer, failures.no_answer),
                unreachable: next(self.on_unreachable, failures.unreachable),
            },
            ring_time: self.ring_time.map_or(default.ring_time, |time| time.0),
        }
    }
}

/// The beginning of a called user part.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Prefix(String);

impl FromText for Prefix {
    const EXPECTED: &'static str = "the beginning of a number, like \"+49\"";

    fn from_text(text: &str) -> Result<Self, Mistake> {
        match text.is_empty() || text.len() > 64 || text.contains(char::is_whitespace) {
            false => Ok(Self(text.to_owned())),
            true => Err(Mistake::new(format!("`{text}` is not a prefix")).help(
                "write 1 to 64 characters without spaces; leave the key out for every number",
            )),
        }
    }

    fn to_text(&self) -> String {
        self.0.clone()
    }
}

/// A user part, or a text that is put in front of one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct UserPart(String);

impl FromText for UserPart {
    const EXPECTED: &'static str = "a user part, like \"reception\" or \"00\"";

    fn from_text(text: &str) -> Result<Self, Mistake> {
        match text.is_empty() || text.len() > 64 {
            false => Ok(Self(text.to_owned())),
            true => Err(Mistake::new(format!("`{text}` is not a user part"))
                .help("write 1 to 64 characters, without escapes")),
        }
    }

    fn to_text(&self) -> String {
        self.0.clone()
    }
}

/// A user who sends requests.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct User(pub(super) String);

impl FromText for User {
    const EXPECTED: &'static str = "a user, like \"alice\" or \"alice@example.org\"";

    fn from_text(text: &str) -> Result<Self, Mistake> {
        match text.is_empty() {
            false => Ok(Self(text.to_owned())),
            true => Err(Mistake::new("the name of the user is empty")),
        }
    }

    fn to_text(&self) -> String {
        self.0.clone()
    }
}

/// A condition for a header field.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Header(HeaderRule);

impl FromText for Header {
    const EXPECTED: &'static str = "a header field, like \"X-Tenant: 7\" or \"User-Agent: Acme*\"";

    fn from_text(text: &str) -> Result<Self, Mistake> {
        let (name, value) = text.split_once(':').unwrap_or((text, ""));
        let (name, value) = (name.trim(), value.trim());
        let is_token = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
        if name.is_empty() || value.is_empty() || !name.bytes().all(is_token) {
            return Err(Mistake::new(format!("`{text}` is not a header field"))
                .help("write its name, a colon and its value, like \"X-Tenant: 7\""));
        }
        let begins = value.strip_suffix('*');
        Ok(Self(HeaderRule {
            name: name.to_owned(),
            value: begins.unwrap_or(value).to_owned(),
            is_prefix: begins.is_some(),
        }))
    }

    fn to_text(&self) -> String {
        let star = if self.0.is_prefix { "*" } else { "" };
        format!("{}: {}{star}", self.0.name, self.0.value)
    }
}

/// A response code and a reason phrase.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Reject {
    code: u16,
    reason: String,
}

impl FromText for Reject {
    const EXPECTED: &'static str = "a response, like \"403 Not Allowed\"";

    fn from_text(text: &str) -> Result<Self, Mistake> {
        let (code, reason) = text.split_once(' ').unwrap_or((text, ""));
        let code = code
            .parse()
            .ok()
            .filter(|code| routes::can_reject_with(*code));
        let is_plain = reason
            .bytes()
            .all(|byte| byte == b' ' || byte.is_ascii_graphic());
        match code.filter(|_| is_plain && reason.len() <= 64) {
            Some(code) => Ok(Self {
                code,
                reason: reason.trim().to_owned(),
            }),
            None => Err(Mistake::new(format!("`{text}` is not a response")).help(
                "write a code from 400 to 699 and a reason phrase, like \"403 Not Allowed\"; not 401, 405, 407, 420, 421 or \
                 423, because they require a header field",
            )),
        }
    }

    fn to_text(&self) -> String {
        format!("{} {}", self.code, self.reason)
            .trim_end()
            .to_owned()
    }
}

/// In which order trunks are tried.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct WrittenHunt(Hunt);

const HUNTS: [(&str, Hunt); 3] = [
    ("order", Hunt::Order),
    ("weight", Hunt::Weight),
    ("hash", Hunt::Hash),
];

impl FromText for WrittenHunt {
    const EXPECTED: &'static str = "\"order\", \"weight\" or \"hash\"";

    fn from_text(text: &str) -> Result<Self, Mistake> {
        one_of(text, &HUNTS).map(Self)
    }

    fn to_text(&self) -> String {
        let named = HUNTS.iter().find(|(_, hunt)| *hunt == self.0);
        named.map_or("", |(name, _)| name).to_owned()
    }
}

/// What follows a failure.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct WrittenNext(Next);

const NEXTS: [(&str, Next); 3] = [
    ("stop", Next::Stop),
    ("next_trunk", Next::NextTrunk),
    ("next_route", Next::NextRoute),
];

impl FromText for WrittenNext {
    const EXPECTED: &'static str = "\"stop\", \"next_trunk\" or \"next_route\"";

    fn from_text(text: &str) -> Result<Self, Mistake> {
        one_of(text, &NEXTS).map(Self)
    }

    fn to_text(&self) -> String {
        let named = NEXTS.iter().find(|(_, next)| *next == self.0);
        named.map_or("", |(name, _)| name).to_owned()
    }
}

/// The plain values.
pub(super) fn resolve(settings: &Settings) -> Option<Vec<routes::Route>> {
    let routes = super::values(settings.sip_route.clone()?.value).into_iter();
    let routes = routes.enumerate();
    Some(
        routes
            .map(|(number, route)| route.resolve(number))
            .collect(),
    )
}

/// Reports names that do not exist, and routes and prefixes that no request reaches.
pub(super) fn check(settings: &Settings, report: &mut Report) {
    let all = settings.sip_route.as_ref();
    let all = all.map_or(&[][..], |list| &list.value);
    let Some(first) = all.first() else {
        return;
    };
    let domains = sip_domains::resolve(settings).unwrap_or_default();
    if domains.is_empty() {
        report.push(
            Diagnostic::warning(&first.at, "the route has no effect: there is no domain")
                .help("add a [[sip.domain]]"),
        );
        return;
    }
    let known = server::sip::Domains::new(domains).unwrap_or_default();
    for route in all {
        trunks_exist(&route.value, settings, report);
        users_exist(&route.value, settings, report);
        let Some(domain) = &route.value.to_domain else {
            continue;
        };
        let text = domain.value.to_text();
        let host = sip_host(&text);
        if host.and_then(|host| known.of(host)).is_none() {
            let message = format!("`{text}` is not the name of a domain");
            report.push(Diagnostic::error(&domain.at, message).help("add it as a [[sip.domain]]"));
        }
    }
    if let Some(routes) = resolve(settings) {
        for finding in lint(&routes) {
            if let Some(diagnostic) = describe(&finding, all, &routes) {
                report.push(diagnostic);
            }
        }
    }
}

fn sip_host(text: &str) -> Option<server::sip::Host<'_>> {
    server::sip::Host::new(text.as_bytes())
}

fn trunks_exist(route: &RawRoute, settings: &Settings, report: &mut Report) {
    let trunks = sip_trunks::all(settings);
    let names = || {
        let named = trunks.iter().filter_map(|trunk| trunk.value.name.as_ref());
        named.map(|name| &name.value.0[..])
    };
    for name in route.trunks.iter().chain(&route.from_trunks) {
        if names().any(|known| known == name.value.0) {
            continue;
        }
        let help = match nearest(&name.value.0, names()) {
            Some(near) => format!("did you mean {}?", quote(near)),
            None => format!("add a [[sip.trunk]] with name = {}", quote(&name.value.0)),
        };
        let message = format!("there is no trunk `{}`", name.value.0);
        report.push(Diagnostic::error(&name.at, message).help(help));
    }
    for name in &route.trunks {
        let is_deaf = |trunk: &&Located<sip_trunks::RawTrunk>| {
            let named = trunk.value.name.as_ref();
            named.is_some_and(|it| it.value == name.value) && trunk.value.to.is_empty()
        };
        if let Some(trunk) = trunks.iter().find(is_deaf) {
            let message = format!("no call can be sent to the trunk `{}`", name.value.0);
            report.push(
                Diagnostic::error(&name.at, message)
                    .see(&trunk.at, "it has no address in `to`")
                    .help("say where calls go: to = [\"sip:192.0.2.7:5060\"]"),
            );
        }
    }
}

fn users_exist(route: &RawRoute, settings: &Settings, report: &mut Report) {
    let users = settings.users.as_ref();
    let users = users.map_or(&[][..], |list| &list.value);
    for user in &route.from_users {
        let (name, _) = user.value.0.split_once('@').unwrap_or((&user.value.0, ""));
        let is_known = |known: &str| known == user.value.0 || known == name;
        if !users.iter().any(|known| is_known(&known.value.name)) {
            let message = format!("auth.users has no user `{}`", user.value.0);
            let help = "ignore this if a [[sip.domain]] has the user, else add it to auth.users";
            report.push(Diagnostic::warning(&user.at, message).help(help));
        }
    }
}

fn describe(
    finding: &Finding,
    all: &[Located<RawRoute>],
    routes: &[routes::Route],
) -> Option<Diagnostic> {
    let prefix = |route: usize, prefix: usize| all.get(route)?.value.prefixes.get(prefix);
    Some(match *finding {
        Finding::PrefixTwice {
            route,
            prefix: number,
        } => {
            let prefix = prefix(route, number)?;
            let message = format!("the prefix `{}` is listed twice", prefix.value.0);
            Diagnostic::warning(&prefix.at, message).help("remove one of them")
        }
        Finding::Unreachable { route, taken_by } => {
            let message = format!("no request reaches the route `{}`", routes.get(route)?.name);
            Diagnostic::warning(&all.get(route)?.at, message)
                .see(
                    &all.get(taken_by)?.at,
                    "this route takes all of its requests",
                )
                .help("give it a greater priority, or a condition to the other one")
        }
        Finding::PrefixUnreachable {
            route,
            prefix: number,
            taken_by,
        } => {
            let prefix = prefix(route, number)?;
            let message = format!(
                "no request reaches the route by the prefix `{}`",
                prefix.value.0
            );
            Diagnostic::warning(&prefix.at, message)
                .see(
                    &all.get(taken_by)?.at,
                    "this route takes all of these requests",
                )
                .help("remove the prefix, or give the route a greater priority")
        }
    })
}
