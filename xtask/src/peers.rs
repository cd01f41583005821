//! What lvms is measured against and works beside: others' storage for Kubernetes, run as they ship it.
//!
//! - [`snapshots`]: the snapshot API and its controller, which a cluster has once.
//! - [`topolvm`]: TopoLVM with its sidecars.

pub(crate) mod snapshots;
pub(crate) mod topolvm;

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use crate::cache::Cache;
use crate::cluster::Cluster;
use crate::cluster::images::{self, Image};
use crate::cluster::programs::NodeFile;
use crate::packages::go::Module;

const CSI_SANITY: Module = Module {
    folder: "csi-sanity",
    commands: &["github.com/kubernetes-csi/csi-test/v5/cmd/csi-sanity"],
    set: &[],
};

/// The peers' images, by their file names on a node.
pub(crate) const IMAGES: [&str; 2] = ["snapshots.tar", "topolvm.tar"];

/// What nodes need for the peers, built if it is not in the cache.
pub(crate) fn node_files(cache: &Cache) -> Result<Vec<NodeFile>> {
    let made = [snapshots::images(cache)?, topolvm::images(cache)?];
    let inputs: Vec<String> = made.iter().flatten().map(Image::describe).collect();
    let inputs: Vec<&str> = inputs.iter().map(String::as_str).collect();
    let entry = cache.entry("peer-images", &inputs, |path| {
        IMAGES.iter().zip(&made).try_for_each(|(name, images)| images::write(&path.join(name), images))
    })?;
    let mut files = vec![
        ("bin/csi-sanity".to_owned(), csi_sanity(cache)?),
        ("bin/registrar".to_owned(), topolvm::registrar(cache)?),
    ];
    files.extend(IMAGES.map(|name| (format!("images/{name}"), entry.join(name))));
    Ok(files)
}

/// csi-sanity, built if it is not in the cache.
pub(crate) fn csi_sanity(cache: &Cache) -> Result<PathBuf> {
    Ok(CSI_SANITY.programs(cache)?.join("csi-sanity"))
}

/// Makes the API server know the types that lie in `directory`, as `<group>_<plural>.yaml`.
fn define(cluster: &Cluster, directory: &Path, group: &str, plurals: &[&str]) -> Result<()> {
    for plural in plurals {
        let path = directory.join(format!("{group}_{plural}.yaml"));
        cluster.apply(&fs::read_to_string(&path).with_context(|| path.display().to_string())?)?;
    }
    for plural in plurals {
        let name = format!("{plural}.{group}");
        cluster.wait_for(&format!("the type {name} to be served"), || {
            let definition = cluster.get(["customresourcedefinition", &name])?;
            let conditions = definition["status"]["conditions"].as_array().map_or(&[][..], Vec::as_slice);
            Ok(conditions
                .iter()
                .any(|condition| condition["type"] == "Established" && condition["status"] == "True"))
        })?;
    }
    Ok(())
}

/// Waits until all pods of a Deployment are ready.
fn await_deployment(cluster: &Cluster, namespace: &str, name: &str) -> Result<()> {
    cluster.wait_for(&format!("{name} to be ready"), || {
        let deployment = cluster.get(["--namespace", namespace, "deployment", name])?;
        Ok(deployment["status"]["readyReplicas"] == deployment["spec"]["replicas"])
    })
}
