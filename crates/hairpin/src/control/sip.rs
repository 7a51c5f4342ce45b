//! Registration bindings, calls, their messages, and trunks of SIP. The control socket and the API list them in the
//! same way.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};
use server::sip::routes::{AddressError, AddressStatus};
use server::sip::{
    BindingInfo, BindingsCursor, CallInfo, CallsCursor, InspectError, SipInspector, TraceCursor,
    TracedMessage, TrunkInfo,
};

use super::protocol::{Command, Refusal, Reply};
use super::serve::Shared;
use crate::audit::Audit;

/// Entries of one reply. With the longest texts, they stay below the size limit.
const PAGE_ENTRIES: usize = 150;
/// If a reply has this number of bytes of SIP messages, no further part is added, so that it stays below the size
/// limit. A part has at most 64 KiB and one message more.
const MESSAGE_BYTES: usize = 128 << 10;
/// Limit of parts that workers are asked for in one reply, so that a reply does not take long.
const MAX_PARTS: usize = 64;

/// Why there is nothing to list.
pub(crate) const NO_LISTENER: &str = "this server has no SIP listener: set sip.listen";

/// Why a request about SIP failed.
#[derive(Debug)]
pub(crate) enum SipError {
    /// A parameter is wrong.
    Wrong(String),
    /// There is no such binding.
    Missing(String),
    /// A worker did not respond.
    Busy(String),
}

impl From<InspectError> for SipError {
    fn from(error: InspectError) -> Self {
        let text = error.to_string();
        match error {
            InspectError::NotAnAddress(_) => SipError::Wrong(text),
            _ => SipError::Busy(text),
        }
    }
}

impl From<SipError> for Refusal {
    fn from(error: SipError) -> Self {
        match error {
            SipError::Wrong(text) | SipError::Missing(text) | SipError::Busy(text) => {
                Refusal::new(text)
            }
        }
    }
}

/// Which page of a list is wanted.
#[derive(Clone, Debug, Default)]
pub(crate) struct PageQuery {
    /// `next` of the previous page.
    pub(crate) after: Option<String>,
    /// Limit of entries.
    pub(crate) limit: usize,
    /// Only entries in which this text occurs, in any letter case.
    pub(crate) search: Option<String>,
    /// Only bindings of this address of record.
    pub(crate) aor: Option<String>,
}

impl PageQuery {
    /// Whether an entry with these texts is wanted.
    fn fits(&self, texts: &[&str]) -> bool {
        let Some(search) = &self.search else {
            return true;
        };
        let search = search.to_lowercase();
        texts
            .iter()
            .any(|text| text.to_lowercase().contains(&search))
    }

    /// The numbers of `after`, behind its first `-`-separated word if that is no number.
    fn numbers<const N: usize>(text: &str) -> Result<[u64; N], SipError> {
        let numbers: Option<Vec<u64>> = text.split('-').map(|part| part.parse().ok()).collect();
        let numbers = numbers.and_then(|numbers| numbers.try_into().ok());
        numbers.ok_or_else(|| {
            SipError::Wrong("after is malformed: send `next` of the previous page".to_owned())
        })
    }
}

/// Responds to a command about SIP. Blocks until workers respond.
pub(super) fn respond(command: Command, arguments: &Value, shared: &Shared, by: &str) -> Reply {
    let Some(sip) = &shared.sip else {
        return Err(Refusal::new(NO_LISTENER));
    };
    let text = |name: &str| arguments[name].as_str().map(str::to_owned);
    let wanted = PageQuery {
        after: text("after"),
        limit: PAGE_ENTRIES,
        search: text("search"),
        aor: text("aor"),
    };
    Ok(match command {
        Command::SipBindings => bindings(sip, &wanted)?,
        Command::SipCalls => calls(sip, shared, &wanted)?,
        Command::SipRemove => {
            let aor = wanted.aor.unwrap_or_default();
            remove(sip, &aor, text("contact").as_deref(), by)?
        }
        Command::SipTrace => {
            let call_id = text("call_id").unwrap_or_default();
            trace(sip, &call_id, wanted.after.as_deref())?
        }
        _ => trunks(sip),
    })
}

/// A page of the list of bindings.
pub(crate) fn bindings(sip: &SipInspector, wanted: &PageQuery) -> Result<Value, SipError> {
    let fits = |it: &BindingInfo| {
        wanted
            .fits(&[&it.aor, &it.contact, &it.agent])
            .then(|| binding(it))
    };
    if let Some(aor) = &wanted.aor {
        let bindings = sip.bindings_of(aor)?;
        let bindings: Vec<Value> = bindings.iter().filter_map(fits).collect();
        return Ok(json!({ "bindings": bindings, "next": null }));
    }
    let after = wanted.after.as_deref().unwrap_or("0-0-0");
    let [worker, place, skip] = PageQuery::numbers(after)?.map(index);
    let part = |place| {
        let page = sip.bindings(place)?;
        Ok((page.bindings, page.next))
    };
    let first = (BindingsCursor { worker, place }, skip);
    let (list, next) = collect(first, wanted.limit, part, fits)?;
    let next = next.map(|(it, skip)| format!("{}-{}-{skip}", it.worker, it.place));
    Ok(json!({ "bindings": list, "next": next }))
}

/// Removes the bindings of an address, or the one with this contact, and writes an audit line.
pub(crate) fn remove(
    sip: &SipInspector,
    aor: &str,
    contact: Option<&str>,
    by: &str,
) -> Result<Value, SipError> {
    let removed = sip.remove_bindings(aor, contact)?;
    if removed == 0 {
        return Err(SipError::Missing(format!(
            "{aor} has no such binding: it has ended, or the contact is another one; list the bindings again"
        )));
    }
    let mut audit = Audit::new("sip.binding.remove").with("aor", aor);
    if let Some(contact) = contact {
        audit = audit.with("contact", contact);
    }
    audit.log(by);
    Ok(json!({ "removed": removed }))
}

/// A page of the recorded calls, and the numbers of dialogs and of requests in progress.
pub(crate) fn calls(
    sip: &SipInspector,
    shared: &Shared,
    wanted: &PageQuery,
) -> Result<Value, SipError> {
    let after = wanted.after.as_deref().unwrap_or("0-0-0-0");
    let [is_answered, part, place, skip] = PageQuery::numbers(after)?;
    let first = match is_answered {
        0 => CallsCursor::Ringing(index(part), index(place)),
        _ => CallsCursor::Answered(index(part), place),
    };
    let read = |place| {
        let page = sip.calls(place)?;
        Ok((page.calls, page.next))
    };
    let fits = |it: &CallInfo| {
        let texts = [&it.call_id, &it.from, &it.to, &it.source, &it.target];
        wanted.fits(&texts.map(String::as_str)).then(|| call(it))
    };
    let (list, next) = collect((first, index(skip)), wanted.limit, read, fits)?;
    let next = next.map(|(place, skip)| match place {
        CallsCursor::Ringing(worker, place) => format!("0-{worker}-{place}-{skip}"),
        CallsCursor::Answered(part, number) => format!("1-{part}-{number}-{skip}"),
    });
    let counted = shared.source.observer.stats().sip();
    Ok(json!({
        "calls": list,
        "next": next,
        "dialogs": counted.calls,
        "requests": counted.forwarding,
    }))
}

fn index(number: u64) -> usize {
    usize::try_from(number).unwrap_or(usize::MAX)
}

/// Where a page begins: a part, and the entries of it that are on the previous page.
type PageStart<P> = (P, usize);

/// Reads parts until `limit` entries are found, or [`MAX_PARTS`] are read. Returns the entries, and where the next page
/// begins.
fn collect<P: Copy, T>(
    (mut place, mut skip): PageStart<P>,
    limit: usize,
    read: impl Fn(P) -> Result<(Vec<T>, Option<P>), SipError>,
    fits: impl Fn(&T) -> Option<Value>,
) -> Result<(Vec<Value>, Option<PageStart<P>>), SipError> {
    let mut list = Vec::new();
    for _ in 0..MAX_PARTS {
        let (entries, next) = read(place)?;
        for (number, entry) in entries.iter().enumerate().skip(skip) {
            if list.len() >= limit {
                return Ok((list, Some((place, number))));
            }
            list.extend(fits(entry));
        }
        let Some(next) = next else {
            return Ok((list, None));
        };
        (place, skip) = (next, 0);
    }
    Ok((list, Some((place, skip))))
}

/// Messages with a Call-ID. Their bytes are in base64, because a message may have any bytes.
pub(crate) fn trace(
    sip: &SipInspector,
    call_id: &str,
    after: Option<&str>,
) -> Result<Value, SipError> {
    let [worker, number] = PageQuery::numbers(after.unwrap_or("0-0"))?;
    let first = TraceCursor {
        worker: index(worker),
        number,
    };
    let (mut next, mut list, mut bytes) = (Some(first), Vec::new(), 0);
    for _ in 0..MAX_PARTS {
        let Some(place) = next.filter(|_| bytes < MESSAGE_BYTES) else {
            break;
        };
        let page = sip.trace(call_id, place)?;
        bytes += page.messages.iter().map(|it| it.bytes.len()).sum::<usize>();
        list.extend(page.messages.iter().map(message));
        next = page.next;
    }
    let next = next.map(|place| format!("{}-{}", place.worker, place.number));
    Ok(json!({ "messages": list, "next": next }))
}

fn message(message: &TracedMessage) -> Value {
    json!({
        "unix_us": u64::try_from(message.time.as_micros()).unwrap_or(u64::MAX),
        "direction": if message.is_sent { "sent" } else { "received" },
        "transport": message.transport.via_name(),
        "local": message.local,
        "remote": message.remote,
        "worker": message.worker,
        "number": message.number,
        "bytes": STANDARD.encode(&message.bytes),
    })
}

fn call(call: &CallInfo) -> Value {
    let ms = |time: std::time::Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
    let text = |text: &String| Some(text.clone()).filter(|text| !text.is_empty());
    json!({
        "call_id": call.call_id,
        "state": if call.answered.is_some() { "answered" } else { "ringing" },
        "from": call.from,
        "to": call.to,
        "source": text(&call.source),
        "source_address": call.source_leg.remote,
        "source_transport": call.source_leg.transport.via_name(),
        "target": text(&call.target),
        "target_address": call.target_leg.map(|leg| leg.remote),
        "target_transport": call.target_leg.map(|leg| leg.transport.via_name()),
        "tried": call.tried,
        "failed": text(&call.failed),
        "began_unix_s": call.began_unix_s,
        "lasted_ms": ms(call.lasted),
        "ring_ms": call.rang.map(ms),
        "answer_ms": call.answered.map(ms),
        "expires_s": call.left.map(|left| left.as_secs()),
    })
}

fn binding(binding: &BindingInfo) -> Value {
    let text = |text: &String| Some(text.clone()).filter(|text| !text.is_empty());
    json!({
        "aor": binding.aor,
        "contact": binding.contact,
        "transport": binding.flow.map(|flow| flow.transport.via_name().to_ascii_lowercase()),
        "remote": binding.flow.map(|flow| flow.remote),
        "local": binding.flow.map(|flow| flow.local),
        "path": text(&binding.path),
        "expires_s": binding.expires.as_secs(),
        "age_s": binding.age.as_secs(),
        "q": binding.q.map(|q| f64::from(q) / 1000.0),
        "instance": text(&binding.instance),
        "reg_id": binding.reg_id,
        "call_id": binding.call_id,
        "user_agent": text(&binding.agent),
        "worker": binding.worker,
    })
}

/// All trunks.
pub(crate) fn trunks(sip: &SipInspector) -> Value {
    let trunks: Vec<Value> = sip.trunks().iter().map(trunk).collect();
    json!({ "trunks": trunks })
}

fn trunk(trunk: &TrunkInfo) -> Value {
    let counts = &trunk.counts;
    let addresses: Vec<Value> = trunk
        .addresses
        .iter()
        .map(|it| address(&it.uri, &it.status))
        .collect();
    json!({
        "name": Some(&trunk.name).filter(|name| !name.is_empty()),
        "registered": trunk.is_registered,
        "addresses": addresses,
        "requests": counts.calls,
        "silent": counts.silent,
        "moved_on": counts.moved_on,
        "rung_and_failed": counts.rung_and_failed,
        "limited": counts.limited,
        "calls": counts.in_progress,
        "calls_from": counts.in_progress_from,
        "requests_from": counts.calls_from,
        "limited_from": counts.limited_from,
        "probes_answered": counts.probes_answered,
        "probes_failed": counts.probes_failed,
    })
}

fn address(uri: &str, status: &AddressStatus) -> Value {
    let error = status.last_error.map(|(error, _)| match error {
        AddressError::Silent => "no response".to_owned(),
        AddressError::NotSent => "not sent".to_owned(),
        AddressError::Code(code) => code.to_string(),
    });
    json!({
        "uri": uri,
        "state": status.state.name(),
        "share": f64::from(status.share) / 1000.0,
        "failures": status.failures,
        "retry_after_s": Some(status.pause.as_secs_f64().ceil()).filter(|left| *left > 0.0),
        "last_error": error,
        "last_error_age_s": status.last_error.map(|(_, age)| age.as_secs()),
    })
}
