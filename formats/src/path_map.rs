//! Where the container's paths lie on this machine. On a cluster every path is as the manifest says; in
//! `gradsync run` the manifest's mount points are mapped to directories of the user's machine.

use serde::{Deserialize, Serialize};
use std::path::{Component, Path, PathBuf};

/// One mount point and where it lies.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Mapping {
    /// Absolute path in the container.
    pub mount: PathBuf,
    /// Path on this machine.
    pub target: PathBuf,
}

/// All mount points of a container. The deepest one that contains a path decides.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct PathMap(Vec<Mapping>);

impl PathMap {
    /// Sets where `mount` lies, replacing an earlier mapping of the same mount point.
    pub fn set(&mut self, mount: impl Into<PathBuf>, target: impl Into<PathBuf>) {
        let mount = mount.into();
        self.0.retain(|m| m.mount != mount);
        self.0.push(Mapping {
            mount,
            target: target.into(),
        });
    }

    /// All mappings, in the order in which they were set.
    #[must_use]
    pub fn mappings(&self) -> &[Mapping] {
        &self.0
    }

    /// Where `path` lies on this machine. A path below no mount point, or a relative one, stays as it is.
    /// `..` never climbs out of a mount point: such a path stays as it is too.
    #[must_use]
    pub fn apply(&self, path: &Path) -> PathBuf {
        if path.components().any(|c| c == Component::ParentDir) {
            return path.to_owned();
        }
        self.0
            .iter()
            .filter_map(|m| {
                let rest = path.strip_prefix(&m.mount).ok()?;
                Some((m.mount.components().count(), m, rest))
            })
            .max_by_key(|(depth, _, _)| *depth)
            .map_or_else(
                || path.to_owned(),
                |(_, m, rest)| {
                    if rest.as_os_str().is_empty() {
                        m.target.clone()
                    } else {
                        m.target.join(rest)
                    }
                },
            )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map() -> PathMap {
        let mut map = PathMap::default();
        map.set("/data", "/home/me/data");
        map.set("/data/cache", "/tmp/cache");
        map
    }

    #[test]
    fn the_deepest_mount_point_decides_and_strangers_stay() {
        for (from, to) in [
            ("/data", "/home/me/data"),
            ("/data/x/y", "/home/me/data/x/y"),
            ("/data/cache/z", "/tmp/cache/z"),
            ("/database", "/database"),
            ("relative/x", "relative/x"),
            ("/data/../etc", "/data/../etc"),
        ] {
            assert_eq!(map().apply(Path::new(from)), PathBuf::from(to), "{from}");
        }
    }

    #[test]
    fn a_mapping_given_later_replaces_the_earlier() {
        let mut map = map();
        map.set("/data", "/mnt");
        assert_eq!(map.apply(Path::new("/data/x")), PathBuf::from("/mnt/x"));
        let json = serde_json::to_string(&map).unwrap();
        assert_eq!(serde_json::from_str::<PathMap>(&json).unwrap(), map);
    }
}
