//! Notifications that have phones refresh their bindings before these end (RFC 8599 §5.5).

use std::collections::{BTreeSet, HashMap};
use std::time::Duration;

use sip::Mono;

use super::{PushParams, prid_of};
use crate::Aor;
use crate::location::Binding;

/// RFC 8599 §5.5 recommends that a phone is notified at least so long before its binding ends.
pub const LEAST_LEAD: Duration = Duration::from_secs(120);

/// The media feature tag of a contact whose phone refreshes by itself (RFC 8599 §4.1.4).
pub(crate) const REFRESHES_ITSELF: &[u8] = b"+sip.pnsreg";

/// Which phones are notified, and when.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RefreshConfig {
    /// The push services. Phones of other ones are not notified.
    pub providers: Vec<String>,
    /// How long before its binding ends a phone is notified. A phone that refreshes by itself must do so by then; if it
    /// has not, it is notified [`LEAST_LEAD`] before the end, or after this time if that is later.
    pub lead: Duration,
}

impl RefreshConfig {
    /// When the phone of this binding is notified. `None` if it cannot be, or if the binding is so short that it would
    /// have to be at once (RFC 8599 §5.6.1.1).
    fn due(&self, binding: &Binding) -> Option<Mono> {
        prid_of(binding.uri(), &self.providers)?;
        let is_short = binding.expires().since(binding.updated()) <= self.lead;
        let lead = match refreshes_itself(binding.params()) {
            true => self.lead.min(LEAST_LEAD),
            false => self.lead,
        };
        let lead = u64::try_from(lead.as_nanos()).unwrap_or(u64::MAX);
        (!is_short).then(|| Mono(binding.expires().0.saturating_sub(lead)))
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
    /// Phones that were due then, or before, were notified.
    done: Mono,
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    at: Mono,
    done: Mono,
}

/// When phones are due: one entry for each address of record with a phone that can be woken.
///
/// Whoever keeps the bindings calls [`Refreshes::note`] after each change of an address, and [`Refreshes::pop_due`] at
/// [`Refreshes::next_deadline`].
#[derive(Debug, Default)]
pub struct Refreshes {
    entries: HashMap<Box<[u8]>, Entry>,
    order: BTreeSet<(Mono, Box<[u8]>)>,
}

impl Refreshes {
    /// When to call [`Refreshes::pop_due`].
    #[must_use]
    pub fn next_deadline(&self) -> Option<Mono> {
        self.order.first().map(|(at, _)| *at)
    }

    /// These are the bindings of an address now. If the address is not known, nobody is notified who was due before
    /// `now`.
    pub fn note(&mut self, now: Mono, aor: &[u8], bindings: &[Binding], config: &RefreshConfig) {
        let earlier = self.remove(aor);
        let done = earlier.map_or(now, |entry| entry.done);
        let due = bindings.iter().filter_map(|binding| config.due(binding));
        if let Some(at) = due.filter(|at| *at > done).min() {
            self.insert(aor, Entry { at, done });
        }
    }

    /// An address of record that has a phone that is due. It is not noted any more.
    pub fn pop_due(&mut self, now: Mono) -> Option<DueRefresh> {
        while self.next_deadline()? <= now {
            let (_, aor) = self.order.pop_first()?;
            let entry = self.entries.remove(&aor)?;
            if let Some(aor) = Aor::from_canonical(&aor) {
                let done = entry.done;
                return Some(DueRefresh { aor, done });
            }
        }
        None
    }

    /// A notification was not accepted: it is tried again then.
    pub fn retry(&mut self, due: &DueRefresh, at: Mono) {
        self.remove(due.aor.as_bytes());
        let done = due.done;
        self.insert(due.aor.as_bytes(), Entry { at, done });
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
            let due = config.due(binding);
            !binding.is_expired(now) && due.is_some_and(|at| at > self.done && at <= now)
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
    fn due(all: &mut Refreshes, now: u64, bindings: &[Binding]) -> Vec<(String, u64)> {
        let mut phones = Vec::new();
        while let Some(due) = all.pop_due(at(now)) {
            phones.extend(due.phones(at(now), bindings, &config()));
            all.note(at(now), due.aor.as_bytes(), bindings, &config());
        }
        let phones = phones.into_iter();
        let named = phones.map(|it| (it.params.prid.unwrap_or_default(), it.left.as_secs()));
        named.collect()
    }

    #[test]
    fn a_phone_is_notified_once_before_its_binding_ends_rfc8599_5_5() {
        let mut all = Refreshes::default();
        let mut bindings = vec![binding("x", "", (0, 3600)), binding("x", "", (0, 3600))];
        all.note(at(0), AOR, &bindings, &config());
        assert_eq!(all.next_deadline(), Some(at(3470)));
        assert!(due(&mut all, 3469, &bindings).is_empty());
        // Two contacts have one token.
        assert_eq!(due(&mut all, 3470, &bindings), [("x".to_owned(), 130)]);
        assert_eq!(all.next_deadline(), None);
        // It refreshes one second later.
        bindings = vec![binding("x", "", (3471, 7071))];
        all.note(at(3471), AOR, &bindings, &config());
        assert_eq!(due(&mut all, 6941, &bindings), [("x".to_owned(), 130)]);
    }

    #[test]
    fn a_phone_that_refreshes_by_itself_is_notified_if_it_has_not_rfc8599_5_5() {
        let mut all = Refreshes::default();
        let params = ";x=\"y\";+SIP.pnsreg;z";
        let bindings = [
            binding("x", params, (0, 3600)),
            binding("y", ";+sip.pnsreg2", (0, 3600)),
        ];
        all.note(at(0), AOR, &bindings, &config());
        assert_eq!(due(&mut all, 3479, &bindings), [("y".to_owned(), 121)]);
        assert_eq!(due(&mut all, 3480, &bindings), [("x".to_owned(), 120)]);
        assert_eq!(all.next_deadline(), None);
    }

    #[test]
    fn a_binding_that_is_gone_or_too_short_is_not_notified_rfc8599_5_5() {
        let mut all = Refreshes::default();
        let bindings = [binding("x", "", (0, 3600))];
        all.note(at(0), AOR, &bindings, &config());
        assert!(due(&mut all, 3470, &[]).is_empty(), "it was removed");
        all.note(at(0), AOR, &bindings, &config());
        all.note(at(1), AOR, &[], &config());
        assert_eq!(all.next_deadline(), None);
        all.note(at(0), AOR, &bindings, &config());
        assert!(due(&mut all, 3600, &bindings).is_empty(), "it has ended");
        let short = [binding("x", "", (0, 130))];
        all.note(at(0), AOR, &short, &config());
        assert_eq!(all.next_deadline(), None);
        let other = RefreshConfig {
            providers: vec!["apns".to_owned()],
            ..config()
        };
        all.note(at(0), AOR, &bindings, &other);
        assert_eq!(all.next_deadline(), None);
        assert!(all.entries.is_empty() && all.order.is_empty());
    }

    #[test]
    fn a_notification_that_is_not_accepted_is_tried_again() {
        let mut all = Refreshes::default();
        let bindings = [binding("x", "", (0, 3600)), binding("y", "", (0, 3605))];
        all.note(at(0), AOR, &bindings, &config());
        let first = all.pop_due(at(3470)).expect("one");
        assert_eq!(first.phones(at(3470), &bindings, &config()).len(), 1);
        all.retry(&first, at(3475));
        assert_eq!(all.pop_due(at(3474)), None);
        // Another phone of the address registers meanwhile: what is open stays open.
        let more = [&bindings[..], &[binding("z", "", (3472, 7200))]].concat();
        all.note(at(3472), AOR, &more, &config());
        let names = due(&mut all, 3475, &more);
        assert_eq!(names, [("x".to_owned(), 125), ("y".to_owned(), 130)]);
        assert_eq!(all.next_deadline(), Some(at(7070)));
    }

    #[test]
    fn bindings_of_an_earlier_run_are_noted_from_the_beginning() {
        let mut all = Refreshes::default();
        let bindings = [binding("x", "", (0, 3600))];
        all.note(Mono(0), AOR, &bindings, &config());
        assert_eq!(due(&mut all, 3500, &bindings), [("x".to_owned(), 100)]);
    }
}
