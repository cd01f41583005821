//! The snapshot API and its controller, without group snapshots.

use anyhow::Result;

use super::{await_deployment, define};
use crate::cache::Cache;
use crate::cluster::Cluster;
use crate::cluster::images::Image;
use crate::packages::go::{self, Module};
use crate::progress;

/// The controller, and the sidecar that each driver has.
pub(super) const SNAPSHOTTER: Module = Module {
    folder: "snapshotter",
    commands: &[
        "github.com/kubernetes-csi/external-snapshotter/v8/cmd/csi-snapshotter",
        "github.com/kubernetes-csi/external-snapshotter/v8/cmd/snapshot-controller",
    ],
    set: &["main.version=@"],
};

/// The module with the definitions of the API's types.
const TYPES: &str = "github.com/kubernetes-csi/external-snapshotter/client/v8";

/// The images that [`install`] needs on the nodes.
pub(crate) fn images(cache: &Cache) -> Result<Vec<Image>> {
    let program = SNAPSHOTTER.programs(cache)?.join("snapshot-controller");
    let image = Image::new("lab.lvms.io/snapshot-controller:8.3.0").file("/snapshot-controller", &program);
    Ok(vec![image.entrypoint(&["/snapshot-controller"])])
}

/// Makes a cluster that knows snapshots. Drivers come after this.
pub(crate) fn install(cache: &Cache, cluster: &Cluster) -> Result<()> {
    let step = progress::step("installing the snapshot controller");
    let types = go::source_of(cache, SNAPSHOTTER.folder, TYPES)?.join("config/crd");
    let plurals = ["volumesnapshotclasses", "volumesnapshotcontents", "volumesnapshots"];
    define(cluster, &types, "snapshot.storage.k8s.io", &plurals)?;
    cluster.apply(include_str!("snapshots/controller.yaml"))?;
    await_deployment(cluster, "kube-system", "snapshot-controller")?;
    step.done();
    Ok(())
}
