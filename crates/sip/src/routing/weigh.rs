//! The order of SRV records (RFC 2782).

use super::cache::Srv;

/// Sorts the records: by priority, and within one by chance in proportion to the weights. `next_random` gives random
/// numbers.
pub(super) fn order(records: &[Srv], mut next_random: impl FnMut() -> u64) -> Vec<&Srv> {
    let mut left: Vec<&Srv> = records.iter().collect();
    // RFC 2782: those of weight 0 first, so that they have a small chance.
    left.sort_by_key(|record| (record.priority, record.weight));
    let mut ordered = Vec::with_capacity(left.len());
    while let Some(first) = left.first() {
        let priority = first.priority;
        let peers = left.partition_point(|record| record.priority == priority);
        // `peers` is at most the length of `left`.
        let total: u64 = left[..peers].iter().map(|r| u64::from(r.weight)).sum();
        let drawn = next_random() % (total + 1);
        let mut sum = 0;
        let place = left[..peers]
            .iter()
            .position(|record| {
                sum += u64::from(record.weight);
                sum >= drawn
            })
            .unwrap_or(0);
        ordered.push(left.remove(place));
    }
    ordered
}

#[cfg(test)]
mod tests {
    use super::super::name::DnsName;
    use super::*;

    fn record(priority: u16, weight: u16, port: u16) -> Srv {
        Srv {
            priority,
            weight,
            port,
            target: DnsName::new(b"a.example").unwrap(),
        }
    }

    fn next_random(seed: u64) -> impl FnMut() -> u64 {
        let mut state = seed | 1;
        move || {
            state ^= state >> 12;
            state ^= state << 25;
            state ^= state >> 27;
            state.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 20
        }
    }

    #[test]
    fn priorities_come_in_order_and_every_record_once() {
        let records = [record(20, 1, 4), record(10, 0, 1), record(10, 5, 2)];
        let mut next_random = next_random(3);
        for _ in 0..50 {
            let ports: Vec<u16> = order(&records, &mut next_random)
                .iter()
                .map(|r| r.port)
                .collect();
            assert_eq!(ports.len(), 3);
            assert_eq!(ports[2], 4);
        }
    }

    #[test]
    fn weights_are_shares_of_first_places() {
        let records = [record(1, 60, 60), record(1, 30, 30), record(1, 10, 10)];
        let mut next_random = next_random(9);
        let mut first = [0u32; 61];
        for _ in 0..10_000 {
            first[usize::from(order(&records, &mut next_random)[0].port)] += 1;
        }
        assert!((5700..6300).contains(&first[60]), "{}", first[60]);
        assert!((2700..3300).contains(&first[30]), "{}", first[30]);
        assert!((800..1200).contains(&first[10]), "{}", first[10]);
    }
}
