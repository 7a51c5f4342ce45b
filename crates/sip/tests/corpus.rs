//! Replays the committed fuzzing corpus, so that what a fuzzer once found is checked by every plain test run.

use std::fs;
use std::path::Path;

#[expect(
    unreachable_pub,
    reason = "the fuzz targets use it as a module of a library"
)]
#[path = "../../../fuzz/src/sip.rs"]
mod targets;

#[expect(
    unreachable_pub,
    reason = "the fuzz targets use it as a module of a library"
)]
#[path = "../../../fuzz/src/sip_engine.rs"]
mod engine_target;

#[expect(
    clippy::disallowed_methods,
    reason = "a test may read the files it is about"
)]
fn replay(target: &str, run: fn(&[u8])) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../fuzz/corpus")
        .join(target);
    let mut inputs = 0;
    for entry in fs::read_dir(&folder).expect("the corpus is committed") {
        let input = fs::read(entry.expect("readable").path()).expect("readable");
        run(&input);
        // Its truncations are inputs too.
        (0..input.len().min(256)).for_each(|end| run(&input[..end]));
        inputs += 1;
    }
    assert!(inputs > 2, "{} is nearly empty", folder.display());
}

#[test]
fn messages() {
    replay("sip_message", targets::message);
}

#[test]
fn uris() {
    replay("sip_uri", targets::uri);
}

#[test]
fn streams() {
    replay("sip_stream", targets::stream);
}

#[test]
fn credentials() {
    replay("sip_digest", targets::digest);
}

#[test]
fn engines() {
    replay("sip_engine", engine_target::engine);
}
