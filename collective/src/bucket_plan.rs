//! Which parameter's gradient lies where in which bucket: pure data that all members agree on.
//!
//! Parameters are taken in the order in which their gradients become ready and appended to the open
//! bucket of their type; a bucket is closed when it has reached its cap. A parameter is never split,
//! so a cap is passed by at most one parameter.

use serde::{Deserialize, Serialize};
use xxhash_rust::xxh3::Xxh3;

use crate::element::DType;

/// Alignment of every entry in its bucket, in bytes.
pub const ENTRY_ALIGNMENT: usize = 64;

/// One parameter as the plan sees it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ParameterSpec {
    /// Its name, for error texts.
    pub name: String,
    /// Number of elements.
    pub elements: usize,
    /// Type of its gradient.
    pub dtype: DType,
}

/// Sizes in bytes at which buckets are closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Caps {
    /// Of the first bucket of each type: small, so that communication starts early.
    pub first: usize,
    /// Of all others.
    pub rest: usize,
}

/// Where one parameter's gradient lies in its bucket.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Entry {
    /// Index of the parameter in registration order.
    pub parameter: usize,
    /// First element within the bucket; times the element size, a multiple of 64.
    pub offset: usize,
    /// Number of elements.
    pub elements: usize,
}

/// A flat buffer of gradients, reduced as one operation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Bucket {
    /// Type of all its entries.
    pub dtype: DType,
    /// Its entries, by offset.
    pub entries: Vec<Entry>,
    /// Elements including the padding between entries.
    pub elements: usize,
}

impl Bucket {
    /// Bytes of the bucket.
    pub fn byte_len(&self) -> usize {
        self.elements * self.dtype.size()
    }
}

/// All buckets, in the order in which they are launched.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BucketPlan {
    /// The buckets.
    pub buckets: Vec<Bucket>,
}

/// Why a plan cannot be made of, or does not fit, a list of parameters.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PlanError {
    /// The ready order is not a permutation of the parameters.
    #[error(
        "ready order names parameter {parameter} {times} times among {parameters} parameters: each must come once"
    )]
    NotAPermutation {
        /// The parameter index at fault.
        parameter: usize,
        /// How often it occurs.
        times: usize,
        /// Number of parameters.
        parameters: usize,
    },
    /// A parameter is in the plan more or less than once.
    #[error("parameter {name} is in the bucket plan {times} times: it must be there once")]
    Coverage {
        /// Its name.
        name: String,
        /// How often it occurs.
        times: usize,
    },
    /// An entry names a parameter that the model does not have.
    #[error(
        "bucket {bucket} has an entry for parameter {parameter}, the model has {parameters}: the plan is of another model"
    )]
    UnknownParameter {
        /// The bucket.
        bucket: usize,
        /// The index it names.
        parameter: usize,
        /// Number of parameters.
        parameters: usize,
    },
    /// An entry's size or type is not the parameter's.
    #[error(
        "parameter {name} has {elements} {dtype} in the model and {planned} {planned_dtype} in bucket {bucket}: the plan is of another model"
    )]
    Differs {
        /// Its name.
        name: String,
        /// Elements in the model.
        elements: usize,
        /// Type in the model.
        dtype: DType,
        /// The bucket.
        bucket: usize,
        /// Elements in the plan.
        planned: usize,
        /// Type in the plan.
        planned_dtype: DType,
    },
    /// An entry is not where an entry may be.
    #[error("bucket {bucket} places parameter {name} at element {offset}: {problem}")]
    Placement {
        /// The bucket.
        bucket: usize,
        /// The parameter's name.
        name: String,
        /// Where it was placed.
        offset: usize,
        /// What is wrong with that.
        problem: &'static str,
    },
}

/// The order in which gradients become ready before it was measured: that of registration, reversed.
pub fn default_ready_order(parameters: usize) -> Vec<usize> {
    (0..parameters).rev().collect()
}

impl BucketPlan {
    /// The plan for `parameters` whose gradients become ready in `order`. Deterministic. A bucket is
    /// launched where its last parameter stands in the order.
    pub fn new(parameters: &[ParameterSpec], order: &[usize], caps: Caps) -> Result<BucketPlan, PlanError> {
        check_permutation(parameters.len(), order)?;
        let mut open: Vec<(usize, Bucket)> = Vec::new();
        let mut seen: Vec<DType> = Vec::new();
        let mut buckets = Vec::new();
        for (place, &parameter) in order.iter().enumerate() {
            let ParameterSpec { elements, dtype, .. } = parameters[parameter];
            let slot = match open.iter().position(|(_, bucket)| bucket.dtype == dtype) {
                Some(slot) => slot,
                None => {
                    open.push((
                        place,
                        Bucket {
                            dtype,
                            entries: Vec::new(),
                            elements: 0,
                        },
                    ));
                    open.len() - 1
                }
            };
            let (last, bucket) = &mut open[slot];
            let offset = align(bucket.elements, dtype);
            bucket.entries.push(Entry {
                parameter,
                offset,
                elements,
            });
            bucket.elements = offset.saturating_add(elements);
            *last = place;
            let cap = if seen.contains(&dtype) {
                caps.rest
            } else {
                caps.first
            };
            if bucket.elements.saturating_mul(dtype.size()) >= cap {
                if !seen.contains(&dtype) {
                    seen.push(dtype);
                }
                buckets.push(open.swap_remove(slot).1);
            }
        }
        open.sort_by_key(|(last, _)| *last);
        buckets.extend(open.into_iter().map(|(_, bucket)| bucket));
        Ok(BucketPlan { buckets })
    }

    /// Checks that the plan, which may come from a peer or a file, holds exactly these parameters,
    /// without overlap, every entry aligned.
    pub fn validate(&self, parameters: &[ParameterSpec]) -> Result<(), PlanError> {
        let mut times = vec![0usize; parameters.len()];
        for (index, bucket) in self.buckets.iter().enumerate() {
            let mut free = 0;
            for entry in &bucket.entries {
                let Some(known) = parameters.get(entry.parameter) else {
                    return Err(PlanError::UnknownParameter {
                        bucket: index,
                        parameter: entry.parameter,
                        parameters: parameters.len(),
                    });
                };
                times[entry.parameter] += 1;
                if known.elements != entry.elements || known.dtype != bucket.dtype {
                    return Err(PlanError::Differs {
                        name: known.name.clone(),
                        elements: known.elements,
                        dtype: known.dtype,
                        bucket: index,
                        planned: entry.elements,
                        planned_dtype: bucket.dtype,
                    });
                }
                let end = entry.offset.checked_add(entry.elements);
                let problem = if entry.offset != align(entry.offset, bucket.dtype) {
                    Some("not aligned to 64 bytes")
                } else if entry.offset < free {
                    Some("overlaps the entry before it")
                } else if end.is_none_or(|end| end > bucket.elements) {
                    Some("reaches beyond the end of its bucket")
                } else {
                    None
                };
                if let Some(problem) = problem {
                    return Err(PlanError::Placement {
                        bucket: index,
                        name: known.name.clone(),
                        offset: entry.offset,
                        problem,
                    });
                }
                free = entry.offset + entry.elements;
            }
        }
        match times.iter().position(|times| *times != 1) {
            Some(parameter) => Err(PlanError::Coverage {
                name: parameters[parameter].name.clone(),
                times: times[parameter],
            }),
            None => Ok(()),
        }
    }

    /// A hash of the plan that is the same on every machine and in every version: what members
    /// compare before they use it.
    pub fn hash(&self) -> u64 {
        let mut hash = Xxh3::new();
        let mut number = |value: usize| hash.update(&(value as u64).to_le_bytes());
        number(self.buckets.len());
        for bucket in &self.buckets {
            number(bucket.dtype.code().into());
            number(bucket.elements);
            number(bucket.entries.len());
            for entry in &bucket.entries {
                number(entry.parameter);
                number(entry.offset);
                number(entry.elements);
            }
        }
        hash.digest()
    }
}

fn check_permutation(parameters: usize, order: &[usize]) -> Result<(), PlanError> {
    let mut times = vec![0usize; parameters];
    for &parameter in order {
        match times.get_mut(parameter) {
            Some(times) => *times += 1,
            None => {
                return Err(PlanError::NotAPermutation {
                    parameter,
                    times: 1,
                    parameters,
                });
            }
        }
    }
    match times.iter().position(|times| *times != 1) {
        Some(parameter) => Err(PlanError::NotAPermutation {
            parameter,
            times: times[parameter],
            parameters,
        }),
        None => Ok(()),
    }
}

/// The next element whose byte offset is a multiple of the alignment.
fn align(elements: usize, dtype: DType) -> usize {
    elements
        .checked_next_multiple_of(ENTRY_ALIGNMENT / dtype.size())
        .unwrap_or(usize::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn specs(list: &[(usize, DType)]) -> Vec<ParameterSpec> {
        let spec = |(index, (elements, dtype)): (usize, &(usize, DType))| ParameterSpec {
            name: format!("p{index}"),
            elements: *elements,
            dtype: *dtype,
        };
        list.iter().enumerate().map(spec).collect()
    }

    const CAPS: Caps = Caps {
        first: 1024,
        rest: 4096,
    };

    #[test]
    fn buckets_follow_the_ready_order_and_close_at_their_caps() {
        let parameters = specs(&[
            (900, DType::F32),
            (10, DType::F32),
            (3, DType::F32),
            (300, DType::F32),
        ]);
        let plan = BucketPlan::new(&parameters, &default_ready_order(4), CAPS).unwrap();
        let order: Vec<Vec<usize>> = plan
            .buckets
            .iter()
            .map(|b| b.entries.iter().map(|e| e.parameter).collect())
            .collect();
        assert_eq!(order, [vec![3], vec![2, 1, 0]]);
        let offsets: Vec<usize> = plan.buckets[1].entries.iter().map(|entry| entry.offset).collect();
        assert_eq!(offsets, [0, 16, 32]);
        assert_eq!(plan.buckets[1].elements, 932);
    }

    #[test]
    fn the_hash_is_fixed_for_all_time_and_survives_json() {
        let parameters = specs(&[(900, DType::F32), (10, DType::F64), (3, DType::F32)]);
        let plan = BucketPlan::new(&parameters, &[2, 1, 0], CAPS).unwrap();
        let json = serde_json::to_string(&plan).unwrap();
        assert_eq!(serde_json::from_str::<BucketPlan>(&json).unwrap(), plan);
        assert_eq!(plan.hash(), GOLDEN);
        let other = BucketPlan::new(&parameters, &[0, 1, 2], CAPS).unwrap();
        assert_ne!(plan.hash(), other.hash());
    }
    const GOLDEN: u64 = 3369164726320456031;

    #[test]
    fn a_plan_that_does_not_fit_the_layout_names_what_differs() {
        let parameters = specs(&[(20, DType::F32), (10, DType::F32)]);
        let good = BucketPlan::new(&parameters, &[1, 0], CAPS).unwrap();
        good.validate(&parameters).unwrap();
        let broken = |change: &dyn Fn(&mut Bucket)| {
            let mut plan = good.clone();
            change(&mut plan.buckets[0]);
            plan.validate(&parameters).unwrap_err()
        };
        assert!(matches!(
            broken(&|b| b.entries[0].parameter = 9),
            PlanError::UnknownParameter { .. }
        ));
        assert!(matches!(
            broken(&|b| b.entries[0].elements = 9),
            PlanError::Differs { .. }
        ));
        assert!(matches!(
            broken(&|b| b.dtype = DType::F16),
            PlanError::Differs { .. }
        ));
        assert!(matches!(
            broken(&|b| b.entries[1].offset = 8),
            PlanError::Placement { .. }
        ));
        assert!(matches!(
            broken(&|b| b.entries[1].offset = 0),
            PlanError::Placement { .. }
        ));
        assert!(matches!(
            broken(&|b| b.entries[1].offset = 1 << 20),
            PlanError::Placement { .. }
        ));
        assert!(matches!(
            broken(&|b| b.entries[1].offset = usize::MAX - 15),
            PlanError::Placement { .. }
        ));
        assert!(matches!(
            broken(&|b| b.entries.truncate(1)),
            PlanError::Coverage { times: 0, .. }
        ));
        assert!(
            good.validate(&specs(&[(20, DType::F32), (11, DType::F32)]))
                .is_err()
        );
    }

    #[test]
    fn an_order_that_is_no_permutation_is_refused() {
        let parameters = specs(&[(1, DType::F32), (1, DType::F32)]);
        for order in [vec![0], vec![0, 0], vec![0, 1, 1], vec![0, 2]] {
            assert!(BucketPlan::new(&parameters, &order, CAPS).is_err());
        }
    }

    proptest! {
        #[test]
        fn i6_every_plan_holds_each_gradient_once_whatever_order_and_caps(
            list in proptest::collection::vec((0usize..3000, 0usize..8), 0..40),
            seed in any::<u64>(),
            first in 0usize..5000,
            rest in 0usize..20000,
        ) {
            let list: Vec<_> = list.into_iter().map(|(n, d)| (n, DType::ALL[d])).collect();
            let parameters = specs(&list);
            let mut order = default_ready_order(list.len());
            order.sort_by_key(|i| (*i as u64 + 1).wrapping_mul(seed | 1));
            let caps = Caps { first, rest };
            let plan = BucketPlan::new(&parameters, &order, caps).unwrap();
            plan.validate(&parameters).unwrap();
            prop_assert_eq!(&plan, &BucketPlan::new(&parameters, &order, caps).unwrap());
            for bucket in &plan.buckets {
                // Without its last entry no bucket had reached its cap.
                let before = bucket.entries[..bucket.entries.len() - 1].last();
                let bytes = before.map_or(0, |e| (e.offset + e.elements) * bucket.dtype.size());
                prop_assert!(bytes < first.max(rest).max(1));
            }
        }
    }
}
