//! The registrations of this server at its trunks (RFC 3261 §10.2): a REGISTER, refreshes before it expires, and
//! increasing pauses after failures.
//!
//! One worker sends all REGISTERs. A registration has one Call-ID and an increasing CSeq for as long as the process
//! runs (§10.2.4).

use std::collections::VecDeque;
use std::time::Duration;

use sip::build::Builder;
use sip::digest::DigestResponse;
use sip::header::Contact;
use sip::{HashKey, Message, Method, Mono};

use super::config::{Credentials, RegisterConfig};
use super::hunt::mix;
use super::table::Table;

/// The first pause after a failure; each further one is twice as long, up to the longest.
const FIRST_PAUSE: Duration = Duration::from_secs(5);
const LONGEST_PAUSE: Duration = Duration::from_secs(600);

/// The longest lifetime that the server asks for, also if Min-Expires of a trunk is greater.
const LONGEST_EXPIRES: u32 = 86_400;

/// Bytes of the longest credentials.
const MAX_CREDENTIALS_BYTES: usize = 4096;

/// A REGISTER that is due.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Register {
    /// Names it in [`Registrations::response`].
    pub number: u32,
    /// Where it goes.
    pub target: String,
    /// The request, without Via.
    pub text: String,
}

/// A trunk has accepted the registration, or no longer accepts it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RegistrationChange {
    /// The number of the trunk.
    pub trunk: u16,
    /// What it is now.
    pub is_registered: bool,
    /// The code of the response that refused it; 0 if there was none.
    pub code: u16,
}

/// The registration at one trunk.
#[derive(Debug)]
struct Registration {
    trunk: u16,
    target: String,
    config: RegisterConfig,
    credentials: Option<Credentials>,
    expires: u32,
    call_id: u64,
    cseq: u32,
    /// When the next REGISTER is sent.
    due: Mono,
    waits_for: Option<u32>,
    /// The header line that answers the last challenge.
    answer: String,
    /// The last REGISTER had such a line, or another correction.
    is_corrected: bool,
    failures: u32,
    is_registered: bool,
    removal: Removal,
}

/// Whether a registration is no longer configured. The trunk may have its contact still, until the server removes it
/// (RFC 3261 §10.2.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Removal {
    No,
    /// The REGISTER that removes the contact was not sent yet.
    Due,
    Sent,
}

/// All registrations.
#[derive(Debug)]
pub struct Registrations {
    all: Vec<Registration>,
    changes: VecDeque<RegistrationChange>,
    next_number: u32,
    key: HashKey,
    seed: u64,
}

impl Registrations {
    /// For these trunks. The key makes values that nobody can predict.
    #[must_use]
    pub fn new(now: Mono, table: &Table, key: HashKey, seed: u64) -> Registrations {
        let mut registrations = Registrations {
            all: Vec::new(),
            changes: VecDeque::new(),
            next_number: 0,
            key: key.derive(seed),
            seed,
        };
        registrations.renew(now, table);
        registrations
    }

    /// The trunks have changed. Registrations that have not changed continue. The contacts of others are removed at
    /// their trunks. Request numbers are never reused, so a late response cannot match a request to another trunk.
    pub fn renew(&mut self, now: Mono, table: &Table) {
        self.changes.clear();
        let mut earlier = std::mem::take(&mut self.all);
        for (trunk, (config, _)) in (0..).zip(table.trunks()) {
            let (Some(register), Some(to)) = (&config.register, config.to.first()) else {
                continue;
            };
            let is_it = |it: &Registration| {
                it.removal == Removal::No
                    && it.target == to.as_str()
                    && it.config == *register
                    && it.credentials == config.credentials
            };
            if let Some(place) = earlier.iter().position(is_it) {
                let known = earlier.swap_remove(place);
                self.all.push(Registration { trunk, ..known });
                continue;
            }
            // So that many servers that restart together do not register at the same moment.
            let first = self.jitter(Duration::from_secs(1));
            let call_id = self.random();
            self.all.push(Registration {
                trunk,
                target: to.as_str().to_owned(),
                config: register.clone(),
                credentials: config.credentials.clone(),
                expires: u32::try_from(register.expires.as_secs()).unwrap_or(LONGEST_EXPIRES),
                call_id,
                cseq: 0,
                due: now.plus(first),
                waits_for: None,
                answer: String::new(),
                is_corrected: false,
                failures: 0,
                is_registered: false,
                removal: Removal::No,
            });
        }
        for old in earlier {
            let mut others = self.all.iter();
            let is_kept = others.any(|it| it.has_contact_of(&old));
            if !is_kept && (old.is_registered || old.waits_for.is_some()) {
                self.all.push(old.removed(now));
            }
        }
    }

    fn random(&mut self) -> u64 {
        self.seed = self.seed.wrapping_add(1);
        self.key.mac(&self.seed.to_be_bytes())
    }

    /// A random part of this time.
    fn jitter(&mut self, most: Duration) -> Duration {
        most.mul_f64((mix(self.random()) >> 11) as f64 / (1_u64 << 53) as f64)
    }

    /// When to call [`Registrations::poll_request`].
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Mono> {
        let waiting = self.all.iter().filter(|it| it.waits_for.is_none());
        waiting.map(|it| it.due).min()
    }

    /// The next request to send.
    pub fn poll_request(&mut self, now: Mono) -> Option<Register> {
        let is_due = |it: &&mut Registration| it.waits_for.is_none() && it.due <= now;
        let registration = self.all.iter_mut().find(is_due)?;
        let number = self.next_number;
        self.next_number = number.wrapping_add(1);
        registration.waits_for = Some(number);
        registration.cseq += 1;
        if registration.removal == Removal::Due {
            registration.removal = Removal::Sent;
        }
        Some(Register {
            number,
            target: registration.target.clone(),
            text: registration.text(),
        })
    }

    /// The next registration that has begun or ended.
    pub fn poll_change(&mut self) -> Option<RegistrationChange> {
        self.changes.pop_front()
    }

    /// Whether the trunk of this number accepts the registration now; `None` if it has none.
    #[must_use]
    pub fn is_registered(&self, trunk: u16) -> Option<bool> {
        let mut all = self.all.iter();
        let registration = all.find(|it| it.trunk == trunk && it.removal == Removal::No)?;
        Some(registration.is_registered)
    }

    /// A final response to a REGISTER.
    pub fn response(&mut self, now: Mono, number: u32, response: &Message<'_>) {
        let cnonce = format!("{:016x}", self.random());
        let Some(place) = self.all.iter().position(|it| it.waits_for == Some(number)) else {
            return;
        };
        let Some(registration) = self.all.get_mut(place) else {
            return;
        };
        registration.waits_for = None;
        let code = response.status_code().unwrap_or(0);
        let was_corrected = std::mem::replace(&mut registration.is_corrected, false);
        if registration.removal != Removal::No {
            let is_challenge = matches!(code, 401 | 407) && !was_corrected;
            if is_challenge && registration.answer_challenge(response, &cnonce).is_some() {
                registration.is_corrected = true;
                registration.removal = Removal::Due;
            }
            return self.removal_ended(now, place);
        }
        match code {
            200..=299 => return self.accepted(now, place, response),
            401 | 407 => {
                let stale = registration.answer_challenge(response, &cnonce);
                // After the second 401 or 407 to the same password, give up, unless only the nonce is too old.
                if stale.is_some_and(|is_stale| is_stale || !was_corrected) {
                    registration.is_corrected = true;
                    registration.due = now;
                    return;
                }
                registration.answer.clear();
            }
            423 if !was_corrected => {
                let least = response.min_expires().ok().flatten();
                if let Some(least) = least.filter(|it| *it <= LONGEST_EXPIRES) {
                    registration.expires = registration.expires.max(least);
                    registration.is_corrected = true;
                    registration.due = now;
                    return;
                }
            }
            _ => {}
        }
        let retry_after = response.retry_after().ok().flatten();
        let pause = retry_after.map(|after| Duration::from_secs(after.seconds.into()));
        self.refused(now, place, code, pause.filter(|_| code == 503));
    }

    /// A REGISTER got no response.
    pub fn failed(&mut self, now: Mono, number: u32) {
        let place = self.all.iter().position(|it| it.waits_for == Some(number));
        let Some(place) = place else {
            return;
        };
        if let Some(registration) = self.all.get_mut(place) {
            registration.waits_for = None;
            registration.is_corrected = false;
            if registration.removal != Removal::No {
                return self.removal_ended(now, place);
            }
        }
        self.refused(now, place, 0, None);
    }

    /// A REGISTER of a registration that is no longer configured has ended, with a final response or without one. If it
    /// was the REGISTER that removes the contact, the server does not retry: the contact expires at the trunk. If not,
    /// that REGISTER is due now.
    fn removal_ended(&mut self, now: Mono, place: usize) {
        match self.all.get_mut(place) {
            Some(registration) if registration.removal == Removal::Due => registration.due = now,
            Some(_) => drop(self.all.swap_remove(place)),
            None => {}
        }
    }

    fn accepted(&mut self, now: Mono, place: usize, response: &Message<'_>) {
        let Some(registration) = self.all.get_mut(place) else {
            return;
        };
        let granted = granted(response, &registration.config.contact);
        let granted = granted.unwrap_or(registration.expires).max(1);
        registration.failures = 0;
        let trunk = registration.trunk;
        let was_registered = std::mem::replace(&mut registration.is_registered, true);
        // Before it expires, also if the first attempt is lost: after 75 to 85 % of the time.
        let whole = Duration::from_secs(granted.into());
        let jitter = self.jitter(whole / 10);
        if let Some(registration) = self.all.get_mut(place) {
            registration.due = now.plus(whole * 3 / 4 + jitter);
        }
        if !was_registered {
            self.changes.push_back(RegistrationChange {
                trunk,
                is_registered: true,
                code: 200,
            });
        }
    }

    /// Sets the pause after a failure: the Retry-After of the trunk, or a pause that doubles each time.
    fn refused(&mut self, now: Mono, place: usize, code: u16, pause: Option<Duration>) {
        let Some(registration) = self.all.get_mut(place) else {
            return;
        };
        let doublings = registration.failures.min(7);
        registration.failures += 1;
        let trunk = registration.trunk;
        let is_first = registration.failures == 1;
        let was_registered = std::mem::replace(&mut registration.is_registered, false);
        let longest = (FIRST_PAUSE * (1 << doublings)).min(LONGEST_PAUSE);
        let pause = match pause {
            Some(asked) => asked.min(Duration::from_secs(3600)) + self.jitter(FIRST_PAUSE),
            None => longest / 2 + self.jitter(longest / 2),
        };
        if let Some(registration) = self.all.get_mut(place) {
            registration.due = now.plus(pause);
        }
        if was_registered || is_first {
            self.changes.push_back(RegistrationChange {
                trunk,
                is_registered: false,
                code,
            });
        }
    }
}

impl Registration {
    /// Whether both are the same contact of the same address of record. A binding does not depend on the address that
    /// the REGISTER went to.
    fn has_contact_of(&self, other: &Registration) -> bool {
        let names = |it: &Registration| {
            let RegisterConfig { aor, contact, .. } = &it.config;
            (aor.clone(), contact.clone())
        };
        names(self) == names(other)
    }

    /// The same, when it is no longer configured: a REGISTER that removes the binding is due now.
    fn removed(self, now: Mono) -> Registration {
        Registration {
            removal: match self.removal {
                Removal::No => Removal::Due,
                removal => removal,
            },
            due: now,
            is_corrected: false,
            ..self
        }
    }

    /// The domain of the registration is the host of its address of record (§10.2).
    fn domain(&self) -> String {
        let (scheme, rest) = self.config.aor.split_once(':').unwrap_or(("sip", ""));
        let host = rest.split_once('@').map_or(rest, |(_, host)| host);
        format!("{scheme}:{host}")
    }

    fn text(&self) -> String {
        let (aor, contact) = (&self.config.aor, &self.config.contact);
        let (call_id, cseq) = (self.call_id, self.cseq);
        let expires = match self.removal {
            Removal::No => self.expires,
            Removal::Due | Removal::Sent => 0,
        };
        let (domain, answer) = (self.domain(), &self.answer);
        format!(
            "REGISTER {domain} SIP/2.0\r\nFrom: <{aor}>;tag={:08x}\r\nTo: <{aor}>\r\nCall-ID: {call_id:016x}\r\n\
             CSeq: {cseq} REGISTER\r\nMax-Forwards: 70\r\nContact: <{contact}>\r\nExpires: {expires}\r\n{answer}\
             Content-Length: 0\r\n\r\n",
            mix(call_id) as u32
        )
    }

    /// Makes the header line for the next REGISTER. Returns whether the challenge says that only the nonce was too old;
    /// `None` if it cannot be answered.
    fn answer_challenge(&mut self, response: &Message<'_>, cnonce: &str) -> Option<bool> {
        let credentials = self.credentials.as_ref()?;
        let (challenge, answers) = credentials.challenge_in(response)?;
        let (user, password) = (credentials.user.as_bytes(), credentials.password.as_bytes());
        let ha1 = challenge.ha1(user, password);
        let domain = self.domain();
        let answer = DigestResponse {
            challenge: &challenge,
            username: user,
            ha1: &ha1,
            method: Method::Register,
            uri: domain.as_bytes(),
            body: b"",
            count: 1,
            cnonce: cnonce.as_bytes(),
        };
        let mut buffer = [0; MAX_CREDENTIALS_BYTES];
        let mut line = Builder::fields(&mut buffer);
        answer.write(&mut line, answers);
        self.answer = String::from_utf8(line.finish_fields().ok()?.to_vec()).ok()?;
        Some(challenge.is_stale)
    }
}

/// For how long a trunk keeps the registration (§10.2.4): as its Contact says, or else its Expires.
fn granted(response: &Message<'_>, contact: &str) -> Option<u32> {
    let contacts = response.contacts().filter_map(Result::ok);
    let of_ours = contacts.filter_map(|it| match it {
        Contact::Addr(addr) if addr.uri == contact.as_bytes() => addr.expires(),
        _ => None,
    });
    of_ours.min().or(response.expires().ok().flatten())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::routes::{NextHop, Trunk};
    use sip::Spans;

    fn table() -> Table {
        let trunk = Trunk {
            name: "a".to_owned(),
            to: vec![NextHop::new("sip:192.0.2.7").unwrap()],
            credentials: Some(Credentials {
                user: "office".to_owned(),
                password: "secret".to_owned(),
                realms: vec!["r".to_owned()],
            }),
            register: Some(RegisterConfig {
                aor: "sip:+4930@carrier.example".to_owned(),
                contact: "sip:+4930@203.0.113.9:5060".to_owned(),
                expires: Duration::from_secs(3600),
            }),
            ..Trunk::default()
        };
        Table::new(Vec::new(), vec![trunk], None).unwrap()
    }

    struct Pair {
        registrations: Registrations,
        now: Mono,
    }

    impl Pair {
        fn new() -> Pair {
            let now = Mono::default().plus_secs(1000);
            let key = HashKey::new([1; 16]);
            Pair {
                registrations: Registrations::new(now, &table(), key, 1),
                now,
            }
        }

        /// The next request, with how long it took to come.
        fn request(&mut self) -> (Duration, Register) {
            let due = self.registrations.poll_timeout().unwrap();
            let waited = due.since(self.now);
            self.now = self.now.max(due);
            (waited, self.registrations.poll_request(self.now).unwrap())
        }

        fn respond(&mut self, request: &Register, code: u16, lines: &str) {
            let text = format!(
                "SIP/2.0 {code} X\r\nVia: SIP/2.0/UDP h;branch=z9hG4bK1\r\nFrom: <sip:a@h>;tag=1\r\nTo: <sip:a@h>;tag=2\r\n\
                 Call-ID: 1\r\nCSeq: 1 REGISTER\r\n{lines}Content-Length: 0\r\n\r\n"
            );
            let mut spans = Spans::new();
            let message = Message::parse(text.as_bytes(), &mut spans).unwrap();
            self.registrations
                .response(self.now, request.number, &message);
        }
    }

    const CHALLENGE: &str =
        "WWW-Authenticate: Digest realm=\"r\", nonce=\"n1\", algorithm=MD5, qop=\"auth\"\r\n";

    #[test]
    fn it_answers_a_challenge_and_refreshes_in_time() {
        let mut pair = Pair::new();
        let (waited, first) = pair.request();
        assert!(waited <= Duration::from_secs(1));
        assert!(
            first
                .text
                .starts_with("REGISTER sip:carrier.example SIP/2.0\r\n")
        );
        assert!(
            first.text.contains("CSeq: 1 REGISTER") && first.text.contains("Expires: 3600\r\n")
        );
        assert!(!first.text.contains("Authorization"));
        pair.respond(&first, 401, CHALLENGE);
        let (waited, second) = pair.request();
        assert_eq!(waited, Duration::ZERO);
        assert!(second.text.contains("CSeq: 2 REGISTER"));
        assert!(
            second
                .text
                .contains("Authorization: Digest username=\"office\", realm=\"r\"")
        );
        pair.respond(
            &second,
            200,
            "Contact: <sip:+4930@203.0.113.9:5060>;expires=600\r\n",
        );
        assert_eq!(pair.registrations.is_registered(0), Some(true));
        let change = pair.registrations.poll_change().unwrap();
        assert!(change.is_registered);
        let (waited, third) = pair.request();
        assert!((450..=510).contains(&waited.as_secs()), "{waited:?}");
        let call_id = |text: &str| text.split("Call-ID: ").nth(1).unwrap()[..16].to_owned();
        assert_eq!(call_id(&first.text), call_id(&third.text));
    }

    #[test]
    fn a_challenge_of_another_realm_gets_no_credentials_rfc3261_22_1() {
        let mut pair = Pair::new();
        let (_, first) = pair.request();
        pair.respond(&first, 401, &CHALLENGE.replace("\"r\"", "\"other\""));
        let (waited, second) = pair.request();
        assert!(waited >= Duration::from_secs(2), "{waited:?}");
        assert!(!second.text.contains("Authorization"), "{}", second.text);
    }

    /// A table with these trunks: the user of the registration, and the host of the trunk.
    fn table_of(trunks: &[(&str, &str)]) -> Table {
        let base = table();
        let (base, _) = base.trunk(0).unwrap();
        let trunks = trunks.iter().map(|(user, host)| Trunk {
            name: format!("{user} at {host}"),
            to: vec![NextHop::new(&format!("sip:{host}")).unwrap()],
            register: Some(RegisterConfig {
                aor: format!("sip:{user}@carrier.example"),
                ..base.register.clone().unwrap()
            }),
            ..base.clone()
        });
        Table::new(Vec::new(), trunks.collect(), None).unwrap()
    }

    #[test]
    fn a_late_response_after_a_reload_is_for_no_other_trunk() {
        let mut pair = Pair::new();
        let (_, old) = pair.request();
        pair.registrations.renew(pair.now, &table_of(&[("b", "h")]));
        let (_, new) = pair.request();
        assert_ne!(old.number, new.number);
        pair.respond(&old, 200, "");
        assert_eq!(pair.registrations.is_registered(0), Some(false));
        assert_eq!(pair.registrations.poll_change(), None);
        pair.respond(&new, 200, "");
        assert_eq!(pair.registrations.is_registered(0), Some(true));
    }

    #[test]
    fn a_registration_that_is_configured_still_goes_on() {
        let (a, b) = (("a", "192.0.2.7"), ("b", "192.0.2.8"));
        let mut pair = Pair::new();
        pair.registrations.renew(pair.now, &table_of(&[a]));
        let (_, first) = pair.request();
        pair.respond(&first, 200, "Expires: 600\r\n");
        assert!(pair.registrations.poll_change().is_some());
        // It has another number now.
        pair.registrations.renew(pair.now, &table_of(&[b, a]));
        assert_eq!(pair.registrations.is_registered(0), Some(false));
        assert_eq!(pair.registrations.is_registered(1), Some(true));
        let (_, other) = pair.request();
        assert!(other.text.contains("sip:b@"));
        pair.respond(&other, 200, "Expires: 6000\r\n");
        let (waited, refresh) = pair.request();
        assert!((440..=510).contains(&waited.as_secs()), "{waited:?}");
        assert!(refresh.text.contains("sip:a@") && refresh.text.contains("CSeq: 2 REGISTER"));
    }

    #[test]
    fn the_contact_of_a_registration_that_is_no_longer_configured_is_removed_rfc3261_10_2_2() {
        let mut pair = Pair::new();
        let (_, first) = pair.request();
        pair.respond(&first, 401, CHALLENGE);
        let (_, second) = pair.request();
        pair.respond(&second, 200, "");
        pair.registrations.renew(pair.now, &table_of(&[]));
        assert_eq!(pair.registrations.is_registered(0), None);
        let (waited, third) = pair.request();
        assert_eq!(waited, Duration::ZERO);
        assert!(third.text.contains("Expires: 0\r\n") && third.text.contains("CSeq: 3 "));
        assert!(
            third
                .text
                .contains("Contact: <sip:+4930@203.0.113.9:5060>\r\n")
        );
        pair.respond(&third, 401, &CHALLENGE.replace("n1", "n2"));
        let (_, fourth) = pair.request();
        assert!(fourth.text.contains("Expires: 0\r\n") && fourth.text.contains("\"n2\""));
        pair.respond(&fourth, 401, CHALLENGE);
        assert_eq!(pair.registrations.poll_timeout(), None, "it is tried once");
        // While a REGISTER waits for its response, no other one is sent (RFC 3261 §10.2).
        let mut pair = Pair::new();
        let (_, first) = pair.request();
        pair.registrations.renew(pair.now, &table_of(&[]));
        assert_eq!(pair.registrations.poll_timeout(), None);
        pair.respond(&first, 200, "");
        let (_, second) = pair.request();
        assert!(second.text.contains("Expires: 0\r\n"));
        pair.registrations.failed(pair.now, second.number);
        assert_eq!(pair.registrations.poll_timeout(), None);
        // Another password: the contact is the same, and stays.
        let mut pair = Pair::new();
        let (_, first) = pair.request();
        pair.respond(&first, 200, "");
        let mut trunk = table().trunk(0).unwrap().0.clone();
        trunk.credentials = None;
        let table = Table::new(Vec::new(), vec![trunk], None).unwrap();
        pair.registrations.renew(pair.now, &table);
        let (_, second) = pair.request();
        assert!(second.text.contains("Expires: 3600\r\n"));
        pair.respond(&second, 200, "");
        let (waited, _) = pair.request();
        assert!(waited > Duration::from_secs(60), "{waited:?}");
    }

    #[test]
    fn a_wrong_password_is_not_tried_again_and_again() {
        let mut pair = Pair::new();
        let mut waits = Vec::new();
        for _ in 0..8 {
            let (waited, first) = pair.request();
            pair.respond(&first, 401, CHALLENGE);
            let (_, second) = pair.request();
            pair.respond(&second, 401, CHALLENGE);
            waits.push(waited.as_secs());
        }
        assert!(
            (2..=5).contains(&waits[1]) && (5..=10).contains(&waits[2]),
            "{waits:?}"
        );
        assert!(
            (300..=600).contains(&waits[7]) || waits[7] >= 160,
            "{waits:?}"
        );
        let changes = std::iter::from_fn(|| pair.registrations.poll_change());
        assert_eq!(
            changes.map(|it| it.code).collect::<Vec<_>>(),
            [401],
            "it is said once"
        );
    }

    #[test]
    fn an_old_nonce_is_replaced_at_once() {
        let mut pair = Pair::new();
        let (_, first) = pair.request();
        pair.respond(&first, 401, CHALLENGE);
        let (_, second) = pair.request();
        pair.respond(&second, 401, &CHALLENGE.replace("n1\"", "n2\", stale=true"));
        let (waited, third) = pair.request();
        assert_eq!(waited, Duration::ZERO);
        assert!(third.text.contains("nonce=\"n2\""));
    }

    #[test]
    fn min_expires_and_retry_after_are_heeded_rfc3261_10_2_8() {
        let mut pair = Pair::new();
        let (_, first) = pair.request();
        pair.respond(&first, 423, "Min-Expires: 7200\r\n");
        let (waited, second) = pair.request();
        assert_eq!(waited, Duration::ZERO);
        assert!(second.text.contains("Expires: 7200\r\n"));
        pair.respond(&second, 503, "Retry-After: 100\r\n");
        let (waited, third) = pair.request();
        assert!((100..=105).contains(&waited.as_secs()), "{waited:?}");
        pair.respond(&third, 200, "Expires: 40\r\n");
        let (waited, fourth) = pair.request();
        assert!((30..=34).contains(&waited.as_secs()), "{waited:?}");
        pair.registrations.failed(pair.now, fourth.number);
        assert_eq!(pair.registrations.is_registered(0), Some(false));
        let (waited, _) = pair.request();
        assert!((2..=5).contains(&waited.as_secs()), "{waited:?}");
    }
}
