//! Values of flags that several commands share.

use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use load::measure::{parse_duration, parse_number};
use load::uri::foreign_scheme;
use tracing::level_filters::LevelFilter;

use crate::config::{self, FromText};

/// The port that reflectors of TURN tests have had since coturn's `turnutils_peer`.
const REFLECTOR_PORT: u16 = 3480;
/// Ports of one range: more sockets than that are a mistake.
const MAX_PORTS: u16 = 4096;

/// Reads a length of time: `10`, `10s`, `1.5s`, `500ms`, `1m30s`.
pub(crate) fn duration(text: &str) -> Result<Duration, String> {
    parse_duration(text).map_err(|error| error.to_string())
}

/// Reads a size in bytes: `1200`, `1200B` or `4KiB`.
pub(crate) fn size(text: &str) -> Result<usize, String> {
    let bytes = config::parse_bytes(text).map_err(|mistake| mistake.to_string())?;
    usize::try_from(bytes).map_err(|error| error.to_string())
}

/// Reads a length of time that is not zero and not longer than four hours.
pub(crate) fn run_time(text: &str) -> Result<Duration, String> {
    let time = duration(text)?;
    if time.is_zero() || time > Duration::from_secs(4 * 3600) {
        return Err("must be longer than nothing and at most 4h".to_owned());
    }
    Ok(time)
}

/// Reads a lifetime in whole seconds: `600`, `600s` or `10m`.
pub(crate) fn seconds(text: &str) -> Result<u32, String> {
    let time = duration(text)?;
    if time.subsec_nanos() > 0 {
        return Err("must be whole seconds".to_owned());
    }
    u32::try_from(time.as_secs()).map_err(|_| "must be at most 4294967295s".to_owned())
}

/// Reads the size of a socket buffer in KiB: `4096` or `4MiB`.
pub(crate) fn kibibytes(text: &str) -> Result<u32, String> {
    const ALLOWED: std::ops::RangeInclusive<usize> = 4..=1 << 20;
    let size = match text.parse::<usize>() {
        Ok(kibibytes) => kibibytes,
        Err(_) => size(text)? / 1024,
    };
    if !ALLOWED.contains(&size) {
        return Err("must be from 4KiB to 1GiB; a number alone is in KiB".to_owned());
    }
    u32::try_from(size).map_err(|error| error.to_string())
}

/// Reads the size of a payload in bytes: `120`, `120B` or `1KiB`.
pub(crate) fn payload(text: &str) -> Result<u16, String> {
    u16::try_from(size(text)?).map_err(|_| "must be at most 65535 bytes".to_owned())
}

/// Reads an idle time of a NAT's binding. No NAT should end one after less than 2 minutes (RFC 4787 §4.3); nobody waits
/// for more than an hour.
pub(crate) fn idle_time(text: &str) -> Result<Duration, String> {
    let time = duration(text)?;
    if !(Duration::from_secs(5)..=Duration::from_secs(3600)).contains(&time) {
        return Err("must be from 5s to 1h".to_owned());
    }
    Ok(time)
}

/// Reads the least severe level that is logged: `off`, `error`, `warn`, `info` or `debug`.
pub(crate) fn log_level(text: &str) -> Result<LevelFilter, String> {
    let level = config::LogLevel::from_text(text);
    level
        .map(|level| level.0)
        .map_err(|mistake| mistake.to_string())
}

/// Reads a share: `0.1%` or `0.001`; from 0 to 1.
pub(crate) fn share(text: &str) -> Result<f64, String> {
    let (number, scale) = match text.strip_suffix('%') {
        Some(number) => (number, 0.01),
        None => (text, 1.0),
    };
    let value = number.trim().parse::<f64>().map(|value| value * scale);
    match value {
        Ok(value) if (0.0..=1.0).contains(&value) => Ok(value),
        _ => Err("a share is written like 0.1% or 0.001, from 0 to 1".to_owned()),
    }
}

/// Parses a count, at least 1: `10000`, `10k` or `1M`.
pub(crate) fn count(text: &str) -> Result<u32, String> {
    let number = parse_number(text).filter(|number| number.fract() == 0.0);
    let number = number.filter(|number| (1.0..=f64::from(u32::MAX)).contains(number));
    number
        .map(|number| number as u32)
        .ok_or_else(|| format!("`{text}` is not a number such as 10000, 10k or 1M"))
}

/// Multiples of a rate, in the order in which they are tried.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct RateMultiples(pub(crate) Vec<f64>);

/// What a sweep from one multiple to another stops at on its way.
const STOPS: [f64; 9] = [0.5, 0.8, 1.0, 1.2, 1.5, 2.0, 3.0, 5.0, 10.0];

/// Reads `0.5..10`, or the multiples themselves: `0.5,1,2`.
pub(crate) fn multiples(text: &str) -> Result<RateMultiples, String> {
    let wrong =
        || format!("`{text}` is not multiples up to 100, such as 0.5..10, 0.5,1,2,5 or 1,2,1,5");
    let number = |part: &str| {
        let number: f64 = part.trim().parse().map_err(|_| wrong())?;
        if number > 0.0 && number <= 100.0 {
            Ok(number)
        } else {
            Err(wrong())
        }
    };
    let all = match text.split_once("..") {
        Some((from, to)) => {
            let (from, to) = (number(from)?, number(to)?);
            if from >= to {
                return Err(wrong());
            }
            let between = STOPS
                .iter()
                .copied()
                .filter(|&stop| stop > from && stop < to);
            std::iter::once(from).chain(between).chain([to]).collect()
        }
        None => text
            .split(',')
            .map(number)
            .collect::<Result<Vec<f64>, String>>()?,
    };
    Ok(RateMultiples(all))
}

/// Addresses of a peer, to listen on or to send to: one address, one port or a range of them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Endpoints(pub(crate) Vec<SocketAddr>);

/// Reads `ADDRESS[:PORT[-PORT]]`; an IPv6 address with a port stands in brackets.
pub(crate) fn endpoints(text: &str) -> Result<Endpoints, String> {
    if let Some(scheme) = foreign_scheme(text) {
        return Err(format!(
            "`{scheme}:` is not supported: reflectors are reached over UDP, as ADDRESS[:PORT[-PORT]]"
        ));
    }
    let wrong = || format!("`{text}` is not ADDRESS[:PORT[-PORT]], such as 127.0.0.1:3480-3487");
    let (ip, ports) = match text.parse::<Ipv6Addr>() {
        Ok(ip) => (IpAddr::V6(ip), None),
        Err(_) => split(text).ok_or_else(wrong)?,
    };
    let Some(ports) = ports else {
        return Ok(Endpoints(vec![SocketAddr::new(ip, REFLECTOR_PORT)]));
    };
    let (first, last) = ports.split_once('-').unwrap_or((ports, ports));
    let first: u16 = first.parse().map_err(|_| wrong())?;
    let last: u16 = last.parse().map_err(|_| wrong())?;
    if first > last || (first == 0 && last > 0) {
        return Err(format!(
            "the ports {first}-{last} are not in rising order from 1"
        ));
    }
    if last - first >= MAX_PORTS {
        return Err(format!("that is more than {MAX_PORTS} ports"));
    }
    Ok(Endpoints(
        (first..=last)
            .map(|port| SocketAddr::new(ip, port))
            .collect(),
    ))
}

/// Address, and what follows the colon after it.
fn split(text: &str) -> Option<(IpAddr, Option<&str>)> {
    if let Some(rest) = text.strip_prefix('[') {
        let (ip, rest) = rest.split_once(']')?;
        let ip = ip.parse::<Ipv6Addr>().ok()?;
        return match rest {
            "" => Some((ip.into(), None)),
            rest => Some((ip.into(), Some(rest.strip_prefix(':')?))),
        };
    }
    match text.split_once(':') {
        Some((ip, ports)) => Some((ip.parse().ok()?, Some(ports))),
        None => Some((text.parse().ok()?, None)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lifetimes_buffers_and_payloads_have_the_grammar_of_all_times_and_sizes() {
        for text in ["600", "600s", "10m"] {
            assert_eq!(seconds(text), Ok(600), "{text}");
        }
        for text in ["1.5s", "-1", "soon", "4294967296s"] {
            assert!(seconds(text).is_err(), "{text}");
        }
        for text in ["4096", "4MiB", "4096KiB"] {
            assert_eq!(kibibytes(text), Ok(4096), "{text}");
        }
        for text in ["3", "3KiB", "2GiB", "1048577", "x", ""] {
            assert!(kibibytes(text).is_err(), "{text}");
        }
        assert_eq!((payload("120"), payload("1KiB")), (Ok(120), Ok(1024)));
        assert!(payload("64KiB").is_err() && payload("x").is_err());
    }

    #[test]
    fn times_are_read_as_people_write_them() {
        assert_eq!(duration("500ms"), Ok(Duration::from_millis(500)));
        assert_eq!(duration("1h30m"), Ok(Duration::from_secs(5400)));
        assert_eq!(duration("5"), Ok(Duration::from_secs(5)));
        assert_eq!(duration("1.5ms"), Ok(Duration::from_micros(1500)));
        assert_eq!((size("1200"), size("4KiB")), (Ok(1200), Ok(4096)));
        for text in ["", "ms", "-1s", "soon", "5 apples"] {
            assert!(duration(text).is_err(), "{text}");
        }
        assert!(run_time("0s").is_err() && run_time("1d").is_err() && run_time("4h").is_ok());
    }

    #[test]
    fn shares_are_between_nothing_and_all() {
        assert_eq!(share("0.5"), Ok(0.5));
        assert!((share("0.1%").unwrap() - 0.001).abs() < 1e-12);
        for text in ["", "2", "-1", "101%", "x%", "NaN"] {
            assert!(share(text).is_err(), "{text}");
        }
    }

    #[test]
    fn counts_and_multiples_are_read_as_people_write_them() {
        assert_eq!(count("10k"), Ok(10_000));
        assert_eq!(count("7"), Ok(7));
        assert_eq!(count("1.5k"), Ok(1500));
        for text in ["", "0", "k", "-1", "5000M", "1.5"] {
            assert!(count(text).is_err(), "{text}");
        }
        assert_eq!(
            multiples("1..3"),
            Ok(RateMultiples(vec![1.0, 1.2, 1.5, 2.0, 3.0]))
        );
        assert_eq!(multiples("0.5,2"), Ok(RateMultiples(vec![0.5, 2.0])));
        for text in ["", "2..1", "2,0", "0..3", "1..1000", "x"] {
            assert!(multiples(text).is_err(), "{text}");
        }
    }

    #[test]
    fn addresses_have_ports_or_ranges() {
        let of = |text| {
            endpoints(text).map(|list| list.0.iter().map(ToString::to_string).collect::<Vec<_>>())
        };
        assert_eq!(of("127.0.0.1").unwrap(), ["127.0.0.1:3480"]);
        assert_eq!(of("127.0.0.1:0").unwrap(), ["127.0.0.1:0"]);
        assert_eq!(of("::1").unwrap(), ["[::1]:3480"]);
        assert_eq!(of("[::1]").unwrap(), ["[::1]:3480"]);
        assert_eq!(of("[::1]:5-6").unwrap(), ["[::1]:5", "[::1]:6"]);
        assert!(of("tcp:127.0.0.1:3480").unwrap_err().contains("over UDP"));
        for text in [
            "",
            ":1",
            "host",
            "1.2.3.4:",
            "1.2.3.4:9-8",
            "1.2.3.4:0-5",
            "1.2.3.4:1-65535",
            "[::1",
            "[::1]5",
        ] {
            assert!(of(text).is_err(), "{text}");
        }
    }
}
