//! The rolling checksum of what a member issued on a channel.

use xxhash_rust::xxh3::xxh3_64_with_seed;

use crate::operation::Operation;

/// Folds one more operation into the checksum. Point-to-point operations are left out: they concern
/// two ranks only, while the checksum is compared among all.
pub(crate) fn extend(checksum: u64, operation: &Operation) -> u64 {
    if operation.is_collective() {
        xxh3_64_with_seed(&operation.encode(), checksum)
    } else {
        checksum
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{DType, OperationKind, ReduceOp};

    #[test]
    fn i3_the_checksum_tells_order_size_type_and_operator_apart() {
        let a = Operation {
            kind: OperationKind::AllReduce,
            elements: 10,
            dtype: DType::F32,
            op: Some(ReduceOp::Sum),
            ..Operation::barrier()
        };
        let others = [
            Operation { elements: 11, ..a },
            Operation {
                dtype: DType::I32,
                ..a
            },
            Operation {
                op: Some(ReduceOp::Max),
                ..a
            },
            Operation {
                kind: OperationKind::ReduceScatter,
                ..a
            },
        ];
        for b in others {
            assert_ne!(extend(0, &a), extend(0, &b));
            assert_ne!(extend(extend(0, &a), &b), extend(extend(0, &b), &a));
        }
        let send = Operation {
            kind: OperationKind::Send,
            op: None,
            rank: Some(1),
            ..a
        };
        assert_eq!(extend(5, &send), 5);
    }
}
