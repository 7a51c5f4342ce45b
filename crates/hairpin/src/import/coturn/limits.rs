//! Quotas, rates and lifetimes.

use super::{
    Draft, File, Line, Row, Rule, Verdict, allowances, flag, number, unnecessary, unsupported,
    value,
};

pub(super) const ROWS: &[Row] = &[
    value(
        "user-quota",
        Rule::Decide(|line, _, draft| quota(line, draft, "limits.allocations_per_user")),
    ),
    value(
        "total-quota",
        Rule::Decide(|line, _, draft| quota(line, draft, "limits.allocations")),
    ),
    value(
        "max-bps",
        Rule::Decide(|line, _, draft| rate(line, draft, "limits.rate_per_allocation", 1 << 30)),
    ),
    value(
        "bps-capacity",
        Rule::Decide(|line, _, draft| rate(line, draft, "limits.rate_total", 8 << 30)),
    ),
    number("max-allocate-lifetime", Rule::Decide(max_lifetime)),
    number(
        "channel-lifetime",
        Rule::Decide(|line, _, _| fixed_time(line, 600, "12")),
    ),
    number(
        "permission-lifetime",
        Rule::Decide(|line, _, _| fixed_time(line, 300, "9")),
    ),
    value(
        "max-allocate-timeout",
        unnecessary("the server stores no state for a client before its allocation"),
    ),
    flag(
        "unauthorized-ratelimit",
        Rule::Decide(|_, file, draft| {
            let rate = file
                .last("unauthorized-ratelimit-rps")
                .and_then(Line::number);
            let rate = i64::try_from(rate.unwrap_or(10).clamp(1, 100_000_000)).unwrap_or(10);
            draft.set("limits.unverified_responses_per_source", rate);
            Verdict::carried("limits.unverified_responses_per_source")
        }),
    ),
    number(
        "unauthorized-ratelimit-rps",
        Rule::Decide(|_, file, _| match file.flag("unauthorized-ratelimit") {
            true => Verdict::carried("limits.unverified_responses_per_source"),
            false => Verdict::unnecessary("unauthorized-ratelimit is off"),
        }),
    ),
    number(
        "drain-min-allocations",
        unsupported("a drain ends when the last allocation ends, or after server.drain"),
    ),
];

fn quota(line: &Line, draft: &mut Draft, key: &'static str) -> Verdict {
    const MAX_ALLOCATIONS: u64 = 10_000_000;
    match line.number() {
        None => Verdict::wrong("write a number"),
        Some(0) => Verdict::unnecessary("0 is no limit"),
        Some(number) => {
            draft.set(key, i64::try_from(number.min(MAX_ALLOCATIONS)).unwrap_or(1));
            Verdict::carried(key)
        }
    }
}

fn rate(line: &Line, draft: &mut Draft, key: &'static str, most: u64) -> Verdict {
    const MIN_BYTES_PER_S: u64 = 1024;
    match line.number() {
        None => Verdict::wrong("write a number of bytes per second"),
        Some(0) => Verdict::unnecessary("0 is no limit"),
        Some(rate) => {
            draft.set(key, format!("{}B/s", rate.clamp(MIN_BYTES_PER_S, most)));
            // coturn limits each direction separately.
            draft.set("limits.rate_directions", "apart");
            Verdict::carried(key)
        }
    }
}

fn max_lifetime(line: &Line, _: &File, draft: &mut Draft) -> Verdict {
    const MIN_S: u64 = 120;
    const MAX_S: u64 = 86_400;
    const DEFAULT_S: u64 = 600;
    let Some(seconds) = line.number_or(3600).filter(|seconds| *seconds > 0) else {
        return Verdict::wrong("write a number of seconds");
    };
    let longest = seconds.clamp(MIN_S, MAX_S);
    draft.set("limits.lifetime_max", format!("{longest}s"));
    if longest < DEFAULT_S {
        draft.set("limits.lifetime_default", format!("{longest}s"));
    }
    match longest == seconds {
        true => Verdict::carried("limits.lifetime_max"),
        false => Verdict::carried(format!(
            "limits.lifetime_max as {longest} s: it must be from 2 minutes to a day"
        )),
    }
}

fn fixed_time(line: &Line, usual: u64, section: &str) -> Verdict {
    match line.number_or(usual) {
        Some(seconds) if seconds == usual => {
            Verdict::unnecessary(format!("it is the value of RFC 8656 §{section}"))
        }
        _ => Verdict::unsupported(format!(
            "RFC 8656 §{section} requires {usual} seconds, and clients depend on it"
        )),
    }
}

/// Narrows the relay ports if a listener uses one of them.
pub(super) fn finish(file: &File, draft: &mut Draft) {
    allowances::finish(file, draft);
}
