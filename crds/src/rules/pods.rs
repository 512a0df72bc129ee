//! Rules about the pod template and about where checkpoints lie in it.

use super::Rule;

/// Whether mount `m` lies above the checkpoint directory, or is it.
fn covers(m: &str) -> String {
    format!(
        "(self.checkpoint.directory + '/').startsWith({m}.mountPath.endsWith('/') ? {m}.mountPath : {m}.mountPath + \
         '/')"
    )
}

pub(super) fn checkpoint_rules() -> Vec<Rule> {
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

pub(super) fn template_rules() -> Vec<Rule> {
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
