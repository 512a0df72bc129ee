//! What operations compute: both transports against the plain sum in rank order.

mod common;

use common::{Group, each_rank, in_process, soon, tcp, transports};
use gradsync_collective::{Buffer, Channel, Communicator, DType, Element, ReduceOp, WireType, partition};
use half::{bf16, f16};
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};

/// Values of very different sizes, so that another order of summation gives other bits.
fn value(seed: u64, rank: usize, index: usize) -> f64 {
    let mut x = seed ^ (rank as u64) << 40 ^ index as u64;
    x = (x ^ x >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    x = (x ^ x >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
    let scale = [1e-3, 1.0, 1e3, -1e6][(x >> 60) as usize % 4];
    scale * (1.0 + (x & 0xFFFF) as f64 / 65536.0)
}

trait Kind: Element + PartialEq + std::fmt::Debug {
    fn of(value: f64) -> Self;
    /// The sum in rank order as the crate promises it.
    fn sum(values: &[Self]) -> Self;
    fn max(values: &[Self]) -> Self;
}

macro_rules! float_kind {
    ($rust:ty) => {
        impl Kind for $rust {
            fn of(value: f64) -> Self {
                value as $rust
            }
            fn sum(values: &[Self]) -> Self {
                values[1..].iter().fold(values[0], |sum, value| sum + value)
            }
            fn max(values: &[Self]) -> Self {
                values.iter().copied().fold(values[0], <$rust>::max)
            }
        }
    };
}
float_kind!(f32);
float_kind!(f64);

macro_rules! half_kind {
    ($rust:ty) => {
        impl Kind for $rust {
            fn of(value: f64) -> Self {
                <$rust>::from_f64(value / 1e4)
            }
            fn sum(values: &[Self]) -> Self {
                let first = values[0].to_f32();
                <$rust>::from_f32(
                    values[1..]
                        .iter()
                        .fold(first, |sum, value| sum + value.to_f32()),
                )
            }
            fn max(values: &[Self]) -> Self {
                let wide = values.iter().map(|value| value.to_f32());
                <$rust>::from_f32(wide.fold(f32::NEG_INFINITY, f32::max))
            }
        }
    };
}
half_kind!(f16);
half_kind!(bf16);

macro_rules! integer_kind {
    ($rust:ty) => {
        impl Kind for $rust {
            fn of(value: f64) -> Self {
                (value * 1000.0) as i64 as $rust
            }
            fn sum(values: &[Self]) -> Self {
                values.iter().fold(0, |sum, value| sum.wrapping_add(*value))
            }
            fn max(values: &[Self]) -> Self {
                values.iter().copied().max().unwrap()
            }
        }
    };
}
integer_kind!(i32);
integer_kind!(i64);
integer_kind!(u8);
integer_kind!(u64);

fn inputs<T: Kind>(seed: u64, world: usize, elements: usize) -> Vec<Vec<T>> {
    (0..world)
        .map(|rank| {
            (0..elements)
                .map(|index| T::of(value(seed, rank, index)))
                .collect()
        })
        .collect()
}

fn column<T: Kind>(inputs: &[Vec<T>], index: usize) -> Vec<T> {
    inputs.iter().map(|input| input[index]).collect()
}

/// All collectives on one set of inputs, against the plain computation.
fn check<T: Kind>(name: &str, group: &Group, seed: u64, elements: usize) {
    let world = group.len();
    let inputs = inputs::<T>(seed, world, elements);
    let sums: Vec<T> = (0..elements)
        .map(|index| T::sum(&column(&inputs, index)))
        .collect();
    let maxima: Vec<T> = (0..elements)
        .map(|index| T::max(&column(&inputs, index)))
        .collect();
    let root = seed as usize % world;
    each_rank(group, |rank, member: &dyn Communicator| {
        let own = Buffer::from_slice(&inputs[rank]).unwrap();
        member
            .all_reduce(Channel::Gradients, own.clone(), ReduceOp::Sum, WireType::Same)
            .wait(soon())
            .unwrap();
        assert_eq!(
            own.to_vec::<T>().unwrap(),
            sums,
            "{name}: sum of {elements} {}",
            T::DTYPE
        );

        own.copy_from_slice(&inputs[rank]).unwrap();
        member
            .all_reduce(Channel::Gradients, own.clone(), ReduceOp::Max, WireType::Same)
            .wait(soon())
            .unwrap();
        assert_eq!(own.to_vec::<T>().unwrap(), maxima, "{name}: max");

        own.copy_from_slice(&inputs[rank]).unwrap();
        let part = partition(elements, world, rank);
        member
            .reduce_scatter(Channel::State, own.clone(), ReduceOp::Sum, WireType::Same)
            .wait(soon())
            .unwrap();
        let mut expected = inputs[rank].clone();
        expected[part.clone()].copy_from_slice(&sums[part]);
        assert_eq!(own.to_vec::<T>().unwrap(), expected, "{name}: reduce-scatter");

        // The sums gathered again from the parts are the sums.
        member
            .all_gather(Channel::State, own.clone())
            .wait(soon())
            .unwrap();
        assert_eq!(own.to_vec::<T>().unwrap(), sums, "{name}: all-gather");

        own.copy_from_slice(&inputs[rank]).unwrap();
        member
            .broadcast(Channel::State, own.clone(), root)
            .wait(soon())
            .unwrap();
        assert_eq!(own.to_vec::<T>().unwrap(), inputs[root], "{name}: broadcast");
        member.barrier(Channel::Control).wait(soon()).unwrap();
    });
    let checksums: Vec<u64> = group
        .iter()
        .map(|member| member.sequence_checksum(Channel::State))
        .collect();
    assert!(checksums.iter().all(|checksum| *checksum == checksums[0]));
}

fn check_type(dtype: DType, name: &str, group: &Group, seed: u64, elements: usize) {
    match dtype {
        DType::F32 => check::<f32>(name, group, seed, elements),
        DType::F64 => check::<f64>(name, group, seed, elements),
        DType::F16 => check::<f16>(name, group, seed, elements),
        DType::Bf16 => check::<bf16>(name, group, seed, elements),
        DType::I32 => check::<i32>(name, group, seed, elements),
        DType::I64 => check::<i64>(name, group, seed, elements),
        DType::U8 => check::<u8>(name, group, seed, elements),
        DType::U64 => check::<u64>(name, group, seed, elements),
    }
}

#[test]
fn i4_both_transports_equal_the_plain_rank_order_sum_for_every_type_world_and_length() {
    for world in 1..=5 {
        let groups = transports(world);
        // One-shot below 64 KiB; direct above; pieces end within, at and just behind a chunk.
        let lengths = prop_oneof![
            0usize..70,
            1000usize..20_000,
            (0usize..5, 0usize..3).prop_map(|(chunks, more)| chunks * 32_768 + more),
        ];
        let mut runner = TestRunner::new(Config {
            cases: 24,
            failure_persistence: None,
            ..Config::default()
        });
        runner
            .run(&(lengths, 0usize..8, any::<u64>()), |(elements, dtype, seed)| {
                for (name, group) in &groups {
                    check_type(DType::ALL[dtype], name, group, seed, elements);
                }
                Ok(())
            })
            .unwrap();
    }
}

#[test]
fn i4_buffers_of_many_chunks_agree_bit_for_bit_between_transports_and_runs() {
    let world = 3;
    let elements = 1_000_003;
    let inputs = inputs::<f32>(11, world, elements);
    let sum = |group: &Group, inputs: &[Vec<f32>]| -> Vec<Vec<u32>> {
        each_rank(group, |rank, member| {
            let own = Buffer::from_slice(&inputs[rank]).unwrap();
            let pending = member.all_reduce(Channel::Gradients, own.clone(), ReduceOp::Sum, WireType::Same);
            pending.wait(soon()).unwrap();
            own.to_vec::<f32>()
                .unwrap()
                .into_iter()
                .map(f32::to_bits)
                .collect()
        })
    };
    let first = sum(&in_process(world), &inputs);
    let group = tcp(world);
    assert!(first == sum(&group, &inputs), "transports differ");
    assert!(first == sum(&group, &inputs), "runs differ");
    assert!(first.iter().all(|bits| *bits == first[0]), "ranks differ");
    // Permuted ranks change the order of the sum and nothing else.
    let permuted: Vec<_> = [2, 0, 1].iter().map(|rank| inputs[*rank].clone()).collect();
    let other = sum(&group, &permuted);
    assert!(
        other[0] != first[0],
        "the order of summation left no trace: the test proves nothing"
    );
    for (bits, other) in first[0].iter().zip(&other[0]) {
        let (value, other) = (f32::from_bits(*bits), f32::from_bits(*other));
        assert!((value - other).abs() <= 1.0, "{value} and {other}");
    }
}

#[test]
fn i8_bytes_on_the_wire_are_those_of_the_algorithm_and_headers() {
    let elements = 600_001;
    let bytes = 4 * elements as u64;
    for world in 2..=4u64 {
        let group = tcp(world as usize);
        each_rank(&group, |_, member| {
            let own = Buffer::zeroed(elements, DType::F32).unwrap();
            let pending = member.all_reduce(Channel::Gradients, own, ReduceOp::Sum, WireType::Same);
            let moved = pending.wait(soon()).unwrap();
            let ideal = 2 * (world - 1) * bytes / world;
            // Parts differ by an element, and each chunk to each peer has a header.
            let headers = 64 * (world - 1) * (2 * (bytes / world).div_ceil(256 << 10) + 2) + 4 * world;
            for moved in [moved.bytes_sent, moved.bytes_received] {
                assert!(
                    moved.abs_diff(ideal) <= headers,
                    "{moved} bytes, {ideal} expected of {world} ranks"
                );
            }
        });
    }
}

#[test]
fn the_content_hash_taken_on_the_way_is_that_of_the_whole_buffer() {
    use gradsync_collective::agreement::buffer_hash;
    for world in [1, 3] {
        for (name, group) in transports(world) {
            each_rank(&group, |rank, member| {
                for elements in [0usize, 5, 16_000, 16_500, 777_777] {
                    let values: Vec<f32> = (0..elements).map(|i| value(3, rank, i) as f32).collect();
                    let own = Buffer::from_slice(&values).unwrap();
                    let asking = own.clone().with_content_hash();
                    let reduce = |buffer: Buffer| {
                        let op = ReduceOp::Sum;
                        member
                            .all_reduce(Channel::Gradients, buffer, op, WireType::Same)
                            .wait(soon())
                            .unwrap()
                    };
                    let hash = reduce(asking.clone()).content_hash;
                    assert_eq!(hash, Some(buffer_hash(&own).unwrap()), "{name}: {elements}");
                    assert_eq!(reduce(own.clone()).content_hash, None);
                    let gathered = member.all_gather(Channel::State, asking).wait(soon()).unwrap();
                    assert_eq!(gathered.content_hash, Some(buffer_hash(&own).unwrap()), "{name}");
                }
            });
        }
    }
}

#[test]
fn many_operations_in_flight_on_all_channels_keep_to_their_order() {
    for (name, group) in transports(3) {
        each_rank(&group, |rank, member| {
            let mut pending = Vec::new();
            for round in 0..60usize {
                for channel in Channel::ALL {
                    let elements = [3, 40_000, 0, 700][(round + channel as usize) % 4];
                    let own = Buffer::from_slice(&vec![(rank + round) as i64; elements]).unwrap();
                    let handle = member.all_reduce(channel, own.clone(), ReduceOp::Sum, WireType::Same);
                    pending.push((round, own, handle));
                }
            }
            for (round, own, handle) in pending {
                handle.wait(soon()).unwrap();
                let values = own.to_vec::<i64>().unwrap();
                assert!(
                    values.iter().all(|value| *value == 3 + 3 * round as i64),
                    "{name}"
                );
            }
        });
    }
}

#[test]
fn pairs_exchange_beside_collectives_of_the_whole_group() {
    for (name, group) in transports(4) {
        each_rank(&group, |rank, member| {
            let partner = rank ^ 1;
            for elements in [0usize, 1, 5000, 300_000] {
                let mine = Buffer::from_slice(&vec![rank as u64; elements]).unwrap();
                let theirs = Buffer::zeroed(elements, DType::U64).unwrap();
                let send = || member.send(Channel::State, mine.clone(), partner);
                let receive = || member.receive(Channel::State, theirs.clone(), partner);
                let handles = if rank < partner {
                    [send(), receive()]
                } else {
                    [receive(), send()]
                };
                let barrier = member.barrier(Channel::State);
                for handle in handles {
                    handle.wait(soon()).unwrap();
                }
                barrier.wait(soon()).unwrap();
                assert_eq!(
                    theirs.to_vec::<u64>().unwrap(),
                    vec![partner as u64; elements],
                    "{name}"
                );
            }
        });
    }
}

#[test]
fn what_cannot_be_done_is_refused_and_harms_nobody() {
    for (name, group) in transports(2) {
        each_rank(&group, |rank, member| {
            use gradsync_collective::CollectiveError::Refused;
            let own = Buffer::zeroed(8, DType::F32).unwrap();
            let wire = member.all_reduce(Channel::Gradients, own.clone(), ReduceOp::Sum, WireType::Bf16);
            let root = member.broadcast(Channel::Gradients, own.clone(), 2);
            let itself = member.send(Channel::Gradients, own.clone(), rank);
            let nobody = member.receive(Channel::Gradients, own.clone(), 9);
            for pending in [wire, root, itself, nobody] {
                assert!(matches!(pending.wait(soon()), Err(Refused { .. })), "{name}");
            }
            let first = member.all_reduce(Channel::Gradients, own.clone(), ReduceOp::Sum, WireType::Same);
            first.wait(soon()).unwrap();
        });
    }
}

#[test]
fn a_buffer_in_use_is_refused_to_a_second_operation_and_to_accesses() {
    use gradsync_collective::{BufferError, CollectiveError};
    for (name, group) in transports(2) {
        let own = Buffer::zeroed(8, DType::F32).unwrap();
        let all_reduce = |rank: usize, buffer: &Buffer| {
            group[rank].all_reduce(Channel::Gradients, buffer.clone(), ReduceOp::Sum, WireType::Same)
        };
        // Rank 1 is late on purpose: rank 0's operation cannot be complete.
        let first = all_reduce(0, &own);
        let second = all_reduce(0, &own.slice(3..4).unwrap());
        assert!(
            matches!(second.wait(soon()), Err(CollectiveError::Refused { .. })),
            "{name}"
        );
        assert!(
            matches!(own.to_vec::<f32>(), Err(BufferError::InUse { .. })),
            "{name}"
        );
        assert!(!first.is_done());
        all_reduce(1, &Buffer::zeroed(8, DType::F32).unwrap())
            .wait(soon())
            .unwrap();
        first.wait(soon()).unwrap();
        own.to_vec::<f32>().unwrap();
    }
}
