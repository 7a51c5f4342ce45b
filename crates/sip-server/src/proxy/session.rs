//! Session timers (RFC 4028 §8): the proxy asks for one, so that it detects the end of a call without a BYE.

use sip::header::HeaderKind;
use sip::{Message, Method};

/// RFC 4028 §5: "The minimum value for the Min-SE header field is 90 seconds", which is also its default.
pub const LOWEST_MIN_SE: u32 = 90;

/// Which session intervals a proxy asks for, in seconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SessionTimer {
    /// The greatest interval, and that of requests without one.
    pub expires: u32,
    /// The smallest interval: at least [`LOWEST_MIN_SE`], at most `expires`.
    pub min: u32,
}

/// What is remembered of a session refresh request until its 2xx (§8.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct RefreshRequest {
    /// Session-Expires of the forwarded request.
    pub(super) interval: u32,
    /// Supported of the request has `timer`.
    pub(super) is_supported: bool,
}

/// What is changed of a request.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct SessionChanges {
    pub(super) drops: Vec<HeaderKind>,
    pub(super) lines: Vec<u8>,
}

/// The interval is smaller than that of the proxy: 422.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct TooSmall;

/// A number of seconds, and the parameters behind it as they are.
fn parse(value: &[u8]) -> Option<(u32, &[u8])> {
    let end = value.iter().position(|byte| *byte == b';');
    let (number, params) = value.split_at(end.unwrap_or(value.len()));
    let number = std::str::from_utf8(number.trim_ascii()).ok()?;
    let is_number = !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit());
    // More than 136 years is as good as 136 years.
    is_number.then(|| (number.parse().unwrap_or(u32::MAX), params))
}

/// The interval of Session-Expires, or of Min-SE; `None` if the field is missing or malformed.
fn seconds(message: &Message<'_>, kind: HeaderKind) -> Option<u32> {
    let header = message.header(kind)?;
    parse(header.value).map(|(seconds, _)| seconds)
}

fn supports_timer(message: &Message<'_>) -> bool {
    let mut supported = message.supported().filter_map(Result::ok);
    supported.any(|tag| tag.eq_ignore_ascii_case(b"timer"))
}

/// Whether a request refreshes its session (§3).
pub(super) fn is_refresh(method: Option<Method<'_>>) -> bool {
    matches!(method, Some(Method::Invite | Method::Update))
}

/// Changes a session refresh request (§8.1).
///
/// # Errors
/// [`TooSmall`], only if the sender supports session timers.
pub(super) fn of_request(
    message: &Message<'_>,
    timer: SessionTimer,
) -> Result<(RefreshRequest, SessionChanges), TooSmall> {
    let is_supported = supports_timer(message);
    let least = timer.min.max(LOWEST_MIN_SE);
    let min_se = seconds(message, HeaderKind::MinSe);
    let asked = message
        .header(HeaderKind::SessionExpires)
        .and_then(|header| parse(header.value));
    let mut changes = SessionChanges::default();
    let mut lowest = min_se.unwrap_or(LOWEST_MIN_SE);
    if let Some((interval, _)) = asked
        && interval < least
    {
        if is_supported {
            return Err(TooSmall);
        }
        // "the proxy SHOULD insert a Min-SE header field containing its minimum interval", or raise the one that is
        // there. Not if the sender supports session timers.
        if min_se.is_none_or(|min_se| min_se < least) {
            lowest = least;
            changes.drops.push(HeaderKind::MinSe);
            write(&mut changes.lines, "Min-SE", least, b"");
        }
    }
    let wanted = timer.expires.max(lowest);
    let (interval, params) = match asked {
        // "MUST NOT increase the value", unless it is lower than Min-SE.
        Some((interval, params)) => (interval.min(wanted).max(lowest), params),
        None => (wanted, &b""[..]),
    };
    if asked.is_none_or(|(asked, _)| asked != interval) {
        changes.drops.push(HeaderKind::SessionExpires);
        write(&mut changes.lines, "Session-Expires", interval, params);
    }
    let asked = RefreshRequest {
        interval,
        is_supported,
    };
    Ok((asked, changes))
}

/// The session interval that a 2xx sets, and the lines that are added to it (§8.2). `None` if the session does not
/// expire.
pub(super) fn of_success(message: &Message<'_>, asked: RefreshRequest) -> (Option<u32>, Vec<u8>) {
    if message.has(HeaderKind::SessionExpires) {
        return (seconds(message, HeaderKind::SessionExpires), Vec::new());
    }
    if !asked.is_supported {
        return (None, Vec::new());
    }
    let mut lines = Vec::new();
    write(
        &mut lines,
        "Session-Expires",
        asked.interval,
        b";refresher=uac",
    );
    lines.extend_from_slice(b"Require: timer\r\n");
    (Some(asked.interval), lines)
}

/// The header line of a 422.
pub(super) fn min_se(timer: SessionTimer) -> Vec<u8> {
    let mut lines = Vec::new();
    write(&mut lines, "Min-SE", timer.min.max(LOWEST_MIN_SE), b"");
    lines
}

fn write(lines: &mut Vec<u8>, name: &str, seconds: u32, params: &[u8]) {
    let text = format!("{name}: {seconds}");
    lines.extend_from_slice(text.as_bytes());
    // They may be folded.
    let params = params.iter().map(|byte| match byte {
        b'\r' | b'\n' => b' ',
        byte => *byte,
    });
    lines.extend(params);
    lines.extend_from_slice(b"\r\n");
}

#[cfg(test)]
mod tests {
    use super::*;
    use sip::Spans;

    const TIMER: SessionTimer = SessionTimer {
        expires: 1800,
        min: 300,
    };

    fn request(lines: &str) -> Result<(u32, String), TooSmall> {
        let text = format!(
            "INVITE sip:b@b SIP/2.0\r\nVia: SIP/2.0/UDP a;branch=z9hG4bK1\r\nFrom: <sip:a@a>;tag=1\r\n\
             To: <sip:b@b>\r\nCall-ID: 1\r\nCSeq: 1 INVITE\r\n{lines}\r\n"
        );
        let mut spans = Spans::new();
        let message = Message::parse(text.as_bytes(), &mut spans).unwrap();
        let (asked, changes) = of_request(&message, TIMER)?;
        assert_eq!(asked.is_supported, lines.contains("timer"));
        Ok((asked.interval, String::from_utf8(changes.lines).unwrap()))
    }

    #[test]
    fn a_request_without_an_interval_gets_one_never_below_min_se_rfc4028_8_1() {
        let inserted = |seconds| Ok((seconds, format!("Session-Expires: {seconds}\r\n")));
        assert_eq!(request(""), inserted(1800));
        assert_eq!(request("Supported: timer\r\n"), inserted(1800));
        assert_eq!(
            request("Min-SE: 3600\r\nSupported: timer\r\n"),
            inserted(3600)
        );
    }

    #[test]
    fn an_interval_is_reduced_but_not_below_min_se_and_keeps_its_refresher_rfc4028_8_1() {
        let with = |seconds, text: &str| Ok((seconds, text.to_owned()));
        let own = "Session-Expires: 1800;refresher=uas\r\n";
        assert_eq!(
            request("Session-Expires: 7200;refresher=uas\r\nSupported: timer\r\n"),
            with(1800, own)
        );
        assert_eq!(
            request("x: 7200;refresher=uas\r\nk: timer\r\n"),
            with(1800, own)
        );
        let raised = "Session-Expires: 2000\r\n";
        assert_eq!(
            request("Session-Expires: 7200\r\nMin-SE: 2000\r\nSupported: timer\r\n"),
            with(2000, raised)
        );
        // It is never increased, unless it is lower than Min-SE.
        assert_eq!(
            request("Session-Expires: 300\r\nSupported: timer\r\n"),
            with(300, "")
        );
        assert_eq!(request("Session-Expires: 1800\r\n"), with(1800, ""));
        assert_eq!(
            request("Session-Expires: 400\r\nMin-SE: 500\r\nSupported: timer\r\n"),
            with(500, "Session-Expires: 500\r\n")
        );
    }

    #[test]
    fn a_small_interval_is_422_or_raised_with_min_se_rfc4028_8_1() {
        assert_eq!(
            request("Session-Expires: 299\r\nSupported: timer\r\n"),
            Err(TooSmall)
        );
        assert_eq!(min_se(TIMER), b"Min-SE: 300\r\n");
        let raised = Ok((300, "Min-SE: 300\r\nSession-Expires: 300\r\n".to_owned()));
        assert_eq!(request("Session-Expires: 100\r\n"), raised);
        assert_eq!(request("Session-Expires: 100\r\nMin-SE: 95\r\n"), raised);
        // Min-SE is never decreased.
        assert_eq!(
            request("Session-Expires: 100\r\nMin-SE: 400\r\n"),
            Ok((400, "Session-Expires: 400\r\n".to_owned()))
        );
        let least = SessionTimer {
            expires: 1800,
            min: 10,
        };
        assert_eq!(min_se(least), b"Min-SE: 90\r\n");
    }

    #[test]
    fn a_2xx_without_an_interval_gets_one_if_the_caller_supports_timers_rfc4028_8_2() {
        let response = |lines: &str, is_supported| {
            let text = format!(
                "SIP/2.0 200 OK\r\nVia: SIP/2.0/UDP a;branch=z9hG4bK1\r\nFrom: <sip:a@a>;tag=1\r\n\
                 To: <sip:b@b>;tag=2\r\nCall-ID: 1\r\nCSeq: 1 INVITE\r\n{lines}\r\n"
            );
            let mut spans = Spans::new();
            let message = Message::parse(text.as_bytes(), &mut spans).unwrap();
            let asked = RefreshRequest {
                interval: 1800,
                is_supported,
            };
            let (interval, lines) = of_success(&message, asked);
            (interval, String::from_utf8(lines).unwrap())
        };
        let added = "Session-Expires: 1800;refresher=uac\r\nRequire: timer\r\n";
        assert_eq!(response("", true), (Some(1800), added.to_owned()));
        assert_eq!(response("", false), (None, String::new()));
        for is_supported in [false, true] {
            let own = response("Session-Expires: 600;refresher=uas\r\n", is_supported);
            assert_eq!(own, (Some(600), String::new()));
        }
    }
}
