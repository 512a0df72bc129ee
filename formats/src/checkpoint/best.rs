//! The checkpoint of the best evaluated state, found by what the manifests say.

use super::check::read_manifest;
use super::error::CheckpointError;
use super::list::folders;
use super::path_of;
use crate::identity::{JobUid, Position};
use crate::lineage::Lineage;
use crate::manifest::Evaluated;
use crate::store::Store;

/// The state on the lineage with the lowest evaluated loss, of equal ones the earliest, and what its evaluation
/// found; none if no checkpoint holds an evaluated state. Only manifests are read.
///
/// # Errors
/// When the store cannot be listed or read.
pub fn best_evaluated(
    store: &dyn Store,
    job: &JobUid,
    lineage: &Lineage,
) -> Result<Option<(Position, Evaluated)>, CheckpointError> {
    let mut best: Option<(Position, Evaluated)> = None;
    for position in folders(store, job)?.into_iter().rev() {
        let manifest = match read_manifest(store, &path_of(job, position)) {
            Ok(manifest) => manifest,
            Err(CheckpointError::Damaged(_)) => continue,
            Err(other) => return Err(other),
        };
        if manifest.job_uid != *job || manifest.position != position || !lineage.contains(position) {
            continue;
        }
        if let Some(found) = manifest.evaluation
            && best.as_ref().is_none_or(|(_, best)| found.loss < best.loss)
        {
            best = Some((position, found));
        }
    }
    Ok(best)
}

#[cfg(test)]
mod tests {
    use super::super::tests::{at, job, lineage, snapshot};
    use super::super::{path_of, save};
    use super::*;
    use crate::store::MemoryStore;
    use std::collections::BTreeMap;

    #[test]
    fn the_best_is_the_earliest_of_the_lowest_loss_on_the_lineage() {
        let store = MemoryStore::new();
        assert_eq!(best_evaluated(&store, &job(), &lineage()).unwrap(), None);
        for (position, loss) in [
            (at(1, 2), Some(0.9)),
            (at(1, 4), Some(0.5)),
            (at(2, 6), None),
            (at(2, 7), Some(0.5)),
            // Superseded: generation 2 began at commit 5.
            (at(1, 6), Some(0.1)),
            (at(4, 9), Some(0.2)),
        ] {
            let mut s = snapshot(position);
            s.evaluation = loss.and_then(|loss| Evaluated::new(loss, &BTreeMap::new()));
            save(&store, &job(), &s).unwrap();
        }
        let best = |store: &MemoryStore| best_evaluated(store, &job(), &lineage()).unwrap().unwrap();
        assert_eq!((best(&store).0, best(&store).1.loss), (at(4, 9), 0.2));
        let key = format!("{}/manifest.json", path_of(&job(), at(4, 9)));
        assert!(store.damage(&key, |bytes| bytes.truncate(9)));
        assert_eq!((best(&store).0, best(&store).1.loss), (at(1, 4), 0.5));
    }
}
