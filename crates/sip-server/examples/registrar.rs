//! A registrar with users in memory, and no proxy: the smallest transaction user on top of the registrar.
//!
//! ```text
//! cargo run -p hairpin-sip-server --example registrar -- --listen 127.0.0.1:5060 --domain example.com alice:secret bob:hidden
//! ```

#![expect(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "a program has sockets, threads and a clock"
)]

extern crate hairpin_sip_server as sip_server;

mod sockets;

use std::convert::Infallible;

use sip::dispatch::Failure;
use sip::engine::{Ack, Mark, NewRequest, Reply, ServerKey};
use sip::flow::Flow;
use sip::tu::{RequestOwner, TransactionUser, Transactions};
use sip::verdict::Rules;
use sip::{Message, Method, Mono};
use sip_server::flow::FlowId;
use sip_server::location::{Limits, MemoryLocation};
use sip_server::proxy::Authenticated;
use sip_server::registrar::{
    Access, Authority as _, Config, Domain, Domains, EXTENSIONS, Examined, Outcome, Registrar,
    Request, SameUser,
};
use sip_server::users::{AskedBy, Users};
use sockets::{Arguments, Failed, Sockets};

const USAGE: &str = "registrar --listen ADDRESS --domain NAME USER:PASSWORD ..";

/// The engine refuses everything else with 405, and extensions that are not known with 420.
const RULES: Rules<'static> = Rules {
    methods: &[Method::Register, Method::Options],
    extensions: &EXTENSIONS,
    ..Rules::USER_AGENT
};

struct Service {
    registrar: Registrar,
    users: Users,
    location: MemoryLocation,
    lines: Vec<u8>,
}

/// Sends the response. This fails only if the request has one already.
fn respond(it: &mut Transactions<'_>, request: NewRequest<'_>, reply: &Reply<'_>) {
    let _ = it.answer(request, reply);
}

impl Service {
    fn register(&mut self, it: &mut Transactions<'_>, request: NewRequest<'_>) {
        let (now, message, flow) = (it.now, { request.message }, request.flow);
        let aor = match self.registrar.examine(&message, &mut self.lines) {
            Examined::Foreign => return respond(it, request, &Reply::new(404)),
            Examined::Refused(answer) => {
                let reply = Reply::new(answer.code).headers(answer.headers);
                return respond(it, request, &reply);
            }
            Examined::Aor(aor) => aor,
        };
        let user = match self.users.check(now, &message, &flow, AskedBy::Registrar) {
            Authenticated::User(user) => user,
            Authenticated::Challenge(lines) => {
                let _ = it.answer_statelessly(request, &Reply::new(401).headers(lines));
                return;
            }
            _ => return respond(it, request, &Reply::new(400)),
        };
        let access = aor.map_or(Access::NoSuchUser, |aor| SameUser.access(Some(user), &aor));
        let flow = FlowId {
            worker: 0,
            run: 1,
            flow,
        };
        let asked = Request {
            message: &message,
            aor,
            flow,
            access,
        };
        let outcome = self
            .registrar
            .register(now, &asked, &mut self.location, &mut self.lines);
        // A location in memory answers at once.
        if let Outcome::Response(answer) = outcome {
            println!("{}: {}", String::from_utf8_lossy(user), answer.code);
            let _ = it.answer(request, &Reply::new(answer.code).headers(answer.headers));
        }
    }
}

impl TransactionUser for Service {
    type QueryResult = Infallible;

    fn request(&mut self, it: &mut Transactions<'_>, request: NewRequest<'_>) -> RequestOwner {
        match request.message.method() {
            Some(Method::Register) => self.register(it, request),
            Some(Method::Options) => respond(it, request, &Reply::new(200)),
            _ => respond(it, request, &Reply::new(481)),
        }
        RequestOwner::Here
    }

    // A registrar has no calls and sends no requests.
    fn ack(&mut self, _: &mut Transactions<'_>, _: &Ack<'_>) -> RequestOwner {
        RequestOwner::Here
    }
    fn cancel(&mut self, _: &mut Transactions<'_>, _: (ServerKey, Option<Mark>), _: &Message<'_>) {}
    fn response(&mut self, _: &mut Transactions<'_>, _: Mark, _: (&Message<'_>, &Flow)) {}
    fn failed(&mut self, _: &mut Transactions<'_>, _: Mark, _: Failure) {}
    fn answered(&mut self, _: &mut Transactions<'_>, _: Infallible) {}

    fn poll_timeout(&self) -> Option<Mono> {
        self.location.next_deadline()
    }

    fn handle_timeout(&mut self, it: &mut Transactions<'_>) {
        while self.location.expire(it.now.mono).is_some() {}
    }
}

fn run() -> Result<(), Failed> {
    let arguments = Arguments::read(&["listen", "domain"], USAGE)?;
    let mut sockets = Sockets::bind(arguments.get("listen").ok_or(USAGE)?)?;
    let name = arguments.get("domain").ok_or(USAGE)?.to_owned();
    let key = sockets::random_key()?;
    let mut users = Users::new(&name, key);
    for word in &arguments.words {
        let (user, password) = word.split_once(':').ok_or(USAGE)?;
        users.add(user, password);
    }
    let domains = Domains::new(vec![Domain {
        name,
        ..Domain::default()
    }])?;
    let service = Service {
        registrar: Registrar::new(Config::default(), domains, key, 1)?,
        users,
        location: MemoryLocation::new(key, Limits::default()),
        lines: vec![0; 65_536],
    };
    let mut endpoint = sockets.endpoint(RULES, key, service);
    println!("listening on {}", sockets.local);
    loop {
        sockets.turn(&mut endpoint, None);
    }
}

fn main() -> std::process::ExitCode {
    sockets::report(run())
}
