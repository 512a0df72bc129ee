//! How the service looks at the time: under a flood, behind a queue, and after it stood still itself.

use super::*;

#[tokio::test(start_paused = true)]
async fn a_flood_of_requests_does_not_keep_the_time_from_being_looked_at() {
    let bench = bench(2, &Memory::default());
    for slot in 0..2 {
        bench.join(slot, bench.idle(0)).await.unwrap();
    }
    bench.established(0, 1).await.unwrap();
    bench.established(1, 1).await.unwrap();
    // The queue is never empty, and nobody beats.
    for _ in 0..20 {
        loop {
            let (reply, _) = oneshot::channel();
            let ask = Command::News {
                identity: identity(0),
                reply,
            };
            if bench.commands.try_send(ask).is_err() {
                break;
            }
        }
        tokio::time::advance(Duration::from_millis(500)).await;
    }
    assert!(
        bench.snapshots.borrow().members.iter().all(|m| !m.live),
        "ten seconds of silence are noticed: {:?}",
        bench.snapshots.borrow().members
    );
}

#[tokio::test(start_paused = true)]
async fn beats_that_wait_in_the_queue_count_before_silence_is_judged() {
    let bench = bench(1, &Memory::default());
    bench.join(0, bench.idle(0)).await.unwrap();
    for _ in 0..9 {
        tokio::time::advance(Duration::from_millis(500)).await;
    }
    // The time is up while the task is busy with something else, and the beat waits behind that.
    let (reply, _) = oneshot::channel();
    let first = Command::News {
        identity: identity(0),
        reply,
    };
    assert!(bench.commands.try_send(first).is_ok());
    let (reply, answer) = oneshot::channel();
    let request = Beat {
        pod: member(0).pod,
        ranks: vec![RankBeat {
            incarnation: member(0).incarnation,
            step_counter: 0,
            thread_counter: 1,
            progress: None,
        }],
    };
    let beat = Command::Beat {
        identity: identity(0),
        request,
        reply,
    };
    assert!(bench.commands.try_send(beat).is_ok());
    tokio::time::advance(Duration::from_millis(500)).await;
    assert!(answer.await.unwrap().unwrap().unknown.is_empty());
    assert!(bench.snapshots.borrow().members[0].live);
}

#[tokio::test(start_paused = true)]
async fn time_in_which_the_service_itself_stood_still_is_nobodys_silence() {
    let mut bench = bench(2, &Memory::default());
    for slot in 0..2 {
        bench.join(slot, bench.idle(0)).await.unwrap();
    }
    // A machine that sleeps: for the process it is as if one wait took a minute.
    tokio::time::advance(Duration::from_secs(60)).await;
    for slot in 0..2 {
        assert!(bench.beat(slot, 1).await.is_empty(), "nobody was taken for lost");
    }
    let start = Instant::now();
    bench.until(|s| s.members.iter().all(|m| !m.live)).await;
    assert!(
        start.elapsed() >= Duration::from_secs(5),
        "afterwards silence counts"
    );
}

#[tokio::test(start_paused = true)]
async fn what_was_waited_before_a_member_came_is_no_excuse_for_its_silence() {
    let mut bench = bench(2, &Memory::default());
    let (reply, answer) = oneshot::channel();
    let ask = Command::News {
        identity: identity(0),
        reply,
    };
    assert!(bench.commands.send(ask).await.is_ok());
    answer.await.unwrap().unwrap();
    // Nobody is there for most of an hour, and nothing has to be done.
    tokio::time::advance(Duration::from_secs(3000)).await;
    bench.join(0, bench.idle(0)).await.unwrap();
    let start = Instant::now();
    bench.until(|s| s.members.iter().any(|m| !m.live)).await;
    assert!(
        start.elapsed() < Duration::from_secs(60),
        "silent after {:?}",
        start.elapsed()
    );
}
