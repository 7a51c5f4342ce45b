//! A name server for tests, on loopback over UDP and TCP: it says what it is told to, and counts what it is asked.
#![allow(dead_code, reason = "each test file uses a part of it")]

use hickory_resolver::proto::op::{Message, MessageType, OpCode, ResponseCode};
use hickory_resolver::proto::rr::rdata::{A, AAAA, CNAME, NAPTR, SOA, SRV};
use hickory_resolver::proto::rr::{Name, RData, Record, RecordType};
use std::collections::HashMap;
use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// How a name is answered.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Manner {
    /// With what there is.
    Plain,
    /// Over UDP with nothing but the word that it is too long; over TCP with all.
    Truncated,
    /// Not at all.
    Silent,
    /// With SERVFAIL.
    Failing,
}

/// What is known: records by name in lower case.
#[derive(Default)]
pub(crate) struct Zone {
    records: HashMap<String, Vec<(u32, RData)>>,
    manners: HashMap<String, Manner>,
    /// The SOA's minimum: for how long nothing is nothing.
    negative_ttl: u32,
}

pub(crate) fn name(text: &str) -> Name {
    Name::from_ascii(format!("{text}.")).expect("a name")
}

impl Zone {
    pub(crate) fn new() -> Zone {
        Zone {
            negative_ttl: 60,
            ..Zone::default()
        }
    }

    pub(crate) fn negative_ttl(mut self, seconds: u32) -> Zone {
        self.negative_ttl = seconds;
        self
    }

    pub(crate) fn manner(mut self, of: &str, manner: Manner) -> Zone {
        self.manners.insert(of.to_owned(), manner);
        self
    }

    pub(crate) fn record(mut self, of: &str, ttl: u32, data: RData) -> Zone {
        let records = self.records.entry(of.to_owned()).or_default();
        records.push((ttl, data));
        self
    }

    pub(crate) fn host(self, of: &str, address: &str) -> Zone {
        let data = match address.parse().expect("an address") {
            IpAddr::V4(v4) => RData::A(A(v4)),
            IpAddr::V6(v6) => RData::AAAA(AAAA(v6)),
        };
        self.record(of, 300, data)
    }

    pub(crate) fn alias(self, of: &str, target: &str) -> Zone {
        self.record(of, 300, RData::CNAME(CNAME(name(target))))
    }

    pub(crate) fn srv(self, of: &str, [priority, weight, port]: [u16; 3], target: &str) -> Zone {
        let target = match target {
            "." => Name::root(),
            target => name(target),
        };
        let data = SRV::new(priority, weight, port, target);
        self.record(of, 300, RData::SRV(data))
    }

    pub(crate) fn naptr(self, of: &str, order: u16, service: &str, target: &str) -> Zone {
        let [flags, service] = ["s", service].map(|text| text.as_bytes().into());
        let data = NAPTR::new(order, 50, flags, service, Box::default(), name(target));
        self.record(of, 300, RData::NAPTR(data))
    }

    fn answer(&self, question: &Message, is_stream: bool) -> Option<Message> {
        let query = question.queries.first()?.clone();
        let asked = query.name().to_ascii().to_ascii_lowercase();
        let asked = asked.trim_end_matches('.').to_owned();
        let mut answer = Message::new(question.metadata.id, MessageType::Response, OpCode::Query);
        answer.metadata.recursion_desired = true;
        answer.metadata.recursion_available = true;
        answer.add_query(query.clone());
        match self.manners.get(&asked) {
            Some(Manner::Silent) => return None,
            Some(Manner::Failing) => {
                answer.metadata.response_code = ResponseCode::ServFail;
                return Some(answer);
            }
            Some(Manner::Truncated) if !is_stream => {
                answer.metadata.truncation = true;
                return Some(answer);
            }
            _ => {}
        }
        self.add_records(&mut answer, query.name(), asked.clone(), query.query_type());
        if answer.answers.is_empty() {
            if !self.records.contains_key(&asked) {
                answer.metadata.response_code = ResponseCode::NXDomain;
            }
            let (root, hour) = (Name::root(), 3600);
            let soa = SOA::new(
                root.clone(),
                root.clone(),
                1,
                hour,
                hour,
                hour,
                self.negative_ttl,
            );
            answer.add_authority(Record::from_rdata(root, 3600, RData::SOA(soa)));
        }
        Some(answer)
    }

    /// The records, and those that aliases lead to, as a recursive server answers. A loop is cut.
    fn add_records(&self, answer: &mut Message, asked: &Name, at: String, kind: RecordType) {
        let (mut owner, mut at) = (asked.clone(), at);
        for _ in 0..8 {
            let records = self.records.get(&at).map_or(&[][..], Vec::as_slice);
            let mut next = None;
            for (ttl, data) in records {
                if let RData::CNAME(CNAME(target)) = data {
                    next = Some(target.clone());
                } else if data.record_type() != kind {
                    continue;
                }
                answer.add_answer(Record::from_rdata(owner.clone(), *ttl, data.clone()));
            }
            let Some(target) = next else { return };
            at = target.to_ascii().trim_end_matches('.').to_owned();
            owner = target;
        }
    }
}

/// The name server. It lives as long as the test does.
pub(crate) struct DnsServer {
    address: SocketAddr,
    asked: Arc<Mutex<Vec<String>>>,
}

impl DnsServer {
    pub(crate) fn new(zone: Zone) -> DnsServer {
        let (udp, tcp) = sockets();
        let server = DnsServer {
            address: udp.local_addr().expect("an address"),
            asked: Arc::default(),
        };
        let zone = Arc::new(zone);
        let (shared, asked) = (Arc::clone(&zone), Arc::clone(&server.asked));
        std::thread::spawn(move || {
            let mut buffer = [0; 4096];
            while let Ok((length, from)) = udp.recv_from(&mut buffer) {
                if let Some(answer) = reply(&shared, &asked, &buffer[..length], "udp") {
                    let _ = udp.send_to(&answer, from);
                }
            }
        });
        let asked = Arc::clone(&server.asked);
        std::thread::spawn(move || {
            for stream in tcp.incoming().flatten() {
                let (zone, asked) = (Arc::clone(&zone), Arc::clone(&asked));
                std::thread::spawn(move || serve_stream(stream, &zone, &asked));
            }
        });
        server
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    /// What was asked so far, such as `udp A host.example`.
    pub(crate) fn asked(&self) -> Vec<String> {
        self.asked.lock().expect("no panic").clone()
    }
}

/// Both on the same port.
fn sockets() -> (UdpSocket, TcpListener) {
    for _ in 0..64 {
        let udp = UdpSocket::bind("127.0.0.1:0").expect("a socket");
        if let Ok(tcp) = TcpListener::bind(udp.local_addr().expect("an address")) {
            return (udp, tcp);
        }
    }
    panic!("no port is free over UDP and TCP");
}

fn reply(zone: &Zone, asked: &Mutex<Vec<String>>, bytes: &[u8], how: &str) -> Option<Vec<u8>> {
    let question = Message::from_vec(bytes).ok()?;
    let query = question.queries.first()?;
    let host = query.name().to_ascii().to_ascii_lowercase();
    let host = host.trim_end_matches('.');
    let line = format!("{how} {} {host}", query.query_type());
    asked.lock().expect("no panic").push(line);
    zone.answer(&question, how == "tcp")?.to_vec().ok()
}

fn serve_stream(mut stream: TcpStream, zone: &Zone, asked: &Mutex<Vec<String>>) {
    let _ = stream.set_read_timeout(Some(Duration::from_secs(30)));
    let mut length = [0; 2];
    while stream.read_exact(&mut length).is_ok() {
        let mut question = vec![0; usize::from(u16::from_be_bytes(length))];
        if stream.read_exact(&mut question).is_err() {
            return;
        }
        let Some(answer) = reply(zone, asked, &question, "tcp") else {
            continue;
        };
        let prefix = u16::try_from(answer.len()).expect("short").to_be_bytes();
        if stream.write_all(&[&prefix[..], &answer].concat()).is_err() {
            return;
        }
    }
}
