//! When the phones of a worker refresh their bindings (RFC 8599 §5.5).

use super::store::WorkerBindings;
use sip::Mono;
use sip_server::Aor;
use sip_server::location::Binding;
use sip_server::push::{DueRefresh, RefreshConfig, RefreshPush, RefreshSchedule};

/// Places of addresses that are read per wake-up, at the start and after a reload: about a millisecond.
const PLACES_PER_WAKE_UP: usize = 1024;

/// A notification that was not accepted is tried again after this time.
const RETRY_S: u64 = 5;

/// The phones that are woken to refresh their bindings, and when.
#[derive(Debug)]
pub(super) struct Refreshes {
    /// Which phones are woken; none without push services.
    config: RefreshConfig,
    schedule: RefreshSchedule,
    /// The bindings from this place on are not read yet. While there are such, no phone is woken: an earlier run may
    /// have woken some.
    unread: Option<usize>,
    /// Another process wakes them.
    is_paused: bool,
}

impl Refreshes {
    pub(super) fn new(config: RefreshConfig) -> Refreshes {
        Refreshes {
            config,
            schedule: RefreshSchedule::default(),
            unread: None,
            is_paused: false,
        }
    }

    /// The push services.
    pub(super) fn providers(&self) -> &[String] {
        &self.config.providers
    }

    /// Other settings. If they differ, all bindings are read again.
    pub(super) fn configure(&mut self, config: RefreshConfig) {
        if self.config != config {
            self.config = config;
            self.restart();
        }
    }

    /// There are other bindings than before: all are to be read, some per wake-up.
    pub(super) fn restart(&mut self) {
        self.schedule = RefreshSchedule::default();
        self.unread = (!self.config.providers.is_empty()).then_some(0);
    }

    /// Whether another process wakes the phones from now on.
    pub(super) const fn pause(&mut self, is_paused: bool) {
        self.is_paused = is_paused;
    }

    /// These are the bindings of an address now.
    pub(super) fn note(&mut self, now: Mono, aor: &Aor, bindings: &[Binding]) {
        if !self.config.providers.is_empty() {
            let config = &self.config;
            self.schedule
                .note(Some(now), aor.as_bytes(), bindings, config);
        }
    }

    /// When an address is due, or more bindings are to be read.
    pub(super) fn next_deadline(&self) -> Option<Mono> {
        match (self.is_paused, self.unread) {
            (true, _) => None,
            (false, Some(_)) => Some(Mono(0)),
            (false, None) => self.schedule.next_deadline(),
        }
    }

    /// The next address that is due; `None` if there is none, or if bindings were read instead.
    pub(super) fn next_due(&mut self, now: Mono, bindings: &WorkerBindings) -> Option<DueRefresh> {
        if self.is_paused {
            return None;
        }
        let Some(first) = self.unread else {
            return self.schedule.pop_due(now);
        };
        let part = bindings.part(first, PLACES_PER_WAKE_UP);
        self.unread = part.is_some().then_some(first + PLACES_PER_WAKE_UP);
        for (aor, bindings) in part.into_iter().flatten() {
            // An earlier run may have notified some.
            self.schedule.note(None, aor, bindings, &self.config);
        }
        None
    }

    /// The phones of an address that is due.
    pub(super) fn phones(
        &self,
        now: Mono,
        due: &DueRefresh,
        bindings: &[Binding],
    ) -> Vec<RefreshPush> {
        due.phones(now, bindings, &self.config)
    }

    /// A notification was not accepted: nobody is due for a while.
    pub(super) fn retry(&mut self, now: Mono, due: &DueRefresh) {
        self.schedule.retry(due, now.plus_secs(RETRY_S));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use sip::{HashKey, Now};
    use sip_server::location::{
        Change, Found, Limits, Location as _, MemoryLocation, NO_Q, NewBinding,
    };
    use std::time::Duration;

    const SECOND: u64 = 1_000_000_000;
    const START: Mono = Mono(1_000 * SECOND);

    fn config(lead: u64) -> RefreshConfig {
        RefreshConfig {
            providers: vec!["fcm".to_owned()],
            lead: Duration::from_secs(lead),
        }
    }

    /// So many users have each a phone whose binding ends after an hour.
    fn bindings(users: usize) -> WorkerBindings {
        let mut memory = MemoryLocation::new(HashKey::new([1; 16]), Limits::default());
        let now = Now {
            mono: START,
            unix_s: 1_800_000_000,
        };
        for user in 0..users {
            let aor = Aor::from_canonical(format!("u{user}@example.com").as_bytes());
            let uri = format!("sip:u{user}@192.0.2.1;pn-provider=fcm;pn-prid=t{user}");
            let binding = Binding::new(&NewBinding {
                uri: uri.as_bytes(),
                params: b"",
                instance: b"",
                call_id: b"1",
                cseq: 1,
                path: b"",
                agent: b"",
                flow: None,
                q: NO_Q,
                reg_id: 0,
                gruu: 0,
                expires: START.plus_secs(3_600),
                updated: START,
            });
            let aor = aor.expect("short");
            let Found::Bindings(revision, _) = memory.find(&aor) else {
                panic!("memory knows");
            };
            let mut changes = vec![Change::Add(binding.expect("short"))];
            let saved = memory.change(now, &aor, revision, &mut changes);
            let _ = saved.expect("there is room");
        }
        WorkerBindings::InMemory(memory)
    }

    /// Reads what is unread. Returns how many steps that has.
    fn read_all(refreshes: &mut Refreshes, now: Mono, bindings: &WorkerBindings) -> usize {
        let mut steps = 0;
        while refreshes.unread.is_some() {
            assert_eq!(refreshes.next_deadline(), Some(Mono(0)));
            assert_eq!(refreshes.next_due(now, bindings), None, "nobody is woken");
            steps += 1;
        }
        steps
    }

    #[test]
    fn after_a_reload_all_bindings_are_read_in_parts_before_a_phone_is_woken() {
        let users = 10 * PLACES_PER_WAKE_UP + 7;
        let bindings = bindings(users);
        let mut refreshes = Refreshes::new(config(130));
        refreshes.restart();
        // The last step finds that there is no further place.
        assert_eq!(read_all(&mut refreshes, START, &bindings), 12);
        let due = START.plus_secs(3_600 - 130);
        assert_eq!(refreshes.next_deadline(), Some(due));
        refreshes.configure(config(130));
        assert_eq!(refreshes.next_deadline(), Some(due), "nothing has changed");
        refreshes.configure(config(600));
        let due = START.plus_secs(3_600 - 600);
        assert_eq!(read_all(&mut refreshes, due, &bindings), 12);
        assert_eq!(refreshes.next_deadline(), Some(due));
        let woken = std::iter::from_fn(|| refreshes.next_due(due, &bindings));
        assert_eq!(woken.count(), users, "each phone once");
        // Without push services, nothing is read.
        refreshes.configure(RefreshConfig::default());
        assert_eq!(refreshes.next_deadline(), None);
    }

    #[test]
    fn a_binding_that_is_refreshed_while_others_are_read_is_noted_once() {
        let bindings = bindings(3);
        let mut refreshes = Refreshes::new(config(130));
        refreshes.restart();
        let Some((aor, its)) = bindings.part(0, 1).and_then(|mut it| it.next()) else {
            panic!("a binding");
        };
        let aor = Aor::from_canonical(aor).expect("short");
        refreshes.note(START, &aor, its);
        read_all(&mut refreshes, START, &bindings);
        let due = START.plus_secs(3_600 - 130);
        let woken = std::iter::from_fn(|| refreshes.next_due(due, &bindings));
        assert_eq!(woken.count(), 3);
    }

    #[test]
    fn a_process_that_takes_no_new_clients_wakes_no_phone() {
        let bindings = bindings(2);
        let mut refreshes = Refreshes::new(config(130));
        refreshes.restart();
        let due = START.plus_secs(3_600 - 130);
        read_all(&mut refreshes, due, &bindings);
        refreshes.pause(true);
        assert_eq!(refreshes.next_deadline(), None);
        assert_eq!(refreshes.next_due(due, &bindings), None);
        // The other process has ended.
        refreshes.pause(false);
        assert_eq!(refreshes.next_deadline(), Some(due));
        assert!(refreshes.next_due(due, &bindings).is_some());
    }
}
