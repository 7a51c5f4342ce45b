//! Commands of the control socket about SIP: registration bindings, calls, their messages, and trunks.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};
use server::sip::routes::{AddressError, AddressStatus};
use server::sip::{
    BindingInfo, BindingsPlace, CallInfo, CallsPlace, InspectError, SipInspector, TracePlace,
    TracedMessage, TrunkInfo,
};

use super::protocol::{Command, Refusal, Reply};
use super::serve::Shared;

/// A reply with this number of entries gets no further part, so that it stays below the size limit even with the longest texts.
const BINDINGS: usize = 250;
/// A reply with this number of bytes of SIP messages gets no further part, for the same reason: a part has at most 64 KiB and one message more.
const MESSAGE_BYTES: usize = 128 << 10;
/// Limit of parts in one reply, so that a reply does not take long.
const PARTS: usize = 64;

/// Responds to a command about SIP. Blocks until workers respond.
pub(super) fn respond(command: Command, arguments: &Value, shared: &Shared) -> Reply {
    let Some(sip) = &shared.sip else {
        return Err(Refusal::new(
            "this server has no SIP listener: set sip.listen",
        ));
    };
    match command {
        Command::SipBindings => bindings(sip, arguments),
        Command::SipCalls => calls(sip, shared, arguments),
        Command::SipTrace => trace(sip, arguments),
        _ => Ok(trunks(sip)),
    }
}

fn bindings(sip: &SipInspector, arguments: &Value) -> Reply {
    if let Some(aor) = arguments["aor"].as_str() {
        let bindings = sip.bindings_of(aor).map_err(refused)?;
        let bindings: Vec<Value> = bindings.iter().map(binding).collect();
        return Ok(json!({ "bindings": bindings, "next": null }));
    }
    let number = |name: &str| {
        let number = arguments["from"][name].as_u64().unwrap_or(0);
        usize::try_from(number).unwrap_or(usize::MAX)
    };
    let first = BindingsPlace {
        worker: number("worker"),
        place: number("place"),
    };
    let (mut next, mut list) = (Some(first), Vec::new());
    for _ in 0..PARTS {
        let Some(place) = next.filter(|_| list.len() < BINDINGS) else {
            break;
        };
        let page = sip.bindings(place).map_err(refused)?;
        list.extend(page.bindings.iter().map(binding));
        next = page.next;
    }
    let next = next.map(|place| json!({ "worker": place.worker, "place": place.place }));
    Ok(json!({ "bindings": list, "next": next }))
}

fn refused(error: InspectError) -> Refusal {
    Refusal::new(error.to_string())
}

/// The recorded calls, and the numbers of dialogs and of requests in progress.
fn calls(sip: &SipInspector, shared: &Shared, arguments: &Value) -> Reply {
    let from = &arguments["from"];
    let number = |name: &str| from[name].as_u64().unwrap_or(0);
    let index = |name: &str| usize::try_from(number(name)).unwrap_or(usize::MAX);
    let first = match from["part"].is_null() {
        true => CallsPlace::Ringing(index("worker"), index("place")),
        false => CallsPlace::Answered(index("part"), number("number")),
    };
    let (mut next, mut list) = (Some(first), Vec::new());
    for _ in 0..PARTS {
        let Some(place) = next.filter(|_| list.len() < BINDINGS) else {
            break;
        };
        let page = sip.calls(place).map_err(refused)?;
        list.extend(page.calls.iter().map(call));
        next = page.next;
    }
    let next = next.map(|place| match place {
        CallsPlace::Ringing(worker, place) => json!({ "worker": worker, "place": place }),
        CallsPlace::Answered(part, number) => json!({ "part": part, "number": number }),
    });
    let counted = shared.source.observer.stats().sip();
    Ok(json!({
        "calls": list,
        "next": next,
        "dialogs": counted.calls,
        "requests": counted.forwarding,
    }))
}

/// Messages with a Call-ID. Their bytes are in base64, because a message may have any bytes.
fn trace(sip: &SipInspector, arguments: &Value) -> Reply {
    let call_id = arguments["call_id"].as_str().unwrap_or_default();
    let from = &arguments["from"];
    let number = |name: &str| from[name].as_u64().unwrap_or(0);
    let first = TracePlace {
        worker: usize::try_from(number("worker")).unwrap_or(usize::MAX),
        number: number("number"),
    };
    let (mut next, mut list, mut bytes) = (Some(first), Vec::new(), 0);
    for _ in 0..PARTS {
        let Some(place) = next.filter(|_| bytes < MESSAGE_BYTES) else {
            break;
        };
        let page = sip.trace(call_id, place).map_err(refused)?;
        bytes += page.messages.iter().map(|it| it.bytes.len()).sum::<usize>();
        list.extend(page.messages.iter().map(message));
        next = page.next;
    }
    let next = next.map(|place| json!({ "worker": place.worker, "number": place.number }));
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
        "source_transport": call.source_leg.carrier.via_name(),
        "target": text(&call.target),
        "target_address": call.target_leg.map(|leg| leg.remote),
        "target_transport": call.target_leg.map(|leg| leg.carrier.via_name()),
        "tried": call.tried,
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
        "worker": binding.worker,
    })
}

fn trunks(sip: &SipInspector) -> Value {
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
