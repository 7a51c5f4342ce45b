//! Replays the committed fuzzing corpus, so that what a fuzzer once found is checked by every plain test run.
#![allow(missing_docs, unreachable_pub)]

#[path = "../../../fuzz/src/streams.rs"]
mod connection;
#[path = "../../../fuzz/src/websocket.rs"]
mod websocket;

type Target = fn(&[u8]);
const TARGETS: [(&str, Target); 4] = [
    ("stream_beginning", connection::beginning),
    ("stream_tls", connection::tls),
    ("websocket_frames", websocket::frames),
    ("websocket_handshake", websocket::handshake),
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
            // Its truncations are inputs too.
            (0..=input.len()).for_each(|end| target(&input[..end]));
            inputs += 1;
        }
        assert!(inputs > 2, "{} is nearly empty", folder.display());
    }
}
