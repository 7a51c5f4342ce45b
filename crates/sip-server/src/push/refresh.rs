//! Notifications that have phones refresh their bindings before these end (RFC 8599 §5.5).

use std::collections::{BTreeSet, HashMap};
use std::time::Duration;

use sip::Mono;

use super::{PushParams, prid_of};
use crate::Aor;
use crate::location::Binding;

/// RFC 8599 §5.5 recommends that a phone is notified at least so long before its binding ends.
pub const RECOMMENDED_LEAD: Duration = Duration::from_secs(120);

/// The media feature tag of a contact whose phone refreshes by itself (RFC 8599 §4.1.4).
pub(crate) const REFRESHES_ITSELF: &[u8] = b"+sip.pnsreg";

/// Which phones are notified, and when.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RefreshConfig {
    /// The push services. Phones of other ones are not notified.
    pub providers: Vec<String>,
    /// How long before its binding ends a phone is notified. If it has not refreshed, it is notified again when half of
    /// this time is left, and a quarter. A phone that refreshes by itself must do so by then; for it, the time is
    /// [`RECOMMENDED_LEAD`] if that is shorter.
    pub lead: Duration,
}

impl RefreshConfig {
    /// When the phone of this binding is notified while it does not refresh. `None` if it has no push service of these,
    /// or if the binding lasts no longer than `lead` (RFC 8599 §5.6.1.1).
    fn notification_times(&self, binding: &Binding) -> Option<[Mono; 3]> {
        prid_of(binding.uri(), &self.providers)?;
        // The time of a REGISTER from before the boot is not known.
        let is_dated = binding.updated() > Mono(0);
        let is_short = is_dated && binding.expires().since(binding.updated()) <= self.lead;
        let lead = match refreshes_itself(binding.params()) {
            true => self.lead.min(RECOMMENDED_LEAD),
            false => self.lead,
        };
        let lead = u64::try_from(lead.as_nanos()).unwrap_or(u64::MAX);
        let before_end = |left: u64| Mono(binding.expires().0.saturating_sub(left));
        (!is_short).then(|| [lead, lead / 2, lead / 4].map(before_end))
    }
}

/// Whether the parameters of a contact have the media feature tag.
fn refreshes_itself(params: &[u8]) -> bool {
    let mut params = params.split(|byte| *byte == b';');
    params.any(|param| {
        let name = param.split(|byte| *byte == b'=').next().unwrap_or_default();
        name.trim_ascii().eq_ignore_ascii_case(REFRESHES_ITSELF)
    })
}

/// A phone that is to refresh its binding.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RefreshPush {
    /// How it is reached.
    pub params: PushParams,
    /// How long its binding lasts from now on.
    pub left: Duration,
}

/// An address of record, some of whose phones may be due.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DueRefresh {
    /// The address of record.
    pub aor: Aor,
    /// Notifications of this time and before were sent. `None`: it is not known which ones.
    sent_until: Option<Mono>,
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    at: Mono,
    /// As in [`DueRefresh`].
    sent_until: Option<Mono>,
}

/// When phones are due: one entry for each address of record with a phone that can be woken.
///
/// Whoever keeps the bindings calls [`RefreshSchedule::note`] after each change of an address, and
/// [`RefreshSchedule::pop_due`] at [`RefreshSchedule::next_deadline`].
#[derive(Debug, Default)]
pub struct RefreshSchedule {
    entries: HashMap<Box<[u8]>, Entry>,
    order: BTreeSet<(Mono, Box<[u8]>)>,
    /// No phone is due before this time.
    paused_until: Mono,
}

impl RefreshSchedule {
    /// When to call [`RefreshSchedule::pop_due`].
    #[must_use]
    pub fn next_deadline(&self) -> Option<Mono> {
        self.order.first().map(|(at, _)| self.paused_until.max(*at))
    }

    /// Notes the current bindings of an address. If the schedule does not know the address, it sends no notification up
    /// to `sent_until` again. `None`: it is unknown which ones were sent, so a phone gets its latest one.
    pub fn note(
        &mut self,
        sent_until: Option<Mono>,
        aor: &[u8],
        bindings: &[Binding],
        config: &RefreshConfig,
    ) {
        let earlier = self.remove(aor);
        let sent_until = earlier.map_or(sent_until, |entry| entry.sent_until);
        let times = bindings
            .iter()
            .filter_map(|it| config.notification_times(it));
        let open = times.flatten().filter(|at| Some(*at) > sent_until);
        if let Some(at) = open.min() {
            self.insert(aor, Entry { at, sent_until });
        }
    }

    /// Removes an address of record with a phone that is due. The caller then calls [`RefreshSchedule::note`] or
    /// [`RefreshSchedule::retry`].
    pub fn pop_due(&mut self, now: Mono) -> Option<DueRefresh> {
        while self.next_deadline()? <= now {
            let (_, aor) = self.order.pop_first()?;
            let entry = self.entries.remove(&aor)?;
            if let Some(aor) = Aor::from_canonical(&aor) {
                let sent_until = entry.sent_until;
                return Some(DueRefresh { aor, sent_until });
            }
        }
        None
    }

    /// A notification was not accepted: no phone is due before this time.
    pub fn retry(&mut self, due: &DueRefresh, at: Mono) {
        self.remove(due.aor.as_bytes());
        self.paused_until = at;
        let sent_until = due.sent_until;
        self.insert(due.aor.as_bytes(), Entry { at, sent_until });
    }

    fn insert(&mut self, aor: &[u8], entry: Entry) {
        self.entries.insert(aor.into(), entry);
        self.order.insert((entry.at, aor.into()));
    }

    fn remove(&mut self, aor: &[u8]) -> Option<Entry> {
        let (aor, entry) = self.entries.remove_entry(aor)?;
        self.order.remove(&(entry.at, aor));
        Some(entry)
    }
}

impl DueRefresh {
    /// The phones that are due, each once.
    #[must_use]
    pub fn phones(
        &self,
        now: Mono,
        bindings: &[Binding],
        config: &RefreshConfig,
    ) -> Vec<RefreshPush> {
        let is_due = |binding: &&Binding| {
            let mut times = config.notification_times(binding).into_iter().flatten();
            let is_open = |at: Mono| Some(at) > self.sent_until && at <= now;
            !binding.is_expired(now) && times.any(is_open)
        };
        let mut phones: Vec<RefreshPush> = Vec::new();
        for binding in bindings.iter().filter(is_due) {
            let Some(params) = PushParams::of(binding.uri()) else {
                continue;
            };
            if phones.iter().all(|phone| phone.params != params) {
                let left = binding.expires().since(now);
                phones.push(RefreshPush { params, left });
            }
        }
        phones
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::location::{NO_Q, NewBinding};

    const SECOND: u64 = 1_000_000_000;

    fn config() -> RefreshConfig {
        RefreshConfig {
            providers: vec!["fcm".to_owned()],
            lead: Duration::from_secs(130),
        }
    }

    fn at(seconds: u64) -> Mono {
        Mono(seconds * SECOND)
    }

    /// A binding from one second to another.
    fn binding(prid: &str, params: &str, (updated, expires): (u64, u64)) -> Binding {
        let uri = format!("sip:a@192.0.2.1;pn-provider=fcm;pn-prid={prid}");
        Binding::new(&NewBinding {
            uri: uri.as_bytes(),
            params: params.as_bytes(),
            instance: b"",
            call_id: b"c",
            cseq: 1,
            path: b"",
            agent: b"",
            flow: None,
            q: NO_Q,
            reg_id: 0,
            gruu: 0,
            expires: at(expires),
            updated: at(updated),
        })
        .expect("a binding")
    }

    const AOR: &[u8] = b"a@example.com";

    /// The tokens of the phones that are due, and how long their bindings last.
    fn due(all: &mut RefreshSchedule, now: u64, bindings: &[Binding]) -> Vec<(String, u64)> {
        let mut phones = Vec::new();
        while let Some(due) = all.pop_due(at(now)) {
            phones.extend(due.phones(at(now), bindings, &config()));
            all.note(Some(at(now)), due.aor.as_bytes(), bindings, &config());
        }
        let phones = phones.into_iter();
        let named = phones.map(|it| (it.params.prid.unwrap_or_default(), it.left.as_secs()));
        named.collect()
    }

    #[test]
    fn a_phone_is_notified_until_it_refreshes_rfc8599_5_5() {
        let mut all = RefreshSchedule::default();
        let mut bindings = vec![binding("x", "", (0, 3600)), binding("x", "", (0, 3600))];
        all.note(Some(at(0)), AOR, &bindings, &config());
        assert_eq!(all.next_deadline(), Some(at(3470)));
        assert!(due(&mut all, 3469, &bindings).is_empty());
        // Two contacts have one token.
        assert_eq!(due(&mut all, 3470, &bindings), [("x".to_owned(), 130)]);
        assert_eq!(due(&mut all, 3535, &bindings), [("x".to_owned(), 65)]);
        assert_eq!(due(&mut all, 3568, &bindings), [("x".to_owned(), 32)]);
        assert_eq!(all.next_deadline(), None);
        // It refreshes one second after the first notification.
        for end in [7071, 10_671] {
            bindings = vec![binding("x", "", (end - 3600, end))];
            all.note(Some(at(end - 3600)), AOR, &bindings, &config());
            let left = [("x".to_owned(), 130)];
            assert_eq!(due(&mut all, end - 130, &bindings), left);
        }
    }

    #[test]
    fn a_phone_that_refreshes_by_itself_is_notified_if_it_has_not_rfc8599_5_5() {
        let mut all = RefreshSchedule::default();
        let params = ";x=\"y\";+SIP.pnsreg;z";
        let bindings = [
            binding("x", params, (0, 3600)),
            binding("y", ";+sip.pnsreg2", (0, 3600)),
        ];
        all.note(Some(at(0)), AOR, &bindings, &config());
        assert_eq!(due(&mut all, 3479, &bindings), [("y".to_owned(), 121)]);
        assert_eq!(due(&mut all, 3480, &bindings), [("x".to_owned(), 120)]);
        assert_eq!(all.next_deadline(), Some(at(3535)));
    }

    #[test]
    fn a_binding_that_is_gone_or_too_short_is_not_notified_rfc8599_5_5() {
        let mut all = RefreshSchedule::default();
        let bindings = [binding("x", "", (0, 3600))];
        all.note(Some(at(0)), AOR, &bindings, &config());
        assert!(due(&mut all, 3470, &[]).is_empty(), "it was removed");
        all.note(Some(at(0)), AOR, &bindings, &config());
        all.note(Some(at(1)), AOR, &[], &config());
        assert_eq!(all.next_deadline(), None);
        all.note(Some(at(0)), AOR, &bindings, &config());
        assert!(due(&mut all, 3600, &bindings).is_empty(), "it has ended");
        let short = [binding("x", "", (1, 131))];
        all.note(Some(at(0)), AOR, &short, &config());
        assert_eq!(all.next_deadline(), None);
        let other = RefreshConfig {
            providers: vec!["apns".to_owned()],
            ..config()
        };
        all.note(Some(at(0)), AOR, &bindings, &other);
        assert_eq!(all.next_deadline(), None);
        assert!(all.entries.is_empty() && all.order.is_empty());
    }

    #[test]
    fn a_notification_that_is_not_accepted_is_tried_again() {
        let mut all = RefreshSchedule::default();
        let bindings = [binding("x", "", (0, 3600)), binding("y", "", (0, 3605))];
        all.note(Some(at(0)), AOR, &bindings, &config());
        let first = all.pop_due(at(3470)).expect("one");
        assert_eq!(first.phones(at(3470), &bindings, &config()).len(), 1);
        all.retry(&first, at(3475));
        assert_eq!(
            (all.pop_due(at(3474)), all.next_deadline()),
            (None, Some(at(3475)))
        );
        // Another phone of the address registers meanwhile: what is open stays open.
        let more = [&bindings[..], &[binding("z", "", (3472, 7200))]].concat();
        all.note(Some(at(3472)), AOR, &more, &config());
        let names = due(&mut all, 3475, &more);
        assert_eq!(names, [("x".to_owned(), 125), ("y".to_owned(), 130)]);
        assert_eq!(all.next_deadline(), Some(at(3535)));
    }

    #[test]
    fn bindings_of_an_earlier_run_are_noted_from_the_beginning() {
        let mut all = RefreshSchedule::default();
        let bindings = [binding("x", "", (0, 3600))];
        all.note(None, AOR, &bindings, &config());
        assert_eq!(due(&mut all, 3500, &bindings), [("x".to_owned(), 100)]);
        // It ends soon after the boot, and its time before the boot is not known.
        all = RefreshSchedule::default();
        let bindings = [binding("x", "", (0, 100))];
        all.note(None, AOR, &bindings, &config());
        assert_eq!(due(&mut all, 20, &bindings), [("x".to_owned(), 80)]);
    }
}
