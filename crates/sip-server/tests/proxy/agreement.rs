//! The preview of a decision and the proxy agree, and among 10,000 prefixes the longest decides. How long that takes:
//! the example `routes`.
use sip::flow::Transport;
use sip::{Message, Spans};
use sip_server::proxy::Preview;
use sip_server::routes::{
    Action, Call, CallSender, Decision, HeaderRule, Hunt, Network, NextHop, Route, Table, Trunk,
};

use crate::node::{ALICE, PROXY, UAC, UAS, address, flow_of, request};
use crate::world::World;

/// Numbers that look random, and are the same in every run.
struct Random(u64);

impl Random {
    fn below(&mut self, end: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % end
    }

    fn one_in(&mut self, many: u64) -> bool {
        self.below(many) == 0
    }

    fn pick<T: Clone>(&mut self, all: &[T]) -> T {
        all[self.below(all.len() as u64) as usize].clone()
    }

    fn digits(&mut self, most: u64) -> String {
        let len = 1 + self.below(most);
        (0..len).map(|_| self.pick(&['1', '2', '3'])).collect()
    }
}

fn trunks() -> Vec<Trunk> {
    let trunk = |(place, name): (usize, &&str)| Trunk {
        name: (*name).to_owned(),
        // All lead to one agent; the domain tells them apart.
        to: vec![NextHop::new(&format!("sip:{}", address(UAS))).unwrap()],
        domain: Some(format!("{name}.example")),
        weight: 1 + place as u16,
        priority: (place / 3) as u16,
        ..Trunk::default()
    };
    ["a", "b", "c", "d"].iter().enumerate().map(trunk).collect()
}

fn route(random: &mut Random) -> Route {
    let names = |random: &mut Random| -> Vec<String> {
        let count = 1 + random.below(3);
        let all = (0..count).map(|_| random.pick(&["a", "b", "c", "d"]));
        all.map(str::to_owned).collect()
    };
    let mut route = Route {
        priority: random.below(2) as u16,
        prefixes: (0..random.below(4)).map(|_| random.digits(5)).collect(),
        strip: random.below(3) as u16,
        hunt: random.pick(&[Hunt::Order, Hunt::Weight, Hunt::Hash]),
        ..Route::default()
    };
    if random.one_in(3) {
        route.add = "9".to_owned();
    }
    if random.one_in(5) {
        route.replace = Some("bob".to_owned());
    }
    if random.one_in(4) {
        route.domains = vec![random.pick(&["example.com", "other.example"]).to_owned()];
    }
    if random.one_in(4) {
        route.from_users = vec![random.pick(&["alice", "carol@example.com"]).to_owned()];
    }
    if random.one_in(5) {
        route.from_networks = vec![Network {
            address: address(UAC).ip(),
            prefix: 24 + random.below(9) as u8,
        }];
    }
    if random.one_in(4) {
        route.headers = vec![HeaderRule {
            name: "X-Tenant".to_owned(),
            value: "7".to_owned(),
            is_prefix: random.one_in(2),
        }];
    }
    route.action = match random.below(8) {
        0 => Action::Domain("example.com".to_owned()),
        1 => Action::Reject {
            code: 403,
            reason: "Not From Here".to_owned(),
        },
        _ => Action::Trunks(names(random)),
    };
    route
}

fn message(random: &mut Random, number: u32) -> String {
    let user = match random.below(6) {
        0 => "bob".to_owned(),
        _ => random.digits(7),
    };
    let uri = match random.below(8) {
        0 => format!("tel:{}", random.digits(7)),
        1 => format!("sip:{user}@other.example"),
        2 => format!("sip:{user}@{}", address(PROXY)),
        _ => format!("sip:{user}@example.com"),
    };
    let mut extra = String::new();
    if !random.one_in(5) {
        extra += ALICE;
    }
    if random.one_in(3) {
        extra += random.pick(&["X-Tenant: 7\r\n", "x-tenant: 77\r\n", "X-Tenant: 8\r\n"]);
    }
    request("MESSAGE", &uri, number, &extra)
}

/// What the preview says: the first Request-URI, or a code.
fn previewed(world: &mut World, text: &str) -> String {
    let mut bytes = text.to_owned();
    // What the engine of the caller puts in front.
    let via = format!("Via: SIP/2.0/UDP {};branch=z9hG4bK1\r\n", address(UAC));
    bytes.insert_str(bytes.find("\r\n").unwrap() + 2, &via);
    let mut spans = Spans::new();
    let message = Message::parse(bytes.as_bytes(), &mut spans).unwrap();
    let mut from = World::datagrams_of(UAC);
    from.flow = flow_of(PROXY, address(UAC), None);
    let now = world.now();
    // The proxy draws once more, for the request itself.
    let draws = world.policy().draws;
    let proxied = world.nodes[PROXY].proxied.as_mut().unwrap();
    let (proxy, policy) = (&mut proxied.proxy, &mut proxied.policy);
    let preview = proxy.preview(now, policy, &message, &from);
    world.policy().draws = draws;
    match preview {
        // The world has no DNS, so what leads to a name comes to nothing.
        Preview::Forwarded(targets)
            if targets[0].trunk.is_none() && targets[0].uri.contains("other.example") =>
        {
            "500".to_owned()
        }
        Preview::Forwarded(targets) => targets[0].uri.clone(),
        Preview::Refused(code, _) => code.to_string(),
        Preview::Challenge => "407".to_owned(),
        other => format!("{other:?}"),
    }
}

#[test]
fn the_preview_and_the_proxy_agree_on_10000_random_requests() {
    let mut random = Random(0x5eed_1234_5678);
    let mut forwarded = 0;
    let mut number = 0;
    for _ in 0..20 {
        let mut world = World::new();
        world.bind_bob(&[None]);
        world.policy().trunks.clear();
        let routes = (0..12).map(|_| route(&mut random)).collect();
        world.policy().set_routes(routes, trunks());
        for _ in 0..500 {
            number += 1;
            let text = message(&mut random, number);
            let expected = previewed(&mut world, &text);
            let before = world.nodes[PROXY].sent.len();
            world.send(UAC, Transport::Udp, &text);
            world.run_until(world.ms() + 30);
            let sent = &world.nodes[PROXY].sent[before..];
            let first = sent.iter().find(|(_, to, _)| *to != UAC);
            let is_forwarded = first.is_some();
            let happened = match first {
                Some((.., copy)) => copy.split(' ').nth(1).unwrap().to_owned(),
                None => {
                    let response = &sent
                        .first()
                        .unwrap_or_else(|| panic!("no response to {text}"))
                        .2;
                    response.split(' ').nth(1).unwrap().to_owned()
                }
            };
            assert_eq!(expected, happened, "{text}");
            forwarded += u32::from(is_forwarded);
        }
    }
    assert_eq!(number, 10_000);
    assert!((2_000..9_000).contains(&forwarded), "{forwarded}");
}

/// A table of 10,000 prefixes and a call that matches the longest of several.
fn large() -> (Table, Vec<String>) {
    let mut random = Random(7);
    let mut prefixes: Vec<String> = Vec::new();
    while prefixes.len() < 10_000 {
        let len = 2 + random.below(7);
        let digits = (0..len).map(|_| char::from(b'0' + random.below(10) as u8));
        prefixes.push(format!("+{}", digits.collect::<String>()));
        if prefixes.len() == 10_000 {
            prefixes.sort_unstable();
            prefixes.dedup();
        }
    }
    let calls = prefixes
        .iter()
        .map(|prefix| format!("sip:{prefix}1234567@example.com"));
    let calls = calls.collect();
    let route = |prefix: &String| Route {
        name: prefix.clone(),
        prefixes: vec![prefix.clone()],
        action: Action::Trunks(vec!["a".to_owned()]),
        ..Route::default()
    };
    let routes = prefixes.iter().map(route).collect();
    (Table::new(routes, trunks(), None).unwrap(), calls)
}

fn decide(table: &Table, message: &Message<'_>, uri: &str) -> Decision {
    let call = Call {
        message,
        uri: uri.as_bytes(),
        sender: CallSender::User(b"alice", b"example.com"),
        source: address(UAC),
        transport: Transport::Udp,
        draw: 1,
    };
    table.decide(sip::Mono(0), &call)
}

#[test]
fn among_10000_prefixes_the_longest_decides() {
    let (table, calls) = large();
    let text = request("INVITE", "sip:1@example.com", 1, "");
    let mut spans = Spans::new();
    let message = Message::parse(text.as_bytes(), &mut spans).unwrap();
    for (index, uri) in calls.iter().enumerate() {
        let Decision::Trunks(steps) = decide(&table, &message, uri) else {
            panic!("{uri}");
        };
        let number = table.routes().nth(steps[0].hop.route as usize).unwrap();
        assert!(uri.starts_with(&format!("sip:{}", number.name)));
        // This looks at every prefix: for some of the numbers only.
        if index % 37 == 0 {
            let called = uri.trim_start_matches("sip:");
            let longer = table.routes().filter(|it| called.starts_with(&it.name));
            let longest = longer.map(|it| it.name.len()).max();
            assert_eq!(longest, Some(number.name.len()), "{uri}");
        }
    }
}
