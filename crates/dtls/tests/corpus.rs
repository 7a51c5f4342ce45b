//! Replays the committed fuzzing corpus, so that what a fuzzer once found is checked by every plain test run.

use std::fs;
use std::path::Path;

#[expect(
    unreachable_pub,
    reason = "the fuzz targets use it as a module of a library"
)]
#[path = "../../../fuzz/src/dtls.rs"]
mod targets;

#[test]
#[expect(
    clippy::disallowed_methods,
    reason = "a test may read the files it is about"
)]
fn endpoint() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus/dtls_endpoint");
    let mut inputs = 0;
    for entry in fs::read_dir(&folder).expect("the corpus is committed") {
        let input = fs::read(entry.expect("readable").path()).expect("readable");
        targets::endpoint(&input);
        // Its truncations are inputs too.
        (0..input.len().min(64)).for_each(|end| targets::endpoint(&input[..end]));
        inputs += 1;
    }
    assert!(inputs > 2, "{} is nearly empty", folder.display());
}
