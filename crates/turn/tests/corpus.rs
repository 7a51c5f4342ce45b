//! Replays the committed fuzzing corpus, so that what a fuzzer once found is checked by every plain test run.
#![allow(missing_docs, unreachable_pub)]

extern crate stun as hairpin_stun;

#[path = "../../../fuzz/src/turn_client.rs"]
mod client_target;
#[path = "../../../fuzz/src/turn_server.rs"]
mod server_target;

type Target = fn(&[u8]);
const TARGETS: [(&str, Target); 2] = [
    ("turn_client", client_target::client),
    ("turn_server", server_target::server),
];

#[expect(
    clippy::disallowed_methods,
    reason = "a test may read the files it is about"
)]
#[test]
fn the_corpus_is_replayed() {
    for (name, target) in TARGETS {
        let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR"))
            .join("../../fuzz/corpus")
            .join(name);
        let mut inputs = 0;
        for entry in std::fs::read_dir(&folder).expect("the corpus is committed") {
            let input = std::fs::read(entry.expect("readable").path()).expect("readable");
            target(&input);
            inputs += 1;
        }
        assert!(inputs > 2, "{} is nearly empty", folder.display());
    }
}

/// As many random inputs as a test run has time for.
#[test]
fn random_steps_break_nothing() {
    let mut state = 1_u64;
    for _ in 0..3_000 {
        let input: Vec<u8> = (0..600)
            .map(|_| {
                state = state
                    .wrapping_mul(6_364_136_223_846_793_005)
                    .wrapping_add(1);
                (state >> 56) as u8
            })
            .collect();
        TARGETS.iter().for_each(|(_, target)| target(&input));
    }
}
