//! Which Kubernetes, its programs, and the image that nodes run them from.

use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Result, bail};
use lab_protocol::disk::MIB;
use serde::{Deserialize, Serialize};

use super::images;
use crate::cache::Cache;
use crate::packages::go::Module;
use crate::packages::root::{self, Root};
use crate::{progress, workspace};

/// A version of Kubernetes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub(crate) enum Version {
    #[default]
    V1_35,
    V1_33,
}

impl Version {
    const ALL: [Version; 2] = [Version::V1_35, Version::V1_33];

    fn name(self) -> &'static str {
        match self {
            Version::V1_35 => "1.35",
            Version::V1_33 => "1.33",
        }
    }

    fn module(self) -> Module {
        match self {
            Version::V1_35 => {
                kubernetes("kubernetes-1.35", &[VERSION, MAJOR, "k8s.io/component-base/version.gitMinor=35"])
            }
            Version::V1_33 => {
                kubernetes("kubernetes-1.33", &[VERSION, MAJOR, "k8s.io/component-base/version.gitMinor=33"])
            }
        }
    }
}

const VERSION: &str = "k8s.io/component-base/version.gitVersion=@";
const MAJOR: &str = "k8s.io/component-base/version.gitMajor=1";

const fn kubernetes(folder: &'static str, set: &'static [&'static str]) -> Module {
    let commands = &[
        "k8s.io/kubernetes/cmd/kube-apiserver",
        "k8s.io/kubernetes/cmd/kube-controller-manager",
        "k8s.io/kubernetes/cmd/kube-scheduler",
        "k8s.io/kubernetes/cmd/kubelet",
        "k8s.io/kubernetes/cmd/kube-proxy",
        "k8s.io/kubernetes/cmd/kubectl",
    ];
    Module { folder, commands, set }
}

const ETCD: Module = Module { folder: "etcd", commands: &["go.etcd.io/etcd/server/v3"], set: &[] };

impl fmt::Display for Version {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.name())
    }
}

impl std::str::FromStr for Version {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> Result<Version> {
        match Version::ALL.into_iter().find(|version| version.name() == text) {
            Some(version) => Ok(version),
            None => bail!("the lab has Kubernetes {}", Version::ALL.map(Version::name).join(" and ")),
        }
    }
}

/// The programs of a cluster, built.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Programs {
    pub(crate) version: Version,
    /// A directory with those of Kubernetes.
    pub(crate) kubernetes: PathBuf,
    /// A directory with etcd's, which is called `server` after its package.
    pub(crate) etcd: PathBuf,
    /// The image that nodes see as `/opt/lab`: `bin` and `images`.
    pub(crate) node_image: PathBuf,
}

/// A file for the nodes: its path under `/opt/lab`, and where it is here.
pub(crate) type NodeFile = (String, PathBuf);

/// Builds what is not in the cache: Kubernetes' programs and etcd's.
pub(crate) fn build(cache: &Cache, version: Version) -> Result<(PathBuf, PathBuf)> {
    Ok((version.module().programs(cache)?, ETCD.programs(cache)?))
}

impl Programs {
    /// Makes the nodes' image. `more` are files for the nodes beside Kubernetes' own.
    pub(crate) fn make(
        cache: &Cache,
        root: &Root,
        version: Version,
        run: &Path,
        more: &[NodeFile],
    ) -> Result<Programs> {
        let (kubernetes, etcd) = build(cache, version)?;
        let pod = workspace::build_static("lab-pod")?;
        let step = progress::step("making the nodes' image");
        let tree = run.join("node-tree");
        fs::create_dir_all(tree.join("bin"))?;
        fs::create_dir_all(tree.join("images"))?;
        images::write(&tree.join("images").join(images::OWN), &images::own(&root.busybox, &pod))?;
        fs::copy(kubernetes.join("kubelet"), tree.join("bin/kubelet"))?;
        for (path, source) in more {
            fs::copy(source, tree.join(path))?;
        }
        let node_image = run.join("node.img");
        root::image(&tree, &node_image, 16 * MIB)?;
        fs::remove_dir_all(&tree)?;
        step.done();
        Ok(Programs { version, kubernetes, etcd, node_image })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_version_is_known_by_its_name_and_another_is_refused() {
        assert_eq!("1.33".parse::<Version>().unwrap(), Version::V1_33);
        let error = "1.20".parse::<Version>().unwrap_err().to_string();
        assert_eq!(error, "the lab has Kubernetes 1.35 and 1.33");
    }
}
