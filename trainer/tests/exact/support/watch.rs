//! An observer that keeps what each step did, and the distance between two states.

use gradsync_trainer::state::TrainingState;
use gradsync_trainer::step::Committed;
use gradsync_trainer::strategy::{Event, Trace};
use gradsync_trainer::train::Observer;
use tch::{Kind, Tensor};

/// A state after a commit.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Captured {
    pub commit: u64,
    pub parameters: Vec<f64>,
    pub buffers: Vec<f64>,
    /// Over all replicated state, optimiser included.
    pub digest: String,
    pub chain: String,
    pub learning_rate: f64,
    pub loss: f64,
}

/// What a test does after a commit.
pub type After<'a> = Box<dyn FnMut(&TrainingState, &Committed) + Send + 'a>;

/// Keeps every step's state and events.
#[derive(Default)]
pub struct Watch<'a> {
    pub states: Vec<Captured>,
    pub traces: Vec<Vec<Event>>,
    pub commits: Vec<Committed>,
    after: Option<After<'a>>,
}

/// A watch that also does something after each commit.
pub fn watch<'a>(after: impl FnMut(&TrainingState, &Committed) + Send + 'a) -> Watch<'a> {
    Watch {
        after: Some(Box::new(after)),
        ..Watch::default()
    }
}

impl Watch<'_> {
    pub fn last(&self) -> &Captured {
        self.states.last().expect("a step was committed")
    }
}

impl Observer for Watch<'_> {
    fn committed(&mut self, state: &TrainingState, committed: &Committed, trace: &Trace) {
        self.states.push(Captured {
            commit: committed.position.commit,
            parameters: state
                .parameters()
                .flat_map(|(_, tensor)| values(tensor))
                .collect(),
            buffers: state.buffers().flat_map(|(_, tensor)| values(tensor)).collect(),
            digest: state.digest().unwrap(),
            chain: state.chain_hex(),
            learning_rate: committed.learning_rate,
            loss: committed.loss,
        });
        self.traces.push(trace.events());
        self.commits.push(committed.clone());
        if let Some(after) = &mut self.after {
            after(state, committed);
        }
    }
}

/// The elements of a tensor.
pub fn values(tensor: &Tensor) -> Vec<f64> {
    let flat = tensor.detach().reshape([-1]).to_kind(Kind::Double);
    Vec::<f64>::try_from(flat).unwrap()
}

/// ||a - b|| / ||b||, in the 2-norm; 0 for nothing at all.
pub fn distance(a: &[f64], b: &[f64]) -> f64 {
    assert_eq!(a.len(), b.len());
    let square = |x: f64| x * x;
    let difference: f64 = a.iter().zip(b).map(|(a, b)| square(a - b)).sum();
    let size: f64 = b.iter().copied().map(square).sum();
    if b.is_empty() {
        0.0
    } else {
        (difference / size).sqrt()
    }
}

impl Captured {
    /// The larger distance of parameters and buffers.
    pub fn distance(&self, other: &Captured) -> f64 {
        let parameters = distance(&self.parameters, &other.parameters);
        parameters.max(distance(&self.buffers, &other.buffers))
    }
}
