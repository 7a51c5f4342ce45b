//! A network with delay, loss and reordering. The same seed gives the same run.

use std::collections::BTreeMap;

use sip::Mono;

/// How bad it is.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Weather {
    /// How many of 1,000 datagrams are lost.
    pub(crate) loss: u64,
    /// How many of 1,000 arrive twice.
    pub(crate) repeated: u64,
    /// One-way delay in milliseconds; each datagram has its own, so they overtake each other.
    pub(crate) delay_ms: (u64, u64),
}

impl Weather {
    pub(crate) const FINE: Weather = Weather {
        loss: 0,
        repeated: 0,
        delay_ms: (10, 10),
    };
    pub(crate) const FOUL: Weather = Weather {
        loss: 150,
        repeated: 150,
        delay_ms: (5, 700),
    };
}

/// What is on its way.
#[derive(Clone, Debug)]
pub(crate) struct Packet {
    pub(crate) from: usize,
    pub(crate) to: usize,
    /// The receiver's key of the connection.
    pub(crate) connection: Option<u64>,
    pub(crate) bytes: Vec<u8>,
}

pub(crate) struct Network {
    pub(crate) weather: Weather,
    in_flight: BTreeMap<(Mono, u64), Packet>,
    count: u64,
    dice: u64,
}

impl Network {
    pub(crate) fn new(weather: Weather, seed: u64) -> Network {
        Network {
            weather,
            in_flight: BTreeMap::new(),
            count: 0,
            dice: seed << 1 | 1,
        }
    }

    /// A number that looks random (xorshift64*).
    fn below(&mut self, limit: u64) -> u64 {
        self.dice ^= self.dice >> 12;
        self.dice ^= self.dice << 25;
        self.dice ^= self.dice >> 27;
        (self.dice.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 33) % limit.max(1)
    }

    pub(crate) fn send(&mut self, now: Mono, packet: Packet) {
        let Weather {
            loss,
            repeated,
            delay_ms: (least, most),
        } = self.weather;
        if packet.connection.is_some() {
            // Streams lose and overtake nothing.
            return self.put(now, least, packet);
        }
        if self.below(1000) < loss {
            return;
        }
        let copies = 1 + u64::from(self.below(1000) < repeated);
        for _ in 0..copies {
            let delay = least + self.below(most - least + 1);
            self.put(now, delay, packet.clone());
        }
    }

    fn put(&mut self, now: Mono, delay_ms: u64, packet: Packet) {
        self.count += 1;
        let at = Mono(now.0 + delay_ms * 1_000_000);
        self.in_flight.insert((at, self.count), packet);
    }

    pub(crate) fn next_arrival(&self) -> Option<Mono> {
        self.in_flight.first_key_value().map(|((at, _), _)| *at)
    }

    pub(crate) fn arrive(&mut self, now: Mono) -> Option<Packet> {
        let entry = self.in_flight.first_entry()?;
        (entry.key().0 <= now).then(|| entry.remove())
    }
}
