//! The `count` task: after E epochs every parameter is exactly E, if every sample was used exactly once.

use crate::support::{Run, Wire, config};
use gradsync_trainer::state::TrainingState;
use gradsync_trainer::step::Committed;
use gradsync_trainer::strategy::Trace;
use gradsync_trainer::tasks::builtin;
use gradsync_trainer::train::{End, Observer};
use serde_json::{Value, json};

pub fn spec() -> Value {
    json!({
        "task": {"name": "count", "parameters": {"size": 1000}},
        "training": {
            "globalBatchSize": 24, "epochs": 3, "seed": 7,
            "optimizer": {"name": "SGD", "learningRate": 1.0}
        },
        "sync": {"strategy": "AllReduce"},
        "precision": {"mode": "fp64"},
        "workers": {"replicas": 2},
    })
}

/// Keeps the newest parameters.
#[derive(Default)]
pub struct Last(pub Vec<f64>, pub u64);

impl Observer for Last {
    fn committed(&mut self, state: &TrainingState, _: &Committed, _: &Trace) {
        self.1 += 1;
        self.0.clear();
        for (_, tensor) in state.parameters() {
            self.0
                .extend(Vec::<f64>::try_from(tensor.detach().reshape([-1])).unwrap());
        }
    }
}

#[test]
fn every_index_counts_exactly_the_epochs_with_any_number_of_workers() {
    for world in [1, 2, 3, 5] {
        for wire in [Wire::Memory, Wire::Tcp] {
            let mut run = Run::new(config(spec()), world, &builtin);
            run.wire = wire;
            let (results, last, service) = run.go(|_, _| Last::default());
            for result in &results {
                let summary = result.as_ref().unwrap();
                assert_eq!(
                    (summary.end, summary.steps, summary.epochs),
                    (End::Complete, 126, 3)
                );
                assert_eq!(summary.state_digest, results[0].as_ref().unwrap().state_digest);
            }
            for last in last {
                assert_eq!(last.0.len(), 1000);
                assert!(
                    last.0.iter().all(|count| *count == 3.0),
                    "{world} workers, {wire:?}"
                );
                assert_eq!(last.1, 126);
            }
            assert!(service.ending().is_some());
        }
    }
}
