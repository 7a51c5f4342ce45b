//! `hairpin upgrade` with registered phones: no binding and no call is lost, and one process writes the log of bindings
//! at a time.
//!
//! The tests need root (CAP_BPF and CAP_NET_ADMIN) and are skipped without.

use std::fmt::Write as _;
use std::net::{SocketAddr, UdpSocket};
use std::ops::Deref;
use std::os::unix::fs::MetadataExt as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::Duration;

use crate::common::controlled::{
    Controlled, eventually, free_port, is_alive, kill, may_load_programs,
};
use crate::common::sip::phone_over_tls;
use crate::sip_client::phone::{PASSWORD, Phone, value, values};
use crate::tls_peer::{Authority, Link};
use hairpin_server::rustls::RootCertStore;
use sip::Method;

/// Users, each with a phone: a third over each of UDP, TCP and TLS.
const PHONES: usize = 999;

struct Server {
    controlled: Controlled,
    plain: SocketAddr,
    tls: SocketAddr,
    roots: Arc<RootCertStore>,
    /// Numbers of TLS phones, for their Contacts.
    contacts: AtomicU16,
}

impl Server {
    /// With a state directory, or without.
    fn start(has_state: bool) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        let authority = Authority::new();
        let (certificate, key) = authority.issue(&["example.com"]).pem();
        std::fs::write(at("tls.crt"), certificate).unwrap();
        std::fs::write(at("tls.key"), key).unwrap();
        let [turn, plain, tls] = [(); 3].map(|()| SocketAddr::from(([127, 0, 0, 1], free_port())));
        let state_dir = match has_state {
            true => at("state").display().to_string(),
            false => "off".to_owned(),
        };
        let mut text = format!(
            "[listen]\nudp = [\"{turn}\"]\n[relay]\nports = \"61000-65535\"\naddresses = [\"127.0.0.1\"]\n\
             [peers]\nallow_local = true\n[admin]\nlisten = \"off\"\n[offload]\nmode = \"off\"\n[log]\nlevel = \"warn\"\n\
             [server]\nworkers = 2\ncontrol_socket = {:?}\nstate_dir = {state_dir:?}\n\
             [tls]\ncertificates = [{{ certificate = {:?}, key = {:?} }}]\n\
             [sip]\nlisten = [\"{plain}\"]\nlisten_tls = [\"{tls}\"]\ntolerance = \"0s\"\nt1 = \"100ms\"\n\
             [[sip.domain]]\nname = \"example.com\"\n[auth]\nrealm = \"example.com\"\nusers = [\n",
            Controlled::socket_in(folder.path()),
            at("tls.crt"),
            at("tls.key"),
        );
        for number in 0..PHONES {
            let _ = writeln!(
                text,
                "  {{ name = \"user{number}\", password = \"{PASSWORD}\" }},"
            );
        }
        text.push_str("]\n");
        Self {
            controlled: Controlled::start(folder, &text),
            plain,
            tls,
            roots: authority.roots(),
            contacts: AtomicU16::new(1),
        }
    }

    /// The processes that have the lock of the log.
    fn writers(&self) -> Vec<u64> {
        let lock = self.folder.path().join("state/bindings.log.lock");
        let inode = format!(":{} ", std::fs::metadata(lock).unwrap().ino());
        let locks = std::fs::read_to_string("/proc/locks").unwrap();
        let lines = locks.lines().filter(|line| line.contains(&inode));
        lines
            .map(|line| line.split_whitespace().nth(4).unwrap().parse().unwrap())
            .collect()
    }

    /// A phone of user `number`, over a transport that its number says.
    fn phone(&self, number: usize) -> Phone {
        let user = format!("user{number}");
        match number % 3 {
            0 => Phone::udp_at(self.plain, &user),
            1 => Phone::tcp_at(self.plain, &user),
            _ => {
                let link = Link::connect(self.tls, "example.com", self.roots.clone(), None);
                let port = self.contacts.fetch_add(1, Ordering::Relaxed);
                phone_over_tls(link.unwrap(), port, &user)
            }
        }
    }

    /// So many phones, registered.
    fn phones(&self, count: usize) -> Vec<Phone> {
        (0..count)
            .map(|number| {
                let mut phone = self.phone(number);
                phone.register();
                phone
            })
            .collect()
    }
}

impl Deref for Server {
    type Target = Controlled;

    fn deref(&self) -> &Controlled {
        &self.controlled
    }
}

/// Two phones.
fn pair(phones: &mut [Phone], one: usize, other: usize) -> (&mut Phone, &mut Phone) {
    let [one, other] = phones.get_disjoint_mut([one, other]).unwrap();
    (one, other)
}

fn uri(phone: &Phone) -> String {
    format!("sip:{}@example.com", phone.user)
}

/// A call that rings: the INVITEs of both sides.
fn ring(caller: &mut Phone, callee: &mut Phone, id: &str) -> (String, String) {
    let asked = caller.ask(Method::Invite, &uri(callee), id);
    let invite = callee.expect("INVITE ");
    callee.respond(&invite, "180 Ringing");
    caller.expect("SIP/2.0 180");
    (asked, invite)
}

/// The callee picks up. Returns the 200 of the caller.
fn pick_up(caller: &mut Phone, callee: &mut Phone, invite: &str) -> String {
    callee.respond(invite, "200 OK");
    let ok = caller.expect("SIP/2.0 200");
    caller.in_dialog(&ok, "ACK");
    callee.expect("ACK ");
    ok
}

/// The caller sends another INVITE within the dialog, and the callee hangs up.
fn finish(caller: &mut Phone, callee: &mut Phone, invite: &str, ok: &str) {
    caller.in_dialog(ok, "INVITE");
    let again = callee.expect("INVITE ");
    callee.respond(&again, "200 OK");
    let other = caller.expect("SIP/2.0 200");
    // The route set is that of the first 200 (RFC 3261 §12.2.1.1).
    let sequence = |ok: &str| format!("CSeq: {}", value(ok, "CSeq"));
    let ok = ok.replace(&sequence(ok), &sequence(&other));
    caller.in_dialog(&ok, "ACK");
    callee.expect("ACK ");
    callee.hang_up(invite);
    let bye = caller.expect("BYE ");
    caller.respond(&bye, "200 OK");
    callee.expect("SIP/2.0 200");
}

/// The caller gives up while the other side rings.
fn cancel(caller: &mut Phone, callee: &mut Phone, asked: &str, invite: &str) {
    let cancel = asked
        .replacen("INVITE ", "CANCEL ", 1)
        .replace(" INVITE\r\n", " CANCEL\r\n");
    caller.send(&cancel);
    let cancel = callee.expect("CANCEL ");
    callee.respond(&cancel, "200 OK");
    callee.respond(invite, "487 Request Terminated");
    callee.expect("ACK ");
    let over = loop {
        let answer = caller.expect("SIP/2.0 ");
        if answer.starts_with("SIP/2.0 487") {
            break answer;
        }
    };
    caller.acknowledge(asked, &over);
}

/// A phone is called and says that it is busy.
fn is_callable(caller: &mut Phone, callee: &mut Phone, id: &str) {
    let asked = caller.ask(Method::Invite, &uri(callee), id);
    let invite = callee.expect("INVITE ");
    callee.respond(&invite, "486 Busy Here");
    callee.expect("ACK ");
    let busy = caller.expect("SIP/2.0 486");
    caller.acknowledge(&asked, &busy);
}

/// Each phone is called by another one, of each transport in turn.
fn all_are_callable(phones: &mut [Phone], round: &str) {
    let count = phones.len();
    for number in 0..count {
        let (caller, callee) = pair(phones, (number + 1 + number % 3) % count, number);
        is_callable(caller, callee, &format!("{round}{number}"));
    }
}

/// Calls between phones of all transports, in both directions.
struct Calls {
    talking: Vec<(usize, usize, String, String)>,
    ringing: Vec<(usize, usize, String)>,
    given_up: Vec<(usize, usize, String, String)>,
}

impl Calls {
    fn begin(phones: &mut [Phone], round: &str) -> Self {
        let mut calls = Self {
            talking: Vec::new(),
            ringing: Vec::new(),
            given_up: Vec::new(),
        };
        for number in 0..9 {
            // Both transports of each pair.
            let (from, to) = (number % 3, number / 3);
            let place = 30 * number;
            let parties = |way: usize| (place + 6 * way + from, place + 6 * way + 3 + to);
            let id = |way: usize| format!("{round}way{way}n{number}");
            let (one, other) = parties(0);
            let (caller, callee) = pair(phones, one, other);
            let (_, invite) = ring(caller, callee, &id(0));
            let ok = pick_up(caller, callee, &invite);
            calls.talking.push((one, other, invite, ok));
            let (one, other) = parties(1);
            let (caller, callee) = pair(phones, one, other);
            let (_, invite) = ring(caller, callee, &id(1));
            calls.ringing.push((one, other, invite));
            let (one, other) = parties(2);
            let (caller, callee) = pair(phones, one, other);
            let (asked, invite) = ring(caller, callee, &id(2));
            calls.given_up.push((one, other, asked, invite));
        }
        calls
    }

    /// Each of them goes on and ends as it would have without an upgrade.
    fn finish(self, phones: &mut [Phone]) {
        for (one, other, invite, ok) in self.talking {
            let (caller, callee) = pair(phones, one, other);
            finish(caller, callee, &invite, &ok);
        }
        for (one, other, invite) in self.ringing {
            let (caller, callee) = pair(phones, one, other);
            let ok = pick_up(caller, callee, &invite);
            finish(caller, callee, &invite, &ok);
        }
        for (one, other, asked, invite) in self.given_up {
            let (caller, callee) = pair(phones, one, other);
            cancel(caller, callee, &asked, &invite);
        }
    }
}

/// The phone registers again. Its user has so many bindings then.
fn register_again(phone: &mut Phone, call: &str, bindings: usize) {
    phone.ask(Method::Register, "sip:example.com", call);
    let answer = phone.expect("SIP/2.0 200");
    assert_eq!(values(&answer, "Contact").len(), bindings, "{answer}");
    assert!(value(&answer, "Call-ID").starts_with(call));
}

#[test]
fn phones_and_calls_survive_an_upgrade() {
    if !may_load_programs() {
        return eprintln!("skipped: this process may not load programs");
    }
    let server = Server::start(true);
    let first = u64::from(server.first.id());
    let mut phones = server.phones(PHONES);
    let calls = Calls::begin(&mut phones, "before");
    assert_eq!(server.writers(), [first]);
    let second = server.upgrade();
    assert_ne!(second, first);
    assert_eq!(server.writers(), [second]);
    calls.finish(&mut phones);
    all_are_callable(&mut phones, "after");
    eventually("the old process has the connections", || {
        let status = server.status().unwrap();
        let connections = status["predecessor"]["sip_connections"].as_u64();
        connections == Some(2 * PHONES as u64 / 3)
    });
    for number in 0..30 {
        register_again(&mut phones[number], &format!("again{number}"), 1);
        // By a new connection it is another binding, which the new process has.
        let mut new = server.phone(number);
        register_again(&mut new, &format!("new{number}"), 2);
        let caller = &mut phones[number + 100];
        let asked = caller.ask(Method::Invite, &uri(&new), &format!("both{number}"));
        for callee in [&mut phones[number], &mut new] {
            let invite = callee.expect("INVITE ");
            callee.respond(&invite, "486 Busy Here");
            callee.expect("ACK ");
        }
        let caller = &mut phones[number + 100];
        let busy = caller.expect("SIP/2.0 486");
        caller.acknowledge(&asked, &busy);
    }
    // Nobody lost a message on the way between the processes.
    let calls = Calls::begin(&mut phones, "between");
    calls.finish(&mut phones);
    drop(phones);
    server.wait_for_the_end_of(first);
    assert_eq!(server.writers(), [second]);
    kill(second, "-TERM");
    eventually("the new process ends", || !is_alive(second));
}

#[test]
fn the_old_process_has_all_bindings_when_the_new_one_is_killed() {
    if !may_load_programs() {
        return eprintln!("skipped: this process may not load programs");
    }
    let server = Server::start(true);
    let first = u64::from(server.first.id());
    let mut phones = server.phones(PHONES / 3);
    let calls = Calls::begin(&mut phones, "before");
    let second = server.upgrade();
    assert_eq!(server.writers(), [second]);
    // Bindings that the new process accepts are in its log after a moment.
    let mut newcomers = Vec::new();
    for number in 273..PHONES / 3 {
        let mut phone = server.phone(number);
        register_again(&mut phone, &format!("new{number}"), 2);
        newcomers.push(phone);
    }
    std::thread::sleep(Duration::from_secs(1));
    kill(second, "-KILL");
    eventually("the first process serves", || server.pid() == first);
    assert_eq!(server.writers(), [first]);
    calls.finish(&mut phones);
    let (old, rest) = phones.split_at_mut(273);
    all_are_callable(old, "after");
    for (number, new) in newcomers.iter_mut().enumerate() {
        // A newcomer's connection has ended with the process; over UDP there is none.
        register_again(&mut rest[number], &format!("again{number}"), 2);
        if (273 + number) % 3 == 0 {
            let asked = old[number].ask(Method::Invite, &uri(new), &format!("fork{number}"));
            for callee in [&mut rest[number], new] {
                let invite = callee.expect("INVITE ");
                callee.respond(&invite, "486 Busy Here");
                callee.expect("ACK ");
            }
            let busy = old[number].expect("SIP/2.0 486");
            old[number].acknowledge(&asked, &busy);
        }
    }
    // In the middle of the upgrade, and then it works.
    kill_in_the_middle(&server, first);
    all_are_callable(&mut old[..99], "again");
    assert_eq!(server.writers(), [first]);
    let third = server.upgrade();
    assert_eq!(server.writers(), [third]);
    all_are_callable(&mut old[..99], "last");
    drop(phones);
    server.wait_for_the_end_of(first);
    kill(third, "-TERM");
    eventually("the third process ends", || !is_alive(third));
}

/// Begins upgrades and kills the new process, sooner and later.
fn kill_in_the_middle(server: &Server, first: u64) {
    for wait in [20, 60, 120, 250] {
        server.upgrade_and_kill_after(Duration::from_millis(wait));
        eventually("the first process serves", || {
            server.pid() == first && server.writers() == [first]
        });
    }
}

#[test]
fn bindings_in_memory_are_handed_over() {
    if !may_load_programs() {
        return eprintln!("skipped: this process may not load programs");
    }
    let server = Server::start(false);
    let first = u64::from(server.first.id());
    let mut phones = server.phones(60);
    let second = server.upgrade();
    all_are_callable(&mut phones, "after");
    kill(second, "-KILL");
    eventually("the first process serves", || server.pid() == first);
    all_are_callable(&mut phones, "again");
    kill(first, "-TERM");
    eventually("the first process ends", || !is_alive(first));
}

/// Sends credentials that were sent before, in another transaction. The response is a challenge with `stale=true`
/// (RFC 7616 §3.3): its counts were used, or the nonce is of another process.
fn repeat(phone: &mut Phone, seen: &str, number: u32) {
    let (head, _) = seen.split_once("Via: ").expect("a Via");
    let (_, rest) = seen.split_once("From: ").expect("From behind Via");
    let via = phone.via();
    let cseq = format!("CSeq: {number} REGISTER");
    let repeated = format!("{head}{via}From: {rest}").replace("CSeq: 2 REGISTER", &cseq);
    phone.send(&repeated);
    let answer = phone.receive();
    assert!(answer.starts_with("SIP/2.0 401"), "{answer}");
    assert!(
        value(&answer, "WWW-Authenticate").contains("stale=true"),
        "{answer}"
    );
}

#[test]
fn credentials_of_the_old_process_do_not_work_once_more_in_the_new_one_rfc7616_3_3() {
    if !may_load_programs() {
        return eprintln!("skipped: this process may not load programs");
    }
    let server = Server::start(false);
    let first = u64::from(server.first.id());
    let mut phone = server.phone(0);
    let seen = phone.ask(Method::Register, "sip:example.com", "seen");
    phone.expect("SIP/2.0 200");
    repeat(&mut phone, &seen, 3);
    let second = server.upgrade();
    repeat(&mut phone, &seen, 4);
    // The same user answers a challenge of the new process.
    register_again(&mut phone, "fresh", 1);
    drop(phone);
    server.wait_for_the_end_of(first);
    kill(second, "-TERM");
    eventually("the new process ends", || !is_alive(second));
}

#[test]
fn an_upgrade_moves_the_bindings_from_the_file_to_a_database() {
    if !may_load_programs() {
        return eprintln!("skipped: this process may not load programs");
    }
    let server = Server::start(true);
    let first = u64::from(server.first.id());
    let mut phones = server.phones(60);
    let config = server.folder.path().join("hairpin.toml");
    let database = server.folder.path().join("bindings.db");
    let key = format!(
        "[sip]\nbinding_database = \"sqlite:{}\"\n",
        database.display()
    );
    let text = std::fs::read_to_string(&config).unwrap();
    std::fs::write(&config, text.replacen("[sip]\n", &key, 1)).unwrap();
    let second = server.upgrade();
    assert_eq!(server.writers(), [second]);
    all_are_callable(&mut phones, "after");
    drop(phones);
    server.wait_for_the_end_of(first);
    kill(second, "-TERM");
    eventually("the new process ends", || !is_alive(second));
    let file = rusqlite::Connection::open(database).unwrap();
    let count = "SELECT count(*) FROM hairpin_sip_binding";
    let rows = file.query_row(count, [], |row| row.get::<_, i64>(0));
    assert_eq!(rows.unwrap(), 60);
}

/// The numbers of the workers of the new process do not begin at 0, so no code may look for worker 0.
#[test]
fn the_new_process_probes_trunks_and_registers_there() {
    if !may_load_programs() {
        return eprintln!("skipped: this process may not load programs");
    }
    let server = Server::start(true);
    let first = u64::from(server.first.id());
    let trunk = UdpSocket::bind("127.0.0.2:0").unwrap();
    trunk
        .set_read_timeout(Some(Duration::from_secs(10)))
        .unwrap();
    let at = trunk.local_addr().unwrap();
    let config = server.folder.path().join("hairpin.toml");
    let text = std::fs::read_to_string(&config).unwrap();
    let added = format!(
        "[[sip.trunk]]\nname = \"a\"\naddresses = [\"127.0.0.2\"]\nto = [\"sip:{at}\"]\nprobe_interval = \"5s\"\n\
         register = \"sip:+4930@{at}\"\nregister_contact = \"sip:+4930@{}\"\n\
         user = \"u\"\npassword = \"{PASSWORD}\"\n",
        server.plain,
    );
    std::fs::write(&config, text + &added).unwrap();
    let second = server.upgrade();
    let mut missing = vec!["OPTIONS ", "REGISTER "];
    let mut buffer = [0; 4096];
    while !missing.is_empty() {
        let length = trunk.recv(&mut buffer).unwrap();
        missing.retain(|method| !buffer[..length].starts_with(method.as_bytes()));
    }
    server.wait_for_the_end_of(first);
    kill(second, "-TERM");
    eventually("the new process ends", || !is_alive(second));
}
