//! Looking at the checkpoint directory before a join, and what a member does while it cannot be read: it does
//! not join, since a group would need the directory too, but keeps its state, listens to what is asked of it,
//! and looks again, later and later. A fresh process could do no better, and would have no state.

use super::Surroundings;
use super::checkpoints::Found;
use super::joining::pause;
use super::standing::Standing;
use super::warm::Warm;
use crate::step::{Fatal, FatalKind};
use std::time::{Duration, Instant};

/// What came of a look.
pub(super) enum Look {
    Found(Found),
    /// The directory cannot be read now. Until the next look, this long from now, the member listens.
    Away(Duration),
}

/// Looks since the last one that succeeded.
#[derive(Debug, Default)]
pub(super) struct Looks {
    failed: u32,
    since: Option<Instant>,
}

impl Looks {
    /// Looks once.
    ///
    /// # Errors
    /// When what is there cannot be used, or could not be read for [`super::Patience::directory`]; by a member
    /// that holds a state, for [`super::Patience::plan`].
    pub(super) fn look(
        &mut self,
        warm: &Warm<'_>,
        standing: &Standing,
        around: &Surroundings<'_>,
    ) -> Result<Look, Fatal> {
        let Some(checkpoints) = &warm.checkpoints else {
            return Ok(Look::Found(Found::default()));
        };
        let holds = warm.holds_state();
        let fatal = match checkpoints.look(around.group.job(), &warm.fingerprints, standing, holds) {
            Err(fatal) if fatal.kind == FatalKind::Process => fatal,
            looked => {
                *self = Looks::default();
                return looked.map(Look::Found);
            }
        };
        let now = around.clock.now();
        let waited = now.saturating_duration_since(*self.since.get_or_insert(now));
        let patience = match holds {
            true => around.patience.plan,
            false => around.patience.directory,
        };
        if waited >= patience {
            return Err(Fatal::process(format!(
                "{fatal}; it was tried for {} s",
                waited.as_secs()
            )));
        }
        self.failed = self.failed.saturating_add(1);
        let pause = pause(self.failed, &around.patience, around.group.member().incarnation);
        tracing::warn!(?pause, holds, "waiting for the checkpoint directory: {fatal}");
        Ok(Look::Away(pause))
    }

    /// Whether the last look failed.
    pub(super) fn are_open(&self) -> bool {
        self.since.is_some()
    }
}
