//! Foul weather: loss, repetition and overtaking. Everything ends, and what has ended was told once.

use hairpin_sip::flow::Transport;

use crate::network::Weather;
use crate::world::{UAC, World, request};

#[test]
fn requests_end_under_any_faults_and_are_reported_once() {
    let mut completed = 0;
    for seed in 1..60 {
        let mut world = World::new(Weather::FOUL, seed);
        world.uas().script.other = vec![(seed % 7 * 300, 200)];
        for number in 1..=5 {
            world.send(Transport::Udp, &request("OPTIONS", number, ""));
        }
        world.run_until(80_000);
        let heard = world.heard(UAC);
        let ends = heard
            .iter()
            .filter(|what| matches!(**what, "client ended" | "timed out"));
        assert_eq!(ends.count(), 5, "seed {seed}: {heard:?}");
        let answers = heard.iter().filter(|what| **what == "200 OPTIONS").count();
        let timeouts = heard.iter().filter(|what| **what == "timed out").count();
        assert_eq!(answers + timeouts, 5, "seed {seed}: {heard:?}");
        completed += answers;
        world.nothing_is_left();
    }
    // Eleven transmissions at a quarter of loss each way: none should be left unanswered.
    assert!(completed >= 290, "{completed} of 295");
}

#[test]
fn calls_end_in_any_weather() {
    let scripts: [&[(u64, u16)]; 4] = [
        &[(0, 200)],
        &[(0, 486)],
        &[(100, 180), (2_000, 200)],
        &[(300, 183), (1_500, 603)],
    ];
    let mut answered = 0;
    for seed in 1..60u64 {
        let mut world = World::new(Weather::FOUL, seed);
        world.uas().script.invite = scripts[seed as usize % 4].to_vec();
        let key = world.send(Transport::Udp, &request("INVITE", 1, ""));
        if seed % 5 == 0 {
            world.run_until(seed * 20);
            world.cancel(key);
        }
        world.run_until(300_000);
        let heard = world.heard(UAC);
        let ends = heard
            .iter()
            .filter(|what| matches!(**what, "client ended" | "timed out"));
        assert_eq!(ends.count(), 1, "seed {seed}: {heard:?}");
        let finals: Vec<_> = heard
            .iter()
            .filter(|what| what.ends_with("INVITE") && !what.starts_with('1'))
            .collect();
        // A refusal is told once, however often it comes; a 2xx each time.
        let refusals = finals.iter().filter(|what| !what.starts_with('2')).count();
        assert!(refusals <= 1, "seed {seed}: {heard:?}");
        answered += usize::from(!finals.is_empty());
        world.nothing_is_left();
    }
    assert!(answered >= 55, "{answered} of 59");
}

#[test]
fn the_same_seed_gives_the_same_run() {
    let run = |seed| {
        let mut world = World::new(Weather::FOUL, seed);
        world.uas().script.invite = vec![(50, 180), (900, 200)];
        world.send(Transport::Udp, &request("INVITE", 1, ""));
        world.run_until(60_000);
        (world.nodes[0].sent.clone(), world.nodes[1].sent.clone())
    };
    assert_eq!(run(11), run(11));
    assert_ne!(run(11), run(12));
}
