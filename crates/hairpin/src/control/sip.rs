//! What the control socket says of SIP: registration bindings and trunks.

use serde_json::{Value, json};
use server::sip::routes::{AddressError, AddressStatus};
use server::sip::{BindingInfo, BindingsPlace, SipInspector, TrunkInfo};

use super::protocol::{Command, Refusal, Reply};
use super::serve::Shared;

/// Bindings of one reply, from which on no further part is asked for: with the longest texts, they still fit into a reply.
const BINDINGS: usize = 250;
/// Parts that are asked for to make one reply, so that a reply does not take long.
const PARTS: usize = 64;

/// Replies to a command about SIP. Waits for workers.
pub(super) fn respond(command: Command, arguments: &Value, shared: &Shared) -> Reply {
    let Some(sip) = &shared.sip else {
        return Err(Refusal::new(
            "this server has no SIP listener: set sip.listen",
        ));
    };
    match command {
        Command::SipBindings => bindings(sip, arguments),
        _ => Ok(trunks(sip)),
    }
}

fn bindings(sip: &SipInspector, arguments: &Value) -> Reply {
    let refused = |error: server::sip::InspectError| Refusal::new(error.to_string());
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
