//! How calls end: by a BYE, by a CANCEL, and all of them at the end of a run.

use super::core::{Core, WorkContext};
use super::slots::Stage;

impl Core {
    /// Ends a call that is up.
    pub(super) fn hang_up(&mut self, place: u32, around: WorkContext<'_>) {
        self.slots.get_mut(place).challenges = 0;
        self.start(place, Stage::Bye, around);
    }

    /// Ends a call that rings (RFC 3261 §9.1): the CANCEL has the branch of the INVITE, and a To without a tag.
    pub(super) fn cancel(&mut self, place: u32, around: WorkContext<'_>) {
        let peer = self.setting.peer(self.slots.get(place).aor);
        let uri = self.setting.words.uri(&mut self.text, peer).to_vec();
        self.memory(place).dialog.begin(&uri);
        self.start(place, Stage::Cancelling, around);
    }

    /// Ends the calls that are left when the run is over: cancels those that ring, and sends a BYE to those that are
    /// established.
    pub(super) fn close(&mut self, around: WorkContext<'_>) {
        let is_call = self.setting.options.workload.is_call();
        for place in self.slots.all() {
            let slot = self.slots.get(place);
            match slot.stage {
                Stage::First if is_call && slot.proceeding => self.cancel(place, around),
                Stage::Talking => self.hang_up(place, around),
                _ => {}
            }
        }
    }

    /// Whether [`Core::close`] has left something that ends soon.
    pub(super) fn is_closing(&self) -> bool {
        let places = self.slots.all();
        let ends = |stage| matches!(stage, Stage::Bye | Stage::Cancelling);
        places
            .iter()
            .any(|&place| ends(self.slots.get(place).stage))
    }
}
