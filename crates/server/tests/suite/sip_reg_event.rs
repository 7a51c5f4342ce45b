//! Subscriptions to registrations (RFC 3680, RFC 6665), over real sockets and on several workers.

use crate::sip_client::phone::{Phone, credentials, value, values};
use crate::sip_client::{LOOPBACK, example_com, status, with_users};
use hairpin_server::Running;
use hairpin_server::sip::{
    AtNodes, MovedBinding, NodesHook, NodesReply, OtherNodes, SharedBinding, SipSettings,
};
use sip::{HeaderKind, Method};
use std::cell::Cell;
use std::sync::{Arc, Mutex};
use std::time::Duration;

fn serve(workers: usize) -> Running {
    serve_with(example_com(), workers)
}

fn serve_with(mut settings: SipSettings, workers: usize) -> Running {
    settings.registrar.min_expires = 1;
    settings.t1 = Duration::from_millis(100);
    let server = with_users(LOOPBACK, settings, 8).workers(workers);
    server.start().expect("the server starts")
}

/// A subscription, as the subscriber knows it.
struct Subscription {
    call: String,
    cseq: u32,
    /// CSeq of the last NOTIFY.
    seen: Cell<u32>,
    /// To and Contact of the 200.
    to: String,
    target: String,
}

impl Subscription {
    /// The subscription that begins with this 200.
    fn of(call: &str, ok: &str) -> Subscription {
        Subscription {
            call: call.to_owned(),
            cseq: 2,
            seen: Cell::new(0),
            to: value(ok, "To").to_owned(),
            target: value(ok, "Contact").trim_matches(['<', '>']).to_owned(),
        }
    }
}

/// Sends a SUBSCRIBE, and again with credentials. Returns the answer.
fn ask(phone: &mut Phone, user: &str, call: &str, lines: &str) -> String {
    let uri = format!("sip:{user}@example.com");
    let text = phone.request("SUBSCRIBE", &uri, call, 1, lines);
    phone.send(&text);
    let challenge = phone.expect("SIP/2.0 401");
    let kind = HeaderKind::Authorization;
    let line = credentials(&challenge, kind, &phone.user, Method::Subscribe, &uri);
    let text = phone.request("SUBSCRIBE", &uri, call, 2, &format!("{line}{lines}"));
    phone.send(&text);
    phone.expect("SIP/2.0 ")
}

/// Subscribes to the own registrations. Returns the first document.
fn subscribe(phone: &mut Phone, call: &str, expires: u32) -> (Subscription, String) {
    let user = phone.user.clone();
    let lines = format!("Event: reg\r\nExpires: {expires}\r\n");
    let ok = ask(phone, &user, call, &lines);
    assert_eq!(status(&ok), 200, "{ok}");
    assert_eq!(value(&ok, "Expires"), expires.to_string());
    assert_eq!(value(&ok, "Allow-Events"), "reg");
    let subscription = Subscription::of(call, &ok);
    let notify = notified(phone, &subscription);
    (subscription, notify)
}

/// The next NOTIFY, which is answered.
fn notified(phone: &mut Phone, subscription: &Subscription) -> String {
    let mut notify = phone.expect("NOTIFY ");
    // It may come again before its response is there.
    let number = |notify: &str| {
        value(notify, "CSeq")
            .split(' ')
            .next()
            .and_then(|it| it.parse().ok())
    };
    while number(&notify) <= Some(subscription.seen.get()) {
        phone.respond(&notify, "200 OK");
        notify = phone.expect("NOTIFY ");
    }
    subscription.seen.set(number(&notify).expect("a number"));
    assert_eq!(value(&notify, "Event"), "reg", "{notify}");
    assert_eq!(value(&notify, "From"), subscription.to);
    assert_eq!(value(&notify, "Content-Type"), "application/reginfo+xml");
    let call = format!("{}@test", subscription.call);
    assert_eq!(value(&notify, "Call-ID"), call);
    phone.respond(&notify, "200 OK");
    notify
}

/// Sends a SUBSCRIBE within the dialog, and again with credentials if it is challenged. Returns the answer.
fn again(phone: &mut Phone, subscription: &mut Subscription, lines: &str) -> String {
    let answer = again_unasked(phone, subscription, lines);
    if status(&answer) != 401 {
        return answer;
    }
    let (kind, target) = (HeaderKind::Authorization, &subscription.target);
    let line = credentials(&answer, kind, &phone.user, Method::Subscribe, target);
    again_unasked(phone, subscription, &format!("{line}{lines}"))
}

/// Sends a SUBSCRIBE within the dialog once. Returns the answer.
fn again_unasked(phone: &mut Phone, subscription: &mut Subscription, lines: &str) -> String {
    subscription.cseq += 1;
    let Subscription {
        call,
        cseq,
        to,
        target,
        ..
    } = subscription;
    let text = phone.request("SUBSCRIBE", target, call, *cseq, lines);
    let text = text.replace(&format!("To: <{target}>"), &format!("To: {to}"));
    phone.send(&text);
    phone.expect("SIP/2.0 ")
}

/// Version and state of a document, and state and event of each of its contacts.
fn document(notify: &str) -> (String, String, Vec<String>) {
    let attribute = |text: &str, name: &str| {
        let start = format!(" {name}=\"");
        let rest = text.split(&start).nth(1).unwrap_or_default();
        rest.split('"').next().unwrap_or_default().to_owned()
    };
    let body = notify.split("\r\n\r\n").nth(1).expect("a body");
    let head = body.split("<reginfo").nth(1).expect("a document");
    let head = head.split("<registration").next().expect("a head");
    let registration = body.split("<registration").nth(1).expect("a registration");
    let contacts = body.split("<contact").skip(1);
    let contacts = contacts.map(|contact| {
        let (state, event) = (attribute(contact, "state"), attribute(contact, "event"));
        format!("{state} {event}")
    });
    let version = attribute(head, "version");
    let state = format!(
        "{} {}",
        attribute(head, "state"),
        attribute(registration, "state")
    );
    (version, state, contacts.collect())
}

fn shows(notify: &str, version: &str, state: &str, contacts: &[&str]) {
    let (v, s, c) = document(notify);
    assert_eq!(
        (&v[..], &s[..], &c[..]),
        (
            version,
            state,
            &contacts
                .iter()
                .map(|it| (*it).to_owned())
                .collect::<Vec<_>>()[..]
        ),
        "{notify}"
    );
}

/// Asserts that a NOTIFY shows this change. The server sends all contacts instead if the change came before the
/// response to the last NOTIFY.
fn shows_change(notify: &str, version: &str, registration: &str, change: &str, all: &[&str]) {
    let (_, state, mut contacts) = document(notify);
    if state.starts_with("partial") {
        return shows(
            notify,
            version,
            &format!("partial {registration}"),
            &[change],
        );
    }
    let registration = if all.is_empty() { "init" } else { "active" };
    contacts.sort();
    assert_eq!(state, format!("full {registration}"), "{notify}");
    assert_eq!(contacts, all, "{notify}");
    assert!(
        notify.contains(&format!(" version=\"{version}\"")),
        "{notify}"
    );
}

/// Changes the registration of a phone: for so many seconds, 0 removes it.
fn register_for(phone: &mut Phone, call: &str, cseq: u32, seconds: u32) {
    let uri = "sip:example.com";
    let lines = format!("Expires: {seconds}\r\n");
    let text = phone.request("REGISTER", uri, call, cseq, &lines);
    phone.send(&text);
    let challenge = phone.expect("SIP/2.0 401");
    let kind = HeaderKind::Authorization;
    let line = credentials(&challenge, kind, &phone.user, Method::Register, uri);
    let text = phone.request("REGISTER", uri, call, cseq + 1, &format!("{line}{lines}"));
    phone.send(&text);
    phone.expect("SIP/2.0 200");
}

#[test]
fn a_subscriber_is_notified_of_each_change_on_any_worker_rfc3680() {
    for workers in [1, 4] {
        let server = serve(workers);
        let lines: [fn(&Running, &str) -> Phone; 2] = [Phone::udp, Phone::tcp];
        for (place, line) in (0..).zip(lines) {
            let user = format!("user{place}");
            let mut watcher = line(&server, &user);
            let (mut subscription, first) = subscribe(&mut watcher, "sub", 600);
            assert_eq!(value(&first, "Subscription-State"), "active;expires=600");
            shows(&first, "0", "full init", &[]);
            let mut phone = Phone::udp(&server, &user);
            register_for(&mut phone, "r", 1, 60);
            let notify = notified(&mut watcher, &subscription);
            shows_change(
                &notify,
                "1",
                "active",
                "active registered",
                &["active registered"],
            );
            let uri = phone.contact();
            assert!(notify.contains(&format!("<uri>{}</uri>", uri.trim_matches(['<', '>']))));
            assert!(notify.contains(&format!("aor=\"sip:{user}@example.com\"")));
            // A refresh of the registration is no change.
            register_for(&mut phone, "r", 3, 60);
            let mut other = Phone::tcp(&server, &user);
            register_for(&mut other, "o", 1, 60);
            let notify = notified(&mut watcher, &subscription);
            let all = ["active refreshed", "active registered"];
            shows_change(&notify, "2", "active", "active registered", &all);
            // A refresh of the subscription gets the full state.
            let ok = again(
                &mut watcher,
                &mut subscription,
                "Event: reg\r\nExpires: 900\r\n",
            );
            assert_eq!((status(&ok), value(&ok, "Expires")), (200, "900"), "{ok}");
            let notify = notified(&mut watcher, &subscription);
            let (version, state, mut contacts) = document(&notify);
            contacts.sort();
            assert_eq!((&version[..], &state[..]), ("3", "full active"));
            assert_eq!(contacts, all);
            register_for(&mut other, "o", 3, 0);
            let notify = notified(&mut watcher, &subscription);
            let ended = "terminated unregistered";
            shows_change(&notify, "4", "active", ended, &["active refreshed"]);
            register_for(&mut phone, "r", 5, 0);
            let notify = notified(&mut watcher, &subscription);
            shows_change(&notify, "5", "terminated", ended, &[]);
            // The end.
            let ok = again(
                &mut watcher,
                &mut subscription,
                "Event: reg\r\nExpires: 0\r\n",
            );
            assert_eq!((status(&ok), value(&ok, "Expires")), (200, "0"), "{ok}");
            let notify = notified(&mut watcher, &subscription);
            assert_eq!(
                value(&notify, "Subscription-State"),
                "terminated;reason=timeout"
            );
            shows(&notify, "6", "full init", &[]);
            let gone = again(&mut watcher, &mut subscription, "Event: reg\r\n");
            assert_eq!(status(&gone), 481, "{gone}");
        }
    }
}

#[test]
fn a_registration_that_expires_and_a_subscription_that_expires_say_so() {
    let server = serve(2);
    let mut watcher = Phone::udp(&server, "user0");
    let (subscription, _) = subscribe(&mut watcher, "sub", 60);
    let mut phone = Phone::udp(&server, "user0");
    register_for(&mut phone, "r", 1, 1);
    let notify = notified(&mut watcher, &subscription);
    shows_change(
        &notify,
        "1",
        "active",
        "active registered",
        &["active registered"],
    );
    let notify = notified(&mut watcher, &subscription);
    shows_change(&notify, "2", "terminated", "terminated expired", &[]);
    // Who asks for no time fetches the state of all contacts.
    for (place, call) in ["r2", "r3"].into_iter().enumerate() {
        let mut other = Phone::tcp(&server, "user0");
        register_for(&mut other, call, 1, 60);
        notified(&mut watcher, &subscription);
        let (fetch, notify) = subscribe(&mut watcher, &format!("fetch{place}"), 0);
        assert_eq!(
            value(&notify, "Subscription-State"),
            "terminated;reason=timeout"
        );
        let contacts = vec!["active registered"; place + 1];
        shows(&notify, "0", "full active", &contacts);
        assert!(fetch.to.contains(";tag="));
    }
}

/// RFC 6665 §6.3, §6.4: the next NOTIFY goes to the source of a refresh.
#[test]
fn a_refresh_needs_the_credentials_of_the_user() {
    let server = serve(2);
    let mut watcher = Phone::udp(&server, "user0");
    let (mut subscription, _) = subscribe(&mut watcher, "sub", 60);
    let mut stranger = Phone::udp(&server, "user1");
    let from = |text: &str| text.replace("sip:user1@", "sip:user0@");
    for (lines, code) in [
        ("Event: reg\r\n", 401),
        ("Event: reg\r\nExpires: 0\r\n", 401),
    ] {
        let target = &subscription.target;
        let text = stranger.request("SUBSCRIBE", target, "sub", 9, lines);
        let text = text.replace(
            &format!("To: <{target}>"),
            &format!("To: {}", subscription.to),
        );
        stranger.send(&from(&text));
        let answer = stranger.expect("SIP/2.0 ");
        assert_eq!(status(&answer), code, "{answer}");
        // Nor is another user's password enough.
        let kind = HeaderKind::Authorization;
        let line = credentials(&answer, kind, "user1", Method::Subscribe, target);
        let text = text.replace("CSeq: 9", "CSeq: 10");
        let text = text.replace("Event: ", &format!("{line}Event: "));
        stranger.send(&from(&text));
        let answer = stranger.expect("SIP/2.0 ");
        assert_eq!(status(&answer), 403, "{answer}");
    }
    // The subscription is as before.
    let mut phone = Phone::udp(&server, "user0");
    register_for(&mut phone, "r", 1, 60);
    notified(&mut watcher, &subscription);
    let ok = again(&mut watcher, &mut subscription, "Event: reg\r\n");
    assert_eq!(status(&ok), 200, "{ok}");
}

#[test]
fn a_refresh_keeps_the_route_set_and_a_temporary_failure_the_subscription() {
    let server = serve(1);
    let mut watcher = Phone::udp(&server, "user0");
    let route = format!("<sip:127.0.0.1:{};lr;edge=1>", watcher.port());
    let lines = format!("Event: reg\r\nRecord-Route: {route}\r\n");
    let ok = ask(&mut watcher, "user0", "sub", &lines);
    assert_eq!(status(&ok), 200, "{ok}");
    let mut subscription = Subscription::of("sub", &ok);
    let notify = notified(&mut watcher, &subscription);
    assert_eq!(value(&notify, "Route"), route);
    // RFC 3261 §12.2: a target refresh does not change the route set.
    let ok = again(&mut watcher, &mut subscription, "Event: reg\r\n");
    assert_eq!(status(&ok), 200, "{ok}");
    let notify = notified(&mut watcher, &subscription);
    assert_eq!(value(&notify, "Route"), route);
    // RFC 6665 §4.2.2 lists the codes that end a subscription.
    for (place, code) in ["503 Service Unavailable", "481 No Subscription"]
        .into_iter()
        .enumerate()
    {
        let mut phone = Phone::udp(&server, "user0");
        register_for(&mut phone, &format!("r{place}"), 1, 60);
        let notify = watcher.expect("NOTIFY ");
        watcher.respond(&notify, code);
        let answer = again(&mut watcher, &mut subscription, "Event: reg\r\n");
        assert_eq!(status(&answer), [200, 481][place], "{answer}");
        if place == 0 {
            notified(&mut watcher, &subscription);
        }
    }
    // A subscription of before a restart is not known either.
    subscription.to = "<sip:user0@example.com>;tag=unknown".to_owned();
    let answer = again(&mut watcher, &mut subscription, "Event: reg\r\n");
    assert_eq!(status(&answer), 481, "{answer}");
}

#[test]
fn forbidden_and_malformed_subscriptions_get_their_code() {
    let server = serve(2);
    let mut phone = Phone::udp(&server, "user0");
    for (place, (user, lines, code)) in [
        ("user1", "Event: reg\r\n", 403),
        ("nobody", "Event: reg\r\n", 403),
        ("user0", "Event: reg\r\nExpires: 5\r\n", 423),
        ("user0", "Event: reg\r\nAccept: text/plain\r\n", 406),
        ("user0", "Event: reg\r\nRequire: eventlist\r\n", 420),
    ]
    .into_iter()
    .enumerate()
    {
        let answer = ask(&mut phone, user, &format!("w{place}"), lines);
        assert_eq!(status(&answer), code, "{answer}");
        if code == 423 {
            assert_eq!(value(&answer, "Min-Expires"), "60");
        }
    }
    // The server itself has nothing to subscribe to.
    let text = phone.request(
        "SUBSCRIBE",
        "sip:example.com",
        "own",
        1,
        "Event: presence\r\n",
    );
    phone.send(&text);
    let answer = phone.expect("SIP/2.0 489");
    assert_eq!(value(&answer, "Allow-Events"), "reg");
    // Other packages are the phones' business.
    let text = phone.request(
        "SUBSCRIBE",
        "sip:user1@example.com",
        "other",
        1,
        "Event: dialog\r\n",
    );
    phone.send(&text);
    phone.expect("SIP/2.0 407");
    // Within the dialog, too.
    let (mut subscription, _) = subscribe(&mut phone, "sub", 600);
    let answer = again(&mut phone, &mut subscription, "Event: presence\r\n");
    assert_eq!(status(&answer), 489, "{answer}");
}

#[test]
fn an_address_has_a_bounded_number_of_subscriptions() {
    let server = serve(2);
    let mut phone = Phone::udp(&server, "user0");
    for number in 0..16 {
        subscribe(&mut phone, &format!("many{number}"), 600);
    }
    let answer = ask(&mut phone, "user0", "one", "Event: reg\r\n");
    assert_eq!(status(&answer), 503, "{answer}");
    assert_eq!(values(&answer, "Retry-After").len(), 1);
}

/// A cluster that knows the bindings which were published last.
#[derive(Debug, Default)]
struct Nodes(Mutex<(Vec<u8>, Vec<SharedBinding>)>);

impl OtherNodes for Nodes {
    fn generation(&self) -> u64 {
        1
    }

    fn is_busy(&self) -> bool {
        false
    }

    fn publish(&self, aor: &[u8], bindings: Vec<SharedBinding>) {
        *self.0.lock().expect("no panic") = (aor.to_vec(), bindings);
    }

    fn find(&self, _: &[u8]) -> AtNodes {
        AtNodes::Unavailable
    }

    fn begin_find(&self, _: &[u8], reply: NodesReply) {
        reply(AtNodes::Unavailable);
    }
}

/// Registers with an instance and a reg-id (RFC 5626 §4.2).
fn register_instance(phone: &mut Phone, call: &str) {
    let params = ";+sip.instance=\"<urn:uuid:00000000-0000-4000-8000-000000000001>\";reg-id=1";
    let uri = "sip:example.com";
    let with_instance = |text: String| {
        let (head, rest) = text.split_once("Contact: ").expect("a Contact");
        let (contact, rest) = rest.split_once("\r\n").expect("a line");
        format!("{head}Supported: outbound\r\nContact: {contact}{params}\r\n{rest}")
    };
    let first = with_instance(phone.request("REGISTER", uri, call, 1, ""));
    phone.send(&first);
    let challenge = phone.expect("SIP/2.0 401");
    let kind = HeaderKind::Authorization;
    let line = credentials(&challenge, kind, &phone.user, Method::Register, uri);
    let second = with_instance(phone.request("REGISTER", uri, call, 2, &line));
    phone.send(&second);
    let ok = phone.expect("SIP/2.0 200");
    assert!(ok.contains("reg-id=1"), "{ok}");
}

#[test]
fn a_phone_that_has_moved_to_another_node_is_not_asked_to_register_again_rfc3680_4_7_1() {
    let nodes = Arc::new(Nodes::default());
    let mut settings = example_com();
    settings.nodes = Some(NodesHook::new(Arc::clone(&nodes) as _));
    let server = serve_with(settings, 2);
    let mut watcher = Phone::udp(&server, "user0");
    let (subscription, _) = subscribe(&mut watcher, "sub", 600);
    let mut phone = Phone::udp(&server, "user0");
    register_instance(&mut phone, "one");
    let notify = notified(&mut watcher, &subscription);
    let active = "active registered";
    shows_change(&notify, "1", "active", active, &[active]);
    let (aor, bindings) = nodes.0.lock().expect("no panic").clone();
    let [binding] = bindings[..] else {
        panic!("{bindings:?}");
    };
    assert!(binding.has_reg_id);
    let moved = MovedBinding {
        id: binding.id,
        call: binding.call,
        cseq: binding.cseq,
    };
    let inspector = server.sip_inspector().expect("it has SIP");
    let sent = inspector.remove_moved(&[(&*aor, moved)]);
    sent.expect("the workers read their mailboxes");
    // After `deactivated`, the phone would register again at once.
    let notify = notified(&mut watcher, &subscription);
    let ended = "terminated unregistered";
    shows_change(&notify, "2", "terminated", ended, &[]);
    // For an operator, it is another one.
    register_instance(&mut phone, "two");
    let notify = notified(&mut watcher, &subscription);
    shows_change(&notify, "3", "active", active, &[active]);
    let removed = inspector.remove_bindings("user0@example.com", None);
    assert_eq!(removed.expect("the workers answer"), 1);
    let notify = notified(&mut watcher, &subscription);
    let ended = "terminated deactivated";
    shows_change(&notify, "4", "terminated", ended, &[]);
}
