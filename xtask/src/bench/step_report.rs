//! Medians, shares and the table of the step benchmark.

use std::fmt;

use serde_json::{Value, json};

use super::machine::Machine;
use super::quartiles::Quartiles;
use super::step::{DROPPED, Model};
use super::step_record::Step;

/// All steps that count of one model on one number of ranks.
#[derive(Debug)]
pub(crate) struct Measurement {
    pub(crate) model: Model,
    pub(crate) ranks: usize,
    pub(crate) steps: Vec<Step>,
}

impl Measurement {
    pub(crate) fn new(model: Model, ranks: usize) -> Measurement {
        Measurement {
            model,
            ranks,
            steps: Vec::new(),
        }
    }
}

/// One step, the mean over its ranks, so that the pieces add up.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Pieces {
    step: f64,
    compute: f64,
    wait: f64,
    /// The shortest wait of any rank: that of the rank that was ready last, which waits for nobody.
    least_wait: f64,
}

impl Pieces {
    fn of(step: &Step) -> Pieces {
        let mean = |values: &mut dyn Iterator<Item = f64>| values.sum::<f64>() / step.len() as f64;
        Pieces {
            step: mean(&mut step.iter().map(|rank| rank.seconds)),
            compute: mean(&mut step.iter().map(|rank| rank.compute)),
            wait: mean(&mut step.iter().map(|rank| rank.wait)),
            least_wait: step.iter().map(|rank| rank.wait).fold(f64::INFINITY, f64::min),
        }
    }

    /// The rest: the optimiser, the digests and the record.
    fn update(&self) -> f64 {
        self.step - self.compute - self.wait
    }
}

/// What is told of one measurement. Times in milliseconds.
#[derive(Clone, Copy, Debug)]
struct Row {
    model: Model,
    ranks: usize,
    counted: usize,
    step_ms: Quartiles,
    compute_ms: Quartiles,
    update_ms: Quartiles,
    wait_ms: Quartiles,
    least_wait_ms: Quartiles,
    wait_share: Quartiles,
    samples_per_second: f64,
    /// Median step time by that of a single rank, which has the same batch: 1 would be perfect.
    times_single: f64,
}

impl Row {
    fn new(measurement: &Measurement, single: Option<&Measurement>) -> Row {
        let pieces: Vec<Pieces> = measurement.steps.iter().map(Pieces::of).collect();
        let ms = |piece: &dyn Fn(&Pieces) -> f64| {
            Quartiles::of(pieces.iter().map(|pieces| piece(pieces) * 1e3).collect())
        };
        let step_ms = ms(&|pieces| pieces.step);
        let single_steps = single.map_or(&[][..], |single| &single.steps);
        let single_ms = Quartiles::of(single_steps.iter().map(|s| Pieces::of(s).step * 1e3).collect());
        let global = measurement.model.batch_per_rank() * measurement.ranks;
        Row {
            model: measurement.model,
            ranks: measurement.ranks,
            counted: pieces.len(),
            step_ms,
            compute_ms: ms(&|pieces| pieces.compute),
            update_ms: ms(&Pieces::update),
            wait_ms: ms(&|pieces| pieces.wait),
            least_wait_ms: ms(&|pieces| pieces.least_wait),
            wait_share: Quartiles::of(pieces.iter().map(|pieces| pieces.wait / pieces.step).collect()),
            samples_per_second: global as f64 / (step_ms.median / 1e3),
            times_single: step_ms.median / single_ms.median,
        }
    }

    fn to_json(self) -> Value {
        json!({
            "model": self.model.parameter(),
            "ranks": self.ranks,
            "batchPerRank": self.model.batch_per_rank(),
            "steps": self.counted,
            "stepMs": self.step_ms,
            "computeMs": self.compute_ms,
            "updateMs": self.update_ms,
            "waitMs": self.wait_ms,
            "leastWaitMs": self.least_wait_ms,
            "waitShare": self.wait_share,
            "samplesPerSecond": self.samples_per_second,
            "timesSingle": self.times_single,
        })
    }
}

/// All measurements of a run.
#[derive(Debug)]
pub(crate) struct Report {
    pub(crate) machine: Machine,
    pub(crate) profile: &'static str,
    pub(crate) rounds: usize,
    pub(crate) steps_per_round: usize,
    pub(crate) measurements: Vec<Measurement>,
}

impl Report {
    fn rows(&self) -> impl Iterator<Item = Row> {
        self.measurements.iter().map(|measurement| {
            let mut all = self.measurements.iter();
            let single = all.find(|other| other.ranks == 1 && other.model == measurement.model);
            Row::new(measurement, single)
        })
    }

    /// What the table tells, and a little more.
    pub(crate) fn to_json(&self) -> Value {
        json!({
            "machine": self.machine,
            "profile": self.profile,
            "rounds": self.rounds,
            "stepsPerRound": self.steps_per_round,
            "droppedSteps": DROPPED,
            "measurements": self.rows().map(Row::to_json).collect::<Vec<_>>(),
        })
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Report {
            machine,
            profile,
            rounds,
            steps_per_round,
            measurements,
        } = self;
        writeln!(
            f,
            "training steps in fp32 with AdamW, one thread and one process for each rank, TCP on loopback, \
             profile {profile}; {machine}; medians [quartiles] in ms over {rounds} interleaved rounds of \
             {steps_per_round} steps after {DROPPED} that do not count\ncompute: data, forward and backward, \
             with the communication that hides behind it; update: optimiser and digests; wait: \
             communication that does not hide, and ranks that are late; least: the wait of the rank that was \
             ready last; share: wait by step; x single: step by that of a single rank with the same batch \
             per rank"
        )?;
        if measurements
            .iter()
            .any(|measurement| measurement.ranks > machine.cores)
        {
            writeln!(
                f,
                "more ranks than cores: oversubscribed, not a measure of scaling"
            )?;
        }
        writeln!(
            f,
            "\n{:>9} {:>5} {:>5} {:>22} {:>22} {:>20} {:>20} {:>7} {:>6} {:>9} {:>8}",
            "model",
            "ranks",
            "batch",
            "step",
            "compute",
            "update",
            "wait",
            "least",
            "share",
            "samples/s",
            "x single"
        )?;
        for row in self.rows() {
            let time = |q: Quartiles| format!("{:.1} [{:.1}-{:.1}]", q.median, q.lower, q.upper);
            writeln!(
                f,
                "{:>9} {:>5} {:>5} {:>22} {:>22} {:>20} {:>20} {:>7.1} {:>5.1}% {:>9.1} {:>8.2}",
                row.model.parameter(),
                row.ranks,
                row.model.batch_per_rank(),
                time(row.step_ms),
                time(row.compute_ms),
                time(row.update_ms),
                time(row.wait_ms),
                row.least_wait_ms.median,
                row.wait_share.median * 100.0,
                row.samples_per_second,
                row.times_single
            )?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::step_record::RankTimes;
    use super::*;

    fn rank(seconds: f64, compute: f64, wait: f64) -> RankTimes {
        RankTimes {
            seconds,
            compute,
            wait,
        }
    }

    fn report() -> Report {
        let measurement = |ranks, steps| Measurement {
            model: Model::Gpt,
            ranks,
            steps,
        };
        let two = vec![rank(1.0, 0.25, 0.5), rank(1.0, 0.5, 0.25)];
        Report {
            machine: Machine::here(),
            profile: "dev",
            rounds: 1,
            steps_per_round: 1,
            measurements: vec![
                measurement(1, vec![vec![rank(0.5, 0.375, 0.0)]]),
                measurement(2, vec![two]),
            ],
        }
    }

    #[test]
    fn pieces_are_means_over_ranks_that_add_up_to_the_step() {
        let pieces = Pieces::of(&report().measurements[1].steps[0]);
        let expected = Pieces {
            step: 1.0,
            compute: 0.375,
            wait: 0.375,
            least_wait: 0.25,
        };
        assert_eq!(pieces, expected);
        assert_eq!(pieces.update(), 0.25);
    }

    #[test]
    fn rates_count_the_samples_of_all_ranks_and_compare_with_a_single_one() {
        let json = report().to_json();
        let [single, two] = json["measurements"].as_array().unwrap().as_slice() else {
            panic!("two measurements");
        };
        assert_eq!(single["samplesPerSecond"], 16.0);
        assert_eq!(single["timesSingle"], 1.0);
        assert_eq!(two["samplesPerSecond"], 16.0);
        assert_eq!(two["timesSingle"], 2.0);
        assert_eq!(two["waitShare"]["median"], 0.375);
        assert_eq!(two["stepMs"]["median"], 1000.0);
    }

    #[test]
    fn the_table_has_a_line_for_each_measurement() {
        let table = report().to_string();
        let rows = table.lines().filter(|line| line.trim_start().starts_with("gpt"));
        assert_eq!(rows.count(), 2, "{table}");
        assert!(
            table.contains("cores (") && table.contains("congestion control"),
            "{table}"
        );
    }
}
