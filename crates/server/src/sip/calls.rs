//! The limits of calls of users, domains and trunks, the numbers that they may call, and the calls that count.

use super::report::{Reporter, SipEvent};
use super::settings::{CallSettings, SipConfig};
use sip::{Method, Mono};
use sip_server::Aor;
use sip_server::calls::{
    Bye, CallEnd, CallRecord, Counted, Counters, DialogId, DialogLifetime, Dialogs, DialogsCursor,
    EndedBy, Exceeded, Numbers, Ticket,
};
use sip_server::proxy::{Denied, NewCall, SessionTimer};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Why calls are refused, in the order of [`SipCounters::calls_refused`](super::SipCounters::calls_refused).
pub const CALL_REFUSALS: [&str; 7] = [
    "user_calls",
    "user_rate",
    "domain_calls",
    "domain_rate",
    "number",
    "trunk_calls",
    "trunk_rate",
];

/// The index of a forbidden number in [`CALL_REFUSALS`].
const FORBIDDEN_NUMBER_INDEX: usize = 4;

/// The index of the first limit of calls from a trunk in [`CALL_REFUSALS`].
const FIRST_TRUNK_INDEX: usize = 5;

/// The maximum of log lines per second and worker about calls that the proxy refuses before it has tried a target.
/// Anybody can send such calls. Calls that exceed a limit of a trunk or a user have another counter with this maximum.
const MAX_REFUSED_LINES_PER_S: u32 = 100;

/// How many lines about calls in progress the server writes at a time when it ends. It pauses between them, because the
/// queue of lines has a limit. The end of the server does not wait longer than [`LAST_LINES_TIMEOUT`].
const LINES_AT_ONCE: usize = 500;
const LINES_PAUSE: Duration = Duration::from_millis(10);
const LAST_LINES_TIMEOUT: Duration = Duration::from_secs(2);

/// The sender in log lines about a call between two trunks.
const TRUNK_SENDER: &[u8] = b"(trunk)";

/// The calls of all workers.
#[derive(Debug, Default)]
pub(crate) struct SharedCalls {
    users: Counters<Box<[u8]>>,
    domains: Counters<Box<[u8]>>,
    dialogs: Dialogs,
}

/// The limits of calls at one worker.
#[derive(Debug)]
pub(super) struct CallControl {
    shared: Arc<SharedCalls>,
    settings: CallSettings,
    numbers: Numbers,
    /// The domain of a user, if neither its name nor From has one.
    first_domain: Box<[u8]>,
    /// Whether a trunk has a limit of calls.
    limits_trunks: bool,
    reporter: Reporter,
    /// Limits the lines "call ended" about calls that the proxy refuses before it has tried a target.
    refused_lines: LineLimit,
    /// Limits the lines "call refused" about calls that exceed a limit, or that are to a forbidden number.
    limit_lines: LineLimit,
    /// Refused calls, in the order of [`CALL_REFUSALS`].
    pub(super) refused: [u64; CALL_REFUSALS.len()],
}

impl CallControl {
    pub(super) fn new(shared: Arc<SharedCalls>, sip_config: &SipConfig) -> CallControl {
        let settings = sip_config.settings.calls.clone();
        let first = sip_config.settings.domains.first();
        CallControl {
            shared,
            numbers: Numbers::new(&settings.forbidden_prefixes, &settings.allowed_prefixes),
            settings,
            refused_lines: LineLimit::default(),
            limit_lines: LineLimit::default(),
            limits_trunks: sip_config
                .settings
                .trunks
                .iter()
                .any(|it| it.max_calls > 0 || it.max_calls_from > 0),
            first_domain: first.map_or_else(Box::default, |it| {
                it.name.to_ascii_lowercase().into_bytes().into()
            }),
            reporter: sip_config.reporter.clone(),
            refused: [0; CALL_REFUSALS.len()],
        }
    }

    /// Applies new settings. Calls in progress stay.
    pub(super) fn apply_settings(&mut self, sip_config: &SipConfig) {
        *self = CallControl {
            refused: self.refused,
            refused_lines: self.refused_lines,
            limit_lines: self.limit_lines,
            ..CallControl::new(self.shared.clone(), sip_config)
        };
    }

    fn is_limited(&self) -> bool {
        self.settings.per_user.is_set() || self.settings.per_domain.is_set()
    }

    /// Whether the proxy follows dialogs to their ends.
    pub(super) fn follows_dialogs(&self) -> bool {
        self.is_limited() || self.limits_trunks || self.records_calls()
    }

    /// The number of dialogs of all workers that count now, and of those that have ended without a BYE.
    pub(super) fn counts(&self) -> (u64, u64) {
        (self.shared.dialogs.len(), self.shared.dialogs.expired())
    }

    /// When the next dialog expires.
    pub(super) fn next_deadline(&self) -> Option<Mono> {
        self.shared.dialogs.next_deadline()
    }

    /// Removes the dialogs that have expired, and logs their calls.
    pub(super) fn expire(&self, now: Mono) {
        for record in self.shared.dialogs.expire(now) {
            self.closed(now, &record, EndedBy::Expiry.into());
        }
    }

    /// Calls `list` with the records of at most `most` answered calls of all workers. Returns where the next part
    /// begins.
    pub(super) fn list(
        &self,
        now: Mono,
        place: DialogsCursor,
        most: usize,
        list: &mut dyn FnMut(&CallRecord, Duration),
    ) -> Option<DialogsCursor> {
        self.shared.dialogs.list(now, place, most, list)
    }

    /// Whether each call has a record.
    pub(super) const fn records_calls(&self) -> bool {
        self.settings.log || self.reporter.wants_calls()
    }

    /// Reports and logs a call that has ended.
    fn closed(&self, now: Mono, record: &CallRecord, end: CallEnd<'_>) {
        self.report_end(now, record, end.by);
        if self.logs() {
            CallControl::write(now, record, end);
        }
    }

    /// Reports and logs a call that has ended. Writes a limited number of lines about refused calls.
    pub(super) fn call_ended(&mut self, now: Mono, record: &CallRecord, end: CallEnd<'_>) {
        self.report_end(now, record, end.by);
        if self.logs() && self.admits_line(now, record) {
            CallControl::write(now, record, end);
        }
    }

    fn report_end(&self, now: Mono, record: &CallRecord, ended_by: EndedBy) {
        if self.reporter.wants_calls() {
            let call = record.line(now);
            self.reporter
                .report(&SipEvent::CallClosed { call, ended_by });
        }
    }

    /// Whether a call that has a record gets a log line. A reload may have switched the lines off. If no hook wants
    /// calls, records from before it still get their lines.
    fn logs(&self) -> bool {
        self.settings.log || !self.reporter.wants_calls()
    }

    fn admits_line(&mut self, now: Mono, record: &CallRecord) -> bool {
        let line = record.line(now);
        let is_refusal = line.tried == 0 && line.code >= 300;
        !is_refusal || self.refused_lines.may_write(now)
    }

    /// Writes the log lines of all calls in progress, because the server ends. `ringing` has those without an answer.
    pub(super) fn finish(&self, now: Mono, ringing: &[CallRecord]) {
        let until = Instant::now() + LAST_LINES_TIMEOUT;
        let end = EndedBy::Server.into();
        for part in ringing.chunks(LINES_AT_ONCE) {
            part.iter()
                .for_each(|record| CallControl::write(now, record, end));
            pause_between(part.len(), until);
        }
        let dialogs = &self.shared.dialogs;
        let mut write = |record: &CallRecord| CallControl::write(now, record, end);
        while dialogs.drain(LINES_AT_ONCE, &mut write) {
            pause_between(LINES_AT_ONCE, until);
        }
    }

    /// Writes the log line of a call that has ended.
    fn write(now: Mono, record: &CallRecord, end: CallEnd<'_>) {
        let line = record.line(now);
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let ms = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
        let target = line.target_leg;
        tracing::info!(
            call_id = text(line.call_id),
            from = text(line.from),
            to = text(line.to),
            source = text(line.source),
            source_address = %line.source_leg.remote,
            source_transport = line.source_leg.transport.via_name(),
            target = text(line.target),
            target_address = target.map(|leg| tracing::field::display(leg.remote)),
            target_transport = target.map(|leg| leg.transport.via_name()),
            tried = line.tried,
            failed = Some(text(line.failed)).filter(|failed| !failed.is_empty()),
            began_unix_s = line.began_unix_s,
            ring_ms = line.rang.map(ms),
            answer_ms = line.answered.map(ms),
            end_ms = ms(line.lasted),
            code = line.code,
            reason = Some(end.reason).filter(|reason| !reason.is_empty()),
            ended_by = end.by.name(),
            "call ended"
        );
    }

    /// Whether the proxy must follow refreshes and BYEs: a limit is set, calls are logged, or dialogs from before a
    /// reload still count.
    pub(super) fn counts_calls(&self) -> bool {
        self.follows_dialogs() || !self.shared.dialogs.is_empty()
    }

    /// The session timer that the proxy asks for (RFC 4028). `None` if it does not follow dialogs, or the setting is 0.
    pub(super) fn session_timer(&self) -> Option<SessionTimer> {
        let seconds = |time: Duration| u32::try_from(time.as_secs()).unwrap_or(u32::MAX);
        let expires = seconds(self.settings.session_expires);
        (self.follows_dialogs() && expires != 0).then(|| SessionTimer {
            expires,
            min: seconds(self.settings.session_min).min(expires),
        })
    }

    /// Whether a request outside of dialogs may be forwarded. `from` is the local address of record in its From. If a
    /// trunk has sent the request and its From has none, `from` is the one in the Request-URI.
    pub(super) fn admit(
        &mut self,
        now: Mono,
        call: &NewCall<'_>,
        from: Option<&Aor>,
    ) -> Result<Vec<Ticket>, Denied> {
        // The limits apply to calls of users and to calls between trunks, because the server's owner pays for both.
        // They do not apply to calls from a trunk to a user here.
        let Some(user) = call
            .user
            .or((!call.rewritten.is_empty()).then_some(TRUNK_SENDER))
        else {
            return Ok(Vec::new());
        };
        if call.is_forbidden(&self.numbers) {
            return Err(self.refuse(now, user, FORBIDDEN_NUMBER_INDEX, Denied::Number));
        }
        if !self.is_limited() || call.message.method() != Some(Method::Invite) {
            return Ok(Vec::new());
        }
        let (per_user, per_domain) = (self.settings.per_user, self.settings.per_domain);
        let mut tickets = Vec::with_capacity(2);
        // The limits per user do not apply to a trunk, because a trunk carries the calls of many callers.
        if call.user.is_some() {
            let users = self.shared.users.begin(now, &user.into(), per_user);
            tickets.push(users.map_err(|exceeded| self.exceeded(now, user, 0, exceeded))?);
        }
        if per_domain.is_set() {
            let domain = self.domain_of(user, from).into();
            let domains = self.shared.domains.begin(now, &domain, per_domain);
            tickets.push(domains.map_err(|exceeded| self.exceeded(now, user, 2, exceeded))?);
        }
        Ok(tickets)
    }

    /// Whether the configuration forbids the number in this URI.
    pub(super) fn is_forbidden_number(&self, uri: &[u8]) -> bool {
        self.numbers.forbid(uri)
    }

    /// The domain of a user: that of the name, or of From, which may be anonymous.
    fn domain_of<'d>(&'d self, user: &'d [u8], from: Option<&'d Aor>) -> &'d [u8] {
        let at = user.iter().rposition(|byte| *byte == b'@');
        match (at, from) {
            (Some(at), _) => &user[at + 1..],
            (None, Some(from)) => from.domain(),
            (None, None) => &self.first_domain,
        }
    }

    /// Refuses a call that exceeds a limit. `first` is the index of the limit of concurrent calls in [`CALL_REFUSALS`].
    /// The limit of calls per second follows it.
    fn exceeded(&mut self, now: Mono, user: &[u8], first: usize, exceeded: Exceeded) -> Denied {
        let (index, denied) = match exceeded {
            Exceeded::Concurrent => (first, Denied::Concurrent),
            Exceeded::Rate => (first + 1, Denied::Rate),
        };
        self.refuse(now, user, index, denied)
    }

    /// Refuses a call of a trunk that has sent more calls than its limits allow.
    pub(super) fn exceeded_by_trunk(
        &mut self,
        now: Mono,
        trunk: &[u8],
        exceeded: Exceeded,
    ) -> Denied {
        self.exceeded(now, trunk, FIRST_TRUNK_INDEX, exceeded)
    }

    /// Counts and logs a refused call. `index` is that of the reason in [`CALL_REFUSALS`]. Returns `denied`.
    fn refuse(&mut self, now: Mono, user: &[u8], index: usize, denied: Denied) -> Denied {
        self.refused[index] += 1;
        if self.limit_lines.may_write(now) {
            let (user, limit) = (String::from_utf8_lossy(user), CALL_REFUSALS[index]);
            tracing::info!(?user, limit, "call refused");
        }
        denied
    }

    /// Notes that the proxy forwards the first 2xx of an INVITE: the call counts until its dialog ends. `session` is
    /// its session interval (RFC 4028), if there is one.
    pub(super) fn answered(
        &self,
        now: Mono,
        dialog: DialogId,
        session: Option<Duration>,
        counted: Counted,
    ) {
        let lifetime = self.lifetime(session);
        let record = counted.record.as_deref();
        if let Some(record) = record.filter(|_| self.reporter.wants_calls()) {
            self.reporter
                .report(&SipEvent::CallOpened(record.line(now)));
        }
        // The ends of two calls with one identifier cannot always be told apart. So the record of the earlier call
        // ends.
        if let Some(earlier) = self.shared.dialogs.begin(now, dialog, lifetime, counted) {
            self.closed(now, &earlier, EndedBy::Expiry.into());
        }
    }

    /// Notes a 2xx to a re-INVITE or an UPDATE: the session lasts from now on (RFC 4028 §8.2).
    pub(super) fn refreshed(&self, now: Mono, dialog: DialogId, session: Option<Duration>) {
        let lifetime = self.lifetime(session);
        // The hook does not wait, and refreshes are minutes apart, so the lock is held for a moment only.
        self.shared
            .dialogs
            .refresh(now, dialog, lifetime, |record| {
                if self.reporter.wants_calls() {
                    self.reporter
                        .report(&SipEvent::CallRefreshed(record.line(now)));
                }
            });
    }

    /// Notes the final response to a BYE. Returns the record of the call if the BYE ends it.
    pub(super) fn ended(&self, dialog: DialogId, bye: &Bye) -> Option<Box<CallRecord>> {
        self.shared.dialogs.end(dialog, bye)
    }

    /// How long a dialog counts without a refresh or a BYE.
    fn lifetime(&self, session: Option<Duration>) -> DialogLifetime {
        DialogLifetime {
            session,
            most: self.settings.most,
        }
    }
}

/// Lets the log thread write lines.
fn pause_between(lines: usize, until: Instant) {
    if lines >= LINES_AT_ONCE && Instant::now() < until {
        std::thread::sleep(LINES_PAUSE);
    }
}

/// A limit of log lines per second.
#[derive(Debug, Default, Clone, Copy)]
struct LineLimit {
    /// The second that `written` is about.
    second: u64,
    written: u32,
    /// Lines that were left out since the last written line.
    left_out: u64,
}

impl LineLimit {
    /// Whether one more line may be written. If so, logs how many lines were left out since the last one.
    fn may_write(&mut self, now: Mono) -> bool {
        let admitted = self.admit(now);
        if let Some(left_out) = admitted.filter(|left_out| *left_out > 0) {
            tracing::warn!(lines = left_out, "lines about refused calls were left out");
        }
        admitted.is_some()
    }

    /// Whether one more line may be written. If so, returns how many lines were left out since the last one.
    fn admit(&mut self, now: Mono) -> Option<u64> {
        let second = now.0 / 1_000_000_000;
        if self.second != second {
            (self.second, self.written) = (second, 0);
        }
        if self.written >= MAX_REFUSED_LINES_PER_S {
            self.left_out += 1;
            return None;
        }
        self.written += 1;
        Some(std::mem::take(&mut self.left_out))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_about_refused_calls_are_limited_per_second_and_the_others_counted() {
        let mut lines = LineLimit::default();
        let at = |ms: u64| Mono(ms * 1_000_000);
        let written = (0..1000).filter(|_| lines.admit(at(1_500)).is_some());
        assert_eq!(written.count(), MAX_REFUSED_LINES_PER_S as usize);
        assert_eq!(lines.admit(at(1_999)), None);
        assert_eq!(lines.admit(at(2_000)), Some(901));
        assert_eq!(lines.admit(at(2_001)), Some(0));
    }

    /// What is logged on this thread.
    #[derive(Clone, Default)]
    struct Log(Arc<std::sync::Mutex<Vec<u8>>>);

    impl std::io::Write for Log {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0.lock().expect("the log").extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_trunk_that_sends_too_many_calls_does_not_fill_the_log() {
        let mut calls = CallControl {
            shared: Arc::default(),
            settings: CallSettings::default(),
            numbers: Numbers::new(&[], &[]),
            first_domain: Box::default(),
            limits_trunks: true,
            reporter: Reporter::default(),
            refused_lines: LineLimit::default(),
            limit_lines: LineLimit::default(),
            refused: [0; CALL_REFUSALS.len()],
        };
        let log = Log::default();
        let writer = log.clone();
        let subscriber = tracing_subscriber::fmt()
            .with_ansi(false)
            .with_writer(move || writer.clone())
            .finish();
        tracing::subscriber::with_default(subscriber, || {
            for ms in 1_000..2_001 {
                let now = Mono(ms * 1_000_000);
                calls.exceeded_by_trunk(now, b"carrier", Exceeded::Rate);
            }
        });
        let text = log.0.lock().expect("the log").clone();
        let text = String::from_utf8(text).expect("text");
        let of_calls = text.lines().filter(|line| line.contains("call refused "));
        assert_eq!(
            of_calls.count(),
            MAX_REFUSED_LINES_PER_S as usize + 1,
            "{text}"
        );
        assert!(text.contains("left out lines=900"), "{text}");
        assert_eq!(calls.refused[FIRST_TRUNK_INDEX + 1], 1_001);
    }
}
