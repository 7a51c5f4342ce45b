//! What the commands of each page require.

mod load;
mod operation;
mod sip;
mod stores;
mod turn;

use super::sandbox::{Rule, Scene};

/// All of them.
pub(super) fn all() -> impl Iterator<Item = &'static Scene> {
    let groups = [
        load::SCENES,
        operation::SCENES,
        sip::SCENES,
        stores::SCENES,
        turn::SCENES,
    ];
    groups.into_iter().flatten()
}

const fn scene(page: &'static str, setup: &'static str) -> Scene {
    Scene {
        page,
        setup,
        words: &[],
        rules: &[],
    }
}
