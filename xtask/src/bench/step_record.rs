//! From the run records of one run to the times of its steps.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use anyhow::{Context as _, bail, ensure};
use gradsync_formats::record::RecordLine;

/// What one rank spent on one step, in seconds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct RankTimes {
    /// All of it.
    pub(crate) seconds: f64,
    /// Data, forward and backward; communication that hides behind backward is in it.
    pub(crate) compute: f64,
    /// Waiting for communication after backward.
    pub(crate) wait: f64,
}

/// One step: what each rank spent on it.
pub(crate) type Step = Vec<RankTimes>;

/// Reads all records in `directory`: the steps in order.
///
/// # Errors
/// When a file cannot be read, or the records are not those of one group of `ranks` ranks.
pub(crate) fn read(directory: &Path, ranks: usize) -> anyhow::Result<Vec<Step>> {
    let shown = directory.display();
    let mut texts = Vec::new();
    for entry in std::fs::read_dir(directory).with_context(|| format!("read {shown}"))? {
        let path = entry.with_context(|| format!("read {shown}"))?.path();
        if path.extension().is_some_and(|extension| extension == "jsonl") {
            let text = std::fs::read_to_string(&path).with_context(|| format!("read {}", path.display()))?;
            texts.push((path.display().to_string(), text));
        }
    }
    steps(&texts, ranks).with_context(|| format!("read the records in {shown}"))
}

/// The steps in the records, given as name and text of each file.
fn steps(files: &[(String, String)], ranks: usize) -> anyhow::Result<Vec<Step>> {
    let mut generations = BTreeSet::new();
    let mut steps: BTreeMap<u64, Step> = BTreeMap::new();
    for (name, text) in files {
        for (number, line) in text.lines().enumerate() {
            let line: RecordLine = serde_json::from_str(line)
                .with_context(|| format!("{name}, line {}: understand it", number + 1))?;
            match line {
                RecordLine::Opened {
                    generation,
                    world_size,
                    ..
                } => {
                    generations.insert(generation);
                    ensure!(
                        world_size as usize == ranks,
                        "{name}: a group of {world_size} ranks, not {ranks}"
                    );
                }
                RecordLine::Committed {
                    position,
                    seconds,
                    compute_seconds,
                    wait_seconds,
                    ..
                } => steps.entry(position.commit).or_default().push(RankTimes {
                    seconds,
                    compute: compute_seconds,
                    wait: wait_seconds,
                }),
                _ => {}
            }
        }
    }
    ensure!(
        generations.len() <= 1,
        "the group formed {} times, so a rank died or was slow to come: its times would not be comparable",
        generations.len()
    );
    if let Some((commit, step)) = steps.iter().find(|(_, step)| step.len() != ranks) {
        bail!("{} of {ranks} ranks recorded step {commit}", step.len());
    }
    Ok(steps.into_values().collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn opened(generation: u64, world_size: u32) -> String {
        let member = json!({
            "slot": 0, "localRank": 0, "pod": "p", "incarnation": "67e5504410b1426f9247bb680e5fe0c8"
        });
        json!({
            "type": "opened", "version": 1, "jobUid": "u", "generation": generation, "member": member,
            "rank": 0, "worldSize": world_size, "lineage": [], "epochSamples": 64, "globalBatchSize": 64,
            "microBatchSize": 32, "seed": 1, "length": {"steps": 2}, "at": "2026-01-01T00:00:00Z"
        })
        .to_string()
    }

    fn committed(commit: u64, seconds: f64, compute: f64, wait: f64) -> String {
        json!({
            "type": "committed", "position": {"commit": commit, "generation": 1}, "kind": "Apply",
            "progress": {"epoch": 0, "cursor": 0, "step": commit}, "loss": "1", "chain": "00",
            "seconds": seconds, "computeSeconds": compute, "waitSeconds": wait
        })
        .to_string()
    }

    fn file(lines: &[String]) -> (String, String) {
        ("record".to_owned(), lines.join("\n"))
    }

    #[test]
    fn steps_come_in_order_with_the_times_of_every_rank() {
        let one = file(&[
            opened(1, 2),
            committed(1, 3.0, 1.0, 1.5),
            committed(2, 4.0, 1.0, 2.5),
        ]);
        let other = file(&[
            opened(1, 2),
            committed(1, 3.0, 2.0, 0.5),
            committed(2, 4.0, 3.0, 0.5),
        ]);
        let seen = steps(&[one, other], 2).unwrap();
        let times = |step: &Step| {
            step.iter()
                .map(|rank| (rank.compute, rank.wait))
                .collect::<Vec<_>>()
        };
        assert_eq!(times(&seen[0]), [(1.0, 1.5), (2.0, 0.5)]);
        assert_eq!(times(&seen[1]), [(1.0, 2.5), (3.0, 0.5)]);
        assert_eq!(seen[1][0].seconds, 4.0);
    }

    #[test]
    fn records_of_more_than_one_group_of_the_right_size_are_refused() {
        let step = || committed(1, 1.0, 1.0, 0.0);
        for (files, part) in [
            (vec![file(&[opened(1, 1), step()])], "a group of 1 ranks"),
            (
                vec![file(&[opened(1, 2), step()]), file(&[opened(2, 2), step()])],
                "formed 2 times",
            ),
            (
                vec![file(&[opened(1, 2), step()])],
                "1 of 2 ranks recorded step 1",
            ),
            (vec![file(&["nonsense".to_owned()])], "line 1"),
        ] {
            let error = format!("{:#}", steps(&files, 2).unwrap_err());
            assert!(error.contains(part), "{error}");
        }
    }
}
