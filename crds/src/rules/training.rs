//! Rules about the length of the run, the optimiser, the schedule and the batch.

use super::Rule;

pub(super) fn training_rules() -> Vec<Rule> {
    vec![
        Rule::new(
            "spec.training",
            "has(self.steps) != has(self.epochs)",
            "exactly one of steps and epochs must be given",
        )
        .saying(
            "has(self.steps) ? 'steps: %d and epochs: %d are both given: keep exactly one of the two'.format([self.steps, \
             self.epochs]) : 'neither steps nor epochs is given: add exactly one of the two, for example epochs: 10'",
        ),
        Rule::new(
            "spec.training.optimizer",
            "self.name != 'AdamW' || self.momentum == 0.0",
            "momentum has no meaning for AdamW: remove it, or use betas",
        )
        .field(".momentum"),
        Rule::new(
            "spec.training.optimizer",
            "self.name != 'SGD' || self.betas == [0.9, 0.999]",
            "betas have no meaning for SGD: remove them, or use momentum",
        )
        .field(".betas"),
        Rule::new(
            "spec.training.optimizer",
            "self.name != 'SGD' || self.eps == 0.00000001",
            "eps has no meaning for SGD: remove it",
        )
        .field(".eps"),
        Rule::new(
            "spec.training.optimizer",
            "!self.nesterov || self.momentum > 0.0",
            "nesterov: true needs momentum: set momentum, for example to 0.9, or remove nesterov",
        )
        .field(".nesterov"),
        Rule::new(
            "spec.training.optimizer",
            "!has(self.schedule) || self.schedule.minLearningRate <= self.learningRate",
            "minLearningRate is higher than learningRate: lower it, since schedules only descend",
        )
        .field(".schedule.minLearningRate"),
        Rule::new(
            "spec.training.optimizer.schedule",
            "self.name == 'WarmupStableDecay' || self.decaySteps == 0",
            "decaySteps belongs to WarmupStableDecay: remove it, or use that schedule",
        )
        .saying(
            "'decaySteps: %d has no meaning for %s: remove it, or use name: WarmupStableDecay'.format([self.decaySteps, \
             self.name])",
        )
        .field(".decaySteps"),
        Rule::new(
            "spec.training.optimizer.schedule",
            "self.name != 'WarmupStableDecay' || self.decaySteps > 0",
            "WarmupStableDecay needs decaySteps of at least 1: say how many of the last steps decay",
        )
        .field(".decaySteps"),
        Rule::new(
            "spec.training.optimizer.schedule",
            "self.name != 'Constant' || self.minLearningRate == 0.0",
            "minLearningRate has no meaning for Constant: remove it, or use another schedule",
        )
        .field(".minLearningRate"),
        Rule::new(
            "spec.training.optimizer.schedule",
            "self.name != 'Constant' || !has(self.totalSteps)",
            "totalSteps has no meaning for Constant: remove it, or use another schedule",
        )
        .field(".totalSteps"),
        Rule::new(
            "spec.training.optimizer.schedule",
            "!has(self.totalSteps) || self.warmupSteps + self.decaySteps <= self.totalSteps",
            "warm-up and decay are longer than the schedule: lower warmupSteps or decaySteps, or raise totalSteps",
        )
        .saying(
            "'warmupSteps: %d and decaySteps: %d do not fit into totalSteps: %d: lower them or raise \
             totalSteps'.format([self.warmupSteps, self.decaySteps, self.totalSteps])",
        )
        .field(".totalSteps"),
        Rule::new(
            "spec.training",
            "!has(self.steps) || !has(self.optimizer.schedule) || has(self.optimizer.schedule.totalSteps) || \
             self.optimizer.schedule.warmupSteps + self.optimizer.schedule.decaySteps <= self.steps",
            "warm-up and decay are longer than the run: lower warmupSteps or decaySteps, or raise steps",
        )
        .saying(
            "'warmupSteps: %d and decaySteps: %d do not fit into steps: %d: lower them, raise steps, or set \
             schedule.totalSteps'.format([self.optimizer.schedule.warmupSteps, self.optimizer.schedule.decaySteps, \
             self.steps])",
        )
        .field(".optimizer.schedule"),
    ]
}

pub(super) fn batch_rules() -> Vec<Rule> {
    vec![
        Rule::new(
            "spec.accumulation",
            "!has(self.steps) || !has(self.microBatchSize)",
            "steps and microBatchSize are both given: keep one of the two",
        )
        .saying(
            "'steps: %d and microBatchSize: %d are both given: keep one of the two'.format([self.steps, \
             self.microBatchSize])",
        ),
        Rule::new(
            "spec",
            "!has(self.accumulation) || !has(self.accumulation.microBatchSize) || self.accumulation.microBatchSize \
             <= self.training.globalBatchSize",
            "a micro-batch is larger than the global batch: lower accumulation.microBatchSize or raise \
             training.globalBatchSize",
        )
        .saying(
            "'microBatchSize: %d is larger than training.globalBatchSize: %d: lower the one or raise the \
             other'.format([self.accumulation.microBatchSize, self.training.globalBatchSize])",
        )
        .field(".accumulation.microBatchSize"),
        Rule::new(
            "spec",
            "self.training.globalBatchSize >= self.workers.replicas * self.workers.devicesPerWorker",
            "the global batch has fewer samples than there are ranks: raise training.globalBatchSize or lower \
             workers.replicas or workers.devicesPerWorker",
        )
        .saying(
            "'globalBatchSize: %d is less than one sample for each of %d ranks (workers.replicas * \
             workers.devicesPerWorker): raise it or lower those'.format([self.training.globalBatchSize, \
             self.workers.replicas * self.workers.devicesPerWorker])",
        )
        .field(".training.globalBatchSize"),
        Rule::new(
            "spec",
            "!has(self.accumulation) || !has(self.accumulation.steps) || self.training.globalBatchSize < \
             self.workers.replicas * self.workers.devicesPerWorker || self.accumulation.steps * \
             self.workers.replicas * self.workers.devicesPerWorker <= self.training.globalBatchSize",
            "there are more micro-batches than samples in a step: lower accumulation.steps or raise \
             training.globalBatchSize",
        )
        .saying(
            "'steps: %d on %d ranks makes more micro-batches than training.globalBatchSize: %d has samples: lower the one \
             or raise the other'.format([self.accumulation.steps, self.workers.replicas * \
             self.workers.devicesPerWorker, self.training.globalBatchSize])",
        )
        .field(".accumulation.steps"),
    ]
}
