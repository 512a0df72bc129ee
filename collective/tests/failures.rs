//! What ends a group, and that it ends it for all, with the reason, and never by a hang.

mod common;

use std::io::{BufRead, BufReader, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

use common::{KEY, each_rank, identity, listeners, soon, tcp, tcp_with, transports};
use gradsync_collective::tcp::{HelloContext, Listener, Options, connect};
use gradsync_collective::{
    AbortCause, Buffer, Channel, CollectiveError, Communicator, DType, Pending, Readiness, ReduceOp, WireType,
};

const GRADIENTS: Channel = Channel::Gradients;
/// More than the sockets' own buffers take.
const BIG: usize = 16 << 20;

fn zeros(elements: usize, dtype: DType) -> Buffer {
    Buffer::zeroed(elements, dtype).unwrap()
}

fn sum(member: &dyn Communicator, elements: usize) -> Pending {
    member.all_reduce(
        GRADIENTS,
        zeros(elements, DType::F32),
        ReduceOp::Sum,
        WireType::Same,
    )
}

type Issue = fn(&dyn Communicator) -> Pending;

#[test]
fn i3_ranks_that_issue_different_operations_all_get_a_typed_mismatch_and_nobody_hangs() {
    let usual: [Issue; 4] = [
        |m| m.all_reduce(GRADIENTS, zeros(1000, DType::F32), ReduceOp::Sum, WireType::Same),
        |m| {
            m.all_reduce(
                GRADIENTS,
                zeros(300_000, DType::F32),
                ReduceOp::Sum,
                WireType::Same,
            )
        },
        |m| m.all_gather(GRADIENTS, zeros(1000, DType::F32)),
        |m| m.broadcast(GRADIENTS, zeros(1000, DType::F32), 0),
    ];
    let odd: [Issue; 8] = [
        |m| m.all_reduce(GRADIENTS, zeros(1001, DType::F32), ReduceOp::Sum, WireType::Same),
        |m| m.all_reduce(GRADIENTS, zeros(1000, DType::I32), ReduceOp::Sum, WireType::Same),
        |m| m.all_reduce(GRADIENTS, zeros(1000, DType::F32), ReduceOp::Max, WireType::Same),
        |m| m.all_reduce(GRADIENTS, zeros(0, DType::F32), ReduceOp::Sum, WireType::Same),
        |m| m.reduce_scatter(GRADIENTS, zeros(1000, DType::F32), ReduceOp::Sum, WireType::Same),
        |m| m.broadcast(GRADIENTS, zeros(1000, DType::F32), 1),
        |m| m.send(GRADIENTS, zeros(1000, DType::F32), 0),
        |m| m.barrier(GRADIENTS),
    ];
    for usual in usual {
        for odd in odd {
            for (name, group) in transports(3) {
                each_rank(&group, |rank, member| {
                    let first = if rank == 1 { odd(member) } else { usual(member) };
                    // Who needs nothing from the odd rank learns of it at the next operation.
                    let second = member.barrier(GRADIENTS);
                    let errors: Vec<_> = [first, second]
                        .into_iter()
                        .filter_map(|p| p.wait(soon()).err())
                        .collect();
                    assert!(!errors.is_empty(), "{name}: rank {rank} noticed nothing");
                    for error in errors {
                        assert!(
                            matches!(error, CollectiveError::Mismatch { .. }),
                            "{name}: {error}"
                        );
                    }
                });
            }
        }
    }
}

#[test]
fn i3_a_swapped_order_is_a_mismatch_that_names_both_operations() {
    for (name, group) in transports(2) {
        each_rank(&group, |rank, member| {
            let sizes = if rank == 0 { [10, 20] } else { [20, 10] };
            let pending = sizes.map(|elements| sum(member, elements));
            for pending in pending {
                let text = pending.wait(soon()).unwrap_err().to_string();
                let both = text.contains("of 10 f32") && text.contains("of 20 f32");
                assert!(
                    both && text.contains("operation 0 of channel gradients"),
                    "{name}: {text}"
                );
            }
        });
    }
}

#[test]
fn abort_from_another_thread_ends_a_transfer_and_leaves_no_thread_at_the_buffer() {
    for world in [2, 3] {
        let group = tcp(world);
        let own = zeros(BIG, DType::U8);
        let other = zeros(BIG, DType::U8);
        let all_reduce = |rank: usize, buffer: &Buffer| {
            group[rank].all_reduce(GRADIENTS, buffer.clone(), ReduceOp::Sum, WireType::Same)
        };
        // Rank 0 is in the middle of its transfer for good: the last rank never comes.
        let mine = all_reduce(0, &own);
        let queued = group[0].barrier(GRADIENTS);
        let control = group[0].barrier(Channel::Control);
        let theirs = (world > 2).then(|| all_reduce(1, &other));
        std::thread::scope(|scope| {
            let waiter = scope.spawn(move || mine.wait(soon()));
            scope.spawn(|| group[0].abort(AbortCause::Reform)).join().unwrap();
            // No lease is left on the memory.
            own.copy_from_slice(&vec![1u8; BIG]).unwrap();
            let aborted = Err(CollectiveError::Aborted {
                cause: AbortCause::Reform,
            });
            assert_eq!(waiter.join().unwrap(), aborted);
            assert_eq!(queued.wait(soon()), aborted);
            assert_eq!(control.wait(soon()), aborted);
            assert_eq!(
                group[0].barrier(Channel::State).wait(soon()),
                aborted,
                "dead from then on"
            );
        });
        if let Some(theirs) = theirs {
            let Err(CollectiveError::PeerLost { rank: 0, cause }) = theirs.wait(soon()) else {
                panic!()
            };
            assert!(cause.contains("formed anew"), "the reason travels: {cause}");
        }
        assert_eq!(Arc::strong_count(own.region()), 1);
    }
}

#[test]
fn dropping_a_communicator_ends_its_transfers_like_an_abort() {
    for (name, mut group) in transports(2) {
        let own = zeros(BIG, DType::U8);
        let mine = group[0].all_reduce(GRADIENTS, own.clone(), ReduceOp::Sum, WireType::Same);
        drop(group.remove(0));
        let aborted = CollectiveError::Aborted {
            cause: AbortCause::Dropped,
        };
        assert_eq!(mine.wait(soon()), Err(aborted), "{name}");
        own.to_vec::<u8>().unwrap();
        let theirs = group[0].barrier(GRADIENTS).wait(soon());
        assert!(
            matches!(theirs, Err(CollectiveError::PeerLost { rank: 0, .. })),
            "{name}: {theirs:?}"
        );
    }
}

#[test]
fn a_member_that_leaves_after_the_last_operation_takes_nothing_from_the_others() {
    for round in 0..30 {
        let group = tcp(3);
        std::thread::scope(|scope| {
            for member in group {
                scope.spawn(move || {
                    sum(&*member, 100).wait(soon()).unwrap();
                    member.barrier(Channel::Control).wait(soon()).unwrap();
                    let cause = match round % 3 {
                        0 => return drop(member),
                        1 => AbortCause::Stop,
                        _ => AbortCause::Reform,
                    };
                    member.abort(cause.clone());
                    let later = member.barrier(Channel::State).wait(soon());
                    assert_eq!(later, Err(CollectiveError::Aborted { cause }));
                });
            }
        });
    }
}

#[test]
fn an_impatient_waiter_gets_a_deadline_error_that_names_whom_it_waited_for() {
    for (name, group) in transports(3) {
        let own = zeros(1000, DType::F32);
        let mine = group[0].all_reduce(GRADIENTS, own.clone(), ReduceOp::Sum, WireType::Same);
        let theirs = sum(&*group[1], 1000);
        let error = mine
            .wait(Instant::now() + Duration::from_millis(300))
            .unwrap_err();
        let CollectiveError::Deadline {
            waiting_for,
            channel: GRADIENTS,
            ..
        } = &error
        else {
            panic!("{name}: {error}")
        };
        assert!(waiting_for.contains(&2), "{name}: {error}");
        own.to_vec::<f32>().expect("no thread is at the buffer any more");
        assert_eq!(
            group[0].barrier(GRADIENTS).wait(soon()),
            Err(error),
            "dead from then on"
        );
        let theirs = theirs.wait(soon());
        assert!(
            matches!(theirs, Err(CollectiveError::PeerLost { rank: 0, .. })),
            "{name}: {theirs:?}"
        );
    }
}

#[test]
fn an_operation_nobody_waits_for_ends_at_the_groups_deadline() {
    let options = Options {
        operation_deadline: Duration::from_millis(200),
        ..Options::default()
    };
    let group = tcp_with(2, options);
    let error = sum(&*group[0], 100_000).wait(soon()).unwrap_err();
    assert!(
        matches!(&error, CollectiveError::Deadline { waiting_for, .. } if *waiting_for == [1]),
        "{error}"
    );
}

/// A buffer's content that is not there before somebody says so.
#[derive(Default)]
struct Gate {
    open: Mutex<bool>,
    changed: Condvar,
}

impl Readiness for Gate {
    fn wait_until(&self, until: Instant) -> bool {
        let left = until.saturating_duration_since(Instant::now());
        let open = self.open.lock().unwrap();
        *self
            .changed
            .wait_timeout_while(open, left, |open| !*open)
            .unwrap()
            .0
    }
}

#[test]
fn a_buffer_is_not_touched_before_it_is_ready() {
    let group = tcp(2);
    let gate = Arc::new(Gate::default());
    let own = zeros(8, DType::F32);
    let late = own.clone().with_readiness(gate.clone());
    let mine = group[0].all_reduce(GRADIENTS, late, ReduceOp::Sum, WireType::Same);
    let theirs = sum(&*group[1], 8);
    // Other channels go on meanwhile.
    let barriers = [
        group[0].barrier(Channel::Control),
        group[1].barrier(Channel::Control),
    ];
    for barrier in barriers {
        barrier.wait(soon()).unwrap();
    }
    assert!(!mine.is_done() && !theirs.is_done());
    *gate.open.lock().unwrap() = true;
    gate.changed.notify_all();
    mine.wait(soon()).unwrap();
    theirs.wait(soon()).unwrap();
    // One that never becomes ready does not hold up an abort.
    let never = own.with_readiness(Arc::new(Gate::default()));
    let mine = group[0].all_reduce(GRADIENTS, never, ReduceOp::Sum, WireType::Same);
    group[0].abort(AbortCause::Stop);
    assert_eq!(
        mine.wait(soon()),
        Err(CollectiveError::Aborted {
            cause: AbortCause::Stop
        })
    );
}

/// Content whose readiness takes the I/O thread a while to find out, whatever it is told.
struct Slow {
    entered: Mutex<Sender<()>>,
    abort_begins: AtomicBool,
    events: Mutex<Vec<&'static str>>,
}

impl Readiness for Slow {
    fn wait_until(&self, _until: Instant) -> bool {
        let _ = self.entered.lock().unwrap().send(());
        while !self.abort_begins.load(Ordering::Acquire) {
            std::thread::yield_now();
        }
        // Time enough for an abort that does not wait to come back.
        for _ in 0..2000 {
            std::thread::yield_now();
        }
        self.events.lock().unwrap().push("the thread is done");
        false
    }
}

#[test]
fn abort_returns_only_when_no_thread_is_at_a_buffer_any_more() {
    let group = tcp(2);
    let (entered, has_entered) = channel();
    let slow = Arc::new(Slow {
        entered: Mutex::new(entered),
        abort_begins: AtomicBool::new(false),
        events: Mutex::default(),
    });
    let own = zeros(8, DType::F32).with_readiness(slow.clone());
    let pending = group[0].all_reduce(GRADIENTS, own, ReduceOp::Sum, WireType::Same);
    has_entered.recv_timeout(Duration::from_secs(60)).unwrap();
    slow.abort_begins.store(true, Ordering::Release);
    group[0].abort(AbortCause::Stop);
    slow.events.lock().unwrap().push("abort is back");
    assert_eq!(
        *slow.events.lock().unwrap(),
        ["the thread is done", "abort is back"]
    );
    assert!(pending.is_done());
}

const CHILD: &str = "GRADSYNC_TEST_CHILD";

/// The body of a child process, which is this test binary run again: rank 2 of 3, in the middle of a
/// transfer until it is killed.
#[test]
fn child_process_of_the_tests_below() {
    if std::env::var_os(CHILD).is_none() {
        return;
    }
    let listener = Listener::bind(IpAddr::V4(Ipv4Addr::LOCALHOST)).unwrap();
    println!("\nchild {}", listener.addr());
    let mut line = String::new();
    std::io::stdin().read_line(&mut line).unwrap();
    let addresses: Vec<SocketAddr> = line
        .split_whitespace()
        .map(|address| address.parse().unwrap())
        .collect();
    let context = HelloContext::default();
    let member = connect(
        listener,
        identity(2, 3),
        &addresses,
        &context,
        KEY,
        &Options::default(),
    )
    .unwrap();
    let pending = sum(&*member, BIG / 4);
    println!("\nchild issued");
    let _ = pending.wait(soon());
}

struct Rank2(Child);

impl Drop for Rank2 {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn next_word(lines: &mut impl Iterator<Item = std::io::Result<String>>) -> String {
    let words = lines.map(|line| line.unwrap());
    words
        .filter_map(|line| line.strip_prefix("child ").map(str::to_owned))
        .next()
        .unwrap()
}

/// Ranks 0 and 1 here, rank 2 in a process of its own that is in the middle of a transfer.
fn with_child(options: Options) -> (Vec<Arc<dyn Communicator>>, Rank2) {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command
        .args(["--exact", "child_process_of_the_tests_below", "--nocapture"])
        .env(CHILD, "1");
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let mut input = child.stdin.take().unwrap();
    let child = Rank2(child);
    let (listeners, mut addresses) = listeners(2);
    addresses.push(next_word(&mut lines).parse().unwrap());
    let words: Vec<String> = addresses.iter().map(SocketAddr::to_string).collect();
    writeln!(input, "{}", words.join(" ")).unwrap();
    let members = std::thread::scope(|scope| {
        let start = |(rank, listener)| {
            let addresses = &addresses;
            scope.spawn(move || {
                connect(
                    listener,
                    identity(rank, 3),
                    addresses,
                    &HelloContext::default(),
                    KEY,
                    &options,
                )
            })
        };
        let threads: Vec<_> = listeners.into_iter().enumerate().map(start).collect();
        threads
            .into_iter()
            .map(|thread| thread.join().unwrap().unwrap())
            .collect()
    });
    assert_eq!(next_word(&mut lines), "issued");
    (members, child)
}

fn assert_rank_2_is_lost(members: &[Arc<dyn Communicator>], pending: Vec<Pending>) {
    for pending in pending {
        let result = pending.wait(soon());
        assert!(
            matches!(result, Err(CollectiveError::PeerLost { rank: 2, .. })),
            "{result:?}"
        );
    }
    for member in members {
        assert_eq!(
            member.barrier(Channel::State).wait(soon()).unwrap_err().suspect(),
            Some(2)
        );
    }
}

#[test]
fn a_killed_peer_is_lost_on_all_pending_operations_of_all_channels() {
    let (members, mut child) = with_child(Options::default());
    let mut pending: Vec<Pending> = members.iter().map(|member| sum(&**member, BIG / 4)).collect();
    pending.extend(members.iter().map(|member| member.barrier(Channel::Control)));
    child.0.kill().unwrap();
    // The transfer itself may have been complete before the signal came.
    let transfers: Vec<_> = pending.drain(..2).map(|pending| pending.wait(soon())).collect();
    for result in transfers {
        assert!(
            matches!(result, Ok(_) | Err(CollectiveError::PeerLost { rank: 2, .. })),
            "{result:?}"
        );
    }
    assert_rank_2_is_lost(&members, pending);
}

#[test]
fn a_peer_killed_while_the_others_wait_for_its_data_is_lost() {
    let (members, mut child) = with_child(Options::default());
    // Rank 1 never comes to the operation, so that it cannot be complete.
    let pending = vec![sum(&*members[0], BIG / 4)];
    child.0.kill().unwrap();
    assert_rank_2_is_lost(&members, pending);
}

#[test]
fn a_frozen_peer_is_lost_by_its_silence_though_its_connections_stand() {
    let options = Options {
        heartbeat_interval: Duration::from_millis(100),
        heartbeat_timeout: Duration::from_millis(1500),
        ..Options::default()
    };
    let (members, child) = with_child(options);
    let pid = rustix::process::Pid::from_child(&child.0);
    rustix::process::kill_process(pid, rustix::process::Signal::STOP).unwrap();
    let pending = members
        .iter()
        .map(|member| member.barrier(Channel::Control))
        .collect();
    assert_rank_2_is_lost(&members, pending);
}
