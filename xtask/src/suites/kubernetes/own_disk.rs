//! A device class on a disk that one test has to itself, and may break.

use anyhow::{Result, ensure};
use lab_protocol::disk::{Disk, GIB};

use crate::cluster::{Cluster, Node};
use crate::deployed;

/// Lets a test act while a node offers a disk that can have faults. The disk, its volume group and both classes have one
/// name.
pub(super) fn with_a_class_on_a_disk(
    cluster: &Cluster,
    node: &Node,
    name: &str,
    act: impl FnOnce() -> Result<()>,
) -> Result<()> {
    let disk = cluster.plug(&node.guest, Disk::new(GIB).serial(name).with_faults())?;
    node.guest.script(&format!("udevadm settle; vgcreate {name} {disk}")).run()?;
    let class = format!("device-classes:\n- {{name: {name}, volume-group: {name}, spare-gb: 0}}");
    deployed::configure(node, deployed::CONFIGURATION.replacen("device-classes:", &class, 1))?;
    cluster.apply(&storage_class(name))?;
    let acted = act();
    cluster.kubectl(["delete", "storageclass", name])?;
    deployed::configure(node, deployed::CONFIGURATION)?;
    acted?;
    node.guest.script(&format!("vgremove {name}; pvremove {disk}")).run()?;
    node.guest.unplug(name)?;
    cluster.wait_for("nobody to be told of the class any more", || {
        let told = deployed::told_by(cluster, node)?["deviceClasses"].to_string();
        let annotations = cluster.get(["node", &node.name])?["metadata"]["annotations"].to_string();
        ensure!(!told.contains(name) && !annotations.contains(name), "{told}, annotations {annotations}");
        Ok(true)
    })
}

fn storage_class(name: &str) -> String {
    format!(
        "
apiVersion: storage.k8s.io/v1
kind: StorageClass
metadata: {{name: {name}}}
provisioner: topolvm.io
parameters: {{csi.storage.k8s.io/fstype: xfs, topolvm.io/device-class: {name}}}
volumeBindingMode: WaitForFirstConsumer
"
    )
}
