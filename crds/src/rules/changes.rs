//! Rules about changes: what never changes, what only while the job is suspended, and what guards the status.

use super::Rule;

/// What may not change: never, or only while the job is suspended or has not started.
pub(super) fn transition_rules() -> Vec<Rule> {
    /// Rule on a field that is always there.
    fn fixed(at: &'static str, message: &'static str) -> Rule {
        Rule::new(at, "self == oldSelf", message)
    }
    // Before the start a typo can still be mended.
    let editable = "!has(oldSelf.status) || !has(oldSelf.status.startTime) || (has(oldSelf.status.conditions) && \
                    oldSelf.status.conditions.exists(c, c.type == 'Suspended' && c.status == 'True'))";
    let same = |field: &str| {
        format!(
            "has(self.{field}) == has(oldSelf.{field}) && (!has(self.{field}) || self.{field} == oldSelf.{field})"
        )
    };
    vec![
        fixed("spec.task", "task never changes: create a new job"),
        fixed(
            "spec.training.globalBatchSize",
            "globalBatchSize never changes: create a new job",
        ),
        fixed("spec.training.seed", "seed never changes: create a new job"),
        fixed(
            "spec.training.optimizer",
            "optimizer never changes: create a new job",
        ),
        Rule::new(
            "spec.training",
            same("evaluation"),
            "evaluation never changes: create a new job",
        )
        .field(".evaluation"),
        Rule::new(
            "spec.training",
            "has(self.steps) == has(oldSelf.steps)",
            "a job that counts steps cannot go over to epochs, nor the other way: keep the field that it has",
        ),
        Rule::new(
            "spec.training.steps",
            "self >= oldSelf",
            "steps may only grow: keep the value or raise it",
        ),
        Rule::new(
            "spec.training.epochs",
            "self >= oldSelf",
            "epochs may only grow: keep the value or raise it",
        ),
        fixed(
            "spec.workers.devicesPerWorker",
            "devicesPerWorker never changes: create a new job",
        ),
        Rule::new(
            "spec",
            "has(self.checkpoint) == has(oldSelf.checkpoint)",
            "checkpoint can be neither added nor removed later: create a new job",
        )
        .field(".checkpoint"),
        fixed(
            "spec.checkpoint.directory",
            "directory never changes: create a new job",
        ),
        fixed("spec.checkpoint.shared", "shared never changes: create a new job"),
        fixed(
            "spec.checkpoint.ephemeral",
            "ephemeral never changes: create a new job",
        ),
        Rule::new(
            "spec.checkpoint",
            same("resume"),
            "resume never changes: create a new job",
        )
        .field(".resume"),
        Rule::new(
            "",
            format!("self.spec.workers.replicas == oldSelf.spec.workers.replicas || {editable}"),
            "replicas is fixed while the job runs: change it while the job is suspended",
        )
        .field(".spec.workers.replicas")
        .forbidden(),
        Rule::new(
            "",
            format!("({}) || {editable}", same("spec.workers.template")),
            "template is fixed while the job runs: change it while the job is suspended",
        )
        .field(".spec.workers.template")
        .forbidden(),
        Rule::new(
            "",
            format!("({}) || {editable}", same("spec.precision")),
            "precision is fixed while the job runs: change it while the job is suspended",
        )
        .field(".spec.precision")
        .forbidden(),
        Rule::new(
            "",
            format!("({}) || {editable}", same("spec.accumulation")),
            "accumulation is fixed while the job runs: change it while the job is suspended",
        )
        .field(".spec.accumulation")
        .forbidden(),
    ]
}

/// Guards of what the rendezvous service wrote, against everybody.
pub(super) fn status_rules() -> Vec<Rule> {
    vec![
        Rule::new(
            "",
            "!has(oldSelf.status) || !has(oldSelf.status.membership) || (has(self.status) && \
             has(self.status.membership))",
            "status.membership cannot be removed: it keeps two groups from training at once",
        )
        .field(".status")
        .forbidden(),
        Rule::new(
            "",
            "!has(oldSelf.status) || !has(oldSelf.status.membership) || !has(self.status) || \
             !has(self.status.membership) || self.status.membership.generation >= \
             oldSelf.status.membership.generation",
            "status.membership.generation never falls: write a higher one",
        )
        .field(".status.membership.generation")
        .forbidden(),
    ]
}
