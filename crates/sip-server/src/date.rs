//! The value of a Date header field (RFC 3261 §20.17).

/// Bytes of a date.
pub(crate) const DATE_LEN: usize = 29;

const DAYS: [&[u8; 3]; 7] = [b"Thu", b"Fri", b"Sat", b"Sun", b"Mon", b"Tue", b"Wed"];
const MONTHS: &[u8; 36] = b"JanFebMarAprMayJunJulAugSepOctNovDec";

/// `Sat, 13 Nov 2010 23:29:00 GMT`, for a time before the year 10,000.
pub(crate) fn date(unix_s: u64) -> [u8; DATE_LEN] {
    let (days, seconds) = (unix_s / 86_400, unix_s % 86_400);
    let (year, month, day) = civil(days);
    let mut text = *b"DDD, 00 MMM 0000 00:00:00 GMT";
    text[..3].copy_from_slice(DAYS[(days % 7) as usize]);
    text[8..11].copy_from_slice(&MONTHS[3 * (month - 1)..3 * month]);
    let numbers = [
        (5, day),
        (12, year / 100),
        (14, year % 100),
        (17, seconds / 3600),
        (20, seconds / 60 % 60),
        (23, seconds % 60),
    ];
    for (at, number) in numbers {
        text[at] = b'0' + (number / 10 % 10) as u8;
        text[at + 1] = b'0' + (number % 10) as u8;
    }
    text
}

/// Year, month (from 1) and day of a number of days since 1970. A year begins in March here, so that the leap day is
/// its last.
const fn civil(days: u64) -> (u64, usize, u64) {
    // 719,468 days lie between 0000-03-01 and 1970-01-01; 146,097 days are 400 years.
    let days = days + 719_468;
    let (era, day) = (days / 146_097, days % 146_097);
    let year = (day - day / 1_460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    // 153 days are five months, from March on.
    let month = (5 * day + 2) / 153;
    let day = day - (153 * month + 2) / 5 + 1;
    let is_next_year = month >= 10;
    let month = if is_next_year { month - 9 } else { month + 3 };
    (400 * era + year + is_next_year as u64, month as usize, day)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_are_those_of_the_calendar() {
        for (unix_s, text) in [
            (0, "Thu, 01 Jan 1970 00:00:00 GMT"),
            (68_169_599, "Mon, 28 Feb 1972 23:59:59 GMT"),
            (68_169_600, "Tue, 29 Feb 1972 00:00:00 GMT"),
            (951_868_799, "Tue, 29 Feb 2000 23:59:59 GMT"),
            (951_868_800, "Wed, 01 Mar 2000 00:00:00 GMT"),
            (1_289_690_940, "Sat, 13 Nov 2010 23:29:00 GMT"),
            (4_102_444_799, "Thu, 31 Dec 2099 23:59:59 GMT"),
        ] {
            assert_eq!(date(unix_s), text.as_bytes(), "{text}");
        }
    }
}
