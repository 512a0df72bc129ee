//! Faults and bad input: one clear error that names what and where, or a repair that is as if nothing had
//! happened.

use crate::support::{
    Captured, LostJoins, MeddledTask, Rendezvous, Run, Watch, builtin, cnn, config, copy_store, die, job,
    watch,
};
use gradsync_formats::checkpoint::list_whole;
use gradsync_formats::run_config::RunConfig;
use gradsync_formats::store::{Fault, MemoryStore, Store};
use gradsync_rendezvous::membership::Ending;
use gradsync_trainer::state::TrainingState;
use gradsync_trainer::step::{Fatal, FatalKind};
use gradsync_trainer::task::{AugmentationKey, Task};
use gradsync_trainer::tasks::ImageClassification;
use gradsync_trainer::train::{End, Summary};
use serde_json::json;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// A job with a checkpoint every second step.
pub fn saving(model: &str, steps: u64) -> RunConfig {
    let mut spec = cnn(model, steps);
    spec["checkpoint"] = json!({"directory": "/checkpoints", "everySteps": 2, "keep": 100});
    config(spec)
}

/// Trains to the end; the last state.
pub fn train(run: Run<'_>) -> Captured {
    let (results, mut watches, _) = run.go(|_, _| Watch::default());
    for result in results {
        assert_eq!(result.unwrap().end, End::Complete);
    }
    watches.remove(0).last().clone()
}

pub fn text(result: &Result<Summary, Fatal>) -> &str {
    let fatal = result.as_ref().unwrap_err();
    assert!(
        matches!(fatal.kind, FatalKind::User | FatalKind::Refused),
        "starting it again cannot help: {fatal}"
    );
    &fatal.message
}

pub fn failure(service: &Rendezvous) -> String {
    match service.ending() {
        Some(Ending::Failed { error }) => error,
        other => panic!("the job has not failed: {other:?}"),
    }
}

/// Commits of the whole checkpoints, oldest first; nothing else lies there.
pub fn whole_commits(store: &MemoryStore) -> Vec<u64> {
    let listing = list_whole(store, &job(), None, None).unwrap();
    assert!(listing.passed_over.is_empty(), "{:?}", listing.passed_over);
    let commits = listing.whole.iter().rev();
    commits.map(|whole| whole.reference.position.commit).collect()
}

/// The tasks, with something changed in one slot's training data.
fn only_in_slot(
    slot: u32,
    changed: impl Fn() -> Box<dyn Task> + Sync,
) -> impl Fn(u32) -> Vec<Box<dyn Task>> + Sync {
    move |at| if at == slot { vec![changed()] } else { builtin(at) }
}

#[test]
fn a_loss_that_is_not_a_number_ends_the_job_and_names_step_and_rank() {
    let tasks = only_in_slot(1, || {
        MeddledTask::boxed(ImageClassification, |data, indices, key| {
            let mut batch = data.get(indices, key)?;
            if matches!(key, AugmentationKey::Epoch { epoch: 1, .. }) {
                batch.inputs = batch.inputs.f_mul_scalar(f64::NAN)?;
            }
            Ok(batch)
        })
    });
    let run = Run::new(saving("cnn", 12), 3, &tasks);
    let store = Arc::clone(&run.store);
    let (results, watches, service) = run.go(|_, _| Watch::default());
    for result in &results {
        let text = text(result);
        assert!(
            text.contains("step 6 (epoch 1, samples 0 to 23 of its order): the loss on rank 1"),
            "{text}"
        );
        assert!(text.contains("learningRate"), "the way out: {text}");
    }
    assert!(
        failure(&service).contains("rank 1 is not a finite number"),
        "{}",
        failure(&service)
    );
    assert_eq!(whole_commits(&store), [2, 4]);
    for watch in &watches {
        assert_eq!(watch.last().commit, 5, "the step did not commit");
        assert!(watch.last().parameters.iter().all(|value| value.is_finite()));
    }
}

#[test]
fn different_data_on_two_workers_is_refused_with_both_fingerprints() {
    let tasks = only_in_slot(1, || {
        Box::new(MeddledTask {
            inner: ImageClassification,
            change: Arc::new(|data, indices, key| data.get(indices, key)),
            fingerprint: "-of-another-day",
        })
    });
    let (results, watches, service) = Run::new(config(cnn("cnn", 4)), 2, &tasks).go(|_, _| Watch::default());
    let error = failure(&service);
    let (other, here) = error.split_once("-of-another-day").expect("one fingerprint");
    let fingerprint = other.rsplit(' ').next().unwrap();
    assert!(
        here.contains(fingerprint) || other.matches(fingerprint).count() > 1,
        "and the other one: {error}"
    );
    for (result, watch) in results.iter().zip(&watches) {
        assert!(text(result).contains("-of-another-day"), "{}", text(result));
        assert!(watch.states.is_empty(), "not one step was made");
    }
}

#[test]
fn joins_that_are_not_answered_cost_a_member_neither_its_state_nor_its_process() {
    let undisturbed = train(Run::new(saving("cnn", 8), 2, &builtin));
    let mut run = Run::new(saving("cnn", 8), 2, &builtin);
    // Of every process: after it has joined cold and ready, the next three are lost.
    run.lost_joins = Some(LostJoins { after: 2, count: 3 });
    let died = Arc::new(AtomicBool::new(false));
    let (results, watches, service) = run.go(|slot, _| {
        let died = Arc::clone(&died);
        watch(move |_, committed| {
            let now = slot == 1 && committed.position.commit == 5;
            if now && !died.swap(true, Ordering::Relaxed) {
                die();
            }
        })
    });
    for result in &results {
        assert_eq!(result.as_ref().unwrap().end, End::Complete);
    }
    assert_eq!(watches[0].last(), &undisturbed);
    let commits: Vec<u64> = watches[0].states.iter().map(|state| state.commit).collect();
    assert!(
        commits.starts_with(&[1, 2, 3, 4]) && commits.ends_with(&[5, 6, 7, 8]),
        "the survivor is one process to the end: {commits:?}"
    );
    let saved = service.saved();
    assert_eq!(saved.restarts.charged.len(), 1, "the crash, and nothing else");
}

#[test]
fn an_unknown_task_is_refused_with_the_one_that_was_meant() {
    let mut spec = cnn("cnn", 2);
    spec["task"]["name"] = json!("image-clasification");
    let (results, _, service) = Run::new(config(spec), 2, &builtin).go(|_, _| Watch::default());
    for result in &results {
        let text = text(result);
        assert!(text.contains("\"image-clasification\""), "{text}");
        assert!(text.contains("did you mean image-classification?"), "{text}");
    }
    assert!(failure(&service).contains("spec.task.name"));
}

#[test]
fn a_checkpoint_of_another_model_is_refused_and_left_alone() {
    let first = Run::new(saving("cnn", 2), 1, &builtin);
    let store = Arc::clone(&first.store);
    train(first);
    let mut second = Run::new(saving("cnn-bn", 4), 2, &builtin);
    second.store = Arc::clone(&store);
    let (results, _, _) = second.go(|_, _| Watch::default());
    for result in &results {
        let text = text(result);
        assert!(text.contains("step-2-g1"), "{text}");
        assert!(text.contains("written with another"), "{text}");
    }
    assert_eq!(whole_commits(&store), [2]);
}

#[test]
fn a_flipped_byte_in_the_newest_checkpoint_makes_the_one_before_it_the_newest() {
    let undisturbed = train(Run::new(saving("cnn", 8), 2, &builtin));
    let first = Run::new(saving("cnn", 6), 2, &builtin);
    let store = Arc::clone(&first.store);
    train(first);
    assert_eq!(whole_commits(&store), [2, 4, 6]);
    for file in ["parameters.safetensors", "optimizer.safetensors", "manifest.json"] {
        let store = copy_store(&store, |_| true);
        let middle = |bytes: &mut Vec<u8>| {
            let at = bytes.len() / 2;
            bytes[at] ^= 1;
        };
        assert!(store.damage(&format!("{}/step-6-g1/{file}", job()), middle));
        let mut second = Run::new(saving("cnn", 8), 2, &builtin);
        second.store = store;
        let log = second.log.clone();
        let (results, watches, _) = second.go(|_, _| Watch::default());
        results.iter().for_each(|result| assert!(result.is_ok()));
        assert_eq!(
            watches[0].states[0].commit, 5,
            "{file}: went on from the fourth step"
        );
        assert_eq!(watches[0].last(), &undisturbed, "{file}");
        let said = log.text();
        let line = said
            .lines()
            .find(|line| line.contains("passing over a checkpoint"));
        assert!(
            line.is_some_and(|line| line.contains("step-6-g1")),
            "{file}: {said}"
        );
    }
}

#[test]
fn when_every_checkpoint_is_damaged_training_does_not_start_over_in_silence() {
    let first = Run::new(saving("cnn", 6), 2, &builtin);
    let store = Arc::clone(&first.store);
    train(first);
    let flip = |bytes: &mut Vec<u8>| bytes[0] ^= 1;
    for commit in whole_commits(&store) {
        assert!(store.damage(
            &format!("{}/step-{commit}-g1/parameters.safetensors", job()),
            flip
        ));
    }
    let mut second = Run::new(saving("cnn", 8), 2, &builtin);
    second.store = Arc::clone(&store);
    let (results, watches, _) = second.go(|_, _| Watch::default());
    for (result, watch) in results.iter().zip(&watches) {
        let error = result.as_ref().unwrap_err().to_string();
        assert!(error.contains("none of its 3 checkpoints is whole"), "{error}");
        assert!(watch.states.is_empty(), "no step was taken");
    }
    assert!(
        store
            .list("")
            .unwrap()
            .iter()
            .any(|key| key.contains("step-2-g1")),
        "nothing was deleted"
    );
}

#[test]
fn a_store_that_is_full_at_a_checkpoint_ends_the_job_and_says_so() {
    let small = Run::new(saving("cnn", 2), 1, &builtin);
    let store = Arc::clone(&small.store);
    train(small);
    let keys = store.list("").unwrap();
    let one: usize = keys.iter().map(|key| store.get(key).unwrap().len()).sum();

    let run = Run::new(saving("cnn", 12), 2, &builtin);
    let store = Arc::clone(&run.store);
    store.set_fault(Some(Fault::Capacity(one as u64 * 5 / 2)));
    let (results, watches, service) = run.go(|_, _| Watch::default());
    let error = failure(&service);
    assert!(error.contains("write checkpoint step-6-g1 in "), "{error}");
    assert!(error.contains("free space"), "the way out: {error}");
    for result in &results {
        assert!(text(result).contains("step-6-g1"), "{}", text(result));
    }
    assert!(watches.iter().all(|watch| watch.last().commit <= 7));
    assert_eq!(
        whole_commits(&store),
        [2, 4],
        "nothing is left of the one that did not fit"
    );
}

/// Flips the lowest bit of one number of a parameter.
pub fn flip(state: &TrainingState, name: &str) {
    let (_, tensor) = state.parameters().find(|(known, _)| *known == name).unwrap();
    let mut number = tensor.detach().view([-1]).narrow(0, 2, 1);
    let flipped = f64::from_bits(number.double_value(&[0]).to_bits() ^ 1);
    let _ = number.fill_(flipped);
}

/// Runs `world` members; on rank 1 a bit flips after the last step, once.
fn with_a_flipped_bit(world: u32) -> (Vec<Watch<'static>>, String) {
    let run = Run::new(saving("cnn", 5), world, &builtin);
    let log = run.log.clone();
    let flipped = Arc::new(AtomicBool::new(false));
    let (results, watches, _) = run.go(|slot, _| {
        let flipped = Arc::clone(&flipped);
        watch(move |state, committed| {
            let now = slot == 1 && committed.position.commit == 5;
            if now && !flipped.swap(true, Ordering::Relaxed) {
                flip(state, "output.bias");
            }
        })
    });
    let digests: Vec<&String> = results
        .iter()
        .map(|result| &result.as_ref().unwrap().state_digest)
        .collect();
    let undisturbed = train(Run::new(saving("cnn", 5), world, &builtin));
    assert!(digests.iter().all(|digest| **digest == undisturbed.digest));
    (watches, log.text())
}

#[test]
fn a_bit_that_flips_on_one_of_three_members_is_named_and_repaired_by_the_others() {
    let (watches, said) = with_a_flipped_bit(3);
    let line = said
        .lines()
        .find(|line| line.contains("repairing members"))
        .unwrap();
    assert!(line.contains("ranks=[1]"), "{line}");
    assert!(line.contains("tensor parameter/output.bias is "), "{line}");
    assert!(
        line.contains(" on rank 0 and ") && line.contains(" on rank 1"),
        "{line}"
    );
    assert!(
        watches.iter().all(|watch| watch.states.len() == 5),
        "no step was repeated"
    );
}

#[test]
fn a_bit_that_flips_on_one_of_two_members_sends_both_to_the_newest_checkpoint() {
    let (watches, said) = with_a_flipped_bit(2);
    assert!(
        said.contains("no majority agrees: tensor parameter/output.bias"),
        "{said}"
    );
    for watch in watches {
        let commits: Vec<u64> = watch.states.iter().map(|state| state.commit).collect();
        assert_eq!(
            commits,
            [1, 2, 3, 4, 5, 5],
            "the fifth again, from the fourth's checkpoint"
        );
    }
}

#[test]
fn members_that_differ_again_and_again_end_the_job_instead_of_going_round_for_ever() {
    let (results, watches, service) = Run::new(saving("cnn", 5), 2, &builtin).go(|slot, _| {
        watch(move |state, committed| {
            if slot == 1 && committed.position.commit == 5 {
                flip(state, "output.bias");
            }
        })
    });
    let error = failure(&service);
    assert!(error.contains("after step 5: for the 3rd time"), "{error}");
    assert!(error.contains("tensor parameter/output.bias"), "{error}");
    for (result, watch) in results.iter().zip(&watches) {
        assert!(text(result).contains("for the 3rd time"), "{}", text(result));
        assert_eq!(watch.last().commit, 5);
        assert_eq!(watch.states.len(), 7, "the fifth step three times");
    }
}
