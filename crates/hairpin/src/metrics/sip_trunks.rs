//! The trunks of SIP's proxy that routes can name: by their names, which an operator has chosen. No users and no
//! numbers.

use server::Observer;
use server::sip::routes::{RESPONSE_CLASSES, TrunkCounts};

use super::text::{Kind, Page};

pub(super) fn write(page: &mut Page, observer: &Observer) {
    let trunks = observer.sip_trunks();
    if trunks.is_empty() {
        return;
    }
    let mut family = page.family(
        "hairpin_sip_trunk_addresses",
        Kind::Gauge,
        "Addresses of a trunk, by state: up (available for calls) or down.",
    );
    for (name, counts) in &trunks {
        let down = counts.addresses - counts.available;
        for (state, count) in [("up", counts.available), ("down", down)] {
            family.put(&[("trunk", name), ("state", &state)], count);
        }
    }
    let registrations = observer.sip_registrations();
    if !registrations.is_empty() {
        let mut family = page.family(
            "hairpin_sip_trunk_registered",
            Kind::Gauge,
            "1 while a trunk accepts the registration of this server, else 0.",
        );
        for (name, is_registered) in &registrations {
            family.put(&[("trunk", name)], u8::from(*is_registered));
        }
    }
    let mut family = page.family(
        "hairpin_sip_trunk_requests_total",
        Kind::Counter,
        "Requests that routes gave to a trunk, by event: sent, silent, moved_on, rung_and_failed or limited.",
    );
    for (name, counts) in &trunks {
        for (event, count) in [
            ("sent", counts.calls),
            ("silent", counts.silent),
            ("moved_on", counts.moved_on),
            ("rung_and_failed", counts.rung_and_failed),
            ("limited", counts.limited),
        ] {
            family.put(&[("trunk", name), ("event", &event)], count);
        }
    }
    let mut family = page.family(
        "hairpin_sip_trunk_responses_total",
        Kind::Counter,
        "Final responses of a trunk to these requests, by class.",
    );
    for (name, counts) in &trunks {
        // A final response is none of the first class.
        for (class, count) in RESPONSE_CLASSES.iter().zip(counts.responses).skip(1) {
            family.put(&[("trunk", name), ("class", class)], count);
        }
    }
    codes(page, observer);
    let mut family = page.family(
        "hairpin_sip_trunk_calls",
        Kind::Gauge,
        "Calls that routes have sent to a trunk and that are in progress. 0 if calls are neither limited nor recorded.",
    );
    for (name, counts) in &trunks {
        family.put(&[("trunk", name)], counts.in_progress);
    }
    calls_from(page, &trunks);
    probes(page, &trunks);
}

fn calls_from(page: &mut Page, trunks: &[(String, TrunkCounts)]) {
    let mut family = page.family(
        "hairpin_sip_trunk_calls_from",
        Kind::Gauge,
        "Calls that a trunk has sent and that are in progress. 0 if calls are neither limited nor recorded.",
    );
    for (name, counts) in trunks {
        family.put(&[("trunk", name)], counts.in_progress_from);
    }
    let mut family = page.family(
        "hairpin_sip_trunk_calls_from_total",
        Kind::Counter,
        "INVITEs outside of dialogs that a trunk has sent, by result: admitted or limited.",
    );
    for (name, counts) in trunks {
        for (result, count) in [
            ("admitted", counts.calls_from),
            ("limited", counts.limited_from),
        ] {
            family.put(&[("trunk", name), ("result", &result)], count);
        }
    }
}

fn probes(page: &mut Page, trunks: &[(String, TrunkCounts)]) {
    let mut family = page.family(
        "hairpin_sip_trunk_probes_total",
        Kind::Counter,
        "OPTIONS to the addresses of a trunk, by result.",
    );
    for (name, counts) in trunks {
        for (result, count) in [
            ("answered", counts.probes_answered),
            ("failed", counts.probes_failed),
        ] {
            family.put(&[("trunk", name), ("result", &result)], count);
        }
    }
}

fn codes(page: &mut Page, observer: &Observer) {
    let mut family = page.family(
        "hairpin_sip_trunk_response_codes_total",
        Kind::Counter,
        "Final responses of a trunk to requests of routes, by method and code. Codes without a response are left out, except 200 to INVITE.",
    );
    for (name, codes) in &observer.sip_trunk_codes() {
        for (method, code, count) in codes {
            let labels: [(&str, &dyn std::fmt::Display); 3] =
                [("trunk", name), ("method", method), ("code", code)];
            family.put(&labels, *count);
        }
    }
}
