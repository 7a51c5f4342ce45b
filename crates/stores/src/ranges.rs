//! Ranges of addresses, as coturn writes peer rules: `192.0.2.1`, `192.0.2.1-192.0.2.9`, `192.0.2.0/24`.

use std::net::IpAddr;

use ipnet::{IpNet, Ipv4Subnets, Ipv6Subnets};

/// The networks that a range consists of; `None` if it is none.
#[must_use]
pub fn networks(range: &str) -> Option<Vec<IpNet>> {
    let range = range.trim();
    if let Ok(network) = range.parse::<IpNet>() {
        return Some(vec![network.trunc()]);
    }
    let (first, last) = range.split_once('-').unwrap_or((range, range));
    match (first.trim().parse().ok()?, last.trim().parse().ok()?) {
        (IpAddr::V4(first), IpAddr::V4(last)) if first <= last => {
            Some(Ipv4Subnets::new(first, last, 0).map(IpNet::from).collect())
        }
        (IpAddr::V6(first), IpAddr::V6(last)) if first <= last => {
            Some(Ipv6Subnets::new(first, last, 0).map(IpNet::from).collect())
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(range: &str) -> Option<Vec<String>> {
        Some(networks(range)?.iter().map(IpNet::to_string).collect())
    }

    #[test]
    fn a_range_is_the_networks_that_fill_it() {
        let of = |list: &[&str]| Some(list.iter().map(|text| (*text).to_owned()).collect());
        assert_eq!(texts("123::45"), of(&["123::45/128"]));
        assert_eq!(texts("10.0.0.0/8"), of(&["10.0.0.0/8"]));
        assert_eq!(texts("83.166.64.0-83.166.95.255"), of(&["83.166.64.0/19"]));
        assert_eq!(
            texts("172.17.13.254 - 172.17.14.1"),
            of(&["172.17.13.254/31", "172.17.14.0/31"])
        );
        let wrong = ["", "a", "10.0.0.2-10.0.0.1", "10.0.0.1-::1", "10.0.0.1-"];
        assert_eq!(wrong.map(networks), [const { None }; 5]);
    }
}
