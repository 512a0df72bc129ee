//! What a group without any state in memory begins from.

use super::snapshot::Snapshot;
use crate::identity::Position;
use crate::lineage::Lineage;
use crate::run_config::{ResumePolicy, ResumeSpec};
use std::path::PathBuf;

/// Where the state comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Begin {
    /// Initialised from the seed.
    Fresh,
    /// The job's own checkpoint of this position.
    Own(Position),
    /// Another job's checkpoint, made the origin of this job's own lineage (`as_origin`).
    Origin(PathBuf),
}

/// Decides by policy. `own` is the position of the job's newest whole checkpoint on its lineage.
///
/// The policy is for the first start: once the job has a lineage (`lineage` is not empty), its own newest
/// checkpoint counts whatever the policy says, and without one the first start is repeated.
#[must_use]
pub fn begin(resume: &ResumeSpec, lineage: &Lineage, own: Option<Position>) -> Begin {
    let first_start = lineage.0.is_empty();
    match (own, resume.policy) {
        (Some(position), ResumePolicy::Latest) => Begin::Own(position),
        (Some(position), ResumePolicy::Never | ResumePolicy::Path) if !first_start => Begin::Own(position),
        (_, ResumePolicy::Path) => resume
            .path
            .as_ref()
            .map_or(Begin::Fresh, |path| Begin::Origin(path.into())),
        (_, ResumePolicy::Never | ResumePolicy::Latest) => Begin::Fresh,
    }
}

/// Another job's state as the initial state of a lineage of its own: progress in the data, tensors and
/// scalars stay, commits count from 0 again.
#[must_use]
pub fn as_origin(snapshot: Snapshot) -> Snapshot {
    Snapshot {
        position: Position::INITIAL,
        lineage: Lineage::default(),
        ..snapshot
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::identity::Generation;

    #[test]
    fn the_policy_decides_the_first_start_only() {
        let spec = |policy, path: Option<&str>| ResumeSpec {
            policy,
            path: path.map(str::to_owned),
        };
        let latest = spec(ResumePolicy::Latest, None);
        let never = spec(ResumePolicy::Never, None);
        let path = spec(ResumePolicy::Path, Some("/c/other/step-9-g2"));
        let none = Lineage::default();
        let some = none.extended(Generation(1), Position::INITIAL);
        let position = Position {
            commit: 5,
            generation: Generation(1),
        };
        let own = Some(position);
        let origin = Begin::Origin("/c/other/step-9-g2".into());

        assert_eq!(begin(&latest, &none, None), Begin::Fresh);
        assert_eq!(begin(&latest, &none, own), Begin::Own(position));
        assert_eq!(begin(&latest, &some, own), Begin::Own(position));
        assert_eq!(begin(&never, &none, own), Begin::Fresh);
        assert_eq!(begin(&never, &some, own), Begin::Own(position));
        assert_eq!(begin(&never, &some, None), Begin::Fresh);
        assert_eq!(begin(&path, &none, None), origin);
        assert_eq!(begin(&path, &none, own), origin);
        assert_eq!(
            begin(&path, &some, None),
            origin,
            "killed before its first checkpoint"
        );
        assert_eq!(begin(&path, &some, own), Begin::Own(position));
    }
}
