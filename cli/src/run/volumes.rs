//! Where the trainer container's mount points lie on this machine: a hostPath as it is, any other volume
//! in the output directory, `--map` over both. Pure but for the check of what `--map` names.

use gradsync_formats::path_map::PathMap;
use serde_json::Value;
use std::path::{Path, PathBuf};

/// What a manifest's volumes become on this machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Volumes {
    /// Where each container path lies.
    pub map: PathMap,
    /// Directories that must be made.
    pub directories: Vec<PathBuf>,
    /// Mount points whose volume lies in the output directory, with where.
    pub inside: Vec<(PathBuf, PathBuf)>,
    /// Mount points that need a path of this machine to be there already, with that path.
    pub needed: Vec<(PathBuf, PathBuf)>,
}

impl Volumes {
    /// Checks that what must be there is.
    ///
    /// # Errors
    /// Names the first path that is missing, and the way out.
    pub fn check(&self) -> Result<(), String> {
        match self.needed.iter().find(|(_, target)| !target.exists()) {
            None => Ok(()),
            Some((mount, target)) => Err(format!(
                "spec.workers.template.spec.volumes: hostPath {} does not exist on this machine; run with --map {}=DIRECTORY to say where it lies",
                target.display(),
                mount.display()
            )),
        }
    }
}

/// A `--map CONTAINER=HOST` argument.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MapArgument {
    /// Absolute path in the container.
    pub mount: PathBuf,
    /// Path on this machine, absolute.
    pub target: PathBuf,
}

/// Reads a `--map` argument; a relative host path is taken from `here`.
///
/// # Errors
/// When it has no `=`, the container path is not absolute, or the host path does not exist.
pub fn parse_map(text: &str, here: &Path) -> Result<MapArgument, String> {
    let Some((mount, target)) = text.split_once('=') else {
        return Err(format!(
            "--map {text}: write CONTAINER_PATH=DIRECTORY, such as --map /data=./data"
        ));
    };
    if !mount.starts_with('/') {
        return Err(format!(
            "--map {text}: {mount:?} is not an absolute path of the container, such as /data"
        ));
    }
    let target = here.join(target);
    if !target.exists() {
        return Err(format!("--map {text}: {} does not exist", target.display()));
    }
    Ok(MapArgument {
        mount: mount.into(),
        target,
    })
}

/// Maps the mount points of container `trainer` in the manifest's `spec`.
///
/// # Errors
/// When a mount names a volume that the template does not declare, or leaves its volume.
pub fn map_volumes(spec: &Value, output: &Path, overrides: &[MapArgument]) -> Result<Volumes, String> {
    let mut volumes = Volumes {
        map: PathMap::default(),
        directories: vec![],
        inside: vec![],
        needed: vec![],
    };
    let pod = &spec["workers"]["template"]["spec"];
    let declared = pod["volumes"].as_array().map_or(&[][..], Vec::as_slice);
    let containers = pod["containers"].as_array().map_or(&[][..], Vec::as_slice);
    let trainer = containers.iter().find(|c| c["name"] == "trainer");
    let mounts = trainer
        .and_then(|c| c["volumeMounts"].as_array())
        .map_or(&[][..], Vec::as_slice);
    for mount in mounts {
        let (Some(name), Some(path)) = (mount["name"].as_str(), mount["mountPath"].as_str()) else {
            return Err(
                "spec.workers.template.spec.containers[trainer].volumeMounts: each needs name and mountPath"
                    .into(),
            );
        };
        if overrides.iter().any(|o| o.mount == Path::new(path)) {
            continue;
        }
        let Some(volume) = declared.iter().find(|v| v["name"] == name) else {
            return Err(format!(
                "spec.workers.template.spec.volumes: volume {name:?} is mounted at {path} but not declared; declare it or run with --map {path}=DIRECTORY"
            ));
        };
        let host = volume["hostPath"]["path"].as_str();
        let mut target = host.map_or_else(|| output.join("volumes").join(name), PathBuf::from);
        if let Some(below) = mount["subPath"].as_str() {
            let below = Path::new(below);
            let inside = below
                .components()
                .all(|c| matches!(c, std::path::Component::Normal(_)));
            if !inside {
                return Err(format!(
                    "spec.workers.template.spec.containers[trainer].volumeMounts: subPath {:?} of {path} leaves its volume; use a relative path without ..",
                    below.display()
                ));
            }
            target = target.join(below);
        }
        let made = matches!(volume["hostPath"]["type"].as_str(), Some("DirectoryOrCreate"));
        match host {
            Some(_) if !made => volumes.needed.push((path.into(), target.clone())),
            _ => volumes.directories.push(target.clone()),
        }
        if host.is_none() {
            volumes.inside.push((path.into(), target.clone()));
        }
        volumes.map.set(path, target);
    }
    let mounted: Vec<&str> = mounts.iter().filter_map(|m| m["mountPath"].as_str()).collect();
    for o in overrides {
        if !mounted.iter().any(|mount| o.mount.starts_with(mount)) {
            return Err(stray_map(&o.mount, &mounted));
        }
        volumes.map.set(&o.mount, &o.target);
    }
    Ok(volumes)
}

/// A `--map` that says where something lies that the trainer does not mount: on a cluster there would be
/// nothing.
fn stray_map(mount: &Path, mounted: &[&str]) -> String {
    let known = match mounted {
        [] => "it mounts none; declare one in spec.workers.template".to_owned(),
        some => format!("it mounts {}", some.join(", ")),
    };
    format!(
        "--map {}=...: no volume mount of container trainer is or holds this path: {known}",
        mount.display()
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn spec() -> Value {
        json!({"workers": {"template": {"spec": {
            "containers": [
                {"name": "sidecar", "volumeMounts": [{"name": "logs", "mountPath": "/logs"}]},
                {"name": "trainer", "volumeMounts": [
                    {"name": "data", "mountPath": "/data"},
                    {"name": "ckpt", "mountPath": "/checkpoints", "subPath": "team/a"}]}],
            "volumes": [
                {"name": "data", "hostPath": {"path": "/srv/data"}},
                {"name": "ckpt", "persistentVolumeClaim": {"claimName": "ckpt"}}]}}}})
    }

    #[test]
    fn a_host_path_is_itself_and_any_other_volume_lies_in_the_output() {
        let volumes = map_volumes(&spec(), Path::new("/out"), &[]).unwrap();
        assert_eq!(
            volumes.map.apply(Path::new("/data/x")),
            PathBuf::from("/srv/data/x")
        );
        assert_eq!(
            volumes.map.apply(Path::new("/checkpoints/u")),
            PathBuf::from("/out/volumes/ckpt/team/a/u")
        );
        assert_eq!(volumes.directories, [PathBuf::from("/out/volumes/ckpt/team/a")]);
        assert_eq!(
            volumes.map.apply(Path::new("/logs/x")),
            PathBuf::from("/logs/x"),
            "a sidecar's mounts are not the trainer's"
        );
    }

    #[test]
    fn an_override_wins_and_makes_no_directory() {
        let over = [MapArgument {
            mount: "/checkpoints".into(),
            target: "/tmp/c".into(),
        }];
        let volumes = map_volumes(&spec(), Path::new("/out"), &over).unwrap();
        assert_eq!(
            volumes.map.apply(Path::new("/checkpoints")),
            PathBuf::from("/tmp/c")
        );
        assert!(volumes.directories.is_empty() && volumes.inside.is_empty());
    }

    #[test]
    fn a_map_of_what_is_not_mounted_is_refused_with_the_mounts() {
        let over = |mount: &str| {
            let over = [MapArgument {
                mount: mount.into(),
                target: "/tmp".into(),
            }];
            map_volumes(&spec(), Path::new("/out"), &over)
        };
        over("/data").unwrap();
        over("/data/below").unwrap();
        for stray in ["/dat", "/data2", "/logs"] {
            let error = over(stray).unwrap_err();
            assert!(
                error.contains(&format!("--map {stray}=")) && error.contains("/data, /checkpoints"),
                "{error}"
            );
        }
    }

    #[test]
    fn an_undeclared_volume_and_a_path_out_of_its_volume_are_named() {
        let mut undeclared = spec();
        undeclared["workers"]["template"]["spec"]["volumes"] = json!([]);
        let error = map_volumes(&undeclared, Path::new("/out"), &[]).unwrap_err();
        assert!(
            error.contains("\"data\"") && error.contains("--map /data="),
            "{error}"
        );
        let mut climbing = spec();
        climbing["workers"]["template"]["spec"]["containers"][1]["volumeMounts"][1]["subPath"] =
            json!("../x");
        assert!(
            map_volumes(&climbing, Path::new("/out"), &[])
                .unwrap_err()
                .contains("../x")
        );
    }

    #[test]
    fn a_map_argument_is_absolute_in_the_container_and_exists_here() {
        let here = tempfile::tempdir().unwrap();
        std::fs::create_dir(here.path().join("d")).unwrap();
        let good = parse_map("/data=d", here.path()).unwrap();
        assert_eq!(good.target, here.path().join("d"));
        for bad in ["/data", "data=d", "/data=missing"] {
            assert!(parse_map(bad, here.path()).unwrap_err().contains(bad), "{bad}");
        }
    }
}
