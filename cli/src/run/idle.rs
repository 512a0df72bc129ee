//! Says before a run which of its ranks will have nothing to do: the grid of a step does not follow the number of workers.

use gradsync_formats::grid;
use gradsync_formats::run_config::RunConfig;

/// A line for the user if `workers` have more ranks than a step has micro-batches.
#[must_use]
pub fn idle_ranks(config: &RunConfig, workers: u32) -> Option<String> {
    let ranks = u64::from(workers) * u64::from(config.workers.devices_per_worker);
    let batch = config.training.global_batch_size;
    let micro = config.micro_batch_size;
    let pieces = grid::part_count(batch, micro);
    let idle = ranks.checked_sub(pieces).filter(|idle| *idle > 0)?;
    let way_out = match batch / ranks {
        0 => "take fewer workers".to_owned(),
        size => format!(
            "take fewer workers, or set spec.accumulation.microBatchSize to {size} or less in a new run"
        ),
    };
    Some(format!(
        "{idle} of {ranks} ranks will have no work: a step of {batch} samples has {pieces} micro-batches of {micro}, whatever \
         the number of workers; {way_out}"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use gradsync_formats::run_config::resolve;
    use serde_json::json;

    #[test]
    fn ranks_beyond_the_micro_batches_of_a_step_are_told_with_the_way_out() {
        let spec = json!({
            "task": {"name": "count", "parameters": {"size": 100}},
            "training": {"globalBatchSize": 24, "steps": 3, "optimizer": {"name": "SGD", "learningRate": 1}},
            "workers": {"replicas": 2},
        });
        let config = resolve("count", &spec).unwrap();
        assert_eq!(config.micro_batch_size, 12);
        assert_eq!(idle_ranks(&config, 2), None);
        let text = idle_ranks(&config, 3).unwrap();
        assert!(text.starts_with("1 of 3 ranks"), "{text}");
        assert!(text.contains("microBatchSize to 8 or less"), "{text}");
        assert!(idle_ranks(&config, 40).unwrap().ends_with("take fewer workers"));
    }
}
