//! Who does not belong to the group does not get in, learns why, and disturbs nobody.

mod common;

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use common::{KEY, connect_each, each_rank, identity, listeners, soon};
use gradsync_collective::tcp::{ConnectError, Difference, HelloContext, Options, Refusal, connect};
use gradsync_collective::{Buffer, Channel, Communicator, GroupIdentity, ReduceOp, WireType};

/// For connections that are meant to fail.
fn briefly() -> Options {
    Options {
        connect_deadline: Duration::from_millis(700),
        ..Options::default()
    }
}

fn all_reduce_is_right(group: &[std::sync::Arc<dyn Communicator>]) {
    each_rank(&group.to_vec(), |rank, member| {
        let own = Buffer::from_slice(&vec![rank as f32 + 1.0; 50_000]).unwrap();
        member
            .all_reduce(Channel::Gradients, own.clone(), ReduceOp::Sum, WireType::Same)
            .wait(soon())
            .unwrap();
        let sum = (group.len() * (group.len() + 1) / 2) as f32;
        assert!(own.to_vec::<f32>().unwrap().iter().all(|value| *value == sum));
    });
}

/// Everything that a stranger may send first.
fn nonsense() -> Vec<Vec<u8>> {
    let mut noise = 0x9E37_79B9_7F4A_7C15u64;
    let random = std::iter::repeat_with(move || {
        noise ^= noise << 13;
        noise ^= noise >> 7;
        noise ^= noise << 17;
        noise as u8
    });
    let header = |kind: u8, length: u16| [b"gsh1", &[kind, 0][..], &length.to_le_bytes()].concat();
    vec![
        random.take(100_000).collect(),
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n".to_vec(),
        vec![0; 4096],
        // A hello longer than allowed, one without content, one that is no JSON, a proof out of turn.
        [header(1, 4097), vec![b'{'; 4097]].concat(),
        header(1, 0),
        [header(1, 5), b"hello".to_vec()].concat(),
        [header(3, 32), vec![0; 32]].concat(),
        // A frame of the data protocol without a handshake.
        [b"gsf1".to_vec(), vec![0; 4096]].concat(),
    ]
}

/// Sends bytes and reads until the other side hangs up.
fn poke(address: SocketAddr, bytes: &[u8]) {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    let _ = stream.write_all(bytes);
    let mut rest = Vec::new();
    match stream.read_to_end(&mut rest) {
        Ok(_) => {}
        Err(error) => assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset),
    }
}

/// A group with its addresses.
fn running(world: usize, options: Options) -> (Vec<std::sync::Arc<dyn Communicator>>, Vec<SocketAddr>) {
    let (listeners, addresses) = listeners(world);
    let group = std::thread::scope(|scope| {
        let start = |(rank, listener)| {
            let addresses = &addresses;
            scope.spawn(move || {
                let context = HelloContext::default();
                connect(
                    listener,
                    identity(rank, world),
                    addresses,
                    &context,
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
    (group, addresses)
}

#[test]
fn strangers_at_the_data_port_of_a_running_group_are_dropped_and_change_nothing() {
    // Patient with callers, so that only the bound on their number drops the silent ones.
    let options = Options {
        handshake_deadline: Duration::from_secs(600),
        ..Options::default()
    };
    let (group, addresses) = running(2, options);
    // Some connect and say nothing, or a little: more than are kept.
    let mut silent: Vec<TcpStream> = Vec::new();
    for index in 0..280 {
        let mut stream = TcpStream::connect(addresses[0]).unwrap();
        stream.write_all(&b"gsh1\x01"[..index % 6]).unwrap();
        silent.push(stream);
    }
    silent[0].set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    let answer = silent[0].read(&mut [0; 1]);
    let hung_up = match &answer {
        Ok(bytes) => *bytes == 0,
        Err(error) => error.kind() == std::io::ErrorKind::ConnectionReset,
    };
    assert!(hung_up, "the oldest makes room: {answer:?}");
    all_reduce_is_right(&group);
    for bytes in nonsense() {
        for address in &addresses {
            poke(*address, &bytes);
        }
        all_reduce_is_right(&group);
    }
    drop(silent);
    all_reduce_is_right(&group);
}

#[test]
fn strangers_do_not_keep_a_group_from_forming() {
    let (listeners, addresses) = listeners(3);
    // They are first in line, and some stay.
    let mut silent: Vec<TcpStream> = (0..30)
        .map(|index| TcpStream::connect(addresses[index % 3]).unwrap())
        .collect();
    for (stream, bytes) in silent.iter_mut().zip(nonsense()) {
        let _ = stream.write_all(&bytes[..bytes.len().min(5000)]);
    }
    let group: Vec<_> = std::thread::scope(|scope| {
        let start = |(rank, listener)| {
            let addresses = &addresses;
            scope.spawn(move || {
                let (context, options) = (HelloContext::default(), Options::default());
                connect(listener, identity(rank, 3), addresses, &context, KEY, &options)
            })
        };
        let threads: Vec<_> = listeners.into_iter().enumerate().map(start).collect();
        threads
            .into_iter()
            .map(|thread| thread.join().unwrap().unwrap())
            .collect()
    });
    all_reduce_is_right(&group);
}

/// Calls rank 0 of a running group as rank 1 of the same world.
fn call_as(address: SocketAddr, identity: GroupIdentity, key: &[u8]) -> ConnectError {
    let (mut mine, mut addresses) = listeners(1);
    addresses.insert(0, address);
    let result = connect(
        mine.remove(0),
        identity,
        &addresses,
        &HelloContext::default(),
        key,
        &briefly(),
    );
    result.err().expect("let in")
}

#[test]
fn members_of_other_generations_jobs_and_worlds_are_refused_with_a_typed_reason() {
    let (group, addresses) = running(2, Options::default());
    let mine = || identity(1, 2);
    let refused = |identity| match call_as(addresses[0], identity, KEY) {
        ConnectError::Refused { rank: 0, reason } => reason,
        other => panic!("{other}"),
    };
    let stale = refused(GroupIdentity {
        generation: 6,
        ..mine()
    });
    assert_eq!(stale, Refusal::Generation { generation: 7 });
    assert_eq!(
        refused(GroupIdentity {
            job_uid: "other".into(),
            ..mine()
        }),
        Refusal::Job
    );
    assert_eq!(refused(mine()), Refusal::Complete, "the place is taken");
    // One generation ahead waits for the others to follow, and says so at its deadline.
    let early = call_as(
        addresses[0],
        GroupIdentity {
            generation: 8,
            ..mine()
        },
        KEY,
    );
    assert_eq!(early.ranks(), [0]);
    assert!(early.to_string().contains("still in generation 7"), "{early}");
    all_reduce_is_right(&group);
}

#[test]
fn a_member_with_another_key_is_not_let_in_and_the_key_is_in_no_error() {
    let wrong = b"the key of another generation...".to_vec();
    let keys = |rank| if rank == 1 { wrong.clone() } else { KEY.to_vec() };
    let results = connect_each(3, briefly(), |_| HelloContext::default(), keys);
    let errors: Vec<ConnectError> = results.into_iter().map(|result| result.err().unwrap()).collect();
    assert_eq!(
        errors.iter().map(ConnectError::ranks).collect::<Vec<_>>(),
        [vec![1], vec![0, 2], vec![1]]
    );
    for error in errors {
        let text = format!("{error} {error:?}");
        assert!(
            !text.contains("of another generation") && !text.contains("of this generation"),
            "{text}"
        );
    }
    let (mut mine, addresses) = listeners(1);
    let short = connect(
        mine.remove(0),
        identity(0, 1),
        &addresses,
        &HelloContext::default(),
        b"",
        &briefly(),
    );
    assert!(matches!(short.err(), Some(ConnectError::Arguments(_))));
}

#[test]
fn a_member_with_other_facts_is_named_by_all_and_told_what_differs() {
    type Change = fn(&mut HelloContext);
    let cases: [(Difference, Change, &str); 4] = [
        (
            Difference::Data,
            |c| c.data_fingerprint = "odd".into(),
            "reads different data: fingerprint",
        ),
        (
            Difference::Layout,
            |c| c.layout_hash = "odd".into(),
            "has another parameter layout: hash",
        ),
        (
            Difference::Plan,
            |c| c.plan_hash = "odd".into(),
            "follows another membership plan: hash",
        ),
        (
            Difference::RunConfig,
            |c| c.run_config_hash = "odd".into(),
            "runs another configuration: hash",
        ),
    ];
    for (expected, change, words) in cases {
        let context = |rank| {
            let usual = || "usual".to_owned();
            let mut context = HelloContext {
                run_config_hash: usual(),
                layout_hash: usual(),
                plan_hash: usual(),
                data_fingerprint: usual(),
            };
            if rank == 1 {
                change(&mut context);
            }
            context
        };
        let results = connect_each(3, Options::default(), context, |_| KEY.to_vec());
        for (rank, result) in results.into_iter().enumerate() {
            let error = result.err().expect("connected");
            assert!(
                matches!(&error, ConnectError::Differs { what, .. } if *what == expected),
                "{error}"
            );
            if rank != 1 {
                assert_eq!(error.to_string(), format!("rank 1 {words} odd, here usual"));
            }
        }
    }
}

#[test]
fn ranks_that_cannot_be_reached_are_named() {
    let (mut listeners, addresses) = listeners(4);
    // Rank 1 has a port but never connects, rank 2 has none any more.
    let silent = listeners.remove(1);
    drop(listeners.remove(1));
    let errors: Vec<ConnectError> = std::thread::scope(|scope| {
        let start = |(rank, listener)| {
            let addresses = &addresses;
            scope.spawn(move || {
                let context = HelloContext::default();
                connect(listener, identity(rank, 4), addresses, &context, KEY, &briefly())
                    .err()
                    .unwrap()
            })
        };
        let threads: Vec<_> = [0, 3].into_iter().zip(listeners).map(start).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    drop(silent);
    for error in errors {
        assert_eq!(error.ranks(), [1, 2], "{error}");
    }
}

#[test]
fn a_peer_that_comes_late_is_waited_for() {
    let (mut mine, addresses) = listeners(3);
    let last = mine.pop().unwrap();
    std::thread::scope(|scope| {
        let start = |(rank, listener)| {
            let addresses = &addresses;
            scope.spawn(move || {
                let (context, options) = (HelloContext::default(), Options::default());
                connect(listener, identity(rank, 3), addresses, &context, KEY, &options).map(drop)
            })
        };
        let early: Vec<_> = mine.into_iter().enumerate().map(start).collect();
        // The last comes once a stranger that was behind the others' calls has been dropped, so that
        // they have been at it for a while.
        poke(addresses[0], b"not a hello of this protocol");
        start((2, last)).join().unwrap().unwrap();
        for thread in early {
            thread.join().unwrap().unwrap();
        }
    });
}

#[test]
fn calls_that_make_no_sense_are_refused_before_anything_is_sent() {
    let attempt = |identity: GroupIdentity, addresses: usize, context: HelloContext| {
        let (mut mine, all) = listeners(addresses.max(1));
        let result = connect(
            mine.remove(0),
            identity,
            &all[..addresses],
            &context,
            KEY,
            &briefly(),
        );
        assert!(matches!(result.err(), Some(ConnectError::Arguments(_))));
    };
    attempt(identity(2, 2), 2, HelloContext::default());
    attempt(identity(0, 0), 0, HelloContext::default());
    attempt(identity(0, 2), 1, HelloContext::default());
    let long = HelloContext {
        layout_hash: "x".repeat(5000),
        ..HelloContext::default()
    };
    attempt(identity(0, 2), 2, long);
}
