//! When a certificate is renewed.

use server::certificates::CertificateInfo;

/// The time in which the ACME server suggests to renew (RFC 9773 §4.2), in seconds since 1970.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Window {
    pub(super) start: u64,
    pub(super) end: u64,
}

/// When to renew, in seconds since 1970. `share`, 0 to 1, selects a time in the suggested window, as RFC 9773 §4.2
/// requires. So not all certificates of one hour are renewed at once. Without a suggestion, a third of the lifetime is
/// left. A sixth is left in any case.
pub(super) fn due(info: &CertificateInfo, window: Option<Window>, share: f64) -> u64 {
    let lifetime = info.expires_unix_s.saturating_sub(info.begins_unix_s);
    let latest = info.expires_unix_s.saturating_sub(lifetime / 6);
    match window {
        Some(Window { start, end }) => {
            let length = end.saturating_sub(start);
            let offset = (length as f64 * share.clamp(0.0, 1.0)) as u64;
            start.saturating_add(offset).min(latest)
        }
        None => info.expires_unix_s.saturating_sub(lifetime / 3),
    }
}

/// How long to wait after this many failures in a row: a minute, then twice as long each time, at most six hours. Let's
/// Encrypt refuses an account after five failures in an hour.
pub(super) fn pause_s(failures: u32) -> u64 {
    let factor = 1_u64 << failures.saturating_sub(1).min(16);
    (60 * factor).min(6 * 3_600)
}

#[cfg(test)]
mod tests {
    use super::*;
    use server::certificates::Certificates;

    const DAY: u64 = 86_400;

    fn info() -> CertificateInfo {
        let names = ["turn.example.org".to_owned()];
        let mut info = Certificates::self_signed(&names).unwrap().info().remove(0);
        (info.begins_unix_s, info.expires_unix_s) = (0, 90 * DAY);
        info
    }

    #[test]
    fn a_certificate_of_90_days_is_renewed_30_days_before_its_end() {
        assert_eq!(due(&info(), None, 0.5), 60 * DAY);
    }

    #[test]
    fn the_servers_suggestion_decides_but_never_too_late() {
        let window = |start, end| Some(Window { start, end });
        assert_eq!(due(&info(), window(50 * DAY, 52 * DAY), 0.5), 51 * DAY);
        assert_eq!(due(&info(), window(0, 0), 0.9), 0, "revoked: now");
        assert_eq!(due(&info(), window(80 * DAY, 100 * DAY), 1.0), 75 * DAY);
        assert_eq!(due(&info(), window(9, 3), 1.0), 9, "a window that is wrong");
    }

    #[test]
    fn pauses_grow_to_six_hours() {
        let pauses: Vec<u64> = (1..=10).map(pause_s).collect();
        assert_eq!(pauses[..4], [60, 120, 240, 480]);
        assert_eq!(pauses[9], 6 * 3_600);
        assert_eq!(pause_s(u32::MAX), 6 * 3_600);
    }
}
