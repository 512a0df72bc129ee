//! Members that others cannot reach: after a failed opening barrier the smallest set of pods that explains
//! the reports is left out for a while.

use super::settings::{Backoff, Monotonic};
use gradsync_formats::identity::{MemberId, PodUid};
use std::collections::{BTreeMap, BTreeSet};

/// Up to this many pods the smallest set is found exactly; beyond it one pod after the other is taken, the
/// one that explains most first.
const EXACT_UP_TO: usize = 16;

/// A pod that is left out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Exclusion {
    pub(super) until: Monotonic,
    pub(super) times: u32,
    /// One of the links that did not work, for people.
    pub(super) link: String,
}

/// A link that did not work: who reported it, and whom it could not reach.
pub(super) type Link = (MemberId, MemberId);

/// Notes the pods to leave out because of `links`. `ranks` gives each pod's lowest rank.
pub(super) fn exclude(
    excluded: &mut BTreeMap<PodUid, Exclusion>,
    links: &[Link],
    ranks: &BTreeMap<PodUid, usize>,
    backoff: Backoff,
    now: Monotonic,
) {
    let edges: BTreeSet<(usize, usize)> = links
        .iter()
        .filter_map(|(from, to)| Some((*ranks.get(&from.pod)?, *ranks.get(&to.pod)?)))
        .filter(|(a, b)| a != b)
        .map(|(a, b)| (a.min(b), a.max(b)))
        .collect();
    let cover = smallest_cover(&edges);
    for (pod, _) in ranks.iter().filter(|(_, rank)| cover.contains(rank)) {
        let link = links
            .iter()
            .find(|(from, to)| from.pod == *pod || to.pod == *pod)
            .map_or_else(String::new, |(from, to)| format!("{from} cannot reach {to}"));
        let times = excluded.get(pod).map_or(0, |e| e.times) + 1;
        excluded.insert(
            pod.clone(),
            Exclusion {
                until: now.after(backoff.delay(times)),
                times,
                link,
            },
        );
    }
}

/// The smallest set of nodes that touches every edge; among several the one without low numbers: the
/// lowest node in which two sets differ stays out of the chosen one.
fn smallest_cover(edges: &BTreeSet<(usize, usize)>) -> BTreeSet<usize> {
    let nodes: Vec<usize> = edges
        .iter()
        .flat_map(|&(a, b)| [a, b])
        .collect::<BTreeSet<_>>()
        .into_iter()
        .collect();
    if nodes.len() > EXACT_UP_TO {
        return greedy_cover(edges);
    }
    // Bit i stands for the i-th node from the top: of equally small sets the numerically smallest mask is
    // the one that spares the low nodes.
    let place = |node: usize| nodes.len() - 1 - nodes.partition_point(|&n| n < node);
    let pairs: Vec<u32> = edges
        .iter()
        .map(|&(a, b)| (1 << place(a)) | (1 << place(b)))
        .collect();
    let best = (0u32..1 << nodes.len())
        .filter(|mask| pairs.iter().all(|pair| pair & mask != 0))
        .min_by_key(|mask| (mask.count_ones(), *mask))
        .unwrap_or(0);
    nodes
        .iter()
        .copied()
        .filter(|&n| best >> place(n) & 1 == 1)
        .collect()
}

fn greedy_cover(edges: &BTreeSet<(usize, usize)>) -> BTreeSet<usize> {
    let mut open = edges.clone();
    let mut cover = BTreeSet::new();
    while !open.is_empty() {
        let mut degree: BTreeMap<usize, usize> = BTreeMap::new();
        for &(a, b) in &open {
            *degree.entry(a).or_default() += 1;
            *degree.entry(b).or_default() += 1;
        }
        let Some((&node, _)) = degree.iter().max_by_key(|&(&node, &count)| (count, node)) else {
            break;
        };
        cover.insert(node);
        open.retain(|&(a, b)| a != node && b != node);
    }
    cover
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cover(edges: &[(usize, usize)]) -> Vec<usize> {
        smallest_cover(&edges.iter().copied().collect())
            .into_iter()
            .collect()
    }

    #[test]
    fn the_smallest_set_that_explains_the_reports_is_left_out_and_low_ranks_stay_on_a_tie() {
        assert_eq!(cover(&[(0, 1)]), [1]);
        assert_eq!(cover(&[(0, 1), (0, 2), (0, 3)]), [0], "rank 0 has no power");
        assert_eq!(cover(&[(0, 1), (1, 2)]), [1]);
        assert_eq!(cover(&[(0, 1), (2, 3)]), [1, 3]);
        assert_eq!(cover(&[(0, 1), (1, 2), (0, 2)]), [1, 2]);
        assert_eq!(cover(&[]), [0usize; 0]);
    }

    #[test]
    fn many_pods_are_covered_without_trying_all_sets() {
        let star: Vec<_> = (0..40)
            .filter(|&n| n != 7)
            .map(|n| (n.min(7), n.max(7)))
            .collect();
        assert_eq!(cover(&star), [7]);
    }
}
