//! The CEL rules: what no bound of a single field can say. Each message names the field, its value and the way
//! out.
//!
//! They live in a table, not on the types, so that each can be listed, tested and matched to the manifest in the
//! test corpus that breaks it. The API server refuses a rule whose estimated cost is too high: whatever a rule
//! reads has a bound in the schema.

use serde_json::{Value, json};
use std::borrow::Cow;

/// One rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rule {
    /// Node of the schema that the rule is attached to: `spec.training`; empty for the root.
    pub at: &'static str,
    /// The CEL expression; `self` is the node's value, `oldSelf` its value before an update.
    pub rule: Cow<'static, str>,
    /// What it says when broken.
    pub message: &'static str,
    /// CEL expression of a message with values in it, used in place of `message` where it evaluates.
    pub message_expression: Option<&'static str>,
    /// The field at fault, relative to the node, with a leading dot.
    pub field_path: Option<&'static str>,
    /// FieldValueInvalid if absent.
    pub reason: Option<&'static str>,
}

impl Rule {
    fn new(at: &'static str, rule: impl Into<Cow<'static, str>>, message: &'static str) -> Rule {
        Rule {
            at,
            rule: rule.into(),
            message,
            message_expression: None,
            field_path: None,
            reason: None,
        }
    }

    fn field(mut self, path: &'static str) -> Rule {
        self.field_path = Some(path);
        self
    }

    fn saying(mut self, expression: &'static str) -> Rule {
        self.message_expression = Some(expression);
        self
    }

    fn forbidden(mut self) -> Rule {
        self.reason = Some("FieldValueForbidden");
        self
    }

    /// Whether it compares with the state before an update, and so is silent on creation.
    #[must_use]
    pub fn is_transition(&self) -> bool {
        self.rule.contains("oldSelf")
    }

    /// As in `x-kubernetes-validations`.
    #[must_use]
    pub fn to_json(&self) -> Value {
        let mut rule = json!({"rule": self.rule, "message": self.message});
        for (key, value) in [
            ("messageExpression", self.message_expression),
            ("fieldPath", self.field_path),
            ("reason", self.reason),
        ] {
            if let Some(value) = value {
                rule[key] = json!(value);
            }
        }
        rule
    }
}

/// All rules in the order in which they are attached.
#[must_use]
pub fn rules() -> Vec<Rule> {
    let mut all = name_rules();
    all.extend(training_rules());
    all.extend(batch_rules());
    all.extend(checkpoint_rules());
    all.extend(template_rules());
    all.extend(transition_rules());
    all.extend(status_rules());
    all
}

fn name_rules() -> Vec<Rule> {
    vec![
        Rule::new("", "size(self.metadata.name) <= 40", "the name is longer than 40 characters: shorten it")
            .saying(
            "'name %s has %d characters: use at most 40 (with generateName: at most 35), so that the names of its pods \
                 fit'.format([self.metadata.name, size(self.metadata.name)])",
        )
            .field(".metadata.name"),
        Rule::new(
            "",
            "self.metadata.name.matches('^[a-z]([-a-z0-9]*[a-z0-9])?$')",
            "the name is not a DNS label: use lower-case letters, digits and -, beginning with a letter",
        )
        .saying(
            "'name %s is not a DNS label: use lower-case letters, digits and -, beginning with a letter and ending with a \
             letter or digit'.format([self.metadata.name])",
        )
        .field(".metadata.name"),
    ]
}

fn training_rules() -> Vec<Rule> {
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

fn batch_rules() -> Vec<Rule> {
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

/// Whether mount `m` lies above the checkpoint directory, or is it.
fn covers(m: &str) -> String {
    format!(
        "(self.checkpoint.directory + '/').startsWith({m}.mountPath.endsWith('/') ? {m}.mountPath : {m}.mountPath + \
         '/')"
    )
}

fn checkpoint_rules() -> Vec<Rule> {
    const SPEC: &str = "self.workers.template.spec";
    let m = covers("m");
    let n = covers("n");
    // The directory lies on the deepest mount above it. A list of one element binds its depth to a name, which
    // keeps the cost linear in the number of mounts.
    let on_every_mount_that_holds_it = |ok: &str| {
        format!(
            "{SPEC}.containers.all(c, c.name != 'trainer' || !has(c.volumeMounts) || [(c.volumeMounts.map(n, {n}, \
             size(n.mountPath)) + [0]).max()].all(depth, c.volumeMounts.all(m, size(m.mountPath) != depth || !({m}) \
             || {ok})))"
        )
    };
    let applies = format!(
        "!has(self.checkpoint) || self.checkpoint.ephemeral || !has(self.workers.template) || !has({SPEC}) || \
         !has({SPEC}.containers) || !has({SPEC}.volumes)"
    );
    vec![
        Rule::new(
            "spec.checkpoint",
            "!(self.directory + '/').contains('/../') && !(self.directory + '/').contains('/./')",
            "directory has a . or .. in it: write it without",
        )
        .field(".directory"),
        Rule::new(
            "spec.checkpoint.resume",
            "self.policy != 'Path' || has(self.path)",
            "policy Path needs path: add the folder of the checkpoint to begin from",
        ),
        Rule::new(
            "spec.checkpoint.resume",
            "self.policy == 'Path' || !has(self.path)",
            "path is used with policy: Path only: set the policy, or remove path",
        )
        .saying(
            "'path is used with policy: Path only, and policy is %s: set policy: Path, or remove path'.format([self.policy])",
        )
        .field(".path"),
        Rule::new(
            "spec",
            format!(
                "!has(self.checkpoint) || self.checkpoint.ephemeral || (has(self.workers.template) && has({SPEC}) \
                 && has({SPEC}.containers) && {SPEC}.containers.exists(c, c.name == 'trainer' && \
                 has(c.volumeMounts) && c.volumeMounts.exists(m, {m})))"
            ),
            "the checkpoint directory is not below a volumeMount of container trainer: mount a volume there, or set \
             checkpoint.ephemeral: true to accept that checkpoints are lost with the pod",
        )
        .saying(
            "'directory: %s is not below a volumeMount of container trainer: mount a volume there in workers.template, or \
             set checkpoint.ephemeral: true to accept that checkpoints are lost with the \
             pod'.format([self.checkpoint.directory])",
        )
        .field(".checkpoint.directory"),
        Rule::new(
            "spec",
            format!(
                "{applies} || {}",
                on_every_mount_that_holds_it(&format!(
                    "!{SPEC}.volumes.exists(v, v.name == m.name && (has(v.emptyDir) || has(v.ephemeral) || \
                     has(v.configMap) || has(v.secret) || has(v.downwardAPI) || has(v.projected) || has(v.image)))"
                ))
            ),
            "the checkpoint directory lies on a volume that does not outlive the pod: use a persistentVolumeClaim, \
             or set checkpoint.ephemeral: true to accept that checkpoints are lost with the pod",
        )
        .saying(
            "'directory: %s lies on a volume that does not outlive the pod (emptyDir or the like): use a \
             persistentVolumeClaim, or set checkpoint.ephemeral: true to accept that checkpoints are lost with the \
             pod'.format([self.checkpoint.directory])",
        )
        .field(".checkpoint.directory"),
        Rule::new(
            "spec",
            format!("{applies} || {}", on_every_mount_that_holds_it("!has(m.readOnly) || !m.readOnly")),
            "the checkpoint directory lies on a volumeMount with readOnly: true: remove readOnly from it",
        )
        .field(".checkpoint.directory"),
    ]
}

fn template_rules() -> Vec<Rule> {
    let mut rules = vec![
        Rule::new(
            "spec.workers.template",
            "!has(self.spec) || !has(self.spec.restartPolicy) || self.spec.restartPolicy == 'Never'",
            "restartPolicy is reserved: remove it, since gradsync itself restarts what ends",
        )
        .saying(
            "'restartPolicy: %s is reserved: remove it (Never is in force), since gradsync itself restarts what \
             ends'.format([self.spec.restartPolicy])",
        )
        .field(".spec.restartPolicy")
        .forbidden(),
        Rule::new(
            "spec.workers.template",
            "!has(self.spec) || !has(self.spec.volumes) || self.spec.volumes.all(v, \
             !v.name.startsWith('gradsync-'))",
            "volume names that begin with gradsync- are reserved: rename the volume",
        )
        .field(".spec.volumes")
        .forbidden(),
    ];
    for (list, env, mounts) in [
        (
            "containers",
            "environment variables that begin with GRADSYNC_ are reserved: rename them in containers",
            "a volumeMount in containers names a volume that is not in the template: add it to volumes",
        ),
        (
            "initContainers",
            "environment variables that begin with GRADSYNC_ are reserved: rename them in initContainers",
            "a volumeMount in initContainers names a volume that is not in the template: add it to volumes",
        ),
    ] {
        let field = if list == "containers" {
            ".spec.containers"
        } else {
            ".spec.initContainers"
        };
        rules.push(
            Rule::new(
                "spec.workers.template",
                format!(
                    "!has(self.spec) || !has(self.spec.{list}) || self.spec.{list}.all(c, !has(c.env) || c.env.all(e, \
                     !e.name.startsWith('GRADSYNC_')))"
                ),
                env,
            )
            .field(field)
            .forbidden(),
        );
        rules.push(
            Rule::new(
                "spec.workers.template",
                format!(
                    "!has(self.spec) || !has(self.spec.{list}) || self.spec.{list}.all(c, !has(c.volumeMounts) || \
                     c.volumeMounts.all(m, has(self.spec.volumes) && self.spec.volumes.exists(v, v.name == m.name)))"
                ),
                mounts,
            )
            .field(field),
        );
    }
    rules
}

/// What may not change: never, or only while the job is suspended or has not started.
fn transition_rules() -> Vec<Rule> {
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
fn status_rules() -> Vec<Rule> {
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
